"""Searches many data files for rows with certain values, and checks that rewrites read every row. I/O through executors.

No value is part of a query: Spark broadcasts the values. No error contains a value.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Final, TypeVar

import pyarrow as pa
from lethe.base.errors import ConflictError
from lethe.contract.run import SearchLimits
from lethe.files.values import ValueType
from lethe.iceberg.column_path import ColumnName
from lethe.iceberg.time_column import TimeColumn
from lethe.search.ages import AgeResult, AgeSearch
from lethe.search.batches import PARALLEL_FILES, BatchSearch, FileResult, Searched, is_few, result_of, search_here
from lethe.search.candidates import CandidateFile
from lethe.search.positions import AnyWanted, SearchedFile, Wanted, WantedKeys, find, find_keys
from lethe.storage.file_io import file_io
from pyroaring import FrozenBitMap64
from pyspark import Broadcast, SparkContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from lethe_spark.jvm.data_files import DataFile, with_deletes
from lethe_spark.jvm.errors import reading
from lethe_spark.jvm.scan_tasks import ScannedFiles, scan_tasks
from lethe_spark.jvm.spark_table import in_set, quoted

R = TypeVar("R")

_ID = "_lethe_id"
IN_SET_AT_MOST: Final = 10_000
"""At most this many ids are sent with each task as a set, which each task deserializes.

More are joined, so that each executor receives them once.
"""

_GROUPS_PER_CORE: Final = 4
_FILES_HERE_AT_MOST: Final = 100
"""More are searched faster by executors."""


def anti_join(frame: DataFrame, column: str, ids: Collection[str]) -> DataFrame:
    """The rows whose `column` is none of `ids`, including rows with a null: a null is never tombstoned."""
    if not ids:
        return frame
    if len(ids) > IN_SET_AT_MOST:
        return _joined(frame, column, ids, "left_anti")
    return frame.filter(~_has_one_of(frame, column, ids))


def outside(frame: DataFrame, column: str, runs: Collection[tuple[str, str]]) -> DataFrame:
    """The rows whose `column` is in none of the runs (both ends inclusive), or is null.

    Spark pushes these conditions down to Iceberg, which then does not open files whose values are all within a run.
    """
    for lower, upper in runs:
        frame = frame.filter((named(column) < lower) | (named(column) > upper) | named(column).isNull())
    return frame


def semi_join(frame: DataFrame, column: str, ids: Collection[str]) -> DataFrame:
    """The rows whose `column` is one of `ids`."""
    if 0 < len(ids) <= IN_SET_AT_MOST:
        return frame.filter(_has_one_of(frame, column, ids))
    return _joined(frame, column, ids, "left_semi")


def _has_one_of(frame: DataFrame, column: str, ids: Collection[str]) -> Column:
    """Whether a row has one of the ids; never null.

    If the ids are close together, as those of batches of one time are, two comparisons save the look-up for most rows.

    `coalesce` also keeps Spark from pushing the whole set down to the filters of the files, which would look up each value
    in each dictionary.
    """
    id = named(column)
    return F.coalesce((id >= min(ids)) & (id <= max(ids)) & in_set(frame.sparkSession, id, ids), F.lit(False))


def _joined(frame: DataFrame, column: str, ids: Collection[str], how: str) -> DataFrame:
    id_frame = frame.sparkSession.createDataFrame(pa.table({_ID: pa.array(sorted(ids), pa.string())}))
    return frame.join(F.broadcast(id_frame), named(column) == F.col(_ID), how)


def not_before(frame: DataFrame, column: TimeColumn, day: date) -> DataFrame:
    """The rows whose time is not before a UTC day, including rows without a time."""
    start = f"{day.isoformat()} 00:00:00"
    literals = {
        ValueType.DATE: f"DATE'{day.isoformat()}'",
        ValueType.TIMESTAMP: f"TIMESTAMP_NTZ'{start}'",
        ValueType.TIMESTAMPTZ: f"TIMESTAMP'{start}Z'",
    }
    time = F.col(".".join(quoted(name) for name in column.name))
    # `coalesce` keeps Spark from skipping row groups: the rows are counted against those that the files have.
    return frame.filter(~F.coalesce(time < F.expr(literals[column.type]), F.lit(False)))


def named(column: str) -> Column:
    """The column of exactly this name, which may contain dots."""
    return F.col(quoted(column))


@dataclass(frozen=True)
class Search:
    """A search for values."""

    searches: Mapping[str, AnyWanted] = field(repr=False)
    """The values, by the key of the search."""
    io_properties: Mapping[str, str] = field(repr=False)
    """PyIceberg's properties to open files with."""
    names: Mapping[ColumnName, int] | None = None
    """The table's name mapping. None: it has none."""

    def of_file(self, file: CandidateFile) -> FileResult:
        """Search one data file.

        Raises:
            SearchError: The file could not be read.
        """
        return result_of(file, self._find)

    def _find(self, file: CandidateFile) -> dict[str, FrozenBitMap64]:
        values = {key: w for key in file.keys if isinstance(w := self.searches[key], Wanted)}
        keys = {key: w for key in file.keys if isinstance(w := self.searches[key], WantedKeys)}
        io = file_io(self.io_properties, file.path)
        searched = SearchedFile(io, file.path, file.format_name, self.names)
        positions = find(searched, values, file.if_absent) if values else {}
        if keys:
            positions |= find_keys(searched, keys, file.absent)
        return positions


def search(context: SparkContext, limits: SearchLimits, request: Search, files: Sequence[CandidateFile]) -> Searched:
    """Find the positions of the wanted rows in each of the data files: in this process, or in many by executors.

    Raises:
        SearchError: A file could not be read.
        Exception: Spark's errors.
    """
    if _searches_here(context, limits, files):
        with ThreadPoolExecutor(PARALLEL_FILES, "search") as pool:
            return Searched.of(pool.map(request.of_file, files))
    values = context.broadcast(dict(request.searches))
    try:
        return _run(context, files, _ValueWorker(values, replace(request, searches={})).search)
    finally:
        values.destroy()  # from the disks of the executors too


def _searches_here(context: SparkContext, limits: SearchLimits, files: Sequence[CandidateFile]) -> bool:
    """Whether this process searches the data files.

    Python processes of Spark need seconds to start, and each search with them some tenths of a second.
    """
    is_slower = len(files) > _FILES_HERE_AT_MOST and context.defaultParallelism > PARALLEL_FILES
    return not is_slower and is_few(limits, files)


def search_few_here(
    context: SparkContext, limits: SearchLimits, request: BatchSearch, files: Sequence[CandidateFile]
) -> Searched:
    """Search few data files in this process, and many as `search_batches` does.

    Raises:
        SearchError: A file could not be read.
        Exception: Spark's errors.
    """
    here = _searches_here(context, limits, files)
    return search_here(request, files) if here else search_batches(context, request, files)


def search_batches(context: SparkContext, request: BatchSearch, files: Sequence[CandidateFile]) -> Searched:
    """Find the positions of each batch's rows in each of the data files, by batch id.

    Raises:
        Exception: Spark's errors.
    """
    ids = context.broadcast(sorted(request.ids))
    worker = _BatchWorker(ids, replace(request, ids=frozenset()))
    try:
        return _run(context, files, worker.search)
    finally:
        ids.destroy()


def count_too_old(context: SparkContext, request: AgeSearch, files: Sequence[CandidateFile]) -> list[AgeResult]:
    """Count the rows of each of the data files that are too old.

    Raises:
        Exception: Spark's errors.
    """
    return _in_workers(context, files, request.search)


def _run(
    context: SparkContext,
    files: Sequence[CandidateFile],
    search_files: Callable[[Iterable[CandidateFile]], Iterator[FileResult]],
) -> Searched:
    return Searched.of(_in_workers(context, files, search_files))


def _in_workers(
    context: SparkContext,
    files: Sequence[CandidateFile],
    search_files: Callable[[Iterable[CandidateFile]], Iterable[R]],
) -> list[R]:
    """Search the files in the workers, the largest first."""
    groups = max(1, min(len(files), context.defaultParallelism * _GROUPS_PER_CORE))
    largest_first = sorted(files, key=lambda c: -c.size)
    shares = [largest_first[n::groups] for n in range(groups)]
    return context.parallelize(shares, groups).flatMap(search_files).collect()


@dataclass(frozen=True)
class _ValueWorker:
    """Searches files for values, in a worker."""

    searches: "Broadcast[dict[str, AnyWanted]]"
    request: Search
    """The request without its searches, which are broadcast."""

    def search(self, files: Iterable[CandidateFile]) -> Iterator[FileResult]:
        request = replace(self.request, searches=self.searches.value)
        return map(request.of_file, files)


@dataclass(frozen=True)
class _BatchWorker:
    """Searches files for rows of batches, in a worker."""

    ids: "Broadcast[list[str]]"
    request: BatchSearch
    """The request without its ids, which are broadcast."""

    def search(self, files: Iterable[CandidateFile]) -> Iterator[FileResult]:
        return (self.request.of_file(c, self.ids.value) for c in files)


@dataclass(frozen=True)
class RowCounts:
    """Rows of data files."""

    read: int
    """The number of all rows, also of those that native deletes hide."""
    kept: int
    """The number of the rows that a rewrite writes."""


def count_without_batches(scanned: ScannedFiles, column: str, ids: Collection[str]) -> RowCounts:
    """Count the rows of the files, and those of them that neither native deletes hide nor have one of the ids in this column."""
    counts = {r[0]: int(r[1]) for r in scanned.frame.groupBy(named(column)).count().collect()}
    gone = frozenset(ids)
    return RowCounts(_every_row(scanned, sum(counts.values())), sum(n for i, n in counts.items() if i not in gone))


def count_of(scanned: ScannedFiles, kept: DataFrame) -> RowCounts:
    """Count the rows of the files.

    Args:
        kept: Those that a rewrite writes.
    """
    return RowCounts(_every_row(scanned), kept.count())


@reading("counting the rows of data files")
def _every_row(scanned: ScannedFiles, visible: int | None = None) -> int:
    """The number of rows that Spark reads if no native deletes apply.

    Args:
        visible: The number of rows that native deletes do not hide. None: not known.
    """
    if any(not task.deletes().isEmpty() for task in scanned.tasks):
        with scan_tasks(scanned.table, [with_deletes(scanned.table, task, ()) for task in scanned.tasks]) as every:
            return int(every.frame.count())
    return int(scanned.frame.count()) if visible is None else visible


def require_every_row(table: str, files: Iterable[DataFile], counts: RowCounts) -> None:
    """Check that all rows of the files were read.

    The metadata of a file says how many rows it has. Read without native deletes, a file must have exactly these rows. Otherwise
    something leaves out rows, for example a plan or a filter of somebody else, and a commit of the new files would delete them
    for good.

    Raises:
        ConflictError: `RowsDiffer`.
    """
    named_rows = sum(f.records for f in files)
    if counts.read != named_rows:
        raise ConflictError(
            "RowsDiffer",
            f"{table}: the data files to rewrite have {named_rows} rows by the table's metadata, and Spark read {counts.read}. "
            "Nothing was committed. Check that nothing between Spark and the table's storage leaves out rows, and that the "
            "files are those that their writer has written.",
        )


def require_found(table: str, expected: int, counts: RowCounts) -> None:
    """Check that a rewrite of certain rows has found all of them.

    Raises:
        ConflictError: `RowsDiffer`.
    """
    if counts.kept != expected:
        raise ConflictError(
            "RowsDiffer",
            f"{table}: {expected} rows were found that are to be written again, and Spark read {counts.kept} of them. "
            "Nothing was committed. The run tries again.",
        )


def require_written(table: str, expected: int, added: Iterable[DataFile]) -> None:
    """Check that the new files have as many rows as should be left.

    Raises:
        ConflictError: `RowsDiffer`.
    """
    written = sum(f.records for f in added)
    if written != expected:
        raise ConflictError(
            "RowsDiffer",
            f"{table}: {expected} rows of the data files to rewrite should be left, and {written} were written. Nothing was "
            "committed. The run tries again.",
        )
