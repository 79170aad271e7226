"""One data file without the rows of some batches: what is written, with which row ids, and which files are left to Spark."""

import json
import struct
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.ingest.registrable import RegisterTarget
from lethe.purge.filtering import FileToFilter, Filter, Filtered, Loss
from lethe.purge.source import NAMES, RowIds, with_row_ids
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField, StringType
from pyroaring import FrozenBitMap64

COLUMNS = Schema(
    NestedField(1, "batch_id", StringType()), NestedField(2, "v", LongType()), NestedField(3, "x", DoubleType())
)
SPEC = PartitionSpec()
DOCUMENT = json.dumps({"spec-id": 7, "partition": [3], "sort-order-id": 5, "record-count": 0})
IN_ORDER = ["A", "A", "B", "C", "C", "C"]


def target(**properties: str) -> RegisterTarget:
    written = {key.replace("_", "-").replace("--", "."): value for key, value in properties.items()}
    return RegisterTarget(COLUMNS.model_dump_json(), SPEC.model_dump_json(), written, 1, may_lack=True)


def field(name: str, kind: pa.DataType, id: int | None) -> pa.Field:
    return pa.field(name, kind, metadata=None if id is None else {"PARQUET:field_id": str(id)})


def table(batches: list[str | None], with_ids: bool = True) -> pa.Table:
    ids = (1, 2, 3) if with_ids else (None, None, None)
    schema = pa.schema(
        [field("batch_id", pa.string(), ids[0]), field("v", pa.int64(), ids[1]), field("x", pa.float64(), ids[2])]
    )
    values = [float("nan") if n % 3 == 0 else float(n) for n in range(len(batches))]
    return pa.table([pa.array(batches, pa.string()), pa.array(range(len(batches))), pa.array(values)], schema=schema)


def write(folder: Path, rows: pa.Table, **options: Any) -> Path:
    path = folder / "before.parquet"
    pq.write_table(rows, path, store_schema=False, **options)
    return path


def purge(
    path: Path,
    ids: set[str],
    rows: int,
    of: int,
    in_order: bool = True,
    hidden: Collection[int] = (),
    **properties: str,
) -> Filtered:
    to = str(path.parent / "after.parquet")
    loss = Loss(frozenset(ids), rows, in_order)
    positions = FrozenBitMap64(hidden).serialize() if hidden else b""
    return Filter(target(**properties), {})(FileToFilter(str(path), of, to, loss, DOCUMENT, hidden=positions))


def test_the_new_file_has_the_other_rows_in_their_order_and_the_place_of_the_old_one(tmp_path: Path) -> None:
    path, rows = tmp_path / "before.parquet", table(IN_ORDER)
    with pq.ParquetWriter(path, rows.schema) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata({"iceberg.schema": "kept"})

    document = json.loads(purge(path, {"B", "A"}, 3, of=6).document)

    after = pq.ParquetFile(tmp_path / "after.parquet")
    assert after.read().to_pydict()["v"] == [3, 4, 5]
    assert after.metadata.metadata == pq.read_metadata(path).metadata
    assert after.metadata.metadata[b"iceberg.schema"] == b"kept"
    assert after.schema.equals(pq.ParquetFile(path).schema)
    assert (document["spec-id"], document["partition"], document["sort-order-id"]) == (7, [3], 5)
    assert (document["record-count"], document["file-path"]) == (3, str(tmp_path / "after.parquet"))
    assert document["file-size-in-bytes"] == (tmp_path / "after.parquet").stat().st_size
    assert document["nan-value-counts"] == {"keys": [3], "values": [1]}
    assert dict(zip(*document["lower-bounds"].values(), strict=True))[1] == b"C".hex()


@given(
    st.lists(st.one_of(st.none(), st.sampled_from("ABCDE")), min_size=1),
    st.sets(st.sampled_from("ABCDE")),
    st.sets(st.integers(0, 9)),
    st.integers(1, 7),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_any_file_loses_exactly_these_rows_and_other_row_groups_are_copied(
    tmp_path: Path,
    batches: list[str | None],
    ids: set[str],
    hidden: set[int],
    rows_per_group: int,
    dictionaries: bool,
    statistics: bool,
    in_order: bool,
) -> None:
    rows = table(sorted(batches, key=lambda b: b or "") if in_order else batches)
    of_batches = pc.is_in(rows["batch_id"], value_set=pa.array(sorted(ids), pa.string())).to_pylist()
    path = write(
        tmp_path, rows, row_group_size=rows_per_group, use_dictionary=dictionaries, write_statistics=statistics
    )
    wanted = [v for v, goes in enumerate(of_batches) if not goes and v not in hidden]
    before = pq.read_metadata(path)
    starts = range(0, rows.num_rows, rows_per_group)
    groups = {n: range(i, min(i + rows_per_group, rows.num_rows)) for n, i in enumerate(starts)}
    whole = [n for n, of in groups.items() if hidden.isdisjoint(of) and not any(of_batches[of.start : of.stop])]

    done = purge(path, ids, sum(of_batches), of=rows.num_rows, in_order=in_order, hidden=hidden)

    assert done.unsuitable == ("" if wanted or not hidden else "none of its rows is left")
    if wanted:
        assert pq.read_table(tmp_path / "after.parquet").to_pydict()["v"] == wanted
        assert done.copied == sum(before.row_group(n).column(c).total_compressed_size for n in whole for c in range(3))


def test_a_file_without_the_batch_column_is_filtered_if_no_batch_is_looked_for(tmp_path: Path) -> None:
    path = write(tmp_path, table(IN_ORDER).drop_columns("batch_id"), row_group_size=2)

    assert purge(path, set(), 0, of=6, hidden=[2]).copied
    assert pq.read_table(tmp_path / "after.parquet")["v"].to_pylist() == [0, 1, 3, 4, 5]


@pytest.mark.parametrize(("gone", "kept"), [(2, "upper-bounds"), (5, "lower-bounds"), (3, None)])
def test_bounds_beside_nans_are_those_of_the_old_file_but_no_values_of_rows_that_left(
    tmp_path: Path, gone: int, kept: str | None
) -> None:
    """Footers have no bounds of a row group where there are only NaNs, as in the first one."""
    rows = table(IN_ORDER)
    nan = float("nan")
    rows = rows.set_column(2, rows.schema.field("x"), pa.array([nan, nan, 1.0, 2.0, 3.0, 5.0]))
    path = write(tmp_path, rows, row_group_size=2)
    old = {"lower-bounds": {3: struct.pack("<d", 1)}, "upper-bounds": {3: struct.pack("<d", 5)}}
    bounds = {w: {"keys": [*b], "values": [v.hex() for v in b.values()]} for w, b in old.items()}
    document = json.dumps({"spec-id": 7, **bounds, "nan-value-counts": {"keys": [3], "values": [2]}})
    loss, hidden = Loss(frozenset(), 0), FrozenBitMap64([gone]).serialize()

    done = Filter(target(), {})(
        FileToFilter(str(path), 6, str(tmp_path / "after.parquet"), loss, document, hidden=hidden)
    )

    after = json.loads(done.document)
    assert after["nan-value-counts"] == {"keys": [3], "values": [2]}
    assert {w for w in old if 3 in after[w]["keys"]} == ({kept} if kept else old.keys())
    assert all(b in after[w]["values"] for w in old if 3 in after[w]["keys"] for b in bounds[w]["values"])


def test_no_value_of_a_purged_row_stays_in_a_dictionary(tmp_path: Path) -> None:
    rows = table([*"ABCABC"]).append_column(field("t", pa.string(), 4), pa.array(["keep", "secret", "keep"] * 2))
    schema = Schema(*COLUMNS.fields, NestedField(4, "t", StringType()))
    path = write(tmp_path, rows, compression="none")
    assert b"secret" in path.read_bytes()
    wanted = replace(target(write__parquet__compression_codec="uncompressed"), schema_json=schema.model_dump_json())
    file = FileToFilter(
        str(path), 6, str(tmp_path / "after.parquet"), Loss(frozenset("B"), 2, in_order=False), DOCUMENT
    )

    assert Filter(wanted, {})(file).document

    assert b"secret" not in (tmp_path / "after.parquet").read_bytes()
    after = pq.ParquetFile(tmp_path / "after.parquet")
    assert after.read()["t"].to_pylist() == ["keep"] * 4
    assert after.metadata.row_group(0).column(3).has_dictionary_page


def test_what_had_no_dictionary_gets_none(tmp_path: Path) -> None:
    purge(write(tmp_path, table(IN_ORDER), use_dictionary=["batch_id"]), {"B"}, 1, of=6)

    group = pq.read_metadata(tmp_path / "after.parquet").row_group(0)
    assert [group.column(n).has_dictionary_page for n in range(3)] == [True, False, False]


def test_each_attempt_of_a_task_has_a_file_of_its_own(tmp_path: Path) -> None:
    path, worker = write(tmp_path, table(IN_ORDER)), Filter(target(), {})
    file = FileToFilter(str(path), 6, str(tmp_path / "after.parquet"), Loss(frozenset("B"), 1), DOCUMENT)

    paths = {json.loads(worker.attempt(file).document)["file-path"] for _ in range(2)}

    assert {str(p) for p in tmp_path.glob("after-*.parquet")} == paths
    assert len(paths) == 2


def unsuitable(path: Path, **properties: str) -> str:
    done = purge(path, {"B"}, 1, of=6, **properties)
    assert not done.document
    assert not (path.parent / "after.parquet").exists()
    return done.unsuitable


WITH_DROPPED_COLUMN = table(IN_ORDER).append_column(field("old", pa.string(), 9), pa.array(["x"] * 6))
UNSUITABLE: dict[str, tuple[pa.Table, str]] = {
    "not in order, B between As": (table(["A", "B", "A", "C", "C", "C"]), "order of batches"),
    "not in order, a null before B": (table(["A", None, "B", "C", "C", "C"]), "order of batches"),
    "not in order, B first": (table(["B", *"AAAAA"]), "order of batches"),
    "no field ids": (table(IN_ORDER, with_ids=False), "it has no field ids"),
    "a column that the table has dropped": (WITH_DROPPED_COLUMN, "does not have"),
    "no batch column": (table(IN_ORDER).drop_columns("batch_id"), "it does not have the batch column"),
    "other rows than were found before": (table(["A", "A", "B", "B", "C", "C"]), "number of its rows"),
}


@pytest.mark.parametrize(("rows", "why"), UNSUITABLE.values(), ids=UNSUITABLE)
def test_a_file_that_arrow_cannot_filter_for_certain_is_left(tmp_path: Path, rows: pa.Table, why: str) -> None:
    assert why in unsuitable(write(tmp_path, rows, row_group_size=2))


def test_a_narrower_type_stays_and_its_bounds_are_of_the_tables_type(tmp_path: Path) -> None:
    rows = table(IN_ORDER)
    narrow = rows.set_column(1, field("v", pa.int32(), 2), rows["v"].cast(pa.int32()))

    document = json.loads(purge(write(tmp_path, narrow), {"B"}, 1, of=6).document)

    assert pq.read_schema(tmp_path / "after.parquet").field("v").type == pa.int32()
    assert bytes.fromhex(dict(zip(*document["upper-bounds"].values(), strict=True))[2]) == (5).to_bytes(8, "little")


def test_a_file_that_is_no_parquet_is_left(tmp_path: Path) -> None:
    path = tmp_path / "before.parquet"
    path.write_bytes(b"PAR1 nothing PAR1")

    assert unsuitable(path) == "its end is not that of a plain Parquet file"


def as_pyiceberg_writes(path: Path, rows: pa.Table) -> None:
    """With Arrow's own schema, which has large texts."""
    large = [f.with_type(pa.large_string()) if pa.types.is_string(f.type) else f for f in rows.schema]
    pq.write_table(rows.cast(pa.schema(large)), path, row_group_size=2, store_decimal_as_integer=True)
    assert pq.read_schema(path).field("batch_id").type == pa.large_string()


def as_duckdb_writes(path: Path, rows: pa.Table) -> None:
    with duckdb.connect() as database:
        database.register("rows", rows)
        database.execute(f"COPY rows TO '{path}' (FORMAT parquet, FIELD_IDS {{batch_id: 1, v: 2, x: 3}})")
    assert "Int(bitWidth=64" in str(pq.ParquetFile(path).schema)


@pytest.mark.parametrize("write", [as_pyiceberg_writes, as_duckdb_writes])
def test_a_file_of_another_writer_is_filtered(tmp_path: Path, write: Callable[[Path, pa.Table], None]) -> None:
    path = tmp_path / "before.parquet"
    write(path, table(IN_ORDER))

    done = purge(path, {"B"}, 1, of=6)

    assert done.unsuitable == ""
    after = pq.ParquetFile(tmp_path / "after.parquet")
    assert after.read().to_pydict()["v"] == [0, 1, 3, 4, 5]
    assert after.schema.equals(pq.ParquetFile(path).schema)
    assert after.schema_arrow.equals(pq.read_schema(path))


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"write__parquet__compression_codec": "lzo"}, "codec"),
        ({"write__parquet__bloom_filter_enabled__column__v": "true"}, "Bloom filters"),
    ],
)
def test_what_the_table_asks_for_and_arrow_does_not_write_is_left(
    tmp_path: Path, properties: dict[str, str], why: str
) -> None:
    assert why in unsuitable(write(tmp_path, table(IN_ORDER)), **properties)


@pytest.mark.parametrize(("codec", "written"), [("zstd", "ZSTD"), ("gzip", "GZIP"), ("uncompressed", "UNCOMPRESSED")])
def test_the_codec_is_the_tables(tmp_path: Path, codec: str, written: str) -> None:
    purge(write(tmp_path, table(IN_ORDER)), {"B"}, 1, of=6, write__parquet__compression_codec=codec)

    assert pq.read_metadata(tmp_path / "after.parquet").row_group(0).column(0).compression == written


WITH_IDS = with_row_ids(
    RegisterTarget(
        Schema(NestedField(1, "batch_id", StringType()), NestedField(2, "v", LongType())).model_dump_json(),
        PartitionSpec().model_dump_json(),
        {},
        1,
        may_lack=True,
    )
)
INHERITED = RowIds(first=10**12, sequence_number=7)
IDS = {"_row_id": 2147483540, "_last_updated_sequence_number": 2147483539}


def a_file_with_ids(
    path: Path, batches: list[str | None], stored: dict[str, list[int | None]], ids_first: bool = False
) -> None:
    """Row n has the value n in column v. Two rows in each row group.

    Args:
        stored: The columns of row ids, by name.
    """
    columns: dict[str, tuple[int, pa.Array]] = {
        "batch_id": (1, pa.array(batches, pa.string())),
        "v": (2, pa.array(range(len(batches)), pa.int64())),
    }
    ids = {name: (IDS[name], pa.array(values, pa.int64())) for name, values in stored.items()}
    columns = ids | columns if ids_first else columns | ids
    schema = pa.schema(
        [pa.field(n, a.type, metadata={"PARQUET:field_id": str(i)}) for n, (i, a) in columns.items()],
        metadata={"iceberg.schema": json.dumps({"type": "struct", "fields": []})},
    )
    pq.write_table(pa.table([a for _, a in columns.values()], schema=schema), path, row_group_size=2)


def both(values: list[int | None]) -> dict[str, list[int | None]]:
    """These values in both columns of row ids."""
    return dict.fromkeys(NAMES, values)


def purge_with_ids(path: Path, ids: set[str], rows: int, of: int, hidden: Collection[int] = ()) -> Filtered:
    to, document = str(path.parent / "after.parquet"), json.dumps({"spec-id": 0, "first-row-id": 5})
    positions = FrozenBitMap64(hidden).serialize() if hidden else b""
    loss = Loss(frozenset(ids), rows)
    return Filter(WITH_IDS, {})(FileToFilter(str(path), of, to, loss, document, INHERITED, positions))


def found(path: Path) -> list[tuple[Any, ...]]:
    rows = pq.read_table(path)
    return list(zip(*(rows[name].to_pylist() for name in ("v", *NAMES)), strict=True))


some_ids = st.one_of(st.none(), st.integers(0, 10**9))


@given(
    st.lists(st.tuples(st.sampled_from([None, *"ABCDE"]), some_ids, some_ids), min_size=1),
    st.sets(st.sampled_from("ABCDE")),
    st.sets(st.integers(0, 9)),
    st.sampled_from(["none", "nulls", "some", "all"]),
    st.booleans(),
)
def test_any_file_keeps_the_ids_of_the_rows_that_stay(
    tmp_path: Path,
    rows: list[tuple[str | None, int | None, int | None]],
    gone: set[str],
    hidden: set[int],
    stores: str,
    ids_first: bool,
) -> None:
    rows.sort(key=lambda row: row[0] or "")
    stored = {}
    if stores != "none":
        by_name = dict(zip(NAMES, ([r[1] for r in rows], [r[2] for r in rows]), strict=True))
        stored = {n: [None if stores == "nulls" else i for i in ids] for n, ids in by_name.items()}
        if stores == "all":
            stored = {n: [n_ if i is None else i for n_, i in enumerate(ids)] for n, ids in stored.items()}
    path = tmp_path / "before.parquet"
    a_file_with_ids(path, [r[0] for r in rows], stored, ids_first)
    inherited = [(INHERITED.first + n, INHERITED.sequence_number) for n in range(len(rows))]
    own = list(zip(*stored.values(), strict=True)) if stored else [(None, None)] * len(rows)
    expected = [
        (n, *(o if o is not None else i for o, i in zip(own[n], inherited[n], strict=True)))
        for n, row in enumerate(rows)
        if row[0] not in gone and n not in hidden
    ]

    done = purge_with_ids(path, gone, sum(r[0] in gone for r in rows), of=len(rows), hidden=hidden)

    assert done.unsuitable == ("" if expected or not hidden else "none of its rows is left")
    assert not expected or found(tmp_path / "after.parquet") == expected


def test_row_groups_are_copied_and_only_their_ids_are_written(tmp_path: Path) -> None:
    path, batches = tmp_path / "before.parquet", ["A", "A", "B", "B", "C", "C"]
    for stored in ({}, both([None] * 6), both([*range(6)])):
        a_file_with_ids(path, batches, stored)

        done = purge_with_ids(path, {"B"}, 2, of=6)

        before, after = pq.read_metadata(path), pq.read_metadata(tmp_path / "after.parquet")
        copied = [before.row_group(n) for n in (0, 2)]
        kept = range(4 if stored and stored["_row_id"][0] == 0 else 2)
        assert done.copied >= sum(group.column(c).total_compressed_size for group in copied for c in kept)
        assert [after.row_group(n).num_columns for n in range(2)] == [4, 4]
        assert done.copied + done.encoded < (tmp_path / "after.parquet").stat().st_size
        for group in (after.row_group(n) for n in range(2)):
            assert group.total_byte_size == sum(group.column(c).total_uncompressed_size for c in range(4))


def test_the_entry_describes_the_ids_and_has_no_first_row_id(tmp_path: Path) -> None:
    """The commit gives new ids to the rows of a file. Stored ones come first."""
    path = tmp_path / "before.parquet"
    a_file_with_ids(path, ["A", "B"], {})

    document = json.loads(purge_with_ids(path, {"A"}, 1, of=2).document)

    assert "first-row-id" not in document
    lower = dict(zip(*document["lower-bounds"].values(), strict=True))
    assert bytes.fromhex(lower[IDS["_row_id"]]) == (INHERITED.first + 1).to_bytes(8, "little")
    assert bytes.fromhex(lower[IDS["_last_updated_sequence_number"]]) == (7).to_bytes(8, "little")


def test_the_footers_own_schema_of_iceberg_gets_the_columns(tmp_path: Path) -> None:
    path = tmp_path / "before.parquet"
    a_file_with_ids(path, ["A", "B"], {})

    purge_with_ids(path, {"A"}, 1, of=2)

    properties = pq.read_metadata(tmp_path / "after.parquet").metadata
    assert [(f["id"], f["name"], f["type"]) for f in json.loads(properties[b"iceberg.schema"])["fields"]] == [
        (id, name, "long") for name, id in IDS.items()
    ]
    assert b"ARROW:schema" not in properties


@pytest.mark.parametrize("name", NAMES)
def test_a_file_with_one_of_the_columns_is_left(tmp_path: Path, name: str) -> None:
    path = tmp_path / "before.parquet"
    a_file_with_ids(path, ["A", "B"], {name: [1, 2]})

    assert purge_with_ids(path, {"A"}, 1, of=2).unsuitable == "it has only one of the two columns of row ids"


def test_a_column_of_that_name_with_another_field_id_is_left(tmp_path: Path) -> None:
    path = tmp_path / "before.parquet"
    a_file_with_ids(path, ["A", "B"], both([1, 2]))
    rows = pq.read_table(path)
    other = rows.schema.field("_row_id").with_metadata({"PARQUET:field_id": "9"})
    pq.write_table(rows.set_column(2, other, rows["_row_id"]), path)

    assert "field id 9" in purge_with_ids(path, {"A"}, 1, of=2).unsuitable


def test_a_file_with_a_column_of_ids_of_a_table_without_row_ids_is_left(tmp_path: Path) -> None:
    path = tmp_path / "before.parquet"
    a_file_with_ids(path, ["A", "B"], both([1, 2]))
    schema = Schema(NestedField(1, "batch_id", StringType()), NestedField(2, "v", LongType()))
    target = RegisterTarget(schema.model_dump_json(), PartitionSpec().model_dump_json(), {}, 1, may_lack=True)
    file = FileToFilter(str(path), 2, str(tmp_path / "after.parquet"), Loss(frozenset("A"), 1), "{}")

    assert "does not have" in Filter(target, {})(file).unsuitable
