"""Measure reads of tables with tombstones: by Spark, and by lethe.scan beside PyIceberg and DuckDB. I/O.

    python -m bench.reading [--scale tiny|small|full] [--only PART,…] [--out docs/benchmarks]

A read by Spark includes planning, loading the ledger or the delete files, and a scan of all columns into the `noop` sink. Reads
without Spark are a process each (`bench.one_read`), and need `dev/venv.sh engines`. Native deletes are those of Spark's DELETE.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pyspark.sql import functions as F  # noqa: N812

from bench import rivals
from bench.lake import BATCH_COLUMN, PARTITION, Lake, Size, base, size_of
from bench.report import Goal, Part, View, find, goal, median, no_slower, ratio, results_of
from bench.rivals import Rival
from bench.runner import Suite, program, sizes
from bench.timing import ROOT, WARM_UP, Case, Sample, failure, in_turns, say, seconds_of
from tests.support.environments import python_of


@dataclass(frozen=True)
class ReadingScale:
    """The sizes that determine how long the benchmark takes. Rounds do not include the warm-up."""

    name: str
    # The table that is read, once sorted and once not.
    table: Size
    # Numbers of tombstones of the tables; the middle one is also clustered, and has rivals of all kinds.
    levels: Sequence[int]
    # Rounds of reads by Spark, and by other engines.
    rounds: int
    engine_rounds: int
    # Memory of the driver, as Spark takes it.
    driver_memory: str = "2g"

    @property
    def goal_level(self) -> int:
        return self.levels[len(self.levels) // 2]


SCALES = sizes(
    ReadingScale,
    table=(Size(2, 60, 20, 2), Size(12, 2_000, 100, 2), Size(12, 20_000, 150, 4)),
    levels=((2, 10, 30), (100, 1_000, 10_000), (100, 10_000, 100_000)),
    rounds=(1, 3, 5),
    engine_rounds=(1, 2, 3),
    driver_memory=("2g", "2g", "6g"),
)


SCATTERED, CLUSTERED = "scattered", "clustered"


@dataclass(frozen=True)
class Variant:
    """One table to read: its kind, how many batches are deleted, and where they lie."""

    kind: str
    deleted: int = 0
    where: str = SCATTERED


def variants(scale: ReadingScale, *, ordered: bool) -> list[Variant]:
    low, goal, high = scale.levels[0], scale.goal_level, scale.levels[-1]
    ours = [Variant(rivals.LEDGER, n) for n in (0, low, goal, high)]
    if not ordered:
        natives = (rivals.DELETION_VECTORS, rivals.EQUALITY_DELETES)
        return [Variant(rivals.PLAIN), *ours[2:], *(Variant(k, goal) for k in natives)]
    return [
        Variant(rivals.PLAIN),
        *ours,
        Variant(rivals.LEDGER, goal, CLUSTERED),
        Variant(rivals.COPY_ON_WRITE, goal),
        Variant(rivals.POSITION_DELETES, goal),
        *(Variant(rivals.DELETION_VECTORS, n) for n in (goal, high)),
        *(Variant(rivals.EQUALITY_DELETES, n) for n in (low, goal, high)),
    ]


def reads(lake: Lake, scale: ReadingScale, *, ordered: bool) -> dict[str, Any]:
    """All variants of one table in turns, after each was shown to hold just the rows that it should."""
    size, name = scale.table, base(lake, scale.table, ordered=ordered)
    cases: list[Case] = []
    for v in variants(scale, ordered=ordered):
        labels = {"kind": v.kind, "deleted": v.deleted, "where": v.where if v.deleted else "", "sorted": ordered}
        case = Case(labels, _nothing, scale.rounds)
        cases.append(case)
        try:
            subject = _prepared(lake, name, size, v)
            rivals.check(subject.read(), size, v.deleted)
        except Exception as e:
            case.error = failure(e)
            say(f"{case.name}: FAILED, {case.error}")
            continue
        case.act = partial(_timed_read, subject)
    return {"table": size_of(lake, name, size, ordered=ordered), "results": in_turns(cases)}


def doomed(size: Size, variant: Variant) -> Sequence[int]:
    return size.clustered(variant.deleted) if variant.where == CLUSTERED else size.spread(variant.deleted)


def _prepared(lake: Lake, name: str, size: Size, variant: Variant) -> Rival:
    if variant.kind == rivals.PLAIN:
        return rivals.Untouched(lake, name)
    subject = rivals.a_clone(lake, name, variant.kind, size)
    if variant.deleted:
        seconds = subject.delete(doomed(size, variant))
        say(f"{variant.kind}, {variant.deleted:,} batches {variant.where}: deleted in {seconds:.1f} s")
    return subject


def _nothing(_: int) -> Sample:
    return Sample(0.0)


def _timed_read(subject: Rival, number: int) -> Sample:
    """Of the warm-up one month will do: the same code, a part of the files."""

    def read() -> None:
        frame = subject.read()
        if number == WARM_UP:
            frame = frame.where(F.col(PARTITION) == 1)
        frame.write.format("noop").mode("overwrite").save()

    return Sample(seconds_of(read))


SCAN, PYICEBERG, DUCKDB, SPARK = "lethe.scan", "PyIceberg", "DuckDB", "Spark"
ALL, COUNT, BATCH = "all", "count", "batch"
# The kinds of tables that each engine reads. `Spark` counts and filters here; its reads of all rows have a part of their own.
KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    SCAN: (rivals.PLAIN, rivals.LEDGER),
    PYICEBERG: (rivals.PLAIN, rivals.POSITION_DELETES, rivals.DELETION_VECTORS),
    DUCKDB: (rivals.PLAIN, rivals.POSITION_DELETES, rivals.DELETION_VECTORS),
    SPARK: (rivals.PLAIN, rivals.LEDGER, rivals.DELETION_VECTORS),
}
WITHIN_SECONDS: Final = 600


def engines(lake: Lake, scale: ReadingScale) -> dict[str, Any]:
    """All engines, kinds of deletes and queries in turns. A read that finds other rows than it should is a failure."""
    size, name = scale.table, base(lake, scale.table, ordered=True)
    source = lake.load(name)
    assert source is not None
    doomed = size.spread(scale.goal_level)
    subjects: dict[str, Rival] = {rivals.PLAIN: rivals.Untouched(lake, name)}
    metadata = {rivals.PLAIN: source.metadata_location}
    for kind in (rivals.LEDGER, rivals.POSITION_DELETES, rivals.DELETION_VECTORS):
        subject = rivals.a_clone(lake, name, kind, size)
        subject.delete(doomed)
        assert isinstance(subject, rivals.Ledger | rivals.SparkSql)
        subject.table.refresh()
        subjects[kind], metadata[kind] = subject, subject.table.metadata_location
    # A batch beside a deleted one, so its file has deletes.
    kept = size.batch_id(next(i for i in range(size.all_batches) if i not in set(doomed)))
    peaks: dict[tuple[str, str, str], int] = {}

    def act(engine: str, kind: str, query: str, _: int) -> Sample:
        taken = 0 if kind == rivals.PLAIN else len(doomed)
        if engine == SPARK:
            seconds, rows = _by_spark(subjects[kind], query, kept)
        else:
            found = in_a_process(engine, metadata[kind], query, kept)
            seconds, rows = found["seconds"], found["rows"]
            peaks[engine, kind, query] = max(found["peak_bytes"], peaks.get((engine, kind, query), 0))
        if rows != (expected := _expected(size, taken, query)):
            raise RuntimeError(f"{rows} rows, expected {expected}")
        return Sample(seconds)

    results = in_turns(
        Case({"engine": engine, "kind": kind, "query": query}, partial(act, engine, kind, query), scale.engine_rounds)
        for query in (ALL, COUNT, BATCH)
        for engine, kinds in KINDS.items()
        for kind in kinds
        if (engine, query) != (SPARK, ALL)
    )
    for r in results:
        if (peak := peaks.get((r["engine"], r["kind"], r["query"]))) is not None:
            r["peak_bytes"] = peak
    return {"table": size_of(lake, name, size, ordered=True), "deleted": len(doomed), "results": results}


def _expected(size: Size, taken: int, query: str) -> int:
    return size.rows if query == BATCH else (size.all_batches - taken) * size.rows


def _by_spark(subject: Rival, query: str, batch: str) -> tuple[float, int]:
    """Returns: seconds, rows."""
    rows: list[int] = []

    def read() -> None:
        frame = subject.read()
        rows.append(len(frame.where(F.col(BATCH_COLUMN) == batch).collect()) if query == BATCH else frame.count())

    return seconds_of(read), rows[0]


def in_a_process(engine: str, metadata: str, query: str, batch: str) -> dict[str, Any]:
    """What `bench.one_read` prints. Raises: RuntimeError, if it fails."""
    python = python_of("engines") if engine == DUCKDB else sys.executable
    command = [python, "-m", "bench.one_read", engine, metadata, query, batch]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=WITHIN_SECONDS)
    if done.returncode:
        raise RuntimeError(
            done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
        )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


SORTED_FACTOR: Final = 1.05
UNSORTED_FACTOR: Final = 1.25


def goals(parts: Mapping[str, Part]) -> list[Goal]:
    """Reads with a ledger beside the plain scan, and beside equality deletes; `lethe.scan` beside other readers."""
    found = []
    for name, layout in (("spark-sorted", "a sorted"), ("spark-unsorted", "an unsorted")):
        results = results_of(parts, name)
        levels = sorted({r["deleted"] for r in results if r["kind"] == rivals.LEDGER and r["deleted"]})
        wanted = [(where, levels[len(levels) // 2], SORTED_FACTOR) for where in (SCATTERED, CLUSTERED) if levels]
        if name == "spark-unsorted":
            wanted = [(SCATTERED, level, UNSORTED_FACTOR) for level in levels[-1:]]
        plain = median(find(results, kind=rivals.PLAIN))
        for where, count, limit in wanted:
            ours = median(find(results, kind=rivals.LEDGER, deleted=count, where=where))
            text = (
                f"reading {layout} table with {count:,} tombstones, {where}, takes at most {limit:g} of the plain scan"
            )
            found.append(goal(text, ratio(ours, plain), limit))
        for count in sorted({r["deleted"] for r in results if r["kind"] == rivals.EQUALITY_DELETES}):
            text = f"reading {layout} table with {count:,} tombstones takes no longer than with equality deletes"
            one = find(results, kind=rivals.LEDGER, deleted=count, where=SCATTERED)
            found.append(no_slower(text, one, find(results, kind=rivals.EQUALITY_DELETES, deleted=count)))
    if measured := results_of(parts, "engines"):
        for kind, theirs in ((rivals.PLAIN, rivals.PLAIN), (rivals.LEDGER, rivals.DELETION_VECTORS)):
            scanned = find(measured, engine=SCAN, kind=kind, query=ALL)
            for engine in (PYICEBERG, DUCKDB):
                text = f"lethe.scan reads all rows ({kind}) no slower than {engine} ({theirs})"
                found.append(no_slower(text, scanned, find(measured, engine=engine, kind=theirs, query=ALL)))
    return found


SUITE = Suite(
    name="reading",
    purpose=(__doc__ or "").splitlines()[0],
    parts={
        "spark-sorted": lambda lake, scale: reads(lake, scale, ordered=True),
        "spark-unsorted": lambda lake, scale: reads(lake, scale, ordered=False),
        "engines": engines,
    },
    scales=SCALES,
    goals=goals,
    views=(
        View("Reads by Spark", ("spark-sorted", "spark-unsorted"), ("kind", "where"), "deleted", plot="deleted"),
        View("Reads without Spark", ("engines",), ("engine", "kind"), "query"),
    ),
)

if __name__ == "__main__":
    program(SUITE)
