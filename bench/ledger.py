"""Measure the ledger: commits on small and large ledgers, and reverts, each compared with its rivals. I/O.

python -m bench.ledger [--scale tiny|small|full] [--only PART,…] [--out docs/benchmarks]
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lethe_spark
from lethe.base import names
from lethe.contract.run import RunKind
from lethe.ledger.ledger import BatchState, Delta
from lethe.ledger.tombstone import META_RESTATEMENTS, META_RUN, Tombstone
from lethe_spark.commit.ledger_commit import Intent, commit_on_ledger
from lethe_spark.jvm.commit import LedgerOnly
from lethe_spark.jvm.gateway import each
from lethe_spark.jvm.spark_table import SparkTable

from bench import rivals
from bench.lake import (
    BATCH_COLUMN,
    Lake,
    Size,
    base,
    commit,
    entry,
    our_properties,
    revert,
    revert_request,
    size_of,
)
from bench.report import BYTES, SECONDS, Goal, Part, View, find, goal, median, ratio, results_of
from bench.rivals import Rival
from bench.runner import Suite, program, sizes
from bench.timing import WARM_UP, Case, Sample, in_turns, say, seconds_of


@dataclass(frozen=True)
class LedgerScale:
    """The sizes that determine how long the benchmark takes. Rounds do not include the warm-up."""

    name: str
    unsorted_table: Size
    revert_table: Size
    small_table: Size  # a tenth of that, to see whether a revert depends on it
    ledgers: Sequence[int]  # active tombstones; ten million take 20 minutes to build
    added: int  # tombstones that a measured commit adds
    commit_rounds: int
    snapshots: int  # of the table whose commits are compared with an empty append of Iceberg
    append_rounds: int
    reverts: Sequence[int]  # batches taken back at once
    revert_rounds: int
    rewrite_rounds: int  # of what rewrites the whole table
    driver_memory: str = "2g"


SCALES = sizes(
    LedgerScale,
    unsorted_table=(Size(2, 60, 20, 2), Size(12, 2_000, 100, 2), Size(12, 20_000, 150, 4)),
    revert_table=(Size(2, 60, 20, 2), Size(12, 2_000, 100, 2), Size(12, 20_000, 100, 4)),
    small_table=(Size(2, 30, 20, 1), Size(12, 1_000, 20, 1), Size(12, 2_000, 100, 1)),
    ledgers=((10, 50), (1_000, 10_000, 100_000), (1_000, 100_000, 1_000_000, 10_000_000)),
    added=(5, 100, 100),
    commit_rounds=(1, 5, 9),
    snapshots=(20, 1_000, 1_000),
    append_rounds=(2, 15, 25),
    reverts=((1, 5), (1, 100, 1_000), (1, 100, 1_000)),
    revert_rounds=(1, 3, 5),
    rewrite_rounds=(1, 1, 2),
    driver_memory=("2g", "2g", "6g"),
)


PER_DELTA = 250_000  # tombstones in one commit while a ledger is built
ADDED = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Subject:
    """A table whose ledger has `active` tombstones, and promoted batches that are still to be reverted."""

    lake: Lake
    table: SparkTable
    field_id: int
    active: int
    folder: Path

    def bytes(self) -> int:
        return sum(e.stat().st_size for e in os.scandir(self.folder))

    def commit(self, number: int, added: int) -> Sample:
        """Add tombstones through the product's commit path, on a ledger that is not in memory."""
        ids = [f"measured-{number + 1:03d}.{i:06d}" for i in range(added)]
        before = self.bytes()
        with self.lake.context(RunKind.RESTATEMENT, self.table.name) as context:
            run = context.spec.run_id
            delta = Delta(run, add_tombstones=tuple(_tombstone(self.field_id, i, run) for i in ids))
            seconds = seconds_of(
                lambda: commit_on_ledger(context, self.table, lambda _: Intent(delta, LedgerOnly(), None))
            )
        return Sample(seconds, self.bytes() - before)

    def restate(self, number: int, added: int) -> Sample:
        """Revert known batches by the restatement job."""
        before = self.bytes()
        request = revert_request(_known(number, added))
        with self.lake.context(RunKind.RESTATEMENT, self.table.name, [request]) as context:
            seconds = seconds_of(lambda: revert(context))
        return Sample(seconds, self.bytes() - before)


def commits(lake: Lake, scale: LedgerScale) -> dict[str, Any]:
    """The commits of all sizes in turns."""
    subjects = [build(lake, n, scale, f"run.ledger_{n}") for n in scale.ledgers]
    cases = [case for s in subjects for case in _cases(s, scale)]
    results = in_turns(cases)
    return {
        "added": scale.added,
        "ledgers": [
            {"active": s.active, "files": len(os.listdir(s.folder)), "folder_bytes": s.bytes()} for s in subjects
        ],
        "results": results,
    }


def _cases(subject: Subject, scale: LedgerScale) -> Iterator[Case]:
    labels = {"active": subject.active}
    yield Case(labels | {"what": "commit"}, lambda n: subject.commit(n, scale.added), scale.commit_rounds)
    yield Case(labels | {"what": "restatement"}, lambda n: subject.restate(n, scale.added), scale.commit_rounds)


def build(lake: Lake, active: int, scale: LedgerScale, name: str) -> Subject:
    """A new table whose ledger has `active` tombstones. `name`: the beginning of its name."""
    say(f"a ledger of {active:,} tombstones")
    table = lake.create(f"{name}_{os.getpid()}", properties=our_properties())
    field_id = table.field_id(BATCH_COLUMN)
    assert field_id is not None
    for start in range(0, active, PER_DELTA):
        part = [f"flights-{i:09d}" for i in range(start, min(start + PER_DELTA, active))]
        commit(
            lake,
            table,
            LedgerOnly(),
            lambda run, part=part: Delta(
                run,
                add_tombstones=tuple(_tombstone(field_id, i, run) for i in part),
                set_batches=tuple(entry(i, BatchState.REVERTED, 100) for i in part),
            ),
        )
    known = [i for n in range(WARM_UP, scale.commit_rounds) for i in _known(n, scale.added)]
    entries = tuple(entry(i, BatchState.PROMOTED, 100) for i in known)
    commit(lake, table, LedgerOnly(), lambda run: Delta(run, set_batches=entries))
    folder = Path("/" + table.location.removeprefix("file:").lstrip("/")) / names.LEDGER_FOLDER
    return Subject(lake, table, field_id, active, folder)


def _known(number: int, count: int) -> list[str]:
    """The batches that a round reverts: spread among the others by name, as late corrections are."""
    return [f"flights-{i * 7919 % 1_000_000:09d}.r{number + 1}" for i in range(count)]


def _tombstone(field_id: int, batch_id: str, run: str) -> Tombstone:
    meta = {META_RESTATEMENTS: f"bench/revert/{run}", META_RUN: run, "partitions": "0/[1]"}
    return Tombstone(batch_id, field_id, ADDED, None, meta)


EMPTY = "Iceberg, an empty append"
COMMIT = "Lethe, a commit"
REVERT = "Lethe's SDK, a revert"
# Tombstones of the ledger before the measured commits.
ACTIVE = 1_000
# Beginnings of Lethe's keys in a summary. Iceberg adds the others itself.
OURS = ("lethe.", "tombstone.")
# Snapshots that one transaction of the preparation adds.
PER_TRANSACTION = 250


def appends(lake: Lake, scale: LedgerScale) -> dict[str, Any]:
    """The three kinds of commits in turns, on one table."""
    subject = build(lake, ACTIVE, scale, f"run.snapshots_{scale.snapshots}")
    _add_snapshots(subject.table, scale.snapshots)
    subject.table.refresh()
    theirs = lake.load(subject.table.name)
    assert theirs is not None

    def revert(number: int) -> Sample:
        ids = [f"reverted-{number + 1:03d}.{i:06d}" for i in range(scale.added)]
        return Sample(seconds_of(lambda: lethe_spark.revert(lake.spark, subject.table.full_name, ids)))

    def append(_: int) -> Sample:
        return Sample(seconds_of(lambda: theirs.java.newFastAppend().commit()))

    rounds = scale.append_rounds
    results = in_turns(
        [
            Case({"kind": EMPTY}, append, rounds),
            Case({"kind": COMMIT}, lambda n: subject.commit(n, scale.added), rounds),
            Case({"kind": REVERT}, revert, rounds),
        ]
    )
    return {"added": scale.added, "snapshots": scale.snapshots, "results": results}


def _add_snapshots(table: SparkTable, wanted: int) -> None:
    """Add empty snapshots until there are so many. Each has the summary of a commit by Lethe, with the ledger of the head."""
    say(f"a table of {wanted:,} snapshots")
    found = {str(e.getKey()): str(e.getValue()) for e in each(table.java.currentSnapshot().summary().entrySet())}
    summary = {k: v for k, v in found.items() if k.startswith(OURS)}
    while (missing := wanted - table.snapshot_count) > 0:
        transaction = table.java.newTransaction()
        for _ in range(min(missing, PER_TRANSACTION)):
            update = transaction.newFastAppend()
            for key, value in summary.items():
                update = update.set(key, value)
            update.commit()
        transaction.commitTransaction()
        table.refresh()


KINDS = (
    rivals.LEDGER,
    rivals.DELETION_VECTORS,
    rivals.POSITION_DELETES,
    rivals.EQUALITY_DELETES,
    rivals.COPY_ON_WRITE,
)
UNSORTED_KINDS = (rivals.LEDGER, rivals.DELETION_VECTORS, rivals.EQUALITY_DELETES)


def reverts(lake: Lake, scale: LedgerScale, *, table: str) -> dict[str, Any]:
    """Reverts of all sizes by all kinds, in turns. `table`: full, small or unsorted.

    Each revert takes other batches, evenly spread over the table. So the table of a kind accumulates the files of its earlier
    reverts, as in production.
    """
    size = {"full": scale.revert_table, "small": scale.small_table, "unsorted": scale.unsorted_table}[table]
    ordered = table != "unsorted"
    counts = scale.reverts if ordered else (scale.reverts[0], scale.reverts[-1])
    name = base(lake, size, ordered=ordered)
    subjects: dict[str, Rival] = {}
    for kind in KINDS if ordered else UNSORTED_KINDS:
        say(f"a table for {kind}")
        subjects[kind] = rivals.a_clone(lake, name, kind, size)
    taken: dict[str, set[int]] = {kind: set() for kind in subjects}
    cases = [
        _case(scale, size, table, kind, s, taken[kind], n)
        for n in counts
        for kind, s in subjects.items()
        if not _the_same_again(scale, kind, n)
    ]
    results = in_turns(cases)
    for kind, subject in subjects.items():
        if problem := rivals.wrong(subject, size, len(taken[kind])):
            for r in results:
                if r["kind"] == kind:
                    r["error"] = problem
                    say(f"{kind}: {problem}")
    return {"table": {"name": table} | size_of(lake, name, size, ordered=ordered), "results": results}


def _case(scale: LedgerScale, size: Size, table: str, kind: str, subject: Rival, taken: set[int], count: int) -> Case:
    rewrites = kind == rivals.COPY_ON_WRITE and count > 1
    rounds = scale.rewrite_rounds if rewrites else scale.revert_rounds
    offset = scale.reverts.index(count)

    def act(number: int) -> Sample:
        indexes = _batches(size, count, offset + (number - WARM_UP) * len(scale.reverts))
        taken.update(indexes)
        return Sample(subject.delete(indexes))

    return Case({"kind": kind, "batches": count, "table": table}, act, rounds, warm_up=not rewrites)


def _the_same_again(scale: LedgerScale, kind: str, count: int) -> bool:
    """Batches in all files: copy-on-write then rewrites the whole table, for 100 batches as for 1,000."""
    return kind == rivals.COPY_ON_WRITE and 1 < count < max(scale.reverts)


def _batches(size: Size, count: int, offset: int) -> Sequence[int]:
    return size.spread(count, offset)


COMMIT_FACTOR, APPEND_FACTOR = 1.5, 2.0
REVERT_LIMITS = {rivals.DELETION_VECTORS: 0.5, rivals.COPY_ON_WRITE: 0.05}
SAME_SIZE_FACTOR = 1.5  # "does not depend on the table's size": what a tenth and the whole may differ by


def goals(parts: Mapping[str, Part]) -> list[Goal]:
    """Each goal with the ratio that was measured."""
    found = []
    for what in ("commit", "restatement") if "commits" in parts else ():
        part = parts["commits"]
        first, *_, last = (x["active"] for x in part["ledgers"])
        small, large = (median(find(part["results"], active=n, what=what)) for n in (first, last))
        times = f"takes at most {COMMIT_FACTOR:g} times that at {first:,}"
        text = f"a {what} of {part['added']} at {last:,} active tombstones {times}"
        found.append(goal(text, ratio(large, small), COMMIT_FACTOR))
    if "appends" in parts:
        part = parts["appends"]
        ours, theirs = (median(find(part["results"], kind=k)) for k in (COMMIT, EMPTY))
        text = f"a commit of {part['added']} at {part['snapshots']:,} snapshots : an empty append by Iceberg's Java API"
        found.append(goal(text, ratio(ours, theirs), APPEND_FACTOR))
    for name in ("reverts-full", "reverts-small"):
        results = results_of(parts, name)
        counts = sorted({r["batches"] for r in results})
        for count, (kind, limit) in ((c, k) for c in (*counts[:1], *counts[-1:]) for k in REVERT_LIMITS.items()):
            ours, theirs = (median(find(results, kind=k, batches=count)) for k in (rivals.LEDGER, kind))
            table = f"a table of {parts[name]['table']['rows']:,} rows"
            text = f"a revert of {count:,} on {table} takes at most {limit:g} of the time of Spark's DELETE, {kind}"
            found.append(goal(text, ratio(ours, theirs), limit))
    whole, tenth = results_of(parts, "reverts-full"), results_of(parts, "reverts-small")
    for count in sorted({r["batches"] for r in whole if tenth}):
        one, other = (median(find(results, kind=rivals.LEDGER, batches=count)) for results in (whole, tenth))
        times = round(parts["reverts-full"]["table"]["rows"] / parts["reverts-small"]["table"]["rows"])
        text = (
            f"a revert of {count:,} takes as long on a table {times} times as large (within {SAME_SIZE_FACTOR - 1:.0%})"
        )
        found.append(goal(text, ratio(one, other), SAME_SIZE_FACTOR))
    return found


SUITE = Suite(
    name="ledger",
    purpose=(__doc__ or "").splitlines()[0],
    parts={
        "commits": commits,
        "appends": appends,
        "reverts-full": lambda lake, scale: reverts(lake, scale, table="full"),
        "reverts-small": lambda lake, scale: reverts(lake, scale, table="small"),
        "reverts-unsorted": lambda lake, scale: reverts(lake, scale, table="unsorted"),
    },
    scales=SCALES,
    goals=goals,
    views=(
        View("Commits", ("commits",), ("active",), "what", (SECONDS, BYTES), plot="active"),
        View("Beside an empty append", ("appends",), ("kind",)),
        View("Reverts", ("reverts-full", "reverts-small", "reverts-unsorted"), ("kind",), "batches", plot="batches"),
    ),
)

if __name__ == "__main__":
    program(SUITE)
