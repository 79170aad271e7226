"""Writes buffered batches as data files. Arrow reads the many small files in Spark's Python workers, and writes few large ones.

I/O through executors. First all files are read. Then the driver knows which batches cannot be used, and the rows of the others
are written. Invariants: if any file of a batch cannot be used, the result contains no row of the batch and reports it; the other
batches are written. A store failure raises TransientError and never refuses a batch. Counts, refusals and rows of a batch come
from the same reading of its files: tasks send the outcome of each file to the driver in addition to the rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import pyarrow as pa
from lethe.base.errors import InputError
from lethe.contract.result import RefusedBatch
from lethe.files.partitions import MAX_PARTITIONS
from lethe.ingest.buffer_files import (
    COLUMNS_WANTED,
    FileError,
    Reader,
    ReadSettings,
    Tally,
    decode_columns,
    refusal_of,
)
from lethe.ingest.buffer_store import FileTask
from lethe.ingest.change_rows import Keyed
from lethe.ingest.checking import with_unknown_types
from lethe.ingest.folder_values import named_folders
from lethe.ingest.path_limits import path_columns
from lethe.ingest.schema_fit import unknown_type
from lethe.ledger.ledger import BufferedObject
from lethe.writing.blocks import BlockFacts
from lethe.writing.layout import TableLayout
from pyiceberg.partitioning import PartitionSpec
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType

from lethe_spark.ingest.packing import Group, pack
from lethe_spark.ingest.reading import read_files
from lethe_spark.ingest.writing import fits_in_memory, layout_of, write_with_arrow, write_with_spark
from lethe_spark.jvm.data_files import DataFile
from lethe_spark.jvm.spark_table import SparkTable


@dataclass(frozen=True)
class BatchSource:
    """One batch to write."""

    id: str
    objects: tuple[BufferedObject, ...]  # its data files
    folder: str = ""  # the URI of the folder of these; "": unknown


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
    # By the id of each batch in `rows_per_batch`, the partitions that its rows are in, as the ledger keeps them; None: any. If
    # Spark wrote the files, this is None.
    partitions: Mapping[str, tuple[str, ...] | None] | None = field(default=None, repr=False)

    @property
    def rows(self) -> int:
        return sum(self.rows_per_batch.values())


def write_batches(
    table: SparkTable,
    sources: Sequence[BatchSource],
    settings: ReadSettings,
    run_id: str,
    target_file_size_bytes: int | None = None,
    table_properties: Mapping[str, str] = MappingProxyType({}),
) -> Ingested:
    """Write the batches as data files of the table, without committing them.

    With `settings.add_columns`, batches with additional columns are `wanting` instead of refused. Of change data, only the rows
    to add are written; the result has the keys of all its rows.

    Args:
        sources: With distinct ids. Files need not contain the batch column; if they do, it must be the id in every row. They
            must have all other columns of the table, with the same type or one that can be converted safely.
        target_file_size_bytes: None: as the table's properties say.
        table_properties: PyIceberg's FileIO properties of the table.
    Raises: InputError (`BatchColumnType`, `UnknownType`); TransientError: `BufferAway`, if the store failed; the errors of Spark.
    """
    schema, batch_column = table.columns, settings.batch_column
    if batch_column not in schema.names or not isinstance(schema[batch_column].dataType, StringType):
        found = schema[batch_column].dataType.simpleString() if batch_column in schema.names else "missing"
        raise InputError("BatchColumnType", f"the batch column {batch_column} is {found}, expected string")
    columns = with_unknown_types(to_arrow_schema(schema), table.schema)
    _require_writable(table, columns)
    settings = replace(settings, path_columns=_path_columns(table))
    reader = Reader(columns, settings)
    layout = layout_of(table, reader.target, batch_column, table_properties, run_id, target_file_size_bytes)
    tasks = [FileTask(s.id, o.key, o.size, o.etag, named_folders(o.key, s.folder)) for s in sources for o in s.objects]
    size = sum(t.size for t in tasks)
    groups = _groups(tasks, table.spark.sparkContext.defaultParallelism, layout)
    with read_files(table.spark, groups, reader, layout) as rows:
        errors = _by_batch(rows.outcomes)
        keys = _keys(rows.outcomes, settings.keyed, errors)
        without = sorted({i for (i, _), t in rows.outcomes.items() if i in errors and t.rows})
        if layout is not None and fits_in_memory(layout, rows.facts.sizes):
            files = write_with_arrow(table, rows, layout, size, without)
        else:
            files = write_with_spark(table, rows, batch_column, run_id, target_file_size_bytes, size, without)
        good = sum(t.rows for (i, _), t in rows.outcomes.items() if i not in errors)
        if sum(f.records for f in files) != good:
            raise RuntimeError(f"{good} rows were read, but {sum(f.records for f in files)} were written")
        done = replace(_sorted_out(sources, files, rows.outcomes, errors), keys=keys)
        return done if layout is None else replace(done, partitions=_partitions(done.rows_per_batch, rows.facts))


def _require_writable(table: SparkTable, columns: pa.Schema) -> None:
    """Check that rows can be written without the columns whose types are unknown. Raises: InputError (`UnknownType`)."""
    for column in columns:
        if (kind := unknown_type(column)) is not None and not column.nullable:
            raise InputError(
                "UnknownType",
                f"{table.full_name}: column {column.name} is required and has the type {kind}, which Lethe does not write. "
                "Nothing was committed. Make the column optional, or drop it.",
            )


def _path_columns(table: SparkTable) -> tuple[tuple[str, int], ...]:
    """See `lethe.ingest.path_limits`."""
    text = str(table.jvm.org.apache.iceberg.PartitionSpecParser.toJson(table.java.spec()))
    return path_columns(table.schema, PartitionSpec.model_validate_json(text))


def _groups(tasks: Sequence[FileTask], parallelism: int, layout: TableLayout | None) -> list[Group]:
    """The files of each reading task. If the order of batches is not that of rows, all rows of a task are sorted together."""
    if layout is not None and not layout.batches_first:
        return [replace(g, range=0) for g in pack(tasks, parallelism)]
    return pack(tasks, parallelism, whole_batches=layout is not None and not layout.batches_in_order)


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


def _partitions(batches: Iterable[str], facts: BlockFacts) -> dict[str, tuple[str, ...] | None]:
    found: dict[str, tuple[str, ...] | None] = {}
    for batch_id in batches:
        texts = facts.partitions.get(batch_id, set())
        known = sorted(t for t in texts if t is not None)
        found[batch_id] = tuple(known) if 0 < len(known) == len(texts) <= MAX_PARTITIONS else None
    return found


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


def _columns_wanted(errors: list[FileError]) -> list[tuple[str, pa.Schema]]:
    """The files that need more columns; empty if the batch has other errors as well."""
    if any(e.reason != COLUMNS_WANTED for e in errors):
        return []
    return [(e.uri, decode_columns(e.message)) for e in errors]
