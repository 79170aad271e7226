"""Writes the rows of data files that stay to new files, without committing them. I/O.

There are two ways. Executors filter files one by one, and copy the row groups that lose no rows (`lethe.purge.filtering`). What
they leave is written by Spark.
"""

import logging
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from lethe.base.errors import ConflictError, LetheError
from lethe.files.native_deletes import NO_POSITIONS
from lethe.ingest.registrable import RegisterTarget
from lethe.purge.filtering import FileToFilter, Filter, Loss
from lethe.purge.source import RowIds, with_row_ids
from lethe.uri import without_values
from lethe.vacuum.plan import ROW_IDS_SINCE
from pyiceberg.types import DoubleType, FloatType
from pyroaring import FrozenBitMap64
from pyspark.accumulators import Accumulator
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from lethe_spark.commit.ledger_commit import Attempts, discard
from lethe_spark.commit.table_state import Base
from lethe_spark.ingest import PathsParam
from lethe_spark.jvm.data_files import DataFile, HiddenRows, data_files, described, json_of
from lethe_spark.jvm.errors import JvmError, reading
from lethe_spark.jvm.gateway import each
from lethe_spark.jvm.scan_tasks import write_uncommitted
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.jvm.table import writing_as
from lethe_spark.run.context import RunContext, table_properties
from lethe_spark.sql.searching import RowCounts, require_every_row, require_found, require_written

log = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R")


def kept_metrics(base: Base) -> tuple[str, ...]:
    """The columns with metrics that a footer does not show: the numbers of NaNs."""
    schema = base.iceberg.schema()
    return tuple(n for n in schema.column_names if isinstance(schema.find_type(n), (FloatType, DoubleType)))


@dataclass(frozen=True)
class FilteredFiles:
    """The result of filtering files."""

    added: tuple[DataFile, ...]
    replaced: frozenset[str]
    """Paths of the files that the added ones replace."""
    copied_bytes: int = 0
    """Bytes of row groups that were copied."""


def filter_files(
    context: RunContext,
    table: SparkTable,
    base: Base,
    files: Collection[tuple[DataFile, Loss]],
    deleted: Mapping[str, HiddenRows],
    also: Mapping[str, FrozenBitMap64] = MappingProxyType({}),
) -> FilteredFiles:
    """Write each file without what it loses. Files for which this is not certain to be right are left to the caller.

    Args:
        deleted: What native deletes hide, by path; a file without such deletes may be missing. These rows are left out too. Only
            Spark applies deletes by values.
        also: Positions of further rows to leave out, by path.

    Raises:
        TransientError: A dependency is temporarily unavailable.
        Exception: The errors of the workers.
    """
    positions = {path: of.positions for path, of in deleted.items()}
    hidden = {f.path: positions.get(f.path, NO_POSITIONS) | also.get(f.path, NO_POSITIONS) for f, _ in files}
    files = [(f, loss) for f, loss in files if f.path not in deleted or not deleted[f.path].others]
    if not files:
        return FilteredFiles((), frozenset())
    files = sorted(files, key=lambda result: -result[0].bytes)  # the largest first, so that no task is alone at the end
    target = RegisterTarget.of(base.iceberg, base.field_id, may_lack=True)
    if has_ids := base.iceberg.metadata.format_version >= ROW_IDS_SINCE:
        target = with_row_ids(target)
    places = described_for_workers(context, table, [file for file, _ in files], "purged")
    tasks = [
        FileToFilter(
            file.path,
            file.records,
            place.to,
            loss,
            place.document,
            place.row_ids,
            hidden[file.path].serialize() if hidden[file.path] else b"",
        )
        for (file, loss), place in zip(files, places, strict=True)
        if place.row_ids is not None or not has_ids
    ]
    if len(tasks) < len(files):
        log.info("%d files are rewritten by Spark: their rows have no ids yet", len(files) - len(tasks))
    if not tasks:
        return FilteredFiles((), frozenset())
    worker = Filter(target, table_properties(context))
    done = in_workers(context, table, tasks, worker.attempt, lambda filtered: filtered.to)
    for result in done:
        if result.unsuitable:
            log.info("%s is rewritten by Spark: %s", without_values(result.path), result.unsuitable)
    written = [result for result in done if result.document]
    copied, encoded = sum(result.copied for result in written), sum(result.encoded for result in written)
    sent, by_store = sum(result.sent for result in written), sum(result.by_store for result in written)
    log.info("%d files filtered: %d bytes copied, %d bytes encoded", len(written), copied, encoded)
    log.info("%d bytes were sent by workers, and %d bytes copied by the store itself", sent, by_store)
    try:
        added = described(table, each(data_files(table, [result.document for result in written])))
    except LetheError:
        discard(table, [result.to for result in written], Attempts())
        raise
    return FilteredFiles(added, frozenset(result.path for result in written), copied)


def in_workers(
    context: RunContext,
    table: SparkTable,
    tasks: Collection[T],
    work: Callable[[T], R],
    new_file: Callable[[R], str],
) -> list[R]:
    """Do each task in a worker. If an error is raised, there are no new files.

    Args:
        new_file: The path of the file that a task has written; empty: none.

    Raises:
        Exception: The errors of the workers.
    """
    spark = context.spark.sparkContext
    paths: Accumulator[list[str]] = spark.accumulator([], PathsParam())

    def attempt(task: T) -> R:
        result = work(task)
        if path := new_file(result):
            paths.add([path])
        return result

    try:
        return spark.parallelize(list(tasks), len(tasks)).map(attempt).collect()
    except (PySparkException, *JvmError):
        discard(table, paths.value, Attempts())
        raise


def write_by_spark(
    context: RunContext,
    table: SparkTable,
    files: Collection[DataFile],
    kept: DataFrame,
    counts: RowCounts,
    *,
    expected: int | None = None,
    target_file_size_bytes: int | None = None,
    one_pass: bool = False,
    by_range: bool = False,
) -> tuple[DataFile, ...]:
    """Write rows of data files, if all rows were read, and none is lost.

    Args:
        files: All files that were read.
        kept: The rows to write.
        counts: Of the rows of the files, and of those to write.
        expected: The number of rows to write that were found before. None: unknown.
        target_file_size_bytes, one_pass, by_range: As `write_uncommitted`.

    Raises:
        ConflictError: `RowsDiffer`. Then there are no new files.
        TransientError: A dependency is temporarily unavailable.
        Exception: The errors of computing the rows.
    """
    require_every_row(table.full_name, files, counts)
    if expected is not None:
        require_found(table.full_name, expected, counts)
    written = write_uncommitted(table, kept, context.run_id, target_file_size_bytes, one_pass, by_range)
    try:
        require_written(table.full_name, counts.kept, written)
    except ConflictError:
        discard(table, written, Attempts())
        raise
    return written


@dataclass(frozen=True)
class FileForWorker:
    """What a worker must know of a file."""

    to: str
    """URI of a new file in the run's folder, and in the file's partition."""
    document: str
    """Iceberg's JSON of the file."""
    row_ids: RowIds | None


@reading("naming new data files")
def described_for_workers(
    context: RunContext, table: SparkTable, files: Collection[DataFile], what: str
) -> list[FileForWorker]:
    """What workers must know of the files.

    Args:
        what: A part of the names of new files.

    Raises:
        TransientError: A dependency is temporarily unavailable.
    """
    places = writing_as(table, context.run_id).locationProvider()
    specs = table.java.specs()
    found = []
    for number, file in enumerate(files):
        spec = specs.get(int(file.java.specId()))
        name = f"{number:05d}-{what}-{uuid.uuid4()}.parquet"
        to = (
            places.newDataLocation(name)
            if spec.isUnpartitioned()
            else places.newDataLocation(spec, file.java.partition(), name)
        )
        found.append(FileForWorker(str(to), json_of(table, file.java, spec), _row_ids(file.java)))
    return found


def _row_ids(file: Any) -> RowIds | None:
    """What the rows of Iceberg's data file inherit.

    None: they have no ids. In a table that was upgraded to format version 3, the next commit gives ids to them.
    """
    first, sequence_number = file.firstRowId(), file.dataSequenceNumber()
    return None if first is None or sequence_number is None else RowIds(int(first), int(sequence_number))
