"""A table and its ledger as a plain Python value: the rules of the format in the simplest words there are.

Pure, and nothing of Lethe's code in it. What the rules leave open (which files a partial vacuum takes, for which
harmless ids a tombstone is set again) is taken from the real table, within the limits that the rules set.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, field

from tests.model.acts import Append, Group, Job, Replay, Request, Revert, Undo, Vacuum, request_name

Row = tuple[str | None, int, int]  # batch id, v, day
Rows = Counter[Row]
PROMOTED, REVERTED, REPLACED = "promoted", "reverted", "replaced"


def rows_of(batch_id: str, rows: int = 2) -> Rows:
    """The rows that a batch's producer wrote, on days 1 and 2."""
    return Counter((batch_id, sum(batch_id.encode()) * 1000 + n, 1 + n % 2) for n in range(rows))


REPLACEMENT_ROWS = 3


@dataclass(frozen=True)
class Outcome:
    """What a run of ours must come to. `commits`: whether it makes a snapshot; `refusals`: the reason of each request that is
    refused, by its name."""

    commits: bool
    refusals: Mapping[str, str] = field(default_factory=dict)
    promoted: int = 0
    withheld: int = 0
    unknown: int = 0  # of all requests


@dataclass
class Model:
    """What a table is after each act.

    Args:
        states: What became of each batch that the table remembers.
        came: Batches that were promoted at some time.
        held: The requests that took a batch back.
        purged: Batches of whose rows a vacuum may have removed some: their tombstone was applied, or ended.
        requests: Carried out, by name. `undone`: names of those taken back.
        files: All rows in live data files, deleted ones too.
        tombstones: Of the head's ledger.
        shown: The rows of each snapshot, which never change again.
    """

    states: dict[str, str] = field(default_factory=dict)
    came: set[str] = field(default_factory=set)
    held: dict[str, list[str]] = field(default_factory=dict)
    purged: set[str] = field(default_factory=set)
    undone: set[str] = field(default_factory=set)
    requests: dict[str, Request] = field(default_factory=dict)
    files: Rows = field(default_factory=Counter)
    tombstones: frozenset[str] = frozenset()
    shown: dict[int, Rows] = field(default_factory=dict)

    @property
    def visible(self) -> Rows:
        """Set semantics: a tombstone hides every row of its batch, whenever it was written. A null is never hidden."""
        return without(self.files, self.tombstones)

    @property
    def taken_back(self) -> frozenset[str]:
        return frozenset(i for i, s in self.states.items() if s != PROMOTED)

    @property
    def must_be_hidden(self) -> frozenset[str]:
        """After a commit of ours: batches taken back of which there are rows, whoever wrote them and when."""
        return self.taken_back & {row[0] for row in self.files if row[0] is not None}

    # --- runs -----------------------------------------------------------------------------------------------------

    def foresee(self, job: Job) -> Outcome:
        """What a run has to come to if it is carried out now, and nothing comes between."""
        match job:
            case Append(ids):
                promoted = [i for i in ids if i not in self.states]
                # Whoever is told of batches that are all decided already has nothing to do.
                withheld = [i for i in ids if i in self.taken_back]
                return Outcome(bool(promoted), promoted=len(promoted), withheld=len(withheld))
            case Revert() | Replay() | Undo():
                if request_name(job) in self.requests:
                    return Outcome(commits=False)
                refusal = self._refusal(job)
                refusals = {request_name(job): refusal} if refusal is not None else {}
                return Outcome(refusal is None, refusals, unknown=0 if refusals else self._unknown(job))
            case Group(requests):
                return self._foresee_each(requests)
            case Vacuum():
                return Outcome(bool(self.tombstones))

    def _foresee_each(self, requests: Collection[Request]) -> Outcome:
        """One after the other, on a copy."""
        after, outcomes = deepcopy(self), []
        for request in in_turn(requests):
            outcomes.append(after.foresee(request))
            after.carry_out(request)
        refusals = {name: why for o in outcomes for name, why in o.refusals.items()}
        return Outcome(any(o.commits for o in outcomes), refusals, unknown=sum(o.unknown for o in outcomes))

    def carry_out(self, job: Job) -> None:
        """The run has landed: what it came to. A vacuum changes no row that anybody sees: see `vacuumed`."""
        if not self.foresee(job).commits:
            return
        match job:
            case Append(ids):
                for i in ids:
                    self._promote(i, rows_of(i))
            case Revert(ids):
                self._take_back(job, ids, REVERTED)
                self.requests[request_name(job)] = job
            case Replay(ids, by):
                self._take_back(job, ids, REPLACED)
                self._promote(by, rows_of(by, REPLACEMENT_ROWS))
                self.requests[request_name(job)] = job
            case Undo(of):
                self._show_again(of)
                self.requests[request_name(job)] = job
            case Group(requests):
                for request in in_turn(requests):
                    self.carry_out(request)
            case Vacuum():
                pass

    def _promote(self, batch_id: str, rows: Rows) -> None:
        """A batch enters the table once; one that was taken back before it came never does."""
        if batch_id not in self.states:
            self.states[batch_id] = PROMOTED
            self.came.add(batch_id)
            self.files = self.files + rows

    def _take_back(self, request: Request, ids: Collection[str], state: str) -> None:
        """Unknown ids too: they are not promoted later. What was replaced stays replaced."""
        for i in ids:
            self.held.setdefault(i, []).append(request_name(request))
            self.states[i] = REPLACED if self.states.get(i) == REPLACED else state
        self.tombstones |= frozenset(ids)

    def _show_again(self, request: Request) -> None:
        """Batches that were in the table are in it again; the others may come."""
        assert isinstance(request, Revert)
        self.undone.add(request_name(request))
        self.tombstones -= frozenset(request.ids)
        for i in request.ids:
            del self.held[i]
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
            case Replay(ids, by) if self.states.get(by) == PROMOTED:
                return "ReplacementAlreadyPromoted"
            case Undo(of):
                return self._why_not_undone(of)
            case _:
                return None

    def _why_not_undone(self, request: Request) -> str | None:
        """A revert is taken back whole, while all rows are there and nobody else wants them gone."""
        if request_name(request) not in self.requests:
            return "UnknownRestatement"
        if request_name(request) in self.undone or not isinstance(request, Revert):
            return "NotUndoable"
        for i in request.ids:
            if self.states[i] == REPLACED:
                return "AlreadyReplaced"
            if i in self.purged:
                return "AlreadyPurged"
            if self.held[i] != [request_name(request)]:
                return "HeldByAnother"
        return None

    def _unknown(self, request: Request) -> int:
        ids = () if isinstance(request, Undo) else request.ids
        present = {row[0] for row in self.files}
        return sum(i not in self.states and i not in present for i in ids)

    # --- what the rules leave open --------------------------------------------------------------------------------

    def committed(self, tombstones: frozenset[str]) -> None:
        """A commit of ours that purges nothing left these tombstones: those there were, and maybe some set again."""
        assert self.tombstones | self.must_be_hidden <= tombstones, "a deleted batch has no tombstone"
        assert tombstones <= self.taken_back, "a tombstone of a batch that nobody took back"
        self.tombstones = tombstones

    def vacuumed(
        self, job: Vacuum, files: Rows, tombstones: frozenset[str], applied: frozenset[str], alone: bool
    ) -> None:
        """A vacuum left these files and tombstones and says that it applied those. `alone`: nothing came between."""
        purged = self.files - files
        assert not files - self.files, "a vacuum added rows"
        assert without(purged, self.tombstones) == Counter(), "a vacuum removed rows that were not deleted"
        assert {row[0] for row in purged} <= applied <= self.tombstones, "the vacuum's own tombstone file is wrong"
        before, self.files = self.tombstones, files
        self.purged |= applied | (before - tombstones)
        if alone and job.max_bytes is None:
            assert files == without(files, before), "a full vacuum left deleted rows"
            assert not tombstones & before, "a full vacuum left tombstones"
        assert self.must_be_hidden <= tombstones <= self.taken_back, "a vacuum ended a tombstone whose rows are there"
        self.tombstones = tombstones

    # --- strangers ------------------------------------------------------------------------------------------------

    def appended(self, rows: Rows) -> None:
        """Rows of another writer are seen, unless a tombstone is active; one set again later hides them later."""
        self.files = self.files + rows


def in_turn(requests: Collection[Request]) -> list[Request]:
    """By name, all being of one age, but none before another that brings what it needs; in a circle, the first."""
    left = sorted(dict.fromkeys(requests), key=request_name)
    ordered: list[Request] = []
    while left:
        free = [r for r in left if not any(_brings(o) & (_needs(r) - _brings(r)) for o in left)]
        ordered.append((free or left)[0])
        left.remove(ordered[-1])
    return ordered


def _brings(request: Request) -> set[tuple[str, str]]:
    made = {("batch", request.by)} if isinstance(request, Replay) else set()
    return {("request", request_name(request)), *made}


def _needs(request: Request) -> set[tuple[str, str]]:
    if isinstance(request, Undo):
        return {("request", request_name(request.of))}
    return {("batch", i) for i in request.ids}


def without(rows: Rows, ids: Collection[str | None]) -> Rows:
    return Counter({row: n for row, n in rows.items() if row[0] not in ids})


def of_day(rows: Rows, day: int) -> Rows:
    return Counter({row: n for row, n in rows.items() if row[2] == day})
