"""Vacuum: SCAN, PURGE DATA, PURGE METADATA, COMMIT, and the expiry of old snapshots. I/O.

`lethe.vacuum.plan` decides which files and tombstones to purge, `lethe.vacuum.housekeeping` which snapshots to expire.

SCAN of a vacuum run. I/O: reads the ledger and manifests, no data.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from lethe.contract.result import ErasureCheckResult, Phase, RunOutcome, VacuumResult
from lethe.contract.run import VacuumSpec
from lethe.search.candidates import Survey, traits_of
from lethe.search.candidates import survey as survey_of
from lethe.vacuum.plan import out_of_time

from lethe_spark.commit.ledger_commit import noted_run
from lethe_spark.commit.opening import open_table
from lethe_spark.commit.table_state import Base, observe_base
from lethe_spark.jobs.clean_up import expired, finished
from lethe_spark.jobs.erasure import verify as erasure
from lethe_spark.jobs.lost_partitions import leave_lost_specs
from lethe_spark.jobs.vacuum import compaction, maintenance
from lethe_spark.jobs.vacuum.purge import PLANS, Purging, files_kept_changing
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import RunContext


def survey(base: Base, spec: VacuumSpec) -> Survey | None:
    """Survey the head.

    Returns:
        None, if no tombstone is active and no erasure has rows left to purge.
    """
    head = base.head()
    if head is None:
        return None
    return survey_of(head, base.ledger, base.field_id, traits_of(base.iceberg, base.field_id), spec, datetime.now(UTC))


def run(context: RunContext) -> VacuumResult:
    """Purge the rows that are tombstoned now, within the limits of the run.

    A run that only plans changes nothing and returns the plan.

    Raises:
        InputError: The user has to change something.
        ConflictError: `DataMoved`.
        TransientError: A dependency is temporarily unavailable.
    """
    spec = context.spec.vacuum
    assert spec is not None
    time_is_up = _limited(spec)
    context.reporter.phase(Phase.PLANNING)
    table = open_table(context)
    if spec.plan_only:
        context.reporter.phase(Phase.SCAN)
        surveyed = survey(observe_base(context, table), spec)
        return maintenance.planned(context, table, _only_planned(context, surveyed), time_is_up)
    with noted_run(context, table, None):
        leave_lost_specs(context, table)
        result = _purged(context, table, spec, time_is_up)
    if isinstance(result, NotApproved):
        return maintenance.planned(context, table, result.planned, time_is_up)
    if spec.expire_snapshots:
        # Purged files are deleted from the storage when the last snapshot that names them expires.
        result = expired(context, table, result, spec.snapshots)
    result = maintenance.after_expiry(context, table, result, time_is_up)
    return finished(context, table, erasure.settled(context, table, result))


def bytes_to_read(context: RunContext) -> int:
    """How many bytes of data files this run reads, by its plan for the current head.

    Raises:
        InputError: The user has to change something.
        TransientError: A dependency is temporarily unavailable.
    """
    spec = context.spec.vacuum
    assert spec is not None
    context.reporter.phase(Phase.PLANNING)
    table = open_table(context)
    surveyed = survey(observe_base(context, table), spec)
    size = surveyed.planned.bytes if surveyed is not None else 0
    if spec.maintenance.compact_small_files and not spec.plan_only:
        rest = None if spec.max_bytes is None else max(0, spec.max_bytes - size)
        size += compaction.planned_bytes(context, table, rest)
    return size


def run_erasure_check(context: RunContext) -> ErasureCheckResult:
    """Check the open erasures.

    Raises:
        InputError: The user has to change something.
        ConflictError: The table moved between plan and commit.
        TransientError: A dependency is temporarily unavailable.
    """
    context.reporter.phase(Phase.PLANNING)
    table = open_table(context)
    nothing = ErasureCheckResult(
        run_id=context.spec.run_id,
        family=context.spec.family,
        attempt=context.spec.attempt,
        outcome=RunOutcome.NOTHING_TO_DO,
        finished_time=datetime.now(UTC),
    )
    return finished(context, table, erasure.run(context, table, nothing))


@dataclass(frozen=True)
class NotApproved:
    """The plan is not the approved one."""

    planned: VacuumResult
    """Says so, with the new plan."""


def _purged(
    context: RunContext, table: SparkTable, spec: VacuumSpec, time_is_up: Callable[[], str]
) -> VacuumResult | NotApproved:
    """Purge, then do the maintenance steps that commit."""
    for _ in range(PLANS):
        context.reporter.phase(Phase.SCAN)
        surveyed = survey(observe_base(context, table), spec)
        if spec.approved_plan and (surveyed is None or surveyed.planned.digest != spec.approved_plan):
            return NotApproved(_only_planned(context, surveyed))
        purging = Purging(context, table, spec, surveyed, time_is_up) if surveyed is not None else None
        if purging is None or purging.work():
            break
    else:
        raise files_kept_changing(table, 0)
    return maintenance.before_expiry(context, table, _result(context, purging), time_is_up)


def _limited(spec: VacuumSpec) -> Callable[[], str]:
    """Returns a function that says why the time of the run is up; empty: it is not. The time starts now."""
    began = time.monotonic()
    return lambda: out_of_time(spec, timedelta(seconds=time.monotonic() - began), datetime.now(UTC))


def _only_planned(context: RunContext, found: Survey | None) -> VacuumResult:
    """The result of a run that only plans, or whose plan is not the approved one. It changes nothing and expires no snapshots."""
    spec = context.spec
    assert spec.vacuum is not None
    other = "" if spec.vacuum.plan_only else f"the plan differs from the approved plan {spec.vacuum.approved_plan}"
    return VacuumResult(
        run_id=spec.run_id,
        family=spec.family,
        attempt=spec.attempt,
        outcome=RunOutcome.PLANNED if found is not None else RunOutcome.NOTHING_TO_DO,
        message=f"{spec.table.name}: {other}. Nothing was changed." if other else "",
        plan=found.planned if found is not None else None,
        finished_time=datetime.now(UTC),
    )


def _result(context: RunContext, purging: Purging | None) -> VacuumResult:
    spec = context.spec
    outcome = VacuumResult(
        run_id=spec.run_id,
        family=spec.family,
        attempt=spec.attempt,
        outcome=RunOutcome.NOTHING_TO_DO,
        finished_time=datetime.now(UTC),
    )
    if purging is None:
        return outcome
    tally = purging.tally
    return outcome.model_copy(
        update={
            "outcome": RunOutcome.COMMITTED if tally.snapshot_id is not None else RunOutcome.NOTHING_TO_DO,
            "message": purging.message,
            "snapshot_id": tally.snapshot_id,
            "files_rewritten": tally.files_rewritten,
            "files_deleted": tally.files_deleted,
            "files_added": tally.files_added,
            "bytes_rewritten": tally.bytes_rewritten,
            "bytes_copied": tally.bytes_copied,
            "tombstones_purged": tally.tombstones,
            "rows_purged": tally.rows,
            "files_left": len(purging.left),
            "bytes_left": sum(f.size for f in purging.left),
            "plan": purging.survey.planned,
            "steps": tally.steps,
            "files_in_vain": tally.files_in_vain,
            "purge_seconds": round(tally.seconds, 3),
            "stopped": purging.stopped,
        }
    )
