"""Which batch ids there are rows of: by one column of the files that may hold them, or by bounds where that is too much."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.iceberg.facts import data_files, files_added_after, observe
from lethe.search.candidates import MAX_READ_BYTES, held_ids
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table

from tests.support.tables import head, kinds, rows


def held(table: Table, *ids: str, max_bytes: int = 1 << 20) -> set[str]:
    field_id = observe(table, "batch_id").batch_field_id
    assert field_id is not None
    return set(held_ids(table, head(table), field_id, ids, max_bytes))


def test_an_id_between_two_others_is_not_taken_for_held(table: Table) -> None:
    table.append(rows("A", "C", None, "C", "E"))

    assert held(table, "A", "B", "C", "D", "F") == {"A", "C"}


def test_only_files_that_may_hold_one_are_opened_and_none_that_surely_does(table: Table, opened: list[str]) -> None:
    table.append(rows("A", "A"))
    table.append(rows("B", "D"))
    table.append(rows("X", "Z"))
    opened.clear()

    found = held(table, "A", "C", "D")

    assert found == {"A", "D"}
    assert kinds(opened)["data"] == 1


def test_a_file_whose_ids_are_all_found_is_not_opened(table: Table, opened: list[str]) -> None:
    table.append(rows("A", "B"))
    table.append(rows("A", "B"))
    opened.clear()

    assert held(table, "A", "B") == {"A", "B"}
    assert kinds(opened)["data"] == 1


@pytest.mark.parametrize(("max_bytes", "known"), [(1 << 20, {"A"}), (0, {"A", "B"})])
def test_where_the_column_is_too_long_to_be_read_bounds_alone_answer(
    table: Table, opened: list[str], max_bytes: int, known: set[str]
) -> None:
    table.append(rows("A", "C"))
    opened.clear()

    assert held(table, "A", "B", "X", max_bytes=max_bytes) == known
    assert kinds(opened)["data"] == (1 if max_bytes else 0)


def test_a_long_column_of_few_values_counts_by_its_rows(table: Table) -> None:
    """Stored it is next to nothing."""
    many = pa.table({"v": range(100_000), "batch_id": ["A"] * 50_000 + ["C"] * 50_000}, table.schema().as_arrow())
    table.append(many)
    (file,) = data_files(table, head(table), observe(table, "batch_id").batch_field_id or 0)
    assert file.size < 1 << 20

    assert held(table, "B", max_bytes=100_000) == {"B"}
    assert held(table, "B", max_bytes=400_000) == set()


def test_rows_that_another_engine_deleted_are_not_held(table: Table) -> None:
    table.append(rows("A", "B"))
    table.delete(EqualTo("batch_id", "B"))  # copy on write: the file is another one

    assert held(table, "A", "B") == {"A"}
    (file,) = data_files(table, head(table), observe(table, "batch_id").batch_field_id or 0)
    assert pq.read_table(file.path.removeprefix("file://"), partitioning=None).num_rows == 1


def test_only_the_named_files_are_searched(table: Table) -> None:
    table.append(rows("A", "A"))
    table.append(rows("B", "D"))
    of_bs = [t.file.file_path for t in table.scan("batch_id = 'B'").plan_files()]

    for limit in (MAX_READ_BYTES, 0):
        assert held_ids(table, head(table), 2, ["A", "B"], limit, paths=of_bs) == {"B"}


def test_files_are_known_by_the_commit_that_added_them(table: Table) -> None:
    """Also after a rewrite of manifests, and when the snapshot that added them has expired."""
    table.append(rows("A"))
    table.append(rows("B"))
    table.append(rows("C"))
    table.maintenance.expire_snapshots().by_ids([s.snapshot_id for s in table.snapshots()[:-1]]).commit()

    found = {n: [f.lower for f in files_added_after(table, n, head(table), 2)] for n in (None, 0, 1, 3)}

    assert {n: sorted(map(str, ids)) for n, ids in found.items()} == {
        None: ["A", "B", "C"],
        0: ["A", "B", "C"],
        1: ["B", "C"],
        3: [],
    }
