"""Vacuum: SCAN, PURGE DATA, PURGE METADATA, COMMIT, and the expiry of old snapshots.

I/O; which files and which tombstones is decided in `lethe.plan.vacuum`, which snapshots in `lethe.plan.expiry`.
"""

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from lethe.errors import ConflictError
from lethe.ledger.parts import get_many
from lethe.plan.vacuum import PlanAnew, Purge, VacuumPlan, plan_purge, plan_vacuum
from lethe.run import Phase, RunResult

from lethe_spark.base import Base, observe_base
from lethe_spark.context import RunContext
from lethe_spark.frames import anti_join
from lethe_spark.jobs.tidying import clean_up, expire_down, finished
from lethe_spark.jvm.commit import Change, DeleteFiles, LedgerOnly, Rewrite, RowDelta
from lethe_spark.jvm.data_files import DataFile
from lethe_spark.jvm.deletes import NativeDeletes
from lethe_spark.jvm.equality import our_equality_deletes
from lethe_spark.jvm.rewrite import scan_files, write_uncommitted
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.ledger_commit import Attempts, Committed, Intent, NothingToCommit, commit_on_ledger
from lethe_spark.opening import open_table
from lethe_spark.unpublished import discard

log = logging.getLogger(__name__)
# A vacuum whose files keep being rewritten by others under it gives way after so many plans.
PLANS = 3


@dataclass(frozen=True)
class Purged:
    """Files of the plan as the JVM holds them, and what was written in place of the rewritten ones."""

    plan: VacuumPlan
    removed: tuple[DataFile, ...]
    added: tuple[DataFile, ...]


@dataclass(frozen=True)
class Outcome:
    """`purged` None: the table moved under the plan, which has to be made anew."""

    purged: Purged | None
    tombstones: int = 0


def run(context: RunContext) -> RunResult:
    """Purge rows that are tombstoned now: all, or as many as the budget allows.

    Raises: InputError, ConflictError (`DataMoved`), TransientError.
    """
    spec = context.spec.vacuum
    assert spec is not None
    context.reporter.phase(Phase.PLANNING)
    table = open_table(context)
    snapshot_id: int | None = None
    outcome = Outcome(None)
    for _ in range(PLANS):
        purged = _purge_data(context, table)
        if purged is None:
            break
        done = _commit(context, table, purged)
        outcome, snapshot_id = done.outcome, done.snapshot_id
        if outcome.purged is not None:
            break
    else:
        raise ConflictError(
            "DataMoved", f"{table.full_name}: its files kept changing under the vacuum; it is tried later."
        )
    result = _result(context, outcome, snapshot_id)
    if spec.expire_snapshots:
        # Purged files leave the storage only with the last snapshot that names them.
        result = result.model_copy(
            update={
                "snapshots_expired": expire_down(context, table, spec.snapshots, by_age=True),
                "ledger_files_removed": clean_up(context, table),
            }
        )
    return finished(context, table, result)


def _commit(context: RunContext, table: SparkTable, purged: Purged) -> Committed[Outcome]:
    attempts = Attempts()
    try:
        done = commit_on_ledger(context, table, lambda base: _purge_metadata(context, table, base, purged), attempts)
    except ConflictError:
        discard(table, purged.added, attempts)
        raise
    if done.outcome.purged is None:
        discard(table, purged.added, attempts)
    return done


def _purge_data(context: RunContext, table: SparkTable) -> Purged | None:
    """SCAN and PURGE DATA: write the survivors of the planned files. None: no tombstone is active, no row waits to be erased."""
    context.reporter.phase(Phase.SCAN)
    base = observe_base(context, table)
    if base.facts.head_id is None:
        return None
    spec = context.spec.vacuum
    assert spec is not None
    due_by = datetime.now(UTC) + timedelta(seconds=spec.evict_by_lead_seconds)
    plan = plan_vacuum(base.ledger, base.facts.head_id, base.files(), base.field_id, spec.max_bytes, due_by)
    if not plan.tombstones and not plan.rewrite:
        return None
    size = sum(f.size for f in plan.rewrite)
    context.reporter.phase(
        Phase.PURGE_DATA,
        f"{len(plan.rewrite)} files to rewrite ({size} bytes), {len(plan.delete)} to delete, {len(plan.postponed)} left",
    )
    added: tuple[DataFile, ...] = ()
    removed: tuple[DataFile, ...] = ()
    if plan.delete:
        with scan_files(table, [f.path for f in plan.delete], plan.snapshot_id) as whole:
            removed += whole.files
    if plan.rewrite:
        with scan_files(table, [f.path for f in plan.rewrite], plan.snapshot_id) as scanned:
            survivors = anti_join(scanned.frame, base.batch_column, {t.id for t in plan.applied})
            added = write_uncommitted(table, survivors, context.spec.run_id)
            removed += scanned.files
    context.step("after-write")
    return Purged(plan, removed, added)


def _purge_metadata(
    context: RunContext, table: SparkTable, base: Base, purged: Purged
) -> Intent[Outcome] | NothingToCommit[Outcome]:
    """PURGE METADATA, asked anew for each attempt to commit."""
    planned = plan_purge(purged.plan, base.ledger, base.files(), context.spec.run_id)
    if isinstance(planned, PlanAnew):
        log.info("the vacuum is planned anew: %s", planned.why)
        return NothingToCommit(Outcome(None))
    change: Change
    dangling = _dangling(table, base, planned)
    if purged.plan.rewrite:
        change = Rewrite(purged.removed, purged.added, purged.plan.snapshot_id, dangling)
    elif dangling and base.facts.head_id is not None:
        change = RowDelta(NativeDeletes(replaced=dangling), (), base.facts.head_id, purged.removed)
    elif purged.plan.delete:
        change = DeleteFiles(purged.removed)
    else:
        change = LedgerOnly()
    if isinstance(change, LedgerOnly) and planned.delta.is_empty:
        return NothingToCommit(Outcome(purged))
    delta = base.moved(planned.delta, [f.partition for f in purged.plan.rewrite], purged.added)
    return Intent(delta, change, Outcome(purged, len(delta.remove_tombstones)), planned.vacuumed)


def _dangling(table: SparkTable, base: Base, purge: Purge) -> tuple[Any, ...]:
    """Our equality deletes of batches of which no row is left once this purge is committed."""
    if base.facts.head_id is None:
        return ()
    ours = our_equality_deletes(table, base.iceberg.io, base.manifests(), base.facts.head_id)
    keys = {(base.field_id, i) for f in ours for i in f.ids}
    left = {i for _, i in get_many(base.ledger.tombstones, keys).keys() - purge.delta.remove_tombstones}
    return tuple(f.java for f in ours if left.isdisjoint(f.ids))


def _result(context: RunContext, outcome: Outcome, snapshot_id: int | None) -> RunResult:
    spec, purged = context.spec, outcome.purged
    removed = sum(f.records for f in purged.removed) if purged else 0
    added = sum(f.records for f in purged.added) if purged else 0
    return RunResult(
        run_id=spec.run_id,
        kind=spec.kind,
        attempt=spec.attempt,
        outcome="Committed" if snapshot_id is not None else "NothingToDo",
        snapshot_id=snapshot_id,
        files_rewritten=len(purged.plan.rewrite) if purged else 0,
        files_deleted=len(purged.plan.delete) if purged else 0,
        files_added=len(purged.added) if purged else 0,
        bytes_rewritten=sum(f.size for f in purged.plan.rewrite) if purged else 0,
        tombstones_purged=outcome.tombstones,
        rows_purged=removed - added,
        files_left=len(purged.plan.postponed) if purged else 0,
        bytes_left=sum(f.size for f in purged.plan.postponed) if purged else 0,
        finished_time=datetime.now(UTC),
    )
