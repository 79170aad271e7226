"""What a Dataset's status says about its source. Pure.

The inlet writes `status.source`; the operator leaves it as it is, and makes the condition SourceRead of it.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from lethe_operator.decide import conditions
from lethe_operator.decide.conditions import Condition, parsed_time
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset

# The inlet reports at least every minute.
SILENT_AFTER: Final = timedelta(minutes=3)
_WAITING: Final = frozenset({Reason.SOURCE_STARTING, Reason.TABLE_NOT_READY})


def kept(dataset: Dataset) -> dict[str, Any]:
    """The part of the status that the inlet writes."""
    source = dataset.status.get("source")
    return {"source": source} if source and dataset.spec.source.kafka is not None else {}


def condition(dataset: Dataset, now: datetime) -> tuple[Condition, ...]:
    """The condition SourceRead; none: the Dataset has no source. Batches of the buffer are promoted whatever its value."""
    if dataset.spec.source.kafka is None:
        return ()
    source: Mapping[str, Any] = dataset.status.get("source") or {}
    seen = parsed_time(source.get("observedTime"))
    if seen is None or now - seen > SILENT_AFTER:
        text = "The inlet has not reported for some minutes." if seen else "The inlet has never reported."
        return (Condition(conditions.SOURCE_READ, conditions.UNKNOWN, Reason.INLET_SILENT, text),)
    reason, message = str(source.get("reason") or ""), str(source.get("message") or "")
    if reason == Reason.SOURCE_READ:
        return (Condition(conditions.SOURCE_READ, conditions.TRUE, reason, message),)
    state = conditions.UNKNOWN if reason in _WAITING else conditions.FALSE
    return (Condition(conditions.SOURCE_READ, state, reason or Reason.SOURCE_FAILED, message),)


def look_again(dataset: Dataset, now: datetime) -> datetime | None:
    """When the condition changes unless the inlet reports; None: it does not change by itself."""
    if dataset.spec.source.kafka is None:
        return None
    seen = parsed_time((dataset.status.get("source") or {}).get("observedTime"))
    at = seen + SILENT_AFTER + timedelta(seconds=1) if seen is not None else None
    return at if at is not None and at > now else None
