"""What is known of the times in a data file, and which of them are too old. Pure.

A row is too old if its time is before the cutoff, the start of a UTC day. A row without a time never is. All rows of a file are
too old only if its metadata proves this: a bound without a count of nulls does not.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum

from lethe.contract.run import RetentionSpec
from lethe.contract.vacuum_policy import Retention


class Age(StrEnum):
    """What is known of the rows of a data file."""

    YOUNG = "Young"
    """No row is too old."""
    UNKNOWN = "Unknown"
    """Some rows may be too old: only the file itself says it."""
    MIXED = "Mixed"
    """At least one row is too old, and others may not be."""
    OLD = "Old"
    """All rows are too old."""


def cutoff_day(now: datetime, max_age_days: int) -> date:
    """The UTC day before which rows are too old. It stays the same within a UTC day."""
    return (now.astimezone(UTC) - timedelta(days=max_age_days)).date()


def rule_at(retention: Retention, now: datetime) -> RetentionSpec:
    """Which rows a policy's retention finds too old today."""
    cutoff = cutoff_day(now, retention.max_age_days)
    return RetentionSpec(column=retention.column or "", max_age_days=retention.max_age_days, cutoff=cutoff)


def due_time(cutoff: date, max_age_days: int) -> datetime:
    """The first moment at which this day is the cutoff."""
    return datetime(cutoff.year, cutoff.month, cutoff.day, tzinfo=UTC) + timedelta(days=max_age_days)


@dataclass(frozen=True)
class FileTimes:
    """What metadata says of the times in a file, as Iceberg stores them: days or microseconds since 1970."""

    lower: int | None = None
    """No time is earlier; None: unknown."""
    upper: int | None = None
    """No time is later; None: unknown."""
    nulls: bool | None = None
    """Whether a row may have no time; None: unknown."""
    tight: bool = False
    """Some row has the time `lower`."""
    empty: bool = False
    """No row has a time."""

    @property
    def contradicts_itself(self) -> bool:
        """Whether no time fits between the bounds."""
        return self.lower is not None and self.upper is not None and self.lower > self.upper

    def and_also(self, other: "FileTimes") -> "FileTimes":
        """What both say together; nothing, if they contradict each other."""
        lowers = [n for n in (self.lower, other.lower) if n is not None]
        uppers = [n for n in (self.upper, other.upper) if n is not None]
        known = [n for n in (self.nulls, other.nulls) if n is not None]
        both = FileTimes(
            max(lowers, default=None),
            min(uppers, default=None),
            any(known) if known else None,
            self.tight or other.tight,
            self.empty or other.empty,
        )
        has_times = bool(lowers or uppers)
        return FileTimes() if both.contradicts_itself or (both.empty and has_times) else both


def age_of(times: FileTimes, cutoff: int) -> Age:
    """The age of a file with such times.

    Args:
        cutoff: The first time that is not too old, as Iceberg stores it.
    """
    if times.empty or (times.lower is not None and times.lower >= cutoff):
        return Age.YOUNG
    if times.upper is not None and times.upper < cutoff and times.nulls is False:
        return Age.OLD
    return Age.MIXED if times.tight and times.lower is not None else Age.UNKNOWN
