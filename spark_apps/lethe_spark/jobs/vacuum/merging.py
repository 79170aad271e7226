"""Merges small data files in Spark's Python workers, without Spark's rows (`lethe.merging`). I/O through executors."""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lethe.base.errors import LetheError
from lethe.ingest.registrable import Target
from lethe.merging.fetching import FileToMerge
from lethe.merging.merge_task import BinToMerge, Merge, Merged
from lethe.purge.row_ids import with_row_ids
from lethe.search.vacuum_survey import traits_of
from lethe.vacuum.compaction import Bin
from lethe.vacuum.one_by_one import ROW_IDS_SINCE
from lethe.writing.layout import Unsupported, sort_keys_of
from pyspark.accumulators import Accumulator
from pyspark.errors import PySparkException

from lethe_spark.commit.ledger_commit import Attempts
from lethe_spark.commit.table_state import Base
from lethe_spark.commit.unpublished import discard
from lethe_spark.ingest.writing import PathsParam
from lethe_spark.jobs.vacuum.filtering import described_for_workers, kept_metrics
from lethe_spark.jvm.data_files import DataFile, described, tasks_of
from lethe_spark.jvm.errors import JvmError
from lethe_spark.jvm.gateway import each
from lethe_spark.jvm.registration import data_files
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import RunContext, table_properties

log = logging.getLogger(__name__)
_PARQUET: Final = "parquet"


@dataclass(frozen=True)
class MergedBins:
    """What became of the bins."""

    added: tuple[DataFile, ...]
    # The files that the added ones replace.
    removed: tuple[DataFile, ...]
    # The other bins.
    left: tuple[Bin, ...]


def merge_bins(context: RunContext, table: SparkTable, base: Base, bins: Sequence[Bin], snapshot_id: int) -> MergedBins:
    """Write the rows of each bin to one file. Bins for which this is not certain to be right are left to the caller.

    Args:
        base: The table when the bins were planned.
        snapshot_id: Which has the files.
    Raises: ConflictError (`DataMoved`), if the snapshot does not hold one of the files; TransientError, and the errors of the
        workers. Then there are no new files.
    """
    work = _work(context, base)
    if work is None:
        return MergedBins((), (), tuple(bins))
    has_ids = base.iceberg.metadata.format_version >= ROW_IDS_SINCE
    paths = [f.path for one in bins for f in one]
    found: dict[str, DataFile | None] = {}
    for task in tasks_of(table, paths, snapshot_id, kept_metrics(base)):
        planned = DataFile.of(task.file())
        found[planned.path] = planned if _is_plain(task, base) else None
    plain = {path: file for path, file in found.items() if file is not None}
    names = described_for_workers(context, table, plain.values(), "merged")
    known = dict(zip(plain, names, strict=True))
    chosen: list[Bin] = []
    tasks: list[BinToMerge] = []
    for one in bins:
        if not all(f.path in known and (known[f.path].row_ids is not None or not has_ids) for f in one):
            continue
        parts = [
            FileToMerge(f.path, f.size, f.records, known[f.path].document, known[f.path].row_ids if has_ids else None)
            for f in one
        ]
        chosen.append(one)
        tasks.append(BinToMerge(tuple(parts), known[one[0].path].to))
    if not tasks:
        return MergedBins((), (), tuple(bins))
    done = _merged(context, table, work, tasks)
    replaced = {id(one) for one, merged in zip(chosen, done, strict=True) if merged.document}
    written = [merged for merged in done if merged.document]
    for merged in done:
        if merged.unsuitable:
            log.info("small files are merged by Spark: %s", merged.unsuitable)
    copied, encoded = sum(m.copied for m in written), sum(m.encoded for m in written)
    log.info("%d files merged: %d bytes copied, %d bytes encoded", len(written), copied, encoded)
    try:
        added = described(table, each(data_files(table, [merged.document for merged in written])))
    except LetheError:
        discard(table, [merged.path for merged in written], Attempts())
        raise
    removed = [plain[f.path] for one in bins if id(one) in replaced for f in one]
    return MergedBins(added, tuple(removed), tuple(one for one in bins if id(one) not in replaced))


def _work(context: RunContext, base: Base) -> Merge | None:
    """What the tasks do. None: Spark merges all files of the table."""
    if not traits_of(base.iceberg, base.field_id).are_files_filterable:
        return None
    target = Target.of(base.iceberg, base.field_id, may_lack=True)
    order = base.iceberg.sort_order()
    try:
        sort_keys_of(target, order)
    except Unsupported as e:
        log.info("Spark merges the small files of %s: %s", base.facts.name, e)
        return None
    if base.iceberg.metadata.format_version >= ROW_IDS_SINCE:
        target = with_row_ids(target)
    return Merge(target, order.model_dump_json(), table_properties(context))


def _is_plain(task: Any, base: Base) -> bool:
    """Whether a file is Parquet of the current spec, and no deletes apply to it, also such as manifests do not show."""
    file = task.file()
    is_parquet = str(file.format()).lower() == _PARQUET
    return is_parquet and int(file.specId()) == base.iceberg.metadata.default_spec_id and task.deletes().isEmpty()


def _merged(context: RunContext, table: SparkTable, work: Merge, tasks: Collection[BinToMerge]) -> list[Merged]:
    """Raises: the errors of the workers. Then there are no new files."""
    spark = context.spark.sparkContext
    paths: Accumulator[list[str]] = spark.accumulator([], PathsParam())

    def merge(bin_: BinToMerge) -> Merged:
        merged = work.attempt(bin_)
        if merged.path:
            paths.add([merged.path])
        return merged

    try:
        return spark.parallelize(tasks, len(tasks)).map(merge).collect()
    except (PySparkException, *JvmError):
        discard(table, paths.value, Attempts())
        raise
