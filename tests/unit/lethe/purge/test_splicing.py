"""Row groups that are copied as bytes read as they did before, in several readers, for files of several writers."""

import random
from collections.abc import Sequence
from contextlib import nullcontext
from io import BytesIO
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.purge import footer
from lethe.purge.footer import FileSink, FooterUnreadable, Splice, decode, encode, extent, footer_of, groups_of
from lethe.purge.source import NAMES, RowIds, add_to, inherited

from tests.support.random_files import WRITERS, a_table, check_places, write


def spliced(path: Path, to: Path, numbers: Sequence[int], ids: RowIds | None = None) -> None:
    """Args:
    ids: With columns of row ids.
    """
    with path.open("rb") as source, to.open("wb") as sink:
        found = footer_of(source, path.stat().st_size)
        groups = groups_of(found)
        if ids is not None:
            add_to(found)
        splice, position, copied = Splice(FileSink(sink), found), 0, 0
        for number, group in enumerate(groups):
            rows = group[footer.GROUP_ROWS]
            if number in numbers:
                copied += splice.add(source, group)
                if ids is not None:
                    made = BytesIO()
                    pq.write_table(inherited(position, rows, ids), made, row_group_size=rows)
                    (columns,) = groups_of(footer_of(made, made.tell()))
                    splice.widen(made, columns)
            position += rows
        splice.close()
    assert copied < to.stat().st_size


def check(path: Path, to: Path, numbers: Sequence[int], ids: RowIds | None = None) -> None:
    before = pq.ParquetFile(path)
    groups = [before.read_row_group(n) for n in numbers]
    expected = pa.concat_tables(groups) if groups else before.schema_arrow.empty_table()
    after = pq.ParquetFile(to)
    rows = after.read().select(before.schema_arrow.names)
    assert str(rows.to_pylist()) == str(expected.to_pylist())  # as text: NaN is not equal to itself
    if ids is None:
        assert after.schema.equals(before.schema)
    else:
        check_ids(to, after, ids)
    first, last = (min(expected["n"].to_pylist()), max(expected["n"].to_pylist())) if len(expected) else (0, 0)
    between = [n for n in expected["n"].to_pylist() if first < n < last]
    query = f"SELECT n FROM '{to}' WHERE n > {first} AND n < {last}"
    assert [row[0] for row in duckdb.sql(query).fetchall()] == between
    filtered = pl.scan_parquet(to).filter((pl.col("n") > first) & (pl.col("n") < last)).select("n").collect()
    assert filtered["n"].to_list() == between
    check_places(to)


def check_ids(path: Path, after: pq.ParquetFile, ids: RowIds) -> None:
    """Each reader finds in each row the id that it had, and can search for it."""
    wanted = [(n, ids.first + n, ids.sequence_number) for n in after.read()["n"].to_pylist()]
    assert list(zip(*(after.read()[c].to_pylist() for c in ("n", *NAMES)), strict=True)) == wanted
    selected = f"SELECT n, {', '.join(NAMES)} FROM '{path}'"
    assert duckdb.sql(selected).fetchall() == wanted
    assert pl.scan_parquet(path).select("n", *NAMES).collect().rows() == wanted
    for one in wanted[:: max(1, len(wanted) // 3)]:
        assert duckdb.sql(f"{selected} WHERE _row_id = {one[1]}").fetchall() == [one]
        assert pl.scan_parquet(path).filter(pl.col("_row_id") == one[1]).select("n", *NAMES).collect().rows() == [one]


def check_random_files(folder: Path, writer: str, seeds: range) -> None:
    for seed in seeds:
        luck = random.Random(seed)
        path, to = folder / f"{seed}.parquet", folder / f"{seed}-spliced.parquet"
        write(path, a_table(luck), writer, luck)
        groups = pq.read_metadata(path).num_row_groups
        numbers = sorted(luck.sample(range(groups), luck.randrange(groups + 1)))
        spliced(path, to, numbers)
        check(path, to, numbers)
        ids = RowIds(luck.randrange(2**40), luck.randrange(2**20))
        spliced(path, to, numbers, ids)
        check(path, to, numbers, ids)


@pytest.mark.parametrize("writer", WRITERS)
def test_random_files_read_the_same(tmp_path: Path, writer: str) -> None:
    check_random_files(tmp_path, writer, range(2))


@pytest.mark.long
@pytest.mark.parametrize("writer", WRITERS)
def test_many_random_files_read_the_same(tmp_path: Path, writer: str) -> None:
    check_random_files(tmp_path, writer, range(2, 350))


def test_row_groups_of_two_files_become_one_file(tmp_path: Path) -> None:
    one, other, to = (tmp_path / f"{name}.parquet" for name in ("one", "other", "to"))
    pq.write_table(pa.table({"n": range(1000)}), one, row_group_size=500, write_page_index=True)
    pq.write_table(pa.table({"n": range(1000, 1500)}), other, compression="gzip")
    with one.open("rb") as a, other.open("rb") as b, to.open("wb") as sink:
        found = footer_of(a, one.stat().st_size)
        splice = Splice(FileSink(sink), found)
        for stream, path in ((a, one), (b, other)):
            for group in groups_of(footer_of(stream, path.stat().st_size)):
                splice.add(stream, group)
        splice.close()

    assert pq.read_table(to)["n"].to_pylist() == list(range(1500))
    assert pq.read_metadata(to).num_rows == 1500


def test_a_footer_is_written_as_it_was_read(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"n": range(10), "s": ["x"] * 10}), path, write_page_index=True)
    content = path.read_bytes()
    length = int.from_bytes(content[-8:-4], "little")

    assert encode(decode(content[-8 - length : -8])) == content[-8 - length : -8]


@pytest.mark.parametrize(
    "content", [b"", b"PAR1", b"PAR1\xff\xff\xff\xffPAR1", b"PAR1" + b"\x15" * 40 + b"\x28\0\0\0PAR1", b"x" * 99]
)
def test_what_is_no_parquet_file_is_unreadable(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "f.parquet"
    path.write_bytes(content)

    with path.open("rb") as stream, pytest.raises(FooterUnreadable):
        footer_of(stream, len(content))


def test_columns_that_overlap_are_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"a": range(10), "b": range(10)}), path)
    with path.open("rb") as stream:
        (group,) = groups_of(footer_of(stream, path.stat().st_size))
    data = group[footer.COLUMNS].items[0][footer.CHUNK_DATA]
    data.change(footer.CHUNK_BYTES, data[footer.CHUNK_BYTES] + 1)

    with pytest.raises(FooterUnreadable, match="overlap"):
        extent(group)


@pytest.mark.parametrize(("writer", "known"), [("1.6.0", False), ("1.16.0", True)])
def test_sizes_of_early_writers_are_not_trusted(tmp_path: Path, writer: str, known: bool) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"a": range(10)}), path)
    with path.open("rb") as stream:
        found = footer_of(stream, path.stat().st_size)
    found.change(footer.CREATED_BY, f"parquet-mr version {writer} (build 1)".encode())
    content = encode(found)
    path.write_bytes(path.read_bytes() + content + len(content).to_bytes(4, "little") + footer.MAGIC)

    with path.open("rb") as stream, nullcontext() if known else pytest.raises(FooterUnreadable, match="old"):
        footer_of(stream, path.stat().st_size)
