"""Measure reverts, reads and vacuums with each kind of deletes: the ledger alone, vectors, position deletes.

    python -m bench.deletes [--scale tiny|small|full] [--only reverts,reads,vacuums] [--out docs/benchmarks]

The figures go into `docs/benchmarks/deletes.json`, and between two markers of `docs/deletes.md`.
"""

import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from lethe.contract.settings import Deletes

from bench import deletes_plots, deletes_report
from bench.deletes_kinds import NOTHING_DELETED, PLAIN, READERS, SPARK, VERSIONS, Subject
from bench.deletes_scales import SCALES, DeletesScale
from bench.lake import Lake
from bench.rivals import Untouched
from bench.suite import Suite, main
from bench.tables import base
from bench.timing import WARM_UP, Case, Sample, failure, in_turns, say, seconds_of


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
    goals=deletes_report.goals,
    section=deletes_report.section,
    draw=deletes_plots.draw,
    page="deletes.md",
)

if __name__ == "__main__":
    code = main(SUITE)
    sys.stdout.flush()
    os._exit(code)  # not sys.exit: a callback thread of py4j must not keep a finished run alive
