"""The history of a table's vacuums. `status.vacuum` of the Dataset keeps it, so that it survives a restart. Pure."""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from lethe.contract.result import RunOutcome, VacuumPlanned, VacuumResult
from lethe.contract.run import VacuumSpec
from lethe.ledger.ledger import Ledger

from lethe_operator.conditions import parsed_time, timestamp
from lethe_operator.resources.observed import Attempt, AttemptState, ObservedRun, TableView
from lethe_operator.runs.retry import MESSAGE_AT_MOST, outcome
from lethe_operator.vacuum.triggers import UNMEASURED, Measured

# The pause after a vacuum that purged nothing; it doubles with each further one. A trigger may keep firing although no vacuum
# can do anything about it.
REST_SECONDS: Final = 3600.0
REST_AT_MOST_SECONDS: Final = 86_400.0


@dataclass(frozen=True)
class Plan:
    """A plan that the status shows."""

    planned: VacuumPlanned
    state: str
    """Of the ledger that it was made for, see `state_of`."""
    run: str
    """Name of the Job that made it."""
    finished: datetime


@dataclass(frozen=True)
class LastRun:
    """The last vacuum that succeeded."""

    name: str
    """Of the Job."""
    run_id: str
    finished: datetime
    message: str
    state: str
    """Of the ledger when its end was observed, see `state_of`."""
    idle: int = 0
    """Consecutive vacuums of this state that purged nothing, including this one."""
    stopped: str = ""
    """Why it left work; "": it did not."""
    incomplete: bool = False
    """It left work that no new commit would reveal."""

    def rests_until(self, state: str) -> datetime | None:
        """Until when no other vacuum starts; None: there is no pause."""
        if not self.idle or self.state != state:
            return None
        pause = min(REST_SECONDS * 2 ** min(self.idle - 1, 10), REST_AT_MOST_SECONDS)
        return self.finished + timedelta(seconds=pause)


@dataclass(frozen=True)
class VacuumHistory:
    """What decisions need of earlier vacuums of a table."""

    measured: Measured = UNMEASURED
    last: LastRun | None = None
    """None: none has succeeded."""
    plan: Plan | None = None
    """None: no plan is shown."""
    waiting_since: datetime | None = None
    """Since when a due vacuum waits only for a place; None: it does not."""

    def as_status(self) -> dict[str, Any]:
        """The part of `status.vacuum` that is read again later; it lacks what is unknown."""
        document: dict[str, Any] = {}
        if self.measured.run:
            document["measured"] = self.measured.as_status()
        if self.last is not None:
            document["lastRun"] = _last_as_status(self.last)
        if self.plan is not None:
            document["plan"] = _plan_as_status(self.plan)
        return document


def state_of(ledger: Ledger, batch_ids: Collection[str] = (), max_bytes: int | None = None) -> str:
    """A digest of what a vacuum would work on. While it stays the same, another vacuum or plan would hardly differ.

    Args:
        batch_ids: The batches that the vacuum is limited to; empty: all.
    """
    of = ledger.statistics
    erasures = sorted(e.restatement for e in ledger.unpurged_erasures)
    facts = (of.tombstones, of.oldest_added_on, of.next_evict_by, of.tombstoned_rows, erasures, [*batch_ids], max_bytes)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]


def history_of(status: Mapping[str, Any], runs: Iterable[ObservedRun], view: TableView | None) -> VacuumHistory:
    """The history of `status.vacuum`, including the run that has ended since. Without a table, that run is added later."""
    known = _of_status(status)
    ended = [(r, a) for r in runs for a in r.attempts if a.state is AttemptState.SUCCEEDED and a.finished is not None]
    if view is None or not ended:
        return known
    run, attempt = sorted(ended, key=lambda found: (found[1].finished, found[1].created))[-1]
    if attempt.job in {known.last.name if known.last else "", known.plan.run if known.plan else ""}:
        return known
    if known.last is not None and attempt.finished is not None and attempt.finished < known.last.finished:
        return known
    return _after(known, run, attempt, view)


def _after(known: VacuumHistory, run: ObservedRun, attempt: Attempt, view: TableView) -> VacuumHistory:
    spec = run.intent.vacuum if run.intent else None
    result = attempt.result if isinstance(attempt.result, VacuumResult) else None
    assert attempt.finished is not None
    if result is not None and result.plan is not None and _is_another_plan(result, spec):
        state = state_of(view.ledger, spec.batch_ids, spec.max_bytes) if spec is not None else ""
        return replace(known, plan=Plan(result.plan, state, attempt.job, attempt.finished))
    state = state_of(view.ledger)
    same = known.last is not None and known.last.state == state
    purged = _purged(result) if result is not None else not same
    idle = 0 if purged else (known.last.idle if known.last is not None and same else 0) + 1
    last = LastRun(
        attempt.job,
        attempt.run_id,
        attempt.finished,
        outcome(result)[:MESSAGE_AT_MOST],
        state,
        idle,
        result.stopped if result else "",
        result is not None and bool(result.stopped or result.erasures_open),
    )
    measured = known.measured.after(attempt.job, result) if result is not None else known.measured
    return replace(known, last=last, plan=None, measured=measured)


def _is_another_plan(result: VacuumResult, spec: VacuumSpec | None) -> bool:
    """Whether the run ended with a plan to approve. A plan that is already approved is none: the loop would not end."""
    approved = spec.approved_plan if spec is not None else ""
    return result.outcome is RunOutcome.PLANNED and result.plan is not None and result.plan.digest != approved


def _purged(result: VacuumResult) -> bool:
    return bool(result.tombstones_purged or result.rows_purged or result.files_rewritten or result.files_deleted)


def _last_as_status(last: LastRun) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": last.name,
        "runId": last.run_id,
        "finishTime": timestamp(last.finished),
        "message": last.message,
        "state": last.state,
    }
    if last.idle:
        document["idleRuns"] = last.idle
    if last.stopped:
        document["stopped"] = last.stopped
    if last.incomplete:
        document["left"] = True
    return document


def _plan_as_status(plan: Plan) -> dict[str, Any]:
    p = plan.planned
    document: dict[str, Any] = {
        "digest": p.digest,
        "snapshotId": p.snapshot_id,
        "files": p.files,
        "bytes": p.bytes,
        "wholeFiles": p.whole_files,
        "tombstones": p.tombstones,
        "rows": p.rows,
        "filesLeft": p.files_left,
        "bytesLeft": p.bytes_left,
        "run": plan.run,
        "plannedTime": timestamp(plan.finished),
        "state": plan.state,
    }
    if p.bytes_to_copy is not None and p.bytes_to_encode is not None:
        document |= {"bytesToCopy": p.bytes_to_copy, "bytesToEncode": p.bytes_to_encode}
    if p.in_vain_percent is not None:
        document["inVainPercent"] = round(p.in_vain_percent)
    if p.sort_drift is not None:
        document["sortDrift"] = f"{p.sort_drift:.2f}"
    if p.next_evict_by is not None:
        document["nextEvictByTime"] = timestamp(p.next_evict_by)
    return document


def _of_status(status: Mapping[str, Any]) -> VacuumHistory:
    last, plan = status.get("lastRun"), status.get("plan")
    return VacuumHistory(
        measured=Measured.of_status(status.get("measured") or {}),
        last=_last_of_status(last) if last else None,
        plan=_plan_of_status(plan) if plan else None,
        waiting_since=parsed_time(status.get("waitingSince")),
    )


def _last_of_status(document: Mapping[str, Any]) -> LastRun | None:
    finished = parsed_time(document.get("finishTime"))
    if finished is None:
        return None
    return LastRun(
        str(document.get("name")),
        str(document.get("runId")),
        finished,
        str(document.get("message", "")),
        str(document.get("state", "")),
        int(document.get("idleRuns") or 0),
        str(document.get("stopped", "")),
        bool(document.get("left")),
    )


def _plan_of_status(document: Mapping[str, Any]) -> Plan | None:
    finished = parsed_time(document.get("plannedTime"))
    if finished is None:
        return None
    drift, vain = document.get("sortDrift"), document.get("inVainPercent")
    planned = VacuumPlanned(
        digest=str(document["digest"]),
        snapshot_id=int(document["snapshotId"]),
        files=int(document.get("files") or 0),
        bytes=int(document.get("bytes") or 0),
        bytes_to_copy=document.get("bytesToCopy"),
        bytes_to_encode=document.get("bytesToEncode"),
        whole_files=int(document.get("wholeFiles") or 0),
        tombstones=int(document.get("tombstones") or 0),
        rows=int(document.get("rows") or 0),
        files_left=int(document.get("filesLeft") or 0),
        bytes_left=int(document.get("bytesLeft") or 0),
        in_vain_percent=None if vain is None else float(vain),
        sort_drift=None if drift is None else float(drift),
        next_evict_by=parsed_time(document.get("nextEvictByTime")),
    )
    return Plan(planned, str(document.get("state", "")), str(document.get("run", "")), finished)
