"""What a Parquet footer proves: whether a file can be a data file of a table as it is, and in which partition."""

import json
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.base.errors import InputError
from lethe.ingest.buffer_store import BadFile
from lethe.ingest.registrable import RegisterTarget, RegistrableFile, describe
from lethe.ingest.schema_fit import PROPERTY, field_ids, mapping_to_set
from pyiceberg.io.pyarrow import data_file_statistics_from_parquet_metadata
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

BATCH = NestedField(1, "batch_id", StringType())
LIST = ListType(3, LongType(), element_required=False)
MAP = MapType(3, StringType(), 4, LongType(), value_required=False)
STRUCT = StructType(NestedField(3, "x", LongType()))


def a_target(
    *types: IcebergType,
    partition_by: str = "",
    required: bool = False,
    may_lack: bool = False,
    properties: dict[str, str] | None = None,
) -> RegisterTarget:
    """A table of the batch column and one column `c` of some type, partitioned by a transform of it."""
    fields = [NestedField(2, "c", t, required=required) for t in types]
    parts = [PartitionField(2, 1000, parse_transform(partition_by), "p")] if partition_by else []
    wanted = {"write.metadata.metrics.column.batch_id": "full", **(properties or {})}
    schema, spec = Schema(BATCH, *fields), PartitionSpec(*parts, spec_id=3)
    return RegisterTarget(schema.model_dump_json(), spec.model_dump_json(), wanted, 1, may_lack)


def footer_of(table: pa.Table, **options: Any) -> pq.FileMetaData:
    out = pa.BufferOutputStream()
    pq.write_table(table, out, **options)
    return pq.read_metadata(pa.BufferReader(out.getvalue()))


def judged(
    target: RegisterTarget, table: pa.Table | dict[str, Any], folders: str = "", **options: Any
) -> RegistrableFile:
    """Of a file with these rows; without a batch column in them, of one with the id in every row."""
    rows = table if isinstance(table, pa.Table) else pa.table(table)
    if "batch_id" not in rows.column_names:
        rows = rows.append_column("batch_id", pa.array(["A"] * len(rows), pa.string()))
    return describe(footer_of(rows, **options), "s3://b/f", 1000, "A", target, folders)


def refused(target: RegisterTarget, table: pa.Table | dict[str, Any], **options: Any) -> tuple[str, str]:
    with pytest.raises(BadFile) as raised:
        judged(target, table, **options)
    return raised.value.reason, raised.value.message


def column(values: list[Any], type_: pa.DataType) -> dict[str, pa.Array]:
    return {"c": pa.array(values, type_)}


DAY = date(2020, 2, 3)
NOON = datetime(2020, 2, 3, 12, 30, tzinfo=UTC).replace(tzinfo=None)  # of a wall clock
US, US_UTC = pa.timestamp("us"), pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("wanted", "file"),
    [
        (BooleanType(), pa.bool_()),
        (IntegerType(), pa.int32()),
        (IntegerType(), pa.int8()),
        (LongType(), pa.int64()),
        (LongType(), pa.int32()),
        (FloatType(), pa.float32()),
        (DoubleType(), pa.float64()),
        (DoubleType(), pa.float32()),
        (DateType(), pa.date32()),
        (TimestampType(), US),
        (TimestamptzType(), US_UTC),
        (StringType(), pa.string()),
        (StringType(), pa.large_string()),
        (StringType(), pa.dictionary(pa.int32(), pa.string())),
        (BinaryType(), pa.binary()),
        (DecimalType(9, 2), pa.decimal128(9, 2)),
        (DecimalType(20, 2), pa.decimal128(9, 2)),
        (LIST, pa.list_(pa.int64())),
        (MAP, pa.map_(pa.string(), pa.int64())),
        (STRUCT, pa.struct([("x", pa.int64())])),
    ],
)
def test_a_column_that_iceberg_reads_as_it_is_fits(wanted: IcebergType, file: pa.DataType) -> None:
    assert judged(a_target(wanted), column([None], file)).records == 1


@pytest.mark.parametrize(
    ("wanted", "file", "said"),
    [
        (IntegerType(), pa.int64(), "column c is INT64, expected a signed integer that fits int"),
        (LongType(), pa.uint32(), "isSigned=False"),
        (LongType(), pa.float64(), "column c is DOUBLE"),
        (FloatType(), pa.float64(), "column c is DOUBLE, expected float"),
        (StringType(), pa.binary(), "column c is BYTE_ARRAY, expected string"),
        (BinaryType(), pa.string(), "column c is BYTE_ARRAY STRING, expected binary"),
        (DateType(), pa.int32(), "column c is INT32, expected date"),
        (TimestampType(), US_UTC, "expected a timestamp in microseconds without a zone"),
        (TimestamptzType(), US, "expected a timestamp in microseconds with a zone"),
        (TimestampType(), pa.timestamp("ms"), "timeUnit=milliseconds"),
        (TimestampType(), pa.timestamp("ns"), "timeUnit=nanoseconds"),
        (DecimalType(9, 2), pa.decimal128(12, 2), "precision=12, scale=2"),
        (DecimalType(9, 2), pa.decimal128(9, 3), "expected decimal(9, 2)"),
        (UUIDType(), pa.binary(16), "files with columns of that type cannot be registered"),
        (LIST, pa.list_(pa.string()), "column c.list.element is BYTE_ARRAY STRING"),
        (LIST, pa.int64(), "column c is not a list<long>"),
        (STRUCT, pa.struct([("x", pa.int64()), ("y", pa.int64())]), "1 parts of it are only in the file"),
        (STRUCT, pa.struct([("y", pa.int64())]), "c.x is only in the table"),
    ],
)
def test_a_column_that_iceberg_cannot_read_as_it_is_is_named(wanted: IcebergType, file: pa.DataType, said: str) -> None:
    reason, message = refused(a_target(wanted), column([None], file))

    assert reason == "SchemaMismatch"
    assert said in message


def test_legacy_timestamps_and_lists_with_names_of_their_own_are_refused() -> None:
    """A footer has no bounds of such times. By its name mapping, Iceberg would not find the elements and read nulls."""
    times, lists = column([NOON], US), column([[1]], pa.list_(pa.int64()))

    assert "is INT96, expected" in refused(a_target(TimestampType()), times, use_deprecated_int96_timestamps=True)[1]
    assert "three levels" in refused(a_target(LIST), lists, use_compliant_nested_type=False)[1]


def test_columns_are_those_of_the_table() -> None:
    """An unknown column would come to life, with whatever it holds, once the table gets one of that name."""
    extra = refused(a_target(LongType()), {"c": [1], "d": [1]})
    lacking = refused(a_target(LongType()), {"batch_id": ["A"]})
    required = refused(a_target(LongType(), required=True, may_lack=True), {"batch_id": ["A"]})

    assert extra[1].startswith("the file has a column that the table does not have (number 2 of 3,")
    assert lacking[1] == "column c (long) is missing; with spec.schemaEvolution: AddColumns, Lethe reads it as null"
    assert required[1] == "column c (long) is missing; the table requires it"
    assert judged(a_target(LongType(), may_lack=True), {"batch_id": ["A"]}).records == 1


def test_a_column_with_an_initial_default_must_not_be_missing() -> None:
    """Its rows would have the default, in a partition of null, where a filter on the default does not look."""
    schema = Schema(BATCH, NestedField(2, "c", LongType(), required=False, initial_default=7))
    target = a_target(LongType(), partition_by="bucket[4]", may_lack=True)
    target = replace(target, schema_json=schema.model_dump_json())

    assert "its initial default in every row instead of null" in refused(target, {"batch_id": ["A"]})[1]
    assert judged(target, column([None], pa.int64())).records == 1


def test_the_source_of_a_dropped_partition_field_may_be_dropped_too() -> None:
    """In tables of format version 1, such a field stays in the spec."""
    target = replace(a_target(LongType(), partition_by="void"), schema_json=Schema(BATCH).model_dump_json())

    file = judged(target, {"batch_id": ["A"]})

    assert (file.partition, json.loads(file.document)["partition"]) == ("3/[null]", [None])


def test_nulls_are_refused_where_the_table_has_none() -> None:
    target = a_target(LongType(), required=True)

    assert judged(target, column([1], pa.int64())).records == 1
    assert refused(target, column([1, None], pa.int64()))[1] == "column c holds nulls, but the table requires values"
    assert "does not count them" in refused(target, column([1], pa.int64()), write_statistics=["batch_id"])[1]


def with_ids(batch: int | None, c: int | None) -> pa.Table:
    def metadata(i: int | None) -> dict[bytes, bytes] | None:
        return None if i is None else {b"PARQUET:field_id": str(i).encode()}

    fields = [
        pa.field("batch_id", pa.string(), metadata=metadata(batch)),
        pa.field("c", pa.int64(), metadata=metadata(c)),
    ]
    return pa.table([["A"], [1]], schema=pa.schema(fields))


def test_field_ids_are_those_of_the_table_or_none_at_all() -> None:
    """Iceberg goes by ids as soon as a file has one."""
    target = a_target(LongType())

    assert judged(target, with_ids(1, 2)).records == 1
    assert refused(target, with_ids(1, 7))[1].startswith("column c has the field id 7, but 2 in the table")
    assert refused(target, with_ids(1, None))[1].startswith("column c has no field id, but other columns have")


@pytest.mark.parametrize("ids", [["B"], ["A", "B"], ["A", None], [None], ["AA"]])
def test_a_file_of_other_rows_than_its_batch_s_is_refused(ids: list[str | None]) -> None:
    """A tombstone finds rows by this column alone."""
    assert refused(a_target(), {"batch_id": pa.array(ids, pa.string())})[0] == "BatchIdMismatch"


def test_a_file_that_does_not_prove_its_batch_is_refused() -> None:
    rows = {"c": [1], "batch_id": ["A"]}

    assert refused(a_target(LongType()), rows, write_statistics=["c"])[0] == "StatisticsMissing"
    with pytest.raises(BadFile, match="batch_id, the batch column, is missing"):
        describe(footer_of(pa.table({"c": [1]})), "f", 1, "A", a_target(LongType()))


@pytest.mark.parametrize(
    ("wanted", "file", "values", "transform", "partition", "text"),
    [
        (IntegerType(), pa.int32(), [7, 7], "identity", 7, "3/[7]"),
        (LongType(), pa.int32(), [7], "identity", 7, "3/[7]"),
        (StringType(), pa.string(), ["é"], "identity", "é", '3/["é"]'),
        (BooleanType(), pa.bool_(), [True], "identity", True, "3/[true]"),
        (DateType(), pa.date32(), [DAY], "identity", "2020-02-03", "3/[18295]"),
        (DateType(), pa.date32(), [date(2020, 2, 1), DAY], "month", 601, "3/[601]"),
        (DateType(), pa.date32(), [date(2020, 12, 31), DAY], "year", 50, "3/[50]"),
        (TimestampType(), US, [NOON, NOON.replace(hour=23)], "day", "2020-02-03", "3/[18295]"),
        (TimestamptzType(), US_UTC, [NOON.replace(tzinfo=UTC)], "hour", 439092, "3/[439092]"),
        (TimestampType(), US, [NOON.replace(1969, 12, 31)], "day", "1969-12-31", "3/[-1]"),
        (TimestampType(), US, [NOON], "identity", "2020-02-03T12:30:00", "3/[1580733000000000]"),
        (DecimalType(9, 2), pa.decimal128(9, 2), [Decimal("1.50")], "identity", "1.50", None),
        (BinaryType(), pa.binary(), [b"\x01"], "identity", "01", None),
        (StringType(), pa.string(), ["abcde", "abz"], "truncate[2]", "ab", '3/["ab"]'),
        (IntegerType(), pa.int32(), [-1, -9], "truncate[10]", -10, "3/[-10]"),
        (IntegerType(), pa.int32(), [34, 34], "bucket[100]", 79, "3/[79]"),
        (LongType(), pa.int64(), [0], "bucket[100]", 76, "3/[76]"),
        (StringType(), pa.string(), ["iceberg"], "bucket[100]", 89, "3/[89]"),
        (StringType(), pa.string(), [None, None], "identity", None, "3/[null]"),
        (IntegerType(), pa.int32(), [1, 2, None], "void", None, "3/[null]"),
    ],
)
def test_the_partition_follows_from_the_bounds(
    wanted: IcebergType, file: pa.DataType, values: list[Any], transform: str, partition: Any, text: str | None
) -> None:
    """In Iceberg's JSON, and as a ledger writes it."""
    found = judged(a_target(wanted, partition_by=transform), column(values, file))

    assert (json.loads(found.document)["partition"], found.partition) == ([partition], text)


@pytest.mark.parametrize(
    ("wanted", "file", "values", "transform", "said"),
    [
        (IntegerType(), pa.int32(), [1, 2], "identity", "are in different partitions; write one file for each"),
        (IntegerType(), pa.int32(), [1, None], "identity", "some values are null, and others are not"),
        (DateType(), pa.date32(), [DAY, date(2020, 3, 1)], "month", "month of c: its lowest and its highest"),
        (TimestampType(), US, [NOON, NOON.replace(day=4)], "day", "day of c: its lowest and its highest"),
        (IntegerType(), pa.int32(), [34, 35], "bucket[1]", "only a single value for all rows proves one bucket"),
        (StringType(), pa.string(), ["ab", "b"], "truncate[1]", "truncate[1] of c"),
        (StringType(), pa.string(), ["a" * 99, "b" * 99], "identity", "by c: its lowest"),
    ],
)
def test_a_file_of_several_partitions_is_refused(
    wanted: IcebergType, file: pa.DataType, values: list[Any], transform: str, said: str
) -> None:
    reason, message = refused(a_target(wanted, partition_by=transform), column(values, file))

    assert reason == "SpansPartitions"
    assert said in message
    assert not {repr(str(v)) for v in values if v is not None} & set(message.split())


def test_a_partition_that_the_footer_does_not_prove_is_refused() -> None:
    """A column that the file lacks is null in it."""
    target = a_target(IntegerType(), partition_by="identity", may_lack=True)
    nan = a_target(DoubleType(), partition_by="identity")

    assert refused(target, column([1], pa.int32()), write_statistics=["batch_id"])[0] == "StatisticsMissing"
    assert "NaN" in refused(nan, column([1.0], pa.float64()))[1]
    assert json.loads(judged(target, {"batch_id": ["A"]}).document)["partition"] == [None]


def test_the_manifest_entry_of_a_file_equals_its_footer() -> None:
    rows = pa.table({"c": [5, None, 3, 4], "batch_id": ["A"] * 4})

    found = json.loads(judged(a_target(LongType()), rows, row_group_size=2).document)

    sizes = found.pop("column-sizes")
    assert (sizes["keys"], len(found.pop("split-offsets")), found.pop("file-size-in-bytes") > 100) == ([2, 1], 2, True)
    assert found == {
        "spec-id": 3,
        "content": "data",
        "file-path": "s3://b/f",
        "file-format": "parquet",
        "partition": [],
        "record-count": 4,
        "value-counts": {"keys": [2, 1], "values": [4, 4]},
        "null-value-counts": {"keys": [2, 1], "values": [1, 0]},
        "lower-bounds": {"keys": [2, 1], "values": ["0300000000000000", "41"]},
        "upper-bounds": {"keys": [2, 1], "values": ["0500000000000000", "41"]},
    }


def test_bounds_that_not_every_row_group_has_are_left_unsaid() -> None:
    """Bounds of a part of the rows, taken for those of all, would hide the others."""
    rows = pa.table({"c": [1.0, float("nan")], "batch_id": ["A", "A"]})

    found = json.loads(judged(a_target(DoubleType()), rows, row_group_size=1).document)

    assert (found["lower-bounds"]["keys"], found["upper-bounds"]["keys"]) == ([1], [1])


def test_metrics_are_kept_as_the_table_wants_them() -> None:
    """But those of the batch column are whole whatever the others are."""
    properties = {"write.metadata.metrics.default": "none"}

    found = json.loads(judged(a_target(LongType(), properties=properties), {"c": [1]}).document)

    assert (found["lower-bounds"]["keys"], found["value-counts"]["keys"]) == ([1], [1])
    assert found["column-sizes"]["keys"] == [2, 1]


@pytest.mark.parametrize("year", [0, 200000])
def test_times_that_no_calendar_has_are_refused(year: int) -> None:
    micros = (year - 1970) * 366 * 86_400_000_000

    assert "outside the years 1 to 9999" in refused(a_target(TimestampType()), column([micros], US))[1]


TYPES_AND_VALUES: list[tuple[IcebergType, pa.DataType, list[Any]]] = [
    (BooleanType(), pa.bool_(), [True, None, False]),
    (IntegerType(), pa.int32(), [5, None, -3]),
    (LongType(), pa.int32(), [5, None, -3]),
    (LongType(), pa.int64(), [2**40, None, -3]),
    (FloatType(), pa.float32(), [1.5, None, -3]),
    (DoubleType(), pa.float32(), [1.5, None, -3]),
    (DoubleType(), pa.float64(), [1.1, None, -0.0]),
    (DateType(), pa.date32(), [DAY, None, date(1, 1, 1)]),
    (TimestampType(), US, [NOON, None, NOON.replace(1969)]),
    (TimestamptzType(), US_UTC, [NOON.replace(tzinfo=UTC), None]),
    (StringType(), pa.string(), ["é" * 30, None, "a\U0010ffff" * 20]),
    (StringType(), pa.string(), ["\U0010ffff" * 30]),
    (BinaryType(), pa.binary(), [b"\xff" * 30, None, b"a" * 30]),
    (BinaryType(), pa.binary(), [b"a\xff" * 30, b""]),
    (DecimalType(9, 2), pa.decimal128(9, 2), [Decimal("1.50"), None, Decimal("-7.25")]),
    (LIST, pa.list_(pa.int64()), [[1, 2], None, []]),
    (MAP, pa.map_(pa.string(), pa.int64()), [[("a", 1)], None]),
    (STRUCT, pa.struct([("x", pa.int64())]), [{"x": 7}, None, {"x": None}]),
]


@pytest.mark.parametrize("mode", ["none", "counts", "truncate(16)", "full"])
@pytest.mark.parametrize(("wanted", "file", "values"), TYPES_AND_VALUES)
@pytest.mark.parametrize("rows_per_group", [1, 10])
def test_the_metrics_are_those_that_pyiceberg_finds(
    wanted: IcebergType, file: pa.DataType, values: list[Any], mode: str, rows_per_group: int
) -> None:
    target = a_target(wanted, properties={"write.metadata.metrics.default": mode})
    rows = pa.table(column(values, file)).append_column("batch_id", pa.array(["A"] * len(values)))
    metadata = footer_of(rows, row_group_size=rows_per_group)

    found = json.loads(describe(metadata, "f", 1, "A", target).document)

    theirs = data_file_statistics_from_parquet_metadata(metadata, target.collectors, target.ids).to_serialized_dict()
    leaves = [metadata.schema.column(n) for n in range(metadata.num_columns)]
    single = {target.ids[leaf.path] for leaf in leaves if leaf.max_repetition_level == 0}
    assert mapped(found["column-sizes"]) == theirs["column_sizes"]
    assert found["split-offsets"] == theirs["split_offsets"]
    for ours, name in (("value-counts", "value_counts"), ("null-value-counts", "null_value_counts")):
        assert mapped(found[ours]) == {i: n for i, n in theirs[name].items() if i in single}
    for ours, name in (("lower-bounds", "lower_bounds"), ("upper-bounds", "upper_bounds")):
        assert mapped(found[ours]) == {i: b.hex().upper() for i, b in theirs[name].items() if i in single}


def mapped(values: dict[str, list[Any]]) -> dict[int, Any]:
    return dict(zip(values["keys"], values["values"], strict=True))


def test_a_decimal_may_be_stored_as_a_shorter_integer_than_the_table_s() -> None:
    file = column([Decimal("1.50")], pa.decimal128(5, 2))

    found = json.loads(judged(a_target(DecimalType(20, 2)), file, store_decimal_as_integer=True).document)

    assert mapped(found["lower-bounds"])[2] == mapped(found["upper-bounds"])[2] == "0096"


def test_times_that_no_calendar_has_are_refused_in_structs_as_well() -> None:
    struct, micros = pa.struct([("x", US)]), 200_000 * 366 * 86_400_000_000
    values = pa.StructArray.from_arrays([pa.array([micros], US)], fields=list(struct))

    with pytest.raises((OverflowError, ValueError)):
        judged(a_target(StructType(NestedField(3, "x", TimestampType()))), {"c": values})


def test_only_files_of_the_codecs_of_every_engine_are_registered() -> None:
    target = a_target(LongType())

    for codec in ("none", "snappy", "gzip", "zstd", "lz4"):
        assert judged(target, {"c": [1]}, compression=codec).records == 1
    reason, message = refused(target, {"c": [1]}, compression={"batch_id": "snappy", "c": "brotli"})
    assert (reason, "compressed by BROTLI" in message) == ("CodecNotReadable", True)


@pytest.mark.parametrize(
    ("text", "upper"),
    [
        ("z" * 15 + "\ud7ff" + "tail", "z" * 15 + "\ue000"),
        ("z" * 15 + "\U0010ffff" + "tail", "z" * 14 + "{"),
        ("\U0010ffff" * 17, None),
        ("z" * 16, "z" * 16),
    ],
)
def test_an_upper_bound_is_cut_to_a_text_above_it(text: str, upper: str | None) -> None:
    found = json.loads(judged(a_target(StringType()), {"c": [text]}).document)

    assert mapped(found["upper-bounds"]).get(2) == (None if upper is None else upper.encode().hex().upper())
    assert mapped(found["lower-bounds"])[2] == text[:16].encode().hex().upper()


@pytest.mark.parametrize(
    ("wanted", "file", "bits"), [(IntegerType(), pa.int32(), 32), (LongType(), pa.int64(), 64)], ids=str
)
def test_the_smallest_numbers_are_in_the_partition_that_other_writers_put_them_in(
    wanted: IcebergType, file: pa.DataType, bits: int
) -> None:
    """Truncated, they would be less than all numbers of the type, and no reader of the entry could hold the value."""
    least = -(2 ** (bits - 1))
    target = a_target(wanted, partition_by="truncate[10]")
    written = target.spec.fields[0].transform.pyarrow_transform(wanted)(pa.array([least, least + 9], file)).to_pylist()

    found = judged(target, column([least, least + 7], file))

    assert json.loads(found.document)["partition"] == written[:1]
    assert found.partition == f"3/[{written[0]}]"
    assert json.loads(judged(target, column([least + 9], file)).document)["partition"] == written[1:]
    assert refused(target, column([least, least + 8], file))[0] == "SpansPartitions"


@pytest.mark.parametrize("value", ["x" * 300, "\u00e9" * 100])
def test_a_partition_value_too_long_for_a_folder_is_refused(value: str) -> None:
    reason, message = refused(a_target(StringType(), partition_by="identity"), {"c": [value]})

    assert reason == "SchemaMismatch"
    assert message.startswith(f"column c holds a value of {len(value)} characters")


def test_days_of_the_hybrid_calendar_are_not_registered() -> None:
    """Without statistics it is unknown whether there are any."""

    def of(days: int, spark: str) -> pa.Table:
        rows = pa.table({"c": pa.array([days], pa.int32()).cast(pa.date32()), "batch_id": ["A"]})
        return rows.replace_schema_metadata({"org.apache.spark.version": spark})

    target, said = a_target(DateType()), "column c holds a day before 1582-10-15, and the file is of Spark 2.4"

    assert said in refused(target, of(-141_428, "2.4.8"))[1]
    assert judged(target, of(-141_427, "2.4.8")) == judged(target, of(-141_427, "3.5.1"))
    assert judged(target, of(-141_428, "3.5.1")).records == 1
    reason, message = refused(target, of(0, "2.4.8"), write_statistics=["batch_id"])
    assert (reason, "column c" in message) == ("StatisticsMissing", True)


@pytest.mark.parametrize(
    ("folders", "rows", "said"),
    [
        ("c=8", {"c": [7, 7]}, "column c holds another value than its folder names"),
        ("c=__HIVE_DEFAULT_PARTITION__", {"c": [7, 7]}, "column c holds another value than its folder names"),
        ("d=7", {"c": [7, 7]}, "its folder names the column d, which the table does not have"),
        ("batch_id=B", {"c": [7, 7]}, "its folder names another batch_id"),
        ("c=7", {"batch_id": ["A"]}, "its folder names a value of column c, and the file lacks the column"),
    ],
)
def test_a_registered_file_holds_what_its_folders_name(folders: str, rows: dict[str, Any], said: str) -> None:
    assert said in refused(a_target(LongType(), may_lack=True), rows, folders=folders)[1]
    assert judged(a_target(LongType()), {"c": [7, 7]}, folders="c=7").records == 2


@pytest.mark.parametrize(
    ("wanted", "file", "value", "other", "folders"),
    [
        (LongType(), pa.int64(), 7, 8, "c=7"),
        (StringType(), pa.string(), "a/b", "b", "c=a%2Fb"),
        (BooleanType(), pa.bool_(), True, False, "c=true"),
        (DecimalType(5, 2), pa.decimal128(5, 2), Decimal("1.50"), Decimal("1.51"), "c=1.5"),
        (DoubleType(), pa.float64(), 2.5, 3.5, "c=2.5"),
        (DateType(), pa.date32(), DAY, date(2020, 2, 4), "c=2020-02-03"),
        (TimestampType(), US, NOON, NOON.replace(hour=1), "c=2020-02-03 12%3A30%3A00"),
    ],
    ids=str,
)
def test_values_of_any_type_are_those_that_the_folders_name(
    wanted: IcebergType, file: pa.DataType, value: Any, other: Any, folders: str
) -> None:
    target = a_target(wanted)

    assert judged(target, column([value, value], file), folders=folders).records == 2
    for values in ([other], [value, other], [value, None], [None]):
        said = refused(target, column(values, file), folders=folders)
        assert said == ("SchemaMismatch", "column c holds another value than its folder names")


NAMED = Schema(
    NestedField(1, "v", LongType()),
    NestedField(2, "l", ListType(3, LongType())),
    NestedField(4, "s", StructType(NestedField(5, "x", StringType()))),
)
MAPPING = [
    {"names": ["v"], "field-id": 1},
    {"names": ["l"], "field-id": 2, "fields": [{"names": ["element"], "field-id": 3}]},
    {"names": ["s"], "field-id": 4, "fields": [{"names": ["x"], "field-id": 5}]},
]


def with_mapping(**of_v: Any) -> dict[str, str]:
    """Properties with a mapping whose entry of the column v is changed."""
    return {PROPERTY: json.dumps([{**MAPPING[0], **of_v}, *MAPPING[1:]])}


def test_a_table_without_a_name_mapping_gets_one_of_its_columns_and_a_whole_one_is_left_alone() -> None:
    """It may hold names of old: a renamed column keeps those for older files."""
    older = with_mapping(names=["older", "v"])

    assert PROPERTY == "schema.name-mapping.default"
    assert json.loads(mapping_to_set(NAMED, {}, "air.t")[PROPERTY]) == MAPPING
    assert mapping_to_set(NAMED, older, "air.t") == {}
    assert field_ids(older) == {
        ("older",): 1,
        ("v",): 1,
        ("l",): 2,
        ("l", "element"): 3,
        ("s",): 4,
        ("s", "x"): 5,
    }
    assert field_ids({}) is None


@pytest.mark.parametrize("change", [{"field-id": 9}, {"names": ["w"]}])
def test_a_mapping_that_leads_elsewhere_is_an_error(change: dict[str, Any]) -> None:
    """Its columns would be read as nulls, or as others."""
    expected = r"air\.t: the table property schema.name-mapping.default does not map the column v"
    with pytest.raises(InputError, match=expected):
        mapping_to_set(NAMED, with_mapping(**change), "air.t")
