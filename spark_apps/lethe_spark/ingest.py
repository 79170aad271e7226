"""Buffered batches as one DataFrame: many small files, read by Arrow inside Spark's Python workers.

I/O through executors. Invariants: a batch with any file that cannot be used contributes no row at all and is named; the
other batches go in. A store that is away is TransientError, never a refusal. The files are read once: what was read is
kept on the executors' disks, and a batch is counted, refused and written from that one reading.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil
from types import TracebackType
from typing import Final

import pyarrow as pa
from lethe.errors import InputError, TransientError
from lethe.ledger.ledger import BufferedObject
from lethe.run import FileFormat, RefusedBatch
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType, StructField, StructType

from lethe_spark.buffer_files import COLUMNS_WANTED, FileError, Reader, decode_columns, decode_error
from lethe_spark.buffer_store import TRANSIENT_MARKER, FileTask
from lethe_spark.fitting import ERROR_COLUMN
from lethe_spark.frames import named
from lethe_spark.jvm.errors import JvmError

BYTES_PER_GROUP: Final = 128 * 1024 * 1024
FILES_PER_GROUP: Final = 500
# A small file costs a request, whatever its size: this many bytes' worth of reading.
BYTES_PER_FILE: Final = 256 * 1024


@dataclass(frozen=True)
class BatchSource:
    """One batch and the objects that hold it. `key` of an object is its full URI, `size` in bytes."""

    id: str
    objects: tuple[BufferedObject, ...]


@dataclass(frozen=True)
class Ingest:
    """What came of reading. Close it when the rows are written: they are kept on disk until then.

    Args:
        rows_per_batch: Of every batch that is in none of the following, also of those without rows.
        refused: Batches that cannot be rows of the table, each with a file that it fails for.
        frame: The rows of the batches in `rows_per_batch`, with the table's columns.
        wanting: By batch id, the files that would fit a table with more columns, and those columns.
        unread: Batches of which a file could not be had now; they are not judged.
    """

    rows_per_batch: Mapping[str, int]
    refused: tuple[RefusedBatch, ...]
    frame: DataFrame
    kept: DataFrame
    wanting: Mapping[str, Sequence[tuple[str, pa.Schema]]] = field(default_factory=dict)
    unread: tuple[RefusedBatch, ...] = ()

    @property
    def rows(self) -> int:
        """The rows of `frame`. Whoever writes it compares: a reader that lost rows must not go unnoticed."""
        return sum(self.rows_per_batch.values())

    def close(self) -> None:
        self.kept.unpersist()

    def __enter__(self) -> "Ingest":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def read_batches(
    spark: SparkSession,
    sources: Sequence[BatchSource],
    schema: StructType,
    batch_column: str,
    io_properties: Mapping[str, str],
    format_name: FileFormat = "parquet",
    add_columns: bool = False,
) -> Ingest:
    """Read the batches, each row with its batch id in `batch_column`.

    Args:
        sources: Distinct ids. Files need not hold the batch column; where they do, it must be the id in every row.
        schema: The table's columns; the files must have all of the others, of the same or a safely widened type.
        io_properties: PyIceberg's FileIO properties of the store (`s3.endpoint`…).
        format_name: Of all of the files.
        add_columns: Optional columns may be missing, and batches that have more columns are `wanting` instead of refused.
    Raises: InputError (`BatchColumnType`); TransientError: `BufferAway`, if the store did not answer; `AccessDenied`,
        `ObjectGone` or `ObjectChanged`, if of every batch some file could not be had.
    """
    if batch_column not in schema.names or not isinstance(schema[batch_column].dataType, StringType):
        found = schema[batch_column].dataType.simpleString() if batch_column in schema.names else "not there"
        raise InputError("BatchColumnType", f"the batch column {batch_column} is {found}, expected string")
    tasks = [FileTask(s.id, o.key, o.size, o.etag) for s in sources for o in s.objects]
    groups = pack(tasks, spark.sparkContext.defaultParallelism)
    if not groups:
        empty = spark.createDataFrame([], schema)
        return Ingest({s.id: 0 for s in sources}, (), empty, empty)
    reader = Reader(schema, wide(schema), batch_column, dict(io_properties), format_name, add_columns)
    kept = _rows(spark, groups, reader).persist(StorageLevel.DISK_ONLY)
    try:
        counted = kept.groupBy(batch_column, ERROR_COLUMN).count().collect()
    except (PySparkException, *JvmError) as e:
        kept.unpersist()
        raise reading_failure(e) from e
    errors: dict[str, list[FileError]] = {}
    rows = {s.id: 0 for s in sources}
    for batch_id, error, count in counted:
        if error is None:
            rows[batch_id] += count
        else:
            errors.setdefault(batch_id, []).append(decode_error(error))
    unread = tuple(refusal_of(i, e) for i, e in sorted(errors.items()) if any(f.unread for f in e))
    if len(unread) == len(sources):
        kept.unpersist()
        raise TransientError(unread[0].reason, f"{unread[0].message}. Nothing was changed.")
    waits = {b.batch_id for b in unread}
    wanting = {i: found for i, e in errors.items() if i not in waits and (found := _columns_wanted(e))}
    refused = tuple(refusal_of(i, e) for i, e in sorted(errors.items()) if i not in waits and i not in wanting)
    good = kept.where(F.col(ERROR_COLUMN).isNull()).select(*map(named, schema.names))
    if errors:
        good = good.where(~named(batch_column).isin(list(errors)))
    return Ingest({k: n for k, n in rows.items() if k not in errors}, refused, good, kept, wanting, unread)


def pack(tasks: Sequence[FileTask], parallelism: int) -> list[list[FileTask]]:
    """Distribute files to groups of about equal work, none larger than it must be. Pure; the same for the same input."""
    if not tasks:
        return []
    weight = sum(t.size + BYTES_PER_FILE for t in tasks)
    wanted = max(ceil(weight / (BYTES_PER_GROUP + BYTES_PER_FILE)), ceil(len(tasks) / FILES_PER_GROUP), parallelism)
    groups: list[list[FileTask]] = [[] for _ in range(min(wanted, len(tasks)))]
    loads = [(0, i) for i in range(len(groups))]
    for task in sorted(tasks, key=lambda t: (-t.size, t.uri)):
        load, index = heappop(loads)
        groups[index].append(task)
        heappush(loads, (load + task.size + BYTES_PER_FILE, index))
    return groups


def wide(schema: StructType) -> StructType:
    """Everything is nullable here, for the sake of the rows that only carry an error."""
    columns = [StructField(f.name, f.dataType, True) for f in schema]
    return StructType([*columns, StructField(ERROR_COLUMN, StringType())])


def _rows(spark: SparkSession, groups: list[list[FileTask]], reader: Reader) -> DataFrame:
    payloads = spark.sparkContext.parallelize([(FileTask.encode(g),) for g in groups], len(groups))
    return payloads.toDF("files string").mapInArrow(reader.read, reader.wide)


def _columns_wanted(errors: list[FileError]) -> list[tuple[str, pa.Schema]]:
    """The files that want columns, if nothing else keeps their batch out."""
    if any(e.reason != COLUMNS_WANTED for e in errors):
        return []
    return [(e.uri, decode_columns(e.message)) for e in errors]


def refusal_of(batch_id: str, errors: list[FileError]) -> RefusedBatch:
    """The first bad file by name, and how many there are; of files that could not be had, the first of those."""
    unread = [e for e in errors if e.unread]
    bad = unread or [e for e in errors if e.reason != COLUMNS_WANTED]
    first = min(bad)
    more = f" ({len(bad) - 1} more files of this batch cannot be used)" if len(bad) > 1 else ""
    return RefusedBatch(batch_id=batch_id, reason=first.reason, message=f"{first.uri}: {first.message}{more}")


def reading_failure(error: BaseException) -> TransientError:
    """Why Spark's workers could not read, as far as the text of their failure says."""
    text = str(error)
    if TRANSIENT_MARKER in text:
        what = text.split(TRANSIENT_MARKER, 1)[1].splitlines()[0].strip(" :'\"")
        return TransientError(
            "BufferAway", f"a file of the buffer could not be fetched: {what[:300]}. Nothing was changed."
        )
    return TransientError(
        "ReadingFailed", f"reading the buffered files failed in Spark ({type(error).__name__}); see the driver's log."
    )
