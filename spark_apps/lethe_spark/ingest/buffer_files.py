"""One group of buffered files as Arrow record batches of the table's columns. Runs in Spark's Python workers, without
Spark.

Rows come of batches of which no file was found to be unusable so far; what became of each file is told beside them.
"""

import base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from lethe_spark.ingest.buffer_store import BadFile, BufferedFiles, Bytes, FileTask, Unread
from lethe_spark.ingest.change_rows import KEYS_AT_MOST, Keyed, encoded, too_many
from lethe_spark.ingest.file_formats import FORMATS, opened
from lethe_spark.ingest.fitting import Fitting, Piece
from lethe_spark.ingest.opened_file import ROWS_PER_BATCH
from lethe_spark.ingest.schema_fit import Fits, Lacks, Misfit, Rules, compare

COLUMNS_WANTED: Final = (
    "ColumnsWanted"  # the reason of a file that would fit a table with more columns, told instead of a message
)
BYTES_PER_BATCH: Final = 32 * 1024 * 1024
HELD_BYTES: Final = 96 * 1024 * 1024


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


@dataclass(frozen=True)
class FileOutcome:
    """What became of a file: `rows` of it went out; nothing of its batch may go in if there is an `error`. `keys` of the rows of
    change data, as `lethe_spark.ingest.change_rows` encodes them."""

    rows: int = 0
    error: FileError | None = None
    keys: tuple[bytes, ...] = field(default=(), repr=False)


Tally: TypeAlias = Mapping[tuple[str, str], FileOutcome]  # by batch id and URI


def error_of(task: FileTask, error: BadFile) -> FileError:
    return FileError(task.uri, error.reason, error.message, isinstance(error, Unread))


class Tell(Protocol):
    """Where a task says what became of its files: a Spark accumulator. What is said twice of a file counts once."""

    def add(self, told: Tally) -> None: ...


class Reader:
    """What a task needs to know; pickled to the workers. `columns` are the table's, all nullable; `keyed` says which batches are
    change data."""

    def __init__(
        self,
        schema: StructType,
        batch_column: str,
        io_properties: dict[str, str],
        tell: Tell,
        format_name: str = "parquet",
        add_columns: bool = False,
        keyed: Mapping[str, Keyed] = MappingProxyType({}),
    ) -> None:
        self.columns = StructType([StructField(f.name, f.dataType, True) for f in schema])
        self.batch_column = batch_column
        self.rules = Rules(
            batch_column,
            frozenset(f.name for f in schema if not f.nullable and f.name != batch_column),
            add_columns,
            FORMATS[format_name].typed,
        )
        self.io_properties = io_properties
        self.tell = tell
        self.format_name = format_name
        self.keyed = dict(keyed)
        self._fits: pa.Schema | None = None  # the last schema that was found to fit

    def read(self, groups: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: rows of JSON lists of files in, rows of the table out. The files of a batch are one after the
        other in each list."""
        target = to_arrow_schema(self.columns)
        store = BufferedFiles(self.io_properties)
        for group in groups:
            for payload in group.column(0).to_pylist():
                told: dict[tuple[str, str], FileOutcome] = {}
                yield from packed(self._tables(store, FileTask.decode(payload), target, told))
                self.tell.add(told)

    def _tables(
        self, store: BufferedFiles, tasks: list[FileTask], target: pa.Schema, told: dict[tuple[str, str], FileOutcome]
    ) -> Iterator[pa.Table]:
        """Rows of small files go through the table's columns together: each column of each costs a handful of calls. Those
        of a batch are held back until all its files here are read, unless it is large."""
        fitting = Fitting(self.batch_column, self.rules.required, FORMATS[self.format_name].null_is_absent, target)
        waiting = Waiting()
        for _, files in groupby(store.opened(tasks), lambda opened_: opened_[0].batch_id):
            if waiting.is_full:
                yield from fit(fitting, waiting.taken(), told)
            waiting.begin()
            for task, source in files:
                told[task.batch_id, task.uri] = FileOutcome()
                try:
                    if isinstance(source, Unread):
                        raise source
                    for rows in self._rows(task, source, fitting, told):
                        waiting.add(Piece(task, rows))
                        if waiting.is_too_much:
                            yield from fit(fitting, waiting.taken(), told)
                except BadFile as e:
                    told[task.batch_id, task.uri] = replace(told[task.batch_id, task.uri], error=error_of(task, e))
                    waiting.drop()
        yield from fit(fitting, waiting.taken(), told)

    def _rows(
        self, task: FileTask, source: Bytes, fitting: Fitting, told: dict[tuple[str, str], FileOutcome]
    ) -> Iterator[pa.Table]:
        """The rows of a file that may become the table's; of change data the keys are told, too."""
        keyed = self.keyed.get(task.batch_id)
        if keyed is None:
            yield from self._file(task, source, fitting.target)
            return
        of, count = (task.batch_id, task.uri), 0
        for rows in self._file(task, source, fitting.target):
            added, keys = keyed.parted(rows, fitting)
            if (count := count + keys.num_rows) > KEYS_AT_MOST:
                raise too_many(count)
            told[of] = replace(told[of], keys=(*told[of].keys, encoded(keys)))
            if added.num_rows:
                yield added

    def _file(self, task: FileTask, source: Bytes, target: pa.Schema) -> Iterator[pa.Table]:
        keyed = self.keyed.get(task.batch_id)
        name = FORMATS[self.format_name].name
        if task.size == 0:
            raise BadFile("UnreadableFile", f"the file is empty (0 bytes), expected {name}")
        with source.faults(task.uri, name):
            file = opened(source.file, self.format_name, target if keyed is None else keyed.to_read(target))
            self._check_schema(file.schema if keyed is None else keyed.without_op(file.schema), target)
            yield from file.tables

    def _check_schema(self, schema: pa.Schema, target: pa.Schema) -> None:
        if self._fits is not None and schema.equals(self._fits):
            return  # the files of a producer mostly look alike
        match compare(schema, target, self.rules):
            case Fits():
                self._fits = schema
            case Lacks(columns):
                raise BadFile(COLUMNS_WANTED, encode_columns(columns))
            case Misfit(message):
                raise BadFile("SchemaMismatch", message)


@dataclass
class Waiting:
    """Rows that are gone through together; those of the batch that is being read come last."""

    pieces: list[Piece] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    _begins: int = 0  # at which piece the batch that is being read does
    _dropped: bool = False

    @property
    def is_full(self) -> bool:
        return self.rows >= ROWS_PER_BATCH or self.bytes >= BYTES_PER_BATCH

    @property
    def is_too_much(self) -> bool:
        """So much that rows go out although their batch is not read to its end."""
        return self.bytes >= HELD_BYTES

    def begin(self) -> None:
        """Another batch."""
        self._begins, self._dropped = len(self.pieces), False

    def add(self, piece: Piece) -> None:
        if not self._dropped:
            self.pieces.append(piece)
            self.rows, self.bytes = self.rows + piece.rows.num_rows, self.bytes + piece.bytes

    def drop(self) -> None:
        """Nothing of the batch that is being read, as far as it is still here."""
        self._dropped = True
        for piece in self.pieces[self._begins :]:
            self.rows, self.bytes = self.rows - piece.rows.num_rows, self.bytes - piece.bytes
        del self.pieces[self._begins :]

    def taken(self) -> list[Piece]:
        taken, self.pieces, self.rows, self.bytes, self._begins = self.pieces, [], 0, 0, 0
        return taken


def fit(fitting: Fitting, pieces: list[Piece], told: dict[tuple[str, str], FileOutcome]) -> list[pa.Table]:
    """The rows in the table's columns, all together, or, when something is wrong with one of them, piece by piece: the error
    is one file's, and keeps all of its batch out."""
    try:
        tables = [fitting.fitted(list(alike)) for _, alike in groupby(pieces, lambda p: p.rows.schema)]
    except BadFile:
        by_piece: list[tuple[Piece, pa.Table]] = []
        bad: set[str] = set()
        for piece in pieces:
            try:
                by_piece.append((piece, fitting.fitted([piece])))
            except BadFile as e:
                key = piece.task.batch_id, piece.task.uri
                told[key] = replace(told[key], error=told[key].error or error_of(piece.task, e))
                bad.add(piece.task.batch_id)
        good = [(p, t) for p, t in by_piece if p.task.batch_id not in bad]
        pieces, tables = [p for p, _ in good], [t for _, t in good]
    for piece in pieces:
        key = piece.task.batch_id, piece.task.uri
        told[key] = replace(told[key], rows=told[key].rows + piece.rows.num_rows)
    return tables


def packed(tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
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
