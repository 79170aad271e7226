"""Each value of Parquet, ORC and Avro is stored exactly, or its file is refused with the row and the path of the column."""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from lethe.ingest.avro_format import _HEADER
from lethe.ingest.buffer_store import BadFile
from lethe.ingest.exact_values import allow_days, allow_microseconds
from lethe.ingest.schema_fit import named_folders, values_of
from lethe.uri import NAME_BYTES
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    FloatType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tests.support.buffer_formats import columns, read_one, read_tasks, with_codec

S, L = StringType(), LongType()
INNER = StructType([StructField("a", L), StructField("b", S)])
MOMENT = datetime(2024, 5, 1, 12, tzinfo=UTC)
MICROS = int(MOMENT.timestamp()) * 1_000_000


def parquet(values: pa.Array, metadata: Mapping[str, str] | None = None, **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"x": values}).replace_schema_metadata(metadata), out, **options)
    return out.getvalue()


def raw_text(*values: bytes) -> pa.Array:
    """Texts of any bytes, UTF-8 or not."""
    return pa.array(values, pa.binary()).view(pa.string())


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
    assert read_one(tmp_path, "parquet", parquet(values), type_) == found


def far(days: int) -> pa.Array:
    return pa.array([0, days], pa.int32()).cast(pa.date32())


def long_decimals() -> pa.Array:
    """The second one has more digits than the type declares."""
    raw = b"".join(n.to_bytes(16, "little") for n in (1, 1_234_567_890))
    return pa.Array.from_buffers(pa.decimal128(9, 2), 2, [None, pa.py_buffer(raw)])


@pytest.mark.parametrize(
    ("type_", "values", "said"),
    [
        (TimestampType(), pa.array([0, 1], pa.timestamp("ns", "UTC")), "row 1: column x is timestamp[ns, tz=UTC] and"),
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
        (
            TimestampType(),
            pa.array([10**18], pa.timestamp("us", "UTC")),
            "holds a timestamp[us, tz=UTC] outside the years",
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
        (
            DecimalType(9, 2),
            long_decimals(),
            "row 1: column x holds a number with too many digits, expected decimal(9,2)",
        ),
        (
            StructType([StructField("a", DecimalType(9, 2))]),
            pa.StructArray.from_arrays([long_decimals()], ["a"]),
            "row 1: column x.a holds a number with too many digits, expected decimal(9,2)",
        ),
        (INNER, pa.array([{"a": 1, "c": 2}]), "column x.c is only in the file"),
        (INNER, pa.array([{"a": 1}]), "column x.b is missing"),
        (ArrayType(INNER), pa.array([[{"a": "s", "b": "t"}]]), "column x.element.a is string, expected int64"),
        (L, pa.array([1], pa.uint64()), "column x is uint64, expected int64"),
        (TimestampType(), pa.array([1], pa.timestamp("us")), "column x is timestamp[us], expected timestamp[us,"),
    ],
)
def test_parquet_values_that_the_column_cannot_hold_are_refused(
    tmp_path: Path, type_: DataType, values: pa.Array, said: str
) -> None:
    assert said in read_one(tmp_path, "parquet", parquet(values), type_)


@pytest.mark.parametrize("nested", [False, True])
def test_int96_is_an_instant_and_must_be_exact(tmp_path: Path, nested: bool) -> None:
    def found(type_: DataType, *nanos: int) -> Any:
        values = pa.array(nanos, pa.timestamp("ns"))
        if nested:
            values, type_ = pa.StructArray.from_arrays([values], ["a"]), StructType([StructField("a", type_)])
        value = read_one(tmp_path, "parquet", parquet(values, use_deprecated_int96_timestamps=True), type_)
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

    assert read_one(tmp_path, "parquet", content, TimestampType()) == datetime(9999, 1, 1, tzinfo=UTC)
    for julian in (2**31 - 1, 5_400_000):
        broken = content.replace(day, julian.to_bytes(4, "little"))
        assert "row 0: column x holds a timestamp outside the years 1 to 9999" in read_one(
            tmp_path, "parquet", broken, TimestampType()
        )


def test_a_page_that_does_not_match_its_checksum_is_refused(tmp_path: Path) -> None:
    content = bytearray(
        parquet(pa.array(range(1000, 2000)), use_dictionary=False, compression="none", write_page_checksum=True)
    )
    content[content.index((1500).to_bytes(8, "little"))] ^= 0xFF

    assert "checksum" in read_one(tmp_path, "parquet", bytes(content), L)


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
        return read_one(tmp_path, "parquet", parquet(values, metadata), ArrayType(DateType()))

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
    metadata = {**SPARK_3, key: "", "org.apache.spark.timeZone": zone}
    content = parquet(values, metadata, use_deprecated_int96_timestamps=int96)

    found = read_one(tmp_path, "parquet", content, TimestampType())

    assert ("row 0: column x holds a day before" in found) if refused else found == moment


def test_avro_and_orc_that_do_not_say_the_proleptic_calendar_may_not_hold_old_days(tmp_path: Path) -> None:
    """ORC's Java reader takes the days of such a file for those of the hybrid calendar."""

    def written(day: date) -> bytes:
        out = io.BytesIO()
        orc.write_table(pa.table({"x": pa.array([day])}), out)
        return out.getvalue()

    assert read_one(tmp_path, "orc", written(FIRST), DateType()) == FIRST
    assert "row 0: column x holds a day before 1582-10-15" in read_one(tmp_path, "orc", written(OLD), DateType())
    of_spark = avro({"type": "int", "logicalType": "date"}, OLD, meta=SPARK_2)
    assert "and the file is of Spark 2.4" in read_one(tmp_path, "avro", of_spark, DateType())


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


@pytest.mark.parametrize("codec", ["deflate", "bzip2", "xz"])
def test_avro_of_each_codec_of_python_is_read(tmp_path: Path, codec: str) -> None:
    assert read_one(tmp_path, "avro", avro("long", *range(1000), codec=codec), L) == list(range(1000))


@pytest.mark.parametrize("codec", ["snappy", "zstandard"])
def test_avro_of_each_codec_of_arrow_is_read_and_damage_found(tmp_path: Path, codec: str) -> None:
    values = [f"text {n}" * 20 for n in range(5000)]
    content = with_codec(avro("string", *values), codec)

    assert read_one(tmp_path, "avro", content, S) == values
    assert "not readable as Avro" in read_one(tmp_path, "avro", content[:-1], S)
    damaged = bytearray(content)
    damaged[-24] ^= 0xFF
    assert "not readable as Avro" in read_one(tmp_path, "avro", bytes(damaged), S)


def test_an_unknown_codec_of_avro_is_named(tmp_path: Path) -> None:
    plain = avro("long", 1)

    assert "its codec lz99 is not supported" in read_one(tmp_path, "avro", plain.replace(b"\x08null", b"\x08lz99"), L)


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
    assert read_one(tmp_path, "avro", avro(avro_type, value), type_) == found


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "inner", "fields": [{"name": n, "type": t} for n, t in fields]}


@pytest.mark.parametrize(
    ("avro_type", "type_", "value", "said"),
    [
        (record(), INNER, {}, "column x is an Avro record without fields"),
        ({"type": "array", "items": record()}, ArrayType(INNER), [{}], "column x.element is an Avro record without"),
        (["int", "string"], L, 1, "column x is a union of several Avro types"),
        (record(("a", ["long", "string", "null"])), INNER, {"a": 1}, "column x.a is a union of several Avro types"),
        ({"type": "enum", "name": "E", "symbols": ["a"]}, L, "a", "column x is string, expected int64"),
        ({"type": "fixed", "name": "F", "size": 2}, L, b"ab", "column x is fixed_size_binary[2], expected int64"),
        ({"type": "map", "values": "int"}, L, {}, "column x is a map, expected int64"),
        (record(("next", ["null", "inner"])), L, {"next": None}, "column x.next has a recursive Avro type"),
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
    assert said in read_one(tmp_path, "avro", avro(avro_type, value), type_)


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
        read_one(tmp_path, "avro", content, DecimalType(4, 2))
        == "row 1: column x holds a number with too many digits, expected decimal(4,2)"
    )
    assert "row 0: column x.element holds a number" in read_one(tmp_path, "avro", nested, ArrayType(DecimalType(4, 2)))


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
    found = read_one(tmp_path, "avro", relabelled(avro(as_bytes, value), avro_type), type_)

    assert found == f"row 0: column {path} holds text that is not UTF-8"


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
        ("dt=2024-02-03/f", row({"id": 1, "country": "x", "dt": OLD}), "row 0: column dt holds another value than its"),
        ("dt=2024-02-03/f", row({"id": 1, "country": "x", "dt": None}), "row 0: column dt holds another value than"),
        ("dt=2024-02-31/f", row({"id": 1, "country": "x"}), "its folder names a value of column dt that is not of"),
        ("id=0x1F/f", row({"country": "x", "dt": OLD}), "its folder names a value of column id that is not of type"),
        ("hour=3/f", row({"id": 1, "country": "x", "dt": OLD}), "its folder names the column hour, which the table"),
        ("batch_id=B/f", row({"id": 1, "country": "x", "dt": OLD}), "its folder names another batch_id"),
        ("country=K%F6ln/f", row({"id": 1, "dt": OLD}), "its folder country=… is not percent-encoded UTF-8"),
    ],
)
def test_folders_that_contradict_the_file_or_the_table_are_refused(
    tmp_path: Path, path: str, content: bytes, said: str
) -> None:
    rows, [(_, message)] = in_folder(tmp_path, path, "parquet", content)

    assert rows == []
    assert said in message


@pytest.mark.parametrize("number", ["1e-41", "1e-999999999"])
def test_a_folder_names_no_number_with_more_digits_than_any_decimal(number: str) -> None:
    with pytest.raises(BadFile, match="its folder names a value of column x that is not of type"):
        values_of(f"x={number}", pa.schema([("x", pa.decimal128(38, 2))]), "batch_id", "A")


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_a_folder_names_no_number_that_is_too_large_for_its_column(kind: pa.DataType) -> None:
    """Arrow reads it as infinite."""
    table = pa.schema([("x", kind)])

    with pytest.raises(BadFile, match="its folder names a value of column x that is not of type"):
        values_of("x=-1e400", table, "batch_id", "A")
    assert values_of("x=-1e30", table, "batch_id", "A")["x"].as_py() == pytest.approx(-1e30)
    assert values_of("x=-Infinity", table, "batch_id", "A")["x"].as_py() == float("-inf")


@pytest.mark.parametrize("value", ["x" * 300, "\u00e9" * 100, "x" * 248])
def test_a_partition_value_too_long_for_a_folder_is_refused_with_its_length(tmp_path: Path, value: str) -> None:
    limits = ((("x",), NAME_BYTES - len("x=")),)
    accepted = "x" * (NAME_BYTES - len("x="))

    found = read_one(
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
    assert read_one(tmp_path, "json", json.dumps({"x": accepted}).encode(), S, path_columns=limits) == accepted
    of_batches = ((("batch_id",), NAME_BYTES - len("batch_id=")),)
    assert read_one(tmp_path, "json", json.dumps({"x": "a"}).encode(), S, path_columns=of_batches) == "a"


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


@pytest.mark.parametrize(
    ("allow", "unit"),
    [
        pytest.param(allow_days, date.resolution, id="days"),
        pytest.param(allow_microseconds, datetime.resolution, id="us"),
    ],
)
def test_the_ends_are_those_of_pythons_calendar(allow: Callable[[int, int], bool], unit: timedelta) -> None:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    first = (datetime(1, 1, 1, tzinfo=UTC) - epoch) // unit
    last = (datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC) - epoch) // unit

    assert allow(first, last)
    assert not allow(first - 1, last)
    assert not allow(first, last + 1)
