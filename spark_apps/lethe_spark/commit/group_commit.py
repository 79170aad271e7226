"""The requests of a group of Restatements carried out in one commit.

I/O; what the requests mean on a ledger is decided in `lethe.restatement.group`. Who calls says how new data is written and
how rows that no ledger knows are found: with Spark, or not at all.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, Protocol, TypeAlias

import pyarrow as pa
from lethe.base.errors import ConflictError, InputError, TransientError
from lethe.contract.result import RequestResult, RestatementGroupResult, RunOutcome
from lethe.contract.run import RestatementRequest, RunSpec
from lethe.files.native_deletes import LEDGER, with_purged
from lethe.ledger.ledger import Delta, Ledger
from lethe.ledger.lineage import shown_again_since
from lethe.ledger.parts import get_many
from lethe.restatement.group import GroupPlan, plan_group, set_aside
from lethe.restatement.plan import ErasedRows, ReplacementRows
from lethe.restatement.record import recalled

from lethe_spark.commit.ledger_commit import Attempts, Committed, Intent, NothingToCommit, commit_on_ledger
from lethe_spark.commit.native_deletes import CannotLift, Lifts, Masker, Masks
from lethe_spark.commit.table_state import Base, observe_base
from lethe_spark.commit.unpublished import discard
from lethe_spark.jvm.commit import Append, Change, LedgerOnly, Overwrite, RowDelta
from lethe_spark.jvm.data_files import DataFile
from lethe_spark.jvm.deletes import NativeDeletes
from lethe_spark.jvm.table import IcebergTable
from lethe_spark.run.context import Committer

log = logging.getLogger(__name__)
# Others may carry out a request of the group, or use the id of a replacement, each time that all are written.
WRITES: Final = 4


@dataclass(frozen=True)
class Replacements:
    """Replacements in files that are not yet part of the table, which several may share.

    Args:
        rows: Of each, by the key of its request.
        aside: Results of the requests whose replacement cannot be used, or not now, by their keys.
        keys: Of those that are change data, by the key of the request: older rows with one of these go.
    """

    files: tuple[DataFile, ...] = ()
    rows: Mapping[str, ReplacementRows] = field(default_factory=dict)
    aside: Mapping[str, RequestResult] = field(default_factory=dict)
    keys: Mapping[str, pa.Table] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Erased:
    """Rows that Erases by records, and replacements with keys, take out of data files: found and written out of them, but not
    committed.

    Args:
        rows: Of each, by the key of its request.
        aside: Results of the requests whose rows cannot be named, or not now, by their keys.
        taken_out: Of each data file that loses rows, by its path, the names of the native deletes that it had then.
        vectors: By which they are taken out; None: by writing files anew.
        beside: Batches whose rows deletion vectors hid already, of which some are erased: no Undo may show them again.
        removed, survivors: Files that go, and those with what is left of their rows.
    """

    rows: Mapping[str, ErasedRows] = field(default_factory=dict)
    aside: Mapping[str, RequestResult] = field(default_factory=dict)
    taken_out: Mapping[str, frozenset[str]] = field(default_factory=dict)
    vectors: NativeDeletes | None = None
    removed: tuple[DataFile, ...] = ()
    survivors: tuple[DataFile, ...] = ()
    partitions: frozenset[str | None] = frozenset()  # that the removed files lie in
    beside: frozenset[str] = frozenset()

    @property
    def written(self) -> tuple[DataFile | str, ...]:
        return (*self.survivors, *(self.vectors.paths if self.vectors else ()))

    def change(self, added: tuple[DataFile, ...], head_id: int | None) -> Change:
        """What to commit on this head, with new data files."""
        if self.vectors is not None and head_id is not None:
            return RowDelta(self.vectors, added, head_id)
        if self.removed and head_id is not None:
            return Overwrite(self.removed, (*self.survivors, *added), head_id)
        return Append(added) if added else LedgerOnly()


class Eraser(Protocol):
    """Who finds the rows of Erases by records, and those that the keys of replacements mean."""

    def erase(self, requests: Sequence[RestatementRequest], base: Base, written: Replacements) -> Erased: ...

    def still_right(self, erased: Erased, base: Base) -> bool:
        """Whether what was written is all that has to go on this base, and of these very files."""


# The replacements of these requests, written but not committed.
Write: TypeAlias = Callable[[Sequence[RestatementRequest], Base], Replacements]
# Those of the ids, unknown to the ledger, of which the base's data files hold rows.
Find: TypeAlias = Callable[[Sequence[str], Base], Collection[str]]


@dataclass(frozen=True)
class GroupCommit:
    """Every replacement of the group is written before the commit, in files that they share: who asks for a request again, by
    whichever run, finds it in the ledger."""

    context: Committer
    table: IcebergTable
    requests: Sequence[RestatementRequest]
    write: Write
    find: Find
    eraser: Eraser
    masker: Masker
    aside: Mapping[str, RequestResult] = field(default_factory=dict)  # as `Replacements.aside`, known before
    listed_snapshot_id: int | None = None  # as of `RestatementSpec`

    def carry_out(self) -> Committed[GroupPlan]:
        """Plan, write the replacements, commit; again from the start if something else has to be written than was.

        Raises: InputError, ConflictError, UnknownCommitState, TransientError, LedgerError; what `write`, `find` and `eraser`
            raise.
        """
        lost = 0
        aside = dict(self.aside)
        base = observe_base(self.context, self.table)
        in_files = self._in_files(base)
        while lost < WRITES:
            # Asked before any data is written: what is done or refused must not cost a write.
            base = observe_base(self.context, self.table, base)
            first = self._plan(base, in_files, Replacements(), Erased(), aside)
            if first.delta.is_empty:
                return Committed(first, None)
            by_key = {r.key: r for r in self.requests}
            written = self.write([by_key[k] for k in first.adds], base) if first.adds else Replacements()
            erased = self._erase([by_key[k] for k in first.erases if k not in written.aside], base, written)
            aside |= {**written.aside, **erased.aside}
            known = len(aside)
            done = self._commit(base, in_files, written, erased, aside)
            if done.outcome is not None:
                return Committed(done.outcome, done.snapshot_id)
            log.info("other rows have to come or go than were written; they are written anew")
            # Else one that cannot be used has left its place to another, which happens once to each.
            lost += not (written.aside or erased.aside or len(aside) > known)
        raise ConflictError(
            "ReplacementsMoved",
            f"{self.table.full_name}: others kept carrying out requests of this group, or moving the rows that it erases; it is "
            "tried later. Nothing was committed.",
        )

    def _in_files(self, base: Base) -> frozenset[str]:
        """Ids that the ledger never heard of, yet of which there are rows: from before the ledger, or by other writers.

        Only for the report of unknown ids; their tombstones are set either way.
        """
        strangers = strangers_of(base.ledger, self.requests)
        return frozenset(self.find(strangers, base)) if strangers and base.facts.head_id is not None else frozenset()

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
        in_files: Collection[str],
        written: Replacements,
        erased: Erased,
        aside: dict[str, RequestResult],
    ) -> Committed[GroupPlan | None]:
        """The outcome is None if other rows would have to come or go than are written. An Undo that cannot be carried out is
        set aside."""
        last: Masks | None = None

        def plan(newest: Base) -> Intent[GroupPlan | None] | NothingToCommit[GroupPlan | None]:
            planned = self._plan(newest, in_files, written, erased, aside)
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
            return Intent(
                last.delta,
                last.change(written.files, head_id) or erased.change(written.files, head_id),
                planned,
                last.applied,
                deletes=last.mode,
                masks_everything=last.everything,
            )

        attempts = Attempts()
        in_vain = (*written.files, *erased.written)
        try:
            done = commit_on_ledger(self.context, self.table, plan, attempts, base)
        except CannotLift as e:
            by_key = {r.key: r for r in self.requests}
            aside[e.key] = set_aside(by_key[e.key], e.error, e.again)
            done = Committed(None, None)
        except (InputError, ConflictError):
            discard(self.table, (*in_vain, *self.masker.written), attempts)
            raise
        used = last.deletes.paths if last is not None and done.snapshot_id is not None else ()
        discard(self.table, [p for p in self.masker.written if p not in used], attempts)
        self.masker.written.clear()
        if done.snapshot_id is None:
            discard(self.table, in_vain, attempts)
        return done

    def _masks(self, base: Base, delta: Delta, planned: GroupPlan, erases: bool) -> Masks:
        """What the change needs of native deletes. Raises: CannotLift.

        Of a data file that an Erase takes rows out of in the same commit, no mask is set or lifted.
        """
        by_key = {r.key: r for r in self.requests}
        undos = [by_key[k] for k in planned.carried_out if by_key[k].undoes]
        known = get_many(base.ledger.requests, [r.undoes for r in undos])
        lifts: Lifts = {r.key: (r, recalled(known[r.undoes]).batch_ids) for r in undos if r.undoes in known}
        return self.masker.masks(base, delta, lifts, mask=not erases)

    def _plan(
        self,
        base: Base,
        in_files: Collection[str],
        written: Replacements,
        erased: Erased,
        aside: Mapping[str, RequestResult],
    ) -> GroupPlan:
        ids = {r.key: r.replacement.batch_id for r in self.requests if r.replacement}
        partitions = base.partitions_of(written.files, [ids[key] for key in written.rows]) if written.rows else {}
        rows = {key: replace(of, partitions=partitions[ids[key]]) for key, of in written.rows.items()}
        now = datetime.now(UTC)
        run, field_id = self.context.run_id, base.field_id
        masking = self.masker.mode != LEDGER
        aside = {**aside, **self._unlisted(base)}
        return plan_group(base.ledger, self.requests, in_files, field_id, run, now, rows, aside, erased.rows, masking)

    def _unlisted(self, base: Base) -> dict[str, RequestResult]:
        """Requests that search for rows, if since the buffer was looked at an Undo may have let batches in: these have to come
        first."""
        facts, searching = base.facts, [r for r in self.requests if r.searches]
        if self.listed_snapshot_id is None or not searching:
            return {}
        if not shown_again_since(facts.snapshots, facts.head_id, self.listed_snapshot_id):
            return {}
        text = "an Undo may have let batches in since the buffer was listed; it goes after the next listing, and after these."
        error = "BufferBeingListed"
        return {r.key: set_aside(r, InputError(error, f"Restatement {r.name}: {text}"), again=True) for r in searching}


def strangers_of(ledger: Ledger, requests: Sequence[RestatementRequest]) -> list[str]:
    """The batch ids of requests that are yet to be carried out, as far as the ledger does not know them."""
    done = get_many(ledger.requests, [r.key for r in requests])
    wanted = dict.fromkeys(i for r in requests if r.key not in done for i in r.batch_ids)
    known = get_many(ledger.batches, wanted)
    return [i for i in wanted if i not in known]


def result_of(
    spec: RunSpec, requests: Sequence[RestatementRequest], done: Committed[GroupPlan]
) -> RestatementGroupResult:
    """What a run tells of its group. Pure but for the time and the log.

    Raises: TransientError, if none of the requests can be carried out just now.
    """
    results = tuple(_told(done, request) for request in requests)
    if results and all(r.again for r in results):
        raise TransientError(results[0].reason, f"{results[0].message} Nothing was changed.")
    refused = [r for r in results if not r.succeeded]
    for r in refused:
        log.info("%s is %s: %s", r.name, "kept out for now" if r.again else "refused", r.reason)
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
        finished_time=datetime.now(UTC),
    )


def _told(done: Committed[GroupPlan], request: RestatementRequest) -> RequestResult:
    """A request's result, with the snapshot of this commit if that carried it out."""
    result = done.outcome.results[request.key]
    if request.key not in done.outcome.carried_out:
        return result
    return result.model_copy(update={"snapshot_id": done.snapshot_id})
