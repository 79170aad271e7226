"""Writes buffered batches as data files: Arrow reads many small files in Spark's Python workers, and writes few large ones. I/O.

First all files are read. Then the driver knows which batches cannot be used, and the rows of the others are written. Invariants:
if any file of a batch cannot be used, the result contains no row of the batch and reports it; the other batches are written. A
store failure raises TransientError and never refuses a batch. Counts, refusals and rows of a batch come from the same reading of
its files.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from types import MappingProxyType, TracebackType
from typing import Final

import pyarrow as pa
from lethe.base.errors import InputError, TransientError
from lethe.base.objects import BufferedObject
from lethe.buffer.promotion import FILES_AT_MOST
from lethe.contract.result import Phase, RefusedBatch
from lethe.contract.settings import RFC_4180, SchemaEvolution
from lethe.files.bounds import MAX_PARTITIONS
from lethe.iceberg.column_path import ColumnName
from lethe.iceberg.metadata_file import unknown_columns
from lethe.ingest.buffer_files import (
    COLUMNS_WANTED,
    FileError,
    FileOutcome,
    Reader,
    ReadSettings,
    Tally,
    decode_columns,
    reading_failure,
    refusal_of,
)
from lethe.ingest.buffer_store import TRANSIENT_MARKER, FileTask
from lethe.ingest.change_rows import Keyed
from lethe.ingest.check_conditions import checks_of
from lethe.ingest.checking import with_unknown_types
from lethe.ingest.checks import BatchChecks, CheckFailure, FailedChecks, Screening
from lethe.ingest.registrable import Footer, FooterReader, RegisterTarget
from lethe.ingest.schema_fit import Evolution, known_columns, named_folders, path_columns, plan_evolution, unknown_type
from lethe.writing.data_files import TableLayout, Unsupported
from lethe.writing.tasks import (
    Block,
    BlockFacts,
    BlockKey,
    ReadTask,
    TaskReport,
    WriteTask,
    bytes_of_cells,
    decode,
    plan,
    without_batches,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyspark import RDD, StorageLevel
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from lethe_spark.commit.ledger_commit import Attempts, discard
from lethe_spark.jvm.data_files import DataFile, data_files, described
from lethe_spark.jvm.errors import JvmError
from lethe_spark.jvm.gateway import each
from lethe_spark.jvm.scan_tasks import write_uncommitted
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.jvm.table import run_folder
from lethe_spark.run.context import RunContext, table_properties

log = logging.getLogger(__name__)

BYTES_PER_GROUP: Final = 128 * 1024 * 1024
FILES_PER_GROUP: Final = 1000
BYTES_PER_FILE: Final = 256 * 1024
"""The cost of the request for a file, as the number of bytes that could be read in the same time."""

IN_DRIVER: Final = FILES_AT_MOST
"""Footers that the driver reads itself: starting tasks for them would take longer."""

ONE_PASS_BYTES: Final = 1024 * 1024 * 1024
"""Up to this size one of Spark's tasks sorts the rows of a partition. Above it, several tasks share a partition."""
SORTED_BYTES: Final = 512 * 1024 * 1024
"""Rows of one batch that a task of Arrow sorts in memory."""
NO_SCREENING: Final = Screening()
_ROWS_AT_ONCE: Final = 65_536
_ROWS_PER_BATCH: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
"""Spark's setting of how many rows it sends to Python at a time."""
_TARGET_SIZE: Final = "write.target-file-size-bytes"
_DEFAULT_TARGET_SIZE: Final = 512 * 1024 * 1024


@dataclass(frozen=True)
class Group:
    """The files of one task."""

    number: int
    range: int
    """Batches of a lower range come before those of this one, or are the same."""
    files: tuple[FileTask, ...]


def pack(
    tasks: Sequence[FileTask], parallelism: int, whole_batches: bool = False, undivided: bool = False
) -> list[Group]:
    """Divide files, in the order of their batches, into groups of about equal work.

    Args:
        parallelism: How many tasks may run at the same time.
        whole_batches: All files of a batch are in the same range.
        undivided: All files of a batch are in the same group, however large it becomes.
    """
    if not tasks:
        return []
    weight = sum(map(_weight, tasks))
    group_count = max(ceil(weight / (BYTES_PER_GROUP + BYTES_PER_FILE)), ceil(len(tasks) / FILES_PER_GROUP))
    group_count = ceil(group_count / parallelism) * parallelism  # so that all cores are busy until the end
    share, most = weight / min(group_count, len(tasks)), FILES_PER_GROUP
    groups: list[list[FileTask]] = []
    load = share  # so that the first file begins a group
    for task in sorted(tasks, key=lambda t: (t.batch_id, t.uri)):
        is_full = not groups or load + _weight(task) / 2 > share or len(groups[-1]) >= most
        if is_full and not (undivided and groups and groups[-1][-1].batch_id == task.batch_id):
            groups.append([])
            load = 0
        groups[-1].append(task)
        load += _weight(task)
    found: list[Group] = []
    for number, files in enumerate(groups):
        goes_on = number > 0 and whole_batches and groups[number - 1][-1].batch_id == files[0].batch_id
        range_ = found[-1].range if goes_on else number
        found.append(Group(number, range_, tuple(files)))
    return found


def _weight(task: FileTask) -> int:
    return task.size + BYTES_PER_FILE


class _FoundParam(AccumulatorParam[TaskReport]):
    """Collects what tasks have found. If a task runs twice, it sends the same again."""

    def zero(self, value: TaskReport) -> TaskReport:  # noqa: ARG002
        return TaskReport()

    def addInPlace(self, value1: TaskReport, value2: TaskReport) -> TaskReport:  # noqa: N802
        value1.add(value2)
        return value1


@dataclass(frozen=True)
class ReadRows:
    """The rows of all files that could be read. Close it to free the disks."""

    blocks: RDD[Block]
    outcomes: Mapping[tuple[str, str], FileOutcome]
    """The outcomes of all files, by batch id and URI."""
    facts: BlockFacts

    def __enter__(self) -> "ReadRows":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.blocks.unpersist()


def read_files(spark: SparkSession, groups: Sequence[Group], reader: Reader, layout: TableLayout | None) -> ReadRows:
    """Read all files, and keep their rows.

    Args:
        layout: By which rows are divided by partition. None: they are not.

    Raises:
        TransientError: `BufferAway`, if the store failed.
        Exception: The errors of the workers.
    """
    context = spark.sparkContext
    reports: Accumulator[TaskReport] = context.accumulator(TaskReport(), _FoundParam())
    payloads = [(g.number, g.range, FileTask.encode(g.files)) for g in groups]
    blocks = context.parallelize(payloads, max(len(payloads), 1)).mapPartitions(ReadTask(reader, layout, reports))
    blocks.persist(StorageLevel.DISK_ONLY)
    try:
        blocks._jrdd.rdd().count()  # in Java, so that the rows do not come back to Python
    except (PySparkException, *JvmError) as e:
        blocks.unpersist()
        if TRANSIENT_MARKER in str(e):
            raise reading_failure(e) from e
        raise
    expected = sum(len(g.files) for g in groups)
    if len(reports.value.outcomes) != expected:
        raise RuntimeError(f"expected the outcomes of {expected} files, found {len(reports.value.outcomes)}")
    return ReadRows(blocks, reports.value.outcomes, reports.value.blocks)


def read_footers(spark: SparkSession, reader: FooterReader, tasks: Sequence[FileTask]) -> list[Footer]:
    """Read the footers of files, in any order.

    Raises:
        TransientError: A dependency is temporarily unavailable.
    """
    return _here(reader, tasks) if len(tasks) <= IN_DRIVER else _by_tasks(spark, reader, tasks)


def _here(reader: FooterReader, tasks: Sequence[FileTask]) -> list[Footer]:
    try:
        return list(reader.footers(tasks))
    except Exception as e:
        raise reading_failure(e) from e


def _by_tasks(spark: SparkSession, reader: FooterReader, tasks: Sequence[FileTask]) -> list[Footer]:
    groups = min(max(spark.sparkContext.defaultParallelism, ceil(len(tasks) / FILES_PER_GROUP)), len(tasks))
    payloads = [FileTask.encode(tasks[n::groups]) for n in range(groups)]
    try:
        texts = spark.sparkContext.parallelize(payloads, groups).flatMap(reader.read).collect()
    except (PySparkException, *JvmError) as e:
        raise reading_failure(e) from e
    return [Footer.decode(text) for text in texts]


class PathsParam(AccumulatorParam[list[str]]):
    """Collects the files that tasks have written."""

    def zero(self, value: list[str]) -> list[str]:  # noqa: ARG002
        """An empty list, with which each task begins."""
        return []

    def addInPlace(self, value1: list[str], value2: list[str]) -> list[str]:  # noqa: N802
        """The first list, to which the paths of the second are appended."""
        value1.extend(value2)
        return value1


def layout_of(
    table: SparkTable,
    columns: pa.Schema,
    batch_column: str,
    io_properties: Mapping[str, str],
    run_id: str,
    target_file_size_bytes: int | None,
) -> TableLayout | None:
    """What Arrow needs to know to write the table. None: Spark must write it.

    Args:
        columns: Of the rows, as Spark reads the table. Columns of unknown types are not among them.
        io_properties: PyIceberg's FileIO properties of the table.
        target_file_size_bytes: None: as the table's properties say.
    """
    api, java, properties = table.jvm.org.apache.iceberg, table.java, dict(table.properties)
    field_id = table.field_id(batch_column)
    assert field_id is not None
    # Files without a column are files with nulls.
    schema = Schema(*(f for f in table.schema.fields if f.name in columns.names), schema_id=table.schema.schema_id)
    target = RegisterTarget(
        schema.model_dump_json(),
        str(api.PartitionSpecParser.toJson(java.spec())),
        properties,
        field_id,
        may_lack=True,
    )
    layout = TableLayout(
        target,
        columns,
        str(api.SortOrderParser.toJson(java.sortOrder())),
        table.location,
        run_folder(table, run_id),
        target_file_size_bytes or int(properties.get(_TARGET_SIZE, _DEFAULT_TARGET_SIZE)),
        io_properties,
    )
    try:
        layout.check()
    except Unsupported as e:
        log.info("Spark writes the data files of %s: %s", table.full_name, e)
        return None
    except ValueError:  # PyIceberg cannot read the schema, the spec or the sort order
        log.info("Spark writes the data files of %s: PyIceberg does not know all of its types", table.full_name)
        return None
    return layout


def fits_in_memory(layout: TableLayout, sizes: Mapping[BlockKey, int]) -> bool:
    """Whether each task of Arrow can sort its rows in memory."""
    return layout.batches_in_order or max(bytes_of_cells(sizes).values(), default=0) <= SORTED_BYTES


def write_with_arrow(
    table: SparkTable, rows: ReadRows, layout: TableLayout, input_bytes: int, without: Sequence[str]
) -> tuple[DataFile, ...]:
    """Write the rows in Spark's Python workers.

    Args:
        input_bytes: Bytes of the files that were read.
        without: Batches whose rows are left out.

    Raises:
        Exception: The errors of the workers.
    """
    if not rows.facts.sizes:
        return ()
    context = table.spark.sparkContext
    tasks, count = plan(rows.facts.sizes, input_bytes, layout.target_file_size, context.defaultParallelism)
    paths: Accumulator[list[str]] = context.accumulator([], PathsParam())
    work = WriteTask(layout, tuple(without))

    def write(blocks: Iterable[Block]) -> Iterator[str]:
        documents = list(work(blocks))
        paths.add([json.loads(d)["file-path"] for d in documents])
        yield from documents

    if count == 1:
        routed = rows.blocks.coalesce(1)
    else:
        routed = rows.blocks.map(lambda block: (tasks[block.key.cell], block)).partitionBy(count, int).values()
    try:
        documents = routed.mapPartitions(write).collect()
    except (PySparkException, *JvmError):
        discard(table, paths.value, Attempts())
        raise
    return described(table, each(data_files(table, documents)))


def write_with_spark(
    table: SparkTable,
    rows: ReadRows,
    batch_column: str,
    run_id: str,
    target_file_size_bytes: int | None,
    input_bytes: int,
    without: Sequence[str],
) -> tuple[DataFile, ...]:
    """Write the rows as `write_uncommitted` does. Arguments: as `write_with_arrow`."""
    if not rows.facts.sizes:
        return ()
    every, unknown = table.columns, unknown_columns(table.schema)
    columns = StructType([StructField(f.name, f.dataType, True) for f in every if f.name not in unknown])

    def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for content in batch.column(0):
                table = without_batches(decode(content.as_py()), batch_column, without)
                index = table.schema.get_field_index(batch_column)
                text = table.column(index).cast(pa.string())
                yield from table.set_column(index, batch_column, text).to_batches(max_chunksize=_ROWS_AT_ONCE)

    frame = rows.blocks.map(lambda block: (block.content,)).toDF("content binary").mapInArrow(unpack, columns)
    frame = frame.withColumns({n: F.lit(None).cast(every[n].dataType) for n in unknown})
    one_pass = input_bytes <= ONE_PASS_BYTES
    conf = table.spark.conf
    before = conf.get(_ROWS_PER_BATCH)
    conf.set(_ROWS_PER_BATCH, "1")  # a row is a block of megabytes
    try:
        return write_uncommitted(table, frame, run_id, target_file_size_bytes, one_pass=one_pass)
    finally:
        conf.set(_ROWS_PER_BATCH, str(before))


@dataclass(frozen=True)
class BatchSource:
    """One batch to write."""

    id: str
    objects: tuple[BufferedObject, ...]
    """Its data files."""
    folder: str = ""
    """The URI of the folder of these; "": unknown."""


@dataclass(frozen=True)
class Ingested:
    """The result. Each batch is in exactly one of `rows_per_batch`, `refused`, `held`, `wanting` and `unread`."""

    files: tuple[DataFile, ...]
    """Uncommitted data files with the rows of the batches in `rows_per_batch`."""
    rows_per_batch: Mapping[str, int]
    """The number of rows, by batch id; includes batches without rows."""
    refused: tuple[RefusedBatch, ...] = ()
    """Batches that cannot be used; each message names a file or a check."""
    held: tuple[RefusedBatch, ...] = ()
    """Batches that fail a check and wait for a person."""
    wanting: Mapping[str, Sequence[tuple[str, pa.Schema]]] = field(default_factory=dict)
    """By batch id: the files that would fit a table with more columns, and these columns."""
    unread: tuple[RefusedBatch, ...] = ()
    """Batches with a file that could not be read now; they are not refused."""
    keys: Mapping[str, pa.Table] = field(default_factory=dict, repr=False)
    """By the id of each batch of change data in `rows_per_batch`: its keys, in the table's types."""
    partitions: Mapping[str, tuple[str, ...] | None] | None = field(default=None, repr=False)
    """By the id of each batch in `rows_per_batch`, the partitions that its rows are in, as the ledger keeps them; None: any. If
    Spark wrote the files, this is None.
    """

    @property
    def rows(self) -> int:
        """The sum of `rows_per_batch`. Rows of refused, wanting and unread batches do not count."""
        return sum(self.rows_per_batch.values())


def write_batches(
    table: SparkTable,
    sources: Sequence[BatchSource],
    settings: ReadSettings,
    run_id: str,
    target_file_size_bytes: int | None = None,
    table_properties: Mapping[str, str] = MappingProxyType({}),
    screening: Screening = NO_SCREENING,
) -> Ingested:
    """Write the batches as data files of the table, without committing them.

    With `settings.add_columns`, batches with additional columns are `wanting` instead of refused. Of change data, only the rows
    to add are written; the result has the keys of all its rows.

    Args:
        sources: With distinct ids. Files need not contain the batch column; if they do, it must be the id in every row. They
            must have all other columns of the table, with the same type or one that can be converted safely.
        target_file_size_bytes: None: as the table's properties say.
        table_properties: PyIceberg's FileIO properties of the table.
        screening: How batches are checked.

    Raises:
        InputError: `BatchColumnType`, `UnknownType`, `InvalidCheck`.
        TransientError: `BufferAway`, if the store failed.
        Exception: The errors of Spark.
    """
    schema, batch_column = table.columns, settings.batch_column
    if batch_column not in schema.names or not isinstance(schema[batch_column].dataType, StringType):
        kind = schema[batch_column].dataType.simpleString() if batch_column in schema.names else "missing"
        raise InputError("BatchColumnType", f"the batch column {batch_column} is {kind}, expected string")
    columns = with_unknown_types(to_arrow_schema(schema), table.schema)
    _require_writable(table, columns)
    checks = checks_of(screening.specs, table.schema, known_columns(columns))
    settings = replace(settings, path_columns=_path_columns(table), checks=checks)
    reader = Reader(columns, settings)
    layout = layout_of(table, reader.target, batch_column, table_properties, run_id, target_file_size_bytes)
    tasks = [FileTask(s.id, o.key, o.size, o.etag, named_folders(o.key, s.folder)) for s in sources for o in s.objects]
    size = sum(t.size for t in tasks)
    groups = _groups(tasks, table.spark.sparkContext.defaultParallelism, layout, undivided=bool(checks.of_keys))
    with read_files(table.spark, groups, reader, layout) as rows:
        errors = _by_batch(rows.outcomes)
        keys = _keys(rows.outcomes, settings.keyed, errors)
        failures = _failures(sources, checks, screening, rows.outcomes, errors)
        unusable = errors.keys() | failures.keys()
        without = sorted({i for (i, _), t in rows.outcomes.items() if i in unusable and t.rows})
        if layout is not None and fits_in_memory(layout, rows.facts.sizes):
            files = write_with_arrow(table, rows, layout, size, without)
        else:
            files = write_with_spark(table, rows, batch_column, run_id, target_file_size_bytes, size, without)
        good = sum(t.rows for (i, _), t in rows.outcomes.items() if i not in unusable)
        if sum(f.records for f in files) != good:
            raise RuntimeError(f"{good} rows were read, but {sum(f.records for f in files)} were written")
        done = replace(_sorted_out(sources, files, rows.outcomes, errors, failures), keys=keys)
        return done if layout is None else replace(done, partitions=_partitions(done.rows_per_batch, rows.facts))


def _require_writable(table: SparkTable, columns: pa.Schema) -> None:
    """Check that rows can be written without the columns whose types are unknown.

    Raises:
        InputError: `UnknownType`.
    """
    for column in columns:
        if (kind := unknown_type(column)) is not None and not column.nullable:
            raise InputError(
                "UnknownType",
                f"{table.full_name}: column {column.name} is required and has the type {kind}, which Lethe does not write. "
                "Nothing was committed. Make the column optional, or drop it.",
            )


def _path_columns(table: SparkTable) -> tuple[tuple[ColumnName, int], ...]:
    """See `lethe.ingest.schema_fit`."""
    text = str(table.jvm.org.apache.iceberg.PartitionSpecParser.toJson(table.java.spec()))
    return path_columns(table.schema, PartitionSpec.model_validate_json(text))


def _groups(tasks: Sequence[FileTask], parallelism: int, layout: TableLayout | None, undivided: bool) -> list[Group]:
    """The files of each reading task. If the order of batches is not that of rows, all rows of a task are sorted together."""
    if layout is not None and not layout.batches_first:
        return [replace(g, range=0) for g in pack(tasks, parallelism, undivided=undivided)]
    return pack(tasks, parallelism, layout is not None and not layout.batches_in_order, undivided)


def _sorted_out(
    sources: Sequence[BatchSource],
    files: tuple[DataFile, ...],
    outcomes: Tally,
    errors: Mapping[str, list[FileError]],
    failures: Mapping[str, CheckFailure],
) -> Ingested:
    unread = tuple(refusal_of(i, e) for i, e in sorted(errors.items()) if any(f.unread for f in e))
    waits = {b.batch_id for b in unread}
    wanting = {i: columns for i, e in errors.items() if i not in waits and (columns := _columns_wanted(e))}
    refused = tuple(refusal_of(i, e) for i, e in sorted(errors.items()) if i not in waits and i not in wanting)
    failed = {i: RefusedBatch.of(i, f.verdict) for i, f in failures.items()}
    held = tuple(b for i, b in failed.items() if failures[i].is_held)
    refused += tuple(b for i, b in failed.items() if not failures[i].is_held)
    rows = {i: n for i, n in _rows_per_batch(sources, outcomes).items() if i not in errors and i not in failures}
    return Ingested(files, rows, refused, held, wanting, unread)


def _rows_per_batch(sources: Sequence[BatchSource], outcomes: Tally) -> dict[str, int]:
    rows = {s.id: 0 for s in sources}
    for (batch_id, _), t in outcomes.items():
        rows[batch_id] += t.rows
    return rows


def _failures(
    sources: Sequence[BatchSource],
    checks: BatchChecks,
    screening: Screening,
    outcomes: Tally,
    errors: Mapping[str, list[FileError]],
) -> dict[str, CheckFailure]:
    """The batches without errors that fail a check, by id."""
    if not checks.specs:
        return {}
    failed: dict[str, dict[str, FailedChecks]] = {}
    for (batch_id, uri), t in outcomes.items():
        if t.failed:
            failed.setdefault(batch_id, {})[uri] = t.failed
    found: dict[str, CheckFailure] = {}
    for batch_id, rows in sorted(_rows_per_batch(sources, outcomes).items()):
        if batch_id in errors:
            continue
        is_approved = batch_id in screening.approved
        failure = checks.judge(rows, failed.get(batch_id, {}), screening.latest_rows, is_approved)
        if failure is not None:
            found[batch_id] = failure
    return found


def _partitions(batches: Iterable[str], facts: BlockFacts) -> dict[str, tuple[str, ...] | None]:
    partitions: dict[str, tuple[str, ...] | None] = {}
    for batch_id in batches:
        texts = facts.partitions.get(batch_id, set())
        sorted_texts = sorted(t for t in texts if t is not None)
        partitions[batch_id] = tuple(sorted_texts) if 0 < len(sorted_texts) == len(texts) <= MAX_PARTITIONS else None
    return partitions


def _keys(outcomes: Tally, keyed: Mapping[str, Keyed], errors: dict[str, list[FileError]]) -> dict[str, pa.Table]:
    """The keys of each batch of change data without errors. If the keys cannot be used, the reason is added to `errors`."""
    files: dict[str, dict[str, tuple[bytes, ...]]] = {}
    for (batch_id, uri), t in outcomes.items():
        if batch_id in keyed and batch_id not in errors and t.keys:
            files.setdefault(batch_id, {})[uri] = t.keys
    tables: dict[str, pa.Table] = {}
    for batch_id, keys in files.items():
        judged = keyed[batch_id].judged(keys)
        if isinstance(judged, pa.Table):
            tables[batch_id] = judged
        else:
            uri, bad = judged
            errors[batch_id] = [FileError(uri, bad.reason, bad.message)]
    return tables


def _by_batch(outcomes: Tally) -> dict[str, list[FileError]]:
    errors: dict[str, list[FileError]] = {}
    for (batch_id, _), t in outcomes.items():
        if t.error is not None:
            errors.setdefault(batch_id, []).append(t.error)
    return errors


def _columns_wanted(errors: list[FileError]) -> list[tuple[str, pa.Schema]]:
    """The files that need more columns; empty if the batch has other errors as well."""
    if any(e.reason != COLUMNS_WANTED for e in errors):
        return []
    return [(e.uri, decode_columns(e.message)) for e in errors]


def write_into(
    context: RunContext,
    table: SparkTable,
    sources: Sequence[BatchSource],
    batch_column: str,
    target_file_size_bytes: int | None = None,
    keyed: Mapping[str, Keyed] = MappingProxyType({}),
    screening: Screening = NO_SCREENING,
) -> Ingested:
    """Write batches as data files of the table, and add columns to it if needed.

    If columns are added, all files are written again: files with the narrower types cannot be committed.

    The schema changes before the rows that need it are written, in a separate commit, which only adds optional columns and widens
    types. After a crash, the next attempt finds the columns, still without values. If two runs do this at the same time, the
    second finds the columns of the first.

    Args:
        keyed: The batches that are change data, by id.
        screening: How batches are checked.

    Raises:
        Exception: As `write_batches`.
        ConflictError: The table moved between plan and commit.
        TransientError: `ColumnsMoved`, if another writer changed the columns meanwhile.
    """
    spec = context.spec
    settings = ReadSettings(
        batch_column,
        dict(context.catalog_properties),
        spec.buffer.format,
        spec.schema_evolution is SchemaEvolution.ADD_COLUMNS,
        dict(keyed),
        spec.buffer.csv or RFC_4180,
    )
    io_properties = table_properties(context)
    first = write_batches(table, sources, settings, spec.run_id, target_file_size_bytes, io_properties, screening)
    if not first.wanting:
        return first
    evolution = plan_evolution(to_arrow_schema(table.columns), first.wanting)
    refused = [
        RefusedBatch(batch_id=i, reason="SchemaMismatch", message=f"{uri}: {text}")
        for i, (uri, text) in evolution.refused.items()
    ]
    again = [s for s in sources if s.id not in evolution.refused]
    if len(evolution.refused) == len(first.wanting):
        return replace(first, refused=(*first.refused, *refused), wanting={})
    discard(table, first.files, Attempts())
    if evolution.columns:
        context.step("before-columns")
        context.reporter.phase(Phase.WRITING, f"columns for {len(first.wanting) - len(refused)} batches")
        table.take_over(as_columns(evolution, table.columns))
        log.info("added or widened columns of %s: %s", table.full_name, ", ".join(evolution.columns.names))
    context.step("after-columns")
    second = write_batches(table, again, settings, spec.run_id, target_file_size_bytes, io_properties, screening)
    if second.wanting:
        discard(table, second.files, Attempts())
        raise TransientError(
            "ColumnsMoved",
            f"the columns that this run added to {table.full_name} were changed or dropped, probably by "
            "another writer. Nothing was committed. The run tries again.",
        )
    return replace(second, refused=(*refused, *second.refused))


def as_columns(evolution: Evolution, table: StructType) -> StructType:
    """The columns to add or widen, in Spark's types. New columns are optional; widened columns stay required if they were."""
    required = {f.name for f in table if not f.nullable}
    schema = from_arrow_schema(evolution.columns, prefer_timestamp_ntz=True)
    return StructType([StructField(f.name, f.dataType, f.name not in required) for f in schema])
