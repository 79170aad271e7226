"""When the window of a VacuumPolicy is open. Pure.

The schedule is cron's, in local time of the time zone. An opening within the hour that is skipped in spring comes right after
it; a fixed time within the hour that is repeated in autumn counts once. The duration of the window is elapsed time.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from lethe_operator.reasons import Reason
from lethe_operator.resources.vacuum_policy import Window

FIELDS: Final = 5
# Overlapping windows count as one long window; at most this many are joined.
JOINED_AT_MOST: Final = 50


@dataclass(frozen=True)
class Unusable:
    """A window that is invalid or never opens. Like a closed window, it keeps vacuums from starting."""

    reason: Reason
    message: str


@dataclass(frozen=True)
class Hours:
    closes: datetime | None  # when the open window closes; None: it is closed
    opens: datetime  # when it opens next, after now


def hours(window: Window, now: datetime) -> Hours | Unusable:
    """When the window closes and opens next, in UTC. `now` must be an aware time."""
    try:
        zone = ZoneInfo(window.time_zone)
    except (ValueError, OSError, LookupError):
        text = f"spec.window.timeZone {window.time_zone!r} is not an IANA time zone. Set one such as Europe/Berlin."
        return Unusable(Reason.INVALID_WINDOW, text)
    local, schedule = now.astimezone(zone), window.schedule
    if (wrong := _wrong(schedule, local)) is not None:
        return wrong
    opens = next(CronSim(schedule, local), None)
    if opens is None:
        return _never(schedule)
    closes = _opened(schedule, local)
    if closes is not None:
        closes += timedelta(seconds=window.duration_seconds)
    if closes is None or closes <= now:
        return Hours(None, opens.astimezone(UTC))
    return Hours(_joined(window, local, closes).astimezone(UTC), opens.astimezone(UTC))


def _wrong(schedule: str, local: datetime) -> Unusable | None:
    fields = schedule.split()
    if len(fields) != FIELDS:
        text = f"{len(fields)} fields, expected {FIELDS}: minute, hour, day of month, month, weekday."
        return Unusable(Reason.INVALID_WINDOW, f"spec.window.schedule {schedule!r} has {text}")
    try:
        CronSim(schedule, local)
        return None
    except CronSimError as e:
        error = str(e)
    try:  # the day exists, but in none of these months
        CronSim(" ".join([*fields[:3], "*", fields[4]]), local)
    except CronSimError:
        field = error.removeprefix("Bad ")
        text = f"its {field} is invalid. Set five cron fields, such as '0 1 * * *'."
        return Unusable(Reason.INVALID_WINDOW, f"spec.window.schedule {schedule!r}: {text}")
    return _never(schedule)


def _never(schedule: str) -> Unusable:
    text = (
        f"spec.window.schedule {schedule!r} names a day that does not exist, so the window never opens. Only an evictBy or the "
        "annotation lethe.dev/vacuum-now starts a vacuum. Correct the schedule."
    )
    return Unusable(Reason.WINDOW_NEVER_OPENS, text)


def _opened(schedule: str, local: datetime) -> datetime | None:
    """When the window opened last, in UTC; None: never."""
    now = local.astimezone(UTC)
    for before in CronSim(schedule, (now + timedelta(minutes=1)).astimezone(local.tzinfo), reverse=True):
        if (opened := before.astimezone(UTC)) <= now:
            return opened
    return None


def _joined(window: Window, local: datetime, closes: datetime) -> datetime:
    """When a window closes that opens again before it closes, after at most `JOINED_AT_MOST` openings."""
    for _, opens in zip(range(JOINED_AT_MOST), CronSim(window.schedule, local), strict=False):
        if opens.astimezone(UTC) > closes:
            break
        closes = opens.astimezone(UTC) + timedelta(seconds=window.duration_seconds)
    return closes
