"""Where the rows of batches lie in a file, and what is kept of its batch column for later searches."""

from collections import Counter
from collections.abc import Iterable, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.search.batches import NO_CACHE, ColumnCache, EncodedIds, find_batches
from lethe.search.positions import SearchedFile, Unsure
from pyiceberg.io import InputFile
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

BATCH_FIELD = 3


def written_batches(
    path: Path, batches: list[str | None], group: int = 1000, field_id: int | None = 3, other: Iterable[Any] = ()
) -> str:
    metadata = {} if field_id is None else {"PARQUET:field_id": str(field_id)}
    columns = [pa.array(batches, pa.string()), *(pa.array(values) for values in other)]
    fields = [pa.field("batch_id", pa.string(), metadata=metadata)]
    fields += [pa.field(f"c{n}", column.type) for n, column in enumerate(columns[1:])]
    pq.write_table(pa.table(columns, schema=pa.schema(fields)), path, row_group_size=group)
    return f"file://{path}"


def found_batches(
    uri: str,
    *ids: str,
    names: Mapping[tuple[str, ...], int] | None = None,
    kind: str = "PARQUET",
    io: PyArrowFileIO | None = None,
    cache: ColumnCache = NO_CACHE,
    scope: str = "",
) -> dict[str, list[int]]:
    searched = SearchedFile(io or PyArrowFileIO(), uri, kind, names)
    found = find_batches(searched, BATCH_FIELD, ids, cache=cache, scope=scope)
    return {i: list(p) for i, p in found.items()}


def test_a_sorted_run_costs_one_entry_however_long_it_is(tmp_path: Path) -> None:
    file = written_batches(tmp_path / "f", ["A"] * 50_000 + ["B"] * 50_000)

    positions = find_batches(SearchedFile(PyArrowFileIO(), file), BATCH_FIELD, ["B"])["B"]

    assert (len(positions), min(positions), len(positions.serialize()) < 100) == (50_000, 50_000, True)


@given(
    rows=st.lists(st.sampled_from((None, *"abcde")), max_size=30),
    wanted=st.sets(st.sampled_from("abcdexy"), min_size=1),
    group=st.integers(1, 9),
)
def test_rows_are_counted_through_all_row_groups(
    tmp_path: Path, rows: list[str | None], wanted: set[str], group: int
) -> None:
    file = written_batches(tmp_path / "f", rows, group)

    expected = {w: [n for n, row in enumerate(rows) if row == w] for w in wanted}
    assert found_batches(file, *wanted) == {w: at for w, at in expected.items() if at}


def test_other_formats_are_read_as_well(tmp_path: Path) -> None:
    field = pa.field("batch_id", pa.string(), metadata={"iceberg.id": str(BATCH_FIELD)})
    orc.write_table(pa.table({"batch_id": ["B", "A", "B"]}, schema=pa.schema([field])), tmp_path / "f")

    names = {("batch_id",): BATCH_FIELD}

    assert found_batches(f"file://{tmp_path}/f", "B", kind="ORC", names=names) == {"B": [0, 2]}


def test_a_file_without_the_batch_column_holds_none_of_them_and_one_without_ids_is_not_guessed_at(
    tmp_path: Path,
) -> None:
    """The rows of a file that must have the column may be of the batch that its partition names."""
    other = written_batches(tmp_path / "a", ["A"], field_id=9)
    nameless = written_batches(tmp_path / "b", ["A"], field_id=None)

    assert found_batches(other, "A") == {}
    assert found_batches(nameless, "A", names={("batch_id",): BATCH_FIELD}) == {"A": [0]}
    with pytest.raises(Unsure, match="no field ids"):
        found_batches(nameless, "A")
    with pytest.raises(Unsure, match="lacks the batch column"):
        find_batches(SearchedFile(PyArrowFileIO(), other), BATCH_FIELD, ["A"], must_have=True)


def test_rows_of_a_file_without_the_batch_column_are_of_the_batch_that_its_partition_names(tmp_path: Path) -> None:
    file = written_batches(tmp_path / "f", ["x", "y"], field_id=BATCH_FIELD + 1)

    for must_have in (False, True):
        io = PyArrowFileIO()
        reported = find_batches(SearchedFile(io, file), BATCH_FIELD, ["A", "B"], if_absent="B", must_have=must_have)
        assert {i: list(p) for i, p in reported.items()} == {"B": [0, 1]}
        assert find_batches(SearchedFile(io, file), BATCH_FIELD, ["A"], if_absent="B", must_have=must_have) == {}


class NotingFile(FileIO):
    """Notes the offset and the length of each read."""

    def __init__(self, path: Path, reads: list[tuple[int, int]]) -> None:
        super().__init__(path)
        self.reads = reads

    def read(self, size: int = -1) -> bytes:
        begin = self.tell()
        content = super().read(size)
        self.reads.append((begin, len(content)))
        return content


def test_only_the_footer_and_the_chunks_that_may_hold_the_batch_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 13 MB: the statistics of the first row group rule it out, those of the other three do not."""
    random, rows = np.random.default_rng(1), 400_000
    ids = np.char.add(np.repeat(["a", "b"], [100_000, 300_000]), random.integers(0, 50_000, rows).astype(str))
    file = written_batches(tmp_path / "f", ids.tolist(), 100_000, other=random.integers(0, 2**62, (3, rows)))
    size = (tmp_path / "f").stat().st_size
    reads: list[tuple[int, int]] = []
    monkeypatch.setattr(PyArrowFile, "open", lambda *_, **__: NotingFile(tmp_path / "f", reads))

    positions = found_batches(file, "b7")

    metadata = pq.read_metadata(tmp_path / "f")
    chunks = [metadata.row_group(n).column(0) for n in range(1, 4)]
    needed = sum(c.total_compressed_size for c in chunks)
    assert (positions, 13e6 < size < 14e6) == ({"b7": np.flatnonzero(ids == "b7").tolist()}, True)
    assert reads == [(size - 65_536, 65_536), *((c.dictionary_page_offset, c.total_compressed_size) for c in chunks)]
    assert sum(length for _, length in reads) / needed <= 1.1


# --- what is kept ---------------------------------------------------------------------------------------------------


class CountingIO(PyArrowFileIO):
    """Counts the files that it opens, by path."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = Counter[str]()

    def new_input(self, location: str) -> InputFile:
        self.opened[location] += 1
        return super().new_input(location)


@given(rows=st.lists(st.sampled_from((None, *"abcde")), max_size=40), wanted=st.sets(st.sampled_from("abcdexy")))
def test_encoded_ids_have_the_runs_of_the_column(rows: list[str | None], wanted: set[str]) -> None:
    """Whatever the chunks of the column, with dictionaries of their own or none."""
    ids = sorted(wanted)
    texts = [pa.array(rows[n : n + 7], pa.string()) for n in range(0, len(rows), 7)]
    columns = [pa.chunked_array(texts, pa.string()), pa.chunked_array(texts, pa.string()).dictionary_encode()]
    if texts:
        columns.append(pa.chunked_array([t.dictionary_encode() for t in texts]))
    numbers = pa.array([None if row is None else "yxedcba".index(row) for row in rows], pa.int32())
    columns.append(pa.chunked_array([pa.DictionaryArray.from_arrays(numbers, [*"yxedcba"])]))

    for column in columns:
        runs = list(EncodedIds.of(column).runs_of(pa.array(ids, pa.string())))
        assert [(n, ids[i]) for i, first, end in runs for n in range(first, end)] == [
            (n, row) for n, row in enumerate(rows) if row in wanted
        ]


@pytest.mark.parametrize(
    ("rows", "bytes_at_most"),
    [
        pytest.param(np.repeat(np.arange(500), 2000), 20_000, id="sorted: 10 bytes for a batch, and its id"),
        pytest.param(np.tile(np.arange(250), 4000), 1_010_000, id="mixed: a byte for a row"),
    ],
)
def test_a_million_rows_take_little_memory(rows: "np.ndarray[Any, Any]", bytes_at_most: int) -> None:
    column = pa.chunked_array([pa.array(rows.astype(str))])

    assert EncodedIds.of(column).memory < bytes_at_most < column.nbytes / 5


def test_a_second_search_for_another_batch_in_the_same_file_opens_nothing(tmp_path: Path) -> None:
    """Nor does a search for a batch that the file may hold and does not."""
    file, io, cache = written_batches(tmp_path / "f", ["A", "B", "A", "D"]), CountingIO(), ColumnCache(10_000)

    first = found_batches(file, "A", io=io, cache=cache)
    later = [found_batches(file, i, io=io, cache=cache) for i in ("B", "C", "A")]

    assert [first, *later] == [{"A": [0, 2]}, {"B": [1]}, {}, {"A": [0, 2]}]
    assert io.opened == {file: 1}


def test_only_parts_that_were_not_read_before_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file has a row group for each batch."""
    read: list[int] = []
    really = pq.ParquetFile.read_row_group

    def noting(self: pq.ParquetFile, n: int, **how: Any) -> pa.Table:
        read.append(n)
        return really(self, n, **how)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", noting)
    file, io, cache = written_batches(tmp_path / "f", [*"AABBDD"], group=2), CountingIO(), ColumnCache(10_000)

    assert found_batches(file, "B", io=io, cache=cache) == {"B": [2, 3]}
    assert found_batches(file, "A", "B", io=io, cache=cache) == {"A": [0, 1], "B": [2, 3]}
    assert found_batches(file, "A", "B", io=io, cache=cache) == {"A": [0, 1], "B": [2, 3]}
    assert (read, io.opened[file]) == ([1, 0], 2)


def test_the_columns_that_were_used_longest_ago_are_forgotten(tmp_path: Path) -> None:
    """However many files are searched, the kept columns stay below the limit."""
    io, names = CountingIO(), [f"{n}" for n in range(9)]
    files = [written_batches(tmp_path / name, [f"batch-{name}", "A"] * 500) for name in names]
    one = ColumnCache(10**6)
    found_batches(files[0], "A", io=PyArrowFileIO(), cache=one)
    cache = ColumnCache(4 * one.memory)
    assert one.memory > 1000

    for file in (*files, files[-4], files[0], files[-4], files[-3]):
        assert found_batches(file, "A", io=io, cache=cache) == {"A": list(range(1, 1000, 2))}
        assert 0 < cache.memory <= cache.bytes_at_most

    assert [io.opened[file] for file in files] == [2, 1, 1, 1, 1, 1, 2, 1, 1]


def test_a_column_that_is_larger_than_the_limit_is_searched_and_kept_in_part(tmp_path: Path) -> None:
    rows = [f"{n}" for n in range(4000)]
    file, io, cache = written_batches(tmp_path / "f", rows, group=1000), CountingIO(), ColumnCache(30_000)

    for _ in range(2):
        assert found_batches(file, *rows[::100], io=io, cache=cache) == {f"{n}": [n] for n in range(0, 4000, 100)}
        assert 10_000 < cache.memory <= 30_000
    assert io.opened[file] == 2


def test_files_of_other_tables_or_with_other_names_of_columns_are_others(tmp_path: Path) -> None:
    """Two object stores may have the same bucket, and a table may change its name mapping."""
    schema = pa.schema([pa.field("x", pa.string()), pa.field("y", pa.string())])
    pq.write_table(pa.table({"x": ["A", "B"], "y": ["B", "A"]}, schema=schema), tmp_path / "f")
    file, cache = f"file://{tmp_path}/f", ColumnCache(10_000)

    assert found_batches(file, "A", names={("x",): BATCH_FIELD}, cache=cache, scope="one") == {"A": [0]}
    assert found_batches(file, "A", names={("y",): BATCH_FIELD}, cache=cache, scope="one") == {"A": [1]}
    written_batches(tmp_path / "f", ["B", "B", "A"])
    assert found_batches(file, "A", names={("x",): BATCH_FIELD}, cache=cache, scope="one") == {"A": [0]}
    assert found_batches(file, "A", names={("x",): BATCH_FIELD}, cache=cache, scope="two") == {"A": [2]}


def test_that_a_file_lacks_the_column_is_kept_too(tmp_path: Path) -> None:
    """Which batch its rows are of, the table's metadata says, each time."""
    file, io, cache = (
        written_batches(tmp_path / "f", ["x", "y"], field_id=BATCH_FIELD + 1),
        CountingIO(),
        ColumnCache(9999),
    )
    searched = SearchedFile(io, file)

    for if_absent, found in (("A", {"A": [0, 1]}), ("B", {}), (None, {})):
        reported = find_batches(searched, BATCH_FIELD, ["A"], if_absent, cache=cache)
        assert {i: list(p) for i, p in reported.items()} == found
    with pytest.raises(Unsure, match="lacks the batch column"):
        find_batches(searched, BATCH_FIELD, ["A"], must_have=True, cache=cache)
    assert io.opened[file] == 1
