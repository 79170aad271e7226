"""Adding k entries to n writes O(k) of them, amortised, and leaves few files."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.ledger.overlay import Thresholds, fold, kept
from lethe.ledger.root import Chunk

T = Thresholds(floor=4, cap=64)


def sizes_after(adds: list[int], thresholds: Thresholds = T) -> tuple[list[int], int]:
    """The chunk sizes after so many additions of distinct entries, and how many entries were written for them."""
    sizes: list[int] = []
    written = 0
    for n in adds:
        stay = kept([Chunk("", s, 0) for s in sizes], n, sum(sizes) + n, thresholds)
        size = sum(sizes[stay:]) + n
        sizes = [*sizes[:stay], size]
        written += size
    return sizes, written


@pytest.mark.parametrize("k", [1, 3, 10])
def test_what_is_written_grows_with_what_is_added_and_hardly_with_what_is_there(k: int) -> None:
    added = 4096
    sizes, written = sizes_after([k] * (added // k))

    assert written <= added * (math.log2(T.cap) + T.floor / k + 2)
    assert len(sizes) <= added / T.cap + math.log2(T.cap) + 2


def test_a_chunk_that_reached_the_cap_is_left_alone() -> None:
    assert kept([Chunk("", 64, 0), Chunk("", 2, 0)], 2, 68, T) == 1


def test_a_small_part_is_always_one_chunk() -> None:
    assert kept([Chunk("", 2, 0), Chunk("", 1, 0)], 1, 4, T) == 0


def test_everything_is_merged_once_most_of_it_is_garbage() -> None:
    assert kept([Chunk("", 64, 0), Chunk("", 64, 0, removes=True)], 10, 54, T) == 0


layers = st.lists(st.tuples(st.booleans(), st.dictionaries(st.sampled_from("abcd"), st.integers())), max_size=5)


@given(layers, layers)
def test_merging_some_chunks_changes_nothing_of_what_all_of_them_say(
    older: list[tuple[bool, dict[str, int]]], newer: list[tuple[bool, dict[str, int]]]
) -> None:
    entries, removed = fold(newer)

    assert fold([*older, (True, removed), (False, entries)])[0] == fold([*older, *newer])[0]
