"""Measure vacuums: purges compared with their rivals, SCAN at scale, and reads before and after. I/O.

    python -m bench.vacuum [--scale tiny|small|full] [--only PART,…] [--out docs/benchmarks]

Each purge has its own table, a clone that shares the data files of a base table. No snapshot expires, so no file of the base
table is ever deleted. SCAN reads real manifests and ledgers of data files that do not exist, each in a process of its own
(`bench.one_scan`).
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any, Final

from lethe.contract.result import VacuumResult
from lethe.contract.run import RunKind, VacuumSpec
from lethe.ledger.ledger import Delta
from lethe.ledger.tombstone import META_RESTATEMENTS, META_RUN, Tombstone
from lethe_spark.jobs.vacuum import job as vacuum
from lethe_spark.jvm.commit import LedgerOnly, Register
from lethe_spark.jvm.data_files import data_files
from lethe_spark.jvm.gateway import each
from lethe_spark.jvm.spark_table import SparkTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from bench import rivals, timing
from bench.lake import BATCH_COLUMN, Lake, Size, base, commit, our_properties, size_of
from bench.report import SECONDS, Cell, Goal, Part, View, goal, median, ratio, results_of
from bench.rivals import Ledger, SparkSql, a_clone
from bench.runner import Suite, program, sizes
from bench.timing import ROOT, Case, Sample, in_turns, say, seconds_of


@dataclass(frozen=True)
class VacuumScale:
    """The sizes that determine how long the benchmark takes. Rounds do not include the warm-up of several rounds."""

    name: str
    # The table that is purged, once sorted and once unsorted.
    table: Size
    # Numbers of reverted batches of a purge, evenly spread.
    deleted: Sequence[int]
    # Rounds of purges, each of another table.
    purge_rounds: int
    # Reverted batches of the tables that are read before and after their purge.
    read_deleted: int
    read_rounds: int
    # Data files of the tables of which SCAN reads only metadata. Each is combined with each number of `tombstones`.
    files: Sequence[int]
    tombstones: Sequence[int]
    # Rounds of SCAN, each in another process.
    scan_rounds: int
    # Memory of the driver, as Spark takes it.
    driver_memory: str = "2g"


SCALES = sizes(
    VacuumScale,
    table=(Size(2, 60, 20, 6), Size(10, 100, 500, 20), Size(10, 500, 1_000, 40)),
    deleted=((4, 120), (20, 200, 1_000), (100, 1_000, 5_000)),
    purge_rounds=(1, 1, 3),
    read_deleted=(4, 200, 1_000),
    read_rounds=(1, 3, 5),
    files=((20, 50), (1_000, 10_000), (1_000, 10_000, 100_000)),
    tombstones=((10, 40), (1_000, 10_000), (1_000, 10_000, 100_000)),
    scan_rounds=(1, 2, 3),
    driver_memory=("768m", "2g", "4g"),
)


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


def purges(lake: Lake, size: Size, numbers: Sequence[int], rounds: int, *, ordered: bool) -> dict[str, Any]:
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
    return {"table": size_of(lake, name, size, ordered=ordered), "results": results}


def reads(lake: Lake, scale: VacuumScale) -> dict[str, Any]:
    """How long all rows take to read: of a table of which nothing was ever deleted, before a purge and after it."""
    size, name = scale.table, base(lake, scale.table, ordered=True)
    doomed = size.spread(scale.read_deleted)
    before, after = (_reverted(lake, name, size, doomed) for _ in range(2))
    purged = vacuumed(lake, after.table)
    rivals.check(after.read(), size, len(doomed))
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
    rivals.check(rival.read(), size, len(doomed))
    return purged


def _by_vacuum(subject: Ledger, deleted: int) -> Purged:
    done: list[VacuumResult] = []
    before = timing.loopback_bytes()
    seconds = seconds_of(lambda: done.append(vacuumed(subject.lake, subject.table)))
    moved = timing.loopback_bytes() - before
    rivals.check(subject.read(), subject.size, deleted)
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


MONTHS: Final = 10
PER_FILE: Final = 1_000  # ids that lie between the bounds of a file of a sorted table
SIZE: Final = 128 * 1024 * 1024
AT_ONCE: Final = 20_000


def scan(lake: Lake, scale: VacuumScale) -> dict[str, Any]:
    """All sizes in turns, of sorted and of unsorted tables."""
    memory: dict[str, int] = {}
    planned: dict[str, int] = {}

    def act(metadata: str, _: int) -> Sample:
        found = scan_in_a_process(metadata)
        memory[metadata] = max(found["peak_bytes"], memory.get(metadata, 0))
        planned[metadata] = found["files"]
        return Sample(found["seconds"])

    cases: list[Case] = []
    places: list[str] = []
    for ordered in (True, False):
        for files in scale.files:
            for tombstones in scale.tombstones:
                places.append(simulated(lake, files, tombstones, ordered))
                labels = {"files": files, "tombstones": tombstones, "sorted": ordered}
                cases.append(Case(labels, partial(act, places[-1]), scale.scan_rounds, warm_up=False))
    results = in_turns(cases)
    for r, place in zip(results, places, strict=True):
        if place in memory:
            r |= {"peak_bytes": memory[place], "planned_files": planned[place]}
    return {"results": results}


def simulated(lake: Lake, files: int, tombstones: int, ordered: bool) -> str:
    """The metadata file of a table with this many data files and active tombstones. In an unsorted table each file may hold any
    batch of its month. The tombstones have equal distances."""
    name = f"run.scan_{files}_{tombstones}_{'sorted' if ordered else 'unsorted'}_{os.getpid()}"
    say(f"{name}: writing metadata")
    table = lake.create(name, ordered=ordered, properties=our_properties())
    field_id = table.field_id(BATCH_COLUMN)
    assert field_id is not None
    documents = _documents(files, ordered, field_id)
    while chunk := list(islice(documents, AT_ONCE)):
        commit(lake, table, Register(data_files(table, chunk)), Delta)
    delete(lake, table, field_id, [batch_id(n * files * PER_FILE // tombstones) for n in range(tombstones)])
    return str(table.metadata_location)


def delete(lake: Lake, table: SparkTable, field_id: int, batch_ids: Sequence[str]) -> None:
    """One commit of tombstones for batches that no ledger knows."""
    added = datetime(2026, 1, 1, tzinfo=UTC)

    def delta(run: str) -> Delta:
        meta = {META_RESTATEMENTS: f"bench/revert/{run}", META_RUN: run}
        return Delta(run, add_tombstones=tuple(Tombstone(i, field_id, added, None, meta) for i in batch_ids))

    commit(lake, table, LedgerOnly(), delta)


def _documents(files: int, ordered: bool, field_id: int) -> Iterator[str]:
    of_month = -(-files // MONTHS)
    for n in range(files):
        month = n // of_month
        batches = (n, n + 1) if ordered else (month * of_month, min(files, (month + 1) * of_month))
        yield described_file(n, month + 1, batches, field_id)


def described_file(n: int, month: int, batches: tuple[int, int], field_id: int) -> str:
    """A data file that does not exist, in the JSON of Iceberg's REST protocol.

    Args:
        batches: Its bounds, in thousands of batches: the first, and the one behind the last.
    """
    bounds = (batch_id(batches[0] * PER_FILE), batch_id(batches[1] * PER_FILE - 1))
    lower, upper = ({"keys": [field_id], "values": [b.encode().hex().upper()]} for b in bounds)
    return json.dumps(
        {
            "spec-id": 0,
            "content": "data",
            "file-path": f"file:/nowhere/data/{n % 100:02d}/month={month}/{n:08d}-{'0' * 32}.parquet",
            "file-format": "parquet",
            "partition": [month],
            "file-size-in-bytes": SIZE,
            "record-count": 1_000_000,
            "null-value-counts": {"keys": [field_id], "values": [0]},
            "lower-bounds": lower,
            "upper-bounds": upper,
        }
    )


def batch_id(number: int) -> str:
    """Of the batch with this number, in their order."""
    return f"flights-2013.{number:012d}"


def scan_in_a_process(metadata: str) -> dict[str, Any]:
    """The SCAN of a table in a process of its own: seconds, and bytes at its peak. Raises: RuntimeError."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.one_scan", metadata], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "the process died")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


REWRITTEN_AT_MOST: Final = 1.05  # of the bytes of the files that really hold deleted rows, in a sorted table
SCAN_SECONDS_AT_MOST: Final = 10.0  # of the largest table


def goals(parts: Mapping[str, Part]) -> list[Goal]:
    """A vacuum of a sorted table rewrites little more than necessary, and SCAN of the largest table is fast."""
    found = []
    for r in (r for r in results_of(parts, "purges-sorted") if r["way"] == VACUUM):
        text = f"a vacuum of {r['deleted']:,} batches of a sorted table rewrites at most 1.05 of what holds them"
        found.append(goal(text, ratio(median(r, "bytes"), r.get("held_bytes")), REWRITTEN_AT_MOST))
    scans = [r for r in results_of(parts, "scan") if r["sorted"]]
    if scans:
        largest = max(scans, key=lambda r: (r["files"], r["tombstones"]))
        text = f"SCAN of {largest['files']:,} files for {largest['tombstones']:,} tombstones takes less than 10 s"
        found.append(goal(text, median(largest), SCAN_SECONDS_AT_MOST))
    return found


SUITE = Suite(
    name="vacuum",
    purpose=(__doc__ or "").splitlines()[0],
    parts={
        "purges-sorted": lambda lake, s: purges(lake, s.table, s.deleted, s.purge_rounds, ordered=True),
        "purges-unsorted": lambda lake, s: purges(lake, s.table, s.deleted, s.purge_rounds, ordered=False),
        "scan": scan,
        "reads": reads,
    },
    scales=SCALES,
    goals=goals,
    views=(
        View(
            "Purges",
            ("purges-sorted", "purges-unsorted"),
            ("way",),
            "deleted",
            (SECONDS, Cell("rewritten ÷ held", "bytes", per="held_bytes")),
            plot="deleted",
        ),
        View("SCAN", ("scan",), ("sorted", "files"), "tombstones", plot="files"),
        View("Reads before and after a purge", ("reads",), ("what",)),
    ),
)

if __name__ == "__main__":
    program(SUITE)
