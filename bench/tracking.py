"""Measure updates of the table of batches with a large ledger. Without Spark: seconds of this process.

    python -m bench.tracking [--batches 1000000] [--changed 100] [--repeats 3]

Each line is one kind of change: the ledger commit is made first and not measured, then the update is, with the files that it
wrote. Prints a table in Markdown.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from lethe import batches_table, ledger_store
from lethe.base.objects import BufferedObject
from lethe.iceberg import catalogs
from lethe.iceberg.facts import observe
from lethe.ledger.ledger import BatchEntry, BatchState, Delta
from lethe.ledger.lineage import summary
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType

NAME = "air.flights"
RUN = "0123456789abcdef0123456789abcdef"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--batches", type=int, default=1_000_000)
    parser.add_argument("--changed", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(dir=os.environ.get("LETHE_BENCH_WORK")) as folder:
        catalog = _catalog(Path(folder))
        _measure(catalog, given.batches, given.changed, given.repeats)
    return 0


def _measure(catalog: Catalog, batches: int, changed: int, repeats: int) -> None:
    entries = [_entry(n) for n in range(batches)]
    chance = random.Random(1)
    _commit(catalog, entries)
    print("| change | batches | median s | min s | max s | files written | rows in them |")
    print("|---|---|---|---|---|---|---|")
    _line("all, from the ledger", batches, [_update(catalog, rebuild=True) for _ in range(1)])
    kinds: dict[str, Callable[[int], Sequence[BatchEntry]]] = {
        "new": lambda turn: [_entry(batches + turn * changed + n) for n in range(changed)],
        "reverted, neighbours": lambda turn: [_reverted(e) for e in entries[turn * changed :][:changed]],
        "reverted, scattered": lambda _: [_reverted(e) for e in chance.sample(entries, changed)],
        "none (a vacuum)": lambda _: (),
    }
    for name, make in kinds.items():
        found = []
        for turn in range(repeats):
            _commit(catalog, make(turn))
            found.append(_update(catalog))
        _line(name, changed if make(0) else 0, found)


def _update(catalog: Catalog, rebuild: bool = False) -> tuple[float, int, int]:
    """Seconds, files and rows written."""
    planned: list[batches_table.BatchesTableChange] = []
    plan = batches_table.plan_change

    def noted(*arguments: Any) -> batches_table.BatchesTableChange:
        planned.append(plan(*arguments))
        return planned[-1]

    batches_table.plan_change = noted  # type: ignore[assignment]
    started = time.perf_counter()
    try:
        done = batches_table.bring_up_to_date(
            catalog, NAME, "batch_id", batches_table.TrackingUpdate(create=True, rebuild=rebuild)
        )
    finally:
        batches_table.plan_change = plan
    took = time.perf_counter() - started
    assert done is not None
    assert done.rebuilt == rebuild, "the update did not rebuild the table as intended"
    return took, done.files, sum(c.num_rows for c in planned[-1].contents)


def _line(name: str, count: int, found: Sequence[tuple[float, int, int]]) -> None:
    seconds = [s for s, _, _ in found]
    _, files, rows = found[-1]
    times = f"{median(seconds):.2f} | {min(seconds):.2f} | {max(seconds):.2f}"
    print(f"| {name} | {count:,} | {times} | {files} | {rows:,} |", flush=True)


def _commit(catalog: Catalog, entries: Sequence[BatchEntry]) -> None:
    table = catalog.load_table(NAME)
    facts = observe(table, "batch_id")
    base = ledger_store.load(table.io, facts)
    written = ledger_store.write(table.io, facts, base, Delta(RUN, set_batches=tuple(entries)))
    table.append(table.schema().as_arrow().empty_table(), snapshot_properties=summary(written, RUN, "Consolidation"))


def _entry(n: int) -> BatchEntry:
    """Ids as of producers that name them by time: later batches sort behind earlier ones."""
    id = f"2026-{n // 40_000 + 1:02d}-{n % 40_000:05d}.{n % 97:02d}"
    objects = (
        BufferedObject(f"s3://lake/buffer/batch_id={id}/part-0.parquet", 40_000, "5d41402abc4b2a76b9719d911017c592"),
    )
    return BatchEntry(id, BatchState.PROMOTED, RUN, datetime.now(UTC), rows=500, bytes=40_000, objects=objects)


def _reverted(entry: BatchEntry) -> BatchEntry:
    return replace(entry, state=BatchState.REVERTED, time=datetime.now(UTC), restatement="air/revert/0")


def _catalog(folder: Path) -> Catalog:
    (folder / ".pyiceberg.yaml").write_text(
        f"catalog:\n  lite:\n    type: sql\n    uri: sqlite:///{folder}/c.db\n    warehouse: file://{folder}/warehouse\n"
        "    init_catalog_tables: 'true'\n"
    )
    os.environ["PYICEBERG_HOME"] = str(folder)
    catalog = catalogs.load("lite")
    catalog.create_namespace("air")
    schema = Schema(NestedField(1, "batch_id", StringType()))
    catalog.create_table(NAME, schema, properties={"format-version": "2"})
    return catalog


if __name__ == "__main__":
    sys.exit(main())
