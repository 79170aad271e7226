"""Several data files become one: all rows, in order, with their ids. What is not proven is left to Spark."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe import merging
from lethe.ingest.registrable import RegisterTarget
from lethe.merging import BinToMerge, FileToMerge, Merge, Merged
from lethe.purge.source import RowIds, with_row_ids
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

COLUMNS = Schema(
    NestedField(1, "batch_id", StringType()), NestedField(2, "v", LongType()), NestedField(3, "x", DoubleType())
)
FIELDS = (("batch_id", pa.string(), 1), ("v", pa.int64(), 2), ("x", pa.float64(), 3))
Rows = Sequence[tuple[str | None, int]]
ORDER_ID = 2


def by(*columns: int, direction: SortDirection = SortDirection.ASC) -> SortOrder:
    """Sorted by these columns, nulls first."""
    fields = [SortField(c, IdentityTransform(), direction, NullOrder.NULLS_FIRST) for c in columns]
    return SortOrder(*fields, order_id=ORDER_ID if fields else 0)


def merger(order: SortOrder, row_ids: bool = False, sorted_bytes: int = 1 << 20, **properties: str) -> Merge:
    written = {key.replace("_", "-").replace("--", "."): value for key, value in properties.items()}
    target = RegisterTarget(COLUMNS.model_dump_json(), PartitionSpec().model_dump_json(), written, 1, may_lack=True)
    target = with_row_ids(target) if row_ids else target
    return Merge(target, order.model_dump_json(), {}, sorted_bytes)


def a_file(
    folder: Path, name: str, rows: Rows, claims: int | None = ORDER_ID, ids: RowIds | None = None, **options: Any
) -> FileToMerge:
    """A file whose entry names a sort order. In each third row x is NaN."""
    schema = pa.schema([pa.field(n, t, metadata={"PARQUET:field_id": str(i)}) for n, t, i in FIELDS])
    xs = [float("nan") if v % 3 == 0 else float(v) for _, v in rows]
    table = pa.table([pa.array([b for b, _ in rows], pa.string()), [v for _, v in rows], xs], schema=schema)
    path = folder / f"{name}.parquet"
    pq.write_table(table, path, **{"store_schema": False, "write_page_index": True} | options)
    entry: dict[str, Any] = {"spec-id": 0, "partition": [], "sort-order-id": claims}
    entry["nan-value-counts"] = {"keys": [3], "values": [sum(v % 3 == 0 for _, v in rows)]}
    document = json.dumps({k: v for k, v in entry.items() if v is not None})
    return FileToMerge(str(path), path.stat().st_size, len(rows), document, ids)


def merge(work: Merge, folder: Path, *files: FileToMerge) -> Merged:
    return work(BinToMerge(files, str(folder / "merged.parquet")))


def found(folder: Path) -> list[tuple[str | None, int]]:
    rows = pq.read_table(folder / "merged.parquet")
    return list(zip(rows["batch_id"].to_pylist(), rows["v"].to_pylist(), strict=True))


def rows_of(batches: str, start: int = 0) -> Rows:
    return [(b, start + n) for n, b in enumerate(batches)]


def test_large_row_groups_are_copied_and_small_ones_put_together(tmp_path: Path) -> None:
    many = [("B", 100 + n) for n in range(5000)]
    files = [
        a_file(tmp_path, "a", rows_of("AAB")),
        a_file(tmp_path, "b", rows_of("BB", 10)),
        a_file(tmp_path, "c", many),
        a_file(tmp_path, "d", rows_of("CD", 20), row_group_size=1),
    ]

    done = merge(merger(by(1), write__parquet__row_group_size_bytes="30000"), tmp_path, *files)

    metadata = pq.read_metadata(tmp_path / "merged.parquet")
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [5, 5000, 2]
    assert done.copied > done.encoded > 0
    assert found(tmp_path) == [*rows_of("AAB"), *rows_of("BB", 10), *many, *rows_of("CD", 20)]
    nans = sum(v % 3 == 0 for _, v in found(tmp_path))
    assert json.loads(done.document)["nan-value-counts"] == {"keys": [3], "values": [nans]}
    assert pq.ParquetFile(tmp_path / "merged.parquet").metadata.row_group(1).column(0).has_offset_index


def test_row_groups_have_the_size_of_the_tables(tmp_path: Path) -> None:
    luck = random.Random(1)
    contents = [[("A", luck.randrange(2**60)) for _ in range(1000)] for _ in range(20)]
    files = [a_file(tmp_path, str(n), rows, compression="zstd") for n, rows in enumerate(contents)]
    size = 40_000

    merge(merger(by(1), write__parquet__row_group_size_bytes=str(size)), tmp_path, *files)

    metadata = pq.read_metadata(tmp_path / "merged.parquet")
    groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
    sizes = [sum(g.column(n).total_compressed_size for n in range(3)) for g in groups]
    assert len(sizes) > 3
    assert all(size / 2 < s < 1.5 * size for s in sizes[:-1])


def test_row_groups_of_other_writers_are_encoded(tmp_path: Path) -> None:
    """What readers conclude from the writer of a file must be true of all its row groups."""
    files = [a_file(tmp_path, "a", rows_of("AA")), a_file(tmp_path, "b", rows_of("BB", 10))]
    other = Path(files[1].path)
    other.write_bytes(other.read_bytes().replace(b"parquet-cpp-arrow version", b"parquet-xyz-other version"))

    done = merge(merger(by(1), write__parquet__row_group_size_bytes="1"), tmp_path, *files)

    assert done.copied > 0
    assert done.encoded > 0
    assert found(tmp_path) == [*rows_of("AA"), *rows_of("BB", 10)]


batches = st.lists(st.one_of(st.none(), st.sampled_from("ABCD")), max_size=8)
orders = st.sampled_from([by(), by(1), by(1, 2), by(2), by(1, direction=SortDirection.DESC)])


@given(st.lists(st.tuples(batches, st.booleans()), min_size=1, max_size=5), orders, st.integers(1, 4), st.booleans())
def test_any_files_become_one_in_order(
    tmp_path: Path,
    contents: list[tuple[list[str | None], bool]],
    order: SortOrder,
    rows_per_group: int,
    copying: bool,
) -> None:
    """Some are sorted and say so."""
    columns = [f.source_id - 1 for f in order.fields]
    descending = any(f.direction is SortDirection.DESC for f in order.fields)

    def key(row: tuple[str | None, int]) -> tuple[Any, ...]:
        return tuple((row[c] is not None, row[c] or 0) for c in columns)

    files, everything = [], []
    for n, (ids, is_sorted) in enumerate(contents):
        rows: Rows = [(b, 100 * (10 - n) + m) for m, b in enumerate(ids)]
        rows = sorted(rows, key=key, reverse=descending) if is_sorted else rows
        claims = ORDER_ID if is_sorted and columns else None
        files.append(a_file(tmp_path, str(n), rows, claims, row_group_size=rows_per_group))
        everything += rows
    if not everything:
        return
    size = "1" if copying else "100000"

    done = merge(merger(order, write__parquet__row_group_size_bytes=size), tmp_path, *files)

    assert done.unsuitable == ""
    if not descending:
        assert found(tmp_path) == sorted(everything, key=key)
    assert sorted(found(tmp_path), key=str) == sorted(everything, key=str)
    of_batches = [b for b, _ in found(tmp_path)]
    if descending:
        known = [b for b in of_batches if b is not None]
        assert of_batches == [None] * (len(of_batches) - len(known)) + sorted(known, reverse=True)
    counted = json.loads(done.document)["nan-value-counts"]["values"]
    assert counted == [sum(v % 3 == 0 for _, v in everything)]


@pytest.mark.parametrize("stores", [False, True])
@pytest.mark.parametrize("size", ["1", "100000"])
@pytest.mark.parametrize("second", ["BC", "AC"])
def test_rows_keep_their_ids(tmp_path: Path, stores: bool, size: str, second: str) -> None:
    """Copied, encoded, and sorted in memory. The first file may have been merged before."""
    first = a_file(tmp_path, "a", rows_of("ABB"), ids=RowIds(1000, 7))
    work = merger(by(1), row_ids=True, write__parquet__row_group_size_bytes=size)
    if stores:
        assert work(BinToMerge((first,), str(tmp_path / "before.parquet"))).document
        first = FileToMerge(str(tmp_path / "before.parquet"), 0, 3, first.document, RowIds(5000, 9))
    other = a_file(tmp_path, "b", rows_of(second, 10), ids=RowIds(2000, 8))

    assert merge(work, tmp_path, first, other).document

    rows = pq.read_table(tmp_path / "merged.parquet")
    ids = zip(rows["v"].to_pylist(), *(rows[n].to_pylist() for n in rows.schema.names[-2:]), strict=True)
    assert sorted(ids) == [(0, 1000, 7), (1, 1001, 7), (2, 1002, 7), (10, 2000, 8), (11, 2001, 8)]
    assert rows["batch_id"].to_pylist() == sorted("ABB" + second)


def unsuitable(work: Merge, folder: Path, *files: FileToMerge) -> str:
    done = merge(work, folder, *files)
    assert not done.document
    assert not (folder / "merged.parquet").exists()
    return done.unsuitable


def test_too_many_rows_that_are_not_in_order_are_left(tmp_path: Path) -> None:
    files = [a_file(tmp_path, "a", rows_of("AC")), a_file(tmp_path, "b", rows_of("BD"))]

    assert "not in order" in unsuitable(merger(by(1), sorted_bytes=10), tmp_path, *files)
    assert merge(merger(by(1)), tmp_path, *files).document


def narrowed(file: FileToMerge) -> FileToMerge:
    pq.write_table(pq.read_table(file.path).drop_columns("x"), file.path, store_schema=False)
    return file


def moved(file: FileToMerge) -> FileToMerge:
    return replace(file, document=json.dumps(json.loads(file.document) | {"partition": [1]}))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (narrowed, "different columns"),
        (moved, "different partitions"),
        (lambda file: replace(file, records=2), "number of its rows"),
    ],
)
def test_files_that_do_not_fit_together_are_left(
    tmp_path: Path, change: Callable[[FileToMerge], FileToMerge], why: str
) -> None:
    one, other = (a_file(tmp_path, n, rows_of("A")) for n in "ab")

    assert why in unsuitable(merger(by(1)), tmp_path, one, change(other))


def test_files_without_rows_are_left(tmp_path: Path) -> None:
    assert unsuitable(merger(by(1)), tmp_path, a_file(tmp_path, "a", [])) == "the files have no rows"


@pytest.mark.parametrize("whole", [0, 8 << 20])
def test_many_files_are_fetched_ahead_and_large_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: int
) -> None:
    monkeypatch.setattr(merging, "_WHOLE", whole)
    contents = [[(f"{n:03d}", n)] for n in range(100)]

    assert merge(merger(by(1)), tmp_path, *(a_file(tmp_path, str(n), rows) for n, rows in enumerate(contents))).document

    assert found(tmp_path) == [(f"{n:03d}", n) for n in range(100)]


@pytest.mark.parametrize("whole", [0, 8 << 20])
def test_a_missing_file_is_an_error_that_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: int
) -> None:
    monkeypatch.setattr(merging, "_WHOLE", whole)
    files = [a_file(tmp_path, "a", rows_of("A")), a_file(tmp_path, "b", rows_of("B"))]
    Path(files[1].path).unlink()

    with pytest.raises(FileNotFoundError):
        merge(merger(by(1)), tmp_path, *files)
    assert not (tmp_path / "merged.parquet").exists()
