"""How long a commit takes, and how much it writes, on ledgers of several sizes."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lethe.base import names
from lethe.contract.run import RunKind
from lethe.ledger.ledger import BatchState, Delta
from lethe.ledger.tombstone import META_RESTATEMENTS, META_RUN, Tombstone
from lethe_spark.commit.ledger_commit import Intent, commit_on_ledger
from lethe_spark.jvm.commit import LedgerOnly
from lethe_spark.jvm.spark_table import SparkTable

from bench.lake import Lake, commit, entry, our_properties, revert, revert_request
from bench.scales import BATCH_COLUMN, LedgerScale
from bench.timing import WARM_UP, Case, Sample, in_turns, say, seconds_of

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


def measure(lake: Lake, scale: LedgerScale) -> dict[str, Any]:
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
