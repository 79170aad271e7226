"""Each value is stored exactly, or its file is refused with the row and the path of the column. With the reader of runs."""

import bz2
import gzip
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from lethe.contract.settings import CsvDialect
from lethe.ingest.text_blocks import BLOCK_BYTES
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tests.support.buffer_formats import columns, compressed, read, read_one, some_rows, written


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
def test_damage_in_text_that_gzip_compressed_is_found(tmp_path: Path, format_name: str) -> None:
    """By its checksum also where a line ends."""
    packed = gzip.compress(written(format_name, some_rows(1000)))
    damaged = packed[:-6] + bytes([packed[-6] ^ 255]) + packed[-5:]

    assert read(tmp_path, format_name, damaged)[1][0][0] == "UnreadableFile"


def test_a_key_that_json_lacks_is_null_unless_the_table_requires_it(tmp_path: Path) -> None:
    """JSON cannot tell a column that is missing from one that has no values."""
    required = StructType().add("v", "long", nullable=False).add("day", "integer").add("batch_id", "string")

    assert read(tmp_path, "json", b'{"v":1}\n{"v":2,"day":3}\n')[0] == [
        {"v": 1, "day": None, "batch_id": "A"},
        {"v": 2, "day": 3, "batch_id": "A"},
    ]
    _, refused = read(tmp_path, "json", b'{"day":1}\n', schema=required)
    assert refused == [("SchemaMismatch", "row 0: column v holds a null, but the table requires a value")]


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


S, L = StringType(), LongType()
INNER = StructType([StructField("a", L), StructField("b", S)])


# --- JSON -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("type_", "content", "said"),
    [
        (L, b"null\n", "row 0: it is null"),
        (L, b'{"x":1}\nnull\n', "row 1: it is null"),
        (L, b'{"x":1}\n\n  null\n', "row 1: it is null"),
        (L, b'{"x":1}\ntrue\n', "row 1: it is a boolean"),
        (L, b'[{"x":1}]\n', "row 0: it is an array"),
        (L, b'[\n{"x":1},\n{"x":2}\n]\n', "row 0: it is a JSON array"),
        (L, b'{"x":1}{"x":2}\n', "row 0: the line holds several JSON values"),
        (L, b'{"x":1} {"x":2}\n', "row 0: the line holds several JSON values"),
        (L, b'{"x":1}\n{"x":2},\n', "row 1: the line holds several JSON values"),
        (L, b'{"x":1,"x":2}\n', "row 0: column x is given twice"),
        (INNER, b'{"x":{"a":1,"a":1}}\n', "row 0: column x.a is given twice"),
        (ArrayType(INNER), b'{"x":[{"b":"s"},{"b":"s","b":"t"}]}\n', "row 0: column x.element.b is given twice"),
        (L, b'{"x":1}\n{"y":1,"y":2}\n', "row 1: column y is given twice"),
        (INNER, b'{"x":{"A":1}}\n', "row 0: column x.A is only in the file"),
        (INNER, b'{"x":{"a":1}}\n{"x":{"c":null}}\n', "row 1: column x.c is only in the file"),
        (INNER, b'{"x":{"jane@example.org":1}}\n', "row 0: column x.<field> is only in the file"),
        (ArrayType(INNER), b'{"x":[{"a":1,"zz":1}]}\n', "row 0: column x.element.zz is only in the file"),
        (L, b'{"x":9223372036854775808}\n', "row 0: column x holds a value that is not of type int64"),
        (IntegerType(), b'{"x":2147483648}\n', "row 0: column x holds a value that is not of type int32"),
        (ArrayType(L), b'{"x":[1]}\n{"x":[1.5]}\n', "row 1: column x.element holds a value that is not of type int64"),
        (L, b'{"x":"1"}\n', "row 0: column x holds a string, expected int64"),
        (L, b'{"x":true}\n', "row 0: column x holds a boolean, expected int64"),
        (S, b'{"x":1}\n', "row 0: column x holds a number, expected string"),
        (INNER, b'{"x":[1]}\n', "row 0: column x holds an array, expected a struct"),
        (DoubleType(), b'{"x":1}\n{"x":NaN}\n', "row 1: column x holds NaN"),
        (DoubleType(), b'{"x":-Infinity}\n', "row 0: column x holds NaN, or a number that is too large"),
        (DoubleType(), b'{"x":1e400}\n', "row 0: column x holds a value that is not of type double"),
        (FloatType(), b'{"x":1e39}\n', "row 0: column x holds NaN, or a number that is too large for the type float"),
        (ArrayType(FloatType()), b'{"x":[1,3.5e38]}\n', "row 0: column x.element holds NaN, or a number that is too"),
        (DecimalType(5, 2), b'{"x":1.234}\n', "row 0: column x holds a value that is not of type decimal(5,2)"),
        (DecimalType(5, 2), b'{"x":1234.5}\n', "row 0: column x holds a number with too many digits, expected"),
        (S, b'{"x":"caf\xe9"}\n', "row 0: it is not UTF-8"),
        (S, b'{"x":"a"}\n\n{"x":"\xff"}\n', "row 1: it is not UTF-8"),
        (S, b'{"x":"\\ud800"}\n', "row 0: column x holds half of a surrogate pair"),
        (S, b'{"x":"a"}\n{"x":"\\udc00"}\n', "row 1: column x holds half of a surrogate pair"),
        (S, b'{"x":"a\tb"}\n', "row 0: it is not readable as JSON"),
        (S, '{"x":"a"}\n'.encode("utf-16"), "it is UTF-16, expected UTF-8"),
        (L, b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}\n", "row 0: it nests deeper than 100 levels"),
        (L, b'{"x":1}\n{"y":' + b'{"a":' * 200 + b"1" + b"}" * 201 + b"\n", "row 1: it nests deeper than 100 levels"),
        (DateType(), b'{"x":"2024-02-03"}\n{"x":"2024-02-30"}\n', "row 1: column x holds a value that is not of type"),
        (ArrayType(TimestampType()), b'{"x":["2024-02-03T00:00:00"]}\n', "row 0: column x.element holds a value that"),
        (L, b'{"x":1}\n{"x":1,"z":{}}\n{"z":2}\n', "row 1: the line has a column that the table does not have"),
        (MapType(StringType(), IntegerType()), b'{"x":{"a":1}}', "column x "),
        (BinaryType(), b'{"x":"abc"}', "column x "),
    ],
)
def test_a_json_line_that_is_not_exactly_a_row_is_refused(
    tmp_path: Path, type_: DataType | str, content: bytes, said: str
) -> None:
    assert said in read_one(tmp_path, "json", content, type_)


@pytest.mark.parametrize(
    ("type_", "content", "value"),
    [
        (S, b'\xef\xbb\xbf{"x":"a"}\n', "a"),
        (S, b'{"x":"\\ud83d\\ude00"}', "\U0001f600"),
        (S, b'  {"x":"[[[[{"}  \r\n\r\n', "[[[[{"),
        (S, b'{"x":"a\\u0000b"}\n', "a\0b"),
        (INNER, b'{"x":{}}\n', {"a": None, "b": None}),
        (INNER, b'{"x":null}\n', None),
        (DecimalType(5, 2), b'{"x":"123.40"}\n', Decimal("123.40")),
        (DoubleType(), b'{"x":1.7976931348623157e308}\n', 1.7976931348623157e308),
        (S, b'{"x":"' + b"{" * 5000 + b'"}\n', "{" * 5000),
        (
            StructType().add("at", "timestamp").add("l", ArrayType(DateType())),
            b'{"x":{"at":"2013-01-01T10:00:00Z","l":["2013-01-01",null]}}\n',
            {"at": datetime(2013, 1, 1, 10, tzinfo=UTC), "l": [date(2013, 1, 1), None]},
        ),
    ],
)
def test_json_that_has_one_meaning_is_read(tmp_path: Path, type_: DataType, content: bytes, value: Any) -> None:
    assert read_one(tmp_path, "json", content, type_) == value


def test_rows_of_json_are_counted_through_the_blocks_of_a_large_file(tmp_path: Path) -> None:
    good = b'{"x":"' + b"a" * 1000 + b'"}\n'

    rows, refused = read(tmp_path, "json", good * 20_000, schema=columns(x=S))
    _, late = read(tmp_path, "json", good * 20_000 + b'{"x":5}\n', schema=columns(x=S))

    assert (len(rows), refused) == (20_000, [])
    assert late == [("SchemaMismatch", "row 20000: column x holds a number, expected string")]


# --- CSV --------------------------------------------------------------------------------------------------------------
SPARK = CsvDialect(escape="\\", null_text="")


@pytest.mark.parametrize(
    ("type_", "content", "said"),
    [
        (S, b'x,y\n"say \\"hi\\" now",1\n', "row 0: it is not readable as CSV (there is text after a closing quote"),
        (S, b'x,y\n"say \\"hi\\" now",1\n', "set spec.buffer.csv.escape"),
        (S, b'x,y\na,1\n"abc"def,1\n', "row 1: it is not readable as CSV (there is text after a closing quote"),
        (S, b'x,y\n"abc" ,1\n', "row 0: it is not readable as CSV (there is text after a closing quote"),
        (S, b'x,y\n"foo,1\n"bar",2\n"baz,3\nx,4\n', "quote"),
        (S, b'x,y\na,1\n"foo,1\n', "row 1: it is not readable as CSV (a quoted field has no end"),
        (L, b"x,y\n1,1\n0x1F,1\n", "row 1: column x holds a value that is not of type int64"),
        (L, b"x,y\n 0X1f,1\n", "row 0: column x holds a value that is not of type int64"),
        (DoubleType(), b"x,y\n1e400,1\n", "row 0: column x holds a value that is not of type double"),
        (FloatType(), b"x,y\ninf,1\n1e39,1\n", "row 1: column x holds a value that is not of type float"),
        (DecimalType(5, 2), b"x,y\n1.234,1\n", "row 0: column x holds a value that is not of type decimal(5,2)"),
        (S, b"x;y\na;1\n", "separated by the character semicolon, expected comma"),
        (S, b"x\ty\na\t1\n", "separated by the character tab, expected comma"),
        (ArrayType(L), b"x,y\n1,1\n", "column x "),
        (BinaryType(), b"x,y\nabc,1\n", "column x "),
        (S, b",x,y\n0,a,1\n", "column number 1 is unnamed"),
        (S, b"x,x,y\na,b,1\n", "column x is in the file 2 times"),
        (S, b"x,y\na,1\nb\n", "row 1: it has 1 fields, but the header has 2"),
        (S, b"x,y\n\xff,1\n", "row 0: column x holds text that is not UTF-8"),
        (S, "x,y\na,1\n".encode("utf-16-le"), "NUL bytes"),
        (S, "x,y\na,1\n".encode("utf-16"), "UTF-16"),
    ],
)
def test_csv_with_more_than_one_meaning_is_refused(tmp_path: Path, type_: DataType, content: bytes, said: str) -> None:
    rows, [(_, message)] = read(tmp_path, "csv", content, schema=columns(x=type_, y="long"), add_columns=True)

    assert rows == []
    assert said in message


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"\xef\xbb\xbfy,x\r\n1,a\r\n", "a"),
        (b'x,y\n19" rack,1\n', '19" rack'),
        (b'x,y\na"b"c,1\n', 'a"b"c'),
        (b'x,y\n"a ""b"", c",1\n', 'a "b", c'),
        (b'x,y\n"""",1\n', '"'),
        (b'x,y\n"line\r\nbreak",1', "line\r\nbreak"),
        (b"x,y\ra,1\r", "a"),
        (b"x,y\na\0b,1\n", "a\0b"),
        (b"\n\nx,y\n\na,1\n\n", "a"),
        (b'"x","y"\n"","1"\n', ""),
        (b"x,y\n0x1F,1\n", "0x1F"),
        (b"x,y\nC:\\new,1\n", "C:\\new"),
    ],
)
def test_csv_that_has_one_meaning_is_read(tmp_path: Path, content: bytes, value: str) -> None:
    rows, refused = read(tmp_path, "csv", content, schema=columns(x=S, y="long"))

    assert refused == []
    assert [(r["x"], r["y"]) for r in rows] == [(value, 1)]


@pytest.mark.parametrize(
    ("dialect", "content", "rows"),
    [
        (SPARK, b'x,y\n"say \\"hi\\" now",1\n', [('say "hi" now', 1)]),
        (
            SPARK,
            b'x,y\n"a \\\\ b, \\"c\\"",1\nC:\\new,2\n"C:\\new, x",3\n',
            [('a \\ b, "c"', 1), ("C:\\new", 2), ("C:\\new, x", 3)],
        ),
        (SPARK, b'x,y\n,\n"",2\n', [(None, None), ("", 2)]),
        (CsvDialect(null_text="\\N"), b'x,y\n\\N,1\n"\\N",\\N\n,2\n', [(None, 1), ("\\N", None), ("", 2)]),
        (CsvDialect(delimiter="\t", quote=""), b'x\ty\n"a\t1\n', [('"a', 1)]),
        (CsvDialect(delimiter=";", quote="'"), b"x;y\n'a;''b'';';1\n", [("a;'b';", 1)]),
        (CsvDialect(header=False), b"a,1\nb,2\n", [("a", 1), ("b", 2)]),
        (CsvDialect(ignore_columns=("",)), b",x,y\n0,a,1\n1,b,2\n", [("a", 1), ("b", 2)]),
        (CsvDialect(ignore_columns=("z", "")), b"z,x,,y\nnot a number,a,\xff,1\n", [("a", 1)]),
    ],
)
def test_a_dialect_is_read_as_it_is_declared(
    tmp_path: Path, dialect: CsvDialect, content: bytes, rows: list[Any]
) -> None:
    found, refused = read(tmp_path, "csv", content, schema=columns(x=S, y="long"), csv=dialect)

    assert refused == []
    assert [(r["x"], r["y"]) for r in found] == rows


def test_with_a_text_for_nulls_an_empty_field_is_no_number(tmp_path: Path) -> None:
    _, refused = read(tmp_path, "csv", b"x,y\na,\n", schema=columns(x=S, y="long"), csv=CsvDialect(null_text="NA"))

    assert refused == [("SchemaMismatch", "row 0: column y holds a value that is not of type int64")]


def test_a_blank_line_of_a_file_with_one_column_is_not_dropped(tmp_path: Path) -> None:
    assert "blank" in read_one(tmp_path, "csv", b"x\na\n\nb\n", S)
    assert read_one(tmp_path, "csv", b'x\na\n""\nb\n\n\n', S) == ["a", "", "b"]


@pytest.mark.parametrize("odd", [b"", b'1,19" rack\n'])
def test_quoted_fields_are_read_across_the_blocks_of_a_large_file(tmp_path: Path, odd: bytes) -> None:
    """With a quote that begins no field, every record is read one by one."""
    count = 21_000
    record = b'1,"' + b'a\n""b"",' * 100 + b'"\n'
    assert len(record) * count > 2 * BLOCK_BYTES

    rows, refused = read(tmp_path, "csv", b"y,x\n" + odd + record * count, schema=columns(x=S, y="long"))
    _, late = read(tmp_path, "csv", b"y,x\n" + odd + record * count + b'1,"a"b\n', schema=columns(x=S, y="long"))

    assert (len(rows), refused) == (count + bool(odd), [])
    assert {r["x"] for r in rows[1:]} == {'a\n"b",' * 100}
    assert late[0][1].startswith(f"row {count + bool(odd)}: it is not readable as CSV (there is text after")


@pytest.mark.parametrize("codec", ["gzip", "bz2", "zstd", "lz4"])
@pytest.mark.parametrize(("format_name", "content"), [("json", b'{"x":"a"}\n'), ("csv", b"x\n" + b"a\n")])
def test_compressed_text_is_recognized_and_a_cut_is_found(
    tmp_path: Path, codec: str, format_name: str, content: bytes
) -> None:
    whole = compressed(codec, content * 1000)

    assert len(read_one(tmp_path, format_name, whole, S)) >= 1000
    for cut in (1, 4, 9, len(whole) // 2):
        assert "compression is truncated or damaged" in read_one(tmp_path, format_name, whole[:-cut], S)


def test_parts_that_were_compressed_one_by_one_are_all_read(tmp_path: Path) -> None:
    parts = [b'{"x":"a"}\n', b'{"x":"b"}\n']

    assert read_one(tmp_path, "json", b"".join(map(gzip.compress, parts)), S) == ["a", "b"]
    assert read_one(tmp_path, "json", b"".join(map(bz2.compress, parts)), S) == ["a", "b"]


@pytest.mark.parametrize("format_name", ["json", "csv"])
@pytest.mark.parametrize(
    "number",
    ["1e-41", "9e-85", "-1.5E-0105", "1e-999999999", f"0.{'0' * 60}1", f"1.{'2' * 20}e-30"],
    ids=lambda n: n[:14],
)
def test_a_number_with_more_digits_than_any_decimal_is_refused(tmp_path: Path, format_name: str, number: str) -> None:
    """Arrow looks up the power of ten behind the end of its table, and stores another number, or crashes."""
    lines = {
        "json": ['{"y":2e-300,"x":15E-01}', f'{{"y":1e-300,"x":{number}}}'],
        "csv": ["y,x", "2e-300,15E-01", f"1e-300,{number}"],
    }[format_name]
    schema = columns(x=DecimalType(38, 2), y="double")

    rows, refused = read(tmp_path, format_name, "\n".join(lines).encode(), schema=schema)

    assert rows == []
    assert refused == [("SchemaMismatch", "row 1: column x holds a value that is not of type decimal(38,2)")]
    accepted, _ = read(tmp_path, format_name, "\n".join(lines[:-1]).encode(), schema=schema)
    assert [(r["x"], r["y"]) for r in accepted] == [(Decimal("1.50"), 2e-300)]


@pytest.mark.parametrize("text", ["1e-41", r"1\u0065-41", r"0\u002e" + "0" * 40 + "1"])
def test_such_a_number_is_refused_wherever_it_is_in_json(tmp_path: Path, text: str) -> None:
    inner = StructType([StructField("l", ArrayType(DecimalType(9, 2)))])

    found = read_one(tmp_path, "json", f'{{"x":{{"l":[1,"{text}"]}}}}'.encode(), inner)

    assert found == "row 0: column x.l.element holds a value that is not of type decimal(9,2)"
