"""The status of a Restatement from how it stands, and the events of its changes. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from lethe_operator.decide import conditions
from lethe_operator.decide.actions import Event
from lethe_operator.decide.conditions import Condition
from lethe_operator.decide.restatement import Standing
from lethe_operator.reasons import Reason
from lethe_operator.resources.restatement import Restatement


def status(restatement: Restatement, standing: Standing, now: datetime) -> dict[str, Any]:
    """The whole status."""
    old = restatement.status
    document: dict[str, Any] = {
        "observedGeneration": restatement.meta.generation,
        "phase": standing.phase,
        "conditions": conditions.as_status(
            old.get("conditions") or (), _conditions(restatement, standing), restatement.meta.generation, now
        ),
    }
    if standing.progress:
        document["progress"] = standing.progress
    undoes = standing.undoes or old.get("undoesKey")
    if undoes:
        document["undoesKey"] = undoes
    for name, value in (("plan", standing.plan or old.get("plan")), ("result", standing.result)):
        if value:
            document[name] = dict(value)
    return document


def _conditions(restatement: Restatement, standing: Standing) -> list[Condition]:
    reason, message = standing.reason, standing.message
    # A cancelled one is what its author wants: nobody has to act, and whoever deploys it is not held up.
    if standing.finished and not standing.stalled:
        found = list(conditions.healthy(reason, message))
    elif standing.stalled:
        found = list(conditions.stalled(reason, message))
    else:
        found = list(conditions.waiting(reason, message))
    found.append(Condition(conditions.SUCCEEDED, standing.succeeded, reason, message))
    if restatement.spec.evict_by_seconds is not None and standing.succeeded == conditions.TRUE:
        text = "evictBy is kept with the tombstones; that the bytes are gone by then is not watched over yet."
        found.append(Condition(conditions.ERASED, conditions.UNKNOWN, Reason.ERASURE_NOT_WATCHED, text))
    return found


def events(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Event, ...]:
    """One event for each end and each reason to wait or to stall; not for the queue, in which thousands may be."""
    was, now = conditions.find(old, conditions.READY), conditions.find(new, conditions.READY)
    if (was.get("status"), was.get("reason"), old.get("phase")) == (now["status"], now["reason"], new["phase"]):
        return ()
    stalled = conditions.find(new, conditions.STALLED)["status"] == conditions.TRUE
    ended = conditions.find(new, conditions.SUCCEEDED)["status"] != conditions.UNKNOWN
    if not (stalled or ended) and (now["reason"] == Reason.QUEUED or was.get("reason") == now["reason"]):
        return ()
    return (Event("Restatement", name, now["reason"], now["message"], warning=stalled),)


def expires(restatement: Restatement, standing: Standing, now: datetime) -> datetime | None:
    """When a finished Restatement is to be deleted; None: never, or it has not finished."""
    ttl = restatement.spec.ttl_seconds_after_finished
    if ttl is None or not standing.finished:
        return None
    finished = conditions.find(restatement.status, conditions.SUCCEEDED)
    if finished.get("status") != standing.succeeded or standing.finished_time is None:
        return None  # its end is being written now; the time of that is what counts
    return datetime.fromtimestamp(standing.finished_time.timestamp() + ttl, tz=now.tzinfo)
