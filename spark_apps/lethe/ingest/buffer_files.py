"""Reads groups of buffered files as Arrow tables with the table's columns. Runs in Spark's Python workers, without Spark.

It reports the outcome of each file separately. It also returns rows of a batch with an unusable file; the caller drops them.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final, TypeAlias

import pyarrow as pa

from lethe.contract.result import RefusedBatch
from lethe.contract.settings import FileFormat
from lethe.ingest.buffer_store import BadFile, BufferedFiles, Bytes, FileTask, Unread
from lethe.ingest.change_rows import KEYS_AT_MOST, Keyed, encoded, too_many
from lethe.ingest.file_formats import FORMATS, opened
from lethe.ingest.fitting import Fitting, Piece
from lethe.ingest.opened_file import ROWS_PER_BATCH, OpenedFile
from lethe.ingest.schema_fit import Fits, Lacks, Misfit, Rules, compare, known_columns

# The reason for a file that would fit a table with more columns. The message then contains the encoded columns.
COLUMNS_WANTED: Final = "ColumnsWanted"
BYTES_PER_BATCH: Final = 32 * 1024 * 1024


def encode_columns(columns: pa.Schema) -> str:
    return base64.b64encode(columns.serialize().to_pybytes()).decode()


def decode_columns(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


@dataclass(frozen=True, order=True)
class FileError:
    """Why the rows of a file cannot be used."""

    uri: str
    reason: str
    message: str  # for the reason COLUMNS_WANTED the encoded columns
    unread: bool = False  # True: the file could not be read now, and the next run tries again


@dataclass(frozen=True)
class FileOutcome:
    """The outcome of reading a file."""

    rows: int = 0  # returned
    error: FileError | None = None  # not None: no row of the batch may be committed
    keys: tuple[bytes, ...] = field(default=(), repr=False)  # of change data, encoded by `change_rows.encoded`


Tally: TypeAlias = Mapping[tuple[str, str], FileOutcome]  # by batch id and URI


def error_of(task: FileTask, error: BadFile) -> FileError:
    return FileError(task.uri, error.reason, error.message, isinstance(error, Unread))


def refusal_of(batch_id: str, errors: list[FileError]) -> RefusedBatch:
    """The refusal of a batch: names its first unusable file and the number of others. Unread files take precedence."""
    unread = [e for e in errors if e.unread]
    bad = unread or [e for e in errors if e.reason != COLUMNS_WANTED]
    first = min(bad)
    more = f" ({len(bad) - 1} more files of this batch cannot be used)" if len(bad) > 1 else ""
    return RefusedBatch(batch_id=batch_id, reason=first.reason, message=f"{first.uri}: {first.message}{more}")


@dataclass(frozen=True)
class ReadSettings:
    """How the files of batches are read."""

    batch_column: str  # gets the batch id in each row
    io_properties: dict[str, str] = field(repr=False)  # PyIceberg's FileIO properties of the store (`s3.endpoint`…)
    format: FileFormat = FileFormat.PARQUET  # of all files
    add_columns: bool = False  # optional columns may be missing, and files with additional columns are reported as such
    keyed: dict[str, Keyed] = field(default_factory=dict)  # the batches that are change data, by id


class Reader:
    """Reads the files of a task. It is pickled and sent to the workers."""

    def __init__(self, columns: pa.Schema, settings: ReadSettings) -> None:
        """Args:
        columns: Of the table; those that it requires are not nullable.
        """
        self.columns = pa.schema([f.with_nullable(True) for f in columns])
        # The columns that rows get. The others have types that Lethe does not write.
        self.target = known_columns(self.columns)
        self.settings = settings
        self.format = FORMATS[settings.format]
        self.rules = Rules(
            settings.batch_column,
            frozenset(f.name for f in columns if not f.nullable and f.name != settings.batch_column),
            settings.add_columns,
            self.format.typed,
        )
        self._fits: pa.Schema | None = None  # the last file schema that fits

    def compare_columns(self, store: BufferedFiles, task: FileTask) -> FileOutcome:
        """Whether the columns of a file fit, without reading its rows. Raises: BufferAway."""
        try:
            source = store.open(task)
            if isinstance(source, Unread):
                raise source
            with source.faults(task.uri, self.format.name):
                self._opened(task, source)
        except BadFile as e:
            return FileOutcome(error=error_of(task, e))
        return FileOutcome()

    def tables(self, tasks: Sequence[FileTask], outcomes: dict[tuple[str, str], FileOutcome]) -> Iterator[pa.Table]:
        """Read files in their order, as rows of the table. The rows of small files are converted together, because each column of
        each conversion costs several calls.

        Args:
            outcomes: Gets the outcome of each file, by batch id and URI.
        Raises: BufferAway.
        """
        fitting = Fitting(self.settings.batch_column, self.rules.required, self.format.null_is_absent, self.target)
        waiting = Waiting()
        for task, source in BufferedFiles(self.settings.io_properties).opened(tasks):
            outcomes[task.batch_id, task.uri] = FileOutcome()
            try:
                if isinstance(source, Unread):
                    raise source
                for rows in self._rows(task, source, fitting, outcomes):
                    waiting.add(Piece(task, rows))
                    if waiting.is_full:
                        yield from fit(fitting, waiting.taken(), outcomes)
            except BadFile as e:
                outcomes[task.batch_id, task.uri] = replace(outcomes[task.batch_id, task.uri], error=error_of(task, e))
        yield from fit(fitting, waiting.taken(), outcomes)

    def _rows(
        self, task: FileTask, source: Bytes, fitting: Fitting, outcomes: dict[tuple[str, str], FileOutcome]
    ) -> Iterator[pa.Table]:
        """The rows of a file to add to the table. For change data, also record the keys in `outcomes`."""
        keyed = self.settings.keyed.get(task.batch_id)
        if keyed is None:
            yield from self._file(task, source)
            return
        of, count = (task.batch_id, task.uri), 0
        for rows in self._file(task, source):
            added, keys = keyed.parted(rows, fitting)
            if (count := count + keys.num_rows) > KEYS_AT_MOST:
                raise too_many(count)
            outcomes[of] = replace(outcomes[of], keys=(*outcomes[of].keys, encoded(keys)))
            if added.num_rows:
                yield added

    def _file(self, task: FileTask, source: Bytes) -> Iterator[pa.Table]:
        with source.faults(task.uri, self.format.name):
            yield from self._opened(task, source).tables

    def _opened(self, task: FileTask, source: Bytes) -> OpenedFile:
        keyed = self.settings.keyed.get(task.batch_id)
        if task.size == 0:
            raise BadFile("UnreadableFile", f"the file is empty (0 bytes), expected {self.format.name}")
        file = opened(source.file, self.settings.format, self.target if keyed is None else keyed.to_read(self.target))
        self._check_schema(file.schema if keyed is None else keyed.without_op(file.schema))
        return file

    def _check_schema(self, schema: pa.Schema) -> None:
        if self._fits is not None and schema.equals(self._fits):
            return  # a shortcut: most files of a producer have the same schema
        match compare(schema, self.columns, self.rules):
            case Fits():
                self._fits = schema
            case Lacks(columns):
                raise BadFile(COLUMNS_WANTED, encode_columns(columns))
            case Misfit(message):
                raise BadFile("SchemaMismatch", message)


@dataclass
class Waiting:
    """Rows to convert together."""

    pieces: list[Piece] = field(default_factory=list)
    rows: int = 0  # of all pieces
    bytes: int = 0  # of all pieces

    @property
    def is_full(self) -> bool:
        return self.rows >= ROWS_PER_BATCH or self.bytes >= BYTES_PER_BATCH

    def add(self, piece: Piece) -> None:
        self.pieces.append(piece)
        self.rows, self.bytes = self.rows + piece.rows.num_rows, self.bytes + piece.bytes

    def taken(self) -> list[Piece]:
        taken, self.pieces, self.rows, self.bytes = self.pieces, [], 0, 0
        return taken


def fit(fitting: Fitting, pieces: list[Piece], outcomes: dict[tuple[str, str], FileOutcome]) -> list[pa.Table]:
    """Convert rows to the table's columns, all together. If that fails, convert them piece by piece, to find the file with the
    error, and leave out all pieces of its batch."""
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
                outcomes[key] = replace(outcomes[key], error=outcomes[key].error or error_of(piece.task, e))
                bad.add(piece.task.batch_id)
        good = [(p, t) for p, t in by_piece if p.task.batch_id not in bad]
        pieces, tables = [p for p, _ in good], [t for _, t in good]
    for piece in pieces:
        key = piece.task.batch_id, piece.task.uri
        outcomes[key] = replace(outcomes[key], rows=outcomes[key].rows + piece.rows.num_rows)
    return tables
