"""Writes data files without some of their rows in the executors, one by one. I/O; `lethe.purge.filtering` does the work."""

import logging
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from lethe.ingest.registrable import RegisterTarget
from lethe.purge.filtering import FileToFilter, Filter, Filtered, Loss
from lethe.purge.source import RowIds, with_row_ids
from lethe.vacuum.plan import ROW_IDS_SINCE
from pyiceberg.types import DoubleType, FloatType
from pyroaring import FrozenBitMap64

from lethe_spark.commit.table_state import Base
from lethe_spark.jvm.data_files import DataFile, data_files, described, json_of
from lethe_spark.jvm.errors import reading
from lethe_spark.jvm.gateway import each
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.jvm.table import writing_as
from lethe_spark.run.context import RunContext, table_properties

log = logging.getLogger(__name__)


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
    hidden: Mapping[str, FrozenBitMap64] = MappingProxyType({}),
) -> FilteredFiles:
    """Write each file without what it loses. Files for which this is not certain to be right are left to the caller.

    Args:
        hidden: Positions of rows that native deletes hide, by path. They are left out too.

    Raises:
        TransientError: A dependency is temporarily unavailable.
        Exception: The errors of the workers.
    """
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
            hidden[file.path].serialize() if file.path in hidden else b"",
        )
        for (file, loss), place in zip(files, places, strict=True)
        if place.row_ids is not None or not has_ids
    ]
    if len(tasks) < len(files):
        log.info("%d files are rewritten by Spark: their rows have no ids yet", len(files) - len(tasks))
    if not tasks:
        return FilteredFiles((), frozenset())
    worker = Filter(target, table_properties(context))
    done: list[Filtered] = context.spark.sparkContext.parallelize(tasks, len(tasks)).map(worker.attempt).collect()
    for result in done:
        if result.unsuitable:
            log.info("%s is rewritten by Spark: %s", result.path, result.unsuitable)
    written = [result for result in done if result.document]
    copied, encoded = sum(result.copied for result in written), sum(result.encoded for result in written)
    sent, by_store = sum(result.sent for result in written), sum(result.by_store for result in written)
    log.info("%d files filtered: %d bytes copied, %d bytes encoded", len(written), copied, encoded)
    log.info("%d bytes were sent by workers, and %d bytes copied by the store itself", sent, by_store)
    added = described(table, each(data_files(table, [result.document for result in written])))
    return FilteredFiles(added, frozenset(result.path for result in written), copied)


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
