"""One group of buffered Parquet files as Arrow record batches. Runs in Spark's Python workers, with pyarrow alone.

I/O: fetches files. A file that cannot be used yields one row that holds nothing but its batch's id and the error; a store
that does not answer raises, so that Spark, and then the operator, try again.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from io import UnsupportedOperation
from itertools import islice
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem, LocalFileSystem
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lethe_spark.arrow_types import difference

ERROR_COLUMN: Final = "_lethe_error"
TRANSIENT_MARKER: Final = "LETHE-BUFFER-AWAY"
WHOLE_FILE_BYTES: Final = 32 * 1024 * 1024  # up to here a file is fetched in one request
PREFETCH: Final = 8  # files fetched at once by one task: small files are all latency
ROWS_PER_BATCH: Final = 65_536
BYTES_PER_BATCH: Final = 32 * 1024 * 1024


@dataclass(frozen=True)
class FileTask:
    batch_id: str
    uri: str
    size: int

    @staticmethod
    def encode(tasks: Sequence["FileTask"]) -> str:
        return json.dumps([asdict(t) for t in tasks])

    @staticmethod
    def decode(text: str) -> "list[FileTask]":
        return [FileTask(**t) for t in json.loads(text)]


class BadFile(Exception):
    """This file cannot become rows of the table, however often it is read."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class BufferAway(Exception):
    """The store did not give the bytes. The text reaches the driver inside a stack trace: hence the marker."""

    def __init__(self, uri: str, error: BaseException) -> None:
        first = (str(error).splitlines() or [""])[0]
        super().__init__(f"{TRANSIENT_MARKER}: {uri}: {type(error).__name__} {first[:200]}")


def encode_error(uri: str, error: BadFile) -> str:
    return json.dumps([uri, error.reason, error.message])


def decode_error(text: str) -> tuple[str, str, str]:
    """(file, reason, message)"""
    uri, reason, message = json.loads(text)
    return uri, reason, message


class Reader:
    """What a task needs to know; pickled to the workers. `wide` is `schema`, all nullable, and the error column."""

    def __init__(self, schema: StructType, wide: StructType, batch_column: str, io_properties: dict[str, str]) -> None:
        self.required = frozenset(f.name for f in schema if not f.nullable)
        self.wide = wide
        self.batch_column = batch_column
        self.io_properties = io_properties
        self._fits: pa.Schema | None = None  # the last schema that was found to fit

    def read(self, groups: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: rows of JSON lists of files in, rows of the table out."""
        target = to_arrow_schema(self.wide)
        store = Store(self.io_properties)
        for group in groups:
            for payload in group.column(0).to_pylist():
                yield from packed(self._tables(store, FileTask.decode(payload), target))

    def _tables(self, store: "Store", tasks: list[FileTask], target: pa.Schema) -> Iterator[pa.Table]:
        for task, source in store.opened(tasks):
            try:
                yield from self._file(task, source, target)
            except BadFile as e:
                values: dict[str, Any] = {self.batch_column: task.batch_id, ERROR_COLUMN: encode_error(task.uri, e)}
                yield pa.Table.from_pylist([values], schema=target)

    def _file(self, task: FileTask, source: "Bytes", target: pa.Schema) -> Iterator[pa.Table]:
        if task.size == 0:
            raise BadFile("UnreadableFile", "the file is empty (0 bytes), expected Parquet")
        with source.faults(task.uri):
            file = pq.ParquetFile(source.file)
            self._check_schema(file.schema_arrow, target)
            if file.metadata.num_rows <= ROWS_PER_BATCH:
                # No threads: for a file of a few rows they cost more than the reading.
                yield self._table(task, file.read(use_threads=False), target)
                return
            for batch in file.iter_batches(ROWS_PER_BATCH):
                yield self._table(task, pa.Table.from_batches([batch]), target)

    def _check_schema(self, schema: pa.Schema, target: pa.Schema) -> None:
        if self._fits is not None and schema.equals(self._fits):
            return  # the files of a producer mostly look alike
        problem = difference(schema, _data_columns(target), self.batch_column)
        if problem:
            raise BadFile("SchemaMismatch", problem)
        self._fits = schema

    def _table(self, task: FileTask, rows: pa.Table, target: pa.Schema) -> pa.Table:
        if self.batch_column in rows.column_names:
            _check_batch_id(rows.column(self.batch_column), self.batch_column, task.batch_id)
        columns: list[Any] = []
        for field in target:
            if field.name == self.batch_column:
                columns.append(pa.repeat(pa.scalar(task.batch_id, field.type), rows.num_rows))
            elif field.name == ERROR_COLUMN:
                columns.append(pa.nulls(rows.num_rows, field.type))
            else:
                columns.append(self._column(rows.column(field.name), field))
        return pa.Table.from_arrays(columns, schema=target)

    def _column(self, values: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
        if field.name in self.required and values.null_count:
            raise BadFile("SchemaMismatch", f"column {field.name} holds nulls, the table requires values")
        try:
            return values if values.type == field.type else values.cast(field.type, safe=True)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
            raise BadFile(
                "SchemaMismatch",
                f"column {field.name} is {values.type} and does not fit {field.type}: {str(e).splitlines()[0][:200]}",
            ) from e


def _data_columns(target: pa.Schema) -> pa.Schema:
    return pa.schema([f for f in target if f.name != ERROR_COLUMN])


def _check_batch_id(values: pa.ChunkedArray, column: str, batch_id: str) -> None:
    plain = values.cast(pa.string())
    if plain.null_count or not pc.all(pc.equal(plain, batch_id), min_count=0).as_py():
        raise BadFile("BatchIdMismatch", f"column {column} holds values other than the batch's id {batch_id!r}")


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


class Store:
    """The file systems of the buffer, by scheme and bucket, configured as PyIceberg does it."""

    def __init__(self, io_properties: dict[str, str]) -> None:
        self.io_properties = io_properties
        self._known: dict[tuple[str, str], FileSystem] = {}

    def opened(self, tasks: Sequence[FileTask]) -> Iterator[tuple[FileTask, "Bytes"]]:
        """The files in their order, the next few being fetched meanwhile. Raises BufferAway."""
        with ThreadPoolExecutor(PREFETCH, thread_name_prefix="lethe-fetch") as pool:
            remaining = iter(tasks)
            window: list[tuple[FileTask, Future[Bytes]]] = []
            for task in islice(remaining, PREFETCH):
                window.append((task, pool.submit(self._open, task)))
            while window:
                task, future = window.pop(0)
                source = future.result()
                for following in islice(remaining, 1):
                    window.append((following, pool.submit(self._open, following)))
                yield task, source

    def _open(self, task: FileTask) -> "Bytes":
        try:
            files, path = self._locate(task.uri)
            file = files.open_input_file(path)
            if task.size > WHOLE_FILE_BYTES:
                found, source = file.size(), Bytes(Watched(file))
            else:
                content = file.read()
                found, source = len(content), Bytes(pa.BufferReader(content))
        except Exception as e:
            raise BufferAway(task.uri, e) from None
        if found != task.size:
            changed = OSError(f"it has {found} bytes, {task.size} when it was listed; it changed while being read")
            raise BufferAway(task.uri, changed)
        return source

    def _locate(self, uri: str) -> tuple[FileSystem, str]:
        if "://" not in uri:
            return LocalFileSystem(), uri.removeprefix("file:")
        scheme, _, rest = uri.partition("://")
        netloc, _, path = rest.partition("/")
        if scheme == "file":
            return LocalFileSystem(), f"/{path}"
        if (scheme, netloc) not in self._known:
            from pyiceberg.io.pyarrow import PyArrowFileIO

            split = urlsplit(f"{scheme}://{netloc}")
            self._known[scheme, netloc] = PyArrowFileIO(self.io_properties).fs_by_scheme(split.scheme, split.netloc)
        return self._known[scheme, netloc], f"{netloc}/{path}"


class Watched:
    """A file that remembers whether the store failed: pyarrow reports that and a corrupt file alike, as OSError."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.failure: Exception | None = None

    @property
    def closed(self) -> bool:
        return bool(self.file.closed)

    def read(self, size: int = -1) -> bytes:
        try:
            return self._fetch(size)
        except Exception as e:
            self.failure = e
            raise

    def _fetch(self, size: int) -> bytes:
        return bytes(self.file.read(None if size is None or size < 0 else size))

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self.file.seek(offset, whence))

    def tell(self) -> int:
        return int(self.file.tell())

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def write(self, _data: bytes) -> int:
        raise UnsupportedOperation("read only")

    def flush(self) -> None: ...

    def close(self) -> None:
        self.file.close()


class Bytes:
    """A fetched file, or an open large one, and the judgement of what goes wrong while it is decoded."""

    def __init__(self, source: Any) -> None:
        self.watched = source if isinstance(source, Watched) else None
        self.file = pa.PythonFile(source, mode="r") if self.watched else source
        self._uri = ""

    def faults(self, uri: str) -> "Bytes":
        self._uri = uri
        return self

    def __enter__(self) -> "Bytes":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, BadFile | MemoryError | pa.ArrowMemoryError):
            if self.watched and self.watched.failure:
                raise BufferAway(self._uri, self.watched.failure) from None
            first = (str(error).splitlines() or [""])[0]
            raise BadFile("UnreadableFile", f"it is not readable as Parquet ({first[:200]})") from error
