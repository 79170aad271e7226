"""Data files written but not committed, and scans of exactly the files one names.

Iceberg's compaction registry (`FileRewriteCoordinator`, `ScanTaskSetManager`) does both: a write to a file set id ends
in data files instead of a commit, a read of one yields the staged scan tasks. Both live in this driver's JVM.
"""

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final

from lethe import names
from lethe.errors import ConflictError
from lethe.plan.partitions import partition_text_of_json
from pyspark.sql import DataFrame

from lethe_spark.jvm.errors import JvmError, reading, transient
from lethe_spark.jvm.gateway import each, each_of, java_list, jvm, table_cache
from lethe_spark.jvm.table import IcebergTable

FILE_SET: Final = "rewritten-file-scan-task-set-id"
SCAN_SET: Final = "scan-task-set-id"
DATA_PATH: Final = "write.data.path"


@dataclass(frozen=True)
class DataFile:
    """A data file; `records` rows, `bytes` long. `java` is Iceberg's own object, which a commit hands back to it.

    `partition` (its text, as `lethe.plan.partitions` writes it) and the bounds of the batch column are known of files that
    a run has written or staged, not of scanned ones; None is unknown."""

    path: str
    records: int
    bytes: int
    java: Any = field(repr=False, compare=False)
    partition: str | None = None
    lower: str | None = None
    upper: str | None = None

    @classmethod
    def of(cls, java: Any) -> "DataFile":
        return cls(str(java.location()), int(java.recordCount()), int(java.fileSizeInBytes()), java)


def described(table: IcebergTable, files: Iterable[Any]) -> tuple[DataFile, ...]:
    """Iceberg's data files with their partitions and bounds. One call into the JVM for each: its JSON form has it all."""
    parser = jvm(table.spark).org.apache.iceberg.ContentFileParser
    field_id = table.java.properties().get(names.BATCH_COLUMN)
    specs = table.java.specs()
    types: dict[int, tuple[Any, list[str]]] = {}
    found: list[DataFile] = []
    for java in files:
        spec_id = int(java.specId())
        if spec_id not in types:
            spec = specs.get(spec_id)
            types[spec_id] = (spec, [str(f.type().toString()) for f in each(spec.partitionType().fields())])
        spec, names_of_types = types[spec_id]
        known = json.loads(parser.toJson(java, spec))
        found.append(
            DataFile(
                path=known["file-path"],
                records=known["record-count"],
                bytes=known["file-size-in-bytes"],
                java=java,
                partition=partition_text_of_json(spec_id, names_of_types, known["partition"]),
                lower=_bound(known, "lower-bounds", field_id),
                upper=_bound(known, "upper-bounds", field_id),
            )
        )
    return tuple(found)


def _bound(file: Mapping[str, Any], which: str, field_id: str | None) -> str | None:
    """A bound of a string column, which Iceberg writes as the hexadecimal of its UTF-8."""
    bounds = file.get(which)
    if bounds is None or field_id is None or int(field_id) not in bounds["keys"]:
        return None
    return bytes.fromhex(bounds["values"][bounds["keys"].index(int(field_id))]).decode()


def run_folder(table: IcebergTable, run_id: str) -> str:
    """The folder of all data files that a run writes, committed or not: what verification lists."""
    base = table.properties.get(DATA_PATH) or f"{table.location}/data"
    return f"{base.rstrip('/')}/{run_id}"


def write_uncommitted(
    table: IcebergTable,
    frame: DataFrame,
    run_id: str,
    target_file_size_bytes: int | None = None,
    one_pass: bool = False,
) -> tuple[DataFile, ...]:
    """Write the rows as data files of the table, by its partitioning and sort order, and commit nothing.

    Args:
        frame: Columns of the table, in any order.
        run_id: Becomes a folder in each file's path (`run_folder`).
        one_pass: The frame is computed once, and one task writes each partition, instead of a range of the whole.
    Returns: The files. On failure Spark's tasks remove what they wrote; a crash leaves files that no snapshot names.
    Raises: TransientError, or what the frame itself raises when it is computed.
    """
    spark, group = table.spark, str(uuid.uuid4())
    if one_pass and bool(table.java.spec().isUnpartitioned()):
        frame = frame.repartition(1)
    coordinator = jvm(spark).org.apache.iceberg.spark.FileRewriteCoordinator.get()
    cache = table_cache(spark)
    target = _with_property(table, DATA_PATH, run_folder(table, run_id))
    cache.add(group, target)
    try:
        # `check-nullability`: rows that Python produced are nullable to Spark; ingest has already refused nulls.
        writer = frame.write.format("iceberg").option(FILE_SET, group).option("check-nullability", "false")
        if one_pass:
            writer = writer.option("distribution-mode", "hash")
        if target_file_size_bytes:
            writer = writer.option("target-file-size-bytes", str(target_file_size_bytes))
        writer.mode("append").save(group)
        return described(table, each(coordinator.fetchNewFiles(target, group)))
    finally:
        coordinator.clearRewrite(target, group)
        cache.remove(group)


def _with_property(table: IcebergTable, key: str, value: str) -> Any:
    """The Java table as if the property were set: inside a transaction that is never committed."""
    try:
        transaction = table.java.newTransaction()
        transaction.updateProperties().set(key, value).commit()
        return transaction.table()
    except JvmError as e:
        raise transient(e, f"preparing a write to {table.full_name}") from e


@dataclass
class ScannedFiles:
    """The rows of the named files as `frame`. Keep it open until the frame's last action has ended."""

    frame: DataFrame
    files: tuple[DataFile, ...]
    table: IcebergTable
    group: str

    def close(self) -> None:
        spark = self.table.spark
        jvm(spark).org.apache.iceberg.spark.ScanTaskSetManager.get().removeTasks(self.table.java, self.group)
        table_cache(spark).remove(self.group)

    def __enter__(self) -> "ScannedFiles":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def find_files(table: IcebergTable, paths: Iterable[str], snapshot_id: int) -> tuple[DataFile, ...]:
    """The data files of a snapshot with these paths, in planning order. Raises as `scan_files`."""
    return tuple(DataFile.of(task.file()) for task in _tasks(table, paths, snapshot_id))


@reading("planning a scan of named files")
def scan_files(table: IcebergTable, paths: Iterable[str], snapshot_id: int) -> ScannedFiles:
    """Read exactly the named files of a snapshot, with whatever native deletes apply to them.

    Args:
        paths: As Iceberg records them (`DataFile.path`, or a manifest's `file_path`).
    Raises: ConflictError (`DataMoved`), if the snapshot does not hold one of them; TransientError.
    """
    spark, group = table.spark, str(uuid.uuid4())
    tasks = _tasks(table, paths, snapshot_id)
    api = jvm(spark).org.apache.iceberg.spark
    table_cache(spark).add(group, table.java)
    api.ScanTaskSetManager.get().stageTasks(table.java, group, java_list(spark, tasks))
    frame = spark.read.format("iceberg").option(SCAN_SET, group).load(group)
    return ScannedFiles(frame, tuple(DataFile.of(task.file()) for task in tasks), table, group)


@reading("planning a scan of named files")
def _tasks(table: IcebergTable, paths: Iterable[str], snapshot_id: int) -> list[Any]:
    wanted = set(paths)
    planned = each_of(table.java.newScan().useSnapshot(snapshot_id).ignoreResiduals().planFiles())
    tasks = [task for task in planned if str(task.file().location()) in wanted]
    if len(tasks) < len(wanted):
        missing = sorted(wanted - {str(task.file().location()) for task in tasks})
        raise ConflictError(
            "DataMoved",
            f"{table.full_name}: snapshot {snapshot_id} does not hold {len(missing)} of the {len(wanted)} data files "
            f"that were planned, the first is {missing[0]}. Nothing was committed; the run plans again.",
        )
    return tasks
