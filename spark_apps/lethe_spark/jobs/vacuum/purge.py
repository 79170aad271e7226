"""Purges the rows of one vacuum run, in steps. Each step is a commit. I/O.

The run purges the tombstones that are active before its first step. The next vacuum purges later ones. Other writers may commit
between two steps, so each step reads the head again. What a search found in a file stays true, because files never change: files
without rows of these tombstones, and files that the run wrote, are not searched again.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from lethe.base.errors import ConflictError, InputError
from lethe.contract.result import Phase
from lethe.contract.run import VacuumSpec
from lethe.files.bounds import FileBounds
from lethe.ledger.ledger import Ledger
from lethe.ledger.parts import get_many
from lethe.ledger.tombstone import Tombstone
from lethe.purge.filtering import Loss
from lethe.search.live_suspects import Suspect
from lethe.search.vacuum_survey import Survey
from lethe.vacuum.plan import VacuumPlan, also_purged, still_active
from lethe.vacuum.priority import first_step, small_neighbours, target_bytes

from lethe_spark.commit.ledger_commit import Attempts, Committed, Intent, NothingToCommit, commit_on_ledger
from lethe_spark.commit.table_state import Base, observe_base
from lethe_spark.commit.unpublished import discard
from lethe_spark.jobs.vacuum import purge_step
from lethe_spark.jobs.vacuum.filtering import filterable
from lethe_spark.jobs.vacuum.purge_step import Outcome, Step
from lethe_spark.jobs.vacuum.verify import SearchResults
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import RunContext

log = logging.getLogger(__name__)
# How often a step is planned, if other writers rewrite its files in the meantime. Then the run ends, and is tried later.
PLANS: Final = 3


@dataclass
class Tally:
    """What the steps of a run have done so far."""

    snapshot_id: int | None = None  # of the last commit; None: nothing was committed
    steps: int = 0  # the number of steps with a commit
    tombstones: int = 0  # the number of tombstones that were removed
    rows: int = 0  # the number of rows that were purged
    files_rewritten: int = 0
    files_deleted: int = 0  # files that were deleted whole
    files_added: int = 0
    bytes_rewritten: int = 0
    bytes_copied: int = 0  # of these, in row groups that were copied
    files_in_vain: int = 0  # files that were rewritten and held no rows to purge
    seconds: float = 0.0  # of planning, writing and committing


@dataclass
class Purging:
    """Purges the tombstones of a survey."""

    context: RunContext
    table: SparkTable
    spec: VacuumSpec
    survey: Survey
    # Returns why no step may start any more; empty: one may.
    time_is_up: Callable[[], str]
    # Paths of files that hold no rows of the tombstones: they were searched, or written by this run.
    cleared: set[str] = field(default_factory=set)
    tally: Tally = field(default_factory=Tally)
    # Why the run stopped although the budget allowed more; empty: it did not.
    stopped: str = ""

    def __post_init__(self) -> None:
        # The files that the run did not rewrite and that might hold rows to purge.
        self.left = (*self.survey.plan.rewrite, *self.survey.plan.postponed)
        self.live = self.survey.live
        self.searched = SearchResults(frozenset(t.id for t in self.survey.tombstones))
        # Paths of the files of the approved plan. None: the run needs no approval.
        self.approved = self.survey.plan.touched if self.spec.approved_plan else None

    def work(self) -> bool:
        """Do steps until nothing is left that the budget, the time and the approval allow.

        Returns: False, if nothing was done because files or tombstones of the first step changed in the meantime. Then the caller
            must survey again: there may be more to purge, and the plan may not be the approved one any more. Later steps are
            planned again here.
        Raises: InputError (`DataFileMissing`), if nothing could be purged because of it; ConflictError (`DataMoved`);
            TransientError.
        """
        replans = 0
        while not self._is_stopped():
            self.context.step(f"step-{self.tally.steps + 1}")
            began = time.monotonic()
            step = self._purge_data()
            done = self._commit(step)
            self.tally.seconds += time.monotonic() - began
            if done.outcome.plan_again:
                log.info("step %d of the vacuum is planned again: %s", self.tally.steps + 1, done.outcome.plan_again)
                if not self.tally.steps:
                    return False
                replans += 1
                if replans == PLANS:
                    raise files_kept_changing(self.table, self.tally.steps)
                continue
            replans = 0
            self._count(step, done)
            if not step.more:
                break
        if self.searched.missing and not self.tally.steps:
            raise InputError("DataFileMissing", self.message)
        return True

    @property
    def message(self) -> str:
        """What the user must know about a successful run; empty: nothing."""
        missing = sorted(self.searched.missing & self.live.found.keys())
        if not missing:
            return ""
        return (
            f"{self.table.full_name}: {len(missing)} data files of the table are missing in its storage, the "
            f"first is {missing[0]}. Their rows are lost, and reads of the whole table fail. Tombstones that "
            "may have rows in these files remain. Restore the files, or remove them from the table. All "
            "other rows were purged."
        )

    # --- SCAN and PURGE DATA --------------------------------------------------------------------------------------------

    def _purge_data(self) -> Step:
        """Read the head, choose the files of a step, and write their remaining rows to new files."""
        self.context.reporter.phase(Phase.SCAN, f"step {self.tally.steps + 1}")
        base = observe_base(self.context, self.table)
        active = self._observe(base)
        assert base.facts.head_id is not None
        must = tuple(s.bounds for s in self.live.found.values() if s.must and self._is_open(s))
        dirty, emptied, rest = self._dirty(base)
        target = target_bytes(self.spec.target_file_size_bytes, base.iceberg.properties)
        alone = filterable(base, dirty, self.live.found, self._losses(dirty), target)
        merged = self._merged([f for f in dirty if f.path not in alone])
        held = {f.lower for f in must}.union(*(self._held(f) for f in (*dirty, *emptied)))
        must = (*must, *emptied)
        rewrite = (*dirty, *merged)
        along = also_purged(base.ledger, base.field_id, active, rewrite)
        applied = (*(t for t in active if t.id in held), *along)
        plan = VacuumPlan(base.facts.head_id, must, rewrite, active, applied, tuple(rest))
        size = sum(f.size for f in plan.rewrite)
        self.context.reporter.phase(
            Phase.PURGE_DATA,
            f"step {self.tally.steps + 1}: {len(plan.rewrite)} files to rewrite ({size} bytes), {len(must)} to delete, "
            f"{len(rest)} left",
        )
        self.left = (*rest, *self._not_approved())
        more = any(self._fits(f, size) for f in rest)
        return purge_step.write(self.context, self.table, base, Step(plan, merged, alone, more), target)

    def _observe(self, base: Base) -> tuple[Tombstone, ...]:
        """Update the known files to the head. Returns: the run's tombstones that are still active, as this ledger has them."""
        head = base.head()
        assert head is not None
        active = self._active(base.ledger)
        self.live.use(active)
        self.live.observe(head)
        return active

    def _active(self, ledger: Ledger) -> tuple[Tombstone, ...]:
        """The run's tombstones that are still active. Tombstones that were set again in the meantime count too, because the same
        rows are searched; but not under an approval, which is for the earlier deletion."""
        surveyed = self.survey.tombstones
        if self.approved is not None:
            return tuple(still_active(surveyed, ledger).values())
        return tuple(get_many(ledger.tombstones, [t.key for t in surveyed]).values())

    def _dirty(self, base: Base) -> tuple[list[FileBounds], list[FileBounds], list[FileBounds]]:
        """Search the files that might hold rows to purge, until there are enough for a step. Files without such rows are cleared.

        Returns: the files of the step with such rows and others; the files with only such rows, which are deleted whole and need
            no budget; and the files that were not searched yet or do not fit into the budget.
        """
        might = [s.bounds for s in self.live.found.values() if not s.must and self._is_open(s)]
        waiting = self.survey.in_order(might)
        dirty, emptied, rest = list[FileBounds](), list[FileBounds](), list[FileBounds]()
        taken = searches = 0
        for at, f in enumerate(waiting):
            if dirty and taken + f.size > self.spec.step_bytes:
                return dirty, emptied, rest + waiting[at:]
            if not self._fits(f, taken):
                rest.append(f)
                continue
            if f.path not in self.searched:
                if searches and self.time_is_up():
                    return dirty, emptied, rest + waiting[at:]
                searches += 1
                ahead = first_step([g for g in waiting[at:] if self._fits(g, taken)], self.spec.step_bytes)
                self.searched.search(self.context, base, [self.live.found[g.path] for g in ahead])
            if f.path in self.searched.missing:
                continue
            held = self._held(f)
            if held and self.searched.count(f.path, held) == f.records:
                emptied.append(f)
            elif held or (f.deletes and self.live.erasing):
                dirty.append(f)
                taken += f.size
            else:
                self.cleared.add(f.path)
        return dirty, emptied, rest

    def _held(self, file: FileBounds) -> set[str]:
        """The ids of the tombstones of which a searched file holds rows."""
        return self.searched.held(file.path, self.live.suspects.within(file))

    def _losses(self, files: Iterable[FileBounds]) -> dict[str, Loss]:
        """What each file loses that could be searched."""
        held = {f.path: frozenset(self._held(f)) for f in files if f.path not in self.searched.unsure}
        return {path: Loss(ids, self.searched.count(path, ids)) for path, ids in held.items()}

    def _is_open(self, file: Suspect) -> bool:
        path = file.bounds.path
        known = path in self.cleared or path in self.searched.missing
        return not known and (self.approved is None or path in self.approved)

    def _not_approved(self) -> tuple[FileBounds, ...]:
        if self.approved is None:
            return ()
        return tuple(s.bounds for p, s in self.live.found.items() if p not in self.approved | self.cleared)

    def _fits(self, file: FileBounds, taken: int) -> bool:
        """Whether the file fits into the budget, after other files of `taken` bytes. The first file of a run always fits:
        otherwise a file larger than the budget would never be purged."""
        if self.spec.max_bytes is None:
            return True
        spent = self.tally.bytes_rewritten + taken
        return spent == 0 or spent + file.size <= self.spec.max_bytes

    def _merged(self, dirty: Collection[FileBounds]) -> tuple[FileBounds, ...]:
        """Small files to merge with the files that are rewritten."""
        if self.approved is not None:
            return ()
        left = None
        if self.spec.max_bytes is not None:
            left = self.spec.max_bytes - self.tally.bytes_rewritten - sum(f.size for f in dirty)
        return small_neighbours(tuple(dirty), [s.bounds for s in self.live.small.values()], left)

    # --- COMMIT ---------------------------------------------------------------------------------------------------------

    def _commit(self, step: Step) -> Committed[Outcome]:
        attempts = Attempts()
        try:
            done = commit_on_ledger(self.context, self.table, lambda base: self._intent(base, step), attempts)
        except ConflictError:
            discard(self.table, step.added, attempts)
            raise
        if done.outcome.plan_again:
            discard(self.table, step.added, attempts)
        return done

    def _intent(self, base: Base, step: Step) -> Intent[Outcome] | NothingToCommit[Outcome]:
        self._observe(base)
        merged = (self.live.small.get(f.path) for f in step.merged)
        there = [s.bounds for s in (*self.live.found.values(), *merged) if s is not None]
        return purge_step.intent(self.table, base, step, self.context.run_id, there, self.cleared)

    # --- results --------------------------------------------------------------------------------------------------------

    def _is_stopped(self) -> bool:
        self.stopped = self.time_is_up()
        return bool(self.stopped)

    def _count(self, step: Step, done: Committed[Outcome]) -> None:
        tally, plan = self.tally, step.plan
        if done.snapshot_id is None:
            return
        self.cleared |= {f.path for f in step.added}
        went = sum(f.records for f in step.removed) - sum(f.records for f in step.added)
        tally.snapshot_id = done.snapshot_id
        tally.steps += 1
        tally.tombstones += done.outcome.tombstones
        tally.rows += went
        tally.files_rewritten += len(plan.rewrite)
        tally.files_deleted += len(plan.delete)
        tally.files_added += len(step.added)
        tally.bytes_rewritten += sum(f.size for f in plan.rewrite)
        tally.bytes_copied += step.copied_bytes
        tally.files_in_vain += self._in_vain(plan, went)

    def _in_vain(self, plan: VacuumPlan, went: int) -> int:
        """The number of rewritten files that could not be searched, if none of them held rows to purge; otherwise 0."""
        unsure = [f for f in plan.rewrite if f.path in self.searched.unsure]
        ids = {t.id for t in plan.applied}
        known = sum(n for f in plan.rewrite for i, n in self.searched.rows.get(f.path, {}).items() if i in ids)
        known += sum(f.records for f in plan.delete)
        return len(unsure) if went <= known else 0


def files_kept_changing(table: SparkTable, steps: int) -> ConflictError:
    return ConflictError(
        "DataMoved",
        f"{table.full_name}: other writers kept replacing the files of the vacuum. A later run tries again. "
        f"The {steps} steps that this run has committed remain.",
    )
