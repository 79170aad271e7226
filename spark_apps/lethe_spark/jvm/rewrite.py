"""Data files written but not committed, and scans of exactly the files one names.

Iceberg's compaction registry (`FileRewriteCoordinator`, `ScanTaskSetManager`) does both: a write to a file set id ends
in data files instead of a commit, a read of one yields the staged scan tasks. Both live in this driver's JVM.
"""

import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

from pyspark.sql import DataFrame

from lethe_spark.jvm.data_files import DataFile, described, tasks_of
from lethe_spark.jvm.errors import reading
from lethe_spark.jvm.gateway import each, java_list, table_cache
from lethe_spark.jvm.run_folder import writing_as
from lethe_spark.jvm.spark_table import SparkTable

FILE_SET: Final = "rewritten-file-scan-task-set-id"
SCAN_SET: Final = "scan-task-set-id"


def write_uncommitted(
    table: SparkTable,
    frame: DataFrame,
    run_id: str,
    target_file_size_bytes: int | None = None,
    one_pass: bool = False,
    by_range: bool = False,
) -> tuple[DataFile, ...]:
    """Write the rows as data files of the table, by its partitioning and sort order, and commit nothing.

    Args:
        frame: Columns of the table, in any order.
        run_id: Becomes a folder in each file's path (`run_folder`).
        one_pass: The frame is computed once, and one task writes each partition, instead of a range of the whole.
        by_range: Each task writes a range of partitions and batches, so that no two files overlap however large a partition is;
            the frame is computed twice.
    Returns: The files. On failure Spark's tasks remove what they wrote; a crash leaves files that no snapshot names.
    Raises: TransientError, or what the frame itself raises when it is computed.
    """
    group = str(uuid.uuid4())
    if one_pass and bool(table.java.spec().isUnpartitioned()):
        frame = frame.repartition(1)
    coordinator = table.jvm.org.apache.iceberg.spark.FileRewriteCoordinator.get()
    cache = table_cache(table.spark)
    target = writing_as(table, run_id)
    cache.add(group, target)
    try:
        # `check-nullability`: rows that Python produced are nullable to Spark; ingest has already refused nulls.
        writer = frame.write.format("iceberg").option(FILE_SET, group).option("check-nullability", "false")
        if one_pass or by_range:
            writer = writer.option("distribution-mode", "hash" if one_pass else "range")
        if target_file_size_bytes:
            writer = writer.option("target-file-size-bytes", str(target_file_size_bytes))
        writer.mode("append").save(group)
        return described(table, each(coordinator.fetchNewFiles(target, group)))
    finally:
        coordinator.clearRewrite(target, group)
        cache.remove(group)


@dataclass
class ScannedFiles:
    """The rows of the named files as `frame`. Keep it open until the frame's last action has ended."""

    frame: DataFrame
    files: tuple[DataFile, ...]
    table: SparkTable
    group: str

    def close(self) -> None:
        self.table.jvm.org.apache.iceberg.spark.ScanTaskSetManager.get().removeTasks(self.table.java, self.group)
        table_cache(self.table.spark).remove(self.group)

    def __enter__(self) -> "ScannedFiles":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def scan_files(table: SparkTable, paths: Iterable[str], snapshot_id: int) -> ScannedFiles:
    """Read exactly the named files of a snapshot, with whatever native deletes apply to them.

    Args:
        paths: As Iceberg records them (`DataFile.path`, or a manifest's `file_path`).
    Raises: ConflictError (`DataMoved`), if the snapshot does not hold one of them; TransientError.
    """
    return scan_tasks(table, tasks_of(table, paths, snapshot_id))


@reading("planning a scan of named files")
def scan_tasks(table: SparkTable, tasks: Collection[Any]) -> ScannedFiles:
    """Read what these scan tasks of Iceberg's say. Raises: TransientError."""
    group = str(uuid.uuid4())
    api = table.jvm.org.apache.iceberg.spark
    table_cache(table.spark).add(group, table.java)
    api.ScanTaskSetManager.get().stageTasks(table.java, group, java_list(table.jvm, tasks))
    frame = table.spark.read.format("iceberg").option(SCAN_SET, group).load(group)
    return ScannedFiles(frame, tuple(DataFile.of(task.file()) for task in tasks), table, group)
