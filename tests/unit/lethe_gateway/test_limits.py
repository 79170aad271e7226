"""Rates, and numbers at the same time."""

import pytest
from lethe_gateway.limits import AllBusy, CallerBusy, Concurrency, RateLimit


def test_after_a_burst_the_rate_counts() -> None:
    limit = RateLimit(per_second=2, burst=3)

    assert [limit.wait_seconds("a", 0) for _ in range(4)] == [0, 0, 0, 0.5]
    assert limit.wait_seconds("a", 0.5) == 0
    assert limit.wait_seconds("a", 0.5) == 0.5


def test_an_allowance_does_not_grow_beyond_the_burst() -> None:
    limit = RateLimit(per_second=2, burst=3)
    limit.wait_seconds("a", 0)

    assert [limit.wait_seconds("a", 1000) for _ in range(4)] == [0, 0, 0, 0.5]


def test_one_key_does_not_use_the_allowance_of_another() -> None:
    limit = RateLimit(per_second=1, burst=1)

    assert [limit.wait_seconds(k, 0) for k in "aab"] == [0, 1, 0]


def test_asking_takes_nothing() -> None:
    limit = RateLimit(per_second=1, burst=1)

    assert [limit.wait_seconds("a", 0, take=0) for _ in range(3)] == [0, 0, 0]
    assert [limit.wait_seconds("a", 0), limit.wait_seconds("a", 0, take=0)] == [0, 1]


def test_the_number_of_remembered_keys_is_bounded() -> None:
    limit = RateLimit(per_second=1, burst=1, remembered=2)
    limit.wait_seconds("a", 0)
    limit.wait_seconds("b", 0)
    limit.wait_seconds("c", 0)

    assert limit.wait_seconds("c", 0) == 1
    assert limit.wait_seconds("a", 0) == 0  # forgotten


def test_a_clock_that_goes_back_takes_nothing_away() -> None:
    limit = RateLimit(per_second=1, burst=2)
    limit.wait_seconds("a", 100)

    assert limit.wait_seconds("a", 50) == 0


def test_places_are_limited_for_each_key_and_for_all() -> None:
    places = Concurrency(per_key=2, total=3)
    for key in "aab":
        places.enter(key)

    with pytest.raises(CallerBusy):
        places.enter("a")
    with pytest.raises(AllBusy):
        places.enter("c")
    places.leave("b")
    places.enter("c")
    for key in "aac":
        places.leave(key)
    assert places.active == 0


def test_a_key_may_have_fewer_places_than_others() -> None:
    places = Concurrency(per_key=3, total=9)
    places.enter("caller", "dataset", fewer={"dataset": 1})

    with pytest.raises(CallerBusy) as busy:
        places.enter("caller", "dataset", fewer={"dataset": 1})

    assert busy.value.most == 1
    places.enter("caller", "other", fewer={"other": 1})
