"""The ids of rows in a file that loses rows: those that the rows stored or inherited before, in every row."""

import json
from pathlib import Path
from typing import Any

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
from pyiceberg.types import LongType, NestedField, StringType

TARGET = with_row_ids(
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


def a_file(path: Path, batches: list[str | None], stored: dict[str, list[int | None]], ids_first: bool = False) -> None:
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


def purge(path: Path, ids: set[str], rows: int, of: int) -> Filtered:
    to, document = str(path.parent / "after.parquet"), json.dumps({"spec-id": 0, "first-row-id": 5})
    return Filter(TARGET, {})(FileToFilter(str(path), of, to, Loss(frozenset(ids), rows), document, INHERITED))


def found(path: Path) -> list[tuple[Any, ...]]:
    rows = pq.read_table(path)
    return list(zip(*(rows[name].to_pylist() for name in ("v", *NAMES)), strict=True))


some_ids = st.one_of(st.none(), st.integers(0, 10**9))


@given(
    st.lists(st.tuples(st.sampled_from("ABCDE"), some_ids, some_ids), min_size=1),
    st.sets(st.sampled_from("ABCDE")),
    st.sampled_from(["none", "nulls", "some", "all"]),
    st.booleans(),
)
def test_any_file_keeps_the_ids_of_the_rows_that_stay(
    tmp_path: Path, rows: list[tuple[str, int | None, int | None]], gone: set[str], stores: str, ids_first: bool
) -> None:
    rows.sort(key=lambda row: row[0])
    stored = {}
    if stores != "none":
        by_name = dict(zip(NAMES, ([r[1] for r in rows], [r[2] for r in rows]), strict=True))
        stored = {n: [None if stores == "nulls" else i for i in ids] for n, ids in by_name.items()}
        if stores == "all":
            stored = {n: [n_ if i is None else i for n_, i in enumerate(ids)] for n, ids in stored.items()}
    path = tmp_path / "before.parquet"
    a_file(path, [r[0] for r in rows], stored, ids_first)
    inherited = [(INHERITED.first + n, INHERITED.sequence_number) for n in range(len(rows))]
    own = list(zip(*stored.values(), strict=True)) if stored else [(None, None)] * len(rows)
    expected = [
        (n, *(o if o is not None else i for o, i in zip(own[n], inherited[n], strict=True)))
        for n, row in enumerate(rows)
        if row[0] not in gone
    ]

    done = purge(path, gone, sum(r[0] in gone for r in rows), of=len(rows))

    assert done.unsuitable == ""
    assert found(tmp_path / "after.parquet") == expected


def test_row_groups_are_copied_and_only_their_ids_are_written(tmp_path: Path) -> None:
    path, batches = tmp_path / "before.parquet", ["A", "A", "B", "B", "C", "C"]
    for stored in ({}, both([None] * 6), both([*range(6)])):
        a_file(path, batches, stored)

        done = purge(path, {"B"}, 2, of=6)

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
    a_file(path, ["A", "B"], {})

    document = json.loads(purge(path, {"A"}, 1, of=2).document)

    assert "first-row-id" not in document
    lower = dict(zip(*document["lower-bounds"].values(), strict=True))
    assert bytes.fromhex(lower[IDS["_row_id"]]) == (INHERITED.first + 1).to_bytes(8, "little")
    assert bytes.fromhex(lower[IDS["_last_updated_sequence_number"]]) == (7).to_bytes(8, "little")


def test_the_footers_own_schema_of_iceberg_gets_the_columns(tmp_path: Path) -> None:
    path = tmp_path / "before.parquet"
    a_file(path, ["A", "B"], {})

    purge(path, {"A"}, 1, of=2)

    properties = pq.read_metadata(tmp_path / "after.parquet").metadata
    assert [(f["id"], f["name"], f["type"]) for f in json.loads(properties[b"iceberg.schema"])["fields"]] == [
        (id, name, "long") for name, id in IDS.items()
    ]
    assert b"ARROW:schema" not in properties


@pytest.mark.parametrize("name", NAMES)
def test_a_file_with_one_of_the_columns_is_left(tmp_path: Path, name: str) -> None:
    path = tmp_path / "before.parquet"
    a_file(path, ["A", "B"], {name: [1, 2]})

    assert purge(path, {"A"}, 1, of=2).unsuitable == "it has only one of the two columns of row ids"


def test_a_column_of_that_name_with_another_field_id_is_left(tmp_path: Path) -> None:
    path = tmp_path / "before.parquet"
    a_file(path, ["A", "B"], both([1, 2]))
    rows = pq.read_table(path)
    other = rows.schema.field("_row_id").with_metadata({"PARQUET:field_id": "9"})
    pq.write_table(rows.set_column(2, other, rows["_row_id"]), path)

    assert "field id 9" in purge(path, {"A"}, 1, of=2).unsuitable


def test_a_file_with_a_column_of_ids_of_a_table_without_row_ids_is_left(tmp_path: Path) -> None:
    path = tmp_path / "before.parquet"
    a_file(path, ["A", "B"], both([1, 2]))
    schema = Schema(NestedField(1, "batch_id", StringType()), NestedField(2, "v", LongType()))
    target = RegisterTarget(schema.model_dump_json(), PartitionSpec().model_dump_json(), {}, 1, may_lack=True)
    file = FileToFilter(str(path), 2, str(tmp_path / "after.parquet"), Loss(frozenset("A"), 1), "{}")

    assert "does not have" in Filter(target, {})(file).unsuitable


def test_ids_are_large_enough(tmp_path: Path) -> None:
    path = tmp_path / "before.parquet"
    a_file(path, ["A", "B"], {})
    file = FileToFilter(
        str(path), 2, str(tmp_path / "after.parquet"), Loss(frozenset("A"), 1), "{}", RowIds(2**62, 2**61)
    )

    assert Filter(TARGET, {})(file).unsuitable == ""
    assert found(tmp_path / "after.parquet") == [(1, 2**62 + 1, 2**61)]
    assert pc.max(pq.read_table(tmp_path / "after.parquet")["_row_id"]).as_py() == 2**62 + 1
