"""`lethe.scan` finds every value as it was written: nested ones, special numbers, and those of files older than a column."""

import math
from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import lethe
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from lethe.base.errors import InputError
from lethe.iceberg.facts import data_files
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import EqualTo
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import FileFormat
from pyiceberg.table import Table
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.transforms import (
    DayTransform,
    HourTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType

from tests.support.buffer_formats import with_codec
from tests.support.tables import delete_by_position, kinds, new_table, revert, rows

PART = pa.struct([("x", pa.int64()), ("t", pa.string())])
NESTED = pa.schema(
    [
        ("n", pa.int32()),
        ("l", pa.list_(PART)),
        ("m", pa.map_(pa.string(), PART)),
        ("s", pa.struct([("a", pa.int32()), ("l", pa.list_(PART))])),
        ("batch_id", pa.string()),
    ]
)
X = {"x": 1, "t": "a"}
ROWS: list[dict[str, Any]] = [
    {"n": 0, "l": None, "m": None, "s": None, "batch_id": "A"},
    {"n": 1, "l": [], "m": [], "s": {"a": None, "l": None}, "batch_id": "A"},
    {"n": 2, "l": [X], "m": [("k", X)], "s": {"a": 1, "l": []}, "batch_id": "A"},
    {"n": 3, "l": [None, X], "m": [("k", None)], "s": {"a": 2, "l": [None]}, "batch_id": "A"},
]


def add(table: Table, folder: Path, rows: Iterable[dict[str, Any]], schema: pa.Schema) -> None:
    """A file of a writer that knows no field ids. PyIceberg itself writes a null list of structs as an empty one."""
    path = folder / f"{len(list(folder.iterdir()))}.parquet"
    pq.write_table(pa.Table.from_pylist(list(rows), schema), path)
    table.add_files([f"file://{path}"])


@pytest.fixture
def nested(catalog: Catalog, tmp_path: Path) -> Table:
    folder = tmp_path / "files"
    folder.mkdir()
    table = new_table(catalog, "air.nested", NESTED)
    add(table, folder, ROWS, NESTED)
    return table


def numbers(table: Table, condition: Any = None) -> list[int]:
    return sorted(lethe.scan(table, filter=condition, columns=["n"]).to_arrow()["n"].to_pylist())


def by_number(table: Table) -> list[dict[str, Any]]:
    return lethe.scan(table).to_arrow().sort_by("n").to_pylist()


def test_null_empty_and_null_elements_of_nested_columns_are_told_apart(nested: Table) -> None:
    assert by_number(nested) == ROWS
    assert [numbers(nested, f"{c} is null") for c in ("l", "m", "s", "s.a")] == [[0], [0], [0], [0, 1]]
    assert lethe.scan(nested, filter="l is not null").count() == 3
    assert lethe.scan(nested).to_reader().read_all().sort_by("n")["l"].to_pylist() == [r["l"] for r in ROWS]


@pytest.mark.parametrize("kind", [pa.list_view(PART), pa.large_list_view(PART), pa.large_list(PART), pa.list_(PART, 1)])
def test_lists_are_read_whatever_form_the_writer_gave_them(catalog: Catalog, tmp_path: Path, kind: pa.DataType) -> None:
    """Arrow notes the form in the file, and gives it back."""
    table = new_table(catalog, "air.lists", NESTED)
    rows = [{"n": n, "l": parts, "m": None, "s": None, "batch_id": "A"} for n, parts in enumerate(([X], None, [X]))]
    folder = tmp_path / "files"
    folder.mkdir()
    add(table, folder, rows, NESTED)
    (file,) = folder.iterdir()
    pq.write_table(
        pa.Table.from_pylist(rows, NESTED.set(1, pa.field("l", kind))), file
    )  # PyIceberg refuses to add some

    assert by_number(table) == rows


def test_fields_that_were_added_within_structs_are_null_in_older_rows(nested: Table) -> None:
    with nested.update_schema() as update:
        for path in (("l", "element"), ("m", "value"), ("s",), ("s", "l", "element")):
            update.add_column((*path, "new"), IntegerType())
        update.rename_column(("l", "element", "t"), "text")

    found = by_number(nested)

    new = {"x": 1, "text": "a", "new": None}
    assert [r["l"] for r in found] == [None, [], [new], [None, new]]
    assert [r["m"] for r in found] == [None, [], [("k", X | {"new": None})], [("k", None)]]
    assert [r["s"] for r in found] == [
        None,
        {"a": None, "l": None, "new": None},
        {"a": 1, "l": [], "new": None},
        {"a": 2, "l": [None], "new": None},
    ]


SPECIAL = (math.nan, 0.0, -0.0, 1.0, 3.0, math.inf, -math.inf, None)


@pytest.mark.parametrize(("one_file", "partitioned"), [(True, False), (False, False), (False, True)])
def test_filters_on_special_numbers_find_the_same_rows_whatever_their_files(
    catalog: Catalog, one_file: bool, partitioned: bool
) -> None:
    schema = pa.schema([("n", pa.int32()), ("d", pa.float64()), ("batch_id", pa.string())])
    table = new_table(catalog, "air.numbers", schema)
    if partitioned:
        with table.update_spec() as spec:
            spec.add_identity("d")
    # PyIceberg writes no partition of NaN.
    first = 1 if partitioned else 0
    rows = pa.table({"n": range(8), "d": SPECIAL, "batch_id": ["A"] * 8}).cast(schema)
    for n in range(first, 8 if not one_file else first + 1):
        table.append(rows.slice(first) if one_file else rows.slice(n, 1))

    of_all = {
        "d = 0.0": [1, 2],
        "d in (0.0, 2.0)": [1, 2],
        "d not in (3.0, 1.0)": [0, 1, 2, 5, 6],
        "d > 1.0": [0, 4, 5],
        "not (d <= 1.0)": [0, 4, 5],
        "d >= 0.0 and d is not nan": [1, 2, 3, 4, 5],
        "d <= 0.0": [1, 2, 6],
        "d is nan": [0],
        "d is null": [7],
        "d != 3.0 or n = 4": [0, 1, 2, 3, 4, 5, 6],
    }
    wanted = {c: [n for n in found if n >= first] for c, found in of_all.items()}
    assert {c: numbers(table, c) for c in wanted} == wanted
    assert {c: lethe.scan(table, filter=c).count() for c in wanted} == {c: len(w) for c, w in wanted.items()}


SOME_DAY = datetime(2026, 3, 2, 10, 30, tzinfo=UTC)
PARTITIONS: dict[str, tuple[pa.DataType, list[Any], dict[Any, list[int]]]] = {
    "with nulls": (pa.int32(), [1, None, 2], {"p != 1": [2], "p < 2 or n = 1": [0, 1]}),
    "with all digits": (pa.float64(), [0.1, 1e300, 2.0], {"p = 0.1": [0], EqualTo("p", 1e300): [1]}),
}


@pytest.mark.parametrize(("kind", "values", "found"), PARTITIONS.values(), ids=PARTITIONS)
def test_a_filter_on_a_partition_is_judged_like_any_other(
    catalog: Catalog, kind: pa.DataType, values: list[Any], found: dict[Any, list[int]]
) -> None:
    schema = pa.schema([("n", pa.int32()), ("p", kind), ("batch_id", pa.string())])
    table = new_table(catalog, "air.parts", schema)
    with table.update_spec() as spec:
        spec.add_identity("p")
    table.append(pa.table({"n": [0, 1, 2], "p": values, "batch_id": ["A"] * 3}).cast(schema))

    assert {c: numbers(table, c) for c in found} == found
    assert {c: lethe.scan(table, filter=c).count() for c in found} == {c: len(n) for c, n in found.items()}


@pytest.mark.parametrize(("kind", "least"), [(pa.int32(), -(2**31)), (pa.int64(), -(2**63))], ids=str)
def test_the_smallest_numbers_are_found_in_the_partition_of_the_largest(
    catalog: Catalog, kind: pa.DataType, least: int
) -> None:
    """A tenth below the smallest number is none of the type, so writers wrap it around."""
    schema = pa.schema([("n", pa.int32()), ("v", kind), ("batch_id", pa.string())])
    table = new_table(catalog, "air.parts", schema)
    with table.update_spec() as spec:
        spec.add_field("v", TruncateTransform(10))
    values = [least, 0, -11, -least - 1, None]
    table.append(pa.table({"n": range(5), "v": values, "batch_id": ["A"] * 5}).cast(schema))

    found = {f"v = {least}": [0], "v < 0": [0, 2], f"v <= {least}": [0], f"v in ({least}, -11)": [0, 2], "v > 0": [3]}
    assert {c: numbers(table, c) for c in found} == found
    assert {c: lethe.scan(table, filter=c).count() for c in found} == {c: len(n) for c, n in found.items()}


@pytest.mark.parametrize("transform", [YearTransform(), MonthTransform(), DayTransform(), HourTransform()], ids=str)
def test_the_first_and_the_last_moment_are_compared_like_others(catalog: Catalog, transform: Transform) -> None:
    """For a partition of times, PyIceberg computes the moment before, or after, and Python has no year 10000."""
    first, last = (datetime.combine(day, time.min, UTC) for day in (date.min, date.max))
    schema = pa.schema([("n", pa.int32()), ("t", pa.timestamp("us", "UTC")), ("batch_id", pa.string())])
    table = new_table(catalog, "air.parts", schema)
    with table.update_spec() as spec:
        spec.add_field("t", transform)
    table.append(pa.table({"n": [0, 1, 2], "t": [first, SOME_DAY, last], "batch_id": ["A"] * 3}).cast(schema))

    found = {
        "t > '9999-12-31T23:59:59.999999+00:00'": [],
        "t <= '9999-12-31T23:59:59.999999+00:00'": [0, 1, 2],
        "t < '0001-01-01T00:00:00+00:00'": [],
        "not (t < '0001-01-01T00:00:00+00:00')": [0, 1, 2],
    }
    assert {c: numbers(table, c) for c in found} == found


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_deletes_by_position_apply_in_a_partition_of_nan(catalog: Catalog, kind: pa.DataType) -> None:
    """Two NaNs are one partition. Iceberg's Java library writes such partitions, and PyIceberg does not."""
    schema = pa.schema([("n", pa.int32()), ("p", kind), ("batch_id", pa.string())])
    table = new_table(catalog, "air.parts", schema)
    rows = pa.table({"n": range(3), "p": [math.nan] * 3, "batch_id": ["A"] * 3}).cast(schema)
    (file,) = _dataframe_to_data_files(table.metadata, rows, table.io)
    with table.update_spec() as spec:
        spec.add_identity("p")
    file[3], file.spec_id = Record(math.nan), table.spec().spec_id  # its partition
    with table.transaction() as change, change.update_snapshot().fast_append() as append:
        append.append_data_file(file)

    delete_by_position(table, {file.file_path: [1]}, Record(math.nan))

    assert (numbers(table), lethe.scan(table).count()) == ([0, 2], 2)
    assert (numbers(table, "p is nan"), lethe.scan(table, filter="p is nan").count()) == ([0, 2], 2)


@pytest.mark.parametrize("codec", ["snappy", "zstandard"])
def test_deletes_apply_whatever_the_codec_of_the_manifests(catalog: Catalog, codec: str) -> None:
    """Iceberg's Java library writes these with `write.manifest.compression-codec`."""
    table = new_table(catalog)
    table.append(rows("A", "A", "B"))
    (task,) = table.scan().plan_files()
    delete_by_position(table, {task.file.file_path: [1]}, Record())
    for path in Path(table.location().removeprefix("file://")).glob("metadata/*.avro"):
        path.write_bytes(with_codec(path.read_bytes(), codec))

    scan = lethe.scan("lite.air.flights")

    assert scan.to_arrow()["v"].to_pylist() == [0, 2]
    assert [len(f.deletes) for f in data_files(scan.table, scan.snapshot_id, 2)] == [1]


def test_a_file_with_a_value_that_arrow_does_not_have_is_named(catalog: Catalog) -> None:
    """Arrow has times of ORC as nanoseconds, and so none of this year."""
    schema = pa.schema([("t", pa.timestamp("us")), ("batch_id", pa.string())])
    table = new_table(catalog, "air.orc", schema)
    with table.transaction() as change:
        change.set_properties(
            {"schema.name-mapping.default": create_mapping_from_schema(table.schema()).model_dump_json()}
        )
    written = pa.table({"t": [datetime(9999, 12, 31)], "batch_id": ["A"]}).cast(schema)  # noqa: DTZ001
    (file,) = _dataframe_to_data_files(table.metadata, written, table.io)
    orc.write_table(written, file.file_path.removeprefix("file://"))
    file[2] = FileFormat.ORC
    with table.transaction() as change, change.update_snapshot().fast_append() as append:
        append.append_data_file(file)

    with pytest.raises(
        InputError, match=f"the data file {file.file_path} has a value that cannot be read here"
    ) as refused:
        lethe.scan(table).to_arrow()

    assert refused.value.reason == "UnreadableFile"
    assert lethe.scan(table, columns=["batch_id"]).to_arrow().to_pylist() == [{"batch_id": "A"}]


SAME_IN_A_FILE: dict[str, tuple[pa.DataType, Any, Any, str]] = {
    "int": (pa.int32(), 1, 2, "p = 1"),
    "long": (pa.int64(), 2**40, 2**41, f"p < {2**40 + 1}"),
    "boolean": (pa.bool_(), True, False, "p = true"),
    "text": (pa.string(), "Müller", "O'Neill", "p like 'Mü%'"),
    "date": (pa.date32(), date(2026, 3, 2), date(2026, 3, 3), "p <= '2026-03-02'"),
    "time": (pa.time64("us"), time(10, 30), time(11, 30), "p in ('10:30:00', '12:00:00')"),
    "instant": (
        pa.timestamp("us", "UTC"),
        SOME_DAY,
        SOME_DAY + timedelta(days=1),
        "p < '2026-03-02T10:30:00.000001+00:00'",
    ),
    "decimal": (pa.decimal128(9, 2), Decimal("1.25"), Decimal("2.50"), "p = 1.25"),
}


@pytest.mark.parametrize(("kind", "first", "second", "condition"), SAME_IN_A_FILE.values(), ids=SAME_IN_A_FILE)
def test_a_filter_that_the_partition_decides_opens_no_file_to_count(
    catalog: Catalog, opened: list[str], kind: pa.DataType, first: Any, second: Any, condition: str
) -> None:
    schema = pa.schema([("n", pa.int32()), ("p", kind), ("batch_id", pa.string())])
    table = new_table(catalog, "air.parts", schema)
    with table.update_spec() as spec:
        spec.add_identity("p")
    values = [first, first, second, None]
    table.append(pa.table({"n": range(4), "p": values, "batch_id": ["A", "B", "A", "A"]}).cast(schema))

    found = numbers(table, condition)
    opened.clear()
    counted = {c: lethe.scan(table, filter=c).count() for c in (condition, f"not ({condition})", "p is null")}
    data = kinds(opened)["data"]

    assert (found, counted, data) == ([0, 1], {condition: 2, f"not ({condition})": 1, "p is null": 1}, 0)
    assert numbers(table, f"{condition} and n = 1") == [1]
    assert lethe.scan(table, filter=f"{condition} and n = 1").count() == 1


def test_a_filter_on_batches_opens_only_files_of_several(table: Table, opened: list[str]) -> None:
    for batches in (["A", "A"], ["B"], ["A", "B"], ["A", None]):
        table.append(pa.table({"v": range(len(batches)), "batch_id": batches}).cast(table.schema().as_arrow()))
    counted = {}
    for condition in ("batch_id = 'A'", "batch_id != 'A'", "batch_id is null"):
        opened.clear()
        counted[condition] = lethe.scan(table, filter=condition).count(), kinds(opened)["data"]

    assert counted == {"batch_id = 'A'": (4, 2), "batch_id != 'A'": (2, 2), "batch_id is null": (1, 1)}


def test_files_of_format_version_1_are_listed_after_an_upgrade(catalog: Catalog) -> None:
    """Their manifests do not say that they hold data files. A vacuum that did not see them dropped their tombstones."""
    table = new_table(catalog, "air.old", **{"format-version": "1"})
    table.append(pa.table({"v": [0, 1], "batch_id": ["A", "B"]}))
    with table.transaction() as transaction:
        transaction.upgrade_table_version(2)
    table.append(pa.table({"v": [2], "batch_id": ["C"]}))
    revert(table, "A")
    field_id = table.schema().find_field("batch_id").field_id
    head = table.current_snapshot()
    assert head is not None

    assert sorted(f.records for f in data_files(table, head.snapshot_id, field_id)) == [1, 2]
    assert sorted(lethe.scan(table).to_arrow()["v"].to_pylist()) == [1, 2]


def test_a_file_that_cannot_be_read_as_the_table_is_named(catalog: Catalog) -> None:
    table = new_table(catalog, "air.bare")
    table.append(pa.table({"v": [0], "batch_id": ["A"]}))
    (file,) = data_files(table, table.current_snapshot().snapshot_id, 2)  # type: ignore[union-attr]
    path = file.path.removeprefix("file://")
    pq.write_table(pa.table({"v": [0], "batch_id": ["A"]}), path)

    with pytest.raises(InputError, match="has no field ids") as refused:
        lethe.scan(table).to_arrow()

    assert refused.value.reason == "UnreadableFile"
    assert path in refused.value.message


def test_a_uuid_is_read_whether_the_file_says_that_it_is_one(catalog: Catalog) -> None:
    """Iceberg's Java library does not note Arrow's type of it in the file."""
    schema = pa.schema([("u", pa.uuid()), ("batch_id", pa.string())])
    table = new_table(catalog, "air.uuids", schema)
    stored = UUID("0f4b5f0a-0000-4000-8000-000000000001")
    written = pa.table({"u": pa.array([stored.bytes, None], pa.binary(16)), "batch_id": ["A", "A"]})
    for notes_types in (True, False):
        (file,) = _dataframe_to_data_files(table.metadata, written, table.io)
        path = file.file_path.removeprefix("file://")
        if not notes_types:
            pq.write_table(pq.read_table(path), path, store_schema=False)
        with table.transaction() as change, change.update_snapshot().fast_append() as append:
            append.append_data_file(file)

    assert lethe.scan(table).to_arrow()["u"].to_pylist() == [stored, None] * 2
    assert lethe.scan(table, filter=f"u = '{stored}'").count() == 2
    assert lethe.scan(table, filter="u is null").count() == 2
