"""Where rows lie in a file, by values or keys: every one at the position that Iceberg counts, and no other row."""

import io
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
from lethe.search.positions import SearchedFile, Unsure, Wanted, WantedKeys, find, find_keys
from pyiceberg.io.pyarrow import PyArrowFileIO

from tests.support.buffer_formats import with_codec


def a_field(name: str, type_: pa.DataType, field_id: int | None = 1) -> pa.Field:
    return pa.field(name, type_, metadata={} if field_id is None else {"PARQUET:field_id": str(field_id)})


def written(path: Path, *columns: tuple[pa.Field, Any], rows_per_group: int = 1000, **how: Any) -> str:
    arrays = [pa.array(values, f.type) for f, values in columns]
    table = pa.Table.from_arrays(arrays, schema=pa.schema([f for f, _ in columns]))
    pq.write_table(table, path, row_group_size=rows_per_group, **how)
    return f"file://{path}"


def texts(*values: str, field_id: int = 1) -> Wanted:
    return Wanted.of(field_id, Values(ValueKind(ValueType.STRING), tuple(sorted(values))))


def found(uri: str, names: Mapping[tuple[str, ...], int] | None = None, **wanted: Wanted) -> dict[str, list[int]]:
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


NOON, NOON_UTC = datetime(2026, 3, 1, 12), datetime(2026, 3, 1, 12, tzinfo=UTC)  # noqa: DTZ001
UUIDS = [uuid.UUID(int=1).bytes, uuid.UUID(int=10).bytes]


def test_what_a_file_without_the_column_holds_is_the_tables_business(tmp_path: Path) -> None:
    """Null, the default that the column had when it came, or the value of a partition: the same in every row."""
    file = written(tmp_path / "f", (a_field("other", pa.string(), 7), ["a", "b", "c"]))
    wanted = {"default": texts("a"), "else": texts("b"), "both": texts("b", field_id=7)}

    positions = find(SearchedFile(PyArrowFileIO(), file), wanted, if_absent={"default", "both"})

    assert {key: list(p) for key, p in positions.items()} == {"default": [0, 1, 2], "both": [1]}


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (ValueKind(ValueType.DATE), 20_000, pa.int32()),
        (ValueKind(ValueType.TIMESTAMP), 10**15, pa.int64()),
        (ValueKind(ValueType.TIMESTAMPTZ), 10**15, pa.int64()),
        (ValueKind(ValueType.STRING), "b", pa.binary()),
    ],
)
def test_rows_are_found_beside_values_that_python_does_not_have(
    tmp_path: Path, kind: ValueKind, value: Any, stored: pa.DataType
) -> None:
    """Such as the date `infinity` of PostgreSQL, and text in another encoding."""
    search = Wanted.of(1, Values(kind, (value,)))
    own, last = (value.encode(), b"\xff") if isinstance(value, str) else (value, 2 ** (stored.bit_width - 2))
    column = pa.array([own, last, None, own], stored)
    column = column.view(search.array.type) if stored == pa.binary() else column.cast(search.array.type)

    assert found(written(tmp_path / "f", (a_field("c", search.array.type), column)), it=search) == {"it": [0, 3]}


@pytest.mark.parametrize("codec", ["snappy", "zstandard"])
def test_avro_of_each_codec_is_searched(tmp_path: Path, codec: str) -> None:
    out = io.BytesIO()
    fields = [{"name": "name", "type": "string", "field-id": 1}]
    fastavro.writer(out, {"type": "record", "name": "r", "fields": fields}, [{"name": n} for n in ("a", "b", "a")])
    (tmp_path / "f").write_bytes(with_codec(out.getvalue(), codec))

    found = find(SearchedFile(PyArrowFileIO(), f"file://{tmp_path}/f", "AVRO"), {"it": texts("a")})

    assert list(found["it"]) == [0, 2]


@pytest.mark.parametrize(
    ("kind", "logical"),
    [
        (ValueKind(ValueType.DATE), {"type": "int", "logicalType": "date"}),
        (ValueKind(ValueType.TIMESTAMPTZ), {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True}),
        (ValueKind(ValueType.TIMESTAMP), {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False}),
    ],
)
def test_rows_of_avro_files_are_found_beside_times_that_python_does_not_have(
    tmp_path: Path, kind: ValueKind, logical: dict[str, Any]
) -> None:
    """Also by another column: fastavro reads whole records."""
    fields = [{"name": "name", "type": "string", "field-id": 2}, {"name": "t", "type": logical, "field-id": 1}]
    day = 1 if logical["type"] == "int" else 86_400_000_000
    rows = [{"name": n, "t": t} for n, t in (("a", 20_000), ("b", 2_932_897 * day), ("a", -719_163 * day))]
    path = tmp_path / "f"
    with path.open("wb") as out:
        fastavro.writer(out, {"type": "record", "name": "r", "fields": fields}, rows)
    searched = SearchedFile(PyArrowFileIO(), f"file://{path}", "AVRO")
    wanted = {"by time": Wanted.of(1, Values(kind, (20_000,))), "by name": texts("b", field_id=2)}

    assert {key: list(p) for key, p in find(searched, wanted).items()} == {"by time": [0], "by name": [1]}


def test_orc_is_read_stripe_by_stripe(tmp_path: Path) -> None:
    table = pa.table({"tail": [None if n % 7 == 0 else f"t{n % 5}" for n in range(30_000)]})
    orc.write_table(table, tmp_path / "f", stripe_size=64, batch_size=1024)
    assert orc.ORCFile(tmp_path / "f").nstripes > 1

    (positions,) = find(
        SearchedFile(PyArrowFileIO(), f"file://{tmp_path}/f", "ORC", {("tail",): 1}), {"it": texts("t3")}
    ).values()

    assert list(positions) == [n for n, v in enumerate(table["tail"].to_pylist()) if v == "t3"]


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


TEXT, LONG = ValueKind(ValueType.STRING), ValueKind(ValueType.LONG)


def written_columns(path: Path, rows_per_group: int = 1000, ids: bool = True, **columns: pa.Array) -> str:
    """A file whose columns have the field ids 1, 2, … if they have any."""
    fields = [(a_field(name, a.type, n if ids else None), a) for n, (name, a) in enumerate(columns.items(), 1)]
    return written(path, *fields, rows_per_group=rows_per_group)


def keys(*kinds: ValueKind, rows: list[tuple[Any, ...]]) -> WantedKeys:
    """Of the columns with the field ids 1, 2, …"""
    columns = [pa.array(values) for values in zip(*rows, strict=True)]
    return WantedKeys.of(list(enumerate(kinds, 1)), pa.table(columns, names=[str(n) for n in range(len(columns))]))


def found_keys(uri: str, wanted: WantedKeys, format_name: str = "PARQUET", **how: Any) -> list[int]:
    searched = SearchedFile(PyArrowFileIO(), uri, format_name, how.pop("names", None))
    return list(find_keys(searched, {"it": wanted}, **how).get("it", ()))


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
    file = written_columns(tmp_path / "f", rows_per_group=group, **arrays)
    cut = {w[:columns] for w in wanted}

    assert found_keys(file, keys(*(TEXT, LONG, LONG)[:columns], rows=sorted(cut))) == [
        n for n, r in enumerate(rows) if r[:columns] in cut
    ]


INSTANTS = [datetime(1969, 1, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC)]
DAYS = [date(1900, 1, 1), date(2026, 3, 1)]
KEYS: list[tuple[ValueKind, pa.DataType, list[Any]]] = [
    (ValueKind(ValueType.INT), pa.int32(), [7, 8]),
    (ValueKind(ValueType.LONG), pa.int64(), [2**40, 7]),
    (ValueKind(ValueType.DATE), pa.date32(), DAYS),
    (ValueKind(ValueType.TIMESTAMPTZ), pa.timestamp("us", "UTC"), INSTANTS),
    (ValueKind(ValueType.TIMESTAMP), pa.timestamp("us"), [i.replace(tzinfo=None) for i in INSTANTS]),
    (ValueKind(ValueType.DECIMAL, 5, 2), pa.decimal128(5, 2), [Decimal("-2.00"), Decimal("1.50")]),
    (ValueKind(ValueType.UUID), pa.binary(16), UUIDS),
]


@pytest.mark.parametrize(("kind", "type_", "values"), KEYS, ids=[str(kind.type) for kind, *_ in KEYS])
def test_keys_of_each_kind_are_found_alone_and_together_with_others(
    tmp_path: Path, kind: ValueKind, type_: pa.DataType, values: list[Any]
) -> None:
    file = written_columns(tmp_path / "f", k=pa.array([*values, None], type_), v=pa.array([1, 1, 1]))
    is_uuid = kind.type is ValueType.UUID
    wanted = pa.array([str(uuid.UUID(bytes=v)) for v in values] if is_uuid else values, None if is_uuid else type_)

    assert found_keys(file, WantedKeys.of([(1, kind)], pa.table({"k": wanted}))) == [0, 1]
    assert found_keys(file, WantedKeys.of([(1, kind), (2, LONG)], pa.table({"k": wanted, "v": [2, 1]}))) == [1]


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

    hits = found_keys(
        f"file://{path}", keys(TEXT, LONG, rows=[("a", 2), ("b", 1)]), format_name, names={("name",): 1, ("v",): 2}
    )

    assert hits == [1, 2]


@pytest.mark.parametrize("day", ["0001-01-01", "2026-03-02", "9999-12-31"])
def test_times_of_the_type_int96_are_found_whatever_their_year(tmp_path: Path, day: str) -> None:
    """Spark writes times as INT96 by default, and such files are added to tables of Iceberg as they are."""
    times = [datetime(1, 1, 1), None, datetime(2026, 3, 2), datetime(9999, 12, 31)]  # noqa: DTZ001
    column = a_field("t", pa.timestamp("us")), times
    file = written(tmp_path / "f", column, use_deprecated_int96_timestamps=True)
    kind = ValueKind(ValueType.TIMESTAMP)

    hits = found(file, it=Wanted.of(1, parse_values(f"{day}T00:00:00".encode(), kind, "t", "ns/e")))

    assert hits == {"it": [times.index(datetime.fromisoformat(day))]}


def test_a_column_that_a_file_lacks_has_the_default_of_the_table(tmp_path: Path) -> None:
    """By its place among the column's values in order; what is none of them, or null, is no key."""
    file = written_columns(tmp_path / "f", name=pa.array(["a", "b", "a"]))
    wanted = keys(TEXT, LONG, rows=[("a", 5), ("b", 7)])

    assert found_keys(file, wanted, absent={"it": (None, 0)}) == [0, 2]
    assert found_keys(file, wanted, absent={"it": (None, 1)}) == [1]
    assert found_keys(file, wanted, absent={"it": (None, None)}) == []


def test_a_file_without_any_of_the_columns_is_all_or_nothing(tmp_path: Path) -> None:
    file = written_columns(tmp_path / "f", other=pa.array(["a", "b"]))
    wanted = WantedKeys.of([(5, TEXT), (6, LONG)], pa.table({"a": ["x", "y"], "b": [1, 2]}))

    assert found_keys(file, wanted, absent={"it": (0, 0)}) == [0, 1]
    assert found_keys(file, wanted, absent={"it": (0, 1)}) == []


def test_an_unsearchable_file_is_reported_without_a_value(tmp_path: Path) -> None:
    no_ids = written_columns(tmp_path / "no-ids", ids=False, name=pa.array(["secret"]))
    other_type = written_columns(tmp_path / "other", name=pa.array(["secret"]))

    with pytest.raises(Unsure, match="no field ids") as first:
        found_keys(no_ids, keys(TEXT, rows=[("secret",)]))
    with pytest.raises(Unsure) as second:
        found_keys(other_type, keys(LONG, rows=[(1,)]))

    assert "secret" not in f"{first.value}{second.value}{keys(TEXT, rows=[('secret',)])}"


# --- fields of structs and lists ------------------------------------------------------------------------------------

PEOPLE = st.none() | st.fixed_dictionaries({"email": st.none() | st.sampled_from("abc"), "age": st.integers(0, 2)})
TRIPS = st.fixed_dictionaries(
    {
        "c": PEOPLE,
        "l": st.none() | st.lists(PEOPLE, max_size=3),
        "m": st.just([("k", "a")]),
        "z": st.sampled_from("abc"),
    }
)
EMAIL_OF_CUSTOMER, AGE_OF_CUSTOMER, EMAIL_IN_LIST, LAST = 3, 4, 7, 12


def person(first_id: int, key: str) -> pa.DataType:
    fields = [("age", pa.int64(), first_id + 1), ("email", pa.string(), first_id)]
    return pa.struct([pa.field(name, kind, metadata={key: str(n)}) for name, kind, n in fields])


def trips(key: str) -> pa.Schema:
    """The fields of a struct are in another order than their ids, and a map is between other columns."""
    element = pa.field("item", person(7, key), metadata={key: "6"})
    text = pa.map_(
        pa.field("key", pa.string(), False, metadata={key: "10"}), pa.field("value", pa.string(), metadata={key: "11"})
    )
    kinds = [("c", person(3, key), 2), ("l", pa.list_(element), 5), ("m", text, 9), ("z", pa.string(), 12)]
    return pa.schema([pa.field(name, kind, metadata={key: str(n)}) for name, kind, n in kinds])


def avro_person(name: str, first_id: int) -> Any:
    fields = [("age", ["null", "long"], first_id + 1), ("email", ["null", "string"], first_id)]
    return ["null", {"type": "record", "name": name, "fields": [dict(zip(AVRO_FIELD, f, strict=True)) for f in fields]}]


AVRO_FIELD = ("name", "type", "field-id")
AVRO_TRIPS = [
    ("c", avro_person("r2", 3), 2),
    ("l", ["null", {"type": "array", "items": avro_person("r6", 7), "element-id": 6}], 5),
    ("m", {"type": "map", "values": "string", "key-id": 10, "value-id": 11}, 9),
    ("z", "string", 12),
]
WITHOUT_IDS = {
    ("c", "email"): EMAIL_OF_CUSTOMER,
    ("c", "age"): AGE_OF_CUSTOMER,
    ("l", "element", "email"): EMAIL_IN_LIST,
    ("z",): LAST,
}


def written_trips(path: Path, format_name: str, rows: list[dict[str, Any]], group: int) -> str:
    if format_name == "AVRO":
        fields = [dict(zip(AVRO_FIELD, f, strict=True)) for f in AVRO_TRIPS]
        with path.open("wb") as out:
            fastavro.writer(
                out, {"type": "record", "name": "r", "fields": fields}, [{**r, "m": dict(r["m"])} for r in rows]
            )
    elif format_name == "ORC":
        orc.write_table(pa.Table.from_pylist(rows, trips("iceberg.id")), path)
    else:
        pq.write_table(pa.Table.from_pylist(rows, trips("PARQUET:field_id")), path, row_group_size=group)
    return f"file://{path}"


@pytest.mark.parametrize("format_name", ["PARQUET", "ORC", "AVRO"])
@given(rows=st.lists(TRIPS, max_size=20), group=st.integers(1, 7))
def test_a_field_of_a_struct_and_one_in_a_list_are_found_in_every_format(
    tmp_path: Path, format_name: str, rows: list[dict[str, Any]], group: int
) -> None:
    file = written_trips(tmp_path / "f", format_name, rows, group)
    # Arrow writes no ids into ORC files.
    searched = SearchedFile(PyArrowFileIO(), file, format_name, WITHOUT_IDS if format_name == "ORC" else None)
    wanted = {
        "struct": texts("a", field_id=EMAIL_OF_CUSTOMER),
        "list": texts("a", "b", field_id=EMAIL_IN_LIST),
        "last": texts("c", field_id=LAST),
    }
    both = WantedKeys.of(
        [(EMAIL_OF_CUSTOMER, TEXT), (AGE_OF_CUSTOMER, LONG)], pa.table({"0": ["a", "b"], "1": pa.array([1, 2])})
    )

    positions = {key: list(p) for key, p in find(searched, wanted).items()}

    expected = {
        "struct": [n for n, r in enumerate(rows) if r["c"] and r["c"]["email"] == "a"],
        "list": [n for n, r in enumerate(rows) if any(p and p["email"] in ("a", "b") for p in r["l"] or ())],
        "last": [n for n, r in enumerate(rows) if r["z"] == "c"],
    }
    assert positions == {key: found for key, found in expected.items() if found}
    assert list(find_keys(searched, {"it": both}).get("it", ())) == [
        n for n, r in enumerate(rows) if r["c"] and (r["c"]["email"], r["c"]["age"]) in (("a", 1), ("b", 2))
    ]


def test_a_field_without_an_id_beside_columns_with_ids_is_not_taken_for_another(tmp_path: Path) -> None:
    """It may hold the values: the file is not one without them."""
    of_strings = pa.struct([pa.field("email", pa.string())])
    file = written(
        tmp_path / "f", (a_field("c", of_strings, 2), [{"email": "a"}]), (a_field("z", pa.string(), 12), ["c"])
    )

    assert found(file, it=texts("c", field_id=LAST)) == {"it": [0]}
    with pytest.raises(Unsure, match="field ids of columns, but not of fields in them"):
        found(file, it=texts("a", field_id=EMAIL_OF_CUSTOMER))
