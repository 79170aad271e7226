"""Which files fit a table, and what it takes over from those that do not."""

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.ingest.buffer_files import COLUMNS_WANTED, decode_columns, encode_columns
from lethe.ingest.exact_values import as_column, fits, promotes
from lethe.ingest.schema_fit import Fits, Lacks, Misfit, Rules, compare, plan_evolution
from lethe_spark.ingest import as_columns
from pyspark.sql.types import StructType

from tests.support.buffer_formats import FORMATS, read, some_rows, written

TABLE = pa.schema([("v", pa.int64()), ("day", pa.int32()), ("batch_id", pa.string())])
REFUSE = Rules("batch_id", required=frozenset({"v"}))
ADD = Rules("batch_id", required=frozenset({"v"}), add_columns=True)
V, DAY = ("v", pa.int64()), ("day", pa.int32())


def wanted(*fields: tuple[str, pa.DataType]) -> Lacks:
    return Lacks(pa.schema(list(fields)))


@pytest.mark.parametrize("rules", [REFUSE, ADD])
def test_the_same_columns_fit_with_or_without_the_batch_column_in_any_order(rules: Rules) -> None:
    assert compare(TABLE, TABLE, rules) == Fits()
    assert compare(pa.schema([DAY, V]), TABLE, rules) == Fits()
    assert compare(pa.schema([DAY, ("v", pa.int16())]), TABLE, rules) == Fits()


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (
            [V],
            "column day (int32) is missing; the file has 1 columns; with spec.schemaEvolution: AddColumns, "
            "Lethe would read it as null",
        ),
        ([DAY], "column v (int64) is missing; the file has 1 columns; the table requires it"),
        (
            [V, DAY, ("x", pa.int8())],
            "a column that the table does not have (number 3 of 3); the table has v, day, batch_id; ",
        ),
        ([V, DAY, ("x", pa.int8())], "with spec.schemaEvolution: AddColumns, Lethe would add it (int8)"),
        (
            [V, ("day", pa.int64())],
            "column day is int64, expected int32; with spec.schemaEvolution: AddColumns, Lethe would widen",
        ),
        (
            [V, ("day", pa.string())],
            "column day is string, expected int32; spec.schemaEvolution: AddColumns cannot",
        ),
        ([V, V, DAY], "column v is in the file 2 times"),
    ],
)
def test_without_schema_evolution_a_difference_is_refused_with_the_remedy(
    file: list[tuple[str, pa.DataType]], said: str
) -> None:
    found = compare(pa.schema(file), TABLE, REFUSE)

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


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ([DAY], "column v (int64) is missing; the file has 1 columns; the table requires it"),
        (
            [V, ("day", pa.string())],
            "column day is string, expected int32; spec.schemaEvolution: AddColumns cannot",
        ),
        ([V, ("day", pa.float64())], "column day is double, expected int32"),
        ([("v", pa.uint64()), DAY], "column v is uint64, expected int64"),
        ([V, DAY, ("x", pa.time64("us"))], "spec.schemaEvolution: AddColumns cannot add a column of type time64[us]"),
        ([V, DAY, ("Day", pa.int32())], "it cannot be added, because its name differs from day only in case"),
        (
            [V, DAY, ("x", pa.int8()), ("x", pa.int8())],
            "a column that the table does not have (number 3 of 4) is in the file 2 times",
        ),
        *(([V, DAY, (n, pa.int8())], "its name is empty, contains a dot") for n in ("_POS", "_lethe_error", "a.b", "")),
        ([V, DAY, ("batch_id", pa.int64())], "column batch_id is int64, expected string"),
    ],
)
def test_what_iceberg_does_not_promote_is_refused_with_both_types_and_the_option(
    file: list[tuple[str, pa.DataType]], said: str
) -> None:
    found = compare(pa.schema(file), TABLE, ADD)

    assert isinstance(found, Misfit)
    assert said in found.message


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
