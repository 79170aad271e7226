"""One group of buffered files as Arrow record batches of the table's columns. Runs in Spark's Python workers, without
Spark.

A file that cannot be used yields one row that holds nothing but its batch's id and the error.
"""

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lethe_spark.buffer_store import BadFile, Bytes, FileTask, Store, Unread
from lethe_spark.file_formats import FORMATS, opened
from lethe_spark.opened_file import ROWS_PER_BATCH
from lethe_spark.schema_fit import Fits, Lacks, Misfit, Rules, compare

ERROR_COLUMN: Final = "_lethe_error"
COLUMNS_WANTED: Final = (
    "ColumnsWanted"  # the reason of a file that would fit a table with more columns, told instead of a message
)
BYTES_PER_BATCH: Final = 32 * 1024 * 1024
# 0001-01-01 and 9999-12-31, counted from 1970-01-01
_FIRST_DAY: Final = -719_162
_LAST_DAY: Final = 2_932_896
_FIRST_MICROSECOND: Final = _FIRST_DAY * 86_400_000_000
_LAST_MICROSECOND: Final = (_LAST_DAY + 1) * 86_400_000_000 - 1


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
        for task, source in store.opened(tasks):
            try:
                if isinstance(source, Unread):
                    raise source
                yield from self._file(task, source, target)
            except BadFile as e:
                values: dict[str, Any] = {self.batch_column: task.batch_id, ERROR_COLUMN: encode_error(task.uri, e)}
                yield pa.Table.from_pylist([values], schema=target)

    def _file(self, task: FileTask, source: Bytes, target: pa.Schema) -> Iterator[pa.Table]:
        name = FORMATS[self.format_name].name
        if task.size == 0:
            raise BadFile("UnreadableFile", f"the file is empty (0 bytes), expected {name}")
        with source.faults(task.uri, name):
            file = opened(source.file, self.format_name, _data_columns(target))
            self._check_schema(file.schema, target)
            for rows in file.tables:
                yield self._table(task, rows, target)

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

    def _table(self, task: FileTask, rows: pa.Table, target: pa.Schema) -> pa.Table:
        if self.batch_column in rows.column_names:
            self._check_batch_id(rows.column(self.batch_column), task.batch_id)
        columns: list[Any] = []
        for field in target:
            if field.name == self.batch_column:
                columns.append(pa.repeat(pa.scalar(task.batch_id, field.type), rows.num_rows))
            elif field.name == ERROR_COLUMN or field.name not in rows.column_names:
                columns.append(pa.nulls(rows.num_rows, field.type))
            else:
                columns.append(self._column(rows.column(field.name), field))
        return pa.Table.from_arrays(columns, schema=target)

    def _column(self, values: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
        if field.name in self.rules.required and values.null_count:
            raise BadFile("SchemaMismatch", f"column {field.name} holds nulls, the table requires values")
        try:
            fitting = values if values.type == field.type else values.cast(field.type, safe=True)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
            raise BadFile(
                "SchemaMismatch",
                f"column {field.name} is {values.type} and holds a value that {field.type} cannot hold as it is",
            ) from e
        if not _within_calendar(fitting):
            raise BadFile("SchemaMismatch", f"column {field.name} holds a {field.type} outside the years 1 to 9999")
        return fitting

    def _check_batch_id(self, values: pa.ChunkedArray, batch_id: str) -> None:
        plain = values.cast(pa.string())
        if FORMATS[self.format_name].null_is_absent:
            plain = plain.drop_null()
        if plain.null_count or not pc.all(pc.equal(plain, batch_id), min_count=0).as_py():
            raise BadFile(
                "BatchIdMismatch", f"column {self.batch_column} holds values other than the batch's id {batch_id!r}"
            )


def _data_columns(target: pa.Schema) -> pa.Schema:
    return pa.schema([f for f in target if f.name != ERROR_COLUMN])


def _within_calendar(values: pa.ChunkedArray) -> bool:
    """Whether dates and times are such as SQL and Python know: others could be stored, and then break every reader."""
    if pa.types.is_timestamp(values.type):
        first, last, plain = _FIRST_MICROSECOND, _LAST_MICROSECOND, pa.int64()
    elif pa.types.is_date32(values.type):
        first, last, plain = _FIRST_DAY, _LAST_DAY, pa.int32()
    else:
        return True
    found = pc.min_max(values.cast(plain)).as_py()
    return found["min"] is None or (first <= found["min"] and found["max"] <= last)


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
