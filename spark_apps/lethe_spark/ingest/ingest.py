"""Writes buffered batches as data files: Arrow reads the many small files in Spark's Python workers, and Spark sorts and writes.

I/O through executors. Invariants: if any file of a batch cannot be used, the result contains no row of the batch and reports it;
the other batches are written. A store failure raises TransientError and never refuses a batch. Counts, refusals and rows of a
batch come from the same reading of its files: tasks send the outcome of each file to the driver in addition to the rows.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import ceil
from typing import Final

import pyarrow as pa
from lethe.base.errors import InputError, TransientError
from lethe.contract.result import RefusedBatch
from lethe.ingest.buffer_files import (
    COLUMNS_WANTED,
    FileError,
    FileOutcome,
    Reader,
    ReadSettings,
    Tally,
    decode_columns,
    refusal_of,
)
from lethe.ingest.buffer_store import TRANSIENT_MARKER, FileTask
from lethe.ingest.change_rows import Keyed
from lethe.ledger.ledger import BufferedObject
from pyspark import Accumulator, StorageLevel
from pyspark.accumulators import AccumulatorParam
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from lethe_spark.commit.ledger_commit import Attempts
from lethe_spark.commit.unpublished import discard
from lethe_spark.jvm.data_files import DataFile
from lethe_spark.jvm.errors import JvmError
from lethe_spark.jvm.rewrite import write_uncommitted
from lethe_spark.jvm.spark_table import SparkTable

log = logging.getLogger(__name__)

# Up to this size one task sorts the rows of a partition. Above it, several tasks share a partition by ranges of batch ids.
ONE_PASS_BYTES: Final = 1024 * 1024 * 1024
BYTES_PER_GROUP: Final = 128 * 1024 * 1024
FILES_PER_GROUP: Final = 500
# The cost of the request for a file, as the number of bytes that could be read in the same time.
BYTES_PER_FILE: Final = 256 * 1024


@dataclass(frozen=True)
class BatchSource:
    """One batch to write."""

    id: str
    objects: tuple[BufferedObject, ...]  # its data files


@dataclass(frozen=True)
class Ingested:
    """The result. Each batch is in exactly one of `rows_per_batch`, `refused`, `wanting` and `unread`."""

    files: tuple[DataFile, ...]  # uncommitted data files with the rows of the batches in `rows_per_batch`
    rows_per_batch: Mapping[str, int]  # by batch id; includes batches without rows
    refused: tuple[RefusedBatch, ...] = ()  # batches that cannot be used; each message names a file
    # By batch id: the files that would fit a table with more columns, and these columns.
    wanting: Mapping[str, Sequence[tuple[str, pa.Schema]]] = field(default_factory=dict)
    unread: tuple[RefusedBatch, ...] = ()  # batches with a file that could not be read now; they are not refused
    # By the id of each batch of change data in `rows_per_batch`: its keys, in the table's types.
    keys: Mapping[str, pa.Table] = field(default_factory=dict, repr=False)

    @property
    def rows(self) -> int:
        return sum(self.rows_per_batch.values())


class _TallyParam(AccumulatorParam[dict[tuple[str, str], FileOutcome]]):
    """Collects the outcomes of files. If a task runs twice, it sends the same outcomes again, so they are replaced."""

    def zero(self, value: dict[tuple[str, str], FileOutcome]) -> dict[tuple[str, str], FileOutcome]:  # noqa: ARG002
        return {}

    def addInPlace(  # noqa: N802
        self, value1: dict[tuple[str, str], FileOutcome], value2: dict[tuple[str, str], FileOutcome]
    ) -> dict[tuple[str, str], FileOutcome]:
        value1.update(value2)
        return value1


def write_batches(
    table: SparkTable,
    sources: Sequence[BatchSource],
    settings: ReadSettings,
    run_id: str,
    target_file_size_bytes: int | None = None,
) -> Ingested:
    """Write the batches as data files of the table, without committing them.

    With `settings.add_columns`, batches with additional columns are `wanting` instead of refused. Of change data, only the rows
    to add are written; the result has the keys of all its rows.

    Args:
        sources: With distinct ids. Files need not contain the batch column; if they do, it must be the id in every row. They
            must have all other columns of the table, with the same type or one that can be converted safely.
        target_file_size_bytes: None: as the table's properties say.
    Raises: InputError (`BatchColumnType`); TransientError: `BufferAway`, if the store failed; as `write_uncommitted`.
    """
    schema, batch_column = table.columns, settings.batch_column
    if batch_column not in schema.names or not isinstance(schema[batch_column].dataType, StringType):
        found = schema[batch_column].dataType.simpleString() if batch_column in schema.names else "missing"
        raise InputError("BatchColumnType", f"the batch column {batch_column} is {found}, expected string")
    errors: dict[str, list[FileError]] = {}
    left: Sequence[BatchSource] = sources
    while True:
        tasks = [FileTask(s.id, o.key, o.size, o.etag) for s in left for o in s.objects]
        tally: Accumulator[dict[tuple[str, str], FileOutcome]] = table.spark.sparkContext.accumulator({}, _TallyParam())
        files = _write(table, tasks, Reader(to_arrow_schema(schema), settings, tally), run_id, target_file_size_bytes)
        outcomes = tally.value
        if len(outcomes) != len(tasks):
            raise RuntimeError(f"expected the outcomes of {len(tasks)} files, found {len(outcomes)}")
        if sum(f.records for f in files) != sum(t.rows for t in outcomes.values()):
            raise RuntimeError(
                f"{sum(t.rows for t in outcomes.values())} rows were read, but "
                f"{sum(f.records for f in files)} were written"
            )
        new = _by_batch(outcomes)
        keys = _keys(outcomes, {i: k for i, k in settings.keyed.items() if i not in errors}, new)
        errors |= new
        if not any(t.rows for (batch_id, _), t in outcomes.items() if batch_id in new):
            break
        # A batch was too large to be held back, so rows of it were written before its unusable file was found. Data files may
        # contain rows of several batches, so all other batches are written again.
        log.info(
            "%d batches cannot be used, which was found while they were written; all other batches are written again",
            len(new),
        )
        discard(table, files, Attempts())
        left = [s for s in left if s.id not in errors]
    return replace(_sorted_out(sources, files, outcomes, errors), keys=keys)


def _sorted_out(
    sources: Sequence[BatchSource],
    files: tuple[DataFile, ...],
    outcomes: Tally,
    errors: Mapping[str, list[FileError]],
) -> Ingested:
    unread = tuple(refusal_of(i, e) for i, e in sorted(errors.items()) if any(f.unread for f in e))
    waits = {b.batch_id for b in unread}
    wanting = {i: found for i, e in errors.items() if i not in waits and (found := _columns_wanted(e))}
    refused = tuple(refusal_of(i, e) for i, e in sorted(errors.items()) if i not in waits and i not in wanting)
    rows = {s.id: 0 for s in sources if s.id not in errors}
    for (batch_id, _), t in outcomes.items():
        if batch_id in rows:
            rows[batch_id] += t.rows
    return Ingested(files, rows, refused, wanting, unread)


def _keys(outcomes: Tally, keyed: Mapping[str, Keyed], errors: dict[str, list[FileError]]) -> dict[str, pa.Table]:
    """The keys of each batch of change data without errors. If the keys cannot be used, the reason is added to `errors`."""
    files: dict[str, dict[str, tuple[bytes, ...]]] = {}
    for (batch_id, uri), t in outcomes.items():
        if batch_id in keyed and batch_id not in errors and t.keys:
            files.setdefault(batch_id, {})[uri] = t.keys
    found: dict[str, pa.Table] = {}
    for batch_id, keys in files.items():
        judged = keyed[batch_id].judged(keys)
        if isinstance(judged, pa.Table):
            found[batch_id] = judged
        else:
            uri, bad = judged
            errors[batch_id] = [FileError(uri, bad.reason, bad.message)]
    return found


def _by_batch(outcomes: Tally) -> dict[str, list[FileError]]:
    found: dict[str, list[FileError]] = {}
    for (batch_id, _), t in outcomes.items():
        if t.error is not None:
            found.setdefault(batch_id, []).append(t.error)
    return found


def _write(
    table: SparkTable, tasks: Sequence[FileTask], reader: Reader, run_id: str, target_file_size_bytes: int | None
) -> tuple[DataFile, ...]:
    """Write in one pass if possible. Range partitioning reads the rows twice, so Spark keeps them on the executors' disks."""
    context = table.spark.sparkContext
    groups = pack(tasks, context.defaultParallelism)
    if not groups:
        return ()
    payloads = context.parallelize([(FileTask.encode(g),) for g in groups], len(groups))
    columns = StructType([StructField(f.name, f.dataType, True) for f in table.columns])
    frame = payloads.toDF("files string").mapInArrow(reader.read, columns)
    size = sum(t.size for t in tasks)
    kept = frame.persist(StorageLevel.DISK_ONLY) if size > ONE_PASS_BYTES else None
    try:
        return write_uncommitted(table, kept or frame, run_id, target_file_size_bytes, one_pass=kept is None)
    except (PySparkException, *JvmError) as e:
        if TRANSIENT_MARKER in str(e):
            raise reading_failure(e) from e
        raise
    finally:
        if kept is not None:
            kept.unpersist()


def pack(tasks: Sequence[FileTask], parallelism: int) -> list[list[FileTask]]:
    """Distribute files to groups of about equal work. The files of a batch stay in one group if they fit. Pure and
    deterministic."""
    if not tasks:
        return []
    weight = sum(map(_weight, tasks))
    wanted = max(ceil(weight / (BYTES_PER_GROUP + BYTES_PER_FILE)), ceil(len(tasks) / FILES_PER_GROUP), parallelism)
    groups: list[list[FileTask]] = [[] for _ in range(min(wanted, len(tasks)))]
    loads = [(0, i) for i in range(len(groups))]
    share = max(weight // len(groups), BYTES_PER_GROUP // 2)
    for unit in sorted(_units(tasks, share), key=lambda u: (-sum(map(_weight, u)), u[0].uri)):
        load, index = heappop(loads)
        groups[index] += unit
        heappush(loads, (load + sum(map(_weight, unit)), index))
    return [sorted(g, key=lambda t: (t.batch_id, t.uri)) for g in groups if g]


def _units(tasks: Sequence[FileTask], at_most: int) -> Iterator[list[FileTask]]:
    """The files of each batch together, or one by one if they are too many or too large."""
    of_batch: dict[str, list[FileTask]] = {}
    for task in tasks:
        of_batch.setdefault(task.batch_id, []).append(task)
    for files in of_batch.values():
        if len(files) <= FILES_PER_GROUP and sum(map(_weight, files)) <= at_most:
            yield files
        else:
            yield from ([f] for f in files)


def _weight(task: FileTask) -> int:
    return task.size + BYTES_PER_FILE


def _columns_wanted(errors: list[FileError]) -> list[tuple[str, pa.Schema]]:
    """The files that need more columns; empty if the batch has other errors as well."""
    if any(e.reason != COLUMNS_WANTED for e in errors):
        return []
    return [(e.uri, decode_columns(e.message)) for e in errors]


def check_some_were_read(unread: Sequence[RefusedBatch], batches: int) -> None:
    """Raises: TransientError, if every batch of the run has a file that could not be read.

    Args:
        batches: The number of batches of the run.
    """
    if unread and len(unread) == batches:
        raise TransientError(unread[0].reason, f"{unread[0].message}. Nothing was changed.")


def why_unread(batch: RefusedBatch) -> str:
    """Why a batch waits, for the message of a run that continued without it."""
    return f"could not be read ({batch.refusal})"


def reading_failure(error: BaseException) -> TransientError:
    """The error for a failure of Spark's workers, as far as its text shows the cause."""
    text = str(error)
    if TRANSIENT_MARKER in text:
        what = text.split(TRANSIENT_MARKER, 1)[1].splitlines()[0].strip(" :'\"")
        return TransientError(
            "BufferAway", f"a file of the buffer could not be read: {what[:300]}. Nothing was changed."
        )
    return TransientError(
        "ReadingFailed", f"reading the buffered files failed in Spark ({type(error).__name__}); see the driver's log."
    )
