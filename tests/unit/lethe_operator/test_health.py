"""When the operator is no longer called alive."""

from lethe_operator.health import OperatorHealth

from tests.support.clock import ManualClock


def a_health() -> tuple[OperatorHealth, ManualClock]:
    clock = ManualClock()
    return OperatorHealth(clock, resync_seconds=15), clock


def test_a_watch_that_tells_of_every_change_is_alive() -> None:
    health, clock = a_health()

    for n in range(100):
        clock.now = n * 15
        health.listed([("u", str(n))])
        health.watched("u", str(n))

    assert None is health.trouble(0, 0)


def test_a_change_that_no_watch_reports_means_a_dead_watch() -> None:
    health, clock = a_health()
    health.watched("u", "1")

    for n in range(10):
        clock.now = n * 15
        health.listed([("u", "2")])

    assert "no watch has reported it" in (health.trouble(0, 0) or "")
    health.watched("u", "2")
    assert None is health.trouble(0, 0)


def test_a_listing_that_lags_behind_the_watch_is_no_trouble() -> None:
    health, clock = a_health()
    health.watched("u", "2")
    health.listed([("u", "1")])
    clock.now = 15
    health.listed([("u", "2")])
    clock.now = 150
    health.listed([])

    assert None is health.trouble(0, 0)


def test_what_was_deleted_is_not_waited_for() -> None:
    health, clock = a_health()
    health.listed([("u", "1")])
    clock.now = 130
    health.listed([])

    assert None is health.trouble(0, 0)


def test_no_listing_for_long_is_trouble_from_the_start_on() -> None:
    health, clock = a_health()

    clock.now = 165
    assert None is health.trouble(0, 0)
    clock.now = 166
    assert "last listing" in (health.trouble(0, 0) or "")


def test_a_reconcile_that_never_ends_is_trouble() -> None:
    health, _ = a_health()
    health.listed([])

    assert "A reconcile has been running" in (health.trouble(901, 0) or "")


def test_what_is_listed_seldom_is_neither_forgotten_nor_waited_for_meanwhile() -> None:
    health, clock = a_health()
    health.watched("r", "7", "seldom")
    health.listed([("r", "6")], "seldom")  # its page was read before the watch told of the newer one

    for n in range(1, 20):
        clock.now = n * 15
        health.listed([("u", "1")])
        health.watched("u", "1")

    assert health.trouble(0, 0) is None
    health.listed([("r", "8")], "seldom")
    clock.now += 121
    health.listed([("u", "1")])
    assert "no watch has reported it" in (health.trouble(0, 0) or "")
    health.watched("r", "8", "seldom")
    assert health.trouble(0, 0) is None
