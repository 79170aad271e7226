"""A table and its ledger as a simple Python value that follows the rules of the format. Pure, and without Lethe's code.

The rules leave some choices open, such as the files of a partial vacuum, or the ids whose tombstone is set again although they
have no rows. The model takes these from the real table and checks that the rules allow them.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field

from tests.model.acts import (
    Append,
    Change,
    Erase,
    EraseRows,
    Group,
    Job,
    Redact,
    Register,
    Replay,
    Request,
    Revert,
    Setup,
    Undo,
    Vacuum,
    request_name,
)
from tests.model.order import creates, in_turn, needs
from tests.model.rows import Rows, batch_of, of_keys, of_marks, redacted, without

PROMOTED, REVERTED, REPLACED, ERASED = "promoted", "reverted", "replaced", "erased"
WAITS = "WaitingForRestatement"


@dataclass(frozen=True)
class Outcome:
    """The expected result of a run of Lethe."""

    commits: bool  # the run creates a snapshot
    # By name, the reason of each request that is refused or waits.
    refusals: Mapping[str, str] = field(default_factory=dict)
    promoted: int = 0  # batches
    withheld: int = 0  # batches
    unknown: int = 0  # unknown batch ids of all requests
    waits: bool = False  # all requests wait, which the run reports as an error


@dataclass
class Model:
    """The expected state of a table."""

    setup: Setup = field(default_factory=Setup)
    states: dict[str, str] = field(default_factory=dict)  # of each batch in the ledger
    came: set[str] = field(default_factory=set)  # batches that were ever promoted
    # By batch, names of the requests that deleted or replaced it.
    held: dict[str, list[str]] = field(default_factory=dict)
    # Batches whose rows may be lost: their tombstone was applied or removed.
    purged: set[str] = field(default_factory=set)
    # By batch with an active tombstone, how many of its rows native deletes hid when they were written.
    masks: dict[str, int] = field(default_factory=dict)
    undone: set[str] = field(default_factory=set)  # names of requests
    requests: dict[str, Request] = field(default_factory=dict)  # that were carried out, by name, oldest first
    turns: dict[str, int] = field(default_factory=dict)  # by request, the number of the commit that carried it out
    # All rows in live data files, including those of deleted batches, but without `dead`.
    files: Rows = field(default_factory=Counter)
    dead: Rows = field(default_factory=Counter)  # rows deleted by key or record, which data files may still contain
    physical: Rows = field(default_factory=Counter)  # the rows in the data files of the head when last observed
    tombstones: frozenset[str] = frozenset()  # of the head's ledger
    verified: frozenset[str] = frozenset()  # names of erasures
    gone: frozenset[str] = frozenset()  # marks that no file may contain, because their erasure is verified
    asked: dict[str, int] = field(default_factory=dict)  # by request, the number of the act that carried it out
    turn: int = 0  # the number of the last commit

    @property
    def visible(self) -> Rows:
        """The rows that a read returns. A tombstone hides all rows of its batch, even rows written later, but never a null."""
        return without(self.files, self.tombstones)

    @property
    def taken_back(self) -> frozenset[str]:
        return frozenset(i for i, s in self.states.items() if s != PROMOTED)

    @property
    def erasing(self) -> bool:
        """Whether an erasure is not verified yet. A vacuum then expires all snapshots with its rows, whatever it should keep."""
        return any(
            isinstance(r, Erase | EraseRows | Redact) and n not in self.verified for n, r in self.requests.items()
        )

    @property
    def must_be_hidden(self) -> frozenset[str]:
        """Batches that must have a tombstone after a commit of Lethe: those not promoted that have rows, by any writer."""
        return self.taken_back & {row[0] for row in self.files if row[0] is not None}

    # --- runs -----------------------------------------------------------------------------------------------------

    def foresee(self, job: Job) -> Outcome:
        """The expected result of a run that starts now, if nothing else happens during the run."""
        match job:
            case Append(ids) | Register(ids):
                promoted = [i for i in ids if i not in self.states]
                # A run whose batches all have a state already does nothing.
                withheld = [i for i in ids if i in self.taken_back]
                return Outcome(bool(promoted), promoted=len(promoted), withheld=len(withheld))
            case Group(requests):
                return self._next_turn()._carry_out_each(requests)
            case Vacuum():
                return Outcome(bool(self.tombstones))
            case _:
                return self._next_turn()._carry_out_each((job,))

    def _next_turn(self) -> "Model":
        """A copy that is one commit ahead, so that new requests count as later than those carried out before."""
        ahead = deepcopy(self)
        ahead.turn += 1
        return ahead

    def carry_out(self, job: Job) -> None:
        """Apply a run that has committed. A vacuum does not change visible rows: see `vacuumed`."""
        self.turn += 1
        match job:
            case Append(ids) | Register(ids):
                for i in ids:
                    self._promote(i, self.setup.rows_of(i))
            case Group(requests):
                self._carry_out_each(requests)
            case Vacuum():
                pass
            case _:
                self._carry_out_each((job,))

    def _carry_out_each(self, requests: Collection[Request]) -> Outcome:
        """Apply requests one after the other, in one commit. A request that searches for rows cannot find the rows of this
        commit, nor marks that a Redact before it takes away, so it waits."""
        before, refusals, unknown, late = self.files.copy(), dict[str, str](), 0, set[tuple[str, str]]()
        adds, lets_in, redacts, carried_out, waiting = False, False, False, 0, 0
        for request in in_turn(requests):
            name = request_name(request)
            if name in self.requests:
                continue
            searches = isinstance(request, Change | EraseRows | Redact)
            waits = (searches and (adds or lets_in)) or (redacts and isinstance(request, EraseRows | Redact))
            refusal = WAITS if waits or late & needs(request) else self._refusal(request)
            if refusal is not None:
                refusals[name] = refusal
                waiting += refusal == WAITS
                if refusal == WAITS:
                    late |= creates(request)
                continue
            carried_out += 1
            unknown += self._unknown(request, before)
            redacts |= isinstance(request, Redact)
            lets_in |= isinstance(request, Undo) and not self.came.issuperset(_ids(request.of))
            if isinstance(request, Replay | Change) and request.by not in self.states:
                adds = True
                if self.setup.native:
                    late |= creates(request)
            self._carry_out_one(request, before)
            self.requests[name], self.turns[name] = request, self.turn
        everything = waiting == len({request_name(r) for r in requests}) > 0
        return Outcome(carried_out > 0, refusals, unknown=unknown, waits=everything)

    def _carry_out_one(self, request: Request, before: Rows) -> None:
        match request:
            case Revert(ids):
                self._take_back(request, ids, REVERTED)
            case Erase(ids):
                self._take_back(request, ids, ERASED)
            case EraseRows():
                self._take_out(rows_searched(request, before))
            case Redact():
                for row, n in self._take_out(rows_searched(request, before)).items():
                    self.files[redacted(row)] += n
            case Replay(ids, by):
                self._take_back(request, ids, REPLACED)
                self._promote(by, self.setup.added_by(request))
            case Change(_, by):
                if by not in self.states:
                    self._take_out(rows_searched(request, before))
                    self._promote(by, self.setup.added_by(request))
            case Undo(of):
                self._show_again(of)

    def _promote(self, batch_id: str, rows: Rows) -> None:
        """A batch is promoted once. A batch that was deleted or replaced before is never promoted."""
        if batch_id not in self.states:
            self.states[batch_id] = PROMOTED
            self.came.add(batch_id)
            self.files = self.files + rows

    def _take_back(self, request: Request, ids: Collection[str], state: str) -> None:
        """Delete or replace batches, also unknown ones, which are then not promoted later. REPLACED stays, and REVERTED does not
        overwrite ERASED."""
        for i in ids:
            self.held.setdefault(i, []).append(request_name(request))
            now = self.states.get(i)
            # The tombstone of an earlier request was removed.
            if now not in (None, PROMOTED) and i not in self.tombstones:
                self.purged.add(i)
            self.states[i] = now if now == REPLACED or (now == ERASED and state == REVERTED) else state
        self.tombstones |= frozenset(ids)

    def _take_out(self, rows: Rows) -> Rows:
        """Delete single rows, whether or not a tombstone hides them. Returns: those that were there."""
        taken = self.files & rows
        self.files, self.dead = self.files - taken, self.dead + taken
        return taken

    def _show_again(self, request: Request) -> None:
        """Apply an Undo: batches that were promoted are promoted again; the others may be promoted later."""
        assert isinstance(request, Revert)
        self.undone.add(request_name(request))
        self.tombstones -= frozenset(request.ids)
        for i in request.ids:
            del self.held[i]
            self.masks.pop(i, None)
            if i in self.came:
                self.states[i] = PROMOTED
            else:
                del self.states[i]

    def _refusal(self, request: Request) -> str | None:
        match request:
            case Replay(ids, by) if by in ids:
                return "ReplacementIsReplaced"
            case Replay(ids, by) if any(self.states.get(i) == REPLACED for i in ids):
                return "AlreadyReplaced"
            case Replay(_, by) | Change(_, by) if self.states.get(by) == PROMOTED:
                return "ReplacementAlreadyPromoted"
            case Undo(of):
                return self._why_not_undone(of)
            case _:
                return None

    def _why_not_undone(self, request: Request) -> str | None:
        """Why a request cannot be undone; None: it can. Only a whole Revert can, if all its rows exist and no other request
        deletes its batches."""
        name = request_name(request)
        if name not in self.requests:
            return "UnknownRestatement"
        if name in self.undone or not isinstance(request, Revert):
            return "NotUndoable"
        for i in request.ids:
            if self.states[i] == REPLACED:
                return "AlreadyReplaced"
            if i in self.purged or i not in self.tombstones:
                return "AlreadyPurged"
            if self.held[i] != [name]:
                return "HeldByAnother"
        searched = (n for n, r in self.requests.items() if isinstance(r, EraseRows | Redact | Change))
        if not self.came.issuperset(request.ids) and any(
            self.turns[n] >= self.turns[name] for n in searched if self._owes(n)
        ):
            return "ErasedSince"
        if any(i in self.masks and self.masks[i] != self._there(i) for i in request.ids):
            return "AlreadyPurged"
        return None

    def _owes(self, name: str) -> bool:
        """Whether a request erases rows by another column than the batch column. A Change has no deadline in this test."""
        return isinstance(self.requests[name], EraseRows | Redact)

    def _there(self, batch_id: str) -> int:
        return sum(n for row, n in self.physical.items() if row[0] == batch_id)

    def _unknown(self, request: Request, before: Rows) -> int:
        present = {row[0] for row in before}
        return sum(i not in self.states and i not in present for i in _ids(request))

    # --- what the rules leave open --------------------------------------------------------------------------------

    def observed(self, physical: Rows) -> None:
        """Check the rows in the head's data files: all rows of the model, and besides only dead rows. With native deletes, rows
        of deleted batches may be missing."""
        missing, more = self.files - physical, physical - self.files - self.dead
        assert not more, f"the data files hold rows that nobody wrote: {dict(more)}"
        lost = without(missing, self.taken_back if self.setup.native else ())
        assert not lost, f"the data files do not hold {dict(lost)}"
        self.files, self.physical = self.files & physical, physical

    def committed(self, tombstones: frozenset[str]) -> None:
        """Check the tombstones after a commit of Lethe without a purge: the previous ones, and maybe some that were set again."""
        assert self.tombstones | self.must_be_hidden <= tombstones, "a deleted batch has no tombstone"
        assert tombstones <= self.taken_back, "a tombstone of a batch that nobody took back"
        self.tombstones = tombstones

    def marked(self, purged: Collection[str], masks: Mapping[str, int]) -> None:
        """Take over what the tombstones of the last commit record about their rows. Only used with native deletes."""
        if self.setup.native:
            self.purged, self.masks = set(purged), dict(masks)

    def vacuumed(self, whole: bool, physical: Rows, tombstones: frozenset[str], applied: frozenset[str]) -> None:
        """Check and apply a commit of a vacuum.

        Args:
            whole: The vacuum had no limits, and nothing else happened meanwhile.
            physical: The rows in the data files afterwards.
            tombstones: Those that remain.
            applied: Those that the vacuum reports as applied.
        """
        files, before = self.files & physical, self.tombstones
        purged = self.files - files
        assert not physical - self.files - self.dead, "a vacuum added rows"
        assert without(purged, before) == Counter(), "a vacuum removed rows that were not deleted"
        assert {row[0] for row in purged} <= applied <= before, "the vacuum's own tombstone file is wrong"
        self.files, self.physical = files, physical
        self.purged |= applied | (before - tombstones)
        if whole:
            assert files == without(files, before), "a full vacuum left deleted rows"
            assert not tombstones & before, "a full vacuum left tombstones"
        assert self.must_be_hidden <= tombstones <= self.taken_back, "a vacuum ended a tombstone whose rows are there"
        self.tombstones = tombstones

    # --- strangers ------------------------------------------------------------------------------------------------

    def appended(self, rows: Rows) -> None:
        """Rows of another writer are visible, unless their batch has an active tombstone. A tombstone set later hides them."""
        self.files = self.files + rows

    def deleted(self, rows: Rows) -> None:
        """Apply a delete of another writer, which does not depend on tombstones."""
        self._take_out(rows)


def rows_searched(request: Request, rows: Rows) -> Rows:
    """The rows that a request deletes because of what they contain, rather than because of their batch."""
    match request:
        case EraseRows(marks) | Redact(marks):
            return of_marks(rows, marks)
        case Change(changes):
            return of_keys(rows, {v for _, v in changes})
        case _:
            return Rows()


def erased_marks(request: Request, written: Iterable[str]) -> frozenset[str]:
    """The marks, of those written so far, that an erasure removes from all files. None if the request is no erasure."""
    match request:
        case Erase(ids):
            return frozenset(m for m in written if batch_of(m) in ids)
        case EraseRows(marks) | Redact(marks):
            return frozenset(marks).intersection(written)
        case _:
            return frozenset()


def _ids(request: Request) -> tuple[str, ...]:
    return request.ids if isinstance(request, Revert | Erase | Replay) else ()
