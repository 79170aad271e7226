"""A value is found in whatever holds it, and what cannot be taken apart is said to be unreadable."""

import base64
import bz2
import datetime
import gzip
import io
import json
import lzma
import tarfile
import uuid
import zipfile
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from lethe.cli import content_search
from lethe.cli.content_search import (
    SearchedColumn,
    SearchedValues,
    UnsearchableContent,
    bound_values,
    holds,
    holds_batch,
)
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, LongType, NestedField, TimestampType, TimestamptzType

from tests.support.buffer_formats import compressed

VALUE = "Zoë <7> Lovelace"
TEXT = f"some text with {VALUE} in it\n".encode() * 50


def parquet(column: Any, kind: pa.DataType | None = None) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"c": pa.array(column, kind)}), sink, compression="zstd", use_dictionary=False)
    return sink.getvalue()


def an_orc_file(column: Any) -> bytes:
    sink = io.BytesIO()
    orc.write_table(pa.table({"c": column}), sink, compression="zlib")
    return sink.getvalue()


def avro(value: Any, kind: Any) -> bytes:
    sink = io.BytesIO()
    schema = {"type": "record", "name": "r", "fields": [{"name": "c", "type": {"type": "array", "items": kind}}]}
    fastavro.writer(sink, schema, [{"c": [value]}], codec="deflate")
    return sink.getvalue()


def a_zip(content: bytes = TEXT, name: str = "x") -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return sink.getvalue()


def a_tar(content: bytes = TEXT, mode: str = "w") -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode=mode) as archive:  # type: ignore[call-overload]
        member = tarfile.TarInfo("x")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return sink.getvalue()


def puffin(blob: bytes, **more: str) -> bytes:
    footer = {"blobs": [{"type": "index", "offset": 4, "length": len(blob), **more}]}
    text = json.dumps(footer).encode()
    return b"PFA1" + blob + b"PFA1" + text + len(text).to_bytes(4, "little") + b"\0" * 4 + b"PFA1"


HOLDING = {
    "text": TEXT,
    "JSON": json.dumps({"comment": VALUE}).encode(),
    "UTF-16": TEXT.decode().encode("utf-16"),
    "Latin-1 in text": TEXT.decode().encode("latin-1"),
    "Base64": json.dumps({"k": base64.b64encode(b"x" + TEXT).decode()}).encode(),
    "Parquet": parquet([VALUE, None]),
    "Parquet, nested": parquet([[{"a": [VALUE]}]]),
    "Parquet, map": parquet([[("k", VALUE)]], pa.map_(pa.string(), pa.string())),
    "Parquet, within a text": parquet([f"dear {VALUE}"]),
    "Parquet, binary": parquet([VALUE.encode()], pa.binary()),
    "Parquet, dictionary": parquet(pa.array([VALUE]).dictionary_encode()),
    "ORC": an_orc_file([VALUE]),
    "Avro": avro(VALUE, "string"),
    "Avro, bytes": avro(VALUE.encode(), "bytes"),
    "Puffin": puffin(TEXT),
    "Puffin, compressed": puffin(compressed("zstd", TEXT), **{"compression-codec": "zstd"}),
    "gzip": gzip.compress(TEXT, mtime=0),
    "bzip2": bz2.compress(TEXT),
    "xz": lzma.compress(TEXT),
    "zstd": compressed("zstd", TEXT),
    "lz4": compressed("lz4", TEXT),
    "zip": a_zip(),
    "zip, name of a member": a_zip(b"", VALUE),
    "tar": a_tar(),
    "archives in archives": a_zip(a_tar(gzip.compress(parquet([VALUE])), "w:gz")),
}


@pytest.mark.parametrize("name", HOLDING)
def test_a_value_is_found_in(name: str) -> None:
    assert holds("s3://b/no-extension", HOLDING[name], SearchedValues((VALUE,)))


@pytest.mark.parametrize(
    ("value", "column", "kind"),
    [
        ("4711", [4711], pa.int32()),
        ("4711.5", [4711.5], pa.float64()),
        ("4711", [4711.0], pa.float32()),
        ("2026-03-01", [datetime.date(2026, 3, 1)], pa.date32()),
        ("ab", ["ab"], pa.string()),
        (
            "123e4567-e89b-12d3-a456-426614174000",
            [uuid.UUID("123e4567-e89b-12d3-a456-426614174000").bytes],
            pa.binary(16),
        ),
    ],
)
def test_short_values_and_those_of_other_types_are_found_in_columns(value: str, column: Any, kind: pa.DataType) -> None:
    assert holds("f", parquet(column, kind), SearchedValues((value,)))
    assert not holds("f", parquet(column, kind), SearchedValues(("999", "cd", "other value")))


NOON = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)
SPELLED: dict[str, tuple[tuple[str, ...], Any, pa.DataType, Any]] = {
    "instant": (
        ("2026-03-01T12:00:00Z", "2026-03-01 12:00Z", "2026-03-01T14:00:00.000+02:00", "2026-03-01T14:00:00+0200"),
        NOON,
        pa.timestamp("us", "UTC"),
        TimestamptzType(),
    ),
    "time without a zone": (
        ("2026-03-01T12:00:00", "2026-03-01 12:00", "2026-03-01 12:00:00.0"),
        NOON.replace(tzinfo=None),
        pa.timestamp("us"),
        TimestampType(),
    ),
    "decimal": (("47.1", "+47.10", "047.1"), Decimal("47.10"), pa.decimal128(9, 2), DecimalType(9, 2)),
    "long decimal": (
        ("12345678901234567890123456789012.5",),
        Decimal("12345678901234567890123456789012.50"),
        pa.decimal128(38, 2),
        DecimalType(38, 2),
    ),
    "whole number": (("4711", "+4711", "004711"), 4711, pa.int64(), LongType()),
}
"""Lists of values may write one value in several ways: the Erase finds it by each of them."""
AVRO_TYPES = {
    "instant": {"type": "long", "logicalType": "timestamp-micros"},
    "time without a zone": {"type": "long", "logicalType": "local-timestamp-micros"},
    "decimal": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    "long decimal": {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2},
    "whole number": "long",
}


@pytest.mark.parametrize("name", SPELLED)
def test_a_value_is_found_however_it_is_written(name: str) -> None:
    spellings, value, kind, iceberg_type = SPELLED[name]
    schema = Schema(NestedField(3, "c", iceberg_type))
    bounds = bound_values((spellings[0],), [schema])[3]
    for text in spellings:
        searched = SearchedValues((text,))
        assert holds("f", parquet([value], kind), searched), text
        assert holds("f", an_orc_file(pa.array([value], kind)), searched), text
        assert holds("f", avro(value, AVRO_TYPES[name]), searched), text
        assert bound_values((text,), [schema]).get(3) == bounds, text
    others = SearchedValues(("2026-03-01T12:00:01Z", "47.11", "4712", "2026-03-01T12:00:00+02:00"))
    assert not holds("f", parquet([value], kind), others)
    assert not holds("f", parquet(["7"]), SearchedValues(("007",)))  # as a text it is another value


@pytest.mark.parametrize("has_ids", [True, False])
@pytest.mark.parametrize("format_name", ["parquet", "orc", "avro"])
def test_rows_of_a_batch_are_found_after_its_column_was_renamed(format_name: str, has_ids: bool) -> None:
    """A file without field ids has it under a name of its time."""
    name = "load"
    sink = io.BytesIO()
    match format_name:
        case "avro":
            with_id = {"field-id": 2} if has_ids else {}
            fields = [{"name": name, "type": "string", **with_id}]
            fastavro.writer(sink, {"type": "record", "name": "r", "fields": fields}, [{name: "A"}])
        case of:
            key = {"parquet": "PARQUET:field_id", "orc": "iceberg.id"}[of]
            stored = pa.field(name, pa.string(), metadata={key: "2"} if has_ids else None)
            table = pa.Table.from_arrays([pa.array(["A"])], schema=pa.schema([stored]))
            (pq if of == "parquet" else orc).write_table(table, sink)
    content = sink.getvalue()

    column = SearchedColumn(2, frozenset({"batch_id", "load"}))
    assert holds_batch(io.BytesIO(content), column, ["A"])
    assert not holds_batch(io.BytesIO(content), column, ["B"])
    assert not holds_batch(io.BytesIO(content), SearchedColumn(3, frozenset({"other"})), ["A"])


def test_rows_of_a_batch_are_found_beside_a_time_that_python_does_not_have() -> None:
    sink = io.BytesIO()
    far = {"name": "t", "type": {"type": "int", "logicalType": "date"}}
    fields = [{"name": "batch_id", "type": ["null", "string"], "field-id": 2}, far]
    fastavro.writer(sink, {"type": "record", "name": "r", "fields": fields}, [{"batch_id": "A", "t": 2_932_897}])

    assert holds_batch(io.BytesIO(sink.getvalue()), SearchedColumn(2, frozenset({"batch_id"})), ["A"])


@pytest.mark.parametrize("path", [f"s3://b/name={VALUE}/f", "s3://b/name=Zo%C3%AB%20%3C7%3E%20Lovelace/f"])
def test_a_value_is_found_in_a_path(path: str) -> None:
    assert holds(path, b"", SearchedValues((VALUE,)))


@pytest.mark.parametrize(
    "content", [b"", b"text", b"crc\0\0\0\2\0\xff\xfe\x01", parquet(["x"]), a_zip(b"x"), puffin(b"text")]
)
def test_what_is_read_completely_and_holds_no_value_is_clean(content: bytes) -> None:
    assert not holds("f", content, SearchedValues((VALUE,)))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (bytes(range(256)), "its format is not known"),
        (b"PAR1 and no more", "damaged"),
        (parquet(["x"])[:-20], "damaged"),
        (b"ORC and no more", "damaged"),
        (b"Obj\x01 and no more", "damaged"),
        (b"PFA1 and no more", "damaged"),
        (gzip.compress(TEXT, mtime=0)[:-12], "damaged"),
        (gzip.compress(bytes(range(256)), mtime=0), "its format is not known"),
        (b"PARE", "encrypted"),
    ],
)
def test_what_cannot_be_taken_apart_is_unreadable(content: bytes, why: str) -> None:
    with pytest.raises(UnsearchableContent, match=why) as refused:
        holds("f", content, SearchedValues(("nobody at all",)))
    assert "nobody" not in str(refused.value)


def test_what_unpacks_to_too_much_or_is_nested_too_deeply_is_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    nested = TEXT
    for _ in range(content_search.MAX_DEPTH + 2):
        nested = gzip.compress(nested)
    with pytest.raises(UnsearchableContent, match="nested"):
        holds("f", nested, SearchedValues((VALUE,)))

    monkeypatch.setattr(content_search, "MAX_BYTES", 1000)
    with pytest.raises(UnsearchableContent, match="more than 1000 bytes"):
        holds("f", gzip.compress(bytes(2000)), SearchedValues((VALUE,)))
