"""A Dataset whose files take long leaves places to others, and slow work gives way to work that may be quick."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
from lethe_gateway.uploads.check import Busy, Require, Turns

from tests.support.clock import ManualClock, wait_until

QUICK, SLOW = 0.1, 1.0  # seconds of processor time
LIMITS = {"places": 3, "of_namespace": 3, "of_dataset": 3}
limits = pytest.mark.parametrize("limit", LIMITS)


class Work:
    """Work that lasts until it is ended, and that tells what it has cost when it is asked to."""

    def __init__(self, desk: "Desk", dataset: str, namespace: str, seconds: float) -> None:
        self.began = 0  # how often
        self._cost = 0.0
        self._told, self._end = Event(), Event()
        self._desk, self._name = desk, dataset
        self.future: Future[Any] = desk.pool.submit(desk.turns.carry_out, namespace, dataset, seconds, self._work)

    def _work(self, require: Require) -> str:
        self.began += 1
        self._cost = 0.0
        self._desk.order.append(self._name)
        while not self._end.wait(0.001):
            require(self._cost)
            self._told.set()
        return self._name

    def costs(self, seconds: float) -> None:
        """Returns when the turns know it."""
        for _ in range(2):  # the first may have read the cost before
            self._cost = seconds
            self._told.clear()
            assert self._told.wait(30)

    def end(self) -> Any:
        self._end.set()
        return self.future.result(30)


class Desk:
    def __init__(self, pool: ThreadPoolExecutor, **limits: int) -> None:
        self.pool = pool
        self.order: list[str] = []  # in which work began
        self.works: list[Work] = []
        self.turns = Turns(**{**LIMITS, **limits}, quick_seconds=0.5, clock=ManualClock())

    def work(self, dataset: str, namespace: str = "ns", seconds: float = 60) -> Work:
        """Work that has begun, or waits."""
        before = len(self.turns._waiting) + len(self.order)
        self.works.append(Work(self, dataset, namespace, seconds))
        wait_until(lambda: len(self.turns._waiting) + len(self.order) > before, 30)
        return self.works[-1]


@pytest.fixture
def desk_with() -> Iterator[Callable[..., Desk]]:
    made: list[Desk] = []
    with ThreadPoolExecutor(20) as pool:

        def make(**limits: int) -> Desk:
            made.append(Desk(pool, **limits))
            return made[-1]

        yield make
        for work in (w for d in made for w in d.works):
            work._end.set()


@pytest.mark.parametrize(
    ("limit", "others"), [("places", ()), ("of_namespace", ("ns2",)), ("of_dataset", ("ns2", "ns"))]
)
def test_more_than_the_limit_wait_and_leave_places_to_others(
    desk_with: Callable[..., Desk], limit: str, others: tuple[str, ...]
) -> None:
    desk = desk_with(**{limit: 1})
    desk.work("a")

    with pytest.raises(Busy):
        desk.turns.carry_out("ns", "a", 0, lambda _: None)
    for namespace in others:
        assert desk.turns.carry_out(namespace, "b", 0, lambda _: "done") == "done"


def test_who_waits_gets_the_place_that_becomes_free_and_an_error_gives_it_back(desk_with: Callable[..., Desk]) -> None:
    desk = desk_with(places=1)

    def fail(_: Require) -> None:
        desk.work("b")
        raise ValueError("of the work")

    with pytest.raises(ValueError, match="of the work"):
        desk.turns.carry_out("ns", "a", 0, fail)

    assert desk.works[0].end() == "b"


@limits
def test_slow_work_gives_way_and_begins_again_when_a_place_is_free(desk_with: Callable[..., Desk], limit: str) -> None:
    """At each limit. The oldest goes on."""
    desk = desk_with(**{limit: 2})
    oldest, newest = desk.work("a"), desk.work("a")
    for work in (oldest, newest):
        work.costs(SLOW)

    quick = desk.work("a")
    wait_until(lambda: quick.began == 1, 30)

    assert (oldest.began, newest.began) == (1, 1)
    assert quick.end() == "a"
    wait_until(lambda: newest.began == 2, 30)
    assert oldest.end() == newest.end() == "a"
    assert oldest.began == 1


def test_work_goes_on_while_another_one_may_still_be_quick(desk_with: Callable[..., Desk]) -> None:
    desk = desk_with(places=2)
    slow, quick = desk.work("a"), desk.work("b")
    desk.work("c")

    slow.costs(SLOW)
    quick.costs(QUICK)

    assert desk.order == ["a", "b"]


def test_work_that_is_known_to_be_slow_lets_no_other_give_way(desk_with: Callable[..., Desk]) -> None:
    desk = desk_with(places=1)
    first = desk.work("a")
    first.costs(SLOW)
    second = desk.work("b")
    wait_until(lambda: second.began == 1, 30)  # the first gave way
    second.costs(SLOW)
    second.costs(SLOW)

    assert desk.order == ["a", "b"]
    second.end()
    wait_until(lambda: first.began == 2, 30)


def test_who_waits_for_another_limit_ends_nothing(desk_with: Callable[..., Desk]) -> None:
    desk = desk_with(of_dataset=1)
    of_a, of_b = desk.work("a"), desk.work("b")
    of_b.costs(SLOW)
    desk.work("a")

    of_b.costs(SLOW)
    of_a.costs(QUICK)

    assert desk.order == ["a", "b"]


def test_a_dataset_without_a_place_comes_before_one_that_has_some(desk_with: Callable[..., Desk]) -> None:
    desk = desk_with(places=2)
    desk.work("a")
    second = desk.work("a")
    for name in "ab":
        desk.work(name)

    second.end()
    wait_until(lambda: len(desk.order) == 3, 30)

    assert desk.order == ["a", "a", "b"]


def test_work_that_waits_for_a_store_is_slow_too(desk_with: Callable[..., Desk]) -> None:
    desk = desk_with(places=1)
    waiting = desk.work("a")
    clock = desk.turns.clock
    assert isinstance(clock, ManualClock)
    clock.now = 60

    quick = desk.work("b")

    wait_until(lambda: quick.began == 1, 30)
    assert waiting.began == 1
