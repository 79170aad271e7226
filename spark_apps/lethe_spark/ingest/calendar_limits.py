"""Which dates and times may enter a table: those of the years 1 to 9999, as SQL and Python know them. Others could be stored,
and then break every reader. Pure.
"""

from typing import Final

# 0001-01-01 and 9999-12-31, counted from 1970-01-01
_FIRST_DAY: Final = -719_162
_LAST_DAY: Final = 2_932_896
_MICROSECONDS: Final = 86_400_000_000  # of a day


def allow_days(first: int, last: int) -> bool:
    """Whether all days from one to another, counted from 1970-01-01, are of those years."""
    return first >= _FIRST_DAY and last <= _LAST_DAY


def allow_microseconds(first: int, last: int) -> bool:
    """Whether all microseconds from one to another, counted from 1970-01-01, are of those years."""
    return allow_days(first // _MICROSECONDS, last // _MICROSECONDS)
