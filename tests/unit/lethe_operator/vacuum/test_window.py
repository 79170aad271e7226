"""When the window of a VacuumPolicy is open: cron on the clocks of a time zone, on the days too when they are changed."""

from datetime import UTC, datetime

import pytest
from lethe.base.errors import Verdict
from lethe.contract.vacuum_policy import Window
from lethe_operator.vacuum.triggers import Hours, hours


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def seen(now: str, schedule: str = "0 1 * * *", zone: str = "Europe/Berlin", seconds: int = 14_400) -> Hours | Verdict:
    return hours(Window(schedule=schedule, time_zone=zone, duration_seconds=seconds), at(now))


NIGHT = ("0 1 * * *", "Europe/Berlin", 14_400)
HALF_PAST_TWO = ("30 2 * * *", "Europe/Berlin", 3600)


@pytest.mark.parametrize(
    ("window", "now", "closes", "opens"),
    [
        pytest.param(NIGHT, "07-01T00:59:59+02:00", None, "07-01T01:00:00+02:00", id="just before it opens"),
        pytest.param(NIGHT, "07-01T01:00:00+02:00", "07-01T05:00:00+02:00", "07-02T01:00:00+02:00", id="as it opens"),
        pytest.param(NIGHT, "07-01T01:00:01+02:00", "07-01T05:00:00+02:00", "07-02T01:00:00+02:00", id="just after"),
        pytest.param(NIGHT, "07-01T04:59:59+02:00", "07-01T05:00:00+02:00", "07-02T01:00:00+02:00", id="before its end"),
        pytest.param(NIGHT, "07-01T05:00:00+02:00", None, "07-02T01:00:00+02:00", id="at its end"),
        # Half past two does not exist in that night. Skipped once, it would leave a night without a vacuum.
        pytest.param(
            HALF_PAST_TWO, "03-29T01:59:00+01:00", None, "03-29T03:00:00+02:00",
            id="an opening in the hour that is skipped comes right after it",
        ),
        pytest.param(
            HALF_PAST_TWO, "03-29T03:00:00+02:00", "03-29T04:00:00+02:00", "03-30T02:30:00+02:00",
            id="after the hour that is skipped",
        ),
        # It stays open for an hour of real time, which ends as the clocks show its beginning again.
        pytest.param(
            HALF_PAST_TWO, "10-25T02:30:00+02:00", "10-25T02:30:00+01:00", "10-26T02:30:00+01:00",
            id="of an hour that comes twice the first counts",
        ),
        pytest.param(
            HALF_PAST_TWO, "10-25T02:30:00+01:00", None, "10-26T02:30:00+01:00",
            id="of an hour that comes twice the second does not count",
        ),
        # The clock shows 02:10 again: half past two is both behind it and, on the clock, ahead of it.
        pytest.param(
            HALF_PAST_TWO, "10-25T02:10:00+01:00", "10-25T02:30:00+01:00", "10-26T02:30:00+01:00",
            id="of an hour that comes twice it is open over the change of clocks",
        ),
        pytest.param(
            HALF_PAST_TWO, "10-25T02:59:30+02:00", "10-25T02:30:00+01:00", "10-26T02:30:00+01:00",
            id="just before the change of clocks",
        ),
        pytest.param(
            ("30 2 * * *", "Europe/Berlin", 900), "10-25T02:10:00+01:00", None, "10-26T02:30:00+01:00",
            id="of an hour that comes twice it opens after now, not before",
        ),
        pytest.param(
            ("0 1 * * *", "Europe/Berlin", 7200), "03-29T01:30:00+01:00", "03-29T04:00:00+02:00", "03-30T01:00:00+02:00",
            id="over a change of clocks it is as long as ever",
        ),
        # A run that starts in the first need not stop as the second opens.
        pytest.param(
            ("0 0,1,2 * * *", "UTC", 3600), "07-01T00:30:00Z", "07-01T03:00:00Z", "07-01T01:00:00Z",
            id="windows that join close together",
        ),
        pytest.param(NIGHT, "07-01T00:00:00Z", "07-01T03:00:00Z", "07-01T23:00:00Z", id="01:00 in Berlin is 23:00 UTC"),
        pytest.param(
            ("0 1 * * *", "Asia/Tokyo", 3600), "07-01T00:00:00Z", None, "07-01T16:00:00Z", id="in Tokyo it is 16:00 UTC"
        ),
    ],
)  # fmt: skip
def test_a_window_is_open_from_its_scheduled_time_for_its_duration(
    window: tuple[str, str, int], now: str, closes: str | None, opens: str
) -> None:
    found = seen(f"2026-{now}", *window)

    assert found == Hours(at(f"2026-{closes}") if closes else None, at(f"2026-{opens}"))


def test_one_that_never_closes_ends_somewhere() -> None:
    """The end that a run gets then moves along."""
    found = seen("2026-07-01T00:30:30Z", "* * * * *", "UTC", 604_800)

    assert isinstance(found, Hours)
    assert found.closes is not None
    assert found.closes > at("2026-07-08T00:00:00Z")


def test_a_window_of_one_day_in_four_years_opens() -> None:
    found = seen("2026-07-01T00:00:00Z", "0 0 29 2 *", "UTC")

    assert found == Hours(None, at("2028-02-29T00:00:00Z"))


UNUSABLE = [
    ("0 0 31 2 *", "UTC", "WindowNeverOpens", "names a day that does not exist"),
    ("0 0 31 4,6 *", "UTC", "WindowNeverOpens", "names a day that does not exist"),
    ("0 1 * *", "UTC", "InvalidWindow", "has 4 fields, expected 5"),
    ("0 0 1 * * *", "UTC", "InvalidWindow", "has 6 fields, expected 5"),
    ("61 * * * *", "UTC", "InvalidWindow", "its minute is invalid"),
    ("0 1 * * NEVER", "UTC", "InvalidWindow", "its day-of-week is invalid"),
    ("0 1 32 * *", "UTC", "InvalidWindow", "its day-of-month is invalid"),
    ("0 1 * * *", "Europe/Atlantis", "InvalidWindow", "'Europe/Atlantis' is not an IANA time zone"),
    ("0 1 * * *", "../etc/passwd", "InvalidWindow", "is not an IANA time zone"),
    ("0 1 * * *", "Europe", "InvalidWindow", "is not an IANA time zone"),
    ("0 1 * * *", "CEST", "InvalidWindow", "is not an IANA time zone"),
]


@pytest.mark.parametrize(("schedule", "zone", "reason", "said"), UNUSABLE)
def test_what_cannot_be_understood_is_named(schedule: str, zone: str, reason: str, said: str) -> None:
    found = seen("2026-07-01T00:00:00Z", schedule, zone)

    assert isinstance(found, Verdict)
    assert (found.reason, said in found.message) == (reason, True)
