"""One step of a vacuum: the survivors of its files are written, and take their place in one commit with what becomes of the
tombstones. I/O; what may be committed is decided in `lethe.vacuum.plan`."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from lethe.files.bounds import FileBounds
from lethe.ledger.parts import get_many
from lethe.vacuum.plan import PlanAgain, Purge, VacuumPlan, plan_purge

from lethe_spark.commit.ledger_commit import Intent, NothingToCommit
from lethe_spark.commit.table_state import Base
from lethe_spark.jvm.commit import Change, DeleteFiles, LedgerOnly, Rewrite, RowDelta
from lethe_spark.jvm.data_files import DataFile, tasks_of
from lethe_spark.jvm.deletes import DeleteChanges
from lethe_spark.jvm.equality import our_equality_deletes
from lethe_spark.jvm.rewrite import scan_tasks, write_uncommitted
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import RunContext
from lethe_spark.sql.frames import anti_join

# A partition up to this size is written by one task, in order; Spark might share out a larger one among several, not by batches.
ONE_TASK_BYTES: Final = 128 * 1024**2


@dataclass(frozen=True)
class Step:
    """`plan`: with `merged` among its files to rewrite, small ones that hold nothing deleted. `more`: whether the run has
    anything to do after it. `removed`: its files as the JVM holds them, `added`: what was written in place of the others."""

    plan: VacuumPlan
    merged: tuple[FileBounds, ...] = ()
    more: bool = False
    removed: tuple[DataFile, ...] = ()
    added: tuple[DataFile, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """`anew`: why the step has to be planned anew, the table having moved under it; "": it is done. `tombstones`: that ended."""

    anew: str = ""
    tombstones: int = 0


def write(context: RunContext, table: SparkTable, base: Base, step: Step, target_bytes: int | None) -> Step:
    """PURGE DATA: write the survivors of the step's files."""
    plan, added = step.plan, tuple[DataFile, ...]()
    # To find files takes a look at all of the table's: once for all of a step.
    tasks = tasks_of(table, plan.touched, plan.snapshot_id) if plan.touched else []
    found = {file.path: (file, task) for task in tasks for file in [DataFile.of(task.file())]}
    if plan.rewrite:
        with scan_tasks(table, [found[f.path][1] for f in plan.rewrite]) as scanned:
            survivors = anti_join(scanned.frame, base.batch_column, {t.id for t in plan.applied})
            one_task = _largest_partition(plan.rewrite) <= ONE_TASK_BYTES
            added = write_uncommitted(
                table, survivors, context.run_id, target_bytes, one_pass=one_task, by_range=not one_task
            )
    context.step("after-write")
    return replace(step, removed=tuple(file for file, _ in found.values()), added=added)


def intent(
    table: SparkTable, base: Base, step: Step, run: str, files_now: Collection[FileBounds], cleared: Collection[str]
) -> Intent[Outcome] | NothingToCommit[Outcome]:
    """PURGE METADATA, asked anew for each attempt to commit.

    Args:
        files_now, cleared: As `lethe.vacuum.plan.plan_purge`.
    """
    plan = step.plan
    planned = plan_purge(plan, base.ledger, files_now, run, cleared)
    if isinstance(planned, PlanAgain):
        return NothingToCommit(Outcome(planned.why))
    change: Change
    dangling = _dangling(table, base, planned)
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


def _dangling(table: SparkTable, base: Base, purge: Purge) -> tuple[Any, ...]:
    """Our equality deletes of batches of which no row is left once this purge is committed."""
    if base.facts.head_id is None:
        return ()
    ours = our_equality_deletes(table, base.iceberg.io, base.manifests(), base.facts.head_id)
    keys = {(base.field_id, i) for f in ours for i in f.ids}
    left = {i for _, i in get_many(base.ledger.tombstones, keys).keys() - purge.delta.remove_tombstones}
    return tuple(f.java for f in ours if left.isdisjoint(f.ids))


def _largest_partition(files: Iterable[FileBounds]) -> int:
    """Bytes of the files in it; those of no known partition might all be in one."""
    by_partition: dict[str | None, int] = {}
    for f in files:
        by_partition[f.partition] = by_partition.get(f.partition, 0) + f.size
    return max(by_partition.values(), default=0)
