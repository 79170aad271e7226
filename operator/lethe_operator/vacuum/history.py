"""The history of a table's vacuums. `status.vacuum` of the Dataset keeps it, so that it survives a restart. Pure."""

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from lethe.contract.result import RunOutcome, VacuumPlanned, VacuumResult
from lethe.contract.run import RetentionSpec, VacuumSpec
from lethe.contract.status import LastVacuum, RetentionStatus, VacuumPlan, VacuumSpeed, VacuumStatus
from lethe.files.bounds import due_time
from lethe.ledger.ledger import Ledger

from lethe_operator.guards.holds import digest
from lethe_operator.resources.observed import Attempt, AttemptState, ObservedRun, TableView
from lethe_operator.runs.retry import MESSAGE_AT_MOST, outcome
from lethe_operator.vacuum.triggers import UNMEASURED, measured_after

# The pause after a vacuum that purged nothing; it doubles with each further one. A trigger may keep firing although no vacuum
# can do anything about it.
REST_SECONDS: Final = 3600.0
REST_AT_MOST_SECONDS: Final = 86_400.0


@dataclass(frozen=True)
class VacuumHistory:
    """What decisions need of earlier vacuums of a table."""

    measured: VacuumSpeed = UNMEASURED
    last: LastVacuum | None = None
    """None: none has succeeded."""
    plan: VacuumPlan | None = None
    """None: no plan is shown."""
    waiting_since: datetime | None = None
    """Since when a due vacuum waits only for a place; None: it does not."""
    retention: RetentionStatus | None = None
    """What the last vacuum found about rows that are too old; None: nothing is known."""


def rests_until(last: LastVacuum, state: str) -> datetime | None:
    """Until when no other vacuum starts after the last one; None: there is no pause.

    Args:
        state: Of the ledger now, see `state_of`.
    """
    if not last.idle_runs or last.state != state or last.finish_time is None:
        return None
    pause = min(REST_SECONDS * 2 ** min(last.idle_runs - 1, 10), REST_AT_MOST_SECONDS)
    return last.finish_time + timedelta(seconds=pause)


def state_of(
    ledger: Ledger,
    batch_ids: Collection[str] = (),
    max_bytes: int | None = None,
    retention: RetentionSpec | None = None,
    holds: str = "",
) -> str:
    """A digest of what a vacuum would work on. While it stays the same, another vacuum or plan would hardly differ.

    Args:
        batch_ids: The batches that the vacuum is limited to; empty: all.
        holds: The digest of the active holds.
        retention: Which rows are too old; None: no row is.
    """
    of = ledger.statistics
    erasures = sorted(e.restatement for e in ledger.unpurged_erasures)
    facts = (of.tombstones, of.oldest_added_on, of.next_evict_by, of.tombstoned_rows, erasures, [*batch_ids], max_bytes)
    aged = () if retention is None or batch_ids else (retention.rule, retention.cutoff.isoformat())
    return hashlib.sha256(f"{facts + aged!r}{holds}".encode()).hexdigest()[:12]


def history_of(status: VacuumStatus | None, runs: Iterable[ObservedRun], view: TableView | None) -> VacuumHistory:
    """The history of `status.vacuum`, including the run that has ended since. Without a table, that run is added later."""
    known = _of_status(status or VacuumStatus())
    ended = [(r, a) for r in runs for a in r.attempts if a.state is AttemptState.SUCCEEDED and a.finished is not None]
    if view is None or not ended:
        return known
    run, attempt = sorted(ended, key=lambda found: (found[1].finished, found[1].created))[-1]
    if attempt.job in {known.last.name if known.last else "", known.plan.run if known.plan else ""}:
        return known
    if (
        known.last is not None
        and attempt.finished is not None
        and attempt.finished < (known.last.finish_time or attempt.finished)
    ):
        return known
    return _after(known, run, attempt, view)


def _after(known: VacuumHistory, run: ObservedRun, attempt: Attempt, view: TableView) -> VacuumHistory:
    spec = run.intent.vacuum if run.intent else None
    result = attempt.result if isinstance(attempt.result, VacuumResult) else None
    holds = digest(run.intent.holds) if run.intent is not None else ""
    assert attempt.finished is not None
    known = replace(known, retention=_retention(known.retention, result, spec, holds))
    if result is not None and result.plan is not None and _is_another_plan(result, spec):
        state = state_of(view.ledger, spec.batch_ids, spec.max_bytes, spec.retention, holds) if spec is not None else ""
        return replace(known, plan=plan_of(result.plan, state, attempt.job, attempt.finished))
    state = state_of(view.ledger, holds=holds)
    same = known.last is not None and known.last.state == state
    purged = _purged(result) if result is not None else not same
    idle_before = (known.last.idle_runs or 0) if known.last is not None and same else 0
    last = LastVacuum(
        name=attempt.job,
        run_id=attempt.run_id,
        finish_time=attempt.finished,
        message=outcome(result)[:MESSAGE_AT_MOST],
        stopped=(result.stopped or None) if result is not None else None,
        left=(result is not None and bool(result.stopped or result.erasures_open)) or None,
        idle_runs=None if purged else idle_before + 1,
        state=state,
    )
    measured = measured_after(known.measured, attempt.job, result) if result is not None else known.measured
    return replace(known, last=last, plan=None, measured=measured)


def _retention(
    known: RetentionStatus | None, result: VacuumResult | None, spec: VacuumSpec | None, holds: str
) -> RetentionStatus | None:
    """What is known about rows that are too old after a run. A plan that would remove some does not change it.

    Args:
        holds: The digest of the holds that the run knew.
    """
    found = result.retention if result is not None else None
    if result is None or found is None or (result.outcome is RunOutcome.PLANNED and found.left):
        return known
    rule = spec.retention if spec is not None else None
    next_time = None
    if found.next_cutoff is not None and rule is not None:
        next_time = due_time(found.next_cutoff, rule.max_age_days)
    return RetentionStatus(
        rule=found.rule,
        cutoff=found.cutoff.isoformat(),
        next_time=next_time,
        snapshot_id=found.snapshot_id,
        left=found.left or None,
        files_held=found.files_held or None,
        holds=holds if found.files_held else None,
        problem=found.problem[:MESSAGE_AT_MOST] or None,
    )


def plan_of(planned: VacuumPlanned, state: str, run: str, finished: datetime) -> VacuumPlan:
    """The plan of a run, as the status shows it.

    Args:
        state: Of the ledger that it was made for, see `state_of`.
        run: Name of the Job that made it.
    """
    counts = {name: value for name, value in dict(planned).items() if name in VacuumPlan.model_fields}
    if planned.bytes_to_copy is None or planned.bytes_to_encode is None:
        counts |= {"bytes_to_copy": None, "bytes_to_encode": None}
    shown = {
        **counts,
        "planned_time": finished,
        "in_vain_percent": None if planned.in_vain_percent is None else round(planned.in_vain_percent),
        "sort_drift": None if planned.sort_drift is None else f"{planned.sort_drift:.2f}",
        "next_evict_by_time": planned.next_evict_by,
        **_shown_retention(planned),
        "run": run,
        "state": state,
    }
    return VacuumPlan(**shown)


def _shown_retention(planned: VacuumPlanned) -> dict[str, str | int | None]:
    """The fields of a plan about rows that are too old. Without a cutoff it removes none."""
    counts = {name: getattr(planned, name) for name in VacuumPlanned.model_fields if name.startswith("retention_")}
    if planned.retention_cutoff is None:
        return dict.fromkeys(counts)
    return {**counts, "retention_cutoff": planned.retention_cutoff.isoformat()}


def _is_another_plan(result: VacuumResult, spec: VacuumSpec | None) -> bool:
    """Whether the run ended with a plan to approve. A plan that is already approved is none: the loop would not end."""
    approved = spec.approved_plan if spec is not None else ""
    return result.outcome is RunOutcome.PLANNED and result.plan is not None and result.plan.digest != approved


def _purged(result: VacuumResult) -> bool:
    return bool(result.tombstones_purged or result.rows_purged or result.files_rewritten or result.files_deleted)


def _of_status(status: VacuumStatus) -> VacuumHistory:
    last, plan = status.last_run, status.plan
    return VacuumHistory(
        measured=status.measured or UNMEASURED,
        last=last if last is not None and last.finish_time is not None else None,
        plan=plan if plan is not None and plan.planned_time is not None and plan.digest is not None else None,
        waiting_since=status.waiting_since,
        retention=status.retention,
    )
