"""Purges files one by one in Spark's Python workers, without Spark's rows (`lethe.purge.filtering`). I/O through executors."""

import logging
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from lethe.files.bounds import FileBounds
from lethe.iceberg.native_deletes import has_ours
from lethe.ingest.registrable import Target
from lethe.purge.filtering import FileToFilter, Filter, Filtered, Loss
from lethe.search.live_suspects import Suspect
from lethe.vacuum.priority import apart, stays_large
from pyiceberg.types import DoubleType, FloatType

from lethe_spark.commit.table_state import Base
from lethe_spark.jvm.data_files import DataFile, described
from lethe_spark.jvm.errors import reading
from lethe_spark.jvm.gateway import each
from lethe_spark.jvm.registration import data_files
from lethe_spark.jvm.run_folder import writing_as
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import RunContext, table_properties

log = logging.getLogger(__name__)
_FORMAT_PROPERTY: Final = "write.format.default"
_PARQUET: Final = "parquet"
# In format version 3 rows have ids, which a new file would have to name.
_NO_ROW_IDS: Final = (1, 2)


def filterable(
    base: Base, files: Collection[FileBounds], known: Mapping[str, Suspect], losses: Mapping[str, Loss], target: int
) -> dict[str, Loss]:
    """What the files lose that are purged one by one. The others are rewritten by Spark, together.

    Args:
        known: By path.
        losses: Of the files that could be searched, by path.
        target: The target size of data files, in bytes.
    """
    metadata = base.iceberg.metadata
    if metadata.format_version not in _NO_ROW_IDS or metadata.properties.get(_FORMAT_PROPERTY, _PARQUET) != _PARQUET:
        return {}
    found, sorted_alone = {}, apart(files)
    for f in files:
        if f.path not in sorted_alone:
            continue
        file, loss = known[f.path], losses.get(f.path)
        plain = file.format_name.lower() == _PARQUET and not f.deletes and file.spec_id == metadata.default_spec_id
        if plain and loss is not None and stays_large(f, loss.rows, target):
            found[f.path] = loss
    # Equality deletes apply only to files that are older than they are. Spark applies them while it rewrites a file. Looking for
    # them reads all manifests of deletes, so this is asked last.
    return {} if found and has_ours(base.iceberg.io, base.manifests()) else found


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
    places = _described(context, table, [file for file, _ in files])
    tasks = [
        FileToFilter(file.path, file.records, to, loss, document)
        for (file, loss), (to, document) in zip(files, places, strict=True)
    ]
    worker = Filter(Target.of(base.iceberg, base.field_id, may_lack=True), table_properties(context))
    done: list[Filtered] = context.spark.sparkContext.parallelize(tasks, len(tasks)).map(worker).collect()
    for one in done:
        if one.unsuitable:
            log.info("%s is rewritten by Spark: %s", one.path, one.unsuitable)
    written = [one for one in done if one.document]
    copied, encoded = sum(one.copied for one in written), sum(one.encoded for one in written)
    log.info("%d files filtered: %d bytes copied, %d bytes encoded", len(written), copied, encoded)
    added = described(table, each(data_files(table, [one.document for one in written])))
    return FilteredFiles(added, frozenset(one.path for one in written), copied)


@reading("naming new data files")
def _described(context: RunContext, table: SparkTable, files: Collection[DataFile]) -> list[tuple[str, str]]:
    """For each file, the URI of a new one in the run's folder, and its own JSON. Raises: TransientError."""
    places = writing_as(table, context.run_id).locationProvider()
    parser, specs = table.jvm.org.apache.iceberg.ContentFileParser, table.java.specs()
    found = []
    for number, file in enumerate(files):
        spec = specs.get(int(file.java.specId()))
        name = f"{number:05d}-purged-{uuid.uuid4()}.parquet"
        to = (
            places.newDataLocation(name)
            if spec.isUnpartitioned()
            else places.newDataLocation(spec, file.java.partition(), name)
        )
        found.append((str(to), str(parser.toJson(file.java, spec))))
    return found
