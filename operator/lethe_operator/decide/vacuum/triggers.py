"""Which trigger of a VacuumPolicy has fired, or when the next one does. Pure.

Triggers are asked anew each time. A clock that is off makes them fire earlier or later, and nothing more.
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
    """`urgent`: an evictBy is due, so that the window does not count."""

    reason: Reason
    message: str
    urgent: bool = False


@dataclass(frozen=True)
class NotYet:
    """`look_again`: when that changes by itself; None: not before the table does."""

    message: str
    look_again: datetime | None = None


def fired(triggers: Triggers, view: TableView, deadline: Deadline | None, now: datetime) -> Fired | NotYet:
    """The policy's questions in order, the most urgent first."""
    said: list[str] = []
    times: list[datetime] = []
    if deadline is not None:
        text = f"bytes must be gone by {timestamp(deadline.evict_by)}"
        if deadline.starts_by <= now:
            return Fired(Reason.EVICT_BY_NEAR, text, urgent=True)
        said.append(f"{text}, for which a vacuum starts at {timestamp(deadline.starts_by)}")
        times.append(deadline.starts_by)
    active, statistics = len(view.ledger.tombstones), view.ledger.statistics
    if (limit := triggers.active_tombstones) is not None:
        text = f"{active} active tombstones, the limit is {limit}"
        if active >= limit:
            return Fired(Reason.TOO_MANY_TOMBSTONES, text)
        said.append(text)
    if (percent := triggers.tombstoned_rows_percent) is not None:
        share = hidden_percent(view)
        text = f"{'unknown how much' if share is None else f'{share:.1f}%'} of the rows hidden, the limit is {percent}%"
        if active and share is not None and share >= percent:
            return Fired(Reason.TOO_MANY_HIDDEN_ROWS, text)
        said.append(text)
    if (age := triggers.oldest_tombstone_age_seconds) is not None and statistics.oldest_added_on is not None:
        old_at = statistics.oldest_added_on + timedelta(seconds=age)
        text = f"the oldest tombstone is of {timestamp(statistics.oldest_added_on)}, the limit is {age} s"
        if old_at <= now:
            return Fired(Reason.TOMBSTONE_TOO_OLD, text)
        said.append(text)
        times.append(old_at)
    message = "; ".join(said) or "There is nothing to purge, or no trigger that asks for it"
    return NotYet(f"{message[:1].upper()}{message[1:]}.", min(times, default=None))


def hidden_percent(view: TableView) -> float | None:
    """The share of the table's rows that tombstones hide, at most 100; None: not known."""
    rows, total = view.ledger.statistics.tombstoned_rows, view.total_records
    if rows is None or total is None:
        return None
    return min(100.0 * rows / total, 100.0) if total else 0.0
