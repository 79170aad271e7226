"""What the statuses of a Dataset and of the VacuumPolicies that select it say about vacuums. Pure.

The status of a policy has its conditions, and one entry for each Dataset.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, assert_never

from lethe.base.errors import Verdict
from lethe.contract.kubernetes import VACUUM_NOW
from lethe.contract.result import LISTED_AT_MOST
from lethe.contract.status import (
    Condition,
    DatasetStatus,
    EvictBy,
    PolicyDataset,
    RequestedVacuum,
    VacuumPolicyStatus,
    VacuumStatus,
)
from lethe.contract.vacuum_policy import VacuumPolicySpec

from lethe_operator import conditions
from lethe_operator.actions import Decision, Event, Launch
from lethe_operator.conditions import EVICTION_ON_TIME, FALSE, TRUE, timestamp
from lethe_operator.erasure.decide import held_beyond_deadline, overdue
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import AttemptState, ObservedRun
from lethe_operator.resources.vacuum_policy import VALUE_AT_MOST, Match, VacuumPolicy
from lethe_operator.runs.retry import MESSAGE_AT_MOST, failure, outcome
from lethe_operator.vacuum.context import VacuumContext, request_key
from lethe_operator.vacuum.history import VacuumHistory
from lethe_operator.vacuum.triggers import Deadline, Hours, hours

# The status lists a limited number of Datasets: those that may need attention first.
_RANKS: Final[Mapping[str, int]] = {Decision.NEEDS_APPROVAL: 0, Decision.DUE: 1, Decision.RUNNING: 2}


def with_entry(status: VacuumPolicyStatus, entry: PolicyDataset) -> VacuumPolicyStatus:
    """The status with the entry of one Dataset replaced. Fields that the new entry cannot know keep their values."""
    entries = {e.name: e for e in status.datasets or ()}
    if (known := entries.get(entry.name)) is not None:
        kept = {
            "last_run_time": entry.last_run_time or known.last_run_time,
            "active_tombstones": known.active_tombstones
            if entry.active_tombstones is None
            else entry.active_tombstones,
        }
        entry = entry.model_copy(update=kept)
    return _with_datasets(status, {**entries, entry.name: entry})


def without_others(status: VacuumPolicyStatus, selected: Collection[str]) -> VacuumPolicyStatus:
    """The status without the entries of Datasets that do not exist or are no longer selected."""
    found = _with_datasets(status, {e.name: e for e in status.datasets or () if e.name in selected})
    return found.model_copy(update={"datasets_count": len(selected)})


def own(policy: VacuumPolicy, status: VacuumPolicyStatus, now: datetime) -> VacuumPolicyStatus:
    """The status with the fields that depend only on the policy's spec: conditions, and when its window opens next."""
    generation = policy.meta.generation
    return VacuumPolicyStatus(
        observed_generation=generation,
        conditions=conditions.written(status.conditions, policy_conditions(policy, now), generation, now),
        datasets_count=status.datasets_count,
        datasets=status.datasets,
        last_run_time=status.last_run_time,
        next_window_time=next_window(policy, now),
    )


def policy_conditions(policy: VacuumPolicy, now: datetime) -> tuple[Condition, ...]:
    """The conditions of a policy: stalled if its window never opens or is invalid, otherwise healthy."""
    name, spec = policy.meta.name, policy.spec
    if spec.window is not None and isinstance(window := hours(spec.window, now), Verdict):
        return conditions.stalled(Verdict(window.reason, f"VacuumPolicy {name}: {window.message}"))
    return conditions.healthy(Verdict(Reason.IN_FORCE, f"A vacuum is due {_due(spec)}."))


def next_window(policy: VacuumPolicy, now: datetime) -> datetime | None:
    """When the policy's window opens next; None: it has no window, or the window never opens."""
    window = hours(policy.spec.window, now) if policy.spec.window is not None else None
    return window.opens if isinstance(window, Hours) else None


def _due(spec: VacuumPolicySpec) -> str:
    """When a vacuum is due, in words."""
    triggers = spec.triggers
    due = []
    if triggers.active_tombstones is not None:
        due.append(f"at {triggers.active_tombstones} active tombstones")
    if triggers.tombstoned_rows_percent is not None:
        due.append(f"when {triggers.tombstoned_rows_percent}% of the rows are hidden")
    if triggers.oldest_tombstone_age_seconds is not None:
        due.append(f"when a tombstone is {triggers.oldest_tombstone_age_seconds} s old")
    if (retention := spec.retention) is not None:
        of = f"by {retention.column}" if retention.column else "by the age of their batch"
        due.append(f"when rows are older than {retention.max_age_days} days {of}")
    due.append(f"{triggers.evict_by_lead_seconds} s before an evictBy, or earlier if previous vacuums took longer")
    approved = ". It starts after its plan is approved" if spec.is_manual else ""
    return f"{', '.join(due)}{approved}"


def _with_datasets(status: VacuumPolicyStatus, entries: Mapping[str, PolicyDataset]) -> VacuumPolicyStatus:
    times = [e.last_run_time for e in entries.values() if e.last_run_time is not None]
    if times and status.last_run_time is not None:
        times.append(status.last_run_time)
    in_order = sorted(entries.values(), key=lambda e: (_RANKS.get(e.decision or "", len(_RANKS)), e.name))
    changes = {
        "datasets": tuple(in_order[:LISTED_AT_MOST]),
        "datasets_count": max(len(entries), status.datasets_count or 0),
        "last_run_time": max(times, default=status.last_run_time),
    }
    return status.model_copy(update=changes)


# Decisions that get an event. Runs that start, end or fail have their own events.
_WITH_EVENT: Final = frozenset(
    {
        Reason.INVALID_RETENTION,
        Reason.INVALID_VACUUM_NOW,
        Reason.INVALID_WINDOW,
        Reason.NEEDS_APPROVAL,
        Reason.WAITS_FOR_OTHER_VACUUMS,
        Reason.WINDOW_CLOSED,
        Reason.WINDOW_NEVER_OPENS,
    }
)


@dataclass(frozen=True)
class VacuumDecision:
    """The decision with its reason, and what follows from it."""

    decision: Decision
    verdict: Verdict
    launch: Launch | None = None
    """None: no run starts now."""
    look_again: datetime | None = None
    """When the decision changes by itself; None: unknown."""
    next_time: datetime | None = None
    """The same time, where the status shows it."""
    waiting_since: datetime | None = None
    """Since when the vacuum waits only for a place; None: it does not."""
    due_reason: str = ""
    """Why a vacuum is due, if it does not start for another reason; "": none is due."""
    abandoned: tuple[str, ...] = ()
    """Ids of runs that are not continued."""


def status(
    dataset: Dataset,
    policy: VacuumPolicy | None,
    context: VacuumContext | None,
    history: VacuumHistory,
    decision: VacuumDecision,
    runs: Sequence[ObservedRun],
) -> VacuumStatus:
    """`status.vacuum` of a Dataset. It must not change while nothing else changes."""
    due = context.deadline if context is not None else None
    return VacuumStatus(
        policy=policy.meta.name if policy is not None else None,
        decision=decision.decision,
        reason=decision.verdict.reason,
        message=decision.verdict.message,
        due_reason=decision.due_reason or None,
        next_time=decision.next_time,
        waiting_since=decision.waiting_since,
        evict_by=(
            EvictBy(time=due.evict_by, starts_by_time=due.starts_by, possible_until_time=due.possible_until)
            if due is not None
            else None
        ),
        plan=history.plan,
        last_run=history.last,
        requested=_requested(dataset, context, runs),
        retention=history.retention if policy is not None and policy.spec.retention is not None else None,
        measured=history.measured if history.measured.run else None,
    )


def _requested(dataset: Dataset, context: VacuumContext | None, runs: Sequence[ObservedRun]) -> RequestedVacuum | None:
    """The outcome of the vacuum that the annotation requests; None: it requests none, or none has started."""
    value = dataset.meta.annotations.get(VACUUM_NOW, "")
    if not value.strip():
        return None
    before = dataset.status.vacuum.requested if dataset.status.vacuum is not None else None
    known = before if before is not None and before.value == value[:VALUE_AT_MOST] else None
    if context is None:
        return known
    mine = [r for r in runs if r.run_id in context.chain(request_key(value)) and r.attempts]
    if not mine:
        return known
    run = mine[-1]
    last = run.attempts[-1]
    message: str | None
    match last.state:
        case AttemptState.ACTIVE:
            state, message = Decision.RUNNING.value, None
        case AttemptState.SUCCEEDED:
            state, message = last.state.value, outcome(last.result)[:MESSAGE_AT_MOST]
        case AttemptState.FAILED:
            state, message = last.state.value, failure(last).message[:MESSAGE_AT_MOST]
        case _:
            assert_never(last.state)
    return RequestedVacuum(
        value=value[:VALUE_AT_MOST], name=last.job, run_id=run.run_id, outcome=state, message=message
    )


def entries(
    dataset: Dataset, matched: Match, context: VacuumContext | None, history: VacuumHistory, decision: VacuumDecision
) -> dict[str, PolicyDataset]:
    """The Dataset's entry in the status of each policy that selects it, by the policy's name."""

    def entry(decision: Decision, verdict: Verdict, **details: Any) -> PolicyDataset:
        return PolicyDataset(
            name=dataset.meta.name,
            decision=decision,
            reason=verdict.reason,
            message=verdict.message,
            active_tombstones=len(context.view.ledger.tombstones) if context is not None else None,
            **details,
        )

    if matched.decides is None:
        return {}
    winner, verdict = matched.decides.meta.name, decision.verdict
    if matched.tied:
        others = ", ".join(p.meta.name for p in matched.tied)
        verdict = verdict.adding(f"Ignored, because equally specific and younger: {others}.")
        if decision.decision is Decision.LATER and verdict.reason == Reason.BELOW_TRIGGERS:
            verdict = replace(verdict, reason=Reason.TIE_WON)
    plan, last = history.plan, history.last
    details = {
        "planned_bytes": plan.bytes if plan is not None else None,
        "planned_files": (plan.files or 0) + (plan.whole_files or 0) if plan is not None else None,
        "plan_digest": plan.digest if plan is not None else None,
        "next_time": decision.next_time,
        "last_run_time": last.finish_time if last is not None else None,
    }
    found_entries = {winner: entry(decision.decision, verdict, **details)}
    for policy in matched.tied:
        text = f"VacuumPolicy {winner}, which is equally specific and older, applies to this Dataset."
        found_entries[policy.meta.name] = entry(Decision.LATER, Verdict(Reason.TIE_LOST, text))
    for policy in matched.outranked:
        text = f"VacuumPolicy {winner}, which is more specific, applies to this Dataset."
        found_entries[policy.meta.name] = entry(Decision.LATER, Verdict(Reason.LESS_SPECIFIC, text))
    return found_entries


def on_time(
    dataset: Dataset, policy: VacuumPolicy | None, context: VacuumContext, decision: VacuumDecision
) -> Condition | None:
    """The condition EvictionOnTime: whether bytes are expected to be gone, and verified as gone, by the first evictBy.

    It turns False while there is still time to act. None: nothing has an evictBy.
    """
    ledger = context.view.ledger
    if missed := overdue(ledger, context.now):
        return Condition.of(EVICTION_ON_TIME, FALSE, Reason.EVICT_BY_MISSED, missed)
    if held := held_beyond_deadline(ledger, context.now):
        return Condition.of(EVICTION_ON_TIME, FALSE, Reason.LEGAL_HOLD, held)
    if context.deadline is not None:
        return _purged_on_time(dataset, policy, context.deadline, decision, context.now)
    verify_by = [e.evict_by for e in ledger.open_erasures if e.evict_by is not None]
    if not verify_by:
        return None
    text = f"Dataset {dataset.meta.name}: the rows are purged. A run must verify by {timestamp(min(verify_by))} that no file"
    return Condition.of(EVICTION_ON_TIME, TRUE, Reason.ON_TIME, f"{text} in the storage contains them.")


def _purged_on_time(
    dataset: Dataset, policy: VacuumPolicy | None, due: Deadline, decision: VacuumDecision, now: datetime
) -> Condition:
    by = f"Dataset {dataset.meta.name}: bytes must be gone by {timestamp(due.evict_by)}"

    def late(reason: str, text: str) -> Condition:
        return Condition.of(EVICTION_ON_TIME, FALSE, str(reason), f"{by}, {text}")

    if policy is None:
        text = (
            "but no VacuumPolicy selects the Dataset, so no vacuum purges them. Create a VacuumPolicy, or set the labels that an "
            "existing one selects."
        )
        return late(Reason.NO_VACUUM_POLICY, text)
    if due.evict_by <= now:
        return late(Reason.EVICT_BY_MISSED, f"but they are not known to be gone. {decision.verdict.message}")
    if decision.decision is Decision.NEEDS_APPROVAL and due.starts_by <= now:
        return late(Reason.NEEDS_APPROVAL, f"but the vacuum waits for approval. {decision.verdict.message}")
    if decision.decision is Decision.RUNNING:
        return Condition.of(EVICTION_ON_TIME, TRUE, Reason.ON_TIME, f"{by}. A vacuum is running.")
    if due.possible_until < now:
        return late(
            Reason.EVICT_BY_INFEASIBLE,
            f"but to finish in time, a vacuum had to start by {timestamp(due.possible_until)}: {due.work}. Increase "
            "spec.runTemplate.executors of the Dataset, or spec.limits of the VacuumPolicy.",
        )
    if decision.decision is Decision.LATER and decision.verdict.reason != Reason.NOTHING_LEFT and due.starts_by <= now:
        return late(decision.verdict.reason, f"but no vacuum can start. {decision.verdict.message}")
    starts = "is due" if due.starts_by <= now else f"starts by {timestamp(due.starts_by)}"
    return Condition.of(EVICTION_ON_TIME, TRUE, Reason.ON_TIME, f"{by}. A vacuum {starts}.")


def events(dataset: Dataset, new: DatasetStatus) -> tuple[Event, ...]:
    """Events for a changed decision, and for a changed condition EvictionOnTime."""
    name, found = dataset.meta.name, []
    before, after = dataset.status.vacuum or VacuumStatus(), new.vacuum or VacuumStatus()
    same = (before.decision, before.reason) == (after.decision, after.reason)
    if not same and after.reason in _WITH_EVENT:
        found.append(Event("Dataset", name, Verdict(after.reason, f"Vacuum: {after.message}")))
    nothing = Condition.of(EVICTION_ON_TIME, TRUE, Reason.ON_TIME, "Nothing in the table has an evictBy any more.")
    was = dataset.status.condition(EVICTION_ON_TIME) or nothing
    now = new.condition(EVICTION_ON_TIME) or nothing
    if (was.status, was.reason) != (now.status, now.reason):
        text = now.message or nothing.message
        found.append(Event("Dataset", name, Verdict(now.reason, text), warning=now.status == FALSE))
    return tuple(found)
