"""Requests go in an order in which each finds what it builds on."""

from datetime import datetime

from hypothesis import given
from hypothesis import strategies as st
from lethe.contract.run import RestatementRequest
from lethe.restatement.group import Dependencies, in_order, place_of

from tests.support.builders import NOW, a_replay, a_request, ago


def named(*requests: RestatementRequest) -> list[str]:
    return [r.name.removeprefix("ns/") for r in in_order(requests, place_of)]


def test_a_replacement_comes_before_what_restates_it_even_if_it_is_younger() -> None:
    first = a_replay("z-first", by="B", batch_ids=["A"])
    second = a_replay("a-second", by="C", batch_ids=["B"], creation_time=ago(hours=5))

    assert named(second, first) == ["z-first", "a-second"]


def test_a_restatement_comes_before_its_undo() -> None:
    revert, undo = a_request("z"), a_request("a", "Undo", batch_ids=(), undoes="ns/z/0", creation_time=ago(hours=5))

    assert named(undo, revert) == ["z", "a"]


def test_then_by_creation_then_by_name() -> None:
    assert named(a_request("b"), a_request("a"), a_request("z", creation_time=ago(hours=5))) == ["z", "a", "b"]


def test_what_restates_a_replacement_that_two_bring_comes_after_both() -> None:
    """Only one of them can be carried out, and which one, nobody knows before: after it went, the other has to be refused
    instead of hiding its batches under a replacement that is gone."""
    one, other = a_replay("one", by="X"), a_replay("two", by="X", batch_ids=["B"])
    third = a_request("third", batch_ids=["X"], creation_time=ago(hours=5))

    assert named(third, other, one) == ["one", "two", "third"]


def test_a_circle_is_broken_at_its_oldest() -> None:
    one, other = a_replay("one", by="B"), a_replay("two", by="A", batch_ids=["B"], creation_time=ago(hours=1))

    assert named(one, other, a_request("free", batch_ids=["Z"])) == ["free", "two", "one"]


def test_what_needs_itself_does_not_wait_for_itself() -> None:
    other = a_request("other", batch_ids=["Z"], creation_time=ago(hours=-1))

    assert named(a_replay("self", by="A"), other) == ["self", "other"]


def a_place(n: int, created: int, creates: set[int], needs: set[int]) -> Dependencies:
    return Dependencies(datetime.fromtimestamp(created, NOW.tzinfo), f"r{n}", creates, needs)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sets(st.integers(0, 9)), st.sets(st.integers(0, 9))), max_size=8).map(
        # Bringing only what is smaller than all that is needed, so that there is no circle
        lambda drawn: [
            a_place(n, at, {b for b in creates if not needs or b > max(needs)}, needs)
            for n, (at, creates, needs) in enumerate(drawn)
        ]
    )
)
def test_each_finds_what_it_needs_and_none_waits_without_need(places: list[Dependencies]) -> None:
    ordered = in_order(places, lambda p: p)

    assert sorted(p.name for p in ordered) == sorted(p.name for p in places)
    for n, p in enumerate(ordered):
        assert not any(set(p.needs) & set(after.creates) for after in ordered[n + 1 :])
        waited = [q for q in ordered[n + 1 :] if (q.created, q.name) < (p.created, p.name)]
        assert all(any(thing in o.creates for o in ordered[n:] for thing in q.needs) for q in waited)
