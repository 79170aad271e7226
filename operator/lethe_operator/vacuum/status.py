"""The decision about a vacuum in the statuses of the Dataset and of each VacuumPolicy that selects it. Pure.

The status of a VacuumPolicy: its conditions, and one entry for each Dataset that it selects. Pure.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, assert_never

from lethe.contract.kubernetes import VACUUM_NOW
from lethe.contract.result import LISTED_AT_MOST
from lethe.contract.vacuum_policy import VacuumPolicySpec

from lethe_operator import conditions
from lethe_operator.actions import Decision, Event, Launch
from lethe_operator.conditions import EVICTION_ON_TIME, FALSE, TRUE, Condition, find, timestamp
from lethe_operator.erasure.decide import overdue
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import AttemptState, ObservedRun
from lethe_operator.resources.vacuum_policy import VALUE_AT_MOST, Match, VacuumPolicy
from lethe_operator.runs.retry import MESSAGE_AT_MOST, failure, outcome
from lethe_operator.vacuum.context import VacuumContext, request_key
from lethe_operator.vacuum.history import VacuumHistory
from lethe_operator.vacuum.triggers import Deadline, Hours, Unusable, hours

# The status lists a limited number of Datasets: those that may need attention first.
_RANKS: Final[Mapping[str, int]] = {Decision.NEEDS_APPROVAL: 0, Decision.DUE: 1, Decision.RUNNING: 2}


def with_entry(status: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """The status with the entry of one Dataset replaced. Fields that the new entry cannot know keep their values."""
    entries = {e["name"]: e for e in status.get("datasets") or ()}
    known = entries.get(entry["name"], {})
    kept = {k: v for k, v in known.items() if k == "lastRunTime" or (k == "activeTombstones" and k not in entry)}
    entries[entry["name"]] = {**kept, **entry}
    return _with_datasets(status, entries)


def without_others(status: Mapping[str, Any], selected: Collection[str]) -> dict[str, Any]:
    """The status without the entries of Datasets that do not exist or are no longer selected."""
    entries = {e["name"]: e for e in status.get("datasets") or () if e["name"] in selected}
    document = _with_datasets(status, entries)
    document["datasetsCount"] = len(selected)
    return document


def own(policy: VacuumPolicy, status: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """The status with the fields that depend only on the policy's spec: conditions, and when its window opens next."""
    generation = policy.meta.generation
    old = status.get("conditions") or ()
    opens = next_window(policy, now)
    document = {
        **status,
        "observedGeneration": generation,
        "conditions": conditions.as_status(old, policy_conditions(policy, now), generation, now),
        "nextWindowTime": timestamp(opens) if opens is not None else None,
    }
    return {k: v for k, v in document.items() if v is not None}


def policy_conditions(policy: VacuumPolicy, now: datetime) -> tuple[Condition, ...]:
    """The conditions of a policy: stalled if its window never opens or is invalid, otherwise healthy."""
    name, spec = policy.meta.name, policy.spec
    if spec.window is not None and isinstance(window := hours(spec.window, now), Unusable):
        return conditions.stalled(window.reason, f"VacuumPolicy {name}: {window.message}")
    return conditions.healthy(Reason.IN_FORCE, f"A vacuum is due {_due(spec)}.")


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
    due.append(f"{triggers.evict_by_lead_seconds} s before an evictBy, or earlier if previous vacuums took longer")
    approved = ". It starts after its plan is approved" if spec.is_manual else ""
    return f"{', '.join(due)}{approved}"


def _with_datasets(status: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    times = [str(e["lastRunTime"]) for e in entries.values() if e.get("lastRunTime")]
    in_order = sorted(entries.values(), key=lambda e: (_RANKS.get(str(e.get("decision")), len(_RANKS)), e["name"]))
    document = {**status, "datasets": [dict(e) for e in in_order[:LISTED_AT_MOST]]}
    document["datasetsCount"] = max(len(entries), int(status.get("datasetsCount") or 0))
    if times:
        document["lastRunTime"] = max([*times, str(status.get("lastRunTime") or "")])
    return document


# Decisions that get an event. Runs that start, end or fail have their own events.
_WITH_EVENT: Final = frozenset(
    {
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
    reason: str
    message: str
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
) -> dict[str, Any]:
    """`status.vacuum` of a Dataset. It must not change while nothing else changes."""
    document: dict[str, Any] = {
        "decision": decision.decision.value,
        "reason": str(decision.reason),
        "message": decision.message,
        **history.as_status(),
    }
    if policy is not None:
        document["policy"] = policy.meta.name
    if decision.next_time is not None:
        document["nextTime"] = timestamp(decision.next_time)
    if decision.waiting_since is not None:
        document["waitingSince"] = timestamp(decision.waiting_since)
    if decision.due_reason:
        document["dueReason"] = decision.due_reason
    if context is not None and context.deadline is not None:
        document["evictBy"] = {
            "time": timestamp(context.deadline.evict_by),
            "startsByTime": timestamp(context.deadline.starts_by),
            "possibleUntilTime": timestamp(context.deadline.possible_until),
        }
    if requested := _requested(dataset, context, runs):
        document["requested"] = requested
    return document


def _requested(dataset: Dataset, context: VacuumContext | None, runs: Sequence[ObservedRun]) -> dict[str, Any]:
    """The outcome of the vacuum that the annotation requests."""
    value = dataset.meta.annotations.get(VACUUM_NOW, "")
    if not value.strip():
        return {}
    before: dict[str, Any] = dict((dataset.status.get("vacuum") or {}).get("requested") or {})
    known = before if before.get("value") == value[:VALUE_AT_MOST] else {}
    if context is None:
        return known
    mine = [r for r in runs if r.run_id in context.chain(request_key(value)) and r.attempts]
    if not mine:
        return known
    run = mine[-1]
    last = run.attempts[-1]
    document = {"value": value[:VALUE_AT_MOST], "runId": run.run_id, "name": last.job}
    match last.state:
        case AttemptState.ACTIVE:
            document["outcome"] = Decision.RUNNING.value
        case AttemptState.SUCCEEDED:
            document |= {"outcome": last.state.value, "message": outcome(last.result)[:MESSAGE_AT_MOST]}
        case AttemptState.FAILED:
            document |= {"outcome": last.state.value, "message": failure(last)[1][:MESSAGE_AT_MOST]}
        case _:
            assert_never(last.state)
    return document


def entries(
    dataset: Dataset, found: Match, context: VacuumContext | None, history: VacuumHistory, decision: VacuumDecision
) -> dict[str, dict[str, Any]]:
    """The Dataset's entry in the status of each policy that selects it, by the policy's name."""

    def entry(decision: Decision, reason: str, message: str) -> dict[str, Any]:
        document: dict[str, Any] = {
            "name": dataset.meta.name,
            "decision": decision.value,
            "reason": str(reason),
            "message": message,
        }
        if context is not None:
            document["activeTombstones"] = len(context.view.ledger.tombstones)
        return document

    if found.decides is None:
        return {}
    winner, reason, message = found.decides.meta.name, decision.reason, decision.message
    if found.tied:
        others = ", ".join(p.meta.name for p in found.tied)
        message = f"{message} Ignored, because equally specific and younger: {others}."
        if decision.decision is Decision.LATER and reason == Reason.BELOW_TRIGGERS:
            reason = Reason.TIE_WON
    found_entries = {winner: entry(decision.decision, reason, message)}
    if history.last is not None:
        found_entries[winner]["lastRunTime"] = timestamp(history.last.finished)
    if decision.next_time is not None:
        found_entries[winner]["nextTime"] = timestamp(decision.next_time)
    if history.plan is not None:
        planned = history.plan.planned
        found_entries[winner] |= {
            "plannedBytes": planned.bytes,
            "plannedFiles": planned.files + planned.whole_files,
            "planDigest": planned.digest,
        }
    for policy in found.tied:
        text = f"VacuumPolicy {winner}, which is equally specific and older, applies to this Dataset."
        found_entries[policy.meta.name] = entry(Decision.LATER, Reason.TIE_LOST, text)
    for policy in found.outranked:
        text = f"VacuumPolicy {winner}, which is more specific, applies to this Dataset."
        found_entries[policy.meta.name] = entry(Decision.LATER, Reason.LESS_SPECIFIC, text)
    return found_entries


def on_time(
    dataset: Dataset, policy: VacuumPolicy | None, context: VacuumContext, decision: VacuumDecision
) -> Condition | None:
    """The condition EvictionOnTime: whether bytes are expected to be gone, and verified as gone, by the first evictBy.

    It turns False while there is still time to act. None: nothing has an evictBy.
    """
    ledger = context.view.ledger
    if missed := overdue(ledger, context.now):
        return Condition(EVICTION_ON_TIME, FALSE, Reason.EVICT_BY_MISSED, missed)
    if context.deadline is not None:
        return _purged_on_time(dataset, policy, context.deadline, decision, context.now)
    verify_by = [e.evict_by for e in ledger.open_erasures if e.evict_by is not None]
    if not verify_by:
        return None
    text = f"Dataset {dataset.meta.name}: the rows are purged. A run must verify by {timestamp(min(verify_by))} that no file"
    return Condition(EVICTION_ON_TIME, TRUE, Reason.ON_TIME, f"{text} in the storage contains them.")


def _purged_on_time(
    dataset: Dataset, policy: VacuumPolicy | None, due: Deadline, decision: VacuumDecision, now: datetime
) -> Condition:
    by = f"Dataset {dataset.meta.name}: bytes must be gone by {timestamp(due.evict_by)}"

    def late(reason: str, text: str) -> Condition:
        return Condition(EVICTION_ON_TIME, FALSE, str(reason), f"{by}, {text}")

    if policy is None:
        text = (
            "but no VacuumPolicy selects the Dataset, so no vacuum purges them. Create a VacuumPolicy, or set the labels that an "
            "existing one selects."
        )
        return late(Reason.NO_VACUUM_POLICY, text)
    if due.evict_by <= now:
        return late(Reason.EVICT_BY_MISSED, f"but they are not known to be gone. {decision.message}")
    if decision.decision is Decision.NEEDS_APPROVAL and due.starts_by <= now:
        return late(Reason.NEEDS_APPROVAL, f"but the vacuum waits for approval. {decision.message}")
    if decision.decision is Decision.RUNNING:
        return Condition(EVICTION_ON_TIME, TRUE, Reason.ON_TIME, f"{by}. A vacuum is running.")
    if due.possible_until < now:
        return late(
            Reason.EVICT_BY_INFEASIBLE,
            f"but to finish in time, a vacuum had to start by {timestamp(due.possible_until)}: {due.work}. Increase "
            "spec.runTemplate.executors of the Dataset, or spec.limits of the VacuumPolicy.",
        )
    if decision.reason == Reason.DATASET_NOT_READY and due.starts_by <= now:
        return late(Reason.DATASET_NOT_READY, f"but no vacuum can start. {decision.message}")
    starts = "is due" if due.starts_by <= now else f"starts by {timestamp(due.starts_by)}"
    return Condition(EVICTION_ON_TIME, TRUE, Reason.ON_TIME, f"{by}. A vacuum {starts}.")


def events(dataset: Dataset, new: Mapping[str, Any]) -> tuple[Event, ...]:
    """Events for a changed decision, and for a changed condition EvictionOnTime."""
    name, found = dataset.meta.name, []
    before, after = dataset.status.get("vacuum") or {}, new.get("vacuum") or {}
    same = all(before.get(k) == after.get(k) for k in ("decision", "reason"))
    if not same and after.get("reason") in _WITH_EVENT:
        found.append(Event("Dataset", name, after["reason"], f"Vacuum: {after['message']}"))
    was, now = find(dataset.status, EVICTION_ON_TIME), find(new, EVICTION_ON_TIME)
    if (was.get("status", TRUE), was.get("reason", Reason.ON_TIME)) != (
        now.get("status", TRUE),
        now.get("reason", Reason.ON_TIME),
    ):
        warning = now.get("status") == FALSE
        text = now.get("message") or "Nothing in the table has an evictBy any more."
        found.append(Event("Dataset", name, str(now.get("reason", Reason.ON_TIME)), text, warning))
    return tuple(found)
