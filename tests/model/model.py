"""A table and its ledger as a plain Python value: the rules of the format in the simplest words there are.

Pure, and nothing of Lethe's code in it. What the rules leave open (which files a partial vacuum takes, for which
harmless ids a tombstone is set again) is taken from the real table, within the limits that the rules set.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, field

from tests.model.acts import (
    Append,
    Change,
    Erase,
    EraseRows,
    Group,
    Job,
    Register,
    Replay,
    Request,
    Revert,
    Setup,
    Undo,
    Vacuum,
    request_name,
)
from tests.model.order import brings, in_turn, needs
from tests.model.rows import REPLACEMENT_ROWS, Rows, changed_rows, of_keys, of_marks, rows_of, without

PROMOTED, REVERTED, REPLACED, ERASED = "promoted", "reverted", "replaced", "erased"
WAITS = "WaitingForRestatement"


@dataclass(frozen=True)
class Outcome:
    """What a run of ours must come to. `commits`: whether it makes a snapshot; `refusals`: the reason of each request that is
    refused or waits, by its name; `waits`: whether all of them wait, which the run reports as an error."""

    commits: bool
    refusals: Mapping[str, str] = field(default_factory=dict)
    promoted: int = 0
    withheld: int = 0
    unknown: int = 0  # of all requests
    waits: bool = False


@dataclass
class Model:
    """What a table is after each act.

    Args:
        states: What became of each batch that the table remembers.
        came: Batches that were promoted at some time.
        held: The requests that took a batch back.
        purged: Batches of which an Undo may not bring back all rows: their tombstone was applied, or ended.
        masks: How many rows of a batch native deletes hid when they were written, of active tombstones.
        requests: Carried out, by name, the oldest first. `undone`: names of those taken back.
        turns: The number of the commit that carried a request out; `asked`: that of the act.
        files: All rows in live data files, deleted ones too, but for those taken out one by one.
        dead: Rows taken out one by one, which data files may still hold.
        physical: What the data files of the head hold, as it was seen last.
        tombstones: Of the head's ledger.
        verified: Names of the erasures that are verified; `gone`: marks that no file may hold since.
    """

    setup: Setup = field(default_factory=Setup)
    states: dict[str, str] = field(default_factory=dict)
    came: set[str] = field(default_factory=set)
    held: dict[str, list[str]] = field(default_factory=dict)
    purged: set[str] = field(default_factory=set)
    masks: dict[str, int] = field(default_factory=dict)
    undone: set[str] = field(default_factory=set)
    requests: dict[str, Request] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)
    files: Rows = field(default_factory=Counter)
    dead: Rows = field(default_factory=Counter)
    physical: Rows = field(default_factory=Counter)
    tombstones: frozenset[str] = frozenset()
    verified: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()
    asked: dict[str, int] = field(default_factory=dict)
    turn: int = 0

    @property
    def visible(self) -> Rows:
        """Set semantics: a tombstone hides every row of its batch, whenever it was written. A null is never hidden."""
        return without(self.files, self.tombstones)

    @property
    def taken_back(self) -> frozenset[str]:
        return frozenset(i for i, s in self.states.items() if s != PROMOTED)

    @property
    def erasing(self) -> bool:
        """Whether an erasure is yet to be verified: its snapshots expire whatever a vacuum is to keep."""
        return any(isinstance(r, Erase | EraseRows) and n not in self.verified for n, r in self.requests.items())

    @property
    def must_be_hidden(self) -> frozenset[str]:
        """After a commit of ours: batches taken back of which there are rows, whoever wrote them and when."""
        return self.taken_back & {row[0] for row in self.files if row[0] is not None}

    # --- runs -----------------------------------------------------------------------------------------------------

    def foresee(self, job: Job) -> Outcome:
        """What a run has to come to if it is carried out now, and nothing comes between."""
        match job:
            case Append(ids) | Register(ids):
                promoted = [i for i in ids if i not in self.states]
                # Whoever is told of batches that are all decided already has nothing to do.
                withheld = [i for i in ids if i in self.taken_back]
                return Outcome(bool(promoted), promoted=len(promoted), withheld=len(withheld))
            case Group(requests):
                return self._next_turn()._carry_out_each(requests)
            case Vacuum():
                return Outcome(bool(self.tombstones))
            case _:
                return self._next_turn()._carry_out_each((job,))

    def _next_turn(self) -> "Model":
        """A copy that is one commit ahead: its requests come after those that were carried out before."""
        ahead = deepcopy(self)
        ahead.turn += 1
        return ahead

    def carry_out(self, job: Job) -> None:
        """The run has landed: what it came to. A vacuum changes no row that anybody sees: see `vacuumed`."""
        self.turn += 1
        match job:
            case Append(ids) | Register(ids):
                for i in ids:
                    self._promote(i, rows_of(i))
            case Group(requests):
                self._carry_out_each(requests)
            case Vacuum():
                pass
            case _:
                self._carry_out_each((job,))

    def _carry_out_each(self, requests: Collection[Request]) -> Outcome:
        """One after the other, in one commit: a request that searches for rows does not see those that come with it, and waits
        for them."""
        before, refusals, unknown, late = self.files.copy(), dict[str, str](), 0, set[tuple[str, str]]()
        adds, lets_in, carried_out, waiting = False, False, 0, 0
        for request in in_turn(requests):
            name = request_name(request)
            if name in self.requests:
                continue
            searches = isinstance(request, Change | EraseRows)
            refusal = WAITS if late & needs(request) or (searches and (adds or lets_in)) else self._refusal(request)
            if refusal is not None:
                refusals[name] = refusal
                waiting += refusal == WAITS
                if refusal == WAITS:
                    late |= brings(request)
                continue
            carried_out += 1
            unknown += self._unknown(request, before)
            lets_in |= isinstance(request, Undo) and not self.came.issuperset(_ids(request.of))
            if isinstance(request, Replay | Change) and request.by not in self.states:
                adds = True
                if self.setup.native:
                    late |= brings(request)
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
            case EraseRows(marks):
                self._take_out(of_marks(before, marks))
            case Replay(ids, by):
                self._take_back(request, ids, REPLACED)
                self._promote(by, rows_of(by, REPLACEMENT_ROWS))
            case Change(changes, by):
                if by not in self.states:
                    self._take_out(of_keys(before, {v for _, v in changes}))
                    self._promote(by, changed_rows(by, (v for op, v in changes if op == "U")))
            case Undo(of):
                self._show_again(of)

    def _promote(self, batch_id: str, rows: Rows) -> None:
        """A batch enters the table once; one that was taken back before it came never does."""
        if batch_id not in self.states:
            self.states[batch_id] = PROMOTED
            self.came.add(batch_id)
            self.files = self.files + rows

    def _take_back(self, request: Request, ids: Collection[str], state: str) -> None:
        """Unknown ids too: they are not promoted later. Replaced stays replaced, and a revert leaves erased what was erased."""
        for i in ids:
            self.held.setdefault(i, []).append(request_name(request))
            now = self.states.get(i)
            if now not in (None, PROMOTED) and i not in self.tombstones:  # that of an earlier request has ended
                self.purged.add(i)
            self.states[i] = now if now == REPLACED or (now == ERASED and state == REVERTED) else state
        self.tombstones |= frozenset(ids)

    def _take_out(self, rows: Rows) -> None:
        """One by one, whether or not a tombstone hides them."""
        taken = self.files & rows
        self.files, self.dead = self.files - taken, self.dead + taken

    def _show_again(self, request: Request) -> None:
        """Batches that were in the table are in it again; the others may come."""
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
        """A revert is taken back whole, while all rows are there and nobody else wants them gone."""
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
        searched = (n for n, r in self.requests.items() if isinstance(r, EraseRows | Change))
        if not self.came.issuperset(request.ids) and any(
            self.turns[n] >= self.turns[name] for n in searched if self._owes(n)
        ):
            return "ErasedSince"
        if any(i in self.masks and self.masks[i] != self._there(i) for i in request.ids):
            return "AlreadyPurged"
        return None

    def _owes(self, name: str) -> bool:
        """Whether a request left an erasure by another column than that of the batches: a Change has no deadline here."""
        return isinstance(self.requests[name], EraseRows)

    def _there(self, batch_id: str) -> int:
        return sum(n for row, n in self.physical.items() if row[0] == batch_id)

    def _unknown(self, request: Request, before: Rows) -> int:
        present = {row[0] for row in before}
        return sum(i not in self.states and i not in present for i in _ids(request))

    # --- what the rules leave open --------------------------------------------------------------------------------

    def observed(self, physical: Rows) -> None:
        """What the head's data files hold: every row that there is, and none but those taken out one by one besides. Where native
        deletes hide what is taken back, such rows may have left."""
        missing, more = self.files - physical, physical - self.files - self.dead
        assert not more, f"the data files hold rows that nobody wrote: {dict(more)}"
        lost = without(missing, self.taken_back if self.setup.native else ())
        assert not lost, f"the data files do not hold {dict(lost)}"
        self.files, self.physical = self.files & physical, physical

    def committed(self, tombstones: frozenset[str]) -> None:
        """A commit of ours that purges nothing left these tombstones: those there were, and maybe some set again."""
        assert self.tombstones | self.must_be_hidden <= tombstones, "a deleted batch has no tombstone"
        assert tombstones <= self.taken_back, "a tombstone of a batch that nobody took back"
        self.tombstones = tombstones

    def marked(self, purged: Collection[str], masks: Mapping[str, int]) -> None:
        """What the tombstones of the last commit say of their rows, which counts where native deletes hide them."""
        if self.setup.native:
            self.purged, self.masks = set(purged), dict(masks)

    def vacuumed(self, whole: bool, physical: Rows, tombstones: frozenset[str], applied: frozenset[str]) -> None:
        """A vacuum left these rows in files and these tombstones, and names the tombstones that it applied.

        Args:
            whole: It had no limits, and nothing came between.
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
        """Rows of another writer are seen, unless a tombstone is active; one set again later hides them later."""
        self.files = self.files + rows

    def deleted(self, rows: Rows) -> None:
        """By another writer's own delete, tombstones or not."""
        self._take_out(rows)


def _ids(request: Request) -> tuple[str, ...]:
    return request.ids if isinstance(request, Revert | Erase | Replay) else ()
