"""Measure reverts, reads, plans and vacuums with the ledger alone, and with native deletes of both format versions. I/O.

    python -m bench.deletes [--scale tiny|small|full] [--only PART,…] [--out docs/benchmarks]

The tables share data files with the base table. So a vacuum here expires no snapshot, and no data file is ever deleted. Reads by
PyIceberg and DuckDB are a process each (`bench.one_read`), and need `dev/venv.sh engines`. The report goes into docs/deletes.md.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import lethe
import lethe_spark
from lethe.contract.result import VacuumResult
from lethe.contract.run import RunKind
from lethe.contract.settings import Deletes
from lethe_spark.jvm.gateway import each_of
from lethe_spark.jvm.spark_table import SparkTable
from pyiceberg.table import StaticTable
from pyspark.sql import DataFrame

from bench import rivals
from bench.lake import BATCH_COLUMN, Lake, Size, base, files_of, our_properties, promote, revert, revert_request
from bench.reading import DUCKDB, PYICEBERG, in_a_process
from bench.report import BYTES, SECONDS, Cell, Goal, Part, View, find, goal, median, ratio, results_of
from bench.rivals import a_clone
from bench.runner import Suite, program, sizes
from bench.timing import WARM_UP, Case, Sample, failure, in_turns, say, seconds_of
from bench.vacuum import vacuumed


@dataclass(frozen=True)
class DeletesScale:
    """The sizes that determine how long the benchmark takes. Rounds do not include the warm-up."""

    name: str
    # The sorted table whose batches are reverted.
    table: Size
    # Numbers of batches of one revert.
    reverts: Sequence[int]
    # Rounds of each revert, for each kind of deletes. Each reverts other batches.
    revert_rounds: int
    # An unsorted table, the batches of one revert of it, and the rounds.
    unsorted: Size
    unsorted_reverts: int
    unsorted_rounds: int
    # Reverted batches of the tables that are read and vacuumed.
    deleted: int
    read_rounds: int
    # Commits of ten reverts each before a reader plans.
    commits: int
    plan_rounds: int
    # Rounds of vacuums, each of another table.
    vacuum_rounds: int
    # Memory of the driver, as Spark takes it.
    driver_memory: str = "2g"


SCALES = sizes(
    DeletesScale,
    table=(Size(2, 60, 20, 2), Size(12, 500, 100, 2), Size(12, 2_000, 1_000, 5)),
    reverts=((1, 5), (1, 10, 100), (1, 100, 1_000)),
    revert_rounds=(1, 3, 5),
    unsorted=(Size(2, 60, 20, 2), Size(12, 500, 100, 4), Size(12, 2_000, 1_000, 4)),
    unsorted_reverts=(5, 10, 100),
    unsorted_rounds=(1, 2, 3),
    deleted=(10, 100, 10_000),
    read_rounds=(1, 3, 3),
    commits=(3, 20, 1_000),
    plan_rounds=(1, 3, 5),
    vacuum_rounds=(1, 1, 1),
    driver_memory=("768m", "2g", "6g"),
)


@dataclass(frozen=True)
class Kind:
    """What a Dataset asks for, and the format version of its table."""

    deletes: Deletes
    version: int

    def __str__(self) -> str:
        return self.deletes if self.deletes is Deletes.LEDGER else f"{self.deletes}, v{self.version}"


LEDGER, VECTORS, POSITIONS = Kind(Deletes.LEDGER, 2), Kind(Deletes.AUTO, 3), Kind(Deletes.AUTO, 2)
KINDS: Final = (LEDGER, VECTORS, POSITIONS)
DELETE: Final = f"Spark's DELETE, {rivals.DELETION_VECTORS}"
NOTHING_DELETED: Final = "nothing deleted"
ARROW, SPARK, PLAIN = "lethe.scan", "lethe_spark.read", "plain Spark"
READERS: Final = (ARROW, SPARK, PLAIN, PYICEBERG, DUCKDB)
AT_ONCE: Final = 10
"""Batches of each commit before a reader plans."""


@dataclass(frozen=True)
class Subject:
    """A table with the files of a base table, whose Dataset asks for one kind of deletes."""

    lake: Lake
    table: SparkTable
    size: Size
    kind: Kind

    @classmethod
    def of(cls, lake: Lake, base: str, size: Size, kind: Kind) -> "Subject":
        source = lake.load(base)
        assert source is not None
        name = f"run.{kind.deletes.lower()}_{kind.version}_{uuid.uuid4().hex[:8]}"
        ordered = base.startswith("base.sorted")
        table = lake.create(name, version=kind.version, ordered=ordered, properties=our_properties())
        promote(lake, table, size, files_of(source))
        return cls(lake, table, size, kind)

    def delete(self, indexes: Sequence[int]) -> Sample:
        """Take batches back as the committer does. `bytes`: all that it writes below the table's location, metadata too."""
        before = self._files()
        seconds = self.take_back(indexes)
        return Sample(seconds, sum(size for path, size in self._files().items() if path not in before))

    def take_back(self, indexes: Sequence[int]) -> float:
        """The seconds of a revert."""
        request = revert_request([self.size.batch_id(i) for i in indexes])
        deletes = self.kind.deletes
        with self.lake.context(RunKind.RESTATEMENT, self.table.name, [request], deletes=deletes) as context:
            return seconds_of(lambda: revert(context))

    def vacuum(self) -> Sample:
        """Purge all deleted rows. `bytes`: the size of the data files that must be rewritten. Raises: RuntimeError."""
        done: list[VacuumResult] = []
        seconds = seconds_of(lambda: done.append(vacuumed(self.lake, self.table)))
        return Sample(seconds, done[0].bytes_rewritten)

    def rows(self, reader: str) -> int:
        """How many rows a reader sees."""
        if reader == ARROW:
            return lethe.scan(self.table.full_name).count()
        if reader in (PYICEBERG, DUCKDB):
            return int(in_a_process(reader, self.metadata, "all", "")["rows"])
        return self._frame(reader).count()

    def read(self, reader: str) -> Sample:
        """All rows and columns, from the table's name to the last row."""
        if reader in (PYICEBERG, DUCKDB):
            return Sample(in_a_process(reader, self.metadata, "all", "")["seconds"])
        if reader == ARROW:
            return Sample(seconds_of(lambda: [None for _ in lethe.scan(self.table.full_name).to_batches()]))
        return Sample(seconds_of(lambda: self._frame(reader).write.format("noop").mode("overwrite").save()))

    @property
    def metadata(self) -> str:
        """The metadata file of the table's head."""
        self.table.refresh()
        return self.table.metadata_location

    def _frame(self, reader: str) -> DataFrame:
        spark, name = self.lake.spark, self.table.full_name
        return lethe_spark.read(spark, name) if reader == SPARK else spark.table(name)

    def _files(self) -> dict[Path, int]:
        folder = Path("/" + self.table.location.removeprefix("file:").lstrip("/"))
        found = (p for p in folder.rglob("*") if p.is_file() and p.suffix != ".crc")  # checksums of a local file system
        return {path: path.stat().st_size for path in found}


def reverts(lake: Lake, scale: DeletesScale) -> dict[str, Any]:
    """Reverts of all sizes with each kind, in turns, on tables that collect what earlier ones left behind; checked at the end.
    Beside them, Spark's own DELETE."""
    size, name = scale.table, base(lake, scale.table, ordered=True)
    subjects = {kind: Subject.of(lake, name, size, kind) for kind in KINDS}
    spark = a_clone(lake, name, rivals.DELETION_VECTORS, size)
    taken: dict[Kind, set[int]] = {kind: set() for kind in subjects}

    def indexes(count: int, number: int) -> list[int]:
        return size.spread(count, scale.reverts.index(count) + (number - WARM_UP) * len(scale.reverts))

    def act(kind: Kind, count: int, number: int) -> Sample:
        taken[kind].update(indexes(count, number))
        return subjects[kind].delete(indexes(count, number))

    def delete(count: int, number: int) -> Sample:
        return Sample(spark.delete(indexes(count, number)))

    cases = []
    for count in scale.reverts:
        ways = {str(kind): partial(act, kind) for kind in KINDS} | {DELETE: delete}
        cases += [Case({"kind": w, "batches": count}, partial(a, count), scale.revert_rounds) for w, a in ways.items()]
    results = in_turns(cases)
    for kind, subject in subjects.items():
        problem = wrong(subject, len(taken[kind]))
        for result in (r for r in results if problem and r["kind"] == str(kind)):
            result["error"] = problem
    return {**_table(size), "results": results}


def unsorted(lake: Lake, scale: DeletesScale) -> dict[str, Any]:
    """Reverts of a table of which each file holds rows of all batches of its month.

    `read`: the bytes that the process read in all, metadata too, and `column`: those of the batch column in the files.
    """
    size, name = scale.unsorted, base(lake, scale.unsorted, ordered=False)
    results = []
    for kind in (VECTORS, POSITIONS):
        subject = Subject.of(lake, name, size, kind)
        field_id = subject.table.field_id(BATCH_COLUMN)
        assert field_id is not None
        column = sum(int(file.java.columnSizes().get(field_id)) for file in files_of(subject.table))
        read: list[int] = []

        def act(number: int, subject: Subject = subject, read: list[int] = read) -> Sample:
            before = _bytes_read()
            sample = subject.delete(size.spread(scale.unsorted_reverts, number - WARM_UP))
            read.append(_bytes_read() - before)
            return sample

        labels = {"kind": str(kind), "batches": scale.unsorted_reverts}
        (result,) = in_turns([Case(labels, act, scale.unsorted_rounds, warm_up=False)])
        # Later rounds find the column in the committer's cache.
        results.append({**result, "column": column, "read": read[0] if read else None})
    return {**_table(size), "results": results}


def _bytes_read() -> int:
    """The bytes that this process has read from files."""
    return int(dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["rchar"])


def reads(lake: Lake, scale: DeletesScale) -> dict[str, Any]:
    """Each reader on a table of each kind, in turns. `rows`: how many it sees."""
    size, name = scale.table, base(lake, scale.table, ordered=True)
    untouched = lake.load(name)
    assert untouched is not None
    source = Subject(lake, untouched, size, LEDGER)
    labels = {"kind": NOTHING_DELETED, "rows": size.all_rows}
    plain = (PLAIN, PYICEBERG, DUCKDB)
    cases = [Case({**labels, "reader": r}, partial(_timed, source, r), scale.read_rounds) for r in plain]
    for kind in KINDS:
        subject = Subject.of(lake, name, size, kind)
        problem = _prepared(subject, scale)
        for reader in READERS:
            found = {"kind": str(kind), "reader": reader, "rows": expected(subject, reader, scale.deleted)}
            error = problem or wrong(subject, scale.deleted, [reader])
            cases.append(Case(found, partial(_timed, subject, reader), scale.read_rounds, error=error))
    return {**_table(size), "deleted": scale.deleted, "results": in_turns(cases)}


def plans(lake: Lake, scale: DeletesScale) -> dict[str, Any]:
    """How long plain readers plan before any revert, and after many commits of ten reverts each."""
    size, name = scale.table, base(lake, scale.table, ordered=True)
    results = []
    for kind in (VECTORS, POSITIONS):
        subject = Subject.of(lake, name, size, kind)
        for commits in (0, scale.commits):
            for n in range(commits):
                subject.take_back(range(n * AT_ONCE, (n + 1) * AT_ONCE))
                if n % 100 == 99:
                    say(f"{kind}: {n + 1:,} commits")
            labels = {"kind": str(kind), "commits": commits}
            planners = {"Spark": _planned_by_java, PYICEBERG: _planned_by_python}
            cases = [
                Case({**labels, "reader": r}, partial(_planning, subject, plan), scale.plan_rounds)
                for r, plan in planners.items()
            ]
            results += in_turns(cases)
    return {**_table(size), "results": results}


def _planning(subject: Subject, plan: Callable[[Subject], int], _: int) -> Sample:
    subject.table.refresh()
    return Sample(seconds_of(lambda: plan(subject)))


def _planned_by_java(subject: Subject) -> int:
    return sum(1 for _ in each_of(subject.table.java.newScan().planFiles()))


def _planned_by_python(subject: Subject) -> int:
    return len(list(StaticTable.from_metadata(subject.metadata).scan().plan_files()))


def vacuums(lake: Lake, scale: DeletesScale) -> dict[str, Any]:
    """Vacuum tables with the same content and each kind of deletes, in turns. Each vacuum has its own table and is checked."""
    size, name = scale.table, base(lake, scale.table, ordered=True)

    def act(kind: Kind, _: int) -> Sample:
        subject = Subject.of(lake, name, size, kind)
        if problem := _prepared(subject, scale):
            raise RuntimeError(problem)
        sample = subject.vacuum()
        left, found = (size.all_batches - scale.deleted) * size.rows, subject.rows(PLAIN)
        if found != left:
            raise RuntimeError(f"plain Spark sees {found} rows after the vacuum, expected {left}")
        return sample

    cases = (Case({"kind": str(k)}, partial(act, k), scale.vacuum_rounds, warm_up=False) for k in KINDS)
    return {**_table(size), "deleted": scale.deleted, "results": in_turns(cases)}


def expected(subject: Subject, reader: str, taken: int) -> int:
    """How many rows a reader should see once so many batches are taken back: with the ledger alone, a plain one sees all."""
    size, plainly = subject.size, subject.kind == LEDGER and reader not in (ARROW, SPARK)
    return size.all_rows if plainly else (size.all_batches - taken) * size.rows


def wrong(subject: Subject, taken: int, readers: Sequence[str] = (SPARK, PLAIN)) -> str:
    """What is not as it should be of the rows that readers see, "" when all is. `taken`: how many batches."""
    for reader in readers:
        try:
            found = subject.rows(reader)
        except Exception as e:
            return f"{reader}: {failure(e)}"
        if found != expected(subject, reader, taken):
            return f"{reader} sees {found} rows, expected {expected(subject, reader, taken)}"
    return ""


def _prepared(subject: Subject, scale: DeletesScale) -> str:
    """With as many batches taken back as it is to have, evenly spread. Returns: what is wrong with it, "" for nothing."""
    try:
        seconds = subject.take_back(subject.size.spread(scale.deleted))
    except Exception as e:
        return failure(e)
    say(f"{subject.kind}: {scale.deleted:,} batches taken back in {seconds:.1f} s")
    return wrong(subject, scale.deleted)


def _timed(subject: Subject, reader: str, _: int) -> Sample:
    return subject.read(reader)


def _table(size: Size) -> dict[str, Any]:
    return {"table": {"rows": size.all_rows, "batches": size.all_batches, "files": size.months * size.files}}


def goals(parts: Mapping[str, Part]) -> list[Goal]:
    """Native deletes beside the ledger alone, Spark's DELETE, and tables without deletes."""
    found: list[Goal] = []
    results = results_of(parts, "reverts")
    counts = sorted({r["batches"] for r in results})
    for name in map(str, (VECTORS, POSITIONS)):
        for count, limit in zip(counts[:2], (2.0, 3.0), strict=False):
            factor = _ratio(results, name, str(LEDGER), batches=count)
            found.append(goal(f"a revert of {count:,} batches, {name} ÷ {LEDGER}", factor, limit))
        for count in counts[-1:]:
            factor = _ratio(results, name, DELETE, batches=count)
            found.append(goal(f"a revert of {count:,} batches, {name} ÷ {DELETE}", factor, 0.5))
            seconds = median(find(results, kind=name, batches=count))
            found.append(goal(f"seconds of a revert of {count:,} batches, {name}", seconds, 3.0))
    for r in results_of(parts, "unsorted"):
        found.append(goal(f"seconds of a revert in an unsorted table, {r['kind']}", median(r), 3.0))
        found.append(goal(f"bytes read ÷ those of the batch column, {r['kind']}", ratio(r["read"], r["column"]), 1.1))
    read = results_of(parts, "reads")
    for kind in (VECTORS, POSITIONS) if read else ():
        for reader, limit in ((PLAIN, 1.15), (DUCKDB, 1.1)):
            text = f"{reader} reads, {kind} ÷ {NOTHING_DELETED}"
            found.append(goal(text, _ratio(read, str(kind), NOTHING_DELETED, reader=reader), limit))
    for r in (r for r in results_of(parts, "plans") if r["commits"]):
        before = find(results_of(parts, "plans"), kind=r["kind"], reader=r["reader"], commits=0)
        text = f"{r['reader']} plans after {r['commits']:,} commits ÷ before, {r['kind']}"
        found.append(goal(text, ratio(median(r), median(before)), 1.3))
    return found


def _ratio(results: Sequence[Mapping[str, Any]], one: str, other: str, **labels: Any) -> float | None:
    return ratio(median(find(results, kind=one, **labels)), median(find(results, kind=other, **labels)))


SUITE = Suite(
    name="deletes",
    purpose=(__doc__ or "").splitlines()[0],
    parts={"reverts": reverts, "unsorted": unsorted, "reads": reads, "plans": plans, "vacuums": vacuums},
    scales=SCALES,
    views=(
        View("Taking batches back", ("reverts",), ("kind",), "batches", (SECONDS, BYTES), plot="batches"),
        View(
            "Taking batches back in an unsorted table",
            ("unsorted",),
            ("kind", "batches"),
            cells=(SECONDS, Cell("bytes read", "read"), Cell("bytes of the batch column", "column")),
        ),
        View("Reading", ("reads",), ("reader", "kind"), cells=(Cell("rows that it sees", "rows"), SECONDS)),
        View("Planning", ("plans",), ("kind", "reader"), "commits", (SECONDS,)),
        View("Vacuum", ("vacuums",), ("kind",), cells=(SECONDS, Cell("bytes of rewritten files", "bytes"))),
    ),
    goals=goals,
    page="deletes.md",
)

if __name__ == "__main__":
    program(SUITE)
