"""Epochs take partitions on without a gap and without an overlap, and their documents say the same again."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe_inlet.epochs import (
    Epoch,
    Gaps,
    KafkaPartition,
    OffsetRange,
    UnreadableLog,
    Watermarks,
    batch_id,
    decode,
    encode,
    ends_of,
    gaps,
    lag_of,
    split,
)

ZERO, ONE = KafkaPartition("flights", 0), KafkaPartition("flights", 1)
offsets = st.integers(0, 10**15)
partitions = st.builds(KafkaPartition, st.text("abz._-", min_size=1, max_size=20), st.integers(0, 500))
ranges = st.builds(lambda first, count: OffsetRange(first, first + count), offsets, st.integers(0, 10**6))
epochs = st.builds(
    Epoch,
    st.integers(0, 10**9),
    st.text(max_size=20),
    st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=3),
    st.dictionaries(partitions, ranges, max_size=5),
)


@given(epochs)
def test_a_document_says_the_same_again(epoch: Epoch) -> None:
    assert decode(encode(epoch), "s3://b/_inlet/epoch-1.json") == epoch


@given(epochs, st.integers(0, 1000))
def test_the_next_epoch_begins_where_this_one_ends(epoch: Epoch, more: int) -> None:
    following = epoch.following({p: r.end + more for p, r in epoch.ranges.items()})

    assert following.number == epoch.number + 1
    assert {p: r.first for p, r in following.ranges.items()} == {p: r.end for p, r in epoch.ranges.items()}
    assert len(following.due) == (len(epoch.ranges) if more else 0)


def test_a_new_partition_does_not_change_known_ones() -> None:
    epoch = Epoch(3, "c", {"flights": "t"}, {ZERO: OffsetRange(0, 5)})

    grown = epoch.with_partitions({ZERO: 99, ONE: 0}, {"flights": "other", "delays": "u"})

    assert grown.ranges == {ZERO: OffsetRange(0, 5), ONE: OffsetRange(0, 0)}
    assert grown.topics == {"flights": "t", "delays": "u"}


def test_batch_ids_name_the_first_and_the_last_offset_and_sort_by_them() -> None:
    assert batch_id(ZERO, OffsetRange(7, 1007)) == "flights-0-000000000007-000000001006"
    found = [batch_id(ZERO, OffsetRange(n, n + 5)) for n in (5, 50, 5_000, 50_000_000)]
    assert found == sorted(found)
    assert len(batch_id(KafkaPartition("t" * 200, 99_999), OffsetRange(10**18, 10**18 + 1))) <= 256


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b"null", b'{"version": 1}', b'{"version":1,"epoch":"x","cluster":"","topics":{},"ranges":[]}',
     b'{"version":1,"epoch":1,"cluster":"","topics":[],"ranges":[[1]]}'],
)  # fmt: skip
def test_anything_else_is_no_entry(content: bytes) -> None:
    with pytest.raises(UnreadableLog, match=r"epoch-7\.json is not an entry"):
        decode(content, "s3://b/_inlet/epoch-7.json")


def test_an_entry_of_a_newer_version_says_so() -> None:
    document = {**json.loads(encode(Epoch(1, "c", {}, {}))), "version": 2}

    with pytest.raises(UnreadableLog, match="version 2, expected 1"):
        decode(json.dumps(document).encode(), "x")


def test_gaps_are_what_has_expired_and_what_was_replaced() -> None:
    found = gaps({ZERO: 5, ONE: 20}, {ZERO: Watermarks(9, 30), ONE: Watermarks(0, 10)})

    assert found == Gaps({ZERO: OffsetRange(5, 9)}, (ONE,))
    assert gaps({ZERO: 5}, {ZERO: Watermarks(5, 5)}) == gaps({ZERO: 5}, {}) == Gaps()


def test_what_is_due_may_have_expired_in_part_or_as_a_whole() -> None:
    due = {ZERO: OffsetRange(5, 12), ONE: OffsetRange(0, 4)}

    assert split(due, {ZERO: Watermarks(9, 30), ONE: Watermarks(7, 9)}) == (
        {ZERO: OffsetRange(9, 12)},
        {ZERO: OffsetRange(5, 9), ONE: OffsetRange(0, 4)},
    )
    assert split(due, {ZERO: Watermarks(0, 30)}) == (due, {})


@given(st.dictionaries(partitions, ranges), st.dictionaries(partitions, st.builds(Watermarks, offsets, offsets)))
def test_each_due_offset_is_either_there_or_has_expired(
    due: dict[KafkaPartition, OffsetRange], watermarks: dict[KafkaPartition, Watermarks]
) -> None:
    def count(*found: dict[KafkaPartition, OffsetRange]) -> int:
        return sum(r.end - r.first for ranges in found for r in ranges.values())

    assert count(*split(due, watermarks)) == count(due)


def test_the_lag_counts_what_the_brokers_still_have() -> None:
    assert lag_of({ZERO: 5, ONE: 3}, {ZERO: Watermarks(0, 8), ONE: Watermarks(10, 12)}) == 3 + 2


def test_ends_are_those_of_the_topics_that_are_read_now() -> None:
    epoch = Epoch(1, "c", {}, {ZERO: OffsetRange(0, 5), KafkaPartition("gone", 0): OffsetRange(0, 9)})

    assert ends_of(epoch, ["flights"]) == {ZERO: 5}
