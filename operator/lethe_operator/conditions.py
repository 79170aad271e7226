"""Conditions as kstatus defines them, with their transition times. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

TRUE: Final = "True"
FALSE: Final = "False"
UNKNOWN: Final = "Unknown"

READY: Final = "Ready"
RECONCILING: Final = "Reconciling"
STALLED: Final = "Stalled"
SUCCEEDED: Final = "Succeeded"
ERASED: Final = "Erased"
PAUSED: Final = "Paused"
EVENTS_READY: Final = "EventsReady"
EVICTION_ON_TIME: Final = "EvictionOnTime"
EVENTS_PUBLISHED: Final = "EventsPublished"
SOURCE_READ: Final = "SourceRead"

MESSAGE_AT_MOST: Final = 2000  # characters


@dataclass(frozen=True)
class Condition:
    """A condition as a decision makes it; `as_status` adds the generation and the time of the transition."""

    type: str
    status: str
    reason: str
    message: str = ""


def timestamp(time: datetime) -> str:
    """RFC 3339 in UTC, to the second, as Kubernetes writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def parsed_time(text: Any) -> datetime | None:
    """A time of a status; None: it is not set."""
    return datetime.fromisoformat(str(text).replace("Z", "+00:00")) if text else None


def as_status(
    old: Iterable[Mapping[str, Any]], new: Sequence[Condition], generation: int, now: datetime
) -> list[dict[str, Any]]:
    """The conditions of the status. `lastTransitionTime` changes only with a condition's status."""
    before = {str(c.get("type")): c for c in old}
    result: list[dict[str, Any]] = []
    for c in new:
        known = before.get(c.type)
        since = known.get("lastTransitionTime") if known and known.get("status") == c.status else None
        result.append(
            {
                "type": c.type,
                "status": c.status,
                "observedGeneration": generation,
                "lastTransitionTime": since or timestamp(now),
                "reason": c.reason,
                "message": c.message[:MESSAGE_AT_MOST],
            }
        )
    return result


def find(status: Mapping[str, Any], condition_type: str) -> Mapping[str, Any]:
    """One condition of a status; empty if it is not set."""
    return next((c for c in status.get("conditions") or () if c.get("type") == condition_type), {})


def healthy(reason: str, message: str) -> tuple[Condition, ...]:
    """Ready; nothing is in progress."""
    return (
        Condition(READY, TRUE, reason, message),
        Condition(RECONCILING, FALSE, reason),
        Condition(STALLED, FALSE, reason),
    )


def waiting(reason: str, message: str) -> tuple[Condition, ...]:
    """Not ready; it continues without a change by the user."""
    return (
        Condition(READY, FALSE, reason, message),
        Condition(RECONCILING, TRUE, reason, message),
        Condition(STALLED, FALSE, reason),
    )


def stalled(reason: str, message: str) -> tuple[Condition, ...]:
    """Not ready; the user must change something."""
    return (
        Condition(READY, FALSE, reason, message),
        Condition(RECONCILING, FALSE, reason),
        Condition(STALLED, TRUE, reason, message),
    )
