"""The window in which work is done ahead of its caller."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from lethe.base.ahead import ahead


@pytest.mark.parametrize(
    ("sizes", "begun"),
    [
        ([0] * 9, 4),  # as many as may be at once
        ([3, 3, 3, 3, 3], 3),  # as many as have ten bytes together
        ([99, 1, 1, 1, 1], 1),  # a large one alone
        ([1, 99, 1, 1, 1], 1),  # and it waits until no other does
    ],
)
def test_the_next_items_are_begun_within_the_limits_and_given_in_their_order(sizes: list[int], begun: int) -> None:
    started: list[int] = []
    gate, all_started = threading.Event(), threading.Event()

    def work(item: int) -> int:
        started.append(item)
        if len(started) == begun:
            all_started.set()
        assert gate.wait(20)
        return item * 10

    found = ahead(work, range(len(sizes)), 4, bytes_of=sizes.__getitem__, bytes_at_most=10)
    threading.Thread(target=lambda: (all_started.wait(20), gate.set())).start()

    assert next(found) == (0, 0)
    assert started == list(range(begun))
    assert list(found) == [(n, n * 10) for n in range(1, len(sizes))]


def test_an_error_comes_at_the_turn_of_its_item_and_what_has_not_begun_is_not_begun() -> None:
    begun: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        return 10 // (2 - item)

    with ThreadPoolExecutor(1) as pool:
        found = ahead(work, range(100), 3, pool=pool)
        assert [next(found), next(found)] == [(0, 5), (1, 10)]
        with pytest.raises(ZeroDivisionError):
            next(found)
    assert max(begun) <= 4


def test_a_caller_that_stops_leaves_nothing_that_waits() -> None:
    begun: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        found = ahead(begun.append, range(100), 3, pool=pool)
        next(found)
        found.close()  # type: ignore[attr-defined]
    assert len(begun) <= 3


def test_nothing_is_asked_for_before_it_may_begin() -> None:
    """So the items may be made as they are needed."""
    asked: list[int] = []

    def items():  # type: ignore[no-untyped-def]
        for n in range(100):
            asked.append(n)
            yield n

    next(ahead(str, items(), 2))

    assert len(asked) == 3
