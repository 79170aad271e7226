"""Carries out the requests of a group of Restatements in one commit. I/O; `lethe.restatement.group` decides.

The caller passes functions that write data and search data files: those of a Job use Spark, those of the committer refuse.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa
from lethe.base.errors import ConflictError, InputError, TransientError, Verdict
from lethe.contract.result import LEGAL_HOLD, RequestResult, RestatementGroupResult, RunOutcome
from lethe.contract.run import RestatementRequest, RunSpec
from lethe.contract.settings import UnknownBatches
from lethe.files.native_deletes import with_purged
from lethe.ledger.ledger import BatchEntry, BatchState, Delta, Ledger, get_many
from lethe.ledger.lineage import shown_again_since
from lethe.ledger_chunks import all_batches, delivered
from lethe.restatement.group import GroupFindings, GroupPlan, plan_group, set_aside
from lethe.restatement.plan import ErasedRows, PlanScope, ReplacementRows
from lethe.restatement.selection import Deliveries, references_of
from lethe.restatement.unknown import unknown_ids_of

from lethe_spark.commit.ledger_commit import Attempts, Committed, Intent, NothingToCommit, commit_on_ledger, discard
from lethe_spark.commit.masking import CannotLift, Masks, NativeMasker, lifts_of
from lethe_spark.commit.table_state import Base, observe_base
from lethe_spark.jvm.commit import Append, Change, LedgerOnly, Overwrite, RowDelta
from lethe_spark.jvm.data_files import DataFile, DeleteChanges
from lethe_spark.jvm.table import IcebergTable
from lethe_spark.run.context import Committer

log = logging.getLogger(__name__)

WRITES: Final = 4
"""How often the data of a group is written, because another run carried out a request or used an id of it in the meantime."""

Find: TypeAlias = Callable[[Sequence[str], Base], Collection[str]]
"""The ids, of those that the ledger does not know, of which the data files hold rows."""
ListIds: TypeAlias = Callable[[], Collection[str] | Verdict]
"""The ids of the batches in the buffer, complete or not, or why it cannot be listed."""
FindWaiting: TypeAlias = Callable[[Ledger, Collection[str]], Mapping[str, Collection[str]] | Verdict]
"""The ids of complete batches in the buffer that the ledger lets promote, by their references, of which some are wanted; or why
the buffer cannot be read."""


@dataclass(frozen=True)
class Replacements:
    """Replacements that were written and are not yet part of the table."""

    files: tuple[DataFile, ...] = ()
    """The files, which several replacements may share."""
    rows: Mapping[str, ReplacementRows] = field(default_factory=dict)
    """The rows of each replacement, by the key of its request."""
    aside: Mapping[str, RequestResult] = field(default_factory=dict)
    """Results of requests whose replacement cannot be used, or not now, by key."""
    keys: Mapping[str, pa.Table] = field(default_factory=dict, repr=False)
    """Keys of rows in change data, by the key of the request. Older rows with one of these keys are deleted."""


@dataclass(frozen=True)
class Erased:
    """Rows that Erases by records, replacements with keys, and Redacts take out of data files. Written and not yet committed."""

    rows: Mapping[str, ErasedRows] = field(default_factory=dict)
    """The rows of each request, by its key."""
    aside: Mapping[str, RequestResult] = field(default_factory=dict)
    """Results of requests whose rows cannot be searched, or not now, by key."""
    taken_out: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The data files that lose rows, by path, each with the names of the native deletes it had when it was searched."""
    vectors: DeleteChanges | None = None
    """The deletion vectors of the rows. None: the files are rewritten instead, or there are no rows."""
    removed: tuple[DataFile, ...] = ()
    """Files that are removed."""
    dangling: tuple[Any, ...] = field(default=(), repr=False)
    """Iceberg's position deletes of the removed files only."""
    survivors: tuple[DataFile, ...] = ()
    """Files with the remaining rows of the removed ones. With deletion vectors: with the redacted rows."""
    partitions: frozenset[str | None] = frozenset()
    """Partitions of the files that the rows of `survivors` come from. None in it: an unknown one."""
    beside: frozenset[str] = frozenset()
    """Batches with erased rows that deletes by position had hidden already. An Undo may not show these batches again."""

    @property
    def written(self) -> tuple[DataFile | str, ...]:
        """New data files, and the paths of the files with deletion vectors: what to delete if nothing is committed."""
        return (*self.survivors, *(self.vectors.paths if self.vectors else ()))

    def change(self, added: tuple[DataFile, ...], head_id: int | None) -> Change:
        """The change of the table for this head, with new data files."""
        if self.vectors is not None and head_id is not None:
            return RowDelta(self.vectors, (*self.survivors, *added), head_id)
        if self.removed and head_id is not None:
            return Overwrite(self.removed, (*self.survivors, *added), head_id, self.dangling)
        return Append(added) if added else LedgerOnly()


class Eraser(Protocol):
    """Finds the rows of Erases by records, with the keys of replacements, and of Redacts."""

    def erase(self, requests: Sequence[RestatementRequest], base: Base, written: Replacements) -> Erased:
        """Write the deletes for this base, without committing them. Requests that cannot be searched are set aside.

        Raises:
            Exception: The deletes cannot be written, so nothing is committed.
        """

    def still_right(self, erased: Erased, base: Base) -> bool:
        """Whether the written deletes are complete for this base, and its data files are the same."""


Write: TypeAlias = Callable[[Sequence[RestatementRequest], Base], Replacements]
"""Writes the replacements of requests, without committing them."""


@dataclass(frozen=True)
class GroupCommit:
    """Carries out a group.

    Its replacements are written before the commit, in shared files. A request that is repeated, by any run, is found in the
    ledger.
    """

    context: Committer
    table: IcebergTable
    requests: Sequence[RestatementRequest]
    write: Write
    find: Find
    list_ids: ListIds
    find_waiting: FindWaiting
    eraser: Eraser
    masker: NativeMasker
    aside: Mapping[str, RequestResult] = field(default_factory=dict)
    """Results of requests that cannot be carried out, known before the start, by key."""
    listed_snapshot_id: int | None = None
    """The snapshot whose batches a list names, as in `RestatementSpec`."""

    def carry_out(self) -> Committed[GroupPlan]:
        """Plan, write the replacements, commit. Start again if other data must be written than was.

        Raises:
            InputError: The user has to change something.
            ConflictError: The table moved between plan and commit.
            UnknownCommitState: It is unknown whether the commit succeeded.
            TransientError: A dependency is temporarily unavailable.
            LedgerError: A ledger file is unusable.
            Exception: The errors of `write`, `find`, `list_ids` and `eraser`.
        """
        lost = 0
        aside = dict(self.aside)
        base = observe_base(self.context, self.table)
        in_files = self._in_files(base)
        # The loop reads the ledger after the buffer was listed: a batch that was promoted in between is in that ledger.
        absent, unlisted = look_for(base.ledger, self.requests, in_files, self.list_ids)
        aside |= unlisted
        waiting, unread = waiting_of(base.ledger, self.requests, self.find_waiting)
        aside |= unread
        deliveries = Deliveries(waiting=waiting)
        scope = PlanScope(self.context.run_id, datetime.now(UTC), base.field_id, in_files, absent, deliveries)
        while lost < WRITES:
            # Plan before any data is written, so that requests that are done or refused cost no write.
            base = observe_base(self.context, self.table, base)
            first = self._plan(base, scope, Replacements(), Erased(), aside)
            if first.delta.is_empty:
                return Committed(first, None)
            by_key = {r.key: r for r in self.requests}
            written = self.write([by_key[k] for k in first.adds], base) if first.adds else Replacements()
            erased = self._erase([by_key[k] for k in first.erases if k not in written.aside], base, written)
            aside |= {**written.aside, **erased.aside}
            aside_before = len(aside)
            done = self._commit(base, first, scope, written, erased, aside)
            if done.outcome is not None:
                return Committed(done.outcome, done.snapshot_id)
            log.info("the table changed, so the written rows are outdated; the run writes them again")
            # Not counted when a request was set aside: each request is set aside only once.
            lost += not (written.aside or erased.aside or len(aside) > aside_before)
        raise ConflictError(
            "ReplacementsMoved",
            f"{self.table.full_name}: in each of {WRITES} attempts, other writers carried out requests of "
            "this group or replaced the files with the rows to erase. Nothing was committed. The run tries "
            "again later.",
        )

    def _in_files(self, base: Base) -> frozenset[str]:
        """Ids that the ledger does not know and of which the table has rows, from before the ledger or by other writers.

        Only the report of unknown ids needs them: tombstones are set for all ids.
        """
        unknown = unknown_ids_of(base.ledger, self.requests)
        return frozenset(self.find(unknown, base)) if unknown and base.facts.head_id is not None else frozenset()

    def _erase(self, requests: Sequence[RestatementRequest], base: Base, written: Replacements) -> Erased:
        if not requests:
            return Erased()
        try:
            return self.eraser.erase(requests, base, written)
        except Exception:
            discard(self.table, written.files, Attempts())
            raise

    def _commit(
        self,
        base: Base,
        first: GroupPlan,
        scope: PlanScope,
        written: Replacements,
        erased: Erased,
        aside: dict[str, RequestResult],
    ) -> Committed[GroupPlan | None]:
        """Commit the requests on the newest ledger.

        The outcome is None if the newest table needs other rows than were written. Sets an Undo aside that cannot be carried out.

        Args:
            first: The plan for `base`, made before anything was written.
        """
        last: Masks | None = None

        def plan(newest: Base) -> Intent[GroupPlan | None] | NothingToCommit[GroupPlan | None]:
            # A plan without data is the same for the same table.
            same = newest is base and not first.adds and not first.erases
            planned = first if same else self._plan(newest, scope, written, erased, aside)
            if planned.delta.is_empty:
                return NothingToCommit(planned)
            if set(planned.adds) != written.rows.keys() or set(planned.erases) != erased.rows.keys():
                return NothingToCommit(None)
            if erased.rows and not self.eraser.still_right(erased, newest):
                return NothingToCommit(None)
            nonlocal last
            marked = with_purged(newest.ledger, planned.delta, newest.field_id, erased.beside)
            delta = newest.moved(marked, erased.partitions, erased.survivors)
            last = self._masks(newest, delta, planned, bool(erased.rows))
            head_id = newest.facts.head_id
            return last.intent(planned, head_id, written.files, erased.change(written.files, head_id))

        attempts = Attempts()
        unpublished = (*written.files, *erased.written)
        try:
            done = commit_on_ledger(self.context, self.table, plan, attempts, base)
        except CannotLift as e:
            by_key = {r.key: r for r in self.requests}
            aside[e.key] = set_aside(by_key[e.key], replace(e.error.verdict, transient=e.again))
            done = Committed(None, None)
        except (InputError, ConflictError):
            discard(self.table, (*unpublished, *self.masker.written), attempts)
            raise
        self.masker.discard_unused(last if done.snapshot_id is not None else None, attempts)
        if done.snapshot_id is None:
            discard(self.table, unpublished, attempts)
        return done

    def _masks(self, base: Base, delta: Delta, planned: GroupPlan, erases: bool) -> Masks:
        """The native deletes that the change needs.

        Raises:
            CannotLift: An Undo cannot show exactly the rows of its batches again.

        A commit that erases rows sets and lifts no masks.
        """
        by_key = {r.key: r for r in self.requests}
        lifts = lifts_of(base.ledger, [by_key[k] for k in planned.carried_out])
        return self.masker.masks(base, delta, lifts, mask=not erases)

    def _plan(
        self,
        base: Base,
        scope: PlanScope,
        written: Replacements,
        erased: Erased,
        aside: Mapping[str, RequestResult],
    ) -> GroupPlan:
        ids = {r.key: r.replacement.batch_id for r in self.requests if r.replacement}
        partitions = base.partitions_of(written.files, [ids[key] for key in written.rows]) if written.rows else {}
        rows = {key: replace(replacement, partitions=partitions[ids[key]]) for key, replacement in written.rows.items()}
        known = delivered(base.ledger.batches, references_of(self.requests))
        deliveries = replace(scope.deliveries, known=known)
        scope = replace(scope, now=datetime.now(UTC), field_id=base.field_id, deliveries=deliveries)
        findings = GroupFindings(rows, {**aside, **self._unlisted(base)}, erased.rows)
        return plan_group(base.ledger, self.requests, scope, findings, masking=self.masker.native is not None)

    def _unlisted(self, base: Base) -> dict[str, RequestResult]:
        """Results of requests that must wait for batches to be consolidated.

        They search for rows, and an Undo after the last listing of the buffer may have admitted batches, or an Approve has.
        """
        facts, searching = base.facts, [r for r in self.requests if r.searches]
        if not searching:
            return {}
        approved = next((b.id for b in _approved(base.ledger)), None)
        if approved is not None:
            text = (
                f"batch {approved!r} is approved and not promoted yet. The run waits for it. If the batch is not in the "
                "buffer any more, revert it."
            )
        elif self.listed_snapshot_id is not None and shown_again_since(
            facts.snapshots, facts.head_id, self.listed_snapshot_id
        ):
            text = (
                "an Undo may have allowed more batches to be promoted since the buffer was listed. The run waits "
                "for the next listing and for these batches."
            )
        else:
            return {}
        return {
            r.key: set_aside(r, Verdict("BufferBeingListed", f"Restatement {r.name}: {text}", transient=True))
            for r in searching
        }


def _approved(ledger: Ledger) -> Iterator[BatchEntry]:
    """The held batches that are approved. Reads the whole ledger if there are held batches, which is rare."""
    if ledger.states.get(BatchState.HELD):
        yield from (b for some in all_batches(ledger.batches) for b in some if b.is_approved)


def look_for(
    ledger: Ledger, requests: Sequence[RestatementRequest], in_files: Collection[str], list_ids: ListIds
) -> tuple[frozenset[str], dict[str, RequestResult]]:
    """Look for the batches that the ledger does not know, of requests that may not name unknown ones.

    The buffer is listed only if there are such batches.

    Args:
        in_files: The ids of which data files hold rows.

    Returns:
        The ids that are nowhere, and the results of requests for which the buffer cannot be listed, by key.
    """
    strict = [r for r in requests if r.unknown_batches is UnknownBatches.REFUSE]
    sought = frozenset(unknown_ids_of(ledger, strict)).difference(in_files)
    listed = list_ids() if sought else ()
    if not isinstance(listed, Verdict):
        return sought.difference(listed), {}
    return frozenset(), {r.key: set_aside(r, listed) for r in strict if not sought.isdisjoint(r.batch_ids)}


def waiting_of(
    ledger: Ledger, requests: Sequence[RestatementRequest], find_waiting: FindWaiting
) -> tuple[Mapping[str, Collection[str]], dict[str, RequestResult]]:
    """Look in the buffer for batches of the runs that requests name. The buffer is listed only if one names a run.

    Returns:
        The ids by reference, and the results of requests for which the buffer cannot be read, by key.
    """
    done = get_many(ledger.requests, [r.key for r in requests if r.reference])
    naming = [r for r in requests if r.reference and r.key not in done]
    found = find_waiting(ledger, references_of(naming)) if naming else {}
    if not isinstance(found, Verdict):
        return found, {}
    return {}, {r.key: set_aside(r, found) for r in naming}


def result_of(
    spec: RunSpec, requests: Sequence[RestatementRequest], done: Committed[GroupPlan], files_without_deletes: int = 0
) -> RestatementGroupResult:
    """The result of a run of a group. Reads the clock and logs; no other I/O.

    Raises:
        TransientError: No request can be carried out now, and none waits for a hold: another attempt would find the same hold.
    """
    results = tuple(_result_of_request(done, request) for request in requests)
    if results and all(r.again for r in results) and not any(r.reason == LEGAL_HOLD for r in results):
        raise TransientError(results[0].reason, f"{results[0].message} Nothing was changed.")
    refused = [r for r in results if not r.succeeded]
    for r in refused:
        log.info("%s is %s: %s", r.name, "postponed" if r.again else "refused", r.reason)
    outcome = RunOutcome.FAILED if refused else RunOutcome.ALREADY_COMMITTED
    if done.snapshot_id:
        outcome = RunOutcome.COMMITTED
    return RestatementGroupResult(
        run_id=spec.run_id,
        family=spec.family,
        attempt=spec.attempt,
        outcome=outcome,
        reason=refused[0].reason if refused and not done.snapshot_id else "",
        message=refused[0].message if refused and not done.snapshot_id else "",
        snapshot_id=done.snapshot_id,
        rows_added=sum(r.rows_added for r in results),
        requests=results,
        files_without_deletes=files_without_deletes,
        finished_time=datetime.now(UTC),
    )


def _result_of_request(done: Committed[GroupPlan], request: RestatementRequest) -> RequestResult:
    """The result of one request, with the snapshot of this commit if the commit carried it out."""
    result = done.outcome.results[request.key]
    if request.key not in done.outcome.carried_out:
        return result
    return result.model_copy(update={"snapshot_id": done.snapshot_id})
