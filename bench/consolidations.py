"""Small files into one table: how many an hour, in which stages, and how that grows with the files of one run."""

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lethe.iceberg import catalogs

from bench import producer
from bench.consolidation_scales import ConsolidationScale
from bench.drivers import Measured, carry_out, consolidation
from bench.heads import ancestors_of, total_records
from bench.lake import BUCKET, CATALOG, Lake
from bench.timing import failure, say
from tests.support.servers import s3 as servers


def sustained(lake: Lake, scale: ConsolidationScale) -> dict[str, Any]:
    """Consolidate a buffer of small files, by one run after the other, each in its own process."""
    made = _fill(lake.home, scale.files)
    return _one_after_the_other(lake, scale, _Place(f"file://{lake.home}/buffer"), "run.sustained", made)


def on_s3(lake: Lake, scale: ConsolidationScale) -> dict[str, Any]:
    """The same with buffer and table on an S3 server, which runs on the same cores."""
    with servers.running() as s3:
        placed = lake.on_s3(s3)
        made = _fill(s3.folder / BUCKET, scale.files)
        place = _Place(f"s3://{BUCKET}/buffer", placed.catalog)
        return _one_after_the_other(placed, scale, place, "run.on_s3", made)


def growth(lake: Lake, scale: ConsolidationScale) -> dict[str, Any]:
    """Single runs of more and more files, each into a new table."""
    results = []
    for count in scale.growth:
        made = _fill(lake.home, count)
        ids = [producer.batch_id(n) for n in range(count)]
        table, place = f"run.growth_{count}", _Place(f"file://{lake.home}/buffer")
        measured = _measured(lake, scale, place, table, ids)
        if "error" not in measured:
            _checked(place, table, [measured], made.rows)
        results.append(measured)
    return {"results": results}


@dataclass(frozen=True)
class _Place:
    """Where a buffer and a table are."""

    # URI of the buffer.
    buffer: str
    catalog: str = CATALOG


def _one_after_the_other(
    lake: Lake, scale: ConsolidationScale, place: _Place, table: str, made: producer.Produced
) -> dict[str, Any]:
    results = []
    for first in range(0, scale.files, scale.per_run):
        ids = [producer.batch_id(n) for n in range(first, min(first + scale.per_run, scale.files))]
        results.append(_measured(lake, scale, place, table, ids))
    return {"files": made.batches, "rows": made.rows, "bytes": made.bytes, **_checked(place, table, results, made.rows)}


def _fill(folder: Path, count: int) -> producer.Produced:
    """Put batches into the buffer in a folder, and nothing else."""
    buffer = folder / "buffer"
    shutil.rmtree(buffer, ignore_errors=True)
    say(f"{count:,} small files")
    return producer.fill(buffer, 0, count)


def _measured(lake: Lake, scale: ConsolidationScale, place: _Place, table: str, ids: Sequence[str]) -> dict[str, Any]:
    try:
        spec = consolidation(place.buffer, table, ids, catalog=place.catalog)
        done = carry_out(lake.home, spec, scale.driver_memory)
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


def _checked(place: _Place, table: str, results: list[dict[str, Any]], rows: int) -> dict[str, Any]:
    """Every row is there once, or the figures are worth nothing."""
    if any("error" in r for r in results):
        return {"results": results}
    made = catalogs.load(place.catalog).load_table(table)
    if (found := total_records(made)) != rows:
        raise RuntimeError(f"{table} has {found} rows, {rows} were produced")
    return {
        "results": results,
        "commits": sum(1 for _ in ancestors_of(made)),
        "seconds": round(sum(r["seconds"] for r in results), 1),
        "per_hour": round(sum(r["files"] for r in results) / sum(r["seconds"] for r in results) * 3600),
    }
