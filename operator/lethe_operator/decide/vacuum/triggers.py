"""Which trigger of a VacuumPolicy has fired, or when the next one does. Pure.

Nothing is remembered between evaluations. A wrong clock only makes a trigger fire too early or too late.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from lethe_operator.decide.conditions import timestamp
from lethe_operator.decide.vacuum.deadline import Deadline
from lethe_operator.reasons import Reason
from lethe_operator.resources.observed import TableView
from lethe_operator.resources.vacuum_policy import Triggers


@dataclass(frozen=True)
class Fired:
    reason: Reason
    message: str  # without a final period
    urgent: bool = False  # an evictBy is due, so the window does not apply


@dataclass(frozen=True)
class NotYet:
    message: str
    look_again: datetime | None = None  # when a trigger fires if the table does not change; None: none would


def fired(triggers: Triggers, view: TableView, deadline: Deadline | None, now: datetime) -> Fired | NotYet:
    """Evaluate the policy's triggers, the most urgent first."""
    texts: list[str] = []
    times: list[datetime] = []
    if deadline is not None:
        text = f"bytes must be gone by {timestamp(deadline.evict_by)}"
        if deadline.starts_by <= now:
            return Fired(Reason.EVICT_BY_NEAR, text, urgent=True)
        texts.append(f"{text}, so a vacuum starts at {timestamp(deadline.starts_by)}")
        times.append(deadline.starts_by)
    active, statistics = len(view.ledger.tombstones), view.ledger.statistics
    if (limit := triggers.active_tombstones) is not None:
        text = f"{active} active tombstones, the limit is {limit}"
        if active >= limit:
            return Fired(Reason.TOO_MANY_TOMBSTONES, text)
        texts.append(text)
    if (percent := triggers.tombstoned_rows_percent) is not None:
        share = hidden_percent(view)
        hidden = "an unknown share" if share is None else f"{share:.1f}%"
        text = f"{hidden} of the rows hidden, the limit is {percent}%"
        if active and share is not None and share >= percent:
            return Fired(Reason.TOO_MANY_HIDDEN_ROWS, text)
        texts.append(text)
    if (age := triggers.oldest_tombstone_age_seconds) is not None and statistics.oldest_added_on is not None:
        old_at = statistics.oldest_added_on + timedelta(seconds=age)
        text = f"the oldest tombstone was added at {timestamp(statistics.oldest_added_on)}, the limit is {age} s"
        if old_at <= now:
            return Fired(Reason.TOMBSTONE_TOO_OLD, text)
        texts.append(text)
        times.append(old_at)
    message = "; ".join(texts) or "There is nothing to purge, or no trigger is set for it"
    return NotYet(f"{message[:1].upper()}{message[1:]}.", min(times, default=None))


def hidden_percent(view: TableView) -> float | None:
    """The share of the table's rows that tombstones hide, 0 to 100; None: unknown."""
    rows, total = view.ledger.statistics.tombstoned_rows, view.total_records
    if rows is None or total is None:
        return None
    return min(100.0 * rows / total, 100.0) if total else 0.0
