"""Each value is stored exactly, or its file is refused with the row and the path of the column. With the reader of runs."""

import bz2
import gzip
import io
import json
import zlib
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from lethe.contract.settings import CsvDialect
from lethe.ingest.avro_format import _HEADER
from lethe.ingest.schema_fit import named_folders
from lethe.uri import NAME_BYTES
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
    TimestampNTZType,
    TimestampType,
)

from tests.support.buffer_formats import columns, read, read_tasks

S, L = StringType(), LongType()
INNER = StructType([StructField("a", L), StructField("b", S)])
MOMENT = datetime(2024, 5, 1, 12, tzinfo=UTC)
MICROS = int(MOMENT.timestamp()) * 1_000_000


def one(folder: Path, format_name: str, content: bytes, type_: DataType | str, **options: Any) -> Any:
    """The value of the column x in the only row, or the message of the refusal."""
    rows, refused = read(folder, format_name, content, schema=columns(x=type_), **options)
    if refused:
        assert rows == []
        return refused[0][1]
    return rows[0]["x"] if len(rows) == 1 else [r["x"] for r in rows]


def parquet(values: pa.Array, **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"x": values}), out, **options)
    return out.getvalue()


def raw_text(*values: bytes) -> pa.Array:
    """Texts of any bytes, UTF-8 or not."""
    return pa.array(values, pa.binary()).view(pa.string())


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
        (
            ArrayType(FloatType()),
            b'{"x":[1,3.5e38]}\n',
            "row 0: column x.element holds NaN, or a number that is too large",
        ),
        (DecimalType(5, 2), b'{"x":1.234}\n', "row 0: column x holds a value that is not of type decimal(5,2)"),
        (
            DecimalType(5, 2),
            b'{"x":1234.5}\n',
            "row 0: column x holds a number with too many digits, expected decimal(5,2)",
        ),
        (S, b'{"x":"caf\xe9"}\n', "row 0: it is not UTF-8"),
        (S, b'{"x":"a"}\n\n{"x":"\xff"}\n', "row 1: it is not UTF-8"),
        (S, b'{"x":"\\ud800"}\n', "row 0: column x holds half of a surrogate pair"),
        (S, b'{"x":"a"}\n{"x":"\\udc00"}\n', "row 1: column x holds half of a surrogate pair"),
        (S, b'{"x":"a\tb"}\n', "row 0: it is not readable as JSON"),
        (S, '{"x":"a"}\n'.encode("utf-16"), "it is UTF-16, expected UTF-8"),
        (L, b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}\n", "row 0: it nests deeper than 100 levels"),
        (L, b'{"x":1}\n{"y":' + b'{"a":' * 200 + b"1" + b"}" * 201 + b"\n", "row 1: it nests deeper than 100 levels"),
        (
            DateType(),
            b'{"x":"2024-02-03"}\n{"x":"2024-02-30"}\n',
            "row 1: column x holds a value that is not of type date32",
        ),
        (
            ArrayType(TimestampType()),
            b'{"x":["2024-02-03T00:00:00"]}\n',
            "row 0: column x.element holds a value that is not of",
        ),
        (L, b'{"x":1}\n{"x":1,"z":{}}\n{"z":2}\n', "row 1: the line has a column that the table does not have"),
    ],
)
def test_a_json_line_that_is_not_exactly_a_row_is_refused(
    tmp_path: Path, type_: DataType | str, content: bytes, said: str
) -> None:
    assert said in one(tmp_path, "json", content, type_)


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
    ],
)
def test_json_that_has_one_meaning_is_read(tmp_path: Path, type_: DataType, content: bytes, value: Any) -> None:
    assert one(tmp_path, "json", content, type_) == value


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
    assert "blank" in one(tmp_path, "csv", b"x\na\n\nb\n", S)
    assert one(tmp_path, "csv", b'x\na\n""\nb\n\n\n', S) == ["a", "", "b"]


@pytest.mark.parametrize("odd", [b"", b'1,19" rack\n'])
def test_quoted_fields_are_read_across_the_blocks_of_a_large_file(tmp_path: Path, odd: bytes) -> None:
    """With a quote that begins no field, every record is read one by one."""
    record = b'1,"' + b'a\n""b"",' * 100 + b'"\n'

    rows, refused = read(tmp_path, "csv", b"y,x\n" + odd + record * 20_000, schema=columns(x=S, y="long"))
    _, late = read(tmp_path, "csv", b"y,x\n" + odd + record * 20_000 + b'1,"a"b\n', schema=columns(x=S, y="long"))

    assert (len(rows), refused) == (20_000 + bool(odd), [])
    assert {r["x"] for r in rows[1:]} == {'a\n"b",' * 100}
    assert late[0][1].startswith(f"row {20_000 + bool(odd)}: it is not readable as CSV (there is text after")


def packed(codec: str, content: bytes) -> bytes:
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, codec) as stream:
        stream.write(content)
    return bytes(out.getvalue().to_pybytes())


@pytest.mark.parametrize("codec", ["gzip", "bz2", "zstd", "lz4"])
@pytest.mark.parametrize(("format_name", "content"), [("json", b'{"x":"a"}\n'), ("csv", b"x\n" + b"a\n")])
def test_compressed_text_is_recognized_and_a_cut_is_found(
    tmp_path: Path, codec: str, format_name: str, content: bytes
) -> None:
    whole = packed(codec, content * 1000)

    assert len(one(tmp_path, format_name, whole, S)) >= 1000
    for cut in (1, 4, 9, len(whole) // 2):
        assert "compression is truncated or damaged" in one(tmp_path, format_name, whole[:-cut], S)


def test_parts_that_were_compressed_one_by_one_are_all_read(tmp_path: Path) -> None:
    parts = [b'{"x":"a"}\n', b'{"x":"b"}\n']

    assert one(tmp_path, "json", b"".join(map(gzip.compress, parts)), S) == ["a", "b"]
    assert one(tmp_path, "json", b"".join(map(bz2.compress, parts)), S) == ["a", "b"]


@pytest.mark.parametrize(("head", "name"), [(b"PK\x03\x04....", "zip"), (b"\xfd7zXZ\x00....", "xz")])
def test_other_compressions_are_refused_by_name(tmp_path: Path, head: bytes, name: str) -> None:
    assert f"compressed by {name}" in one(tmp_path, "csv", head, S)


# --- Types of Parquet, ORC and Avro -----------------------------------------------------------------------------------

A = pa.struct([("a", pa.int64())])


@pytest.mark.parametrize(
    ("type_", "values", "found"),
    [
        (TimestampType(), pa.array([MICROS * 1000], pa.timestamp("ns", "UTC")), MOMENT),
        (BinaryType(), pa.array([b"0123"], pa.binary(4)), b"0123"),
        (ArrayType(BinaryType()), pa.array([[b"0123"]], pa.list_(pa.binary(4))), [b"0123"]),
        (BinaryType(), pa.array([b"0123456789abcdef"], pa.uuid()), b"0123456789abcdef"),
        (S, pa.array(["{}"], pa.json_()), "{}"),
        (ArrayType(S), pa.ListArray.from_arrays([0, 1], pa.array(["{}"], pa.json_())), ["{}"]),
        (ArrayType(FloatType()), pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)), [1.0, 2.0]),
        (ArrayType(FloatType()), pa.array([None, [1.0, 2.0]], pa.list_(pa.float32(), 2)), [None, [1.0, 2.0]]),
        (ArrayType(L), pa.array([[1], None, [2, 3]], pa.list_view(pa.int64())), [[1], None, [2, 3]]),
        (DecimalType(20, 0), pa.array([2**64 - 1], pa.uint64()), Decimal(2**64 - 1)),
        (ArrayType(DecimalType(38, 2)), pa.array([[7]], pa.list_(pa.uint64())), [Decimal("7.00")]),
        (INNER, pa.array([{"b": "t", "a": 1}], pa.struct([("b", pa.string()), ("a", pa.int64())])), {"a": 1, "b": "t"}),
        (
            ArrayType(INNER),
            pa.array([[{"b": "t", "a": 1}], None, []], pa.list_(pa.struct([("b", pa.string()), ("a", pa.int32())]))),
            [[{"a": 1, "b": "t"}], None, []],
        ),
        (
            MapType(S, INNER),
            pa.array(
                [None, [], [("k", {"b": "t", "a": 1})], [("n", None)]],
                pa.map_(pa.string(), pa.struct([("b", pa.string()), ("a", pa.int64())])),
            ),
            [None, [], [("k", {"a": 1, "b": "t"})], [("n", None)]],
        ),
        (S, pa.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
        (StructType([StructField("a", L, False)]), pa.array([None, {"a": 1}], A), [None, {"a": 1}]),
        (ArrayType(L, False), pa.array([None, [1]]), [None, [1]]),
        (S, pa.array(["z" * 15 + "\ud7ff" + "tail"]), "z" * 15 + "\ud7ff" + "tail"),
    ],
)
def test_parquet_that_holds_the_same_values_in_another_form_is_read(
    tmp_path: Path, type_: DataType, values: pa.Array, found: Any
) -> None:
    assert one(tmp_path, "parquet", parquet(values), type_) == found


def far(days: int) -> pa.Array:
    return pa.array([0, days], pa.int32()).cast(pa.date32())


@pytest.mark.parametrize(
    ("type_", "values", "said"),
    [
        (
            TimestampType(),
            pa.array([0, 1], pa.timestamp("ns", "UTC")),
            "row 1: column x is timestamp[ns, tz=UTC] and holds a value that cannot",
        ),
        (
            ArrayType(TimestampNTZType()),
            pa.array([[0], [0, 1]], pa.list_(pa.timestamp("ns", "UTC"))).cast(pa.list_(pa.timestamp("ns"))),
            "row 1: column x.element",
        ),
        (S, raw_text(b"a", b"caf\xe9"), "row 1: column x holds text that is not UTF-8"),
        (
            StructType([StructField("a", S)]),
            pa.StructArray.from_arrays([raw_text(b"a", b"\xff")], ["a"]),
            "row 1: column x.a holds text that is not UTF-8",
        ),
        (
            MapType(S, L),
            pa.MapArray.from_arrays([0, 1, 2], raw_text(b"a", b"\xff"), pa.array([1, 2])),
            "row 1: column x.key holds text that is not UTF-8",
        ),
        (
            ArrayType(S),
            pa.ListArray.from_arrays(
                [0, 0, 1], pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), raw_text(b"\xff"))
            ),
            "row 1: column x.element holds text that is not UTF-8",
        ),
        (
            StructType([StructField("a", L, False)]),
            pa.array([{"a": 1}, {"a": None}], A),
            "row 1: column x.a holds a null",
        ),
        (ArrayType(L, False), pa.array([[1], [None]]), "row 1: column x.element holds a null"),
        (
            MapType(S, L, False),
            pa.array([[("a", None)]], pa.map_(pa.string(), pa.int64())),
            "row 0: column x.value holds a null",
        ),
        (DateType(), far(3_700_000), "row 1: column x holds a date32[day] outside the years 1 to 9999"),
        (
            StructType([StructField("d", DateType())]),
            pa.StructArray.from_arrays([far(-800_000)], ["d"]),
            "row 1: column x.d holds a date32[day] outside",
        ),
        (
            ArrayType(DateType()),
            pa.ListArray.from_arrays([0, 1, 2], far(3_700_000)),
            "row 1: column x.element holds a date32[day] outside",
        ),
        (INNER, pa.array([{"a": 1, "c": 2}]), "column x.c is only in the file"),
        (INNER, pa.array([{"a": 1}]), "column x.b is missing"),
        (ArrayType(INNER), pa.array([[{"a": "s", "b": "t"}]]), "column x.element.a is string, expected int64"),
        (L, pa.array([1], pa.uint64()), "column x is uint64, expected int64"),
        (
            TimestampType(),
            pa.array([1], pa.timestamp("us")),
            "column x is timestamp[us], expected timestamp[us, tz=UTC]",
        ),
    ],
)
def test_parquet_values_that_the_column_cannot_hold_are_refused(
    tmp_path: Path, type_: DataType, values: pa.Array, said: str
) -> None:
    assert said in one(tmp_path, "parquet", parquet(values), type_)


def test_decimals_with_more_digits_than_they_declare_are_refused(tmp_path: Path) -> None:
    raw = b"".join(n.to_bytes(16, "little") for n in (1, 1_234_567_890))
    values = pa.Array.from_buffers(pa.decimal128(9, 2), 2, [None, pa.py_buffer(raw)])
    nested = pa.StructArray.from_arrays([values], ["a"])

    found = one(tmp_path, "parquet", parquet(values), DecimalType(9, 2))
    within = one(tmp_path, "parquet", parquet(nested), StructType([StructField("a", DecimalType(9, 2))]))

    assert found == "row 1: column x holds a number with too many digits, expected decimal(9,2)"
    assert within == "row 1: column x.a holds a number with too many digits, expected decimal(9,2)"


@pytest.mark.parametrize("nested", [False, True])
def test_int96_is_an_instant_and_must_be_exact(tmp_path: Path, nested: bool) -> None:
    def found(type_: DataType, *nanos: int) -> Any:
        values = pa.array(nanos, pa.timestamp("ns"))
        if nested:
            values, type_ = pa.StructArray.from_arrays([values], ["a"]), StructType([StructField("a", type_)])
        value = one(tmp_path, "parquet", parquet(values, use_deprecated_int96_timestamps=True), type_)
        return value["a"] if isinstance(value, dict) else value

    at = "x.a" if nested else "x"
    assert found(TimestampType(), MICROS * 1000) == MOMENT
    assert found(TimestampNTZType(), MICROS * 1000) == MOMENT.replace(tzinfo=None)
    assert found(TimestampType(), -(10**18)) == datetime(1938, 4, 24, 22, 13, 20, tzinfo=UTC)
    assert found(TimestampType(), 0, 1) == (
        f"row 1: column {at} holds a timestamp with nanoseconds, which cannot be converted to microseconds without loss"
    )


def test_int96_beyond_the_range_of_nanoseconds_is_read_and_beyond_the_calendar_refused(tmp_path: Path) -> None:
    """Arrow lets the number overflow."""
    micros = int(datetime(9999, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
    content = parquet(
        pa.array([micros], pa.timestamp("us")),
        use_deprecated_int96_timestamps=True,
        use_dictionary=False,
        compression="none",
    )
    day = (micros // 86_400_000_000 + 2_440_588).to_bytes(4, "little")
    assert content.count(day)

    assert one(tmp_path, "parquet", content, TimestampType()) == datetime(9999, 1, 1, tzinfo=UTC)
    for julian in (2**31 - 1, 5_400_000):
        broken = content.replace(day, julian.to_bytes(4, "little"))
        assert "row 0: column x holds a timestamp outside the years 1 to 9999" in one(
            tmp_path, "parquet", broken, TimestampType()
        )


def test_a_page_that_does_not_match_its_checksum_is_refused(tmp_path: Path) -> None:
    content = bytearray(
        parquet(pa.array(range(1000, 2000)), use_dictionary=False, compression="none", write_page_checksum=True)
    )
    content[content.index((1500).to_bytes(8, "little"))] ^= 0xFF

    assert "checksum" in one(tmp_path, "parquet", bytes(content), L)


# --- Calendars --------------------------------------------------------------------------------------------------------

OLD, FIRST = date(1582, 10, 14), date(1582, 10, 15)
SPARK_2, SPARK_3 = {"org.apache.spark.version": "2.4.8"}, {"org.apache.spark.version": "3.5.1"}


@pytest.mark.parametrize(
    ("metadata", "writer"),
    [
        (SPARK_2, "Spark 2.4"),
        ({**SPARK_3, "org.apache.spark.legacyDateTime": ""}, "Spark 3.5 with datetimeRebaseModeInWrite LEGACY"),
        ({"org.apache.spark.sql.parquet.row.metadata": "{}"}, "Spark before 2.4.6"),
        ({"writer.date.proleptic": "false", "writer.time.zone": "UTC"}, "Hive"),
        (SPARK_3, None),
        ({**SPARK_3, "org.apache.spark.legacyINT96": ""}, None),
        ({"writer.date.proleptic": "true"}, None),
        ({}, None),
    ],
)
def test_days_of_the_hybrid_calendar_are_refused_by_row_and_writer(
    tmp_path: Path, metadata: dict[str, str], writer: str | None
) -> None:
    def found(*days: date) -> Any:
        values = pa.ListArray.from_arrays(range(len(days) + 1), pa.array(days))
        table = pa.table({"x": values}).replace_schema_metadata(metadata)
        out = io.BytesIO()
        pq.write_table(table, out)
        return one(tmp_path, "parquet", out.getvalue(), ArrayType(DateType()))

    assert found(FIRST) == [FIRST]
    if writer is None:
        assert found(FIRST, OLD) == [[FIRST], [OLD]]
    else:
        assert found(FIRST, OLD).startswith(
            f"row 1: column x.element holds a day before 1582-10-15, and the file is of {writer}"
        )


@pytest.mark.parametrize(
    ("zone", "year", "int96", "refused"),
    [
        ("UTC", 1850, False, False),
        ("UTC", 1500, False, True),
        ("Europe/Paris", 1850, False, True),
        ("Europe/Paris", 1901, False, False),
        ("UTC", 1850, True, False),
        ("Europe/Paris", 1850, True, True),
        ("Europe/Paris", 1901, True, False),
    ],
)
def test_timestamps_of_the_hybrid_calendar_are_refused_by_the_zone_of_their_writer(
    tmp_path: Path, zone: str, year: int, int96: bool, refused: bool
) -> None:
    moment = datetime(year, 1, 1, tzinfo=UTC)
    key = "org.apache.spark.legacyINT96" if int96 else "org.apache.spark.legacyDateTime"
    values = pa.array([moment], pa.timestamp("us") if int96 else pa.timestamp("us", "UTC"))
    table = pa.table({"x": values}).replace_schema_metadata({**SPARK_3, key: "", "org.apache.spark.timeZone": zone})
    out = io.BytesIO()
    pq.write_table(table, out, use_deprecated_int96_timestamps=int96)

    found = one(tmp_path, "parquet", out.getvalue(), TimestampType())

    assert ("row 0: column x holds a day before" in found) if refused else found == moment


def test_orc_that_does_not_say_the_proleptic_calendar_may_not_hold_old_days(tmp_path: Path) -> None:
    """ORC's Java reader takes the days of such a file for those of the hybrid calendar."""

    def written(day: date) -> bytes:
        out = io.BytesIO()
        orc.write_table(pa.table({"x": pa.array([day])}), out)
        return out.getvalue()

    assert one(tmp_path, "orc", written(FIRST), DateType()) == FIRST
    assert "row 0: column x holds a day before 1582-10-15" in one(tmp_path, "orc", written(OLD), DateType())


def test_the_calendar_of_orc_is_read_from_its_footer() -> None:
    from lethe.ingest.exact_values import calendar_of_orc

    def tail(*fields: bytes) -> bytes:
        footer = b"\x08\x03" + b"".join(fields)
        return b"\x0a\x02\x08\x01" + b"\x12" + bytes([len(footer)]) + footer

    assert calendar_of_orc(tail(b"\x58\x02")) is None
    assert calendar_of_orc(tail(b"\x58\x01")) is not None
    assert calendar_of_orc(tail()) is not None


# --- Avro -------------------------------------------------------------------------------------------------------------


def avro(type_: Any, *values: Any, codec: str = "null", meta: Mapping[str, str] | None = None) -> bytes:
    schema = {"type": "record", "name": "r", "fields": [{"name": "x", "type": type_}]}
    out = io.BytesIO()
    fastavro.writer(out, schema, [{"x": v} for v in values], codec=codec, metadata=dict(meta or {}))
    return out.getvalue()


def with_codec(plain: bytes, codec: str) -> bytes:
    """An Avro file, compressed again block by block."""
    stream = io.BytesIO(plain)
    header: Any = fastavro.schemaless_reader(stream, _HEADER, None)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, _HEADER, {**header, "meta": {**header["meta"], "avro.codec": codec.encode()}})
    while (count := _number(stream)) is not None:
        content = stream.read(_number(stream) or 0)
        assert stream.read(16) == header["sync"]
        made = (
            packed("zstd", content)
            if codec == "zstandard"
            else pa.compress(content, "snappy", asbytes=True) + zlib.crc32(content).to_bytes(4, "big")
        )
        fastavro.schemaless_writer(out, "long", count)
        fastavro.schemaless_writer(out, "long", len(made))
        out.write(made + header["sync"])
    return out.getvalue()


def _number(stream: io.BytesIO) -> int | None:
    try:
        found: Any = fastavro.schemaless_reader(stream, "long", None)
    except EOFError:
        return None
    return int(found)


@pytest.mark.parametrize("codec", ["deflate", "bzip2", "xz"])
def test_avro_of_each_codec_of_python_is_read(tmp_path: Path, codec: str) -> None:
    assert one(tmp_path, "avro", avro("long", *range(1000), codec=codec), L) == list(range(1000))


@pytest.mark.parametrize("codec", ["snappy", "zstandard"])
def test_avro_of_each_codec_of_arrow_is_read_and_damage_found(tmp_path: Path, codec: str) -> None:
    values = [f"text {n}" * 20 for n in range(5000)]
    content = with_codec(avro("string", *values), codec)

    assert one(tmp_path, "avro", content, S) == values
    assert "not readable as Avro" in one(tmp_path, "avro", content[:-1], S)
    damaged = bytearray(content)
    damaged[-24] ^= 0xFF
    assert "not readable as Avro" in one(tmp_path, "avro", bytes(damaged), S)


def test_an_unknown_codec_of_avro_is_named(tmp_path: Path) -> None:
    plain = avro("long", 1)

    assert "its codec lz99 is not supported" in one(tmp_path, "avro", plain.replace(b"\x08null", b"\x08lz99"), L)


UUID = {"type": "string", "logicalType": "uuid"}
DEC = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}


@pytest.mark.parametrize(
    ("avro_type", "type_", "value", "found"),
    [
        ({"type": "enum", "name": "E", "symbols": ["a", "b"]}, S, "b", "b"),
        ({"type": "fixed", "name": "F", "size": 3}, BinaryType(), b"abc", b"abc"),
        (
            {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"},
            BinaryType(),
            b"0123456789ab",
            b"0123456789ab",
        ),
        (UUID, S, "0f4b5f0a-0000-4000-8000-000000000001", "0f4b5f0a-0000-4000-8000-000000000001"),
        (
            {"type": "array", "items": UUID},
            ArrayType(S),
            ["0f4b5f0a-0000-4000-8000-000000000001"],
            ["0f4b5f0a-0000-4000-8000-000000000001"],
        ),
        (DEC, DecimalType(4, 2), Decimal("-12.34"), Decimal("-12.34")),
        (
            ["null", {"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2}],
            DecimalType(9, 2),
            Decimal("1.50"),
            Decimal("1.50"),
        ),
        (
            {"type": "map", "values": DEC},
            MapType(S, DecimalType(4, 2)),
            {"k": Decimal("0.01")},
            [("k", Decimal("0.01"))],
        ),
        ({"type": "long", "logicalType": "timestamp-millis"}, TimestampType(), MOMENT, MOMENT),
        (
            {"type": "array", "items": ["null", {"type": "int", "logicalType": "date"}]},
            ArrayType(DateType()),
            [None, FIRST],
            [None, FIRST],
        ),
    ],
)
def test_avro_values_are_read_exactly(tmp_path: Path, avro_type: Any, type_: DataType, value: Any, found: Any) -> None:
    assert one(tmp_path, "avro", avro(avro_type, value), type_) == found


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "inner", "fields": [{"name": n, "type": t} for n, t in fields]}


@pytest.mark.parametrize(
    ("avro_type", "type_", "value", "said"),
    [
        (record(), INNER, {}, "column x is an Avro record without fields"),
        (
            {"type": "array", "items": record()},
            ArrayType(INNER),
            [{}],
            "column x.element is an Avro record without fields",
        ),
        (["int", "string"], L, 1, "column x is a union of several Avro types"),
        (record(("a", ["long", "string", "null"])), INNER, {"a": 1}, "column x.a is a union of several Avro types"),
        (
            {"type": "long", "logicalType": "timestamp-micros"},
            TimestampType(),
            4 * 10**17,
            "row 0: column x holds a timestamp[us, tz=UTC] outside",
        ),
        (
            {"type": "array", "items": {"type": "int", "logicalType": "date"}},
            ArrayType(DateType()),
            [3_700_000],
            "row 0: column x.element holds a date32[day] outside",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 50},
            DecimalType(38, 0),
            b"\x01",
            "column x is decimal(50,0), expected at most 38 digits",
        ),
    ],
)
def test_avro_that_the_column_cannot_hold_is_refused(
    tmp_path: Path, avro_type: Any, type_: DataType, value: Any, said: str
) -> None:
    assert said in one(tmp_path, "avro", avro(avro_type, value), type_)


def relabelled(content: bytes, schema: Any) -> bytes:
    """The same records with another schema, which has the same encoding."""
    stream = io.BytesIO(content)
    header: Any = fastavro.schemaless_reader(stream, _HEADER, None)
    out = io.BytesIO()
    meta = {
        **header["meta"],
        "avro.schema": json.dumps({"type": "record", "name": "r", "fields": [{"name": "x", "type": schema}]}).encode(),
    }
    fastavro.schemaless_writer(out, _HEADER, {**header, "meta": meta})
    return out.getvalue() + stream.read()


def test_an_avro_decimal_with_more_digits_than_declared_is_refused_and_not_rounded(tmp_path: Path) -> None:
    content = relabelled(avro("bytes", b"\x01", (123_456).to_bytes(3, "big")), DEC)
    nested = relabelled(
        avro({"type": "array", "items": "bytes"}, [(123_456).to_bytes(3, "big")]), {"type": "array", "items": DEC}
    )

    assert (
        one(tmp_path, "avro", content, DecimalType(4, 2))
        == "row 1: column x holds a number with too many digits, expected decimal(4,2)"
    )
    assert "row 0: column x.element holds a number" in one(tmp_path, "avro", nested, ArrayType(DecimalType(4, 2)))


@pytest.mark.parametrize(
    ("avro_type", "as_bytes", "value", "type_", "path"),
    [
        ("string", "bytes", b"\xff", S, "x"),
        (
            {"type": "array", "items": "string"},
            {"type": "array", "items": "bytes"},
            [b"a", b"\xff"],
            ArrayType(S),
            "x.element",
        ),
        (record(("a", "string")), record(("a", "bytes")), {"a": b"\xff"}, StructType([StructField("a", S)]), "x.a"),
    ],
)
def test_avro_text_that_is_not_utf_8_is_refused_by_its_path(
    tmp_path: Path, avro_type: Any, as_bytes: Any, value: Any, type_: DataType, path: str
) -> None:
    found = one(tmp_path, "avro", relabelled(avro(as_bytes, value), avro_type), type_)

    assert found == f"row 0: column {path} holds text that is not UTF-8"


def test_avro_of_spark_with_the_hybrid_calendar_is_refused(tmp_path: Path) -> None:
    content = avro({"type": "int", "logicalType": "date"}, OLD, meta=SPARK_2)

    assert "row 0: column x holds a day before 1582-10-15, and the file is of Spark 2.4" in one(
        tmp_path, "avro", content, DateType()
    )


# --- Folders and partitions -------------------------------------------------------------------------------------------

TABLE = columns(id="long", dt="date", country="string")


def in_folder(root: Path, path: str, format_name: str, content: bytes) -> tuple[Sequence[Any], Sequence[Any]]:
    from lethe.ingest.buffer_store import FileTask

    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    uri = f"file://{file}"
    task = FileTask("A", uri, len(content), folders=named_folders(uri, f"file://{root}"))
    (task,) = FileTask.decode(FileTask.encode([task]))
    return read_tasks([task], format_name, TABLE)


def row(table: Mapping[str, Any]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({k: pa.array([v], pa.date32() if k == "dt" else None) for k, v in table.items()}), out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("path", "format_name", "content"),
    [
        ("dt=2024-02-03/country=a%2Fb/f", "parquet", row({"id": 1})),
        ("dt=2024-02-03/country=a%2Fb/f", "json", b'{"id":1}\n'),
        ("dt=2024-02-03/country=a%2Fb/f", "csv", b"id\n1\n"),
        ("dt=2024-02-03/x/f", "parquet", row({"id": 1, "country": "a/b"})),
        ("dt=2024-02-03/country=a%2Fb/batch_id=A/f", "parquet", row({"id": 1, "country": "a/b"})),
        ("dt=2024-02-03/f", "json", b'{"id":1,"dt":"2024-02-03","country":"a/b"}\n'),
    ],
)
def test_folders_of_a_batch_fill_the_columns_that_they_name(
    tmp_path: Path, path: str, format_name: str, content: bytes
) -> None:
    rows, refused = in_folder(tmp_path, path, format_name, content)

    assert refused == []
    assert rows == [{"id": 1, "dt": date(2024, 2, 3), "country": "a/b", "batch_id": "A"}]


def test_the_folder_of_nulls_is_null(tmp_path: Path) -> None:
    rows, _ = in_folder(tmp_path, "dt=__HIVE_DEFAULT_PARTITION__/f", "parquet", row({"id": 1, "country": "x"}))

    assert rows[0]["dt"] is None


@pytest.mark.parametrize(
    ("path", "content", "said"),
    [
        (
            "dt=2024-02-03/f",
            row({"id": 1, "country": "x", "dt": OLD}),
            "row 0: column dt holds another value than its folder names",
        ),
        (
            "dt=2024-02-03/f",
            row({"id": 1, "country": "x", "dt": None}),
            "row 0: column dt holds another value than its folder names",
        ),
        (
            "dt=2024-02-31/f",
            row({"id": 1, "country": "x"}),
            "its folder names a value of column dt that is not of type date32[day]",
        ),
        (
            "id=0x1F/f",
            row({"country": "x", "dt": OLD}),
            "its folder names a value of column id that is not of type int64",
        ),
        (
            "hour=3/f",
            row({"id": 1, "country": "x", "dt": OLD}),
            "its folder names the column hour, which the table does not have",
        ),
        ("batch_id=B/f", row({"id": 1, "country": "x", "dt": OLD}), "its folder names another batch_id"),
    ],
)
def test_folders_that_contradict_the_file_or_the_table_are_refused(
    tmp_path: Path, path: str, content: bytes, said: str
) -> None:
    rows, [(_, message)] = in_folder(tmp_path, path, "parquet", content)

    assert rows == []
    assert said in message


@pytest.mark.parametrize("value", ["x" * 300, "\u00e9" * 100, "x" * 248])
def test_a_partition_value_too_long_for_a_folder_is_refused_with_its_length(tmp_path: Path, value: str) -> None:
    limits = (("x", NAME_BYTES - len("x=")),)
    accepted = "x" * (NAME_BYTES - len("x="))

    found = one(
        tmp_path,
        "json",
        json.dumps({"x": "a"}).encode() + b"\n" + json.dumps({"x": value}).encode(),
        S,
        path_columns=limits,
    )

    if len(value) == 248:
        assert found == ["a", value]
    else:
        assert found.startswith(f"row 1: column x holds a value of {len(value)} characters")
    assert one(tmp_path, "json", json.dumps({"x": accepted}).encode(), S, path_columns=limits) == accepted
    of_batches = (("batch_id", NAME_BYTES - len("batch_id=")),)
    assert one(tmp_path, "json", json.dumps({"x": "a"}).encode(), S, path_columns=of_batches) == "a"


REQUIRED = pa.struct(
    [
        pa.field("a", pa.int64(), nullable=False),
        pa.field("s", pa.string(), nullable=False),
        pa.field(
            "n",
            pa.struct([pa.field("l", pa.list_(pa.field("element", pa.int64(), nullable=False)), nullable=False)]),
            nullable=False,
        ),
    ]
)
WHOLE = {"a": 1, "s": "x", "n": {"l": [3, 4]}}


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (REQUIRED, [None, WHOLE, None]),
        (pa.list_(pa.field("element", REQUIRED)), [[None], None, [WHOLE, None]]),
        (pa.map_(pa.string(), pa.field("value", REQUIRED)), [[("k", None)], None, [("q", WHOLE)]]),
    ],
)
def test_a_null_struct_with_required_fields_can_be_written(type_: pa.DataType, values: list[Any]) -> None:
    from lethe.ingest.exact_values import writable

    whole = pa.array(values, type_)
    for array in (whole, whole.slice(1)):
        out = io.BytesIO()
        pq.write_table(pa.Table.from_arrays([writable(array, type_)], schema=pa.schema([("x", type_)])), out)

        assert pq.read_table(pa.BufferReader(out.getvalue())).column("x").to_pylist() == array.to_pylist()
