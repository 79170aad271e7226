"""Small files into one table: how many an hour, in which stages, and how that grows with the files of one run."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lethe.iceberg import catalogs
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from bench import producer
from bench.consolidation_scales import ConsolidationScale
from bench.drivers import Measured, carry_out, consolidation
from bench.lake import CATALOG, Lake
from bench.timing import failure, say


def sustained(lake: Lake, scale: ConsolidationScale) -> dict[str, Any]:
    """Consolidate a buffer of small files, by one run after the other, each in its own process."""
    made = _fill(lake, scale.files)
    table, results = "run.sustained", []
    for first in range(0, scale.files, scale.per_run):
        ids = [producer.batch_id(n) for n in range(first, min(first + scale.per_run, scale.files))]
        results.append(_measured(lake, scale, table, ids))
    return {"files": made.batches, "rows": made.rows, "bytes": made.bytes, **_checked(table, results, made.rows)}


def growth(lake: Lake, scale: ConsolidationScale) -> dict[str, Any]:
    """Single runs of more and more files, each into a new table."""
    results = []
    for count in scale.growth:
        made = _fill(lake, count)
        ids = [producer.batch_id(n) for n in range(count)]
        table = f"run.growth_{count}"
        measured = _measured(lake, scale, table, ids)
        if "error" not in measured:
            _checked(table, [measured], made.rows)
        results.append(measured)
    return {"results": results}


def _fill(lake: Lake, count: int) -> producer.Produced:
    buffer = lake.home / "buffer"
    shutil.rmtree(buffer, ignore_errors=True)
    say(f"{count:,} small files")
    return producer.fill(buffer, 0, count)


def _measured(lake: Lake, scale: ConsolidationScale, table: str, ids: Sequence[str]) -> dict[str, Any]:
    try:
        done = carry_out(lake.home, consolidation(Path(lake.home / "buffer"), table, ids), scale.driver_memory)
    except RuntimeError as e:
        say(f"  {len(ids):,} files: FAILED, {failure(e)}")
        return {"files": len(ids), "error": str(e)}
    say(f"  {len(ids):,} files: {done.seconds:.1f} s, {dict(done.stages)}, {done.peak_bytes / 2**20:,.0f} MiB")
    return {"files": len(ids), "per_hour": round(len(ids) / done.seconds * 3600), **_plain(done)}


def _plain(done: Measured) -> dict[str, Any]:
    wanted = {k: v for k, v in asdict(done).items() if k != "result"}
    return wanted | {
        "output_files": done.result.files_added,
        "output_bytes": done.result.bytes_added,
        "rows": done.result.rows_added,
    }


def _checked(table: str, results: list[dict[str, Any]], rows: int) -> dict[str, Any]:
    """Every row is there once, or the figures are worth nothing."""
    if any("error" in r for r in results):
        return {"results": results}
    history = list(ancestors_of(catalogs.load(CATALOG).load_table(table)))
    found = int(summary["total-records"] or 0) if (summary := history[0].summary) is not None else 0
    if found != rows:
        raise RuntimeError(f"{table} has {found} rows, {rows} were produced")
    return {
        "results": results,
        "commits": len(history),
        "seconds": round(sum(r["seconds"] for r in results), 1),
        "per_hour": round(sum(r["files"] for r in results) / sum(r["seconds"] for r in results) * 3600),
    }


def ancestors_of(table: Table) -> Iterator[Snapshot]:
    """The head and what it was made of, as far as it is retained."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        snapshot = table.snapshot_by_id(snapshot.parent_snapshot_id) if snapshot.parent_snapshot_id else None
