"""Acts played on the real table and on the model, and everything compared after each.

`play(world, Append(("A",)), Revert(("A",)), …)` is what a failing sequence becomes when pasted into a test.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from lethe.errors import ConflictError
from lethe.run_result import RunResult

from tests.model.acts import (
    STEPS_AFTER_THE_COMMIT,
    Act,
    Append,
    Crash,
    During,
    Expire,
    Foreign,
    ForeignAppend,
    ForeignCompaction,
    ForeignRepartition,
    ForeignTag,
    Job,
    Vacuum,
)
from tests.model.model import Model, Outcome, Rows, of_day, without
from tests.model.world import Seen, World, tombstones
from tests.spark.jobs_support import Killed

SCANNED_EACH_TIME = 6  # snapshots; more take turns


def play(world: World, *sequence: Act) -> "Play":
    played = Play(world)
    for act in sequence:
        played.do(act)
    return played


@dataclass
class Play:
    """One table's story. `hidden`: the tombstones of each snapshot's ledger; `history`: the head's, oldest first;
    `past`: all that happened, also while something else did; `sequence`: as it was played."""

    world: World
    model: Model = field(default_factory=Model)
    hidden: dict[int, frozenset[str]] = field(default_factory=dict)
    history: list[int] = field(default_factory=list)
    past: list[Act] = field(default_factory=list)
    sequence: list[Act] = field(default_factory=list)
    tagged: set[int] = field(default_factory=set)

    def do(self, act: Act) -> None:
        """Let it happen, and compare."""
        self.sequence.append(act)
        self.world.let_time_pass()
        self._do(act)
        self.check()

    def _do(self, act: Act) -> None:
        self.past.append(act)
        match act:
            case Crash(job, at):
                _Run(self, job).go(at, _die)
            case During(job, at, other):
                _Run(self, job).go(at, lambda: self._do(other))
            case ForeignAppend() | ForeignCompaction() | ForeignRepartition() | ForeignTag() | Expire():
                self._by_a_stranger(act)
            case _:
                _Run(self, act).go()

    def _by_a_stranger(self, act: Foreign) -> None:
        match act:
            case ForeignAppend(ids, day):
                self.model.appended(self.world.append_as_a_stranger(*ids, day=day))
            case ForeignCompaction():
                self.world.compact_as_a_stranger()
            case ForeignRepartition(by):
                self.world.repartition_as_a_stranger(by)
            case ForeignTag():
                self.tagged |= self.world.tag_the_head()
            case Expire(keep):
                # The format asks strangers not to expire the ledger from under a bare head.
                keep = max(keep, self.world.look().bare + 1)
                self.world.expire_as_a_stranger(keep)
                self.kept(keep)
        seen = self.world.look()
        for i in self.news(seen):
            assert seen.is_bare(i)
            self.remember(i)

    # --- snapshots ------------------------------------------------------------------------------------------------

    def news(self, seen: Seen) -> list[int]:
        """The head's snapshots that nobody has told the model of, oldest first."""
        return [i for i in reversed(seen.lineage) if i not in self.model.shown]

    def remember(self, snapshot_id: int) -> None:
        """What a snapshot shows, it shows for ever."""
        self.history.append(snapshot_id)
        self.model.shown[snapshot_id], self.hidden[snapshot_id] = self.model.visible, self.model.tombstones

    def note_staged(self, seen: Seen) -> None:
        """A staged snapshot shows its parent's rows and those staged, under its parent's ledger."""
        for i in seen.others:
            if i not in self.model.shown:
                parent = seen.parent(i)
                hidden = self.hidden[parent] if parent is not None else frozenset[str]()
                self.model.shown[i], self.hidden[i] = without(seen.files(i), hidden), hidden

    def kept(self, newest: int) -> None:
        lineage = self.world.look().lineage
        assert list(lineage[:newest]) == self.history[: -newest - 1 : -1], "too much was expired"
        self.history = [i for i in self.history if i in lineage]

    # --- what must hold after every step --------------------------------------------------------------------------

    def check(self) -> None:
        """Every reader finds the model's rows, at the head and at the retained snapshots; the files hold no others."""
        seen, model = self.world.look(), self.model
        _same("the data files", seen.files(), model.files)
        assert seen.tombstones() == model.tombstones
        assert seen.states == model.states
        _same("lethe.scan", self.world.read(seen), model.visible)
        _same("Spark", self.world.read_by_spark(), model.visible)
        for day in (1, 2, 3):
            _same(f"lethe.scan of day {day}", self.world.read(seen, day=day), of_day(model.visible, day))
        turn = len(self.past)
        retained = [*seen.lineage, *seen.others]
        assert self.tagged.issubset(retained)
        for i in [*retained[turn % len(retained) :], *retained][:SCANNED_EACH_TIME] if retained else ():
            _same(f"lethe.scan of snapshot {i}", self.world.read(seen, i), model.shown[i])
            day = 1 + turn % 3
            _same(
                f"lethe.scan of day {day} of snapshot {i}",
                self.world.read(seen, i, day),
                of_day(model.shown[i], day),
            )
        if len(retained) > 1:
            i = retained[1 + turn % (len(retained) - 1)]
            chosen = 1 + turn % 3 if turn % 2 else None
            wanted = model.shown[i] if chosen is None else of_day(model.shown[i], chosen)
            _same(f"Spark, day {chosen} of snapshot {i}", self.world.read_by_spark(i, chosen), wanted)
            self._check_increments(seen, turn)

    def _check_increments(self, seen: Seen, turn: int) -> None:
        """From any snapshot to any later one: the rows there are the rows here, plus the appended, minus the deleted."""
        if len(seen.lineage) < 2:
            return
        at = turn % (len(seen.lineage) - 1)
        for since, until in {(seen.lineage[-1], seen.lineage[0]), (seen.lineage[at + 1], seen.lineage[at // 2])}:
            came = self.world.increment(seen, since, until, "appended")
            went = self.world.increment(seen, since, until, "deleted")
            where = f"the increment from {since} to {until}, appended {dict(came)}, deleted {dict(went)}"
            _same(where, self.model.shown[since] + came, self.model.shown[until] + went)
            if turn % 4 == 0:
                _same(f"Spark's appended, {where}", self.world.increment_by_spark(since, until, "appended"), came)
                _same(f"Spark's deleted, {where}", self.world.increment_by_spark(since, until, "deleted"), went)
                break


@dataclass
class _Run:
    """A run of ours, and what happens right after one of its steps: another act, or its death.

    `expected`: what it comes to, once that is settled; `reached`: the step was.
    """

    play: Play
    job: Job
    expected: Outcome | None = None
    reached: bool = False

    def go(self, at: str = "", happening: Callable[[], object] | None = None) -> None:
        world, model = self.play.world, self.play.model
        spec = world.spec(self.job)
        self.run_id = spec.run_id

        def hook() -> None:
            self.reached = True
            # A run that has nothing to do, and yet comes by here, is giving the head a ledger: its own work is done.
            if at in STEPS_AFTER_THE_COMMIT or not model.foresee(self.job).commits:
                self._settle(alone=True)
            assert happening is not None
            happening()

        try:
            result = world.run(spec, at, hook)
        except (Killed, ConflictError):
            if not self.reached:
                raise  # a run that is alone meets no conflict
            if self.expected is None:
                self._nothing_landed()
            return
        alone = self.expected is not None or not self.reached
        if self.expected is None:
            self._settle(alone)
        seen = world.look()
        self._anchored(seen, self.play.news(seen))
        assert self.expected is not None
        expires = isinstance(self.job, Vacuum) and self.job.keep is not None
        if not self.reached and (expires or not self.expected.commits):
            assert not seen.bare, "the head was left without a ledger"
        _compare(self.job, result, self.expected, alone)
        if isinstance(self.job, Vacuum) and self.job.keep is not None:
            self.play.kept(self.job.keep)

    def _nothing_landed(self) -> None:
        seen = self.play.world.look()
        self.play.note_staged(seen)
        assert not self.play.news(seen), "a run that died before its commit has committed"

    def _settle(self, alone: bool) -> None:
        """The run has committed, or had nothing to commit: the model follows."""
        seen = self.play.world.look()
        self.play.note_staged(seen)
        expected, news = self.play.model.foresee(self.job), self.play.news(seen)
        if isinstance(self.job, Vacuum) and not alone:
            # How much was left to do depends on the moment.
            expected = Outcome(commits=bool(news) and "tombstone.vacuum.file" in seen.keys(news[0]))
        if expected.commits:
            assert news, f"no commit, expected {expected}"
            self._landed(seen, news.pop(0), alone)
        self._anchored(seen, news)
        self.expected = expected

    def _landed(self, seen: Seen, snapshot_id: int, alone: bool) -> None:
        model, keys = self.play.model, seen.keys(snapshot_id)
        assert keys["lethe.run-id"] == self.run_id
        before, after = model.tombstones, tombstones(keys["tombstone.file"])
        model.carry_out(self.job)
        if isinstance(self.job, Vacuum):
            applied = tombstones(keys["tombstone.vacuum.file"])
            model.vacuumed(self.job, seen.files(snapshot_id), after, applied, alone)
            _check_counts(keys, before, after, vacuum=len(applied))
        else:
            model.committed(after)
            _check_counts(keys, before, after)
        self.play.remember(snapshot_id)

    def _anchored(self, seen: Seen, news: list[int]) -> None:
        """Further commits of the run give a head of another writer's a ledger, and change nothing else. They must not pass
        for the run's own, unless it has no other work."""
        for i in news:
            model, keys, parent = self.play.model, seen.keys(i), seen.parent(i)
            assert (keys["lethe.run-id"] == self.run_id) == (self.job == Append(()))
            # An ancestor that is gone by now may have been bare.
            assert parent is None or parent not in seen.lineage or seen.is_bare(parent), "a commit for nothing"
            before, after = model.tombstones, tombstones(keys["tombstone.file"])
            model.committed(after)
            _check_counts(keys, before, after)
            self.play.remember(i)


def _check_counts(keys: dict[str, str], before: frozenset[str], after: frozenset[str], **more: int) -> None:
    counted = {k.split(".")[2]: int(v) for k, v in keys.items() if k.startswith("tombstone.metrics.")}
    wanted = {"added": len(after - before), "deleted": len(before - after), "total": len(after)} | more
    assert counted == wanted, "the counts in the summary are not those in the files"


def _compare(job: Job, result: RunResult, expected: Outcome, alone: bool) -> None:
    """What a run says of itself."""
    match job:
        case Append(ids):
            if ids:
                assert result.outcome == ("Committed" if expected.commits else "AlreadyCommitted")
            if alone:
                assert (result.batches_promoted, result.batches_withheld) == (expected.promoted, expected.withheld)
        case Vacuum():
            if alone:
                assert result.outcome == ("Committed" if expected.commits else "NothingToDo")
        case _:
            refusals = {r.name.removeprefix("ns/"): r.reason for r in result.requests if not r.succeeded}
            assert refusals == expected.refusals
            if alone and expected.commits:
                told = [r for r in result.requests if r.snapshot_id == result.snapshot_id]
                assert sum(r.unknown_batch_ids_count for r in told) == expected.unknown
                assert {r.group_size for r in told} == {len(told)}


def _die() -> None:
    raise Killed


def _same(where: str, found: Rows, wanted: Rows) -> None:
    assert found == wanted, f"{where}: too many {dict(found - wanted)}, missing {dict(wanted - found)}"
