"""Which files are dropped, read or kept for the age of their rows: only what metadata proves is dropped."""

import struct
from datetime import UTC, date, datetime
from typing import Any

import pytest
from lethe.files.bounds import Age, FileTimes, age_of, cutoff_day, due_time
from lethe.iceberg.column_path import NoColumn
from lethe.iceberg.time_column import TimeColumn
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DateType,
    IcebergType,
    ListType,
    LongType,
    NestedField,
    StructType,
    TimestampType,
    TimestamptzType,
)

CUTOFF = date(2024, 6, 15)
DAY = 19_889  # the cutoff, in days since 1970
MICROS = 86_400_000_000
TYPES: dict[str, IcebergType] = {"date": DateType(), "timestamp": TimestampType(), "timestamptz": TimestamptzType()}
ROWS = 10


def a_column(kind: str, *transforms: str) -> TimeColumn:
    schema = Schema(NestedField(1, "at", TYPES[kind]))
    fields = [PartitionField(1, 1000 + n, parse_transform(t), f"p{n}") for n, t in enumerate(transforms)]
    return TimeColumn.of(schema, {0: PartitionSpec(*fields, spec_id=0)}, "at")


def a_data_file(
    lower: bytes | None, upper: bytes | None, nulls: int | None, values: int | None, partition: Any
) -> DataFile:
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path="f.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(*partition),
        record_count=ROWS,
        file_size_in_bytes=100,
        lower_bounds={} if lower is None else {1: lower},
        upper_bounds={} if upper is None else {1: upper},
        null_value_counts={} if nulls is None else {1: nulls},
        value_counts={} if values is None else {1: values},
    )
    file.spec_id = 0
    return file


def age(
    kind: str, low: int | None, high: int | None, nulls: int | None = 0, values: int | None = ROWS, **partition: Any
) -> Age:
    """The age of a file with these bounds, in days from the cutoff; a partition's name is that of its transform."""
    column = a_column(kind, *(name.replace("16", "[16]") for name in partition))

    def stored(days: int | None, offset: int) -> bytes | None:
        if days is None:
            return None
        return struct.pack("<i", DAY + days) if kind == "date" else struct.pack("<q", (DAY + days) * MICROS + offset)

    file = a_data_file(stored(low, 0), stored(high, 0), nulls, values, tuple(partition.values()))
    return age_of(column.times_of(file), column.start_of(CUTOFF))


CASES: dict[str, tuple[dict[str, Any], Age]] = {
    "all before": ({"low": -9, "high": -1}, Age.OLD),
    "all from the cutoff on": ({"low": 0, "high": 9}, Age.YOUNG),
    "one time, before": ({"low": -1, "high": -1}, Age.OLD),
    "both": ({"low": -1, "high": 0}, Age.MIXED),
    # A bound says nothing of rows without a time.
    "one time before, and nulls": ({"low": -1, "high": -1, "nulls": 1}, Age.MIXED),
    "one time before, nulls not counted": ({"low": -1, "high": -1, "nulls": None}, Age.MIXED),
    "one time before, values not counted": ({"low": -1, "high": -1, "values": None}, Age.MIXED),
    # A field of a struct that is null in some rows: they are not among its values.
    "one time before, fewer values than rows": ({"low": -1, "high": -1, "values": 9}, Age.MIXED),
    "only nulls": ({"low": None, "high": None, "nulls": ROWS}, Age.YOUNG),
    "no bounds": ({"low": None, "high": None}, Age.UNKNOWN),
    "no metrics": ({"low": None, "high": None, "nulls": None, "values": None}, Age.UNKNOWN),
    "only an upper bound, before": ({"low": None, "high": -1}, Age.OLD),
    "only an upper bound, nulls not counted": ({"low": None, "high": -1, "nulls": None}, Age.UNKNOWN),
    "only a lower bound, before": ({"low": -1, "high": None}, Age.MIXED),
    "only a lower bound, after": ({"low": 3, "high": None}, Age.YOUNG),
    "bounds that contradict each other": ({"low": 3, "high": -1}, Age.UNKNOWN),
    "a month before, no metrics": ({"low": None, "high": None, "nulls": None, "month": 12 * 54 + 4}, Age.OLD),
    "the month of the cutoff, no metrics": (
        {"low": None, "high": None, "nulls": None, "month": 12 * 54 + 5},
        Age.UNKNOWN,
    ),
    "the month of the cutoff, all before": ({"low": -9, "high": -1, "month": 12 * 54 + 5}, Age.OLD),
    "a month after, no metrics": ({"low": None, "high": None, "nulls": None, "month": 12 * 54 + 6}, Age.YOUNG),
    "a year before, no metrics": ({"low": None, "high": None, "nulls": None, "year": 53}, Age.OLD),
    "a bucket, no metrics": ({"low": None, "high": None, "nulls": None, "bucket16": 3}, Age.UNKNOWN),
    "a bucket, all before": ({"low": -9, "high": -1, "bucket16": 3}, Age.OLD),
    "a partition of nulls": ({"low": None, "high": None, "nulls": None, "month": None}, Age.YOUNG),
    "a partition that the bounds contradict": ({"low": 3, "high": 3, "month": 12 * 54 + 4}, Age.UNKNOWN),
    "a partition of nulls with times": ({"low": -1, "high": -1, "month": None}, Age.UNKNOWN),
    "a partition before, with nulls": ({"low": -90, "high": -60, "nulls": 1, "month": 12 * 54 + 3}, Age.MIXED),
}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("case", CASES)
def test_a_file_is_dropped_only_if_its_metadata_proves_that_each_row_is_too_old(case: str, kind: str) -> None:
    facts, expected = CASES[case]

    assert age(kind, **facts) is expected


DAYS: dict[str, tuple[str, str, int, Age]] = {
    "the day before": ("timestamp", "day", DAY - 1, Age.OLD),
    "the cutoff": ("timestamptz", "day", DAY, Age.YOUNG),
    "the day before, of dates": ("date", "day", DAY - 1, Age.OLD),
    "the last hour before": ("timestamp", "hour", DAY * 24 - 1, Age.OLD),
    "the first hour": ("timestamp", "hour", DAY * 24, Age.YOUNG),
    "a date": ("date", "identity", DAY - 1, Age.OLD),
    "a moment": ("timestamp", "identity", DAY * MICROS - 1, Age.OLD),
    "the first moment": ("timestamp", "identity", DAY * MICROS, Age.YOUNG),
}


@pytest.mark.parametrize(("kind", "transform", "value", "expected"), DAYS.values(), ids=DAYS)
def test_a_partition_tells_the_age_of_a_file_without_metrics(
    kind: str, transform: str, value: int, expected: Age
) -> None:
    assert age(kind, None, None, None, None, **{transform: value}) is expected


def test_a_bound_of_another_type_proves_nothing() -> None:
    """A file that is older than the column's change from date to timestamp."""
    column = a_column("timestamp")
    file = a_data_file(struct.pack("<i", DAY - 9), struct.pack("<i", DAY - 1), 0, ROWS, ())

    assert column.times_of(file) == FileTimes(nulls=False)


SCHEMA = Schema(
    NestedField(1, "n", LongType()),
    NestedField(2, "booking", StructType(NestedField(3, "time", DateType()))),
    NestedField(4, "times", ListType(5, DateType())),
)
REFUSED = {
    "n": "which is of type long; expected a date, timestamp or timestamptz",
    "times.element": "which is within a list",
    "booked_at": "no such column",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_column_without_a_time_for_each_row_is_refused_by_name(name: str) -> None:
    with pytest.raises(NoColumn, match=REFUSED[name]):
        TimeColumn.of(SCHEMA, {}, name)


def test_a_field_of_a_struct_has_times() -> None:
    assert TimeColumn.of(SCHEMA, {}, "booking.time").field_id == 3


@pytest.mark.parametrize("time", ["2025-06-15T00:00:00", "2025-06-15T23:59:59"])
def test_the_cutoff_is_the_same_during_a_whole_day_in_utc(time: str) -> None:
    now = datetime.fromisoformat(time).replace(tzinfo=UTC)

    assert cutoff_day(now, 365) == CUTOFF
    assert due_time(CUTOFF, 365) == datetime(2025, 6, 15, tzinfo=UTC)
