"""Carries out the maintenance steps of a vacuum run that `spec.maintenance` enables, in order and within its time. I/O.

The commits of the purge stay. A step that fails is left to the next run, and the result's message says so.
"""

import logging
from collections.abc import Callable
from datetime import timedelta

from lethe.contract.result import RunOutcome, VacuumResult
from lethe.contract.run import VacuumSpec

from lethe_spark.commit.tracking import safe_text
from lethe_spark.jobs.vacuum.compaction import compact_small_files
from lethe_spark.jobs.vacuum.manifests import rewrite_manifests
from lethe_spark.jobs.vacuum.orphans import remove_orphan_files
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import Cancelled, RunContext

log = logging.getLogger(__name__)


def before_expiry(
    context: RunContext, table: SparkTable, result: VacuumResult, time_is_up: Callable[[], str]
) -> VacuumResult:
    """Carry out the steps that commit. They come before the expiry, so that it can delete the files that they replace.

    Args:
        result: The result of the purge. If it has a snapshot, this stays the run's snapshot.
        time_is_up: Returns why no step may start any more; empty: one may.
    Returns: the result with what these steps did.
    Raises: Cancelled.
    """
    spec = _spec(context)
    if spec.maintenance.compact_small_files:
        rest = None if spec.max_bytes is None else max(0, spec.max_bytes - result.bytes_rewritten)
        result = _step(
            "small files were not compacted",
            result,
            time_is_up,
            lambda r: _compact(context, table, rest, r, time_is_up),
        )
    if spec.maintenance.rewrite_manifests:
        result = _step("manifests were not rewritten", result, time_is_up, lambda r: _manifests(context, table, r))
    return result


def planned(
    context: RunContext, table: SparkTable, result: VacuumResult, time_is_up: Callable[[], str]
) -> VacuumResult:
    """The result of a run that only plans, with the orphan files that another run would remove. Raises: Cancelled."""
    return after_expiry(context, table, result, time_is_up) if _spec(context).plan_only else result


def after_expiry(
    context: RunContext, table: SparkTable, result: VacuumResult, time_is_up: Callable[[], str]
) -> VacuumResult:
    """Remove orphan files, also those that the expiry left behind. Returns: the result with their number. Raises: Cancelled."""
    spec = _spec(context)
    if not spec.maintenance.remove_orphan_files:
        return result
    return _step("orphan files were not removed", result, time_is_up, lambda r: _sweep(context, table, r, time_is_up))


def _step(
    what: str, result: VacuumResult, time_is_up: Callable[[], str], act: Callable[[VacuumResult], VacuumResult]
) -> VacuumResult:
    """Carry out one step. If there is no time for it or it fails, the result says so."""
    if why := time_is_up():
        return result.model_copy(update={"stopped": result.stopped or why})
    try:
        return act(result)
    except Cancelled:
        raise
    except Exception as e:
        return _noted(result, f"{what}: {safe_text(e)}")


def _compact(
    context: RunContext, table: SparkTable, max_bytes: int | None, result: VacuumResult, time_is_up: Callable[[], str]
) -> VacuumResult:
    done = compact_small_files(context, table, max_bytes, time_is_up)
    result = _committed(result, done.snapshot_id, small_files_compacted=done.merged)
    if done.stopped:
        result = result.model_copy(update={"stopped": result.stopped or time_is_up()})
    return _noted(result, f"not all small files were compacted: {done.why}") if done.why else result


def _manifests(context: RunContext, table: SparkTable, result: VacuumResult) -> VacuumResult:
    done = rewrite_manifests(context, table)
    return _committed(result, done.snapshot_id, manifests_rewritten=done.outcome)


def _sweep(context: RunContext, table: SparkTable, result: VacuumResult, time_is_up: Callable[[], str]) -> VacuumResult:
    spec = _spec(context)
    older_than = timedelta(seconds=spec.maintenance.orphan_files_older_than_seconds)
    swept = remove_orphan_files(context, table, older_than, spec.plan_only, time_is_up)
    changes = {
        "orphan_files_found": swept.found,
        "orphan_bytes_found": swept.bytes,
        "orphan_files_removed": swept.removed,
        "orphan_files": swept.listing,
        "stopped": result.stopped or (time_is_up() if swept.stopped else ""),
    }
    result = result.model_copy(update=changes)
    return _noted(result, f"not all orphan files were removed: {swept.why}") if swept.why else result


def _spec(context: RunContext) -> VacuumSpec:
    assert context.spec.vacuum is not None
    return context.spec.vacuum


def _noted(result: VacuumResult, why: str) -> VacuumResult:
    log.warning("%s", why)
    return result.model_copy(update={"message": f"{result.message}; {why}" if result.message else why})


def _committed(result: VacuumResult, snapshot_id: int | None, **counts: int) -> VacuumResult:
    if snapshot_id is None or result.snapshot_id is not None:
        return result.model_copy(update=counts)
    return result.model_copy(update={**counts, "outcome": RunOutcome.COMMITTED, "snapshot_id": snapshot_id})
