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


NIGHT = [
    pytest.param("2026-07-01T00:59:59+02:00", None, "2026-07-01T01:00:00+02:00", id="just before"),
    pytest.param(
        "2026-07-01T01:00:00+02:00", "2026-07-01T05:00:00+02:00", "2026-07-02T01:00:00+02:00", id="as it opens"
    ),
    pytest.param(
        "2026-07-01T01:00:01+02:00", "2026-07-01T05:00:00+02:00", "2026-07-02T01:00:00+02:00", id="just after"
    ),
    pytest.param(
        "2026-07-01T04:59:59+02:00", "2026-07-01T05:00:00+02:00", "2026-07-02T01:00:00+02:00", id="before its end"
    ),
    pytest.param("2026-07-01T05:00:00+02:00", None, "2026-07-02T01:00:00+02:00", id="at its end"),
]


@pytest.mark.parametrize(("now", "closes", "opens"), NIGHT)
def test_a_window_is_open_from_its_scheduled_time_for_its_duration(now: str, closes: str | None, opens: str) -> None:
    found = seen(now)

    assert found == Hours(at(closes) if closes else None, at(opens))


def test_the_same_schedule_is_another_moment_in_another_zone() -> None:
    tokyo, utc = seen("2026-07-01T00:00:00Z", zone="Asia/Tokyo"), seen("2026-07-01T00:00:00Z", zone="UTC")

    assert isinstance(tokyo, Hours)
    assert isinstance(utc, Hours)
    assert (tokyo.opens, utc.opens) == (at("2026-07-01T16:00:00Z"), at("2026-07-01T01:00:00Z"))


SPRING = [
    pytest.param("2026-03-29T01:59:00+01:00", None, "2026-03-29T03:00:00+02:00", id="before the hour that is skipped"),
    pytest.param(
        "2026-03-29T03:00:00+02:00", "2026-03-29T04:00:00+02:00", "2026-03-30T02:30:00+02:00", id="right after"
    ),
]


@pytest.mark.parametrize(("now", "closes", "opens"), SPRING)
def test_an_opening_in_the_hour_that_is_skipped_comes_right_after_it(now: str, closes: str | None, opens: str) -> None:
    """Half past two does not exist in that night, and a window that is skipped once would leave a night without a vacuum."""
    found = seen(now, "30 2 * * *", seconds=3600)

    assert found == Hours(at(closes) if closes else None, at(opens))


AUTUMN = [
    pytest.param(
        "2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00", "2026-10-26T02:30:00+01:00", id="the first time"
    ),
    pytest.param("2026-10-25T02:30:00+01:00", None, "2026-10-26T02:30:00+01:00", id="the second time"),
]


@pytest.mark.parametrize(("now", "closes", "opens"), AUTUMN)
def test_of_the_hour_that_comes_twice_a_fixed_time_counts_once(now: str, closes: str | None, opens: str) -> None:
    """And the window stays open for an hour of real time, which ends as the clocks show its beginning again."""
    found = seen(now, "30 2 * * *", seconds=3600)

    assert found == Hours(at(closes) if closes else None, at(opens))


def test_a_window_over_a_change_of_clocks_is_as_long_as_any_other() -> None:
    found = seen("2026-03-29T01:30:00+01:00", seconds=7200)

    assert found == Hours(at("2026-03-29T04:00:00+02:00"), at("2026-03-30T01:00:00+02:00"))


def test_windows_that_join_close_together() -> None:
    """A run that starts in the first need not stop as the second opens."""
    found = seen("2026-07-01T00:30:00Z", "0 0,1,2 * * *", "UTC", 3600)

    assert found == Hours(at("2026-07-01T03:00:00Z"), at("2026-07-01T01:00:00Z"))


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
