"""Where rows with some values lie in a file: every one of them, at the position that Iceberg counts, and no other row."""

import uuid
from collections.abc import Iterable, Mapping
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
from lethe.files.values import ValueKind, Values, ValueType, parse_values
from lethe.search.positions import SearchedFile, Unsure, Wanted, find
from pyiceberg.io.pyarrow import PyArrowFileIO


def a_field(name: str, type_: pa.DataType, field_id: int | None = 1) -> pa.Field:
    return pa.field(name, type_, metadata={} if field_id is None else {"PARQUET:field_id": str(field_id)})


def written(path: Path, *columns: tuple[pa.Field, list[Any]], rows_per_group: int = 1000, **how: Any) -> str:
    arrays = [pa.array(values, f.type) for f, values in columns]
    table = pa.Table.from_arrays(arrays, schema=pa.schema([f for f, _ in columns]))
    pq.write_table(table, path, row_group_size=rows_per_group, **how)
    return f"file://{path}"


def texts(*values: str, field_id: int = 1) -> Wanted:
    return Wanted.of(field_id, Values(ValueKind(ValueType.STRING), tuple(sorted(values))))


def found(uri: str, names: Mapping[str, int] | None = None, **wanted: Wanted) -> dict[str, list[int]]:
    return {key: list(p) for key, p in find(SearchedFile(PyArrowFileIO(), uri, names=names), wanted).items()}


def test_each_search_has_its_own_positions_and_nulls_match_nothing(tmp_path: Path) -> None:
    file = written(tmp_path / "f", (a_field("name", pa.string()), ["a", None, "b", "a", "", None, "c"]))

    assert found(file, one=texts("a", "c"), two=texts("b", "a"), empty=texts(""), none=texts("x")) == {
        "one": [0, 3, 6],
        "two": [0, 2, 3],
        "empty": [4],
    }


@given(
    rows=st.lists(st.sampled_from((None, *"abcdefg")), max_size=40),
    wanted=st.sets(st.sampled_from("abcdefgxyz"), min_size=1),
    group=st.integers(1, 11),
    dictionary=st.booleans(),
    statistics=st.booleans(),
)
def test_rows_are_counted_through_all_row_groups_also_through_those_that_are_not_read(
    tmp_path: Path, rows: list[str | None], wanted: set[str], group: int, dictionary: bool, statistics: bool
) -> None:
    file = written(
        tmp_path / "f",
        (a_field("name", pa.string()), rows),
        rows_per_group=group,
        use_dictionary=dictionary,
        write_statistics=statistics,
    )

    assert found(file, it=texts(*wanted)).get("it", []) == [n for n, row in enumerate(rows) if row in wanted]


def test_a_row_group_whose_statistics_rule_it_out_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    really = pq.ParquetFile.read_row_group

    def noting(self: pq.ParquetFile, n: int, **how: Any) -> pa.Table:
        read.append(n)
        return really(self, n, **how)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", noting)
    numbers = written(tmp_path / "f", (a_field("n", pa.int64()), list(range(100))), rows_per_group=10)

    positions = found(numbers, it=Wanted.of(1, Values(ValueKind(ValueType.LONG), (7, 35, 1000))))

    assert (positions, read) == ({"it": [7, 35]}, [0, 3])


TYPED: dict[str, tuple[str, pa.DataType, list[Any], str, list[int]]] = {
    "int in a long column": ("long", pa.int32(), [7, None, -7], "7\n8", [0]),
    "a number": ("int", pa.int32(), [7, None, -7], "-7", [2]),
    "a date": ("date", pa.date32(), [date(2026, 3, 1), date(1969, 12, 31), None], "1969-12-31", [1]),
    "a wall clock's time": (
        *("timestamp", pa.timestamp("us"), [datetime.fromisoformat("2026-03-01T12:00"), None]),
        *("2026-03-01T12:00:00", [0]),
    ),
    "an instant": (
        *("timestamptz", pa.timestamp("us", "UTC"), [None, datetime(2026, 3, 1, 12, tzinfo=UTC)]),
        *("2026-03-01T13:00:00+01:00", [1]),
    ),
    "nanoseconds": (
        "timestamp",
        pa.timestamp("ns"),
        [datetime.fromisoformat("2026-03-01T12:00"), None],
        "2026-03-01T12:00",
        [0],
    ),
    "a decimal": ("decimal(9, 2)", pa.decimal128(9, 2), [Decimal("1.50"), Decimal("1.51")], "1.5", [0]),
    "a narrower decimal": ("decimal(18, 2)", pa.decimal128(9, 2), [Decimal("1.50"), Decimal("1.51")], "1.51", [1]),
    "a uuid": (
        *("uuid", pa.binary(16), [uuid.UUID(int=1).bytes, uuid.UUID(int=10).bytes]),
        *("00000000-0000-0000-0000-00000000000A", [1]),
    ),
    "a large text": ("string", pa.large_string(), ["é", "e"], "é", [0]),
}


@pytest.mark.parametrize(("kind", "type_", "rows", "text", "wanted"), TYPED.values(), ids=TYPED)
def test_values_are_compared_as_the_column_holds_them(
    tmp_path: Path, kind: str, type_: pa.DataType, rows: list[Any], text: str, wanted: list[int]
) -> None:
    file = written(tmp_path / "f", (a_field("c", type_), rows))
    known = ValueKind.of(kind)
    assert known is not None

    assert found(file, it=Wanted.of(1, parse_values(text.encode(), known, "c", "ns/e"))) == {"it": wanted}


def test_a_column_is_found_by_its_field_id_whatever_it_was_called_then(tmp_path: Path) -> None:
    """And one that has its name of now is another one."""
    file = written(
        tmp_path / "f", (a_field("tail", pa.string(), 2), ["x", "a"]), (a_field("old.name", pa.string()), ["a", "x"])
    )

    assert found(file, it=texts("a", field_id=1), other=texts("a", field_id=2)) == {"it": [0], "other": [1]}


def test_a_file_without_field_ids_is_read_by_the_tables_name_mapping(tmp_path: Path) -> None:
    file = written(tmp_path / "f", (a_field("tail", pa.string(), None), ["x", "a"]))

    assert found(file, {"tail": 1, "gone": 3}, it=texts("a")) == {"it": [1]}


def test_what_a_file_without_the_column_holds_is_the_tables_business(tmp_path: Path) -> None:
    """Null, the default that the column had when it came, or the value of a partition: the same in every row."""
    file = written(tmp_path / "f", (a_field("other", pa.string(), 7), ["a", "b", "c"]))
    wanted = {"default": texts("a"), "else": texts("b"), "both": texts("b", field_id=7)}

    positions = find(SearchedFile(PyArrowFileIO(), file), wanted, if_absent={"default", "both"})

    assert {key: list(p) for key, p in positions.items()} == {"default": [0, 1, 2], "both": [1]}


def test_orc_is_read_stripe_by_stripe(tmp_path: Path) -> None:
    table = pa.table({"tail": [None if n % 7 == 0 else f"t{n % 5}" for n in range(30_000)]})
    orc.write_table(table, tmp_path / "f", stripe_size=64, batch_size=1024)
    assert orc.ORCFile(tmp_path / "f").nstripes > 1

    (positions,) = find(
        SearchedFile(PyArrowFileIO(), f"file://{tmp_path}/f", "ORC", {"tail": 1}), {"it": texts("t3")}
    ).values()

    assert list(positions) == [n for n, v in enumerate(table["tail"].to_pylist()) if v == "t3"]


@pytest.mark.parametrize(
    ("kind", "schema", "rows", "text"),
    [
        ("string", "string", ["a", None, "b", "a"], "a"),
        ("long", "long", [1, None, 2, 1], "1"),
        ("date", {"type": "int", "logicalType": "date"}, [date(2026, 3, 1), None, date(2026, 3, 2)], "2026-03-01"),
        (
            *("timestamptz", {"type": "long", "logicalType": "timestamp-micros"}),
            *([datetime(2026, 3, 1, 12, tzinfo=UTC), None], "2026-03-01T12:00:00Z"),
        ),
        (
            *("timestamp", {"type": "long", "logicalType": "timestamp-micros"}),
            *([datetime(2026, 3, 1, 12, tzinfo=UTC), None], "2026-03-01T12:00:00"),
        ),
        (
            *("decimal(9, 2)", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
            *([Decimal("1.50"), None, Decimal("1.51")], "1.5"),
        ),
        (
            *("uuid", {"type": "fixed", "name": "u", "size": 16}),
            *([uuid.UUID(int=1).bytes, None], "00000000-0000-0000-0000-000000000001"),
        ),
    ],
)
def test_avro_is_read_by_its_own_field_ids(tmp_path: Path, kind: str, schema: Any, rows: list[Any], text: str) -> None:
    fields = [{"name": "old", "type": ["null", schema], "field-id": 1}]
    with (tmp_path / "f").open("wb") as stream:
        fastavro.writer(stream, {"type": "record", "name": "r", "fields": fields}, [{"old": v} for v in rows])
    known = ValueKind.of(kind)
    assert known is not None
    wanted = Wanted.of(1, parse_values(text.encode(), known, "c", "ns/e"))

    found_in = find(SearchedFile(PyArrowFileIO(), f"file://{tmp_path}/f", "AVRO"), {"it": wanted})

    assert list(found_in["it"]) == [n for n, v in enumerate(rows) if v == rows[0]]


def unsure(folder: Path) -> Iterable[tuple[str, str, str]]:
    yield "no ids, no mapping", written(folder / "a", (a_field("tail", pa.string(), None), ["a"])), "PARQUET"
    inner = pa.struct([pa.field("b", pa.string())])
    nested = (a_field("a", inner, 2), [{"b": "x"}]), (a_field("a.b", pa.string()), ["a"])
    yield "two of one name", written(folder / "d", *nested), "PARQUET"
    yield "another type", written(folder / "e", (a_field("tail", pa.list_(pa.string())), [["a"]])), "PARQUET"
    (folder / "f").write_bytes(b"Obj\x01 no Parquet at all")
    yield "no such format", f"file://{folder}/f", "PARQUET"
    yield "an unknown format", f"file://{folder}/f", "PUFFIN"


def test_a_file_that_cannot_be_searched_is_reported(tmp_path: Path) -> None:
    """To take it for a file without such rows would leave them there."""
    for case, file, format_name in unsure(tmp_path):
        with pytest.raises(Unsure, match=str(tmp_path)):
            raise AssertionError(
                f"{case}: {find(SearchedFile(PyArrowFileIO(), file, format_name), {'it': texts('a')})}"
            )


def test_an_error_text_of_arrow_with_a_value_is_not_passed_on(tmp_path: Path) -> None:
    """A column that is not what the table says it is, such as a text where numbers are looked for."""
    file = written(tmp_path / "f", (a_field("c", pa.string()), ["a-secret-value"]))

    with pytest.raises(Unsure) as e:
        found(file, it=Wanted.of(1, Values(ValueKind(ValueType.LONG), (7,))))

    assert "secret" not in str(e.value)
    assert e.value.__suppress_context__
