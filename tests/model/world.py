"""The real thing beside the model: a Dataset on SQLite and local files, the jobs in this process, other writers, and
readings of the table that use none of Lethe's code. I/O."""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import lethe
import lethe_spark
from lethe import names
from lethe.ledger import merge
from lethe.run import Replacement, RestatementRequest, RunKind, RunSpec, SnapshotLimits, VacuumSpec
from lethe.run_result import Phase, RunResult
from lethe.table import ledger_store
from lethe.table.facts import observe
from lethe_spark.app import job_of
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from tests.builders import a_request
from tests.model.acts import Append, Group, Job, Replay, Request, Revert, Undo, Vacuum, request_name
from tests.model.model import REPLACEMENT_ROWS, Rows
from tests.spark.jobs_support import Story, avro, local, of_arrow, of_spark
from tests.spark.lake import CATALOG, Lake


@dataclass(frozen=True)
class Seen:
    """A table at one moment. `lineage`: the head and its retained ancestors, newest first; `others`: snapshots that are
    staged, or tagged and cut off by an expiry; `states`: of batches, as the ledger says."""

    table: Table
    lineage: tuple[int, ...]
    others: tuple[int, ...]
    states: Mapping[str, str]

    def keys(self, snapshot_id: int) -> dict[str, str]:
        snapshot = self.table.snapshot_by_id(snapshot_id)
        assert snapshot is not None
        assert snapshot.summary is not None
        return dict(snapshot.summary.additional_properties)

    def parent(self, snapshot_id: int) -> int | None:
        snapshot = self.table.snapshot_by_id(snapshot_id)
        assert snapshot is not None
        return snapshot.parent_snapshot_id

    def is_bare(self, snapshot_id: int) -> bool:
        return "lethe.ledger" not in self.keys(snapshot_id)

    @property
    def bare(self) -> int:
        """How many snapshots of others lie above the nearest ledger."""
        return next((n for n, i in enumerate(self.lineage) if not self.is_bare(i)), len(self.lineage))

    def tombstones(self) -> frozenset[str]:
        """The active ones, of the nearest ledger, in whatever files it has them."""
        carrier = next((i for i in self.lineage if not self.is_bare(i)), None)
        return tombstones(self.keys(carrier)["tombstone.file"]) if carrier is not None else frozenset()

    def files(self, snapshot_id: int | None = None) -> Rows:
        """The rows in the data files, deleted ones too."""
        if snapshot_id is None and not self.lineage:
            return Counter()
        return of_arrow(self.table.scan(snapshot_id=snapshot_id or self.lineage[0]).to_arrow())


@dataclass(frozen=True)
class World:
    story: Story

    @classmethod
    def begin(cls, spark: SparkSession, lake: Lake) -> "World":
        """An empty table, made by a run that had nothing else to do. Ledgers of few entries have many chunks here."""
        ledger_store.THRESHOLDS = merge.Thresholds(floor=2, cap=5)
        story = Story.begin(spark, lake)
        story.buffer.path.mkdir(parents=True, exist_ok=True)
        world = cls(story)
        world.run(story.consolidation("nothing"))
        return world

    def end(self) -> None:
        self.story.spark.sql(f"DROP TABLE {self.name} PURGE")
        ledger_store.THRESHOLDS = merge.Thresholds()

    @property
    def name(self) -> str:
        return f"{CATALOG}.{self.story.name}"

    # --- runs -----------------------------------------------------------------------------------------------------

    def run(self, spec: RunSpec, at: str = "", happening: Callable[[], object] | None = None) -> RunResult:
        """Carry out a run; `happening` right after step `at`, if the run gets there."""
        hooks = {at: happening} if happening is not None else {}
        context = self.story.context(spec, **hooks)
        try:
            return job_of(spec.kind)(context)
        finally:
            context.reporter.close(Phase.SUCCEEDED)

    def spec(self, job: Job) -> RunSpec:
        """The run that an act means; what it reads is put in place."""
        match job:
            case Append(ids):
                for i in ids:
                    if not self.story.folder(i).exists():
                        self.story.put(i, rows=2)
                return self.story.consolidation(*ids)
            case Revert() | Replay() | Undo():
                return self.story.restatement(self.request(job))
            case Group(requests):
                return self.story.restatement(*(self.request(r) for r in dict.fromkeys(requests)))
            case Vacuum(max_bytes, keep):
                limits = SnapshotLimits(max_age_seconds=0, min_to_keep=keep or 1, max_count=keep or 1)
                vacuum = VacuumSpec(
                    policy="air/nightly", expire_snapshots=keep is not None, snapshots=limits, max_bytes=max_bytes
                )
                return self.story.spec(RunKind.VACUUM, [repr(job)], vacuum=vacuum)

    def request(self, act: Request) -> RestatementRequest:
        name = request_name(act)
        match act:
            case Revert(ids):
                return a_request(name, batch_ids=ids)
            case Replay(ids, by):
                return a_request(name, "Replay", batch_ids=ids, replacement=self._replacement(by))
            case Undo(of):
                return a_request(name, "Undo", batch_ids=(), undoes=self.request(of).key)

    def _replacement(self, by: str) -> Replacement:
        folder = self.story.lake.home / "restated" / self.story.name / f"batch_id={by}"
        if folder.exists():
            return Replacement(batch_id=by, uri=f"file://{folder}")
        return self.story.replacement(by, REPLACEMENT_ROWS)

    def let_time_pass(self) -> None:
        """Every file that Lethe keeps beside the table is days old: whatever a clean-up may ever remove, it may now."""
        location = Path(local(self.story.table().location()))
        then = time.time() - 10 * 86_400
        for folder in (names.LEDGER_FOLDER, names.RUNS_FOLDER):
            for file in (location / folder).glob("*"):
                os.utime(file, (then, then))

    # --- strangers ------------------------------------------------------------------------------------------------

    def append_as_a_stranger(self, *ids: str | None, day: int) -> Rows:
        self.story.append_as_a_stranger(*ids, day=day)
        return Counter((i, 500 + n, day) for n, i in enumerate(ids))

    def compact_as_a_stranger(self) -> None:
        self._call("rewrite_data_files", "options => map('rewrite-all', 'true')")

    def repartition_as_a_stranger(self, by: str | None) -> None:
        partitioned = {f.name for f in self.story.table().spec().fields}
        for field in partitioned - {by}:
            self.story.spark.sql(f"ALTER TABLE {self.name} DROP PARTITION FIELD {field}")
        if by is not None and by not in partitioned:
            self.story.spark.sql(f"ALTER TABLE {self.name} ADD PARTITION FIELD {by}")

    def tag_the_head(self) -> set[int]:
        """Returns: the head's id, if there is a head."""
        table = self.story.table()
        head = table.metadata.current_snapshot_id
        if head is None:
            return set()
        table.manage_snapshots().create_tag(head, f"tag_{head}").commit()
        return {head}

    def expire_as_a_stranger(self, keep: int) -> None:
        self._call("expire_snapshots", f"older_than => TIMESTAMP '2999-01-01 00:00:00', retain_last => {keep}")

    def _call(self, procedure: str, arguments: str) -> None:
        self.story.spark.sql(f"CALL {CATALOG}.system.{procedure}(table => '{self.name}', {arguments})").collect()

    # --- readings -------------------------------------------------------------------------------------------------

    def look(self) -> Seen:
        table = self.story.table()
        parents = {s.snapshot_id: s.parent_snapshot_id for s in table.metadata.snapshots}
        lineage: list[int] = []
        at = table.metadata.current_snapshot_id
        while at is not None and at in parents:
            lineage.append(at)
            at = parents[at]
        ledger = ledger_store.load(table.io, observe(table, "batch_id")).ledger
        states = {i: str(b.state) for i, b in ledger.batches.items()}
        assert {str(s): n for s, n in ledger.states.items() if n} == Counter(states.values())
        return Seen(table, tuple(lineage), tuple(i for i in parents if i not in lineage), states)

    def read(self, seen: Seen, snapshot_id: int | None = None, day: int | None = None) -> Rows:
        """By PyIceberg and Arrow: everything, or the rows of one partition."""
        wanted = f"day = {day}" if day is not None else None
        return of_arrow(lethe.scan(seen.table, snapshot_id=snapshot_id, filter=wanted).to_arrow())

    def read_by_spark(self, snapshot_id: int | None = None, day: int | None = None) -> Rows:
        wanted = f"day = {day}" if day is not None else None
        return of_spark(lethe_spark.read(self.story.spark, self.name, snapshot_id=snapshot_id, filter=wanted))

    def increment(self, seen: Seen, since: int, until: int, rows: Literal["appended", "deleted"]) -> Rows:
        return of_arrow(lethe.scan(seen.table, since=since, until=until, rows=rows).to_arrow())

    def increment_by_spark(self, since: int, until: int, rows: Literal["appended", "deleted"]) -> Rows:
        return of_spark(lethe_spark.read(self.story.spark, self.name, since=since, until=until, rows=rows))


def tombstones(uri: str) -> frozenset[str]:
    """The ids that a summary's file names, by an Avro library: of one file, or of a root's chunks, the later winning."""
    if not uri.endswith(".json"):
        return frozenset(t["id"] for t in avro(uri))
    found: set[str] = set()
    for chunk in json.loads(Path(local(uri)).read_text())["parts"]["tombstones"]:
        ids = {t["id"] for t in avro(f"{uri.rpartition('/')[0]}/{chunk['file']}")}
        found = found - ids if chunk.get("removes") else found | ids
    return frozenset(found)
