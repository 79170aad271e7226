"""When the window of a VacuumPolicy is open. Pure.

The schedule is cron's, told on the clocks of the time zone: an opening that falls into the hour that is skipped in spring comes
right after it, and of the hour that comes twice in autumn a fixed time counts once. How long the window stays open is real time.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from lethe_operator.reasons import Reason
from lethe_operator.resources.vacuum_policy import Window

FIELDS: Final = 5
# Openings that lie closer than the window is long make one long window; this many of them are looked at.
JOINED_AT_MOST: Final = 50


@dataclass(frozen=True)
class Unusable:
    """A window that cannot be understood, or that never opens. It keeps a vacuum from starting, as a closed one does."""

    reason: Reason
    message: str


@dataclass(frozen=True)
class Hours:
    """`closes`: when the window that is open now does, None: it is closed; `opens`: when it opens next, after now."""

    closes: datetime | None
    opens: datetime


def hours(window: Window, now: datetime) -> Hours | Unusable:
    """How the window stands at an aware moment; times in UTC."""
    try:
        zone = ZoneInfo(window.time_zone)
    except (ValueError, OSError, LookupError):
        text = f"spec.window.timeZone {window.time_zone!r} is no IANA time zone; write one such as Europe/Berlin."
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
        said = str(e)
    try:  # a day that there is, but in none of these months
        CronSim(" ".join([*fields[:3], "*", fields[4]]), local)
    except CronSimError:
        field = said.removeprefix("Bad ")
        text = f"its {field} cannot be understood. Write five fields as for cron, such as '0 1 * * *'."
        return Unusable(Reason.INVALID_WINDOW, f"spec.window.schedule {schedule!r}: {text}")
    return _never(schedule)


def _never(schedule: str) -> Unusable:
    text = (
        f"spec.window.schedule {schedule!r} names a day that never comes, so that the window never opens. Only a vacuum that an "
        "evictBy makes due, or the annotation lethe.dev/vacuum-now, starts. Correct it."
    )
    return Unusable(Reason.WINDOW_NEVER_OPENS, text)


def _opened(schedule: str, local: datetime) -> datetime | None:
    """When it opened last, as UTC."""
    now = local.astimezone(UTC)
    for before in CronSim(schedule, (now + timedelta(minutes=1)).astimezone(local.tzinfo), reverse=True):
        if (opened := before.astimezone(UTC)) <= now:
            return opened
    return None


def _joined(window: Window, local: datetime, closes: datetime) -> datetime:
    """When a window really closes that opens anew before it does, as far as is worth knowing."""
    for _, opens in zip(range(JOINED_AT_MOST), CronSim(window.schedule, local), strict=False):
        if opens.astimezone(UTC) > closes:
            break
        closes = opens.astimezone(UTC) + timedelta(seconds=window.duration_seconds)
    return closes
