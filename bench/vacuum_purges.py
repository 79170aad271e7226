"""Purge deleted rows from data files, by Lethe's vacuum and by Iceberg's own ways. I/O.

Each purge has its own table, a clone that shares the data files of a base table. No snapshot expires, so no file of the base
table is ever deleted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from lethe.contract.result import VacuumResult
from lethe.contract.run import RunKind, VacuumSpec
from lethe_spark.jobs.vacuum import job as vacuum
from lethe_spark.jvm.gateway import each
from lethe_spark.jvm.spark_table import SparkTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from bench import machine, rivals
from bench.lake import Lake
from bench.rivals import Ledger, SparkSql, a_clone
from bench.scales import BATCH_COLUMN, Size
from bench.tables import base
from bench.timing import Case, Sample, in_turns, seconds_of
from bench.vacuum_scales import VacuumScale

VACUUM: Final = "vacuum"
REWRITE_V2: Final = "rewrite_data_files after position deletes (v2)"
REWRITE_V3: Final = "rewrite_data_files after deletion vectors (v3)"
COPY_ON_WRITE: Final = "copy-on-write DELETE"
WAYS: Final = (VACUUM, REWRITE_V2, REWRITE_V3, COPY_ON_WRITE)
# The procedure at its best: it takes the files with deletes, and no other for its size. Told nothing, it would take all that are
# small beside its target, and so purge by compacting the table.
OPTIONS: Final[Mapping[str, str]] = {
    "delete-file-threshold": "1",
    "min-file-size-bytes": "1",
    "max-file-size-bytes": str(2**50),
    "target-file-size-bytes": str(2**40),
    "min-input-files": "1000000",
    "max-file-group-size-bytes": str(2**50),
    "remove-dangling-deletes": "true",
}


@dataclass(frozen=True)
class Purged:
    """`table`, still there; `seconds` from the deleted rows to the commit; data files rewritten, of so many `bytes`, and those
    dropped whole;
    `deletes_left`: delete files that the head still has; `encoded`: bytes of row groups that were not just copied; `moved`:
    bytes over the loopback interface meanwhile, which a vacuum of a table on an S3 server of this machine reads and writes."""

    table: SparkTable
    seconds: float
    bytes: int
    files: int
    whole: int
    deletes_left: int
    encoded: int
    moved: int = 0


def measure(lake: Lake, size: Size, numbers: Sequence[int], rounds: int, *, ordered: bool) -> dict[str, Any]:
    """Purges of all sizes in all ways, in turns; after each, the table holds just the rows that it should.

    Args:
        numbers: Of reverted batches.
    """
    name = base(lake, size, ordered=ordered)
    held = {count: held_bytes(lake, name, [size.batch_id(i) for i in size.spread(count)]) for count in numbers}
    seen: dict[tuple[str, int], Purged] = {}

    def act(way: str, count: int, _: int) -> Sample:
        done = seen[way, count] = purge(lake, name, size, way, size.spread(count))
        return Sample(done.seconds, done.bytes)

    results = in_turns(
        Case(
            {"way": way, "deleted": count, "sorted": ordered},
            partial(act, way, count),
            rounds,
            warm_up=rounds > 1,
        )
        for count in numbers
        for way in WAYS
    )
    for r in results:
        files, size_held = held[r["deleted"]]
        r |= {"held_files": files, "held_bytes": size_held}
        if (done := seen.get((r["way"], r["deleted"]))) is not None:
            r |= {
                "files": done.files,
                "whole_files": done.whole,
                "deletes_left": done.deletes_left,
                "encoded": done.encoded,
            }
    source = (
        lake.spark.table(f"{lake.catalog}.{name}.files").agg(F.count("*"), F.sum("file_size_in_bytes")).collect()[0]
    )
    return {
        "table": {
            "rows": size.all_rows,
            "batches": size.all_batches,
            "files": source[0],
            "bytes": source[1],
            "sorted": ordered,
        },
        "results": results,
    }


def reads(lake: Lake, scale: VacuumScale) -> dict[str, Any]:
    """How long all rows take to read: of a table of which nothing was ever deleted, before a purge and after it."""
    size, name = scale.table, base(lake, scale.table, ordered=True)
    doomed = size.spread(scale.read_deleted)
    before, after = (_reverted(lake, name, size, doomed) for _ in range(2))
    purged = vacuumed(lake, after.table)
    check(after.read(), size, len(doomed))
    subjects: dict[str, Callable[[], DataFrame]] = {
        "nothing deleted": rivals.Untouched(lake, name).read,
        "before the purge": before.read,
        "after the purge": after.read,
    }

    def timed(read: Callable[[], DataFrame], _: int) -> Sample:
        return Sample(seconds_of(lambda: read().write.format("noop").mode("overwrite").save()))

    results = in_turns(Case({"what": what}, partial(timed, read), scale.read_rounds) for what, read in subjects.items())
    table = {"rows": size.all_rows, "batches": size.all_batches, "files": size.months * size.files}
    return {"table": table, "deleted": len(doomed), "rows_purged": purged.rows_purged, "results": results}


def purge(lake: Lake, name: str, size: Size, way: str, doomed: Sequence[int], version: int = 2) -> Purged:
    """Take batches out of a clone of the base table, and then their rows out of its files; only the latter is timed, of a
    copy-on-write DELETE both at once.

    Args:
        version: Iceberg's format version, of a table that a vacuum purges.
    """
    if way == VACUUM:
        return _by_vacuum(_reverted(lake, name, size, doomed, version), len(doomed))
    kinds = {REWRITE_V2: rivals.POSITION_DELETES, REWRITE_V3: rivals.DELETION_VECTORS}
    rival = _rival(lake, name, size, kinds.get(way, rivals.COPY_ON_WRITE))
    seconds = rival.delete(doomed)
    purged = _by_rewriting(lake, rival) if way in kinds else _by_delete(rival, seconds)
    check(rival.read(), size, len(doomed))
    return purged


def _by_vacuum(subject: Ledger, deleted: int) -> Purged:
    done: list[VacuumResult] = []
    before = machine.loopback_bytes()
    seconds = seconds_of(lambda: done.append(vacuumed(subject.lake, subject.table)))
    moved = machine.loopback_bytes() - before
    check(subject.read(), subject.size, deleted)
    found = done[0]
    encoded = found.bytes_rewritten - found.bytes_copied
    return Purged(
        subject.table, seconds, found.bytes_rewritten, found.files_rewritten, found.files_deleted, 0, encoded, moved
    )


def _by_delete(rival: SparkSql, seconds: float) -> Purged:
    summary = _summary(rival.table)
    removed, files = int(summary.get("removed-files-size", 0)), int(summary.get("deleted-data-files", 0))
    return Purged(rival.table, seconds, removed, files, 0, 0, removed)


def _by_rewriting(lake: Lake, rival: SparkSql) -> Purged:
    rows: list[Any] = []
    seconds = seconds_of(lambda: rows.append(rewrite(lake, rival.table)))
    left = int(_summary(rival.table).get("total-delete-files", 0))
    rewritten = rows[0]["rewritten_bytes_count"]
    return Purged(rival.table, seconds, rewritten, rows[0]["rewritten_data_files_count"], 0, left, rewritten)


def vacuumed(lake: Lake, table: SparkTable) -> VacuumResult:
    """The vacuum as a run carries it out once its session is up. Raises: RuntimeError, unless it purges."""
    spec = VacuumSpec(policy="bench/vacuum", expire_snapshots=False)
    with lake.context(RunKind.VACUUM, table.name, vacuum=spec) as context:
        result = vacuum.run(context)
    if result.outcome != "Committed":
        raise RuntimeError(f"the vacuum ended as {result.outcome}: {result.reason} {result.message}")
    return result


def rewrite(lake: Lake, table: SparkTable) -> Any:
    """Iceberg's procedure: the row that it returns."""
    options = ", ".join(f"'{k}', '{v}'" for k, v in OPTIONS.items())
    call = f"CALL {lake.catalog}.system.rewrite_data_files(table => '{table.name}', options => map({options}))"
    return lake.spark.sql(call).collect()[0]


def held_bytes(lake: Lake, name: str, batch_ids: Sequence[str]) -> tuple[int, int]:
    """How many data files really hold a row of one of the batches, and their bytes together: asked of the rows."""
    spark = lake.spark
    wanted = spark.createDataFrame([(i,) for i in batch_ids], f"{BATCH_COLUMN} string")
    rows = spark.table(f"{lake.catalog}.{name}").select(BATCH_COLUMN, F.col("_file").alias("file_path"))
    holding = rows.join(F.broadcast(wanted), BATCH_COLUMN, "left_semi").select("file_path").distinct()
    sizes = spark.table(f"{lake.catalog}.{name}.files").select("file_path", "file_size_in_bytes")
    found = sizes.join(holding, "file_path", "left_semi").agg(F.count("*"), F.sum("file_size_in_bytes")).collect()[0]
    return int(found[0]), int(found[1] or 0)


def check(frame: DataFrame, size: Size, deleted: int) -> None:
    """Raises: RuntimeError, if other rows are left than should be."""
    found = frame.agg(F.count(F.col(BATCH_COLUMN))).collect()[0][0]
    expected = (size.all_batches - deleted) * size.rows
    if found != expected:
        raise RuntimeError(f"{found} rows are left, expected {expected}")


def _reverted(lake: Lake, name: str, size: Size, doomed: Sequence[int], version: int = 2) -> Ledger:
    subject = a_clone(lake, name, rivals.LEDGER, size, version)
    assert isinstance(subject, Ledger)
    subject.delete(doomed)
    return subject


def _rival(lake: Lake, name: str, size: Size, kind: str) -> SparkSql:
    subject = a_clone(lake, name, kind, size)
    assert isinstance(subject, SparkSql)
    return subject


def _summary(table: SparkTable) -> dict[str, str]:
    table.refresh()
    head = table.java.currentSnapshot()
    return {str(e.getKey()): str(e.getValue()) for e in each(head.summary().entrySet())}
