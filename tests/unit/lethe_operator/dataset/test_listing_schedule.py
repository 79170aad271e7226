"""Which buffer is listed next, and how long buffers rest: within a budget, fairly, cheap ones more often."""

import pytest
from lethe_operator.dataset.listing_schedule import (
    AT_MOST,
    AT_ONCE,
    LONG_SECONDS,
    ListingBudget,
    ListingCost,
    ListingLimits,
    ListingSchedule,
)

SMALL = ListingCost(0.02, 0.005, 10)
LARGE = ListingCost(20.0, 1.28, 200_000)
LIMITS = ListingLimits(core_share=0.05, requests_per_second=1000)


def a_budget(small: int, large: int = 0, limits: ListingLimits = LIMITS) -> ListingBudget:
    budget = ListingBudget(limits)
    for n in range(small):
        budget.record(f"small-{n}", SMALL)
    for n in range(large):
        budget.record(f"large-{n}", LARGE)
    return budget


@pytest.mark.parametrize(("datasets", "seconds"), [(1, 15), (100, 15), (1000, 100), (2000, 200), (10_000, 300)])
def test_the_pause_of_an_idle_buffer_grows_with_the_number_of_datasets_up_to_the_longest(
    datasets: int, seconds: float
) -> None:
    assert a_budget(datasets).pause("small-0", None) == pytest.approx(seconds)


def test_requests_have_a_budget_too() -> None:
    budget = a_budget(1000, limits=ListingLimits(core_share=1, requests_per_second=20))

    assert budget.pause("small-0", None) == pytest.approx(1000 * 2 / 20)


@pytest.mark.parametrize("large", [0, 1, 20])
def test_all_listings_together_keep_within_the_share_of_a_core(large: int) -> None:
    limits = ListingLimits(core_share=0.05, requests_per_second=1e9, longest_seconds=1e9)
    budget = a_budget(1000, large, limits)

    used = 1000 * SMALL.core_seconds / budget.pause("small-0", None)
    used += large * LARGE.core_seconds / budget.pause("large-0", None) if large else 0

    assert used == pytest.approx(0.05)


def test_an_expensive_buffer_is_listed_less_often_and_delays_the_cheap_ones_little() -> None:
    alone, beside = a_budget(1000), a_budget(1000, 1)

    assert beside.pause("small-0", None) < 1.1 * alone.pause("small-0", None)
    assert beside.pause("large-0", None) == 300
    assert a_budget(100, 1).pause("large-0", None) == pytest.approx(16 * a_budget(100, 1).pause("small-0", None), 0.5)


def test_a_buffer_that_has_changed_is_listed_soon_and_then_ever_more_rarely() -> None:
    budget = a_budget(1000)

    assert [budget.pause("small-0", n) for n in range(7)] == pytest.approx([5, 10, 20, 40, 80, 100, 100])
    assert a_budget(1).pause("small-0", 1000) == 15


def test_a_long_listing_rests_for_twice_its_time_whatever_the_limit() -> None:
    budget = ListingBudget(LIMITS)
    budget.record("a", ListingCost(400.0, 1.0, 1_000_000))

    assert (budget.pause("a", None), budget.pause("a", 0)) == (800, 800)


@pytest.mark.parametrize(("within", "pause"), [(600, 200), (60, 60), (1, 15)])
def test_the_age_at_which_a_batch_is_due_limits_the_pause(within: float, pause: float) -> None:
    assert a_budget(2000).pause("small-0", None, within) == pytest.approx(pause)


def test_a_deleted_dataset_leaves_its_share_to_the_others() -> None:
    budget = a_budget(2000)
    for n in range(1000, 2000):
        budget.record(f"small-{n}", None)

    assert budget.pause("small-0", None) == pytest.approx(100)


def taken(schedule: ListingSchedule, now: float) -> list[str]:
    found = []
    while (name := schedule.take(now)) is not None:
        found.append(name)
    return found


def test_the_longest_overdue_is_next_and_urgent_ones_are_first() -> None:
    schedule = ListingSchedule()
    for name, due in (("b", 20.0), ("a", 10.0), ("later", 99.0)):
        schedule.put(name, "s3", due)
    schedule.put("urgent", "s3", 29.0, urgent=True)

    assert (schedule.next_in(5.0), schedule.overdue_seconds(25.0)) == (24.0, 0.0)
    assert taken(schedule, 30.0) == ["urgent", "a", "b"]
    assert schedule.next_in(30.0) == 69.0


def test_a_new_time_replaces_the_earlier_one() -> None:
    schedule = ListingSchedule()
    schedule.put("a", "s3", 10.0)
    schedule.put("a", "s3", 50.0)
    schedule.put("b", "s3", 10.0)
    schedule.drop("b")

    assert taken(schedule, 20.0) == []
    assert schedule.next_in(20.0) == 30.0
    assert taken(schedule, 50.0) == ["a"]
    assert (taken(schedule, 60.0), schedule.next_in(60.0)) == ([], None)


def test_a_store_has_a_limited_number_of_listings_and_another_store_is_not_delayed() -> None:
    schedule = ListingSchedule()
    for n in range(AT_ONCE + 2):
        schedule.put(f"a{n}", "hung", 1.0)
    schedule.put("b", "well", 2.0)

    assert taken(schedule, 10.0) == ["a0", "a1", "a2", "a3", "b"]
    assert schedule.next_in(10.0) == LONG_SECONDS
    assert schedule.overdue_seconds(10.0) == 9.0
    schedule.ended("hung", 10.0)
    assert taken(schedule, 10.0) == ["a4"]


def test_long_listings_do_not_delay_short_ones_and_a_hung_store_has_a_limited_number() -> None:
    schedule = ListingSchedule()
    for n in range(AT_MOST + 5):
        schedule.put(f"a{n}", "s3", 1.0)
    now, found = 10.0, 0
    while (more := len(taken(schedule, now))) > 0:
        found += more
        now += LONG_SECONDS

    assert found == AT_MOST
    assert schedule.next_in(now) is None


def test_nobody_is_left_out_while_others_change_all_the_time() -> None:
    """Simulated: 4 buffers that are always due again at once, and 50 idle ones."""
    schedule, now = ListingSchedule(), 0.0
    last = {f"idle-{n}": 0.0 for n in range(50)} | {f"busy-{n}": 0.0 for n in range(4)}
    for name in last:
        schedule.put(name, "s3", 0.0)
    for _ in range(2000):
        now += 0.1
        for name in taken(schedule, now):
            last[name] = now
            schedule.ended("s3", now)
            schedule.put(name, "s3", now + (0.05 if name.startswith("busy") else 15.0))

    assert now - min(last.values()) < 16
