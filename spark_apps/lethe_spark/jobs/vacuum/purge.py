"""Purges the rows of one vacuum run, in steps. Each step is a commit. I/O; `lethe.vacuum.plan` decides what may be committed.

The run purges the tombstones that are active before its first step. The next vacuum purges later ones. Other writers may commit
between two steps, so each step reads the head again. What a search found in a file stays true, because files never change: files
without rows of these tombstones, and files that the run wrote, are not searched again.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Final

from lethe.base.errors import ConflictError, InputError
from lethe.contract.dataset import named
from lethe.contract.result import Phase
from lethe.contract.run import VacuumSpec
from lethe.files.bounds import Age, FileBounds
from lethe.iceberg.native_deletes import native_deletes
from lethe.ledger.ledger import Ledger, get_many
from lethe.ledger.tombstone import Tombstone
from lethe.purge.filtering import Loss
from lethe.search.candidates import Survey, Suspect, aged_files, candidate, traits_of
from lethe.search.covered import Leaving, LeavingRows
from lethe.search.retention import Retention
from lethe.uri import without_values
from lethe.vacuum.plan import (
    AgedRows,
    KeptFile,
    PlanAgain,
    VacuumPlan,
    also_purged,
    bytes_after_conflict,
    first_step,
    one_by_one,
    plan_purge,
    small_neighbours,
    still_active,
    target_bytes,
)
from pyspark.sql import DataFrame

from lethe_spark.commit.ledger_commit import Attempts, Committed, Intent, NothingToCommit, commit_on_ledger, discard
from lethe_spark.commit.table_state import Base, observe_base
from lethe_spark.jobs.holds import covering
from lethe_spark.jobs.rewriting import filter_files, kept_metrics, write_by_spark
from lethe_spark.jobs.vacuum.searches import AgeResults, HeldAges, SearchResults
from lethe_spark.jvm.commit import Change, DeleteFiles, LedgerOnly, Overwrite, RewriteFiles, RowDelta
from lethe_spark.jvm.data_files import (
    DataFile,
    DeleteChanges,
    deleted_of,
    tasks_by_path,
)
from lethe_spark.jvm.metadata import delete_files_at
from lethe_spark.jvm.scan_tasks import scan_tasks
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import RunContext, table_io
from lethe_spark.sql.searching import (
    RowCounts,
    anti_join,
    count_of,
    count_without_batches,
    not_before,
)

log = logging.getLogger(__name__)

ONE_TASK_BYTES: Final = 128 * 1024**2
"""A partition up to this size is written by one task, in order. Spark may split a larger one among tasks, and not by batch."""

PLANS: Final = 5
"""How often a step is planned, if others change its files in the meantime. Then the run ends, and is tried later. Also how often,
at most, a run looks for files that came in the meantime.
"""


def filterable(
    base: Base,
    files: Collection[FileBounds],
    suspects_by_path: Mapping[str, Suspect],
    losses: Mapping[str, Loss],
    target: int,
) -> dict[str, Loss]:
    """What the files lose that are purged one by one. The others are rewritten by Spark, together.

    Args:
        suspects_by_path: By path.
        losses: Of the files that could be searched, by path.
        target: The target size of data files, in bytes.
    """
    candidates = []
    for f in files:
        loss = losses.get(f.path)
        candidates.append(candidate(suspects_by_path[f.path], None if loss is None else loss.rows))
    traits = traits_of(base.iceberg, base.field_id)
    chosen = one_by_one(traits, candidates, target)
    return {c.bounds.path: replace(losses[c.bounds.path], in_order=traits.is_sorted(c.sort_order_id)) for c in chosen}


@dataclass(frozen=True)
class PurgeProgress:
    """A step, before and after its files are written."""

    plan: VacuumPlan
    merged: tuple[FileBounds, ...] = ()
    """Small files without deleted rows among the plan's files to rewrite."""
    alone: Mapping[str, Loss] = field(default_factory=dict)
    """What the files lose that are purged one by one, by path."""
    more: bool = False
    """Whether the run has more to do after this step."""
    removed: tuple[DataFile, ...] = ()
    """The plan's files to delete and to rewrite, as objects of the JVM."""
    added: tuple[DataFile, ...] = ()
    """The new files that replace the rewritten ones."""
    copied_bytes: int = 0
    """Bytes of row groups that were copied into them."""
    format_version: int = 0
    """The format version of the table when they were written."""


@dataclass(frozen=True)
class StepOutcome:
    """The result of a step."""

    plan_again: str = ""
    """Why the step must be planned again, because the table changed; empty: it need not."""
    tombstones: int = 0
    """The number of tombstones that were removed."""


def write(
    context: RunContext,
    table: SparkTable,
    base: Base,
    step: PurgeProgress,
    target_bytes: int,
    retention: Retention | None = None,
) -> PurgeProgress:
    """PURGE DATA: write the remaining rows of the step's files.

    Args:
        target_bytes: The size of a file.
        retention: Which rows are too old. None: no row is.

    Returns:
        The step with the removed and the new files.

    Raises:
        ConflictError: `DataMoved`; `RowsDiffer`, if rows of the files were not read or not written.
    """
    plan = step.plan
    # Planning the scan tasks lists all files of the table, so it is done once for the whole step.
    metrics_of = kept_metrics(base) if step.alone else ()
    tasks = tasks_by_path(table, plan.touched, plan.snapshot_id, metrics_of)
    written = {path: (DataFile.of(task.file()), task) for path, task in tasks.items()}
    # Which deletes apply to a file is what its scan task says.
    with_deletes = {path: tasks[path] for path in step.alone if not tasks[path].deletes().isEmpty()}
    deleted = deleted_of(table, with_deletes, table_io(context, table.location)) if with_deletes else {}
    alone = [(written[path][0], loss) for path, loss in step.alone.items()]
    filtered = filter_files(context, table, base, alone, deleted)
    added = filtered.added
    try:
        if unfiltered := [f for f in plan.rewrite if f.path not in filtered.replaced]:
            one_task = _largest_partition(unfiltered) <= ONE_TASK_BYTES
            with ExitStack() as scans:
                frame, counts, scanned = _remaining(table, base, plan, unfiltered, written, retention, scans)
                added += write_by_spark(
                    context,
                    table,
                    scanned,
                    frame,
                    counts,
                    target_file_size_bytes=target_bytes,
                    one_pass=one_task,
                    by_range=not one_task,
                )
        context.step("after-write")
    except Exception:
        discard(table, added, Attempts())
        raise
    removed = tuple(file for file, _ in written.values())
    return replace(
        step, removed=removed, added=added, copied_bytes=filtered.copied_bytes, format_version=base.facts.format_version
    )


def _remaining(
    table: SparkTable,
    base: Base,
    plan: VacuumPlan,
    files: Sequence[FileBounds],
    tasks: Mapping[str, tuple[DataFile, Any]],
    retention: Retention | None,
    scans: ExitStack,
) -> tuple[DataFrame, RowCounts, tuple[DataFile, ...]]:
    """The rows of the files that stay, the numbers of rows, and the files. The frame is readable until `scans` ends.

    Only files that lose rows for their age are filtered by their times, or by batches that are too old.

    Args:
        tasks: Data files and scan tasks by path.
    """
    column = retention.column if retention is not None else None
    aged = {f.path for f in plan.losing_aged}
    frames, counts, scanned_files = list[DataFrame](), list[RowCounts](), list[DataFile]()
    for is_aged in (False, True):
        chosen = [tasks[f.path][1] for f in files if (f.path in aged) is is_aged]
        if not chosen:
            continue
        scanned = scans.enter_context(scan_tasks(table, chosen))
        leaving = plan.batches_leaving(for_age=is_aged)
        kept = anti_join(scanned.frame, base.batch_column, leaving)
        if is_aged and retention is not None and column is not None:
            kept = not_before(kept, column, retention.cutoff)
            counts.append(count_of(scanned, kept))
        else:
            counts.append(count_without_batches(scanned, base.batch_column, leaving))
        frames.append(kept)
        scanned_files += scanned.files
    total = RowCounts(sum(c.read for c in counts), sum(c.kept for c in counts))
    return reduce(DataFrame.unionByName, frames), total, tuple(scanned_files)


def intent(
    table: SparkTable,
    base: Base,
    step: PurgeProgress,
    run: str,
    files_now: Collection[FileBounds],
    cleared: Collection[str],
    kept: Collection[KeptFile],
) -> Intent[StepOutcome] | NothingToCommit[StepOutcome]:
    """PURGE METADATA: plan the commit of a step. Called for each attempt to commit.

    Args:
        files_now, cleared, kept: As `lethe.vacuum.plan.plan_purge`.
    """
    plan = step.plan
    if (
        base.facts.format_version != step.format_version
    ):  # since version 3 rows have ids, which the files would have to store
        return NothingToCommit(StepOutcome("the format version of the table has changed"))
    if plan.rewrite and plan.snapshot_id not in base.facts.snapshots:
        # Iceberg checks what others have deleted since that snapshot.
        return NothingToCommit(StepOutcome(f"snapshot {plan.snapshot_id}, of which the files are, has expired"))
    planned = plan_purge(plan, base.ledger, files_now, run, cleared, kept)
    if isinstance(planned, PlanAgain):
        return NothingToCommit(StepOutcome(planned.why))
    change: Change
    dangling = _position_deletes_of(table, base, step.removed)
    loses_aged = bool(plan.losing_aged)
    if plan.rewrite and loses_aged:
        # Rows that readers saw are gone, so this is no `replace`.
        change = Overwrite(step.removed, step.added, plan.snapshot_id, dangling)
    elif plan.rewrite:
        change = RewriteFiles(step.removed, step.added, plan.snapshot_id, dangling)
    elif dangling and base.facts.head_id is not None:
        change = RowDelta(DeleteChanges(replaced=dangling), (), base.facts.head_id, step.removed)
    elif plan.delete:
        change = DeleteFiles(step.removed)
    else:
        change = LedgerOnly()
    if isinstance(change, LedgerOnly) and planned.delta.is_empty:
        return NothingToCommit(StepOutcome())
    delta = base.moved(planned.delta, [f.partition for f in plan.rewrite], step.added)
    outcome = StepOutcome(tombstones=len(delta.remove_tombstones))
    cutoff = plan.aged.cutoff if plan.aged is not None and loses_aged else None
    return Intent(delta, change, outcome, planned.vacuumed, unfinished=step.more, retention_cutoff=cutoff)


def _position_deletes_of(table: SparkTable, base: Base, removed: Iterable[DataFile]) -> tuple[Any, ...]:
    """The position deletes that apply to one of these data files, and to no other. Iceberg itself removes only vectors."""
    if base.facts.head_id is None:
        return ()
    deletes = native_deletes(base.iceberg.io, base.manifests()).of_file
    paths = frozenset[str]().union(*(deletes[f.path] for f in removed if f.path in deletes))
    return delete_files_at(table, base.facts.head_id, paths) if paths else ()


def _largest_partition(files: Iterable[FileBounds]) -> int:
    """The total bytes of the files in the largest partition. Files of unknown partitions count as one partition."""
    by_partition: dict[str | None, int] = {}
    for f in files:
        by_partition[f.partition] = by_partition.get(f.partition, 0) + f.size
    return max(by_partition.values(), default=0)


@dataclass
class Tally:
    """What the steps of a run have done so far."""

    snapshot_id: int | None = None
    """The snapshot of the last commit; None: nothing was committed."""
    steps: int = 0
    """The number of steps with a commit."""
    tombstones: int = 0
    """The number of tombstones that were removed."""
    rows: int = 0
    """The number of rows that were purged."""
    files_rewritten: int = 0
    files_deleted: int = 0
    """Files that were deleted whole."""
    files_added: int = 0
    bytes_rewritten: int = 0
    bytes_copied: int = 0
    """Bytes, of these, in row groups that were copied."""
    files_in_vain: int = 0
    """Files that were rewritten and held no rows to purge."""
    seconds: float = 0.0
    """Seconds of planning, writing and committing."""


@dataclass
class Purging:
    """Purges the tombstones of a survey."""

    context: RunContext
    table: SparkTable
    spec: VacuumSpec
    survey: Survey
    time_is_up: Callable[[], str]
    """Returns why no step may start any more; empty: one may."""
    step_bytes: int
    """The size of the next step. Steps become smaller while others change their files before the commit, then larger again."""
    cleared: set[str] = field(default_factory=set)
    """Paths of files that hold no rows of the tombstones: they were searched, or written by this run."""
    held: dict[str, KeptFile] = field(default_factory=dict)
    """The files that stay as they are, by path, because holds cover rows that would leave."""
    tally: Tally = field(default_factory=Tally)
    stopped: str = ""
    """Why the run stopped although the budget allowed more; empty: it did not."""

    def __post_init__(self) -> None:
        # The files that the run did not rewrite and that might hold rows to purge.
        self.left = (*self.survey.plan.rewrite, *self.survey.plan.postponed)
        self.live = self.survey.live
        self.expired = frozenset(t.id for t in self.survey.expired)
        self.searched = SearchResults(frozenset(t.id for t in self.survey.tombstones) | self.expired)
        retention = self.survey.retention
        self.ages = (
            AgeResults(retention.column, retention.cutoff_time)
            if retention is not None and retention.column is not None
            else None
        )
        self.held_ages = HeldAges(retention) if retention is not None and self.context.spec.holds else None
        # Paths of the files of the approved plan. None: the run needs no approval.
        self.approved = self.survey.plan.touched if self.spec.approved_plan else None

    def work(self) -> bool:
        """Do steps until nothing is left that the budget, the time and the approval allow.

        Returns:
            False, if nothing was done because files or tombstones of the first step changed in the meantime. Then the caller must
            survey again: there may be more to purge, and the plan may not be the approved one any more. Later steps are planned
            again here.

        Raises:
            InputError: `DataFileMissing`, if nothing could be purged because of it.
            ConflictError: `DataMoved`.
            TransientError: A dependency is temporarily unavailable.
        """
        replans = further = 0
        while not self._is_stopped():
            self.context.step(f"step-{self.tally.steps + 1}")
            began = time.monotonic()
            step = self._purge_data()
            done = self._commit(step)
            self.tally.seconds += time.monotonic() - began
            if done.outcome.plan_again:
                log.info("step %d of the vacuum is planned again: %s", self.tally.steps + 1, done.outcome.plan_again)
                self.step_bytes = bytes_after_conflict(step.plan.rewrite, self.step_bytes)
                if not self.tally.steps:
                    return False
                replans += 1
                if replans == PLANS:
                    raise files_kept_changing(self.table, self.tally.steps)
                continue
            replans = 0
            self.step_bytes = min(2 * self.step_bytes, self.spec.step_bytes)
            self._count(step, done)
            if not step.more:
                further += 1
                if further == PLANS or not self._has_unsearched():
                    break
        if self.searched.missing and not self.tally.steps:
            if lost := self._message_of_missing():
                raise InputError("DataFileMissing", lost)
            return False  # others replaced these files, and deleted them
        return True

    def _has_unsearched(self) -> bool:
        """Whether files came during the last step that might hold rows of the tombstones, which stay until they are searched."""
        left = {f.path for f in self.left}
        return any(f.path not in self.searched and f.path not in left for f in self._may_contain_deleted_rows())

    @property
    def message(self) -> str:
        """What the user must know about a successful run; empty: nothing."""
        texts = [self._message_of_missing()]
        if self.held:
            by = self._named(f.holds for f in self.held.values())
            texts.append(
                f"{len(self.held)} data files stay as they are, because rows to purge in them are covered by {by}."
            )
        if old := self._holds_of_ages:
            by = self._named(old.values())
            texts.append(f"{len(old)} data files keep rows that are too old, because some are covered by {by}.")
        return " ".join(filter(None, texts))

    def _named(self, holds: Iterable[frozenset[str]]) -> str:
        names = frozenset[str]().union(*holds)
        return named(h for h in self.context.spec.holds if h.name in names)

    @property
    def _holds_of_ages(self) -> Mapping[str, frozenset[str]]:
        """By path, the holds of the files whose rows stay although they are too old."""
        return self.held_ages.holds if self.held_ages is not None else {}

    @property
    def holding(self) -> Mapping[str, frozenset[str]]:
        """By path, the names of the holds that keep rows of files. Some of these files were rewritten, without other rows."""
        by_path = {path: f.holds for path, f in self.held.items()}
        return {**by_path, **{p: names | by_path.get(p, frozenset()) for p, names in self._holds_of_ages.items()}}

    def _message_of_missing(self) -> str:
        missing = sorted(self.searched.missing & self.live.found.keys())
        if not missing:
            return ""
        return (
            f"{self.table.full_name}: {len(missing)} data files of the table are missing in its storage, the "
            f"first is {without_values(missing[0])}. Their rows are lost, and reads of the whole table fail. Tombstones that "
            "may have rows in these files remain. Restore the files, or remove them from the table. All "
            "other rows were purged."
        )

    # --- SCAN and PURGE DATA --------------------------------------------------------------------------------------------

    def _purge_data(self) -> PurgeProgress:
        """Read the head, choose the files of a step, and write their remaining rows to new files."""
        self.context.reporter.phase(Phase.SCAN, f"step {self.tally.steps + 1}")
        base = observe_base(self.context, self.table)
        active = self._observe(base)
        assert base.facts.head_id is not None
        all_rows_deleted, dirty, emptied, postponed = self._chosen(base)
        self._set_held_aside(base, active, (*all_rows_deleted, *emptied), dirty)
        all_rows_deleted = tuple(f for f in all_rows_deleted if f.path not in self.held)
        dirty, emptied = ([f for f in files if f.path not in self.held] for files in (dirty, emptied))
        target = target_bytes(self.spec.target_file_size_bytes, base.iceberg.properties)
        by_ids = [f for f in dirty if not self._has_old_times(f)]
        alone = filterable(base, by_ids, self.live.found, self._losses(by_ids), target)
        merged = self._merged([f for f in dirty if f.path not in alone])
        held = {f.lower for f in all_rows_deleted}.union(*(self._held(f) for f in (*dirty, *emptied)))
        all_rows_deleted = (*all_rows_deleted, *emptied)
        rewrite = (*dirty, *merged)
        along = also_purged(base.ledger, base.field_id, active, rewrite)
        applied = (*(t for t in active if t.id in held), *along)
        aged = self._aged(base, (*all_rows_deleted, *dirty), held)
        plan = VacuumPlan(base.facts.head_id, all_rows_deleted, rewrite, active, applied, tuple(postponed), aged)
        size = sum(f.size for f in plan.rewrite)
        self.context.reporter.phase(
            Phase.PURGE_DATA,
            f"step {self.tally.steps + 1}: {len(plan.rewrite)} files to rewrite ({size} bytes), "
            f"{len(all_rows_deleted)} to delete, {len(postponed)} left",
        )
        self.left = (*postponed, *self._not_approved())
        more = any(self._fits(f, size) for f in postponed)
        progress = PurgeProgress(plan, merged, alone, more)
        return write(self.context, self.table, base, progress, target, self.survey.retention)

    def _aged(self, base: Base, files: Iterable[FileBounds], held: Collection[str | None]) -> AgedRows | None:
        """What a step with these files removes for its age.

        Args:
            held: The batches of which the files have rows to purge.
        """
        retention = self.survey.retention
        if retention is None:
            return None
        paths = frozenset(f.path for f in files if self._has_old_times(f) or self._of_old_batches(f))
        ids = self.expired.intersection(held)
        return AgedRows(retention.cutoff, retention.spec.rule, base.field_id, paths, ids)

    def _has_old_times(self, file: FileBounds) -> bool:
        """Whether a file of a step has rows whose times are too old, or may have."""
        suspect = self.live.found[file.path]
        has_old = self.ages is not None and (self.ages.holds(suspect) or self.ages.is_all_of(suspect))
        return has_old and file.path not in self._holds_of_ages

    def _is_all_old(self, file: FileBounds) -> bool:
        """Whether all rows of a file of a step leave because their times are too old."""
        is_all_old = self.ages is not None and self.ages.is_all_of(self.live.found[file.path])
        return is_all_old and file.path not in self._holds_of_ages

    def _of_old_batches(self, file: FileBounds) -> bool:
        """Whether a file of a step has rows of batches that are too old, or may have."""
        return not self.expired.isdisjoint(self._ids_in(file))

    def _ids_in(self, file: FileBounds) -> Collection[str | None]:
        """The ids of the tombstones and of the old batches of which a file of a step loses rows."""
        return {file.lower} if self._is_whole(self.live.found[file.path]) else self._held(file)

    def _is_whole(self, file: Suspect) -> bool:
        """Whether metadata proves that all rows of a file leave."""
        return file.all_rows_deleted and file.bounds.path not in self._holds_of_ages

    def _chosen(
        self, base: Base
    ) -> tuple[tuple[FileBounds, ...], list[FileBounds], list[FileBounds], list[FileBounds]]:
        """The files of a step.

        Returns:
            Those to delete by their metadata, and those that `_dirty` returns.
        """
        while True:
            dirty, emptied, postponed = self._dirty(base)
            whole = tuple(s.bounds for s in self.live.found.values() if self._is_whole(s) and self._is_open(s))
            if not self._keep_held_ages(base, (*whole, *emptied, *dirty)):
                return whole, dirty, emptied, postponed

    def _keep_held_ages(self, base: Base, files: Iterable[FileBounds]) -> bool:
        """Look for files in which holds cover rows that are too old. These files keep all such rows.

        Returns:
            Whether there are further ones.
        """
        if self.held_ages is None:
            return False
        losing = [f for f in files if self._has_old_times(f) or self._of_old_batches(f)]
        expired = frozenset(i for f in losing for i in self._ids_in(f) if i in self.expired)
        found = self.held_ages.search(self.context, base, [self._leaving_for_age(f) for f in losing], expired)
        for f in losing:
            # If nothing else can leave, nothing else needs to be searched.
            if f.path in found and not (self._may_be_tombstoned(f) or (f.deletes and self.live.erasing)):
                self.cleared.add(f.path)
        return bool(found)

    def _may_be_tombstoned(self, file: FileBounds) -> bool:
        return bool(frozenset(self.live.suspects.within(file)) - self.expired)

    def _leaving_for_age(self, file: FileBounds) -> LeavingRows:
        """The rows of a file of a step that leave for their age, but for those of old batches.

        If the times in the file are unknown, any of its rows may leave.
        """
        is_unsure = self.ages is not None and file.path in self.ages.unsure
        is_whole = is_unsure or self._is_whole(self.live.found[file.path]) or self._is_all_old(file)
        return LeavingRows(file.path, is_whole, hidden=False, matching=self._has_old_times(file))

    def _observe(self, base: Base) -> tuple[Tombstone, ...]:
        """Update the known files to the head.

        Returns:
            The run's tombstones that are still active, as this ledger has them.
        """
        head = base.head()
        assert head is not None
        active = self._active(base.ledger)
        self.live.use((*active, *self.survey.expired))
        self.live.observe(head)
        return active

    def _active(self, ledger: Ledger) -> tuple[Tombstone, ...]:
        """The run's tombstones that are still active.

        Tombstones that were set again in the meantime count too, because the same rows are searched; but not under an approval,
        which is for the earlier deletion.
        """
        surveyed = self.survey.tombstones
        if self.approved is not None:
            return tuple(still_active(surveyed, ledger).values())
        return tuple(get_many(ledger.tombstones, [t.key for t in surveyed]).values())

    def _dirty(self, base: Base) -> tuple[list[FileBounds], list[FileBounds], list[FileBounds]]:
        """Search the files that might hold rows to purge, until there are enough for a step. Files without such rows are cleared.

        Returns:
            The files of the step with such rows and others; the files with only such rows, which are deleted whole and need no
            budget; and the files that were not searched yet or do not fit into the budget.
        """
        waiting = self.survey.in_order(self._may_contain_deleted_rows())
        dirty, emptied, postponed = list[FileBounds](), list[FileBounds](), list[FileBounds]()
        taken = searches = 0
        for index, f in enumerate(waiting):
            if dirty and taken + f.size > self.step_bytes:
                return dirty, emptied, postponed + waiting[index:]
            if not self._fits(f, taken):
                postponed.append(f)
                continue
            if f.path not in self.searched:
                if searches and self.time_is_up():
                    return dirty, emptied, postponed + waiting[index:]
                searches += 1
                ahead = first_step([g for g in waiting[index:] if self._fits(g, taken)], self.step_bytes)
                self._search(base, [self.live.found[g.path] for g in ahead])
            if f.path in self.searched.missing:
                continue
            held = self._held(f)
            if (held and self.searched.count(f.path, held) == f.records) or self._is_all_old(f):
                emptied.append(f)
            elif held or (f.deletes and self.live.erasing) or self._has_old_times(f):
                dirty.append(f)
                taken += f.size
            else:
                self.cleared.add(f.path)
        return dirty, emptied, postponed

    def _may_contain_deleted_rows(self) -> list[FileBounds]:
        """The known files, neither settled nor deleted by their metadata, of which some rows may leave."""
        return [s.bounds for s in self.live.found.values() if not self._is_whole(s) and self._is_open(s)]

    def _search(self, base: Base, files: Sequence[Suspect]) -> None:
        """Look for rows to purge in the files."""
        self.searched.search(self.context, base, files)
        if self.ages is not None:
            unknown = [s for s in files if s.age is Age.UNKNOWN and s.bounds.path not in self.searched.missing]
            self.ages.search(self.context, base, unknown)

    def _held(self, file: FileBounds) -> set[str]:
        """The ids of the tombstones and of the old batches of which a searched file holds rows that leave."""
        held = self.searched.held(file.path, self.live.suspects.within(file))
        return held - self.expired if file.path in self._holds_of_ages else held

    def _set_held_aside(
        self, base: Base, active: Collection[Tombstone], whole: Sequence[FileBounds], dirty: Sequence[FileBounds]
    ) -> None:
        """Leave the files as they are of which holds cover rows that this step would remove because they are hidden.

        Rows that leave for their age are not asked about again: `_keep_held_ages` has found that no hold covers them.

        Args:
            active: The run's tombstones.
            whole: The files to delete.
            dirty: The files to rewrite.
        """
        if not self.context.spec.holds:
            return
        purged = {t.id for t in active}
        ids = {i for f in (*whole, *dirty) for i in self._ids_in(f) if i in purged}
        ids |= {t.id for t in also_purged(base.ledger, base.field_id, active, dirty)}
        leaving = [LeavingRows(f.path, is_whole=True) for f in whole] + [LeavingRows(f.path) for f in dirty]
        found = covering(self.context, base, leaving, Leaving(frozenset(i for i in ids if i is not None)))
        for f in (*whole, *dirty):
            if f.path in found:
                is_searched = f.path in self.searched
                ids_in_file = self._held(f) if is_searched else self.live.suspects.within(f)
                is_sure = f.path not in self.searched.unsure
                kept = KeptFile(f.path, found[f.path], frozenset(ids_in_file), is_sure, bool(f.deletes))
                self.held[f.path] = kept
        if found:
            log.info("%d data files stay as they are: holds cover rows that would leave", len(found))

    def _losses(self, files: Iterable[FileBounds]) -> dict[str, Loss]:
        """What each file loses that could be searched."""
        held = {f.path: frozenset(self._held(f)) for f in files if f.path not in self.searched.unsure}
        return {path: Loss(ids, self.searched.count(path, ids)) for path, ids in held.items()}

    def _is_open(self, file: Suspect) -> bool:
        path = file.bounds.path
        is_settled = path in self.cleared or path in self.searched.missing or path in self.held
        return not is_settled and (self.approved is None or path in self.approved)

    def _not_approved(self) -> tuple[FileBounds, ...]:
        if self.approved is None:
            return ()
        return tuple(
            s.bounds for p, s in self.live.found.items() if p not in self.approved | self.cleared | self.held.keys()
        )

    def _fits(self, file: FileBounds, taken: int) -> bool:
        """Whether the file fits into the budget, after other files of `taken` bytes.

        The first file of a run always fits: otherwise a file larger than the budget would never be purged.
        """
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
        small = [s.bounds for s in self.live.small.values()]
        if self.context.spec.holds:  # a merge would remove rows that native deletes hide
            small = [f for f in small if not f.deletes]
        return small_neighbours(tuple(dirty), small, left)

    # --- COMMIT ---------------------------------------------------------------------------------------------------------

    def _commit(self, step: PurgeProgress) -> Committed[StepOutcome]:
        attempts = Attempts()
        try:
            done = commit_on_ledger(self.context, self.table, lambda base: self._intent(base, step), attempts)
        except Exception:
            discard(self.table, step.added, attempts)
            raise
        if done.outcome.plan_again:
            discard(self.table, step.added, attempts)
        return done

    def _intent(self, base: Base, step: PurgeProgress) -> Intent[StepOutcome] | NothingToCommit[StepOutcome]:
        self._observe(base)
        merged = (self.live.small.get(f.path) for f in step.merged)
        there = [s.bounds for s in (*self.live.found.values(), *merged) if s is not None]
        return intent(self.table, base, step, self.context.run_id, there, self.cleared, tuple(self.held.values()))

    @property
    def leaves_aged(self) -> bool:
        """Whether the run has left rows that are too old, as far as it knows."""
        if self.survey.plan.aged is None:
            return False
        untouched = self.survey.plan.delete if not self.tally.steps and self.stopped else ()
        settled = self.searched.missing | self.holding.keys()  # the next vacuum could not remove more of these files
        left = [f for f in (*self.left, *untouched) if f.path in self.live.found and f.path not in settled]
        return bool(aged_files(self.live, [self.live.found[f.path] for f in left]))

    @property
    def aged_held(self) -> frozenset[str]:
        """The paths of the files that keep rows that are too old because of holds, as far as is known."""
        held = [self.live.found[path] for path in self.held if path in self.live.found]
        return aged_files(self.live, held) | self._holds_of_ages.keys()

    # --- results --------------------------------------------------------------------------------------------------------

    def _is_stopped(self) -> bool:
        self.stopped = self.time_is_up()
        return bool(self.stopped)

    def _count(self, step: PurgeProgress, done: Committed[StepOutcome]) -> None:
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
        found_rows = sum(n for f in plan.rewrite for i, n in self.searched.rows.get(f.path, {}).items() if i in ids)
        found_rows += sum(f.records for f in plan.delete)
        return len(unsure) if went <= found_rows else 0


def files_kept_changing(table: SparkTable, steps: int) -> ConflictError:
    """The error `DataMoved` of a run that gives up after this number of committed steps, which stay in the table."""
    return ConflictError(
        "DataMoved",
        f"{table.full_name}: files of the vacuum were replaced, or rows in them deleted, each time before it committed, by "
        "Restatements or other writers. A later run tries again. "
        f"The {steps} steps that this run has committed remain.",
    )
