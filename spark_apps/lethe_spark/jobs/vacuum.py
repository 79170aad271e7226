"""Vacuum: SCAN, PURGE DATA, PURGE METADATA, COMMIT, and the expiry of old snapshots.

I/O; which files and which tombstones is decided in `lethe.plan.vacuum`, which snapshots in `lethe.plan.expiry`.
"""

import logging
from dataclasses import dataclass
from datetime import UTC, datetime

from lethe.errors import ConflictError
from lethe.plan.expiry import plan_expiry
from lethe.plan.vacuum import PlanAnew, VacuumPlan, plan_purge, plan_vacuum
from lethe.run import Phase, RunResult

from lethe_spark.base import Base, observe_base, open_table
from lethe_spark.context import RunContext
from lethe_spark.frames import anti_join
from lethe_spark.jvm.commit import Change, DeleteFiles, LedgerOnly, Rewrite, expire
from lethe_spark.jvm.rewrite import DataFile, scan_files, write_uncommitted
from lethe_spark.jvm.table import IcebergTable
from lethe_spark.ledger_commit import Intent, NothingToCommit, commit_on_ledger

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
    """Purge every row that is tombstoned now. Raises: InputError, ConflictError (`DataMoved`), TransientError."""
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
        done = commit_on_ledger(context, table, lambda base, p=purged: _purge_metadata(context, base, p))  # type: ignore[misc]
        outcome, snapshot_id = done.outcome, done.snapshot_id
        if outcome.purged is not None:
            break
    else:
        raise ConflictError(
            "DataMoved", f"{table.full_name}: its files kept changing under the vacuum; it is tried later."
        )
    expired = _expire(context, table) if spec.expire_snapshots else 0
    return _result(context, outcome, snapshot_id, expired)


def _purge_data(context: RunContext, table: IcebergTable) -> Purged | None:
    """SCAN and PURGE DATA: write the survivors of the planned files. None: no tombstone is active."""
    context.reporter.phase(Phase.SCAN)
    base = observe_base(context, table)
    if base.facts.head_id is None:
        return None
    plan = plan_vacuum(base.ledger, base.facts.head_id, base.files(), base.field_id)
    if not plan.tombstones:
        return None
    size = sum(f.size for f in plan.rewrite)
    context.reporter.phase(
        Phase.PURGE_DATA, f"{len(plan.rewrite)} files to rewrite ({size} bytes), {len(plan.delete)} to delete"
    )
    added: tuple[DataFile, ...] = ()
    removed: tuple[DataFile, ...] = ()
    if plan.delete:
        with scan_files(table, [f.path for f in plan.delete], plan.snapshot_id) as whole:
            removed += whole.files
    if plan.rewrite:
        with scan_files(table, [f.path for f in plan.rewrite], plan.snapshot_id) as scanned:
            survivors = anti_join(scanned.frame, base.batch_column, {t.id for t in plan.tombstones})
            added = write_uncommitted(table, survivors, context.spec.run_id)
            removed += scanned.files
    context.step("after-write")
    return Purged(plan, removed, added)


def _purge_metadata(context: RunContext, base: Base, purged: Purged) -> Intent[Outcome] | NothingToCommit[Outcome]:
    """PURGE METADATA, asked anew for each attempt to commit."""
    planned = plan_purge(purged.plan, base.ledger, base.files(), context.spec.run_id)
    if isinstance(planned, PlanAnew):
        log.info("the vacuum is planned anew: %s", planned.why)
        return NothingToCommit(Outcome(None))
    change: Change
    if purged.plan.rewrite:
        change = Rewrite(purged.removed, purged.added, purged.plan.snapshot_id)
    elif purged.plan.delete:
        change = DeleteFiles(purged.removed)
    else:
        change = LedgerOnly()
    if isinstance(change, LedgerOnly) and planned.delta.is_empty:
        return NothingToCommit(Outcome(purged))
    return Intent(planned.delta, change, Outcome(purged, len(planned.delta.remove_tombstones)), planned.vacuumed)


def _expire(context: RunContext, table: IcebergTable) -> int:
    """Expire old snapshots, so that purged files leave the storage too."""
    assert context.spec.vacuum is not None
    context.reporter.phase(Phase.EXPIRING)
    base = observe_base(context, table)
    facts = base.facts
    ids = plan_expiry(
        facts.snapshots,
        facts.head_id,
        facts.refs,
        context.spec.vacuum.snapshots,
        datetime.now(UTC),
        base.ledger.carriers,
    )
    return expire(table, ids) if ids else 0


def _result(context: RunContext, outcome: Outcome, snapshot_id: int | None, expired: int) -> RunResult:
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
        snapshots_expired=expired,
        finished_time=datetime.now(UTC),
    )
