"""The files of a ledger: every part comes back, any Avro reader reads it, a key costs one block, and a bad root is refused."""

import io
import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.base.errors import LedgerError, Verdict
from lethe.base.objects import BufferedObject
from lethe.ledger import format
from lethe.ledger.format import ENTRIES_PER_BLOCK, INDEXED_FROM, Index
from lethe.ledger.ledger import BatchEntry, BatchState, Carrier, Ranges, RequestEntry
from lethe.ledger.lineage import WrittenLedger, summary
from lethe.ledger.root import FORMAT_VERSION, PARTS, Chunk, Root, Statistics, decode_root
from lethe.ledger.tombstone import BlockerKind, Erasure, ErasureBlocker, PurgedFile, Tombstone

from tests.support.builders import NOW, a_batch, a_request_entry, a_tombstone, an_object

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
times = st.integers(10**9, 7 * 10**15).map(
    lambda micros: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
)
longs = st.integers(0, 2**63 - 1)
tombstones = st.builds(
    Tombstone, text, st.integers(0, 2**31 - 1), times, st.none() | times, st.dictionaries(text, text, max_size=3)
)
batches = st.builds(
    BatchEntry,
    text,
    st.sampled_from(BatchState),
    text,
    times,
    st.none() | text,
    st.none() | text,
    st.none() | longs,
    st.none() | longs,
    st.none() | longs,
    st.lists(st.builds(BufferedObject, text, longs, text), max_size=3).map(tuple),
    st.none() | text.map(Verdict.parse),
    st.none() | st.lists(text, max_size=2).map(tuple),
    st.none() | times,
    st.booleans(),
)
requests = st.builds(
    RequestEntry, text, text, times, st.dictionaries(text, st.none() | st.integers() | text | st.booleans(), max_size=3)
)
erasures = st.builds(Erasure, text, st.integers(0, 2**31 - 1), st.none() | times)
carriers = st.builds(Carrier, longs, longs, text, st.lists(longs, max_size=3).map(tuple))
COMING_BACK: dict[str, tuple[format.PartFormat[Any, Any], st.SearchStrategy[Any]]] = {
    "tombstones": (format.TOMBSTONES, tombstones),
    "batches": (format.BATCHES, batches),
    "requests": (format.REQUESTS, requests),
    "erasures": (format.ERASURES, erasures),
    "carriers": (format.CARRIERS, carriers),
}


@pytest.mark.parametrize(("part", "entries"), COMING_BACK.values(), ids=COMING_BACK)
@given(data=st.data())
def test_entries_come_back_in_the_order_of_their_keys(
    part: format.PartFormat[Any, Any], entries: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    made = data.draw(st.lists(entries, max_size=4))

    assert part.decode(part.encode(made).content) == sorted(made, key=lambda e: part.text(part.key(e)))


def test_a_plain_avro_reader_finds_the_five_fields_of_a_tombstone_with_their_field_ids() -> None:
    """The format is not Lethe's own: names, order, types and field ids are those of the Tombstone Extension."""
    written = format.TOMBSTONES.encode([a_tombstone("A", evict_by=NOW, meta={"reason": "late"})]).content

    reader = fastavro.reader(io.BytesIO(written))
    (record,) = list(reader)
    schema = reader.writer_schema

    assert record == {
        "id": "A",
        "namespace": 7,
        "addedOn": NOW,
        "evictBy": NOW,
        "meta": {"restatements": "ns/r/1", "reason": "late"},
    }
    assert isinstance(schema, dict)
    assert [(f["name"], f["field-id"]) for f in schema["fields"]] == [
        ("id", 1),
        ("namespace", 2),
        ("addedOn", 3),
        ("evictBy", 4),
        ("meta", 5),
    ]
    assert reader.metadata["avro.codec"] == "deflate"


def older(part: format.PartFormat[Any, Any], *lacking: str) -> format.PartFormat[Any, Any]:
    """The part as a version wrote it that did not know some fields of an entry, or of its objects."""
    schema = json.loads(json.dumps({k: v for k, v in part.schema.items() if not k.startswith("__")}))
    schema["fields"] = [f for f in schema["fields"] if f["name"] not in lacking]
    for field in schema["fields"]:
        if field["name"] == "objects":
            of_object = field["type"]["items"]
            of_object["fields"] = [f for f in of_object["fields"] if f["name"] not in lacking]
    return replace(part, schema=fastavro.parse_schema(schema))


def test_a_truncated_part_or_one_of_another_kind_is_an_error_and_never_fewer_entries() -> None:
    """Half a tombstone file read as a shorter one would show deleted rows."""
    parts: list[tuple[format.PartFormat[Any, Any], Any]] = [
        (format.TOMBSTONES, a_tombstone()),
        (format.BATCHES, a_batch(objects=(an_object(),))),
        (format.REQUESTS, a_request_entry("k")),
    ]
    carriers = format.CARRIERS.encode([Carrier(1, 1, "L")]).content
    for part, entry in parts:
        whole = part.encode([entry]).content
        for content in (*(whole[:n] for n in (len(whole) - 1, len(whole) // 2, 10, 0)), carriers):
            with pytest.raises(Exception):  # noqa: B017 - fastavro has a dozen types for it, the ledger store names the file
                part.decode(content)


def test_the_sequencer_of_an_object_comes_back() -> None:
    """It is no part of what makes two objects the same, so that it has to be looked at by itself."""
    batch = a_batch(objects=(BufferedObject("k1", 1, "e", "0A"), BufferedObject("k2", 1, "e")))

    (found,) = format.BATCHES.decode(format.BATCHES.encode([batch]).content)

    assert [o.sequencer for o in found.objects] == ["0A", None]


def test_an_erasure_comes_back_with_what_holds_it_and_a_purged_file_with_its_erasures() -> None:
    blockers = (
        ErasureBlocker(BlockerKind.TAG, "audit", None, "snapshot 3"),
        ErasureBlocker(BlockerKind.OBJECT_LOCK, "s3://b/f", NOW),
    )
    held = Erasure("ns/erase/0", 7, NOW, 3, 4, NOW, blockers, 25, NOW, verified=True)
    file = PurgedFile("s3://b/f", 9, "data", ("ns/erase/0", "ns/old/0"))

    assert format.ERASURES.decode(format.ERASURES.encode([held]).content) == [held]
    assert format.PURGED_FILES.decode(format.PURGED_FILES.encode([file]).content) == [file]


IDS = sorted(f"2013-01-{n % 31:02d}.{n:05d}" for n in range(INDEXED_FROM + 300))
WRITTEN = format.TOMBSTONES.encode([a_tombstone(i) for i in IDS])
INDEX = Index(WRITTEN.content[: WRITTEN.header_bytes], format.TOMBSTONES.schema)
DATA = WRITTEN.content[WRITTEN.header_bytes :]


def block(number: int) -> bytes:
    start, end = INDEX.span(number, len(DATA))
    return DATA[start:end]


def in_blocks(blocks: Iterable[int]) -> list[str]:
    return [r["id"] for b in blocks for r in INDEX.decode_block(block(b))]


def test_a_plain_avro_reader_reads_an_indexed_file_in_order() -> None:
    assert [r["id"] for r in fastavro.reader(io.BytesIO(WRITTEN.content))] == IDS  # type: ignore[index,call-overload]


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


@given(st.lists(st.tuples(st.none() | st.sampled_from(IDS), st.none() | st.sampled_from(IDS)), max_size=3))
def test_the_blocks_of_ranges_hold_every_key_in_them(intervals: list[tuple[str | None, str | None]]) -> None:
    ranges = Ranges(intervals)

    found = set(in_blocks(INDEX.blocks_within(ranges)))

    assert {i for i in IDS if i in ranges} <= found


def test_no_record_is_decoded_after_the_last_wanted_one_and_of_the_others_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ((number, last),) = INDEX.blocks_of([IDS[3], IDS[1]]).items()
    decoded = Mock(side_effect=fastavro.schemaless_reader)
    monkeypatch.setattr(fastavro, "schemaless_reader", decoded)

    made = format.TOMBSTONES.found_in(INDEX, block(number), frozenset({IDS[1], IDS[3]}), last)

    assert (made, last) == ([a_tombstone(IDS[1]), a_tombstone(IDS[3])], IDS[3])
    assert decoded.call_count == 5 + 2  # keys, one more to see that it is greater; and two records


def test_a_block_that_is_cut_off_or_has_another_number_of_records_than_it_says_is_refused() -> None:
    whole, last = block(1), IDS[-1]
    assert whole[0] == 2 * ENTRIES_PER_BLOCK  # how Avro writes the number

    for read in (INDEX.decode_block, lambda b: INDEX.find_in_block(b, "id", IDS, last)):
        with pytest.raises(ValueError, match="not a whole block"):
            list(read(whole[:-1]))
        with pytest.raises(ValueError, match="more than its 15 records"):
            list(read(bytes([2 * ENTRIES_PER_BLOCK - 2]) + whole[1:]))
        with pytest.raises(EOFError):
            list(read(bytes([2 * ENTRIES_PER_BLOCK + 2]) + whole[1:]))


def test_a_file_of_an_older_schema_is_read_with_the_defaults_of_ours() -> None:
    """Whole, and block by block."""
    entries = [a_batch(i) for i in IDS]
    written = older(format.BATCHES, "evictBy").encode(entries)
    index = Index(written.content[: written.header_bytes], format.BATCHES.schema)
    data = written.content[written.header_bytes :]
    start, end = index.span(0, len(data))

    assert format.BATCHES.decode(written.content) == entries
    assert format.BATCHES.entries(index.decode_block(data[start:end])) == entries[:ENTRIES_PER_BLOCK]
    assert format.BATCHES.found_in(index, data[start:end], {IDS[3]}, IDS[3]) == [entries[3]]


ROOT = Root(
    "uuid-1",
    3,
    "run-3",
    {
        "tombstones": (Chunk("t.avro", 2, 90, lower="A", upper="Z"), Chunk("r.avro", 1, 9, removes=True)),
        "batches": (Chunk("b.avro", 1, 5, header_bytes=3, snapshot_id=11),),
    },
    Statistics(1, 1, 0, {"promoted": 1}, NOW, None, 12),
)


def changed(**changes: Any) -> bytes:
    return json.dumps({**json.loads(ROOT.encode()), **changes}).encode()


def with_file(name: str) -> bytes:
    parts = json.loads(ROOT.encode())["parts"]
    parts["tombstones"][0]["file"] = name
    return changed(parts=parts)


def test_a_root_comes_back_with_every_part_named() -> None:
    decoded = decode_root(ROOT.encode(), "s3://t/_tombstones/r.json", "uuid-1")

    assert (decoded.table_uuid, decoded.ledger_version, decoded.run) == ("uuid-1", 3, "run-3")
    assert {k: v for k, v in decoded.parts.items() if v} == ROOT.parts
    assert set(decoded.parts) == set(PARTS)
    assert decoded.statistics == ROOT.statistics
    assert decoded.statistics.tombstoned_rows == 12


@pytest.mark.parametrize("counted", [{}, {"tombstoned-rows": None}], ids=["absent", "null"])
def test_a_root_whose_writer_counted_no_rows_is_read(counted: dict[str, Any]) -> None:
    statistics = json.loads(ROOT.encode())["statistics"]
    del statistics["tombstoned-rows"]

    decoded = decode_root(changed(statistics={**statistics, **counted}), "s3://t/_tombstones/r.json", "uuid-1")

    assert decoded.statistics.tombstoned_rows is None


LEAST = {"tombstones": []}
REFUSED = {
    "too new": (changed(**{"format-version": FORMAT_VERSION + 1}), "LedgerTooNew", "Upgrade"),
    "of another table": (changed(**{"table-uuid": "uuid-2"}), "LedgerOfAnotherTable", "uuid-2"),
    "truncated": (ROOT.encode()[:-20], "LedgerUnreadable", "Restore"),
    "empty": (b"", "LedgerUnreadable", "Restore"),
    "not JSON": (b"Obj\x01\xff", "LedgerUnreadable", "Restore"),
    "a list": (b"[]", "LedgerUnreadable", "Restore"),
    "null": (b"null", "LedgerUnreadable", "Restore"),
    "without a version": (b"{}", "LedgerUnreadable", "Restore"),
    "with a version that is no number": (changed(**{"format-version": "1"}), "LedgerUnreadable", "Restore"),
    "without statistics": (changed(statistics=None), "LedgerUnreadable", "Restore"),
    "without a part": (changed(parts=LEAST), "LedgerUnreadable", "Restore"),
    "with no tombstone file": (
        changed(parts=json.loads(ROOT.encode())["parts"] | LEAST),
        "LedgerUnreadable",
        "tombstones",
    ),
    **{
        f"with a file {name}": (with_file(name), "LedgerUnreadable", "outside")
        for name in ("../t.avro", "s3://other/t.avro", "..\\t.avro", "..")
    },
}


@pytest.mark.parametrize(("content", "reason", "expected_text"), REFUSED.values(), ids=REFUSED)
def test_a_root_that_cannot_be_trusted_is_refused(content: bytes, reason: str, expected_text: str) -> None:
    with pytest.raises(LedgerError, match=expected_text) as refused:
        decode_root(content, "s3://t/_tombstones/r.json", "uuid-1")

    assert refused.value.reason == reason
    assert "s3://t/_tombstones/r.json" in refused.value.message


ALWAYS = {
    "lethe.ledger",
    "lethe.run-id",
    "lethe.run-kind",
    "tombstone.file",
    "tombstone.metrics.added.count",
    "tombstone.metrics.deleted.count",
    "tombstone.metrics.total.count",
}


def test_every_key_is_there_even_when_nothing_changed() -> None:
    """An emptied set that left its key out would let a reader find the tombstones of an older snapshot."""
    keys = summary(WrittenLedger("root.json", "t.avro", added=0, deleted=0, total=0), "run", "Restatement")

    assert set(keys) == ALWAYS
    assert (keys["lethe.ledger"], keys["tombstone.file"]) == ("root.json", "t.avro")
    assert [keys[f"tombstone.metrics.{k}.count"] for k in ("added", "deleted", "total")] == ["0", "0", "0"]


def test_a_vacuum_also_names_what_it_applied_which_may_be_more_than_what_it_ended() -> None:
    """A's file was rewritten and A stays active: its rows still have to be found by whoever reads increments."""
    keys = summary(WrittenLedger("root.json", "t.avro", 0, 1, 1, "v.avro", 2), "run", "Vacuum")

    assert set(keys) == ALWAYS | {"tombstone.vacuum.file", "tombstone.metrics.vacuum.count"}
    assert (keys["tombstone.vacuum.file"], keys["tombstone.metrics.vacuum.count"]) == ("v.avro", "2")
    assert keys["tombstone.metrics.deleted.count"] == "1"
