"""A large chunk answers for one key by decoding one block, and any Avro reader reads it from end to end."""

import io
from collections.abc import Iterable
from dataclasses import replace
from unittest.mock import Mock

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.ledger import format
from lethe.ledger.format import ENTRIES_PER_BLOCK, INDEXED_FROM, Index
from lethe.ledger.ledger import Ranges

from tests.support.builders import a_batch, a_tombstone

IDS = sorted(f"2013-01-{n % 31:02d}.{n:05d}" for n in range(INDEXED_FROM + 300))
WRITTEN = format.TOMBSTONES.encode([a_tombstone(i) for i in IDS])
INDEX = Index(WRITTEN.content[: WRITTEN.header_bytes], format.TOMBSTONES.schema)


def in_blocks(blocks: Iterable[int]) -> list[str]:
    data = WRITTEN.content[WRITTEN.header_bytes :]
    spans = [INDEX.span(b, len(data)) for b in blocks]
    return [r["id"] for start, end in spans for r in INDEX.decode_block(data[start:end])]


def test_a_plain_avro_reader_reads_an_indexed_file_in_order() -> None:
    assert [r["id"] for r in fastavro.reader(io.BytesIO(WRITTEN.content))] == IDS  # type: ignore[index,call-overload]


def test_a_small_file_has_no_index() -> None:
    small = format.TOMBSTONES.encode([a_tombstone("A")])

    assert not Index(small.content[: small.header_bytes], format.TOMBSTONES.schema).is_present


@pytest.mark.parametrize("at", [0, 1, ENTRIES_PER_BLOCK - 1, ENTRIES_PER_BLOCK, len(IDS) - 1])
def test_a_key_is_found_in_the_blocks_that_the_index_names(at: int) -> None:
    """Two at most: a key that begins a block may also end the one before."""
    blocks = INDEX.blocks_of([IDS[at]])

    assert IDS[at] in in_blocks(blocks)
    assert len(blocks) == (2 if at == ENTRIES_PER_BLOCK else 1)


def test_keys_that_are_not_there_cost_no_decoding() -> None:
    missing = [f"{i}x" for i in IDS]

    assert INDEX.maybe_there(missing) == []
    assert INDEX.maybe_there([*missing[:3], IDS[5]]) == [IDS[5]]


def test_an_id_under_several_columns_is_found_in_each_block_it_reaches_into() -> None:
    twins = [a_tombstone("M", namespace=n) for n in range(INDEXED_FROM + 10)]
    written = format.TOMBSTONES.encode(twins)
    index = Index(written.content[: written.header_bytes], format.TOMBSTONES.schema)

    assert len(index.blocks_of(["M"])) == len(index.offsets)


@given(st.lists(st.tuples(st.none() | st.sampled_from(IDS), st.none() | st.sampled_from(IDS)), max_size=3))
def test_the_blocks_of_ranges_hold_every_key_in_them(intervals: list[tuple[str | None, str | None]]) -> None:
    ranges = Ranges(intervals)

    found = set(in_blocks(INDEX.blocks_within(ranges)))

    assert {i for i in IDS if i in ranges} <= found


def test_two_files_of_the_same_entries_differ_only_in_their_sync_marker() -> None:
    again = format.TOMBSTONES.encode([a_tombstone(i) for i in reversed(IDS)])

    assert (len(again.content), again.header_bytes) == (len(WRITTEN.content), WRITTEN.header_bytes)


def test_only_the_wanted_entries_of_a_block_are_made() -> None:
    data = WRITTEN.content[WRITTEN.header_bytes :]
    start, end = INDEX.span(0, len(data))
    records = INDEX.decode_block(data[start:end])

    made = format.TOMBSTONES.entries(records, frozenset({IDS[1], IDS[-1]}))

    assert [t.id for t in made] == [IDS[1]]


def test_no_record_is_decoded_after_the_last_wanted_one_and_of_the_others_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = WRITTEN.content[WRITTEN.header_bytes :]
    ((block, last),) = INDEX.blocks_of([IDS[3], IDS[1]]).items()
    start, end = INDEX.span(block, len(data))
    decoded = Mock(side_effect=fastavro.schemaless_reader)
    monkeypatch.setattr(fastavro, "schemaless_reader", decoded)

    made = format.TOMBSTONES.found_in(INDEX, data[start:end], frozenset({IDS[1], IDS[3]}), last)

    assert (made, last) == ([a_tombstone(IDS[1]), a_tombstone(IDS[3])], IDS[3])
    assert decoded.call_count == 5 + 2  # keys, one more to see that it is greater; and two records


def test_a_block_that_does_not_end_in_the_files_mark_is_none() -> None:
    data = WRITTEN.content[WRITTEN.header_bytes :]
    start, end = INDEX.span(1, len(data))

    with pytest.raises(ValueError, match="not a whole block"):
        list(INDEX.decode_block(data[start : end - 1]))


def test_a_block_with_another_number_of_records_than_it_says_is_refused() -> None:
    data = WRITTEN.content[WRITTEN.header_bytes :]
    start, end = INDEX.span(1, len(data))
    block = data[start:end]
    assert block[0] == 2 * ENTRIES_PER_BLOCK  # how Avro writes the number

    last = IDS[-1]
    for read in (INDEX.decode_block, lambda b: INDEX.find_in_block(b, "id", IDS, last)):
        with pytest.raises(ValueError, match="more than its 15 records"):
            list(read(bytes([2 * ENTRIES_PER_BLOCK - 2]) + block[1:]))
        with pytest.raises(EOFError):
            list(read(bytes([2 * ENTRIES_PER_BLOCK + 2]) + block[1:]))


def test_a_file_of_an_older_schema_is_read_with_the_defaults_of_ours() -> None:
    """Whole, and block by block."""
    schema = {k: v for k, v in format.BATCHES.schema.items() if not k.startswith("__")}
    older = replace(
        format.BATCHES,
        schema=fastavro.parse_schema({**schema, "fields": [f for f in schema["fields"] if f["name"] != "evictBy"]}),
    )
    entries = [a_batch(i) for i in IDS]
    written = older.encode(entries)
    index = Index(written.content[: written.header_bytes], format.BATCHES.schema)
    data = written.content[written.header_bytes :]
    start, end = index.span(0, len(data))

    assert format.BATCHES.decode(written.content) == entries
    assert format.BATCHES.entries(index.decode_block(data[start:end])) == entries[:ENTRIES_PER_BLOCK]
    assert format.BATCHES.found_in(index, data[start:end], {IDS[3]}, IDS[3]) == [entries[3]]
