"""Plays a run of Lethe on the table and on the model."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from lethe.base.errors import ConflictError, TransientError
from lethe.contract.result import RunResult

from tests.model.acts import STEPS_AFTER_THE_COMMIT, Append, Job, Register, Vacuum
from tests.model.model import Outcome
from tests.spark.model.readings import Seen, masks, purged, tombstones
from tests.support.steps import Killed

if TYPE_CHECKING:
    from tests.spark.model.play import Play


@dataclass
class Running:
    """A run of Lethe, possibly with another act or a crash directly after one of its steps."""

    play: "Play"
    job: Job
    expected: Outcome | None = None  # None: not settled yet; always None for a vacuum
    reached: bool = False  # the step was reached
    purged: bool = False  # a commit of a vacuum that purges was observed

    def go(self, at: str = "", happening: Callable[[], object] | None = None) -> None:
        world, model = self.play.world, self.play.model
        spec = world.spec(self.job)
        self.run_id, self.erasing, self.tombstones = spec.run_id, model.erasing, model.tombstones

        def hook() -> None:
            self.reached = True
            if isinstance(self.job, Vacuum):
                self._follow(alone=True)
            # A run without work that reaches this step gives the head a ledger. It commits nothing else.
            elif at in STEPS_AFTER_THE_COMMIT or not model.foresee(self.job).commits:
                self._settle()
            assert happening is not None
            happening()

        try:
            result = world.run(spec, at, hook if happening is not None else None, self._each_commit())
        except (Killed, ConflictError, TransientError) as e:
            if isinstance(e, TransientError) and model.foresee(self.job).waits:
                return
            if not self.reached:
                raise  # without another act there must be no conflict
            if isinstance(self.job, Vacuum):
                self._follow(alone=False)
                self.play.kept(None)
            elif self.expected is None:
                self._nothing_landed()
            return
        self._ended(result)

    def _ended(self, result: RunResult) -> None:
        alone = self.expected is not None or not self.reached
        if isinstance(self.job, Vacuum):
            self._follow(alone=not self.reached)
            assert self.purged or self.reached or not self.tombstones, "nothing was purged"
        elif self.expected is None:
            self._settle()
        seen = self.play.world.look()
        self._followed(seen, self.play.news(seen))
        keep = self.job.keep if isinstance(self.job, Vacuum) else None
        if not self.reached and (keep is not None or (self.expected is not None and not self.expected.commits)):
            assert not seen.bare, "the head was left without a ledger"
        if self.expected is not None:
            _compare(self.job, result, self.expected, alone)
        if keep is not None or self.erasing:
            self.play.kept(None if self.reached or self.erasing else keep)

    def _nothing_landed(self) -> None:
        seen = self.play.world.look()
        self.play.note_staged(seen)
        assert not self.play.news(seen), "a run that died before its commit has committed"

    def _settle(self) -> None:
        """Update the model after the run has committed, or had nothing to commit."""
        seen = self.play.world.look()
        self.play.note_staged(seen)
        expected, news = self.play.model.foresee(self.job), self._after_moves(seen, self.play.news(seen))
        if expected.commits:
            assert news, f"no commit, expected {expected}"
            self._landed(seen, news.pop(0))
        self._followed(seen, news)
        self.expected = expected

    def _after_moves(self, seen: Seen, news: list[int]) -> list[int]:
        """The commits after those that move files out of a partition spec whose column was dropped, which are checked here."""
        moves = list(takewhile(lambda i: "lethe.unfinished" in seen.keys(i), news))
        for i in moves:
            assert seen.keys(i)["lethe.run-id"] == self.run_id
            self.play.model.observed(seen.physical(i))
            self._noted(seen, i, self.play.model.tombstones)
        return news[len(moves) :]

    def _landed(self, seen: Seen, snapshot_id: int) -> None:
        model, keys = self.play.model, seen.keys(snapshot_id)
        assert keys["lethe.run-id"] == self.run_id
        before = model.tombstones
        model.carry_out(self.job)
        self.play.note_asked()
        model.observed(seen.physical(snapshot_id))
        self._noted(seen, snapshot_id, before)

    def _each_commit(self) -> Callable[[], object] | None:
        """A vacuum is observed after each commit, because it may expire its own snapshots before it ends."""
        return (lambda: self._follow(alone=not self.reached)) if isinstance(self.job, Vacuum) else None

    def _follow(self, alone: bool) -> None:
        """Update the model with all snapshots that a vacuum has committed so far."""
        seen = self.play.world.look()
        self.play.note_staged(seen)
        whole = alone and isinstance(self.job, Vacuum) and self.job.max_bytes is None
        for i in self.play.news(seen):
            model, keys = self.play.model, seen.keys(i)
            if "tombstone.vacuum.file" not in keys:
                self._followed(seen, [i])
                continue
            assert keys["lethe.run-id"] == self.run_id
            before, after = model.tombstones, tombstones(keys["tombstone.file"])
            applied = tombstones(keys["tombstone.vacuum.file"])
            finished = "lethe.unfinished" not in keys
            model.vacuumed(whole and finished, seen.physical(i), after, applied)
            _check_counts(keys, before, after, vacuum=len(applied))
            self._marks(keys)
            self.play.remember(i)
            self.purged = True

    def _followed(self, seen: Seen, news: list[int]) -> None:
        """Check further commits of the run: a ledger for the head of another writer, maintenance, erasures, masks. They change no
        rows and remove no tombstones."""
        for i in news:
            model, parent = self.play.model, seen.parent(i)
            keys = seen.keys(i)
            if not isinstance(self.job, Vacuum) and not model.setup.native:
                assert (keys["lethe.run-id"] == self.run_id) == (self.job == Append(()))
                # An expired ancestor may have been bare.
                assert parent is None or parent not in seen.lineage or seen.is_bare(parent), "a commit for nothing"
            model.observed(seen.physical(i))
            self._noted(seen, i, model.tombstones)

    def _noted(self, seen: Seen, snapshot_id: int, before: frozenset[str]) -> None:
        keys = seen.keys(snapshot_id)
        after = tombstones(keys["tombstone.file"])
        self.play.model.committed(after)
        more = {}
        if file := keys.get("tombstone.vacuum.file"):
            assert self.play.model.setup.native
            more = {"vacuum": len(tombstones(file))}
        _check_counts(keys, before, after, **more)
        self._marks(keys)
        self.play.remember(snapshot_id)

    def _marks(self, keys: dict[str, str]) -> None:
        uri = keys["tombstone.file"]
        self.play.model.marked(purged(uri), masks(uri))


def _check_counts(keys: dict[str, str], before: frozenset[str], after: frozenset[str], **more: int) -> None:
    counted = {k.split(".")[2]: int(v) for k, v in keys.items() if k.startswith("tombstone.metrics.")}
    wanted = {"added": len(after - before), "deleted": len(before - after), "total": len(after)} | more
    assert counted == wanted, "the counts in the summary are not those in the files"


def _compare(job: Job, result: RunResult, expected: Outcome, alone: bool) -> None:
    """Compare the result that the run reports with the expected one."""
    match job:
        case Append(ids) | Register(ids):
            if ids:
                assert result.outcome == ("Committed" if expected.commits else "AlreadyCommitted")
                if alone:
                    assert (result.batches_promoted, result.batches_withheld) == (expected.promoted, expected.withheld)
        case Vacuum():
            pass
        case _:
            refusals = {r.name.removeprefix("ns/"): r.reason for r in result.requests if not r.succeeded}
            assert refusals == expected.refusals
            if alone and expected.commits:
                told = [r for r in result.requests if r.snapshot_id == result.snapshot_id]
                assert sum(r.unknown_batch_ids_count for r in told) == expected.unknown
                assert {r.group_size for r in told} == {len(told)}
