"""Restatement: the Reverts, Replays and Undos of a group, all in one snapshot, with the new data of its Replays.

I/O; what the requests mean on a ledger is decided in `lethe.plan.group`. Every replacement of the group is written before the
commit, in files that they share: who asks for a request again, by whichever run, finds it in the ledger.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from lethe.errors import ConflictError, InputError, TransientError
from lethe.ledger.parts import get_many
from lethe.plan.bounds import IdIndex
from lethe.plan.group import GroupPlan, plan_group
from lethe.run import Phase, RequestResult, RestatementRequest, RunResult

from lethe_spark.base import Base, observe_base, open_table
from lethe_spark.context import RunContext
from lethe_spark.frames import named, semi_join
from lethe_spark.jobs.replacements import Replacements, write_replacements
from lethe_spark.jobs.tidying import finished
from lethe_spark.jvm.commit import Append, LedgerOnly
from lethe_spark.jvm.rewrite import scan_files
from lethe_spark.jvm.table import IcebergTable
from lethe_spark.ledger_commit import Attempts, Committed, Intent, NothingToCommit, commit_on_ledger
from lethe_spark.unpublished import discard

log = logging.getLogger(__name__)
# Others may carry out a request of the group, or use the id of a replacement, each time that all are written.
WRITES: Final = 4


def run(context: RunContext) -> RunResult:
    """Carry out the requests of `run.json` in one commit. One that is refused does not hold back the others.

    Raises: InputError, ConflictError; TransientError, also if none of the requests can be carried out just now.
    """
    spec = context.spec
    assert spec.restatement is not None
    context.reporter.phase(Phase.PLANNING)
    table = open_table(context)
    requests = tuple({r.key: r for r in spec.restatement.requests}.values())
    done = _Group(context, table, requests).carry_out()
    results = tuple(_told(done, request) for request in requests)
    if results and all(r.again for r in results):
        raise TransientError(results[0].reason, f"{results[0].message} Nothing was changed.")
    for r in results:
        if not r.succeeded:
            log.info("%s is %s: %s", r.name, "kept out for now" if r.again else "refused", r.reason)
    refused = [r for r in results if not r.succeeded]
    result = RunResult(
        run_id=spec.run_id,
        kind=spec.kind,
        attempt=spec.attempt,
        outcome="Committed" if done.snapshot_id else "Failed" if refused else "AlreadyCommitted",
        reason=refused[0].reason if refused and not done.snapshot_id else "",
        message=refused[0].message if refused and not done.snapshot_id else "",
        snapshot_id=done.snapshot_id,
        rows_added=sum(r.rows_added for r in results),
        requests=results,
        finished_time=datetime.now(UTC),
    )
    return finished(context, table, result)


def _told(done: Committed[GroupPlan], request: RestatementRequest) -> RequestResult:
    """A request's result, with the snapshot of this commit if that carried it out."""
    result = done.outcome.results[request.key]
    if request.key not in done.outcome.carried_out:
        return result
    return result.model_copy(update={"snapshot_id": done.snapshot_id})


@dataclass(frozen=True)
class _Group:
    context: RunContext
    table: IcebergTable
    requests: Sequence[RestatementRequest]

    def carry_out(self) -> Committed[GroupPlan]:
        """Plan, write the replacements, commit; again from the start if something else has to be written than was."""
        lost = 0
        aside: dict[str, RequestResult] = {}
        base = observe_base(self.context, self.table)
        in_files = _in_files(self.context, self.table, base, self.requests)
        while lost < WRITES:
            # Asked before any data is written: what is done or refused must not cost a write.
            base = observe_base(self.context, self.table, base)
            first = self._plan(base, in_files, Replacements(), aside)
            if first.delta.is_empty:
                return Committed(first, None)
            adding = [r for r in self.requests if r.key in first.adds]
            written = write_replacements(self.context, self.table, adding, base.batch_column)
            aside |= written.aside
            done = self._commit(base, in_files, written, aside)
            if done.outcome is not None:
                return Committed(done.outcome, done.snapshot_id)
            log.info("other replacements have to go in than were written; they are written anew")
            lost += (
                not written.aside
            )  # else one that cannot be used has left its place to another, which happens once to each
        raise ConflictError(
            "ReplacementsMoved",
            f"{self.table.full_name}: others kept carrying out requests of this group; it is tried later. Nothing was committed.",
        )

    def _commit(
        self, base: Base, in_files: Collection[str], written: Replacements, aside: Mapping[str, RequestResult]
    ) -> Committed[GroupPlan | None]:
        """The outcome is None if other replacements would have to go in than are written."""

        def plan(newest: Base) -> Intent[GroupPlan | None] | NothingToCommit[GroupPlan | None]:
            planned = self._plan(newest, in_files, written, aside)
            if planned.delta.is_empty:
                return NothingToCommit(planned)
            if set(planned.adds) != written.rows.keys():
                return NothingToCommit(None)
            return Intent(planned.delta, Append(written.files) if written.files else LedgerOnly(), planned)

        attempts = Attempts()
        try:
            done = commit_on_ledger(self.context, self.table, plan, attempts, base)
        except (InputError, ConflictError):
            discard(self.table, written.files, attempts)
            raise
        if done.snapshot_id is None:
            discard(self.table, written.files, attempts)
        return done

    def _plan(
        self, base: Base, in_files: Collection[str], written: Replacements, aside: Mapping[str, RequestResult]
    ) -> GroupPlan:
        ids = {r.key: r.replacement.batch_id for r in self.requests if r.replacement}
        partitions = base.partitions_of(written.files, [ids[key] for key in written.rows]) if written.rows else {}
        rows = {key: replace(of, partitions=partitions[ids[key]]) for key, of in written.rows.items()}
        run, now = self.context.spec.run_id, datetime.now(UTC)
        return plan_group(base.ledger, self.requests, in_files, base.field_id, run, now, rows, aside)


def _in_files(
    context: RunContext, table: IcebergTable, base: Base, requests: Sequence[RestatementRequest]
) -> frozenset[str]:
    """Ids that the ledger never heard of, yet of which there are rows: from before the ledger, or by other writers.

    Only for the report of unknown ids; their tombstones are set either way. Files whose bounds allow one are read, in
    that one column: bounds alone would call every id known that sorts between two others.
    """
    done = get_many(base.ledger.requests, [r.key for r in requests])
    wanted = dict.fromkeys(i for r in requests if r.key not in done for i in r.batch_ids)
    known = get_many(base.ledger.batches, wanted)
    strangers = [i for i in wanted if i not in known]
    index = IdIndex(strangers)
    paths = [f.path for f in base.files() if index.might_hold(f)] if strangers else []
    if not paths or base.facts.head_id is None:
        return frozenset()
    context.reporter.phase(Phase.SCAN, f"{len(strangers)} unknown batch ids in {len(paths)} files")
    column = named(base.batch_column)
    with scan_files(table, paths, base.facts.head_id) as scanned:
        found = semi_join(scanned.frame.select(column), base.batch_column, strangers).distinct().collect()
    return frozenset(str(r[0]) for r in found)
