"""When the operator is no longer called alive."""

from lethe_operator.probes import OperatorHealth

from tests.support.clock import ManualClock


def a_health() -> tuple[OperatorHealth, ManualClock]:
    clock = ManualClock()
    return OperatorHealth(clock, relist_seconds=600), clock


def test_a_change_that_no_watch_reports_means_a_dead_watch() -> None:
    health, clock = a_health()
    health.found("u", "2")

    clock.now = 120
    assert None is health.trouble(0, 0)
    clock.now = 121
    assert "no watch has reported it" in (health.trouble(0, 0) or "")
    health.watched("u", "1")
    assert health.trouble(0, 0) is not None
    health.watched("u", "2")
    assert None is health.trouble(0, 0)


def test_a_later_version_counts_as_a_report_of_an_earlier_one() -> None:
    health, clock = a_health()
    health.found("u", "9")
    health.watched("u", "10")
    clock.now = 500

    assert None is health.trouble(0, 0)


def test_an_object_that_changes_all_the_time_is_waited_for_since_its_first_change() -> None:
    health, clock = a_health()
    for version in range(2, 14):
        health.found("u", str(version))
        clock.now += 11

    assert "no watch has reported it" in (health.trouble(0, 0) or "")


def test_no_listing_for_long_is_trouble_from_the_start_on() -> None:
    health, clock = a_health()

    clock.now = 1920
    assert None is health.trouble(0, 0)
    clock.now = 1921
    assert "last listing" in (health.trouble(0, 0) or "")
    health.relisted()
    assert None is health.trouble(0, 0)


def test_a_reconcile_that_never_ends_is_trouble() -> None:
    health, _ = a_health()

    assert "A reconcile has been running" in (health.trouble(901, 0) or "")
