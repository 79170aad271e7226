"""Conditions as kstatus defines them, with their transition times. Pure."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from lethe.base.errors import Verdict
from lethe.contract.status import Condition

TRUE: Final = "True"
FALSE: Final = "False"
UNKNOWN: Final = "Unknown"

READY: Final = "Ready"
RECONCILING: Final = "Reconciling"
STALLED: Final = "Stalled"
SUCCEEDED: Final = "Succeeded"
ERASED: Final = "Erased"
VISIBLE_TO_ALL_ENGINES: Final = "VisibleToAllEngines"
PAUSED: Final = "Paused"
EVENTS_READY: Final = "EventsReady"
EVICTION_ON_TIME: Final = "EvictionOnTime"
EVENTS_PUBLISHED: Final = "EventsPublished"
SOURCE_READ: Final = "SourceRead"

MESSAGE_AT_MOST: Final = 2000  # characters


def timestamp(time: datetime) -> str:
    """RFC 3339 in UTC, to the second, as Kubernetes writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def written(
    old: Iterable[Condition] | None, new: Sequence[Condition], generation: int, now: datetime
) -> tuple[Condition, ...]:
    """The new conditions, as the status has them. `lastTransitionTime` changes only with a condition's status."""
    before = {c.type: c for c in old or ()}
    return tuple(_written(before.get(c.type), c, generation, now) for c in new)


def _written(known: Condition | None, new: Condition, generation: int, now: datetime) -> Condition:
    message, since = new.message[:MESSAGE_AT_MOST], known.last_transition_time if known is not None else None
    if known is None or known.status != new.status or since is None:
        since = now
    elif (known.reason, known.message, known.observed_generation) == (new.reason, message, generation):
        return known
    return Condition(
        type=new.type,
        status=new.status,
        observed_generation=generation,
        last_transition_time=since,
        reason=str(new.reason),
        message=message,
    )


def healthy(verdict: Verdict) -> tuple[Condition, ...]:
    """Ready; nothing is in progress."""
    reason, message = verdict.reason, verdict.message
    return (
        Condition.of(READY, TRUE, reason, message),
        Condition.of(RECONCILING, FALSE, reason),
        Condition.of(STALLED, FALSE, reason),
    )


def waiting(verdict: Verdict) -> tuple[Condition, ...]:
    """Not ready; it continues without a change by the user."""
    reason, message = verdict.reason, verdict.message
    return (
        Condition.of(READY, FALSE, reason, message),
        Condition.of(RECONCILING, TRUE, reason, message),
        Condition.of(STALLED, FALSE, reason),
    )


def stalled(verdict: Verdict) -> tuple[Condition, ...]:
    """Not ready; the user must change something."""
    reason, message = verdict.reason, verdict.message
    return (
        Condition.of(READY, FALSE, reason, message),
        Condition.of(RECONCILING, FALSE, reason),
        Condition.of(STALLED, TRUE, reason, message),
    )


def not_ready(verdict: Verdict) -> tuple[Condition, ...]:
    """Not ready: it continues by itself, or the user must change something."""
    return waiting(verdict) if verdict.transient else stalled(verdict)
