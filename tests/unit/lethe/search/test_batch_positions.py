"""Where the rows of batches lie in a file: each of them at the position that Iceberg counts, whatever their order."""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.search.positions import SearchedFile, Unsure, find_batches
from pyiceberg.io.pyarrow import PyArrowFileIO

FIELD = 3


def written(path: Path, batches: list[str | None], group: int = 1000, field_id: int | None = FIELD) -> str:
    metadata = {} if field_id is None else {"PARQUET:field_id": str(field_id)}
    schema = pa.schema([pa.field("batch_id", pa.string(), metadata=metadata)])
    pq.write_table(pa.table({"batch_id": batches}, schema=schema), path, row_group_size=group)
    return f"file://{path}"


def found(uri: str, *ids: str, names: Mapping[str, int] | None = None, kind: str = "PARQUET") -> dict[str, list[int]]:
    return {i: list(p) for i, p in find_batches(SearchedFile(PyArrowFileIO(), uri, kind, names), FIELD, ids).items()}


def test_each_batch_has_its_rows_and_rows_without_a_batch_are_of_none(tmp_path: Path) -> None:
    file = written(tmp_path / "f", ["A", "A", "B", None, "C", "A", ""])

    assert found(file, "C", "A", "x", "") == {"A": [0, 1, 5], "C": [4], "": [6]}


def test_a_sorted_run_costs_one_entry_however_long_it_is(tmp_path: Path) -> None:
    file = written(tmp_path / "f", ["A"] * 50_000 + ["B"] * 50_000)

    positions = find_batches(SearchedFile(PyArrowFileIO(), file), FIELD, ["B"])["B"]

    assert (len(positions), min(positions), len(positions.serialize()) < 100) == (50_000, 50_000, True)


@given(
    rows=st.lists(st.sampled_from((None, *"abcde")), max_size=30),
    wanted=st.sets(st.sampled_from("abcdexy"), min_size=1),
    group=st.integers(1, 9),
)
def test_rows_are_counted_through_all_row_groups(
    tmp_path: Path, rows: list[str | None], wanted: set[str], group: int
) -> None:
    file = written(tmp_path / "f", rows, group)

    expected = {w: [n for n, row in enumerate(rows) if row == w] for w in wanted}
    assert found(file, *wanted) == {w: at for w, at in expected.items() if at}


def test_other_formats_are_read_as_well(tmp_path: Path) -> None:
    field = pa.field("batch_id", pa.string(), metadata={"iceberg.id": str(FIELD)})
    orc.write_table(pa.table({"batch_id": ["B", "A", "B"]}, schema=pa.schema([field])), tmp_path / "f")

    names = {"batch_id": FIELD}

    assert found(f"file://{tmp_path}/f", "B", kind="ORC", names=names) == {"B": [0, 2]}


def test_a_file_without_the_column_holds_none_of_them_and_one_without_ids_is_not_guessed_at(tmp_path: Path) -> None:
    other, nameless = written(tmp_path / "a", ["A"], field_id=9), written(tmp_path / "b", ["A"], field_id=None)

    assert found(other, "A") == {}
    assert found(nameless, "A", names={"batch_id": FIELD}) == {"A": [0]}
    with pytest.raises(Unsure, match="no field ids"):
        found(nameless, "A")


def test_a_file_without_the_batch_column_is_not_reported_as_a_file_without_rows(
    tmp_path: Path,
) -> None:
    """Its rows may be of the batch that its partition names."""
    file = written(tmp_path / "f", ["A"], field_id=FIELD + 1)

    assert find_batches(SearchedFile(PyArrowFileIO(), file), FIELD, ["A"]) == {}
    with pytest.raises(Unsure, match="lacks the batch column"):
        find_batches(SearchedFile(PyArrowFileIO(), file), FIELD, ["A"], must_have=True)


def test_rows_of_a_file_without_the_batch_column_are_of_the_batch_that_its_partition_names(tmp_path: Path) -> None:
    file = written(tmp_path / "f", ["x", "y"], field_id=FIELD + 1)

    for must_have in (False, True):
        io = PyArrowFileIO()
        reported = find_batches(SearchedFile(io, file), FIELD, ["A", "B"], if_absent="B", must_have=must_have)
        assert {i: list(p) for i, p in reported.items()} == {"B": [0, 1]}
        assert find_batches(SearchedFile(io, file), FIELD, ["A"], if_absent="B", must_have=must_have) == {}


def test_a_search_for_no_batch_finds_none_and_reports_a_missing_file(tmp_path: Path) -> None:
    file = written(tmp_path / "f", ["A", "B"])

    assert find_batches(SearchedFile(PyArrowFileIO(), file), FIELD, []) == {}
    with pytest.raises(FileNotFoundError):
        find_batches(SearchedFile(PyArrowFileIO(), f"{file}-gone"), FIELD, [])
