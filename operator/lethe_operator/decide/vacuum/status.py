"""What is told of the decision about a vacuum: to the Dataset, and to each VacuumPolicy that selects it. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from lethe_operator.decide.actions import Event, Launch
from lethe_operator.decide.conditions import EVICTION_ON_TIME, FALSE, TRUE, Condition, find, timestamp
from lethe_operator.decide.erasure.status import overdue
from lethe_operator.decide.policy_match import Match
from lethe_operator.decide.runs.failures import failure
from lethe_operator.decide.runs.history import MESSAGE_AT_MOST, outcome
from lethe_operator.decide.vacuum.context import VacuumContext, asked_key
from lethe_operator.decide.vacuum.deadline import Deadline
from lethe_operator.decide.vacuum.history import VacuumHistory
from lethe_operator.reasons import Reason
from lethe_operator.resources.common import VACUUM_NOW
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import AttemptState, Run
from lethe_operator.resources.vacuum_policy import VacuumPolicy

DUE: Final = "Due"
LATER: Final = "Later"
RUNNING: Final = "Running"
NEEDS_APPROVAL: Final = "NeedsApproval"
VALUE_AT_MOST: Final = 200
# What nobody would hear of otherwise: runs that start, end or fail have events of their own.
_TOLD: Final = frozenset(
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
    """The decision in words, and what comes of it. `next_time`: when that changes by itself, as far as it is shown;
    `waiting_since`: it only waits for a place; `due_reason`: why one is wanted that does not start."""

    decision: str
    reason: str
    message: str
    launch: Launch | None = None
    look_again: datetime | None = None
    next_time: datetime | None = None
    waiting_since: datetime | None = None
    due_reason: str = ""
    abandoned: tuple[str, ...] = ()


def status(
    dataset: Dataset,
    policy: VacuumPolicy | None,
    case: VacuumContext | None,
    memory: VacuumHistory,
    answer: VacuumDecision,
    runs: Sequence[Run],
) -> dict[str, Any]:
    """`status.vacuum` of a Dataset. The same as long as nothing changes."""
    document: dict[str, Any] = {
        "decision": answer.decision,
        "reason": str(answer.reason),
        "message": answer.message,
        **memory.as_status(),
    }
    if policy is not None:
        document["policy"] = policy.meta.name
    if answer.next_time is not None:
        document["nextTime"] = timestamp(answer.next_time)
    if answer.waiting_since is not None:
        document["waitingSince"] = timestamp(answer.waiting_since)
    if answer.due_reason:
        document["dueReason"] = answer.due_reason
    if case is not None and case.deadline is not None:
        document["evictBy"] = {
            "time": timestamp(case.deadline.evict_by),
            "startsByTime": timestamp(case.deadline.starts_by),
            "possibleUntilTime": timestamp(case.deadline.possible_until),
        }
    if requested := _requested(dataset, case, runs):
        document["requested"] = requested
    return document


def _requested(dataset: Dataset, case: VacuumContext | None, runs: Sequence[Run]) -> dict[str, Any]:
    """What became of the annotation that asks for a vacuum."""
    value = dataset.meta.annotations.get(VACUUM_NOW, "")
    if not value.strip():
        return {}
    told: dict[str, Any] = dict((dataset.status.get("vacuum") or {}).get("requested") or {})
    known = told if told.get("value") == value[:VALUE_AT_MOST] else {}
    if case is None:
        return known
    mine = [r for r in runs if r.run_id in case.chain(asked_key(value)) and r.attempts]
    if not mine:
        return known
    run = mine[-1]
    last = run.attempts[-1]
    document = {"value": value[:VALUE_AT_MOST], "runId": run.run_id, "name": last.job}
    match last.state:
        case AttemptState.ACTIVE:
            document["outcome"] = RUNNING
        case AttemptState.SUCCEEDED:
            document |= {"outcome": last.state.value, "message": outcome(last.result)[:MESSAGE_AT_MOST]}
        case AttemptState.FAILED:
            document |= {"outcome": last.state.value, "message": failure(last)[1][:MESSAGE_AT_MOST]}
    return document


def entries(
    dataset: Dataset, found: Match, case: VacuumContext | None, memory: VacuumHistory, answer: VacuumDecision
) -> dict[str, dict[str, Any]]:
    """The Dataset's entry in the status of each policy that selects it, by the policy's name."""

    def entry(decision: str, reason: str, message: str) -> dict[str, Any]:
        document: dict[str, Any] = {
            "name": dataset.meta.name,
            "decision": decision,
            "reason": str(reason),
            "message": message,
        }
        if case is not None:
            document["activeTombstones"] = len(case.view.ledger.tombstones)
        return document

    if found.decides is None:
        return {}
    winner, reason, message = found.decides.meta.name, answer.reason, answer.message
    if found.tied:
        others = ", ".join(p.meta.name for p in found.tied)
        message = f"{message} Equally specific and younger, so not heard: {others}."
        if answer.decision == LATER and reason == Reason.BELOW_TRIGGERS:
            reason = Reason.TIE_WON
    told = {winner: entry(answer.decision, reason, message)}
    if memory.last is not None:
        told[winner]["lastRunTime"] = timestamp(memory.last.finished)
    if answer.next_time is not None:
        told[winner]["nextTime"] = timestamp(answer.next_time)
    if memory.plan is not None:
        planned = memory.plan.planned
        told[winner] |= {
            "plannedBytes": planned.bytes,
            "plannedFiles": planned.files + planned.whole_files,
            "planDigest": planned.digest,
        }
    for policy in found.tied:
        text = f"VacuumPolicy {winner} is equally specific and older; it decides for this Dataset."
        told[policy.meta.name] = entry(LATER, Reason.TIE_LOST, text)
    for policy in found.outranked:
        text = f"VacuumPolicy {winner} is more specific; it decides for this Dataset."
        told[policy.meta.name] = entry(LATER, Reason.LESS_SPECIFIC, text)
    return told


def on_time(
    dataset: Dataset, policy: VacuumPolicy | None, case: VacuumContext, answer: VacuumDecision
) -> Condition | None:
    """Whether bytes will be gone, and seen to be, by the first evictBy, as far as is known: told when it can still be helped.
    None: nothing has an evictBy."""
    ledger = case.view.ledger
    if missed := overdue(ledger, case.now):
        return Condition(EVICTION_ON_TIME, FALSE, Reason.EVICT_BY_MISSED, missed)
    if case.deadline is not None:
        return _purged_on_time(dataset, policy, case.deadline, answer, case.now)
    seen_by = [e.evict_by for e in ledger.open_erasures if e.evict_by is not None]
    if not seen_by:
        return None
    text = f"Dataset {dataset.meta.name}: the rows are purged; that the storage has none of them has to be seen by "
    return Condition(EVICTION_ON_TIME, TRUE, Reason.ON_TIME, f"{text}{timestamp(min(seen_by))}.")


def _purged_on_time(
    dataset: Dataset, policy: VacuumPolicy | None, due: Deadline, answer: VacuumDecision, now: datetime
) -> Condition:
    by = f"Dataset {dataset.meta.name}: bytes must be gone by {timestamp(due.evict_by)}"

    def late(reason: str, text: str) -> Condition:
        return Condition(EVICTION_ON_TIME, FALSE, str(reason), f"{by}, {text}")

    if policy is None:
        text = "and no VacuumPolicy selects the Dataset, so that nobody purges them. Create one, or label the Dataset."
        return late(Reason.NO_VACUUM_POLICY, text)
    if due.evict_by <= now:
        return late(Reason.EVICT_BY_MISSED, f"and they are not, as far as is known. {answer.message}")
    if answer.decision == NEEDS_APPROVAL and due.starts_by <= now:
        return late(Reason.NEEDS_APPROVAL, f"and the vacuum waits to be approved. {answer.message}")
    if answer.decision == RUNNING:
        return Condition(EVICTION_ON_TIME, TRUE, Reason.ON_TIME, f"{by}. A vacuum is under way.")
    if due.possible_until < now:
        return late(
            Reason.EVICT_BY_INFEASIBLE,
            f"for which a vacuum had to start by {timestamp(due.possible_until)}: {due.work}. Give the runs more executors, or "
            "raise spec.limits of the VacuumPolicy.",
        )
    if answer.reason == Reason.DATASET_NOT_READY and due.starts_by <= now:
        return late(Reason.DATASET_NOT_READY, f"and nothing can be started. {answer.message}")
    starts = "is due" if due.starts_by <= now else f"starts by {timestamp(due.starts_by)}"
    return Condition(EVICTION_ON_TIME, TRUE, Reason.ON_TIME, f"{by}. A vacuum {starts}.")


def events(dataset: Dataset, new: Mapping[str, Any]) -> tuple[Event, ...]:
    """What has changed of the decision and of whether it is on time."""
    name, told = dataset.meta.name, []
    before, after = dataset.status.get("vacuum") or {}, new.get("vacuum") or {}
    same = all(before.get(k) == after.get(k) for k in ("decision", "reason"))
    if not same and after.get("reason") in _TOLD:
        told.append(Event("Dataset", name, after["reason"], f"Vacuum: {after['message']}"))
    was, now = find(dataset.status, EVICTION_ON_TIME), find(new, EVICTION_ON_TIME)
    if (was.get("status", TRUE), was.get("reason", Reason.ON_TIME)) != (
        now.get("status", TRUE),
        now.get("reason", Reason.ON_TIME),
    ):
        warning = now.get("status") == FALSE
        text = now.get("message") or "Nothing has an evictBy any more."
        told.append(Event("Dataset", name, str(now.get("reason", Reason.ON_TIME)), text, warning))
    return tuple(told)
