"""Where rows with some keys lie in a file: those with all the values of one key, and no row that has those of two."""

import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.files.values import ValueKind, ValueType
from lethe.search.positions import SearchedFile, Unsure, WantedKeys, find_keys
from pyiceberg.io.pyarrow import PyArrowFileIO

TEXT, LONG = ValueKind(ValueType.STRING), ValueKind(ValueType.LONG)


def written(path: Path, rows_per_group: int = 1000, ids: bool = True, **columns: pa.Array) -> str:
    """A file whose columns have the field ids 1, 2, … if they have any."""
    fields = [
        pa.field(name, a.type, metadata={"PARQUET:field_id": str(n)} if ids else {})
        for n, (name, a) in enumerate(columns.items(), 1)
    ]
    pq.write_table(
        pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields)), path, row_group_size=rows_per_group
    )
    return f"file://{path}"


def keys(*kinds: ValueKind, rows: list[tuple[Any, ...]]) -> WantedKeys:
    """Of the columns with the field ids 1, 2, …"""
    columns = [pa.array(values) for values in zip(*rows, strict=True)]
    return WantedKeys.of(list(enumerate(kinds, 1)), pa.table(columns, names=[str(n) for n in range(len(columns))]))


def found(uri: str, wanted: WantedKeys, format_name: str = "PARQUET", **how: Any) -> list[int]:
    searched = SearchedFile(PyArrowFileIO(), uri, format_name, how.pop("names", None))
    return list(find_keys(searched, {"it": wanted}, **how).get("it", ()))


def test_a_row_has_to_hold_all_values_of_one_key(tmp_path: Path) -> None:
    """Values of two keys, or a null in place of one, are nobody's key."""
    file = written(
        tmp_path / "f",
        name=pa.array(["a", "a", "b", "b", None, "a", "c"]),
        v=pa.array([1, 2, 1, 2, 1, None, 1]),
    )

    assert found(file, keys(TEXT, LONG, rows=[("a", 1), ("b", 2), ("x", 9)])) == [0, 3]


@given(
    rows=st.lists(
        st.tuples(st.sampled_from((None, *"abc")), st.integers(0, 3), st.sampled_from((None, 1, 2))), max_size=30
    ),
    wanted=st.sets(st.tuples(st.sampled_from("abcx"), st.integers(0, 4), st.integers(1, 3)), min_size=1, max_size=8),
    group=st.integers(1, 7),
    columns=st.integers(1, 3),
)
def test_it_finds_what_a_comparison_of_each_row_with_each_key_finds(
    tmp_path: Path, rows: list[tuple[Any, ...]], wanted: set[tuple[Any, ...]], group: int, columns: int
) -> None:
    """Also where row groups of one column are passed over for their bounds and those of another are not."""
    types = (pa.string(), pa.int64(), pa.int64())
    arrays = {f"c{n}": pa.array([r[n] for r in rows], types[n]) for n in range(columns)}
    file = written(tmp_path / "f", rows_per_group=group, **arrays)
    cut = {w[:columns] for w in wanted}

    assert found(file, keys(*(TEXT, LONG, LONG)[:columns], rows=sorted(cut))) == [
        n for n, r in enumerate(rows) if r[:columns] in cut
    ]


@pytest.mark.parametrize(
    ("kind", "values", "stored"),
    [
        (ValueKind(ValueType.INT), pa.array([7, 8], pa.int32()), pa.array([8, 7, 9], pa.int32())),
        (ValueKind(ValueType.LONG), pa.array([7, 2**40], pa.int64()), pa.array([2**40, 7, 9])),
        (
            ValueKind(ValueType.DATE),
            pa.array([date(2026, 3, 1), date(1900, 1, 1)]),
            pa.array([date(1900, 1, 1), date(2026, 3, 1), None]),
        ),
        (
            ValueKind(ValueType.TIMESTAMPTZ),
            pa.array([datetime(2026, 3, 1, tzinfo=UTC), datetime(1969, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")),
            pa.array(
                [datetime(1969, 1, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC), None], pa.timestamp("us", "UTC")
            ),
        ),
        (
            ValueKind(ValueType.TIMESTAMP),
            pa.array([7, -7]).cast(pa.timestamp("us")),
            pa.array([-7, 7, None]).cast(pa.timestamp("us")),
        ),
        (
            ValueKind(ValueType.DECIMAL, 5, 2),
            pa.array([Decimal("1.50"), Decimal("-2.00")], pa.decimal128(5, 2)),
            pa.array([Decimal("-2.00"), Decimal("1.50"), Decimal("0.00")], pa.decimal128(5, 2)),
        ),
        (
            ValueKind(ValueType.UUID),
            pa.array([str(uuid.UUID(int=1)), str(uuid.UUID(int=2))]),
            pa.array([uuid.UUID(int=2).bytes, uuid.UUID(int=1).bytes, uuid.UUID(int=3).bytes], pa.binary(16)),
        ),
    ],
    ids=lambda v: v.type if isinstance(v, ValueKind) else "",
)
def test_keys_of_each_kind_are_found_alone_and_together_with_others(
    tmp_path: Path, kind: ValueKind, values: pa.Array, stored: pa.Array
) -> None:
    file = written(tmp_path / "f", k=stored, v=pa.array([1, 1, 1]))
    alone, both = pa.table({"k": values}), pa.table({"k": values, "v": pa.array([1, 2])})

    assert found(file, WantedKeys.of([(1, kind)], alone)) == [0, 1]
    assert found(file, WantedKeys.of([(1, kind), (2, LONG)], both)) == [1]


@pytest.mark.parametrize("format_name", ["ORC", "AVRO"])
def test_files_of_other_formats_are_read_too(tmp_path: Path, format_name: str) -> None:
    rows = [{"name": n, "v": v} for n, v in (("a", 1), ("a", 2), ("b", 1), ("b", 2))]
    path = tmp_path / "f"
    if format_name == "ORC":
        orc.write_table(pa.Table.from_pylist(rows), path)
    else:
        fields = [{"name": "name", "type": "string", "field-id": 1}, {"name": "v", "type": "long", "field-id": 2}]
        with path.open("wb") as out:
            fastavro.writer(out, {"type": "record", "name": "r", "fields": fields}, rows)

    hits = found(f"file://{path}", keys(TEXT, LONG, rows=[("a", 2), ("b", 1)]), format_name, names={"name": 1, "v": 2})

    assert hits == [1, 2]


def test_a_column_that_a_file_lacks_has_the_default_of_the_table(tmp_path: Path) -> None:
    """By its place among the column's values in order; what is none of them, or null, is no key."""
    file = written(tmp_path / "f", name=pa.array(["a", "b", "a"]))
    wanted = keys(TEXT, LONG, rows=[("a", 5), ("b", 7)])

    assert found(file, wanted, absent={"it": (None, 0)}) == [0, 2]
    assert found(file, wanted, absent={"it": (None, 1)}) == [1]
    assert found(file, wanted, absent={"it": (None, None)}) == []


def test_a_file_without_any_of_the_columns_is_all_or_nothing(tmp_path: Path) -> None:
    file = written(tmp_path / "f", other=pa.array(["a", "b"]))
    wanted = WantedKeys.of([(5, TEXT), (6, LONG)], pa.table({"a": ["x", "y"], "b": [1, 2]}))

    assert found(file, wanted, absent={"it": (0, 0)}) == [0, 1]
    assert found(file, wanted, absent={"it": (0, 1)}) == []


def test_an_unsearchable_file_is_reported_without_a_value(tmp_path: Path) -> None:
    no_ids = written(tmp_path / "no-ids", ids=False, name=pa.array(["secret"]))
    other_type = written(tmp_path / "other", name=pa.array(["secret"]))

    with pytest.raises(Unsure, match="no field ids") as first:
        found(no_ids, keys(TEXT, rows=[("secret",)]))
    with pytest.raises(Unsure) as second:
        found(other_type, keys(LONG, rows=[(1,)]))

    assert "secret" not in f"{first.value}{second.value}{keys(TEXT, rows=[('secret',)])}"


def test_the_same_keys_in_another_order_are_the_same() -> None:
    rows = [("a", 1), ("b", 2), ("b", 1)]

    assert keys(TEXT, LONG, rows=rows) == keys(TEXT, LONG, rows=rows[::-1])
    assert keys(TEXT, LONG, rows=rows) != keys(TEXT, LONG, rows=[("a", 1), ("b", 2), ("a", 2), ("b", 1)][:3])


def test_no_keys_are_found_nowhere(tmp_path: Path) -> None:
    file = written(tmp_path / "f", name=pa.array(["a"]), v=pa.array([1]))

    assert found(file, WantedKeys.none([(1, TEXT), (2, LONG)])) == []
