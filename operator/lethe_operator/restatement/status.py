"""Makes the status of a Restatement from its assessment, and the events of changes. Pure.

Decides when finished Restatements are deleted, by ttlSecondsAfterFinished. Pure. The ledger keeps their results.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from lethe_operator import conditions
from lethe_operator.actions import Event, earliest
from lethe_operator.conditions import Condition
from lethe_operator.erasure.decide import is_awaited
from lethe_operator.reasons import Reason
from lethe_operator.resources.restatement import Restatement
from lethe_operator.restatement import outcome as id_lists
from lethe_operator.restatement.outcome import Assessment

# Thousands of Restatements may expire together. Each deletion takes some milliseconds and delays the Dataset's reconcile.
DELETED_AT_ONCE: Final = 100
DELETED_AGAIN_AFTER: Final = timedelta(seconds=5)


@dataclass(frozen=True)
class ExpiredRestatements:
    """Which Restatements to delete now."""

    names: tuple[str, ...] = ()
    look_again: datetime | None = None
    """When the next ones expire; None: no other one does."""


def expired(standings: Iterable[tuple[Restatement, Assessment]], now: datetime) -> ExpiredRestatements:
    """The expired Restatements, at most DELETED_AT_ONCE, those that expired first."""
    times = [(at, r.meta.name) for r, s in standings if (at := expires(r, s, now)) is not None]
    over = sorted((at, name) for at, name in times if at <= now)
    later = now + DELETED_AGAIN_AFTER if len(over) >= DELETED_AT_ONCE else None
    next_one = earliest(later, *(at for at, _ in times if at > now))
    return ExpiredRestatements(tuple(name for _, name in over[:DELETED_AT_ONCE]), next_one)


def expires(restatement: Restatement, standing: Assessment, now: datetime) -> datetime | None:
    """When a Restatement expires; None: never, or it has not finished, or its erasure is not verified yet."""
    ttl = restatement.spec.ttl_seconds_after_finished
    if ttl is None or not standing.finished or is_awaited(restatement.status):
        return None
    finished = conditions.find(restatement.status, conditions.SUCCEEDED)
    if finished.get("status") != standing.succeeded or standing.finished_time is None:
        return None  # the status does not show the end yet; the time counts from that status
    return datetime.fromtimestamp(standing.finished_time.timestamp() + ttl, tz=now.tzinfo)


# At most this many statuses of waiting and running Restatements are written at once. They are soon outdated, and must not delay
# the statuses of finished ones.
COURTESIES_AT_ONCE: Final = 200
COURTESIES_AGAIN_AFTER: Final = timedelta(seconds=5)
# At most this many statuses are written by one reconcile, which would otherwise occupy its thread for minutes. The next reconcile
# writes the rest.
STATUSES_AT_ONCE: Final = 5000
# The members of larger groups get no event when they succeed: their statuses say the same.
EVENTS_FOR_GROUPS_UP_TO: Final = 20
# The reasons of the condition Erased that cause an event.
_ERASURE_EVENTS: Final = tuple(
    map(str, (Reason.ERASED, Reason.ERASURE_BLOCKED, Reason.GC_DISABLED, Reason.ERASURE_OVERDUE))
)
EVENTS_AT_ONCE: Final = 100  # the rest is visible in the statuses only


@dataclass(frozen=True)
class StatusChanges:
    """What one reconcile writes about Restatements: only statuses that differ, up to a limit."""

    # Statuses to write, by name.
    statuses: Mapping[str, dict[str, Any]]
    events: tuple[Event, ...]
    look_again: datetime | None = None
    """When to write the statuses that were postponed; None: none was."""


def changes(standings: Iterable[tuple[Restatement, Assessment]], now: datetime) -> StatusChanges:
    """The statuses of these Restatements that differ from the current ones, with their events.

    In this order, and only the first STATUSES_AT_ONCE.
    """
    statuses: dict[str, dict[str, Any]] = {}
    new_events: list[Event] = []
    courtesies, waiting, more = 0, False, False
    for restatement, standing in standings:
        old = restatement.status
        if standing.from_status and old.get("observedGeneration") == restatement.meta.generation:
            continue
        new = status(restatement, standing, now)
        if new == old:
            continue
        if len(statuses) >= STATUSES_AT_ONCE:
            more = True
            break
        if standing.waits and standing.cancel_job is None:
            courtesies += 1
            if courtesies > COURTESIES_AT_ONCE:
                waiting = True
                continue
        statuses[restatement.meta.name] = new
        new_events += events(restatement.meta.name, old, new)
    later = now if more else now + COURTESIES_AGAIN_AFTER if waiting else None
    return StatusChanges(statuses, tuple(new_events[:EVENTS_AT_ONCE]), later)


def status(restatement: Restatement, standing: Assessment, now: datetime) -> dict[str, Any]:
    """The complete status document."""
    old = restatement.status
    document: dict[str, Any] = {
        "observedGeneration": restatement.meta.generation,
        "phase": standing.phase.value,
        "conditions": conditions.as_status(
            old.get("conditions") or (), _conditions(restatement, standing), restatement.meta.generation, now
        ),
    }
    if standing.progress:
        document["progress"] = standing.progress
    if standing.position is not None:
        document["queuePosition"] = _position(old.get("queuePosition"), standing.position)
    undoes = standing.undoes or old.get("undoesKey")
    if undoes:
        document["undoesKey"] = undoes
    for name, value in (
        ("plan", _plan(restatement, standing)),
        ("attempts", _attempts(old, standing)),
        ("result", standing.result),
        ("erasure", standing.erasure.document if standing.erasure is not None else old.get("erasure")),
    ):
        if value:
            document[name] = dict(value)
    return document


def _plan(restatement: Restatement, standing: Assessment) -> Mapping[str, Any]:
    """`status.plan`. Its entry `batchIds`, about a list by reference, never changes after it was first written."""
    old = restatement.status.get("plan") or {}
    first = {k: v for k, v in old.items() if k == "batchIds"}
    return {**id_lists.seen(restatement.listed), **old, **(standing.plan or {}), **first}


def _attempts(old: Mapping[str, Any], standing: Assessment) -> Mapping[str, Any]:
    """`status.attempts`: the numbers of failed attempts.

    It is written at the end, because updates at each failure of a large group would write thousands of statuses. Later statuses
    keep it, because the runs may be deleted by then.
    """
    ended = conditions.find(old, conditions.SUCCEEDED).get("status") in (conditions.TRUE, conditions.FALSE)
    if ended and "attempts" in old:
        return dict(old["attempts"])
    failed = standing.failures
    return {"run": failed.run, "infrastructure": failed.infrastructure} if failed.total else {}


def _position(shown: Any, position: int) -> int:
    """The place in the queue to show.

    It is updated only when it has halved or grown, because thousands may wait, and all of them move with each run.
    """
    return shown if isinstance(shown, int) and shown / 2 < position <= shown else position


def _conditions(restatement: Restatement, standing: Assessment) -> list[Condition]:
    reason, message = standing.reason, standing.message
    # A cancelled Restatement is Ready: no action is needed, and deployment tools do not wait for it.
    if standing.finished and not standing.stalled:
        written_conditions = list(conditions.healthy(reason, message))
    elif standing.stalled:
        written_conditions = list(conditions.stalled(reason, message))
    else:
        written_conditions = list(conditions.waiting(reason, message))
    written_conditions.append(Condition(conditions.SUCCEEDED, standing.succeeded, reason, message))
    if standing.erasure is not None:
        written_conditions.append(standing.erasure.condition)
    elif before := conditions.find(restatement.status, conditions.ERASED):  # the ledger was not read
        texts = (str(before.get(k, "")) for k in ("status", "reason", "message"))
        written_conditions.append(Condition(conditions.ERASED, *texts))
    return written_conditions


def events(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Event, ...]:
    """An event for the end, for each reason to wait or stall, and for changes of the erasure.

    No event for waiting in the queue, because thousands may wait there.
    """
    return (*_events(name, old, new), *_erasure_events(name, old, new))


def _erasure_events(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Event, ...]:
    was, now = conditions.find(old, conditions.ERASED), conditions.find(new, conditions.ERASED)
    reason = str(now.get("reason", ""))
    if reason == was.get("reason", "") or reason not in _ERASURE_EVENTS:
        return ()
    warning = reason == Reason.ERASURE_OVERDUE
    return (Event("Restatement", name, reason, str(now["message"]), warning=warning),)


def _events(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Event, ...]:
    was, now = conditions.find(old, conditions.READY), conditions.find(new, conditions.READY)
    if (was.get("status"), was.get("reason"), old.get("phase")) == (now["status"], now["reason"], new["phase"]):
        return ()
    stalled = conditions.find(new, conditions.STALLED)["status"] == conditions.TRUE
    ended = conditions.find(new, conditions.SUCCEEDED)["status"] != conditions.UNKNOWN
    if ended and not stalled and (new.get("result") or {}).get("groupSize", 1) > EVENTS_FOR_GROUPS_UP_TO:
        return ()
    if not (stalled or ended) and (now["reason"] == Reason.QUEUED or was.get("reason") == now["reason"]):
        return ()
    return (Event("Restatement", name, now["reason"], now["message"], warning=stalled),)
