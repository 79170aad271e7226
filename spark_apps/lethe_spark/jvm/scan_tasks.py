"""Reads chosen data files as a DataFrame, and writes data files without committing them.

Both use Iceberg's registries for compaction in this driver's JVM: a write to a file set id (`FileRewriteCoordinator`) ends in
data files instead of a commit, and a read of such an id (`ScanTaskSetManager`) returns the rows of the staged scan tasks.
"""

import re
import threading
import uuid
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

from lethe.base.errors import ConflictError
from lethe.base.names import ROW_ID_COLUMNS
from pyspark.sql import DataFrame, SparkSession

from lethe_spark.jvm.data_files import DataFile, described, tasks_of
from lethe_spark.jvm.errors import JvmError, reading, transient
from lethe_spark.jvm.gateway import each, java_list, jvm, table_cache
from lethe_spark.jvm.spark_table import SparkTable, quoted, quoted_path
from lethe_spark.jvm.table import writing_as

LOCATION_COLUMNS: Final = {"_file": "string", "_pos": "bigint"}
"""Iceberg's columns that say where a row is, with their types."""
_OUTPUT: Final = 1
"""The index of the columns among the parts of Spark's `DataSourceV2Relation`."""
FILE_SET: Final = "rewritten-file-scan-task-set-id"
SCAN_SET: Final = "scan-task-set-id"
_VARIANT: Final = re.compile(r"\bvariant\b")

TASKS_AT_MOST: Final = 100_000
"""At most this many registered tasks, of about a kilobyte each, are kept when no frame uses them."""
_PATH: Final = re.compile(r"BaseFileScanTask\{file=(.*?), partition_data=")
"""The text of Iceberg's tasks contains their paths: one call for thousands of tasks instead of two calls for each."""


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

    Returns:
        The files. After an error Spark's tasks delete their files; a crash leaves files that no snapshot names.

    Raises:
        TransientError: A dependency is temporarily unavailable.
        Exception: The errors of computing the frame.
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
    tasks: tuple[Any, ...] = ()
    """Iceberg's."""

    @property
    def located(self) -> DataFrame:
        """The rows with the columns `_file` and `_pos`: the path of the file, and the position in it.

        In format version 3 the rows have `_row_id`. Spark then takes these columns for all metadata columns that there are, and
        finds no others by name, so they are added to its relation.
        """
        if ROW_ID_COLUMNS[0] not in self.frame.columns:
            return self.frame.select("*", *LOCATION_COLUMNS)
        spark, relation = self.frame.sparkSession, self.frame._jdf.queryExecution().analyzed()
        api = jvm(spark).org.apache.spark.sql
        types = api.types.StructType.fromDDL(", ".join(f"{name} {kind}" for name, kind in LOCATION_COLUMNS.items()))
        parts = [relation.productElement(n) for n in range(int(relation.productArity()))]
        parts[_OUTPUT] = relation.output().appendedAll(api.catalyst.types.DataTypeUtils.toAttributes(types))
        return DataFrame(api.classic.Dataset.ofRows(spark._jsparkSession, relation.copy(*parts)), spark)

    def close(self) -> None:
        """Remove the scan tasks and the table from the registries of the JVM. `frame` cannot be read any more."""
        self.table.jvm.org.apache.iceberg.spark.ScanTaskSetManager.get().removeTasks(self.table.java, self.group)
        table_cache(self.table.spark).remove(self.group)

    def __enter__(self) -> "ScannedFiles":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def scan_files(table: SparkTable, paths: Iterable[str], snapshot_id: int) -> ScannedFiles:
    """Read exactly the named files of a snapshot, with the native deletes that apply to them.

    Args:
        paths: As Iceberg records them (`DataFile.path`, or a manifest's `file_path`).

    Raises:
        ConflictError: `DataMoved`, if the snapshot does not hold one of them.
        TransientError: A dependency is temporarily unavailable.
    """
    return scan_tasks(table, tasks_of(table, paths, snapshot_id))


@reading("planning a scan of named files")
def scan_tasks(table: SparkTable, tasks: Collection[Any]) -> ScannedFiles:
    """Read the rows of scan tasks.

    Raises:
        TransientError: A dependency is temporarily unavailable.
    """
    group = str(uuid.uuid4())
    api = table.jvm.org.apache.iceberg.spark
    table_cache(table.spark).add(group, table.java)
    api.ScanTaskSetManager.get().stageTasks(table.java, group, java_list(table.jvm, tasks))
    reader = table.spark.read.format("iceberg").option(SCAN_SET, group)
    if _VARIANT.search(str(table.java.schemas().toString())):
        # Iceberg's vectorized reader fails on files with shredded variants, also if it does not read them.
        reader = reader.option("vectorization-enabled", "false")
    frame = reader.load(group)
    return ScannedFiles(frame, tuple(DataFile.of(task.file()) for task in tasks), table, group, tuple(tasks))


@dataclass(frozen=True)
class Tasks:
    """Scan tasks of one snapshot in planning order, each with the path of its data file."""

    java: Any
    paths: tuple[str, ...]

    def chosen(self, paths: Collection[str]) -> Iterator[Any]:
        """The tasks of these paths, as several Java lists."""
        start: int | None = None
        for n, path in enumerate(self.paths):
            if path in paths:
                start = n if start is None else start
            elif start is not None:
                yield self.java.subList(start, n)
                start = None
        if start is not None:
            yield self.java.subList(start, len(self.paths))


def plan_tasks(table: SparkTable, snapshot_id: int, where: str | None = None) -> Tasks:
    """Plan a scan of a snapshot.

    Args:
        where: A condition as SQL text. Files that cannot hold such rows are skipped. A condition that Iceberg does not support
            skips no file.

    Raises:
        TransientError: A dependency is temporarily unavailable.
    """
    try:
        scan = table.java.newScan().useSnapshot(snapshot_id)
        if where is not None:
            condition = _condition(table, where)
            scan = scan.filter(condition) if condition is not None else scan
        planned = scan.planFiles()
        try:
            lists = table.jvm.org.apache.iceberg.relocated.com.google.common.collect.Lists
            java = lists.newArrayList(planned.iterator())
        finally:
            planned.close()
    except JvmError as e:
        raise transient(e, f"planning a scan of {table.full_name}") from e
    paths = tuple(_PATH.findall(str(java.toString())))
    if len(paths) != int(java.size()):  # another version of Iceberg may have another text
        paths = tuple(str(task.file().location()) for task in each(java))
    return Tasks(java, paths)


def _condition(table: SparkTable, where: str) -> Any | None:
    """The Iceberg expression of a condition. None: Iceberg cannot express it."""
    converter = table.jvm.org.apache.spark.sql.execution.datasources.SparkExpressionConverter
    try:
        return converter.convertToIcebergExpression(
            converter.collectResolvedSparkExpression(
                table.spark._jsparkSession, quoted_path(table.catalog, table.name), where
            )
        )
    except JvmError:
        return None  # always true, or not supported by Iceberg: it skips no file


@reading("staging the files of a read")
def stage(table: SparkTable, chosen: Iterable[tuple[Tasks, Collection[str]]]) -> DataFrame:
    """The rows of the chosen paths, with the native deletes that apply to them, in the table's current columns.

    The frame, and frames made of it, stay valid as long as they are referenced: see the module's docstring.

    Nothing reports when the last frame of a registration is gone, and temporary views refer to it by name only. So registrations
    stay until there are many tasks, and then as long as the JVM can reach the relation that all frames on these files share.

    Raises:
        ConflictError: `DataMoved`, if a path is not among the tasks.
        TransientError: A dependency is temporarily unavailable.
    """
    spark, group = table.spark, str(uuid.uuid4())
    tasks, expected_count = java_list(table.jvm, ()), 0
    for planned, paths in chosen:
        expected_count += len(paths)
        for some in planned.chosen(paths):
            tasks.addAll(some)
    if int(tasks.size()) < expected_count:
        raise ConflictError(
            "DataMoved",
            f"{table.full_name}: Spark planned {tasks.size()} data files, expected {expected_count} as in its "
            "manifests. Read again.",
        )
    table_cache(spark).add(group, table.java)
    table.jvm.org.apache.iceberg.spark.ScanTaskSetManager.get().stageTasks(table.java, group, tasks)
    frame = spark.read.format("iceberg").option(SCAN_SET, group).load(group)
    relation = frame._jdf.queryExecution().analyzed().collectLeaves().head().table()
    reference = table.jvm.java.lang.ref.WeakReference(relation)
    _STAGED.add(_Staged(spark, table.java, group, int(tasks.size()), reference))
    columns = [str(c.name()) for c in each(table.java.schema().columns())]
    return frame.select(*map(quoted, columns))  # without the row lineage of format version 3


@dataclass(frozen=True)
class _Staged:
    """One registration."""

    spark: SparkSession
    table: Any
    """Iceberg's table."""
    group: str
    """The id of the file set."""
    tasks: int
    """Number of tasks."""
    relation: Any
    """A java.lang.ref.WeakReference to the relation that all plans on these files share."""

    @property
    def is_held(self) -> bool:
        return not self.relation.refersTo(None)

    def close(self) -> None:
        jvm(self.spark).org.apache.iceberg.spark.ScanTaskSetManager.get().removeTasks(self.table, self.group)
        table_cache(self.spark).remove(self.group)


class _Registry:
    """The registrations in the JVM of this process, oldest first."""

    def __init__(self) -> None:
        self._staged: list[_Staged] = []
        self._lock = threading.Lock()

    def add(self, new: _Staged) -> None:
        with self._lock:
            # A stopped session needs no closing, and its JVM may have been replaced.
            self._staged = [s for s in self._staged if s.spark.sparkContext._jsc is not None]
            waiting = sum(s.tasks for s in self._staged) + new.tasks - TASKS_AT_MOST
            for s in list(self._staged) if waiting > 0 else ():
                if waiting > 0 and not s.is_held:
                    s.close()
                    self._staged.remove(s)
                    waiting -= s.tasks
            self._staged.append(new)

    def clear(self) -> None:
        with self._lock:
            for staged in self._staged:
                if staged.spark.sparkContext._jsc is not None:
                    staged.close()
            self._staged = []


_STAGED = _Registry()


def forget_staged() -> None:
    """Remove all registrations. Between two runs of a process: no frame outlives its run."""
    _STAGED.clear()
