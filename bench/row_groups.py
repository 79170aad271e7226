"""Measure what the size of row groups costs: reads of the same table, and what a purge encodes and moves.

    python -m bench.row_groups [--scale tiny|small|full] [--only reads,purges] [--out docs/benchmarks]

The figures go into `docs/benchmarks/row_groups.json`, and between two markers of `docs/benchmarks.md`. Needs 20 GB of disk at
full scale.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from bench.lake import BATCH_COLUMN, Lake, Size, base, copied
from bench.report import SECONDS, Cell, View
from bench.runner import Suite, program, sizes
from bench.timing import Case, Sample, in_turns, seconds_of
from bench.vacuum import VACUUM, Purged, held_bytes, purge
from tests.support.servers import s3 as servers

ALL, ONE_COLUMN, ONE_BATCH = "all rows", "sum of one column", "rows of one batch"
QUERIES = (ALL, ONE_COLUMN, ONE_BATCH)


@dataclass(frozen=True)
class RowGroupsScale:
    """The sizes that determine how long the benchmark takes."""

    name: str
    table: Size  # full: 8 files of 134 MiB, each of which loses one batch of 55,000 rows
    # Sizes of row groups, in MiB.
    sizes: tuple[int, ...]
    # Batches that a purge takes out, evenly spread.
    deleted: int
    read_rounds: int
    # Memory of the driver, as Spark takes it.
    driver_memory: str = "2g"


SCALES = sizes(
    RowGroupsScale,
    table=(Size(1, 20, 100, 2), Size(1, 250, 55_000, 2), Size(1, 1_250, 55_000, 8)),
    sizes=((8, 16), (8, 16, 32), (8, 12, 16, 32, 64, 128)),
    deleted=(2, 2, 8),
    read_rounds=(1, 2, 5),
    driver_memory=("768m", "2g", "4g"),
)


def reads(lake: Lake, scale: RowGroupsScale) -> dict[str, Any]:
    """Plain reads of a table, in local files, with row groups of each size."""
    names = {mib: base(lake, scale.table, ordered=True, row_group_mib=mib) for mib in scale.sizes}
    batch = scale.table.batch_id(scale.table.all_batches // 2)

    def act(name: str, query: str, _: int) -> Sample:
        frame = _query(lake.spark.table(f"{lake.catalog}.{name}"), query, batch)
        return Sample(seconds_of(lambda: frame.write.format("noop").mode("overwrite").save()))

    results = in_turns(
        Case({"query": query, "mib": mib}, partial(act, names[mib], query), scale.read_rounds)
        for query in QUERIES
        for mib in scale.sizes
    )
    files = {mib: lake.spark.table(f"{lake.catalog}.{name}.files").collect() for mib, name in names.items()}
    tables = [
        {
            "mib": mib,
            "bytes": sum(f["file_size_in_bytes"] for f in found),
            "groups": sum(len(f["split_offsets"]) for f in found),
        }
        for mib, found in files.items()
    ]
    size = scale.table
    return {
        "table": {"rows": size.all_rows, "batches": size.all_batches, "files": size.months * size.files},
        "tables": tables,
        "results": results,
    }


def purges(lake: Lake, scale: RowGroupsScale) -> dict[str, Any]:
    """Purges of the same tables on an S3 server of this machine, in both format versions, one of each."""
    results = [r for mib in scale.sizes for r in _purges_of(lake, scale, mib)]
    return {"deleted": scale.deleted, "results": results}


def _purges_of(lake: Lake, scale: RowGroupsScale, mib: int) -> list[dict[str, Any]]:
    """Those of the table with row groups of one size."""
    size = scale.table
    doomed = size.spread(scale.deleted)
    done: dict[int, Purged] = {}
    with servers.running() as s3:
        there = lake.on_s3(s3)
        name = base(lake, size, ordered=True, row_group_mib=mib)
        copied(lake, there, name, ordered=True)

        def act(version: int, _: int) -> Sample:
            found = done[version] = purge(there, name, size, VACUUM, doomed, version)
            return Sample(found.seconds, found.bytes)

        results = in_turns(Case({"version": v, "mib": mib}, partial(act, v), 1, warm_up=False) for v in (2, 3))
        held = held_bytes(there, name, [size.batch_id(i) for i in doomed])[1]
    for r in results:
        r["held_bytes"] = held
        if (found := done.get(r["version"])) is not None:
            r |= {"encoded": found.encoded, "moved": found.moved}
    return results


def _query(table: DataFrame, query: str, batch: str) -> DataFrame:
    match query:
        case "all rows":
            return table
        case "sum of one column":
            return table.agg(F.sum("distance"))
        case _:
            return table.where(F.col(BATCH_COLUMN) == batch)


SUITE = Suite(
    name="row_groups",
    purpose=(__doc__ or "").splitlines()[0],
    parts={"reads": reads, "purges": purges},
    scales=SCALES,
    views=(
        View("Row groups: reads", ("reads",), ("mib",), "query", plot="mib"),
        View(
            "Row groups: purges on S3",
            ("purges",),
            ("mib",),
            "version",
            (
                SECONDS,
                Cell("encoded ÷ held", "encoded", per="held_bytes"),
                Cell("moved ÷ held", "moved", per="held_bytes"),
            ),
            plot="mib",
        ),
    ),
)


if __name__ == "__main__":
    program(SUITE)
