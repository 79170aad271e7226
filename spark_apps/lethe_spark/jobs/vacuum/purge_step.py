"""Carries out one step of a vacuum: writes the remaining rows of its files to new files, then replaces the files and updates the
tombstones in one commit. I/O; `lethe.vacuum.plan` decides what may be committed."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from lethe.base.errors import ConflictError
from lethe.files.bounds import FileBounds
from lethe.iceberg.native_deletes import native_deletes
from lethe.purge.filtering import Loss
from lethe.vacuum.plan import PlanAgain, VacuumPlan, plan_purge

from lethe_spark.commit.ledger_commit import Attempts, Intent, NothingToCommit
from lethe_spark.commit.table_state import Base
from lethe_spark.commit.unpublished import discard
from lethe_spark.jobs.vacuum.filtering import filter_files, kept_metrics
from lethe_spark.jvm.commit import Change, DeleteFiles, LedgerOnly, Rewrite, RowDelta
from lethe_spark.jvm.data_files import DataFile, tasks_of
from lethe_spark.jvm.deletes import DeleteChanges
from lethe_spark.jvm.manifests import delete_files_at
from lethe_spark.jvm.rewrite import scan_tasks, write_uncommitted
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import RunContext
from lethe_spark.sql.frames import anti_join
from lethe_spark.sql.row_counts import count_without_batches, require_every_row, require_written

# A partition up to this size is written by one task, in order. Spark may split a larger one among tasks, and not by batch.
ONE_TASK_BYTES: Final = 128 * 1024**2


@dataclass(frozen=True)
class Step:
    """A step, before and after its files are written."""

    plan: VacuumPlan
    merged: tuple[FileBounds, ...] = ()  # small files without deleted rows among the plan's files to rewrite
    alone: Mapping[str, Loss] = field(default_factory=dict)  # what the files lose that are purged one by one, by path
    more: bool = False  # whether the run has more to do after this step
    removed: tuple[DataFile, ...] = ()  # the plan's files to delete and to rewrite, as objects of the JVM
    added: tuple[DataFile, ...] = ()  # the new files that replace the rewritten ones
    copied_bytes: int = 0  # of row groups that were copied into them
    format_version: int = 0  # of the table when they were written


@dataclass(frozen=True)
class Outcome:
    """What became of a step."""

    plan_again: str = ""  # why the step must be planned again, because the table changed; empty: it need not
    tombstones: int = 0  # the number of tombstones that were removed


def write(context: RunContext, table: SparkTable, base: Base, step: Step, target_bytes: int) -> Step:
    """PURGE DATA: write the remaining rows of the step's files. Returns: the step with the removed and the new files.

    Args:
        target_bytes: The size of a file.
    Raises: ConflictError (`DataMoved`; `RowsDiffer`, if rows of the files were not read or not written). Then there are no new
        files.
    """
    plan = step.plan
    # Planning the scan tasks lists all files of the table, so it is done once for the whole step.
    metrics_of = kept_metrics(base) if step.alone else ()
    tasks = tasks_of(table, plan.touched, plan.snapshot_id, metrics_of) if plan.touched else []
    found = {file.path: (file, task) for task in tasks for file in [DataFile.of(task.file())]}
    # Which deletes apply to a file is what its scan task says. Only Spark applies them.
    alone = [(found[path][0], loss) for path, loss in step.alone.items() if found[path][1].deletes().isEmpty()]
    filtered = filter_files(context, table, base, alone)
    added = filtered.added
    rest = [f for f in plan.rewrite if f.path not in filtered.replaced]
    if rest:
        with scan_tasks(table, [found[f.path][1] for f in rest]) as scanned:
            ids = {t.id for t in plan.applied}
            counts = count_without_batches(scanned, base.batch_column, ids)
            one_task = _largest_partition(rest) <= ONE_TASK_BYTES
            survivors: tuple[DataFile, ...] = ()
            try:
                require_every_row(table.full_name, scanned.files, counts)
                survivors = write_uncommitted(
                    table,
                    anti_join(scanned.frame, base.batch_column, ids),
                    context.run_id,
                    target_bytes,
                    one_pass=one_task,
                    by_range=not one_task,
                )
                require_written(table.full_name, counts.kept, survivors)
            except ConflictError:
                discard(table, (*added, *survivors), Attempts())
                raise
            added += survivors
    context.step("after-write")
    removed = tuple(file for file, _ in found.values())
    return replace(
        step, removed=removed, added=added, copied_bytes=filtered.copied_bytes, format_version=base.facts.format_version
    )


def intent(
    table: SparkTable, base: Base, step: Step, run: str, files_now: Collection[FileBounds], cleared: Collection[str]
) -> Intent[Outcome] | NothingToCommit[Outcome]:
    """PURGE METADATA: plan the commit of a step. Called for each attempt to commit.

    Args:
        files_now, cleared: As `lethe.vacuum.plan.plan_purge`.
    """
    plan = step.plan
    if (
        base.facts.format_version != step.format_version
    ):  # since version 3 rows have ids, which the files would have to store
        return NothingToCommit(Outcome("the format version of the table has changed"))
    planned = plan_purge(plan, base.ledger, files_now, run, cleared)
    if isinstance(planned, PlanAgain):
        return NothingToCommit(Outcome(planned.why))
    change: Change
    dangling = _position_deletes_of(table, base, step.removed)
    if plan.rewrite:
        change = Rewrite(step.removed, step.added, plan.snapshot_id, dangling)
    elif dangling and base.facts.head_id is not None:
        change = RowDelta(DeleteChanges(replaced=dangling), (), base.facts.head_id, step.removed)
    elif plan.delete:
        change = DeleteFiles(step.removed)
    else:
        change = LedgerOnly()
    if isinstance(change, LedgerOnly) and planned.delta.is_empty:
        return NothingToCommit(Outcome())
    delta = base.moved(planned.delta, [f.partition for f in plan.rewrite], step.added)
    outcome = Outcome(tombstones=len(delta.remove_tombstones))
    return Intent(delta, change, outcome, planned.vacuumed, unfinished=step.more)


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
