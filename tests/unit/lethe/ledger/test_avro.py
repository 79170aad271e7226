"""Every part of a ledger comes back as it was written, and any Avro reader can read it."""

import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.contract.settings import Refusal
from lethe.ledger import format
from lethe.ledger.erasure import BlockerKind, Erasure, ErasureBlocker, PurgedFile
from lethe.ledger.ledger import BatchEntry, BatchState, BufferedObject, Carrier, RequestEntry
from lethe.ledger.tombstone import Tombstone

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
    st.none() | text.map(Refusal.parse),
    st.none() | st.lists(text, max_size=2).map(tuple),
    st.none() | times,
    st.booleans(),
)
requests = st.builds(
    RequestEntry, text, text, times, st.dictionaries(text, st.none() | st.integers() | text | st.booleans(), max_size=3)
)
erasures = st.builds(Erasure, text, st.integers(0, 2**31 - 1), st.none() | times)
carriers = st.builds(Carrier, longs, longs, text, st.lists(longs, max_size=3).map(tuple))


def by_key(part: format.PartFormat[Any, Any], entries: list[Any]) -> list[Any]:
    """The order in a file."""
    return sorted(entries, key=lambda e: part.text(part.key(e)))


@given(st.lists(tombstones, max_size=4))
def test_tombstones_come_back(entries: list[Tombstone]) -> None:
    assert by_key(format.TOMBSTONES, entries) == format.TOMBSTONES.decode(format.TOMBSTONES.encode(entries).content)


@given(st.lists(batches, max_size=4))
def test_batches_come_back(entries: list[BatchEntry]) -> None:
    assert by_key(format.BATCHES, entries) == format.BATCHES.decode(format.BATCHES.encode(entries).content)


@given(st.lists(requests, max_size=4))
def test_requests_come_back(entries: list[RequestEntry]) -> None:
    assert by_key(format.REQUESTS, entries) == format.REQUESTS.decode(format.REQUESTS.encode(entries).content)


@given(st.lists(erasures, max_size=4))
def test_erasures_come_back(entries: list[Erasure]) -> None:
    assert by_key(format.ERASURES, entries) == format.ERASURES.decode(format.ERASURES.encode(entries).content)


@given(st.lists(carriers, max_size=4))
def test_carriers_come_back(entries: list[Carrier]) -> None:
    assert by_key(format.CARRIERS, entries) == format.CARRIERS.decode(format.CARRIERS.encode(entries).content)


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


def test_a_batch_written_before_there_was_registration_is_not_a_registered_one() -> None:
    older = fastavro.parse_schema(
        {
            "type": "record",
            "name": "batch",
            "fields": [f for f in format.BATCHES.schema["fields"] if f["name"] != "registered"],
        }
    )
    out = io.BytesIO()
    fastavro.writer(out, older, [format.BATCHES.to_record(a_batch("A", objects=(an_object(),)))])

    (found,) = format.BATCHES.decode(out.getvalue())

    assert (found, found.registered) == (a_batch("A", objects=(an_object(),)), False)


def test_an_empty_set_is_an_empty_file_and_not_no_file() -> None:
    written = format.TOMBSTONES.encode([]).content

    assert len(written) > 0
    assert format.TOMBSTONES.decode(written) == []


PARTS = [
    pytest.param(format.TOMBSTONES, [a_tombstone()], id="tombstones"),
    pytest.param(format.BATCHES, [a_batch(objects=(an_object(),))], id="batches"),
    pytest.param(format.REQUESTS, [a_request_entry("k")], id="requests"),
]


@pytest.mark.parametrize(("part", "entries"), PARTS)
def test_a_truncated_part_is_an_error_and_never_fewer_entries(
    part: format.PartFormat[object, object], entries: list[object]
) -> None:
    """Half a tombstone file read as a shorter one would show deleted rows."""
    whole = part.encode(entries).content

    for length in (len(whole) - 1, len(whole) // 2, 10, 0):
        with pytest.raises(Exception):  # noqa: B017 - fastavro has a dozen types for it, the ledger store names the file
            part.decode(whole[:length])


def test_the_sequencer_of_an_object_comes_back() -> None:
    """It is no part of what makes two objects the same, so that it has to be looked at by itself."""
    with_sequencer, without_sequencer = BufferedObject("k1", 1, "e", "0A"), BufferedObject("k2", 1, "e")

    (found,) = format.BATCHES.decode(
        format.BATCHES.encode([a_batch(objects=(with_sequencer, without_sequencer))]).content
    )

    assert [o.sequencer for o in found.objects] == ["0A", None]


def test_batches_from_before_there_were_sequencers_are_read() -> None:
    record = json.loads(json.dumps({k: v for k, v in format.BATCHES.schema.items() if not k.startswith("__")}))
    (objects,) = [f for f in record["fields"] if f["name"] == "objects"]
    fields = objects["type"]["items"]["fields"]
    fields.remove(next(f for f in fields if f["name"] == "sequencer"))
    out = io.BytesIO()
    before = format.BATCHES.to_record(a_batch(objects=(an_object(),)))
    fastavro.writer(out, fastavro.parse_schema(record), [before])

    assert format.BATCHES.decode(out.getvalue()) == [a_batch(objects=(an_object(),))]


def test_a_part_of_another_kind_is_an_error() -> None:
    with pytest.raises(Exception):  # noqa: B017
        format.TOMBSTONES.decode(format.CARRIERS.encode([Carrier(1, 1, "L")]).content)


def test_an_erasure_comes_back_with_what_holds_it_and_one_from_before_there_was_that_is_read() -> None:
    """And a purged file with the erasures that it is of."""
    held = (
        ErasureBlocker(BlockerKind.TAG, "audit", None, "snapshot 3"),
        ErasureBlocker(BlockerKind.OBJECT_LOCK, "s3://b/f", NOW),
    )
    wanted = Erasure("ns/erase/0", 7, NOW, 3, 4, NOW, held, 25, NOW, verified=True)
    plain = Erasure("ns/old/0", 7, None)
    file = PurgedFile("s3://b/f", 9, "data", ("ns/erase/0", "ns/old/0"))
    record = json.loads(json.dumps({k: v for k, v in format.ERASURES.schema.items() if not k.startswith("__")}))
    record["fields"] = record["fields"][:3]
    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema(record), [{"restatement": "ns/old/0", "fieldId": 7, "evictBy": None}])

    assert format.ERASURES.decode(format.ERASURES.encode([wanted, plain]).content) == [wanted, plain]
    assert format.ERASURES.decode(out.getvalue()) == [plain]
    assert format.PURGED_FILES.decode(format.PURGED_FILES.encode([file]).content) == [file]
