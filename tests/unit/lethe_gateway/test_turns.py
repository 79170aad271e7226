"""A Dataset whose files take long leaves places to others."""

import threading
from contextlib import ExitStack

import pytest
from lethe_gateway.uploads.turns import Busy, Turns


def turns() -> Turns:
    return Turns(places=3, of_namespace=2, of_dataset=1)


def is_free(of: Turns, namespace: str, dataset: str) -> bool:
    try:
        with of.turn(namespace, dataset, 0):
            return True
    except Busy:
        return False


def test_a_dataset_and_a_namespace_leave_places_to_the_others() -> None:
    of = turns()
    with ExitStack() as stack:
        stack.enter_context(of.turn("a", "1", 0))
        assert [is_free(of, *place) for place in (("a", "1"), ("a", "2"), ("b", "1"))] == [False, True, True]
        stack.enter_context(of.turn("a", "2", 0))
        assert [is_free(of, *place) for place in (("a", "3"), ("b", "1"))] == [False, True]
        stack.enter_context(of.turn("b", "1", 0))
        assert not is_free(of, "c", "1")
    assert is_free(of, "c", "1")


def test_who_waits_gets_the_place_that_becomes_free_and_an_error_gives_it_back() -> None:
    of = turns()
    got = threading.Event()

    def wait() -> None:
        with of.turn("a", "1", 30):
            got.set()

    def fail() -> None:
        with of.turn("a", "1", 0):
            waiting.start()
            raise ValueError("of the work")

    waiting = threading.Thread(target=wait)
    with pytest.raises(ValueError, match="of the work"):
        fail()
    waiting.join(30)

    assert got.is_set()
