"""Ranges of keys, and the look-up of many keys in any mapping."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.ledger.ledger import Interval, Ranges, get_many

ends = st.none() | st.sampled_from("abcdef")

UNITED: list[tuple[list[Interval], tuple[Interval, ...]]] = [
    ([], ()),
    ([("b", "c"), ("a", "a")], (("a", "a"), ("b", "c"))),
    ([("a", "c"), ("b", "d")], (("a", "d"),)),
    ([("a", "d"), ("b", "c")], (("a", "d"),)),
    ([("c", None), ("a", "b"), ("d", "e")], (("a", "b"), ("c", None))),
    ([(None, "b"), ("b", None)], ((None, None),)),
]


@pytest.mark.parametrize(("intervals", "united"), UNITED)
def test_intervals_that_touch_become_one(intervals: list[Interval], united: tuple[Interval, ...]) -> None:
    assert Ranges(intervals).intervals == united


@given(st.lists(st.tuples(ends, ends), max_size=4), st.sampled_from(["", "a", "b", "bb", "c", "d", "e", "f", "g"]))
def test_a_key_is_in_the_ranges_if_it_is_in_one_interval(intervals: list[Interval], key: str) -> None:
    within = [(lo, hi) for lo, hi in intervals if lo is None or hi is None or lo <= hi]

    expected = any((lo is None or lo <= key) and (hi is None or key <= hi) for lo, hi in within)

    assert (key in Ranges(within)) == expected


def test_many_keys_can_be_read_from_a_plain_mapping_too() -> None:
    assert get_many({"a": 1, "b": 2}, ["b", "c"]) == {"b": 2}
