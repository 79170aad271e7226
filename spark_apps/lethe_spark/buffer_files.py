"""One group of buffered files as Arrow record batches of the table's columns. Runs in Spark's Python workers, without
Spark.

A file that cannot be used yields one row that holds nothing but its batch's id and the error.
"""

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lethe_spark.buffer_store import BadFile, Bytes, FileTask, Store, Unread
from lethe_spark.file_formats import FORMATS, opened
from lethe_spark.fitting import ERROR_COLUMN, Fitting, Piece
from lethe_spark.opened_file import ROWS_PER_BATCH
from lethe_spark.schema_fit import Fits, Lacks, Misfit, Rules, compare

COLUMNS_WANTED: Final = (
    "ColumnsWanted"  # the reason of a file that would fit a table with more columns, told instead of a message
)
BYTES_PER_BATCH: Final = 32 * 1024 * 1024


def encode_error(uri: str, error: BadFile) -> str:
    return json.dumps([uri, error.reason, error.message, isinstance(error, Unread)])


def encode_columns(columns: pa.Schema) -> str:
    return base64.b64encode(columns.serialize().to_pybytes()).decode()


def decode_columns(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


@dataclass(frozen=True, order=True)
class FileError:
    """Why a file gave no rows. `unread`: it could not be had now. Of reason COLUMNS_WANTED, `message` holds what it wants."""

    uri: str
    reason: str
    message: str
    unread: bool = False


def decode_error(text: str) -> FileError:
    return FileError(*json.loads(text))


class Reader:
    """What a task needs to know; pickled to the workers. `wide` is `schema`, all nullable, and the error column."""

    def __init__(
        self,
        schema: StructType,
        wide: StructType,
        batch_column: str,
        io_properties: dict[str, str],
        format_name: str = "parquet",
        add_columns: bool = False,
    ) -> None:
        self.wide = wide
        self.batch_column = batch_column
        self.rules = Rules(
            batch_column,
            frozenset(f.name for f in schema if not f.nullable and f.name != batch_column),
            add_columns,
            FORMATS[format_name].typed,
            FORMATS[format_name].headed,
        )
        self.io_properties = io_properties
        self.format_name = format_name
        self._fits: pa.Schema | None = None  # the last schema that was found to fit

    def read(self, groups: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: rows of JSON lists of files in, rows of the table out."""
        target = to_arrow_schema(self.wide)
        store = Store(self.io_properties)
        for group in groups:
            for payload in group.column(0).to_pylist():
                yield from packed(self._tables(store, FileTask.decode(payload), target))

    def _tables(self, store: Store, tasks: list[FileTask], target: pa.Schema) -> Iterator[pa.Table]:
        """Rows of small files go through the table's columns together: each column of each costs a handful of calls."""
        fitting = Fitting(self.batch_column, self.rules.required, FORMATS[self.format_name].null_is_absent, target)
        waiting = Waiting()
        for task, source in store.opened(tasks):
            try:
                if isinstance(source, Unread):
                    raise source
                for rows in self._file(task, source, target):
                    if not waiting.takes(rows):
                        yield from _fitted(fitting, waiting.taken())
                    waiting.add(Piece(task, rows))
            except BadFile as e:
                yield _error(task, e, self.batch_column, target)
        yield from _fitted(fitting, waiting.taken())

    def _file(self, task: FileTask, source: Bytes, target: pa.Schema) -> Iterator[pa.Table]:
        name = FORMATS[self.format_name].name
        if task.size == 0:
            raise BadFile("UnreadableFile", f"the file is empty (0 bytes), expected {name}")
        with source.faults(task.uri, name):
            file = opened(source.file, self.format_name, _data_columns(target))
            self._check_schema(file.schema, target)
            yield from file.tables

    def _check_schema(self, schema: pa.Schema, target: pa.Schema) -> None:
        if self._fits is not None and schema.equals(self._fits):
            return  # the files of a producer mostly look alike
        match compare(schema, _data_columns(target), self.rules):
            case Fits():
                self._fits = schema
            case Lacks(columns):
                raise BadFile(COLUMNS_WANTED, encode_columns(columns))
            case Misfit(message):
                raise BadFile("SchemaMismatch", message)


@dataclass
class Waiting:
    """Rows of the same columns that are gone through together."""

    pieces: list[Piece] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0

    def takes(self, rows: pa.Table) -> bool:
        if not self.pieces:
            return True
        small = self.rows < ROWS_PER_BATCH and self.bytes < BYTES_PER_BATCH
        return small and bool(rows.schema.equals(self.pieces[0].rows.schema))

    def add(self, piece: Piece) -> None:
        self.pieces.append(piece)
        self.rows, self.bytes = self.rows + piece.rows.num_rows, self.bytes + piece.rows.nbytes

    def taken(self) -> list[Piece]:
        taken, self.pieces, self.rows, self.bytes = self.pieces, [], 0, 0
        return taken


def _fitted(fitting: Fitting, pieces: list[Piece]) -> Iterator[pa.Table]:
    """All together, or, when something is wrong with one of them, each by itself: the error is one file's."""
    if not pieces:
        return
    try:
        yield fitting.fitted(pieces)
        return
    except BadFile as e:
        if len(pieces) == 1:
            yield _error(pieces[0].task, e, fitting.batch_column, fitting.target)
            return
    for piece in pieces:
        yield from _fitted(fitting, [piece])


def _error(task: FileTask, error: BadFile, batch_column: str, target: pa.Schema) -> pa.Table:
    values: dict[str, Any] = {batch_column: task.batch_id, ERROR_COLUMN: encode_error(task.uri, error)}
    return pa.Table.from_pylist([values], schema=target)


def _data_columns(target: pa.Schema) -> pa.Schema:
    return pa.schema([f for f in target if f.name != ERROR_COLUMN])


def packed(tables: Iterator[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Join small tables into few record batches: each costs Spark about as much as a thousand rows."""
    waiting: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        waiting.append(table)
        rows, size = rows + table.num_rows, size + table.nbytes
        if rows >= ROWS_PER_BATCH or size >= BYTES_PER_BATCH:
            yield from pa.concat_tables(waiting).combine_chunks().to_batches(max_chunksize=ROWS_PER_BATCH)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield from pa.concat_tables(waiting).combine_chunks().to_batches(max_chunksize=ROWS_PER_BATCH)
