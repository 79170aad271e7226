from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

import pytest
from lethe.ingest.exact_values import allow_days, allow_microseconds


@pytest.mark.parametrize(
    ("allow", "unit"),
    [
        pytest.param(allow_days, date.resolution, id="days"),
        pytest.param(allow_microseconds, datetime.resolution, id="us"),
    ],
)
def test_the_ends_are_those_of_pythons_calendar(allow: Callable[[int, int], bool], unit: timedelta) -> None:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    first = (datetime(1, 1, 1, tzinfo=UTC) - epoch) // unit
    last = (datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC) - epoch) // unit

    assert allow(first, last)
    assert not allow(first - 1, last)
    assert not allow(first, last + 1)
