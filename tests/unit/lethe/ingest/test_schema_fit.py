"""Which files fit a table, what it takes over from those that do not, and change data that is parted by keys."""

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.base.errors import InputError
from lethe.contract.run import Replacement, RestatementRequest
from lethe.contract.settings import FileFormat
from lethe.files.values import ValueKind, ValueType
from lethe.ingest import change_rows
from lethe.ingest.buffer_files import COLUMNS_WANTED, FileOutcome, Reader, ReadSettings, decode_columns, encode_columns
from lethe.ingest.buffer_store import BadFile, FileTask
from lethe.ingest.change_rows import Keyed, decoded, encoded
from lethe.ingest.checking import columns_of
from lethe.ingest.exact_values import as_column, fits, promotes
from lethe.ingest.schema_fit import (
    Fits,
    Fitting,
    Lacks,
    Misfit,
    Piece,
    Rules,
    compare,
    path_columns,
    plan_evolution,
    too_long,
)
from lethe.search.columns import key_columns
from lethe_spark.ingest import as_columns
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    UUIDType,
)
from pyiceberg.types import StructType as IcebergStruct
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tests.support.buffer_formats import FORMATS, SCHEMA, avro, columns, read, some_rows, written
from tests.support.builders import a_change, a_replay

TABLE = pa.schema([("v", pa.int64()), ("day", pa.int32()), ("batch_id", pa.string())])
REFUSE = Rules("batch_id", required=frozenset({"v"}))
ADD = Rules("batch_id", required=frozenset({"v"}), add_columns=True)
V, DAY = ("v", pa.int64()), ("day", pa.int32())


def wanted(*fields: tuple[str, pa.DataType]) -> Lacks:
    return Lacks(pa.schema(list(fields)))


X = ("x", pa.int8())
MISFITS: list[tuple[Rules, list[tuple[str, pa.DataType]], str]] = [
    (REFUSE, [V], "column day (int32) is missing; the file has 1 columns; with spec.schemaEvolution: AddColumns, "),
    (REFUSE, [DAY], "column v (int64) is missing; the file has 1 columns; the table requires it"),
    (REFUSE, [V, DAY, X], "a column that the table does not have (number 3 of 3); the table has v, day, batch_id; "),
    (REFUSE, [V, DAY, X], "with spec.schemaEvolution: AddColumns, Lethe would add it (int8)"),
    (REFUSE, [V, ("day", pa.int64())], "column day is int64, expected int32; with spec.schemaEvolution: AddColumns"),
    (REFUSE, [V, ("day", pa.string())], "day is string, expected int32; spec.schemaEvolution: AddColumns cannot"),
    (REFUSE, [V, V, DAY], "column v is in the file 2 times"),
    (ADD, [DAY], "column v (int64) is missing; the file has 1 columns; the table requires it"),
    (ADD, [V, ("day", pa.string())], "column day is string, expected int32; spec.schemaEvolution: AddColumns cannot"),
    (ADD, [V, ("day", pa.float64())], "column day is double, expected int32"),
    (ADD, [("v", pa.uint64()), DAY], "column v is uint64, expected int64"),
    (ADD, [V, DAY, ("x", pa.time64("us"))], "AddColumns cannot add a column of type time64[us]"),
    (ADD, [V, DAY, ("Day", pa.int32())], "it cannot be added, because its name differs from day only in case"),
    (ADD, [V, DAY, X, X], "a column that the table does not have (number 3 of 4) is in the file 2 times"),
    *(
        (ADD, [V, DAY, (n, pa.int8())], "its name is empty, contains a dot")
        for n in ("_POS", "_lethe_error", "a.b", "")
    ),
    (ADD, [V, DAY, ("batch_id", pa.int64())], "column batch_id is int64, expected string"),
]


@pytest.mark.parametrize(("rules", "file", "said"), MISFITS)
def test_a_difference_is_refused_with_both_types_and_the_remedy(
    rules: Rules, file: list[tuple[str, pa.DataType]], said: str
) -> None:
    found = compare(pa.schema(file), TABLE, rules)

    assert isinstance(found, Misfit)
    assert said in found.message


@pytest.mark.parametrize(
    ("file", "lacks"),
    [
        ([V], Fits()),
        ([V, DAY, ("x", pa.int8()), ("t", pa.large_string())], wanted(("x", pa.int32()), ("t", pa.string()))),
        ([V, ("day", pa.int64())], wanted(("day", pa.int64()))),
        ([V, ("day", pa.uint32())], wanted(("day", pa.int64()))),
        ([V, DAY, ("at", pa.timestamp("ns", "Europe/Berlin"))], wanted(("at", pa.timestamp("us", "UTC")))),
        ([V, DAY, ("s", pa.struct([("a", pa.int8())]))], wanted(("s", pa.struct([("a", pa.int32())])))),
        ([V, DAY, ("nothing", pa.null())], Fits()),
    ],
)
def test_with_leave_columns_and_wider_types_are_wanted_and_optional_ones_may_be_missing(
    file: list[tuple[str, pa.DataType]], lacks: Fits | Lacks
) -> None:
    assert compare(pa.schema(file), TABLE, ADD) == lacks


@pytest.mark.parametrize("file", [TABLE, pa.schema([DAY, V]), pa.schema([DAY, ("v", pa.int16())])])
def test_the_same_columns_fit_with_or_without_the_batch_column_in_any_order(file: pa.Schema) -> None:
    assert compare(file, TABLE, REFUSE) == compare(file, TABLE, ADD) == Fits()


TYPES = st.sampled_from(
    [
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()),
        *(pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.date32(), pa.large_string(), pa.binary()),
        *(pa.decimal128(9, 2), pa.decimal128(12, 2), pa.timestamp("ms"), pa.timestamp("ns", "UTC")),
        *(pa.list_(pa.int8()), pa.map_(pa.string(), pa.float32()), pa.dictionary(pa.int8(), pa.string())),
    ]
)


@given(TYPES)
def test_every_value_of_a_file_fits_the_column_made_for_it(type_: pa.DataType) -> None:
    column = as_column(type_)

    assert column is not None
    assert fits(type_, column)
    assert as_column(column) == column
    assert not promotes(column, column)


SCHEMAS = st.lists(st.tuples(st.sampled_from(["v", "x", "X", "y"]), TYPES), max_size=3, unique_by=lambda f: f[0])


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), SCHEMAS))
def test_a_table_that_took_over_what_batches_want_fits_those_that_were_not_refused(
    files: dict[str, list[tuple[str, pa.DataType]]],
) -> None:
    """Whatever they want together: no second look finds them wanting, and nothing narrows."""
    optional = Rules("batch_id", add_columns=True)
    found = {i: compare(pa.schema(f), TABLE, optional) for i, f in files.items()}
    lacking = {i: [(f"file-{i}", f.columns)] for i, f in found.items() if isinstance(f, Lacks)}

    evolution = plan_evolution(TABLE, lacking)

    after = {f.name: f.type for f in TABLE} | {f.name: f.type for f in evolution.columns}
    table = pa.schema(list(after.items()))
    for batch_id, fit in found.items():
        if not isinstance(fit, Misfit) and batch_id not in evolution.refused:
            assert compare(pa.schema(files[batch_id]), table, optional) == Fits()
    assert len({n.lower() for n in table.names}) == len(table.names)
    for column in evolution.columns:
        assert column.name not in TABLE.names or promotes(TABLE.field(column.name).type, column.type)


def test_batches_of_a_run_share_the_widest_type_and_one_that_contradicts_is_refused() -> None:
    """The first by its id decides, so that the same batches always make the same table."""
    evolution = plan_evolution(
        TABLE,
        {
            "c": [("file-c", pa.schema([("x", pa.string()), ("only-of-c", pa.int32())]))],
            "b": [("file-b", pa.schema([("x", pa.int64())]))],
            "a": [("file-a", pa.schema([("x", pa.int32())]))],
        },
    )

    assert evolution.columns == pa.schema([("x", pa.int64())])
    assert list(evolution.refused) == ["c"]
    uri, message = evolution.refused["c"]
    assert uri == "file-c"
    assert "a column that the table does not have is string, but int64 in another batch of this run" in message
    assert "only-of-c" not in message


def test_a_new_column_is_optional_and_a_widened_one_as_required_as_it_was() -> None:
    table = StructType().add("v", "integer", nullable=False).add("day", "integer").add("batch_id", "string")
    evolution = plan_evolution(
        pa.schema([("v", pa.int32()), DAY]),
        {"a": [("f", pa.schema([("v", pa.int64()), ("wall", pa.timestamp("us")), ("at", pa.timestamp("us", "UTC"))]))]},
    )

    assert as_columns(evolution, table).simpleString() == "struct<v:bigint,wall:timestamp_ntz,at:timestamp>"
    assert [f.nullable for f in as_columns(evolution, table)] == [False, True, True]


@pytest.mark.parametrize("format_name", ["parquet", "orc", "avro"])
def test_a_file_that_needs_columns_returns_them_instead_of_rows(tmp_path: Path, format_name: str) -> None:
    """It is not read any further."""
    rows, [(reason, text)] = read(tmp_path, format_name, written(format_name, some_rows(extra=1)), add_columns=True)

    assert (rows, reason) == ([], COLUMNS_WANTED)
    assert decode_columns(text) == pa.schema([("extra", pa.int64())])
    assert decode_columns(encode_columns(TABLE)) == TABLE


@pytest.mark.parametrize("format_name", ["json", "csv"])
def test_files_that_do_not_say_types_add_no_columns(tmp_path: Path, format_name: str) -> None:
    """A guess would be in the table for ever."""
    _, [(reason, message)] = read(tmp_path, format_name, written(format_name, some_rows(extra=1)), add_columns=True)

    assert reason == "SchemaMismatch"
    assert "the file has a column that the table does not have (number " in message
    assert "extra" not in message
    assert "add it to the table first" in message


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_missing_optional_column_is_null_where_columns_may_change(tmp_path: Path, format_name: str) -> None:
    content = written(format_name, some_rows(2).select(["v"]))

    rows, refused = read(tmp_path, format_name, content, add_columns=True)
    assert (rows, refused) == ([{"v": 0, "day": None, "batch_id": "A"}, {"v": 7919, "day": None, "batch_id": "A"}], [])

    required = StructType().add("v", "long").add("day", "integer", nullable=False).add("batch_id", "string")
    _, refused = read(tmp_path, format_name, content, schema=required, add_columns=True)
    assert [r for r, _ in refused] == ["SchemaMismatch"]
    assert "column day" in refused[0][1]


PLACE = IcebergStruct(
    NestedField(8, "x", LongType()), NestedField(10, "z", LongType(), initial_default=1, write_default=1)
)
KEY_SCHEMA = Schema(
    NestedField(1, "batch_id", StringType()),
    NestedField(3, "tailnum", StringType()),
    NestedField(5, "day", DateType()),
    NestedField(6, "weight", DoubleType()),
    NestedField(7, "place", PLACE),
    NestedField(9, "fare", DecimalType(9, 2)),
    NestedField(11, "stops", ListType(12, StringType())),
)


def a_change_by(*columns: str, op: str = "op") -> RestatementRequest:
    return a_change(replacement=Replacement(batch_id="C1", uri="s3://l/C1/", key_columns=columns, op_column=op))


def test_keys_are_identified_by_field_ids_in_the_given_order() -> None:
    found = key_columns(a_change_by("fare", "tailnum", "place.x", "day"), KEY_SCHEMA, 1, "air.flights")

    assert [(c.path.field_id, c.kind) for c in found] == [
        (9, ValueKind(ValueType.DECIMAL, 9, 2)),
        (3, ValueKind(ValueType.STRING)),
        (8, ValueKind(ValueType.LONG)),
        (5, ValueKind(ValueType.DATE)),
    ]
    assert key_columns(a_replay(), KEY_SCHEMA, 1, "air.flights") == []


@pytest.mark.parametrize(
    ("request_", "reason", "text"),
    [
        (a_change_by("day", "nope"), "ColumnNotFound", "keyColumns names nope, but air.flights has no such column"),
        (
            a_change_by("place.y"),
            "ColumnNotFound",
            "keyColumns names place.y, but air.flights has no such column; the nearest",
        ),
        (
            a_change_by("stops.element"),
            "ColumnNotSearchable",
            "keyColumns names stops.element, of which a row has several",
        ),
        (
            a_change_by("place.z"),
            "ColumnNotSearchable",
            "keyColumns names place.z, a field that has an initial default",
        ),
        (a_change_by("weight"), "ColumnNotSearchable", "keyColumns names weight, which is double"),
        (a_change_by("place"), "ColumnNotSearchable", "keyColumns names place, which is struct"),
        (a_change_by("batch_id"), "InvalidSpec", "keyColumns names the batch column batch_id"),
        (a_change_by("day", op="fare"), "InvalidSpec", "opColumn names fare, which is a column of air.flights"),
    ],
)
def test_columns_that_cannot_be_keys_are_refused_by_name(request_: RestatementRequest, reason: str, text: str) -> None:
    with pytest.raises(InputError) as refused:
        key_columns(request_, KEY_SCHEMA, 1, "air.flights")

    assert refused.value.reason == reason
    assert text in refused.value.message
    assert refused.value.message.startswith("Restatement ns/change: spec.replacement.")
    assert refused.value.message.endswith("Nothing was changed.")


KEYED_TABLE = pa.schema([("v", pa.int64()), ("name", pa.string()), ("batch_id", pa.string())])
FITTING = Fitting("batch_id", frozenset({"name"}), False, KEYED_TABLE)
BY_V = Keyed((("v",),), "op")


def rows(*of: tuple[Any, ...], op: pa.DataType | None = None) -> pa.Table:
    v, name, ops = zip(*of, strict=True)
    return pa.table({"v": pa.array(v, pa.int64()), "name": name, "op": pa.array(ops, op or pa.string())})


def keys(*v: int, **more: list[Any]) -> bytes:
    return encoded(pa.table({"v": pa.array(v, pa.int64()), **more}))


@pytest.mark.parametrize("op", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())], ids=str)
def test_rows_to_delete_are_not_added_and_the_keys_of_all_rows_are_returned(op: pa.DataType) -> None:
    """What is only deleted need not hold what the table requires."""
    changes = rows((1, "a", "U"), (2, None, "D"), (3, "c", "I"), (4, "d", None), (5, "e", ""), op=op)

    added, found = BY_V.parted(changes, FITTING)

    assert added.column_names == ["v", "name"]
    assert added.column("v").to_pylist() == [1, 3, 4, 5]
    assert decoded(encoded(found)).column("v").to_pylist() == [1, 2, 3, 4, 5]


def test_without_such_a_column_all_rows_are_added() -> None:
    changes = rows((1, "a", "D"))

    added, found = Keyed((("name",), ("v",))).parted(changes, FITTING)

    assert (added, found.to_pylist()) == (changes, [{"name": "a", "v": 1}])


def test_an_operation_column_of_nulls_adds_all_rows() -> None:
    """As a producer writes it that has no deletes today."""
    changes = rows((1, "a", None), op=pa.null())

    assert BY_V.without_op(changes.schema).names == ["v", "name"]
    assert BY_V.parted(changes, FITTING)[0].num_rows == 1


def test_keys_are_returned_in_the_types_of_the_table() -> None:
    changes = pa.table({"v": pa.array([1], pa.int16()), "name": ["a"], "op": ["D"]})

    assert BY_V.parted(changes, FITTING)[1].schema.field("v").type == pa.int64()


@pytest.mark.parametrize(
    ("changes", "reason", "text"),
    [
        (rows((None, "hush", "D")), "NullInKey", "column v, one of spec.replacement.keyColumns, holds nulls"),
        (rows((1, "hush", "hush")), "UnknownOperation", "column op holds values other than U, I, D and null"),
        (rows((1, "hush", "u")), "UnknownOperation", "column op holds"),
        (
            pa.table({"v": ["hush"], "name": ["a"], "op": ["U"]}),
            "SchemaMismatch",
            "column v is string and holds a value that cannot be converted to int64",
        ),
    ],
)
def test_rows_with_unusable_keys_or_operations_are_refused_by_the_column(
    changes: pa.Table, reason: str, text: str
) -> None:
    with pytest.raises(BadFile) as refused:
        BY_V.parted(changes, FITTING)

    assert refused.value.reason == reason
    assert text in refused.value.message
    assert "hush" not in refused.value.message


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"name": pa.string(), "op": pa.string()}, "column v, one of spec.replacement.keyColumns, is missing"),
        ({"v": pa.int64()}, "column op, spec.replacement.opColumn, must be in the file exactly once"),
        ({"v": pa.int64(), "op": pa.int8()}, "column op, spec.replacement.opColumn, is int8, expected string"),
    ],
)
def test_files_without_the_columns_are_refused(fields: dict[str, pa.DataType], text: str) -> None:
    with pytest.raises(BadFile) as refused:
        BY_V.without_op(pa.schema(list(fields.items())))

    assert (refused.value.reason, refused.value.message) == ("SchemaMismatch", text)


def test_a_key_in_two_rows_is_refused_with_a_file_that_it_is_in() -> None:
    """Both values have to be the same, in one file or in two."""
    by_both = Keyed((("v",), ("name",)))
    fine = {"a": [keys(1, 1, name=["x", "y"])], "b": [keys(2, name=["x"])]}

    assert isinstance(by_both.judged(fine), pa.Table)
    refused = by_both.judged(fine | {"c": [keys(77, 1, name=["x", "y"])]})

    assert isinstance(refused, tuple)
    uri, bad = refused
    assert (uri, bad.reason) == ("c", "DuplicateKey")
    assert bad.message.startswith("1 keys (v, name) are in several rows of the replacement, one of them in this file")


def test_more_keys_than_a_worker_can_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_rows, "KEYS_AT_MOST", 2)

    refused = BY_V.judged({"a": [keys(1, 2, 3)]})

    assert isinstance(refused, tuple)
    assert (refused[1].reason, "at least 3 rows" in refused[1].message) == ("TooManyKeys", True)


@pytest.mark.parametrize("format_name", FORMATS)
def test_files_of_every_format_are_read_so_and_other_batches_as_ever(tmp_path: Path, format_name: str) -> None:
    """Beside them in one task. A key that is null keeps out its own batch."""
    plain = some_rows(2)
    changes = some_rows(4).append_column("op", pa.array(["U", "D", None, "I"]))
    bad = pa.table({"v": pa.array([1, None]), "day": pa.array([1, 1], pa.int32()), "op": ["D", "D"]})
    tasks = []
    for batch_id, rows in (("A", plain), ("B", changes), ("C", bad)):
        file = tmp_path / batch_id
        file.write_bytes(written(format_name, rows))
        tasks.append(FileTask(batch_id, f"file://{file}", file.stat().st_size))
    collected: dict[tuple[str, str], FileOutcome] = {}
    keyed = dict.fromkeys("BC", Keyed((("v",),), "op"))

    reader = Reader(to_arrow_schema(SCHEMA), ReadSettings("batch_id", {}, FileFormat(format_name), keyed=keyed))
    found = [r for t in reader.tables(tasks, collected) for r in t.to_pylist()]

    v = some_rows(4).column("v").to_pylist()
    assert sorted((r["batch_id"], r["v"]) for r in found) == [
        *(("A", i) for i in v[:2]),
        *(("B", i) for i in (v[0], v[2], v[3])),
    ]
    outcomes = {batch: t for (batch, _), t in collected.items()}
    assert [outcomes[b].rows for b in "ABC"] == [2, 3, 0]
    assert [k for t in outcomes["B"].keys for k in decoded(t).column("v").to_pylist()] == v
    assert outcomes["A"].keys == ()
    error = outcomes["C"].error
    assert error is not None
    assert error.reason == "NullInKey"


TEXT_IN_STRUCT = NestedField(1, "s", IcebergStruct(NestedField(2, "t", StringType())))


@pytest.mark.parametrize(
    ("field", "rows", "column"),
    [
        (TEXT_IN_STRUCT, {"s": [None, {"t": "a"}, {"t": "x" * 300}]}, ("s", "t")),
        (NestedField(2, "s.t", StringType()), {"s.t": [None, "a", "x" * 300]}, ("s.t",)),
    ],
)
def test_a_field_and_a_column_with_a_dot_have_the_limit_of_a_folder(
    field: NestedField, rows: dict[str, Any], column: tuple[str, ...]
) -> None:
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "s.t"))

    ((found, limit),) = path_columns(Schema(field), spec)
    flaw = too_long(pa.table(rows), found, limit)

    assert found == column
    assert flaw is not None
    assert (flaw.row, flaw.path) == (2, "s.t")


NESTED = columns(v="long", customer=StructType().add("id", "long").add("email", "string"))
AVRO_CUSTOMER = {
    "type": "record",
    "name": "customer",
    "fields": [{"name": "email", "type": "string"}, {"name": "id", "type": ["null", "long"]}],
}


@pytest.mark.parametrize("format_name", ["parquet", "orc", "avro", "json"])
def test_a_key_may_be_a_field_of_a_struct_in_every_format_that_has_structs(tmp_path: Path, format_name: str) -> None:
    """Also where the file has the fields in another order. A key of a null struct is null."""
    rows = [{"v": 1, "customer": {"email": "a", "id": 7}}, {"v": 2, "customer": {"email": "b", "id": 8}}]
    kind = pa.struct([("email", pa.string()), ("id", pa.int32())])
    if format_name == "avro":
        out = io.BytesIO()
        avro(out, [{"name": "v", "type": "long"}, {"name": "customer", "type": ["null", AVRO_CUSTOMER]}], rows)
        content = out.getvalue()
    else:
        content = written(format_name, pa.Table.from_pylist(rows, pa.schema([("v", pa.int64()), ("customer", kind)])))
    keyed = {"A": Keyed((("customer", "id"), ("customer", "email")))}
    file = tmp_path / "f"
    file.write_bytes(content)
    outcomes: dict[tuple[str, str], FileOutcome] = {}

    reader = Reader(to_arrow_schema(NESTED), ReadSettings("batch_id", {}, FileFormat(format_name), keyed=keyed))
    found = [r for t in reader.tables([FileTask("A", f"file://{file}", len(content))], outcomes) for r in t.to_pylist()]

    assert [r["customer"] for r in found] == [r["customer"] for r in rows]
    (outcome,) = outcomes.values()
    assert [decoded(k).to_pydict() for k in outcome.keys] == [{"customer.id": [7, 8], "customer.email": ["a", "b"]}]
    judged = keyed["A"].judged({"f": outcome.keys})
    assert isinstance(judged, pa.Table)
    assert judged.num_rows == 2
    with pytest.raises(BadFile, match=r"column customer\.id, one of spec\.replacement\.keyColumns, holds nulls"):
        keyed["A"].parted(pa.table({"v": [1], "customer": pa.array([None], kind)}), reader.fitting)


UUID_TEXT = "0f4b5f0a-0000-4000-8000-000000000001"
NARROW = Schema(
    NestedField(1, "u", UUIDType()),
    NestedField(2, "f", FixedType(3)),
    NestedField(3, "l", ListType(4, UUIDType(), element_required=False)),
    NestedField(5, "m", MapType(6, StringType(), 7, IcebergStruct(NestedField(8, "f", FixedType(3))))),
    NestedField(9, "batch_id", StringType()),
)
NOT_STORED: list[tuple[str, Any, str]] = [
    ("u", "7", "row 1: column u holds a text that is not a UUID"),
    ("u", f"{UUID_TEXT}\n", "row 1: column u holds a text that is not a UUID"),
    ("f", b"abcd", "row 1: column f holds bytes of another length than 3"),
    ("f", b"", "row 1: column f holds bytes of another length than 3"),
    ("l", [UUID_TEXT, "7"], "row 1: column l.element holds a text that is not a UUID"),
    ("m", [("k", {"f": b"a"})], "row 1: column m.value.f holds bytes of another length than 3"),
]


@pytest.mark.parametrize(("column", "value", "said"), NOT_STORED, ids=[repr(value) for _, value, _ in NOT_STORED])
def test_values_that_the_column_of_a_table_cannot_hold_are_refused(column: str, value: Any, said: str) -> None:
    """UUIDs are texts for Spark, and bytes of a fixed length are any bytes. Iceberg's writers fail at other values."""
    reader = Reader(columns_of(NARROW), ReadSettings("batch_id", {}))
    good = {"u": UUID_TEXT, "f": b"abc", "l": [UUID_TEXT.upper(), None], "m": [("k", {"f": b"abc"})]}

    def fitted(second: dict[str, Any]) -> pa.Table:
        columns = {n: pa.array([good[n], second[n], None], reader.target.field(n).type) for n in good}
        return reader.fitting.fitted([Piece(FileTask("A", "f", 0), pa.table(columns))])

    assert fitted(good).num_rows == 3
    with pytest.raises(BadFile) as refused:
        fitted({**good, column: value})
    assert refused.value.message == said
