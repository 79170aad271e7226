"""Purges files one by one in Spark's Python workers, without Spark's rows (`lethe.purge.filtering`). I/O through executors."""

import logging
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lethe.files.bounds import FileBounds
from lethe.ingest.registrable import Target
from lethe.purge.filtering import FileToFilter, Filter, Filtered, Loss
from lethe.purge.row_ids import RowIds, with_row_ids
from lethe.search.live_suspects import Suspect
from lethe.search.vacuum_survey import candidate, traits_of
from lethe.vacuum.one_by_one import ROW_IDS_SINCE, is_sorted, one_by_one
from pyiceberg.types import DoubleType, FloatType

from lethe_spark.commit.table_state import Base
from lethe_spark.jvm.data_files import DataFile, described, json_of
from lethe_spark.jvm.errors import reading
from lethe_spark.jvm.gateway import each
from lethe_spark.jvm.registration import data_files
from lethe_spark.jvm.run_folder import writing_as
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import RunContext, table_properties

log = logging.getLogger(__name__)


def filterable(
    base: Base, files: Collection[FileBounds], known: Mapping[str, Suspect], losses: Mapping[str, Loss], target: int
) -> dict[str, Loss]:
    """What the files lose that are purged one by one. The others are rewritten by Spark, together.

    Args:
        known: By path.
        losses: Of the files that could be searched, by path.
        target: The target size of data files, in bytes.
    """
    candidates = []
    for f in files:
        loss = losses.get(f.path)
        candidates.append(candidate(known[f.path], None if loss is None else loss.rows))
    traits = traits_of(base.iceberg, base.field_id)
    found = {c.bounds.path: is_sorted(traits, c) for c in one_by_one(traits, candidates, target)}
    return {path: replace(losses[path], in_order=in_order) for path, in_order in found.items()}


def kept_metrics(base: Base) -> tuple[str, ...]:
    """The columns with metrics that a footer does not show: the numbers of NaNs."""
    schema = base.iceberg.schema()
    return tuple(n for n in schema.column_names if isinstance(schema.find_type(n), (FloatType, DoubleType)))


@dataclass(frozen=True)
class FilteredFiles:
    """What became of the files."""

    added: tuple[DataFile, ...]
    # Paths of the files that the added ones replace.
    replaced: frozenset[str]
    # Bytes of row groups that were copied.
    copied_bytes: int = 0


def filter_files(
    context: RunContext, table: SparkTable, base: Base, files: Collection[tuple[DataFile, Loss]]
) -> FilteredFiles:
    """Write each file without what it loses. Files for which this is not certain to be right are left to the caller.

    Raises: TransientError, and the errors of the workers.
    """
    if not files:
        return FilteredFiles((), frozenset())
    files = sorted(files, key=lambda one: -one[0].bytes)  # the largest first, so that no task is alone at the end
    target = Target.of(base.iceberg, base.field_id, may_lack=True)
    if has_ids := base.iceberg.metadata.format_version >= ROW_IDS_SINCE:
        target = with_row_ids(target)
    places = described_for_workers(context, table, [file for file, _ in files], "purged")
    tasks = [
        FileToFilter(file.path, file.records, place.to, loss, place.document, place.row_ids)
        for (file, loss), place in zip(files, places, strict=True)
        if place.row_ids is not None or not has_ids
    ]
    if len(tasks) < len(files):
        log.info("%d files are rewritten by Spark: their rows have no ids yet", len(files) - len(tasks))
    if not tasks:
        return FilteredFiles((), frozenset())
    worker = Filter(target, table_properties(context))
    done: list[Filtered] = context.spark.sparkContext.parallelize(tasks, len(tasks)).map(worker.attempt).collect()
    for one in done:
        if one.unsuitable:
            log.info("%s is rewritten by Spark: %s", one.path, one.unsuitable)
    written = [one for one in done if one.document]
    copied, encoded = sum(one.copied for one in written), sum(one.encoded for one in written)
    sent, by_store = sum(one.sent for one in written), sum(one.by_store for one in written)
    log.info("%d files filtered: %d bytes copied, %d bytes encoded", len(written), copied, encoded)
    log.info("%d bytes were sent by workers, and %d bytes copied by the store itself", sent, by_store)
    added = described(table, each(data_files(table, [one.document for one in written])))
    return FilteredFiles(added, frozenset(one.path for one in written), copied)


@dataclass(frozen=True)
class Described:
    """What a worker must know of a file."""

    # URI of a new file in the run's folder, and in the file's partition.
    to: str
    # Iceberg's JSON of the file.
    document: str
    row_ids: RowIds | None


@reading("naming new data files")
def described_for_workers(
    context: RunContext, table: SparkTable, files: Collection[DataFile], what: str
) -> list[Described]:
    """Args:
        what: A part of the names of new files.
    Raises: TransientError.
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
        found.append(Described(str(to), json_of(table, file.java, spec), _row_ids(file.java)))
    return found


def _row_ids(file: Any) -> RowIds | None:
    """What the rows of Iceberg's data file inherit. None: they have no ids. In a table that was upgraded to format version 3,
    the next commit gives ids to them."""
    first, sequence_number = file.firstRowId(), file.dataSequenceNumber()
    return None if first is None or sequence_number is None else RowIds(int(first), int(sequence_number))
