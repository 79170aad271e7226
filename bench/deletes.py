"""Measure reverts, reads and vacuums with each kind of deletes: the ledger alone, vectors, position deletes. I/O.

    python -m bench.deletes [--scale tiny|small|full] [--only PART,…] [--out docs/benchmarks]

The tables share data files with the base table. So a vacuum here expires no snapshot, and no data file is ever deleted. The
report goes into docs/deletes.md.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import lethe
import lethe_spark
from lethe.contract.result import VacuumResult
from lethe.contract.run import RunKind
from lethe.contract.settings import Deletes
from lethe_spark.jvm.spark_table import SparkTable
from pyspark.sql import DataFrame

from bench.lake import Lake, Size, base, files_of, our_properties, promote, revert, revert_request
from bench.report import BYTES, SECONDS, Cell, View
from bench.rivals import Untouched
from bench.runner import Suite, program, sizes
from bench.timing import WARM_UP, Case, Sample, failure, in_turns, say, seconds_of
from bench.vacuum import vacuumed


@dataclass(frozen=True)
class DeletesScale:
    """The sizes that determine how long the benchmark takes. Rounds do not include the warm-up."""

    name: str
    # The table whose batches are reverted.
    table: Size
    # Numbers of batches of one revert.
    reverts: Sequence[int]
    # Rounds of each revert, for each kind of deletes. Each reverts other batches.
    revert_rounds: int
    # Reverted batches of the tables that are read and vacuumed.
    deleted: int
    read_rounds: int
    # Rounds of vacuums, each of another table.
    vacuum_rounds: int
    # Memory of the driver, as Spark takes it.
    driver_memory: str = "2g"


SCALES = sizes(
    DeletesScale,
    table=(Size(2, 60, 20, 2), Size(12, 500, 100, 2), Size(12, 2_000, 150, 4)),
    reverts=((1, 5), (1, 10, 100), (1, 100, 1_000)),
    revert_rounds=(1, 3, 5),
    deleted=(10, 100, 1_000),
    read_rounds=(1, 3, 5),
    vacuum_rounds=(1, 1, 3),
    driver_memory=("768m", "2g", "4g"),
)


VERSIONS: Final[Mapping[Deletes, int]] = {
    d: d.named.format_version if d.named else 2 for d in Deletes if d is not Deletes.AUTO
}
NOTHING_DELETED: Final = "nothing deleted"
ARROW, SPARK, PLAIN = "lethe.scan", "lethe_spark.read", "plain Spark"
READERS: Final = (ARROW, SPARK, PLAIN)


@dataclass(frozen=True)
class Subject:
    """A table with the files of a base table, whose Dataset asks for one kind of deletes."""

    lake: Lake
    table: SparkTable
    size: Size
    kind: Deletes

    @classmethod
    def of(cls, lake: Lake, base: str, size: Size, kind: Deletes) -> "Subject":
        source = lake.load(base)
        assert source is not None
        name = f"run.{kind.lower()}_{uuid.uuid4().hex[:8]}"
        table = lake.create(name, version=VERSIONS[kind], properties=our_properties())
        promote(lake, table, size, files_of(source))
        return cls(lake, table, size, kind)

    def delete(self, indexes: Sequence[int]) -> Sample:
        """Take batches back as the committer does. `bytes`: all that it writes below the table's location, metadata too."""
        request = revert_request([self.size.batch_id(i) for i in indexes])
        before = self._files()
        with self.lake.context(RunKind.RESTATEMENT, self.table.name, [request], deletes=self.kind) as context:
            seconds = seconds_of(lambda: revert(context))
        return Sample(seconds, sum(size for path, size in self._files().items() if path not in before))

    def vacuum(self) -> Sample:
        """Purge all deleted rows. `bytes`: the size of the data files that must be rewritten. Raises: RuntimeError."""
        done: list[VacuumResult] = []
        seconds = seconds_of(lambda: done.append(vacuumed(self.lake, self.table)))
        return Sample(seconds, done[0].bytes_rewritten)

    def rows(self, reader: str) -> int:
        """How many rows a reader sees."""
        if reader == ARROW:
            return lethe.scan(self.table.full_name).count()
        return self._frame(reader).count()

    def read(self, reader: str) -> None:
        """All rows and columns, from the table's name to the last row."""
        if reader == ARROW:
            for _ in lethe.scan(self.table.full_name).to_batches():
                pass
        else:
            self._frame(reader).write.format("noop").mode("overwrite").save()

    def _frame(self, reader: str) -> DataFrame:
        spark, name = self.lake.spark, self.table.full_name
        return lethe_spark.read(spark, name) if reader == SPARK else spark.table(name)

    def _files(self) -> dict[Path, int]:
        folder = Path("/" + self.table.location.removeprefix("file:").lstrip("/"))
        found = (p for p in folder.rglob("*") if p.is_file() and p.suffix != ".crc")  # checksums of a local file system
        return {path: path.stat().st_size for path in found}


def reverts(lake: Lake, scale: DeletesScale) -> dict[str, Any]:
    """Reverts of all sizes with each kind, in turns, on tables that collect what earlier ones left behind; checked at the end."""
    size, name = scale.table, base(lake, scale.table, ordered=True)
    subjects = {kind: Subject.of(lake, name, size, kind) for kind in VERSIONS}
    taken: dict[Deletes, set[int]] = {kind: set() for kind in subjects}

    def act(kind: Deletes, count: int, number: int) -> Sample:
        offset = scale.reverts.index(count) + (number - WARM_UP) * len(scale.reverts)
        indexes = size.spread(count, offset)
        taken[kind].update(indexes)
        return subjects[kind].delete(indexes)

    results = in_turns(
        Case({"kind": kind, "batches": count}, partial(act, kind, count), scale.revert_rounds)
        for count in scale.reverts
        for kind in subjects
    )
    for kind, subject in subjects.items():
        problem = wrong(subject, len(taken[kind]))
        for result in (r for r in results if problem and r["kind"] == kind):
            result["error"] = problem
    return {**_table(scale), "results": results}


def reads(lake: Lake, scale: DeletesScale) -> dict[str, Any]:
    """Each reader on a table of each kind, in turns. `rows`: how many it sees."""
    size, name = scale.table, base(lake, scale.table, ordered=True)
    untouched = Untouched(lake, name)

    def plainly(_: int) -> Sample:
        return Sample(seconds_of(lambda: untouched.read().write.format("noop").mode("overwrite").save()))

    cases = [Case({"kind": NOTHING_DELETED, "reader": PLAIN, "rows": size.all_rows}, plainly, scale.read_rounds)]
    for kind in VERSIONS:
        subject = Subject.of(lake, name, size, kind)
        problem = _prepared(subject, scale)
        for reader in READERS:
            labels = {"kind": kind, "reader": reader, "rows": expected(subject, reader, scale.deleted)}
            error = problem or wrong(subject, scale.deleted, [reader])
            cases.append(Case(labels, partial(_timed, subject, reader), scale.read_rounds, error=error))
    return {**_table(scale), "deleted": scale.deleted, "results": in_turns(cases)}


def vacuums(lake: Lake, scale: DeletesScale) -> dict[str, Any]:
    """Vacuum tables with the same content and each kind of deletes, in turns. Each vacuum has its own table and is checked."""
    size, name = scale.table, base(lake, scale.table, ordered=True)

    def act(kind: Deletes, _: int) -> Sample:
        subject = Subject.of(lake, name, size, kind)
        if problem := _prepared(subject, scale):
            raise RuntimeError(problem)
        sample = subject.vacuum()
        left, found = (size.all_batches - scale.deleted) * size.rows, subject.rows(PLAIN)
        if found != left:
            raise RuntimeError(f"plain Spark sees {found} rows after the vacuum, expected {left}")
        return sample

    results = in_turns(Case({"kind": kind}, partial(act, kind), scale.vacuum_rounds) for kind in VERSIONS)
    return {**_table(scale), "deleted": scale.deleted, "results": results}


def expected(subject: Subject, reader: str, taken: int) -> int:
    """How many rows a reader should see once so many batches are taken back: with the ledger alone, a plain one sees all."""
    size, plainly = subject.size, subject.kind is Deletes.LEDGER and reader == PLAIN
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
        sample = subject.delete(subject.size.spread(scale.deleted))
    except Exception as e:
        return failure(e)
    say(f"{subject.kind}: {scale.deleted:,} batches taken back in {sample.seconds:.1f} s")
    return wrong(subject, scale.deleted)


def _timed(subject: Subject, reader: str, _: int) -> Sample:
    return Sample(seconds_of(lambda: subject.read(reader)))


def _table(scale: DeletesScale) -> dict[str, Any]:
    size = scale.table
    return {"table": {"rows": size.all_rows, "batches": size.all_batches, "files": size.months * size.files}}


SUITE = Suite(
    name="deletes",
    purpose=(__doc__ or "").splitlines()[0],
    parts={"reverts": reverts, "reads": reads, "vacuums": vacuums},
    scales=SCALES,
    views=(
        View("Taking batches back", ("reverts",), ("kind",), "batches", (SECONDS, BYTES), plot="batches"),
        View("Reading", ("reads",), ("reader", "kind"), cells=(Cell("rows that it sees", "rows"), SECONDS)),
        View("Vacuum", ("vacuums",), ("kind",), cells=(SECONDS, Cell("bytes of rewritten files", "bytes"))),
    ),
    page="deletes.md",
)

if __name__ == "__main__":
    program(SUITE)
