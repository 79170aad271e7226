"""Plays acts on the real table and on the model, and compares both.

To reproduce a failing sequence in a test, paste it into a call: `play(world, Append(("A",)), Revert(("A",)), …)`.
"""

from copy import deepcopy
from dataclasses import dataclass, field

from tests.model.acts import Act, Append, Change, Crash, During, EraseRows, Job, Redact, Register, Replay, job_of
from tests.model.foreign_acts import Foreign
from tests.model.model import Model, erased_marks
from tests.model.rows import Rows, mark_of
from tests.spark.model.checks import check
from tests.spark.model.readings import Seen
from tests.spark.model.running import Running
from tests.spark.model.visiting import visit
from tests.spark.model.world import World
from tests.support.steps import die


def play(world: World, *sequence: Act, check_each: int = 1) -> "Play":
    """Play the acts, and check everything after the last act."""
    played = Play(world, check_each)
    for act in sequence:
        played.do(act)
    check(played, everything=True)
    return played


@dataclass
class Play:
    """The acts on one table, and their expected effects."""

    world: World
    check_each: int = 1  # acts between comparisons, besides what each run compares
    model: Model = field(default_factory=Model)  # of the head
    # By snapshot, the model when it was created. A snapshot never changes.
    at: dict[int, Model] = field(default_factory=dict)
    history: list[int] = field(default_factory=list)  # the head and its ancestors, oldest first
    checked: set[int] = field(default_factory=set)  # snapshots read since the last act that might affect them
    past: list[Act] = field(default_factory=list)  # all acts, including those that happened during others
    sequence: list[Act] = field(default_factory=list)  # the acts as they were played
    refs: dict[str, int] = field(default_factory=dict)  # tags and branches, without main
    # By mark, the number of the last act that may have written the row.
    written: dict[str, int] = field(default_factory=dict)
    foreign_appends: int = 0  # their number so far
    cherry_picked: set[int] = field(default_factory=set)  # snapshots that were cherry-picked
    lost: set[int] = field(default_factory=set)  # snapshots that replaced the table, so that their ledger is unknown
    verified: set[str] = field(default_factory=set)  # names of erasures that were ever verified
    failed: bool = False

    def __post_init__(self) -> None:
        self.model.setup = self.world.setup
        for i in reversed(self.world.look().lineage):
            self.remember(i)

    def do(self, act: Act) -> None:
        """Play an act, and compare."""
        self.sequence.append(act)
        self.world.let_time_pass()
        self.failed = True
        self.act(act)
        self.note_verified()
        if len(self.sequence) % self.check_each == 0:
            check(self)
        self.failed = False

    def end(self) -> None:
        try:
            if not self.failed and len(self.sequence) % self.check_each:
                check(self)
        finally:
            self.world.end()

    def act(self, act: Act) -> None:
        self.past.append(act)
        self._note_written(act)
        match act:
            case Crash(job, at):
                Running(self, job).go(at, die)
            case During(job, at, other):
                Running(self, job).go(at, lambda: self.act(other))
            case _ if isinstance(act, Foreign):
                visit(self, act)
            case _:
                Running(self, act).go()

    # --- snapshots ------------------------------------------------------------------------------------------------

    def news(self, seen: Seen) -> list[int]:
        """The head and its ancestors that are not in `at`, oldest first."""
        return [i for i in reversed(seen.lineage) if i not in self.at]

    def remember(self, snapshot_id: int) -> None:
        self.history.append(snapshot_id)
        self.at[snapshot_id] = deepcopy(self.model)

    def note_staged(self, seen: Seen) -> None:
        """Record staged snapshots: they have their parent's rows and the staged rows, with their parent's ledger."""
        for i in seen.others:
            if i not in self.at:
                parent = seen.parent(i)
                staged = deepcopy(self.at[parent]) if parent is not None else Model(self.world.setup)
                added = seen.physical(i, added_by=i)
                staged.appended(added)
                staged.observed(seen.physical(i))
                self.at[i] = staged

    def go_back(self, snapshot_id: int) -> None:
        """The head was set to this snapshot, with its ledger."""
        self.model = deepcopy(self.at[snapshot_id])
        lineage = self.world.look().lineage
        self.history = list(reversed(lineage))
        self.checked.clear()

    def kept(self, newest: int | None) -> None:
        """Apply an expiry.

        Args:
            newest: How many snapshots of the head and its ancestors it must have kept; None: unknown.
        """
        lineage = self.world.look().lineage
        if newest is not None:
            assert list(lineage[:newest]) == self.history[: -newest - 1 : -1], "too much was expired"
        self.history = [i for i in self.history if i in lineage]
        self.checked.clear()

    def breaks(self, seen: Seen, since: int, until: int) -> bool:
        """Whether another writer rewrote or deleted rows in between, so that no increment can be computed."""
        line = seen.lineage[seen.lineage.index(until) : seen.lineage.index(since)]
        return any(
            seen.operation(i) in ("overwrite", "delete")
            and not {"tombstone.vacuum.file", "lethe.deletes"} & seen.keys(i).keys()
            for i in line
        )

    # --- rows and erasures ----------------------------------------------------------------------------------------

    def written_now(self, rows: Rows) -> None:
        """Files may contain these rows from now on, so they no longer count as gone."""
        marks = {mark_of(r) for r in rows}
        self.written |= dict.fromkeys(marks, len(self.sequence))
        self.model.gone -= marks
        for model in self.at.values():
            model.gone -= marks

    def _note_written(self, act: Act) -> None:
        job = job_of(act)
        for one in getattr(job, "requests", (job,)):
            self.written_now(self._rows_of(one))

    def _rows_of(self, job: Job | None) -> Rows:
        known = self.model.states
        match job:
            case Append(ids) | Register(ids):
                return sum((self.model.setup.rows_of(i) for i in ids if i not in known), Rows())
            case Replay(_, by) | Change(_, by) if by not in known:
                return self.model.setup.added_by(job)
            case _:
                return Rows()

    def note_asked(self) -> None:
        """Record the number of the current act for newly carried out requests."""
        self.model.asked |= {name: len(self.sequence) for name in self.model.requests if name not in self.model.asked}

    def note_verified(self) -> None:
        """Record newly verified erasures: from now on no file may contain their rows."""
        now = self.world.look().verified
        self.verified |= now
        for name in now - self.model.verified:
            request = self.model.requests[name]
            since = self.model.asked[name] if isinstance(request, EraseRows | Redact) else len(self.sequence)
            marks = erased_marks(request, self.written)
            self.model.gone |= {m for m in marks if self.written[m] < since}
        self.model.verified = now
        head = self.world.look().head
        if head in self.at:
            self.at[head].gone, self.at[head].verified = self.model.gone, now
