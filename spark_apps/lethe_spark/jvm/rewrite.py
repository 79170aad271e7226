"""Write data files without committing them, and read exactly the named files.

Both use Iceberg's registries for compaction in this driver's JVM: a write to a file set id (`FileRewriteCoordinator`) ends in
data files instead of a commit, and a read of such an id (`ScanTaskSetManager`) returns the rows of the staged scan tasks.
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
    """Write the rows as data files of the table, with its partitioning and sort order, without committing them.

    Args:
        frame: Columns of the table, in any order.
        run_id: A folder in the path of each file (`run_folder`).
        target_file_size_bytes: The size of a file. None: as the table says.
        one_pass: Compute the frame once; one task writes each partition.
        by_range: Each task writes a range of partitions and batches, so that no two files overlap, however large a partition is.
            The frame is computed twice.
    Returns: the files. After an error Spark's tasks delete their files; a crash leaves files that no snapshot names.
    Raises: TransientError, and the errors of computing the frame.
    """
    group = str(uuid.uuid4())
    if one_pass and bool(table.java.spec().isUnpartitioned()):
        frame = frame.repartition(1)
    coordinator = table.jvm.org.apache.iceberg.spark.FileRewriteCoordinator.get()
    cache = table_cache(table.spark)
    target = writing_as(table, run_id)
    cache.add(group, target)
    try:
        # `check-nullability`: Spark takes all rows from Python as nullable; ingest has already refused nulls.
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
    """The rows of the named files. Keep it open until the last action on `frame` has ended."""

    frame: DataFrame
    files: tuple[DataFile, ...]
    table: SparkTable
    group: str
    # Iceberg's.
    tasks: tuple[Any, ...] = ()

    def close(self) -> None:
        self.table.jvm.org.apache.iceberg.spark.ScanTaskSetManager.get().removeTasks(self.table.java, self.group)
        table_cache(self.table.spark).remove(self.group)

    def __enter__(self) -> "ScannedFiles":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def scan_files(table: SparkTable, paths: Iterable[str], snapshot_id: int) -> ScannedFiles:
    """Read exactly the named files of a snapshot, with the native deletes that apply to them.

    Args:
        paths: As Iceberg records them (`DataFile.path`, or a manifest's `file_path`).
    Raises: ConflictError (`DataMoved`), if the snapshot does not hold one of them; TransientError.
    """
    return scan_tasks(table, tasks_of(table, paths, snapshot_id))


@reading("planning a scan of named files")
def scan_tasks(table: SparkTable, tasks: Collection[Any]) -> ScannedFiles:
    """Read the rows of scan tasks. Raises: TransientError."""
    group = str(uuid.uuid4())
    api = table.jvm.org.apache.iceberg.spark
    table_cache(table.spark).add(group, table.java)
    api.ScanTaskSetManager.get().stageTasks(table.java, group, java_list(table.jvm, tasks))
    frame = table.spark.read.format("iceberg").option(SCAN_SET, group).load(group)
    return ScannedFiles(frame, tuple(DataFile.of(task.file()) for task in tasks), table, group, tuple(tasks))
