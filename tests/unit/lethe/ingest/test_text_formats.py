"""JSON and CSV, which say no types: read with the table's, and refused by line and column, never by a value."""

import gzip
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from pyspark.sql.types import ArrayType, BinaryType, DataType, DateType, IntegerType, MapType, StringType, StructType

from tests.support.buffer_formats import columns, read, some_rows, written


@pytest.mark.parametrize(
    ("format_name", "content"),
    [
        ("json", b'{"v":1,"day":1}\n{"v":2,"da'),
        ("csv", b"v,day\n1,1\n2"),
        ("csv", b'v,day\n1,1\n2,"2'),
    ],
)
def test_text_that_was_cut_off_within_a_line_is_refused(tmp_path: Path, format_name: str, content: bytes) -> None:
    _, [(reason, message)] = read(tmp_path, format_name, content)

    assert reason == "UnreadableFile"
    assert format_name.upper() in message


@pytest.mark.parametrize("format_name", ["json", "csv"])
def test_compressed_text_is_read_and_damage_in_it_found(tmp_path: Path, format_name: str) -> None:
    """By its checksum also where a line ends: gzip knows how long it was."""
    packed = gzip.compress(written(format_name, some_rows(1000)))
    damaged = packed[:-6] + bytes([packed[-6] ^ 255]) + packed[-5:]

    rows, refused = read(tmp_path, format_name, packed)
    assert (len(rows), refused) == (1000, [])
    for content in (packed[:-4], packed[: len(packed) // 2], damaged):
        assert read(tmp_path, format_name, content)[1][0][0] == "UnreadableFile"


def test_a_key_that_json_lacks_is_null_unless_the_table_requires_it(tmp_path: Path) -> None:
    """JSON cannot tell a column that is missing from one that has no values."""
    required = StructType().add("v", "long", nullable=False).add("day", "integer").add("batch_id", "string")

    assert read(tmp_path, "json", b'{"v":1}\n{"v":2,"day":3}\n')[0] == [
        {"v": 1, "day": None, "batch_id": "A"},
        {"v": 2, "day": 3, "batch_id": "A"},
    ]
    _, refused = read(tmp_path, "json", b'{"day":1}\n', schema=required)
    assert refused == [("SchemaMismatch", "row 0: column v holds a null, but the table requires a value")]


@pytest.mark.parametrize(
    ("format_name", "content", "said"),
    [
        ("json", b'{"v":"secret","day":1}', "row 0: column v holds a string, expected int64"),
        ("json", b'{"v":1,"day":1}\n{"v":1.5,"day":1}', "row 1: column v holds a value that is not of type int64"),
        ("json", b'{"v":1,"day":3000000000}', "row 0: column day holds a value that is not of type int32"),
        ("csv", b"v,day\n1,1\nsecret,1\n", "row 1: column v holds a value that is not of type int64"),
        ("csv", b"v,day\n1,3000000000\n", "row 0: column day holds a value that is not of type int32"),
    ],
)
def test_a_value_that_does_not_fit_is_named_by_its_column_and_not_repeated(
    tmp_path: Path, format_name: str, content: bytes, said: str
) -> None:
    _, refused = read(tmp_path, format_name, content)

    assert refused == [("SchemaMismatch", said)]


@pytest.mark.parametrize("format_name", ["json", "csv"])
@pytest.mark.parametrize(
    ("type_", "text", "said"),
    [
        ("timestamp", "2013-01-01T10:00:00", "expected an instant, with a zone offset such as Z"),
        ("timestamp_ntz", "2013-01-01T10:00:00Z", "expected a local time, without a zone offset"),
        ("timestamp", "yesterday", "column at holds a value that is not of type timestamp[us, tz=UTC]"),
        ("timestamp", "10000-01-01T00:00:00Z", "column at holds a value that is not of type timestamp[us, tz=UTC]"),
        ("timestamp", "0000-01-01T00:00:00Z", "outside the years 1 to 9999"),
        ("timestamp_ntz", "2013-01-01T10:00:00.123456789", "column at holds a value that is not of type timestamp[us]"),
        ("date", "01/02/2013", "column at holds a value that is not of type date32[day]"),
    ],
)
def test_a_time_in_text_must_be_iso_8601_with_a_zone_where_it_is_an_instant(
    tmp_path: Path, format_name: str, type_: str, text: str, said: str
) -> None:
    schema = columns(at=type_)
    content = f'{{"at":"{text}"}}\n' if format_name == "json" else f"at\n{text}\n"

    _, [(reason, message)] = read(tmp_path, format_name, content.encode(), schema=schema)

    assert reason == "SchemaMismatch"
    assert said in message
    assert text not in message


def test_nested_values_are_read_from_json(tmp_path: Path) -> None:
    schema = columns(s=StructType().add("at", "timestamp").add("n", "integer"), l=ArrayType(DateType()))
    content = b'{"s":{"at":"2013-01-01T10:00:00Z","n":1},"l":["2013-01-01",null]}\n'

    rows, refused = read(tmp_path, "json", content, schema=schema)

    assert refused == []
    assert rows[0]["s"] == {"at": datetime(2013, 1, 1, 10, tzinfo=UTC), "n": 1}
    assert rows[0]["l"] == [date(2013, 1, 1), None]


@pytest.mark.parametrize(
    ("format_name", "type_", "content"),
    [
        ("json", MapType(StringType(), IntegerType()), b'{"x":{"a":1}}'),
        ("json", BinaryType(), b'{"x":"abc"}'),
        ("csv", ArrayType(IntegerType()), b"x\n1\n"),
        ("csv", BinaryType(), b"x\nabc\n"),
    ],
)
def test_a_column_of_a_type_that_text_cannot_hold_is_refused(
    tmp_path: Path, format_name: str, type_: DataType, content: bytes
) -> None:
    schema = columns(x=type_)

    _, [(reason, message)] = read(tmp_path, format_name, content, schema=schema)

    assert reason == "SchemaMismatch"
    assert "column x " in message


def test_csv_may_begin_with_a_byte_order_mark_and_put_its_columns_in_any_order(tmp_path: Path) -> None:
    rows, refused = read(tmp_path, "csv", b"\xef\xbb\xbfday,v\r\n1,2\r\n")

    assert (rows, refused) == ([{"v": 2, "day": 1, "batch_id": "A"}], [])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"v,day\n1,1\n2,2,secret\n", "row 1: it has 3 fields, but the header has 2"),
        (b"v,v,day\n1,1,1\n", "column v is in the file 2 times"),
        (b"v;day\n1;1\n", "its header is separated by the character semicolon, expected comma"),
        (b"1,2\n2,2\n", "column v (int64) is missing"),
        (b"v,day\n1,\xff\n", "row 0: column day holds a value that is not of type int32"),
    ],
)
def test_csv_that_is_none_is_refused_with_the_row(tmp_path: Path, content: bytes, said: str) -> None:
    _, [(_, message)] = read(tmp_path, "csv", content)

    assert said in message
    assert "secret" not in message
