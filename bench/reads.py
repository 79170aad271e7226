"""Measure reading all rows of a table with deleted rows.

A read includes planning, loading the ledger or the delete files, and a scan of all columns into Spark's `noop` sink, which
discards the rows. A count would let Parquet skip columns, and an aggregate would add its own time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import functions as F  # noqa: N812

from bench import rivals
from bench.lake import Lake, files_of
from bench.reading_scales import ReadingScale
from bench.rivals import Rival
from bench.scales import BATCH_COLUMN, PARTITION, Size
from bench.tables import base
from bench.timing import WARM_UP, Case, Sample, failure, in_turns, say, seconds_of

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


def measure(lake: Lake, scale: ReadingScale, *, ordered: bool) -> dict[str, Any]:
    """All variants of one table in turns, after each was shown to hold just the rows that it should."""
    size, name = scale.table, base(lake, scale.table, ordered=ordered)
    source = lake.load(name)
    assert source is not None
    files = files_of(source)
    cases: list[Case] = []
    for v in variants(scale, ordered=ordered):
        labels = {"kind": v.kind, "deleted": v.deleted, "where": v.where if v.deleted else "", "sorted": ordered}
        case = Case(labels, _nothing, scale.rounds)
        cases.append(case)
        try:
            subject = _prepared(lake, name, size, v)
            _check(subject, size, v.deleted)
        except Exception as e:
            case.error = failure(e)
            say(f"{case.name}: FAILED, {case.error}")
            continue
        case.act = partial(_timed_read, subject)
    return {
        "table": {
            "rows": size.all_rows,
            "batches": size.all_batches,
            "files": len(files),
            "bytes": sum(f.bytes for f in files),
            "sorted": ordered,
        },
        "results": in_turns(cases),
    }


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


def _check(subject: Rival, size: Size, deleted: int) -> None:
    frame = subject.read()
    found = frame.agg(F.count(F.col(BATCH_COLUMN))).collect()[0][0]
    expected = (size.all_batches - deleted) * size.rows
    if found != expected:
        raise RuntimeError(f"{found} rows are left, expected {expected}")


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
