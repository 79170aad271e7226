"""Partitions and order of rows, as PyIceberg computes them value by value and Python sorts them."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.ingest.registrable import RegisterTarget
from lethe.ingest.schema_fit import BATCH_IDS
from lethe.writing.data_files import (
    PartitionedRows,
    SortKey,
    TableLayout,
    TablePartition,
    batches_of,
    in_order,
    partitions_of,
    split,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

US = st.integers(-(10**16), 10**16)
KINDS: dict[str, tuple[IcebergType, pa.DataType, st.SearchStrategy[Any]]] = {
    "int": (IntegerType(), pa.int32(), st.integers(-(2**31) + 16, 2**31 - 1)),
    "long": (LongType(), pa.int64(), st.integers(-(2**60), 2**60)),
    "date": (DateType(), pa.date32(), st.integers(-700_000, 700_000)),
    "timestamp": (TimestampType(), pa.timestamp("us"), US),
    "timestamptz": (TimestamptzType(), pa.timestamp("us", "UTC"), US),
    "string": (StringType(), pa.string(), st.text(max_size=5)),
    "binary": (BinaryType(), pa.binary(), st.binary(max_size=5)),
    "decimal": (
        DecimalType(9, 2),
        pa.decimal128(9, 2),
        st.integers(-(10**9) + 1, 10**9 - 1).map(lambda n: Decimal(n).scaleb(-2)),
    ),
}
CASES = [
    *((kind, "identity") for kind in KINDS),
    *((kind, "bucket[16]") for kind in KINDS),
    *((kind, "truncate[3]") for kind in ("int", "long", "string", "binary", "decimal")),
    *((kind, unit) for kind in ("date", "timestamp", "timestamptz") for unit in ("year", "month", "day")),
    *((kind, "hour") for kind in ("timestamp", "timestamptz")),
]


def layout(kind: IcebergType, transforms: list[str], columns: pa.Schema) -> TableLayout:
    schema = Schema(NestedField(1, "x", kind), NestedField(2, "batch_id", StringType()))
    spec = PartitionSpec(
        *(PartitionField(1, 1000 + n, parse_transform(t), f"p{n}") for n, t in enumerate(transforms)), spec_id=3
    )
    target = RegisterTarget(schema.model_dump_json(), spec.model_dump_json(), {}, 2, True)
    return TableLayout(target, columns, UNSORTED_SORT_ORDER.model_dump_json(), "file:///t", "file:///t/run", 1, {})


@pytest.mark.parametrize(("kind", "transform"), CASES)
@given(data=st.data())
def test_values_are_those_of_each_row(kind: str, transform: str, data: st.DataObject) -> None:
    iceberg, arrow, some = KINDS[kind]
    values = data.draw(st.lists(st.none() | some, min_size=1, max_size=8))
    plain = pa.array(values, pa.int32() if kind == "date" else pa.int64() if kind.startswith("time") else arrow)
    rows = pa.table({"x": plain.cast(arrow), "batch_id": pa.array(["b"] * len(values)).cast(BATCH_IDS)})

    found = partitions_of(rows, layout(iceberg, [transform], rows.schema))

    of = parse_transform(transform).transform(iceberg)
    expected = [None if v is None else of(v) for v in values]
    index = np.zeros(len(values), np.int64) if found.index is None else found.index
    assert [found.partitions[i].values[0] for i in index] == expected


@given(st.lists(st.none() | st.integers(-50, 50), min_size=1, max_size=30))
def test_several_fields_make_one_partition(values: list[int | None]) -> None:
    rows = pa.table({"x": pa.array(values, pa.int64()), "batch_id": pa.array(["b"] * len(values)).cast(BATCH_IDS)})

    found = partitions_of(rows, layout(LongType(), ["truncate[10]", "void", "bucket[2]", "identity"], rows.schema))

    of = [parse_transform(t).transform(LongType()) for t in ("truncate[10]", "bucket[2]")]
    index = np.zeros(len(values), np.int64) if found.index is None else found.index
    assert [found.partitions[i].values for i in index] == [
        (None,) * 4 if v is None else (of[0](v), None, of[1](v), v) for v in values
    ]
    assert len(set(found.partitions)) == len(found.partitions)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4)), min_size=1, max_size=30), st.integers(1, 30))
def test_the_partitions_of_batches_are_those_of_their_rows(rows: list[tuple[str, int]], cut: int) -> None:
    """Also if the dictionaries of the chunks differ."""
    parts = [part for part in (rows[:cut], rows[cut:]) if part]
    ids = pa.chunked_array([pa.array([b for b, _ in part]).cast(BATCH_IDS) for part in parts])
    partitioned = PartitionedRows([TablePartition((n,)) for n in range(5)], np.array([n for _, n in rows], np.int64))

    found = batches_of(ids, partitioned)

    assert found == {b: {n for c, n in rows if c == b} for b in {b for b, _ in rows}}
    assert batches_of(ids, PartitionedRows([TablePartition(())], None)) == {b: {0} for b, _ in rows}


@given(st.lists(st.integers(0, 4), max_size=30))
def test_split_keeps_each_row_and_the_order(index: list[int]) -> None:
    rows = pa.table({"at": pa.array(range(len(index)), pa.int64())})

    parts = split(rows, np.array(index, np.int64), 5)

    assert [p["at"].to_pylist() for p in parts] == [[at for at, i in enumerate(index) if i == n] for n in range(5)]


def test_a_partition_has_the_folder_and_the_json_of_iceberg() -> None:
    of = layout(TimestamptzType(), ["day"], pa.schema([]))
    days = (datetime(2013, 1, 2, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)).days

    assert TablePartition((days,)).path(of) == "p0=2013-01-02"
    assert TablePartition((days,)).json(of) == ["2013-01-02"]
    assert TablePartition((days,)).text(of) == f"3/[{days}]"
    assert TablePartition((None,)).path(of) == "p0=null"
    assert TablePartition((None,)).json(of) == [None]


VALUES = st.lists(st.tuples(st.none() | st.text(max_size=2), st.none() | st.integers(0, 3)), max_size=20)
SORT_KEYS = st.lists(
    st.builds(SortKey, st.sampled_from(["text", "number"]), st.booleans(), st.booleans()), min_size=1, max_size=2
)


@given(VALUES, SORT_KEYS, st.booleans())
def test_rows_are_sorted_and_equal_ones_stay_in_their_order(
    values: list[tuple[Any, Any]], keys: list[SortKey], as_dictionary: bool
) -> None:
    text = pa.array([t for t, _ in values], pa.string())
    table = pa.table(
        {
            "text": text.dictionary_encode() if as_dictionary else text,
            "number": pa.array([n for _, n in values], pa.int64()),
            "at": range(len(values)),
        }
    )
    expected = table.to_pylist()
    for key in reversed(keys):
        expected = by(expected, key)

    assert in_order(table, keys).to_pylist() == expected


def by(rows: list[dict[str, Any]], key: SortKey) -> list[dict[str, Any]]:
    def value(row: dict[str, Any]) -> Any:
        found = row[key.name]
        return found.encode() if isinstance(found, str) else found

    nulls = [r for r in rows if r[key.name] is None]
    others = sorted((r for r in rows if r[key.name] is not None), key=value, reverse=key.is_descending)
    return nulls + others if key.nulls_first else others + nulls
