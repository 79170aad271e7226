"""Checks that dates and timestamps are in the years 1 to 9999, the range of SQL and Python. Pure.

Iceberg can store other values, but readers then fail.
"""

from typing import Final

# 0001-01-01 and 9999-12-31, in days since 1970-01-01.
_FIRST_DAY: Final = -719_162
_LAST_DAY: Final = 2_932_896
_MICROSECONDS: Final = 86_400_000_000  # per day


def allow_days(first: int, last: int) -> bool:
    """Whether both days are in these years. They are counted from 1970-01-01."""
    return first >= _FIRST_DAY and last <= _LAST_DAY


def allow_microseconds(first: int, last: int) -> bool:
    """Whether both timestamps are in these years. They are counted in microseconds from 1970-01-01."""
    return allow_days(first // _MICROSECONDS, last // _MICROSECONDS)


def allow_seconds(first: int, last: int) -> bool:
    """Whether both timestamps are in these years. They are counted in seconds from 1970-01-01."""
    return allow_microseconds(first * 1_000_000, last * 1_000_000)
