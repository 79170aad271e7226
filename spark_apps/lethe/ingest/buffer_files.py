"""Reads groups of buffered files as Arrow tables with the table's columns. Runs in Spark's Python workers, without Spark. I/O.

The outcome of each file is reported separately. Rows of a batch with an unusable file are returned, too; the caller drops them.
The costs of a file are checked while it is decoded, in a decoder, which also has limits of memory and time: these checks refuse a
file earlier, and say why.
"""

import base64
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate, groupby
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lethe.base.errors import TransientError
from lethe.contract.result import RefusedBatch
from lethe.contract.settings import RFC_4180, CsvDialect, FileFormat
from lethe.decoder.child import SEVERAL, ChildLink, RemoteFile
from lethe.decoder.limits import TOO_COSTLY, Limits
from lethe.decoder.process import NoDecoder, OnWait, Unit, limits_here, supervise
from lethe.iceberg.column_path import ColumnName
from lethe.ingest.buffer_store import TRANSIENT_MARKER, BadFile, BufferedFiles, Bytes, FileTask, Peek, Unread
from lethe.ingest.change_rows import KEYS_AT_MOST, Keyed, encoded, too_many
from lethe.ingest.checks import NO_CHECKS, BatchChecks, FailedChecks, FailedRows, KeptKeys, Segment, too_many_keys
from lethe.ingest.checks import TOO_COSTLY as CHECK_TOO_COSTLY
from lethe.ingest.file_formats import FORMATS, joined, opened
from lethe.ingest.schema_fit import (
    Fits,
    Fitting,
    Lacks,
    Misfit,
    Piece,
    Rules,
    compare,
    known_columns,
    values_of,
    with_values,
)
from lethe.ingest.text_blocks import BLOCK_BYTES, OpenedFile

COLUMNS_WANTED: Final = "ColumnsWanted"
"""The reason for a file that would fit a table with more columns. The message then contains the encoded columns."""
BYTES_PER_BATCH: Final = 32 * 1024 * 1024
ROWS_TOGETHER: Final = 16_384
"""The rows of small files that are converted together. The processor's caches do not hold more of them."""
RANGE_BYTES: Final = 256 * 1024
"""Of files of which only the columns are compared, larger ones are read in ranges, of so many bytes at least."""
PIECE_BYTES: Final = 64 * 1024
JOINED_BYTES: Final = 256 * 1024
"""Files up to this size are read together."""
_PEEKS: Final[Mapping[FileFormat, Peek]] = {
    FileFormat.PARQUET: Peek(RANGE_BYTES, at_end=True),
    FileFormat.ORC: Peek(RANGE_BYTES, at_end=True),
    FileFormat.AVRO: Peek(RANGE_BYTES),
    FileFormat.JSON: Peek(BLOCK_BYTES),
    FileFormat.CSV: Peek(BLOCK_BYTES),
}
"""Where the columns of such a file are."""


def check_announced(file: OpenedFile, size: int, limits: Limits) -> None:
    """Check what the footer or the header of a file says.

    Raises:
        BadFile: The file cannot be used, and reading it again does not change that.

    Args:
        size: Of the file, in bytes.
    """
    check_columns(len(file.schema), limits)
    Spent(size, limits).add(file.rows or 0, file.expanded or 0)


def check_columns(count: int, limits: Limits) -> None:
    """Refuse a file with too many columns.

    Raises:
        BadFile: A file has too many columns.
    """
    if count > limits.columns:
        raise BadFile(TOO_COSTLY, f"it has {count} columns, expected at most {limits.columns}")


@dataclass
class Spent:
    """What was decoded of a file."""

    size: int
    """Of the file, in bytes."""
    limits: Limits
    rows: int = 0
    bytes: int = 0

    def add(self, rows: int, expanded: int) -> None:
        """Count rows and expanded bytes of a file.

        Raises:
            BadFile: It is too much.
        """
        self.rows, self.bytes = self.rows + rows, self.bytes + expanded
        if self.rows > self.limits.rows_of(self.size):
            raise BadFile(
                TOO_COSTLY,
                f"it has at least {self.rows} rows, expected at most {self.limits.rows_of(self.size)} in a file of "
                f"{self.size} bytes. Write several files",
            )
        if self.bytes > self.limits.expanded_of(self.size):
            raise BadFile(
                TOO_COSTLY,
                f"it expands to at least {self.bytes} bytes, expected at most {self.limits.expanded_of(self.size)} of a "
                f"file of {self.size} bytes. Write several files",
            )


def reading_failure(error: BaseException) -> TransientError:
    """The error for a failure to read files, here or in Spark's workers, as far as its text shows the cause."""
    text = str(error)
    if TRANSIENT_MARKER in text:
        what = text.split(TRANSIENT_MARKER, 1)[1].splitlines()[0].strip(" :'\"")
        return TransientError(
            "BufferAway", f"a file of the buffer could not be read: {what[:300]}. Nothing was changed."
        )
    if isinstance(error, NoDecoder):
        return TransientError("ReadingFailed", f"{error}. Nothing was changed.")
    return TransientError(
        "ReadingFailed", f"reading the buffered files failed in Spark ({type(error).__name__}); see the driver's log."
    )


def check_some_were_read(unread: Sequence[RefusedBatch], batches: int) -> None:
    """Require that not all batches are unread because the store is away.

    Raises:
        TransientError: Every batch of the run has a file that could not be read.

    Args:
        batches: The number of batches of the run.
    """
    if unread and len(unread) == batches:
        raise TransientError(unread[0].reason, f"{unread[0].message}. Nothing was changed.")


def why_unread(batch: RefusedBatch) -> str:
    """Why a batch waits, for the message of a run that continued without it."""
    return f"could not be read ({batch.verdict})"


def encode_columns(columns: pa.Schema) -> str:
    """Columns with their types as ASCII text, for the message of a FileError. `decode_columns` reads it."""
    return base64.b64encode(columns.serialize().to_pybytes()).decode()


def decode_columns(text: str) -> pa.Schema:
    """Read the text that `encode_columns` makes."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


@dataclass(frozen=True, order=True)
class FileError:
    """Why the rows of a file cannot be used."""

    uri: str
    reason: str
    message: str
    """For the reason COLUMNS_WANTED the encoded columns."""
    unread: bool = False
    """True: the file could not be read now, and the next run tries again."""


@dataclass(frozen=True)
class FileOutcome:
    """The outcome of reading a file."""

    rows: int = 0
    """Returned."""
    error: FileError | None = None
    """Why no row of the batch may be committed; None: there is no reason."""
    keys: tuple[bytes, ...] = field(default=(), repr=False)
    """Of change data, encoded by `change_rows.encoded`."""
    failed: FailedChecks = field(default_factory=dict)
    """The rows that fail checks. Keys that another file of the batch has, too, count in the later one."""


Tally: TypeAlias = Mapping[tuple[str, str], FileOutcome]
"""Outcomes of files, by batch id and URI."""


def error_of(task: FileTask, error: BadFile) -> FileError:
    """The error of a file. If it is `Unread`, the file could not be read now, and the next run tries it again."""
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

    batch_column: str
    """Gets the batch id in each row."""
    io_properties: dict[str, str] = field(repr=False)
    """PyIceberg's FileIO properties of the store (`s3.endpoint`…)."""
    format: FileFormat = FileFormat.PARQUET
    """Of all files."""
    add_columns: bool = False
    """Optional columns may be missing, and files with additional columns are reported as such."""
    keyed: dict[str, Keyed] = field(default_factory=dict)
    """The batches that are change data, by id."""
    csv: CsvDialect = RFC_4180
    """How CSV files are written."""
    path_columns: tuple[tuple[ColumnName, int], ...] = ()
    """Columns whose values become names of folders, each with the maximum length of its part of the name, in bytes."""
    checks: BatchChecks = NO_CHECKS
    """What must hold for the rows. Only the outcomes of files say what does not."""


class Reader:
    """Reads the files of a task. It is pickled and sent to the workers, and from there, without credentials, to decoders."""

    def __init__(self, columns: pa.Schema, settings: ReadSettings) -> None:
        """Create `Reader`.

        Args:
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

    @cached_property
    def fitting(self) -> Fitting:
        """How rows of files are converted."""
        return Fitting(
            self.settings.batch_column,
            self.rules.required,
            self.format.null_is_absent,
            self.target,
            self.format.finite,
            self.settings.path_columns,
        )

    def without_credentials(self) -> "Reader":
        """A copy without FileIO properties, to be sent to a decoder, which gets bytes and opens nothing."""
        reader = copy(self)
        reader.settings = replace(self.settings, io_properties={})
        return reader

    def tables(
        self,
        tasks: Sequence[FileTask],
        outcomes: dict[tuple[str, str], FileOutcome],
        on_file: Callable[[], object] = lambda: None,
        rows: bool = True,
        on_wait: OnWait | None = None,
    ) -> Iterator[pa.Table]:
        """Read files in their order, as rows of the table. A decoder reads them (`lethe.decoder`).

        Args:
            outcomes: Gets the outcome of each file, by batch id and URI.
            on_file: Called when the outcome of a file is known.
            rows: False: read them, and return none of them.
            on_wait: Called often while a decoder works, with its processor time so far, in seconds.

        Raises:
            BufferAway: The store failed.
            NoDecoder: No decoder can be started, or decoders end before they decode anything.
            Exception: What `on_wait` raises.
        """
        yield from _Reading(self, outcomes, on_file, rows, on_wait=on_wait).tables(tasks)

    def compare_columns(
        self,
        tasks: Sequence[FileTask],
        outcomes: dict[tuple[str, str], FileOutcome],
        on_file: Callable[[], object] = lambda: None,
        on_wait: OnWait | None = None,
    ) -> None:
        """Whether the columns of files fit, without reading their rows.

        Args:
            outcomes: Gets the outcome of each file, by batch id and URI.
            on_file: Called when the outcome of a file is known.
            on_wait: Called often while a decoder works, with its processor time so far, in seconds.

        Raises:
            BufferAway: The store failed.
            NoDecoder: No decoder can be started, or decoders end before they decode anything.
            Exception: What `on_wait` raises.
        """
        for _ in _Reading(self, outcomes, on_file, rows=False, columns_only=True, on_wait=on_wait).tables(tasks):
            pass

    # --- in a decoder ---

    def rows(self, task: FileTask, source: Bytes, limits: Limits, keys: list[bytes]) -> Iterator[pa.Table]:
        """The rows of a file to add to the table, in pieces.

        Args:
            keys: Gets those of change data, encoded.

        Raises:
            BadFile: The file cannot be used, and reading it again does not change that.
        """
        keyed, count = self.settings.keyed.get(task.batch_id), 0
        spent = Spent(task.size, limits)
        with source.faults(self.format.name):
            for rows in self.opened(task, source, limits).tables:
                spent.add(rows.num_rows, rows.get_total_buffer_size())
                if keyed is None:
                    yield rows
                    continue
                added, of_rows = keyed.parted(rows, self.fitting)
                if (count := count + of_rows.num_rows) > KEYS_AT_MOST:
                    raise too_many(count)
                keys.append(encoded(of_rows))
                if added.num_rows:
                    yield added

    def rows_of_all(self, files: Sequence["SentFile"], limits: Limits) -> list[pa.Table] | None:
        """The rows of small files that are read together, by file. None: they have to be read one by one."""
        least = min(f.task.size for f in files)
        try:
            contents = [bytes(f.source.content or b"") for f in files]
            found = joined(contents, self.settings.format, self.target, self.settings.csv, limits.nesting)
            if found is None:
                return None
            check_columns(len(found.rows.schema), limits)
            self._check_schema(found.rows.schema)
            size = max(found.rows.get_total_buffer_size(), sum(map(len, contents)))
            Spent(least, limits).add(found.rows.num_rows, size)
        except MemoryError:
            raise
        except Exception:  # reading them one by one finds the file, and says what is wrong with it
            return None
        return [found.rows.slice(end - n, n) for n, end in zip(found.counts, accumulate(found.counts), strict=True)]

    def opened(self, task: FileTask, source: Bytes, limits: Limits) -> OpenedFile:
        """A file whose columns fit.

        Raises:
            BadFile: Errors of the format's reader.
        """
        keyed = self.settings.keyed.get(task.batch_id)
        if task.size == 0:
            raise BadFile("UnreadableFile", f"the file is empty (0 bytes), expected {self.format.name}")
        spent = Spent(task.size, limits)
        file = opened(
            source.file,
            self.settings.format,
            self.target if keyed is None else keyed.to_read(self.target),
            self.settings.csv,
            self.settings.batch_column,
            lambda size: spent.add(0, size),
            limits.nesting,
        )
        check_announced(file, task.size, limits)
        if task.folders:
            values = values_of(task.folders, self.target, self.settings.batch_column, task.batch_id)
            file = with_values(file, values, self.target, self.format.null_is_absent)
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


class _Reading:
    """Reads files with decoders."""

    def __init__(
        self,
        reader: Reader,
        outcomes: dict[tuple[str, str], FileOutcome],
        on_file: Callable[[], object],
        rows: bool,
        columns_only: bool = False,
        on_wait: OnWait | None = None,
    ) -> None:
        self._reader, self._outcomes, self._on_file, self._on_wait = reader, outcomes, on_file, on_wait
        self._columns_only = columns_only
        self._work = FileWork(reader.without_credentials(), limits_here(), rows, columns_only)
        self._costly: set[str] = set()  # batches with a file that has ended a decoder
        self._left: Counter[str] = Counter()  # files without an outcome, by batch
        self._keys = KeptKeys(reader.settings.checks)  # of these batches

    def tables(self, tasks: Sequence[FileTask]) -> Iterator[pa.Table]:
        self._left.update(t.batch_id for t in tasks)
        yield from supervise(self._work, self._units(tasks), self._used, self._refused, on_wait=self._on_wait)
        self._compare_keys()
        for batch_id, uri in [key for key in self._outcomes if key[0] in self._keys.too_large]:
            outcome = self._outcomes[batch_id, uri]
            error = FileError(uri, CHECK_TOO_COSTLY, too_many_keys(self._reader.settings.checks.specs))
            self._outcomes[batch_id, uri] = replace(outcome, error=outcome.error or error)

    def _units(self, tasks: Sequence[FileTask]) -> Iterator[Unit]:
        store = BufferedFiles(self._reader.settings.io_properties, RANGE_BYTES if self._columns_only else None)
        for task, source in store.opened(tasks, _PEEKS[self._reader.settings.format] if self._columns_only else None):
            if isinstance(source, Unread):
                self._end(task, FileOutcome(error=error_of(task, source)))
            elif task.batch_id in self._costly:
                self._end(task, FileOutcome())  # the batch is refused, whatever is in this file
            else:
                entry = {"batch": task.batch_id, "uri": task.uri, "folders": task.folders, "skip": 0}
                yield Unit(entry, source.content, task.size, task.uri, partial(source.range, task.uri), Progress(task))

    def _end(self, task: FileTask, outcome: FileOutcome) -> None:
        self._outcomes[task.batch_id, task.uri] = outcome
        self._left[task.batch_id] -= 1
        if not self._left[task.batch_id] and self._keys.end(task.batch_id):
            self._compare_keys()
        self._on_file()

    def _compare_keys(self) -> None:
        """Compare the keys of the batches whose files are all read."""
        for segment, check, rows in self._keys.compare():
            key = segment.batch_id, segment.uri
            outcome = self._outcomes[key]
            before = outcome.failed.get(check)
            failed = {**outcome.failed, check: before.plus(rows) if before is not None else rows}
            self._outcomes[key] = replace(outcome, failed=failed)

    def _used(self, document: dict[str, Any], contents: list[memoryview], units: dict[int, Unit]) -> Iterator[pa.Table]:
        """Use a result.

        Returns:
            Its rows.
        """
        tables = [decoded_rows(content) for content in contents[: document["tables"]]]
        if self._reader.settings.checks.of_keys and tables:
            parts = [(units[number].of, count) for number, _, count in document["rows"]]
            segments = [Segment(of.task.batch_id, of.task.uri, of.rows, count) for of, count in parts]
            self._keys.add(segments, pa.concat_tables(tables))
        for number, passed, rows in document["rows"]:
            unit = units[number]
            unit.of.rows += rows
            unit.document["skip"] += passed
        for number, check, count, first in document["failed"]:
            units[number].of.add_failed(check, FailedRows(count, tuple(first)))
        keys = iter(contents[document["tables"] :])
        for number, error, of_file in document["outcomes"]:
            of = units[number].of
            of_task = tuple(bytes(next(keys)) for _ in range(of_file))
            found = None if error is None else FileError(of.task.uri, *error)
            self._end(of.task, FileOutcome(of.rows, found, of_task, of.failed))
        if self._work.send_rows:
            yield from tables

    def _refused(self, unit: Unit, why: str) -> None:
        of = unit.of
        self._costly.add(of.task.batch_id)
        self._end(of.task, FileOutcome(of.rows, FileError(of.task.uri, TOO_COSTLY, why)))


@dataclass
class Progress:
    """What decoders have sent of a file."""

    task: FileTask
    rows: int = 0
    failed: dict[int, FailedRows] = field(default_factory=dict)

    def add_failed(self, check: int, rows: FailedRows) -> None:
        """Count rows that fail a check, and come after those that were counted before."""
        self.failed[check] = self.failed[check].plus(rows) if check in self.failed else rows


@dataclass(frozen=True)
class SentFile:
    """A file in a decoder."""

    number: int
    """Of the unit."""
    task: FileTask
    source: Bytes
    skip: int
    """The rows that an earlier decoder has sent."""


@dataclass(frozen=True)
class FileWork:
    """What a decoder does with files."""

    reader: Reader
    limits: Limits
    send_rows: bool
    columns_only: bool

    @property
    def module(self) -> str:
        """What the server imports; "": this module."""
        return self.reader.settings.checks.module

    def run(self, link: ChildLink) -> None:
        """Decode the files of each message and send their rows and outcomes, until the parent closes the link.

        Raises:
            Closed: The parent has closed the link, or has ended.
        """
        decoding = _Decoding(self, link)
        while True:
            document, contents = link.receive()
            of_units = iter(contents)
            files: list[SentFile] = []
            for number, size, is_whole, entry in document["units"]:
                task = FileTask(entry["batch"], entry["uri"], size, folders=entry["folders"])
                source = next(of_units) if is_whole else io.BufferedReader(RemoteFile(link, number, size), PIECE_BYTES)
                files.append(SentFile(number, task, Bytes(source), entry["skip"]))
            decoding.decode_all(files)
            if document["flush"]:
                decoding.flush()
            decoding.send_outcomes()
            link.send({"kind": "ready"})


Failed: TypeAlias = tuple[int, int, int, tuple[int, ...]]
"""As a decoder sends it: the numbers of a unit and of a check, how many rows fail, and the first of them."""


class _Decoding:
    """Files that one decoder decodes.

    The rows of small files are converted together, because each column of each conversion costs several calls.
    """

    def __init__(self, work: FileWork, link: ChildLink) -> None:
        self._reader, self._work, self._link = work.reader, work, link
        self._waiting = Waiting()
        self._outcomes: dict[tuple[str, str], FileOutcome] = {}  # without a result yet
        self._numbers: dict[tuple[str, str], int] = {}
        self._ended: list[tuple[str, str]] = []  # of these
        self._bytes = 0  # of the files whose rows wait
        # Until files could not be read together: the next ones probably cannot either.
        self._joins = not (work.columns_only or work.reader.format.typed)

    def decode_all(self, files: Sequence[SentFile]) -> None:
        """Decode files into pieces of rows."""
        for is_joined, alike in groupby(files, self._may_be_joined):
            group = list(alike)
            if not (is_joined and self._decode_together(group)):
                for file in group:
                    self._decode(file)

    def _may_be_joined(self, file: SentFile) -> bool:
        task, whole = file.task, file.source.content is not None
        return whole and 0 < task.size <= JOINED_BYTES and not (file.skip or task.folders or self._keyed(task))

    def _keyed(self, task: FileTask) -> bool:
        """Whether the file is of change data, of which only some rows are added."""
        return task.batch_id in self._reader.settings.keyed

    def _decode_together(self, files: Sequence[SentFile]) -> bool:
        """Decode small files together.

        Returns:
            False, if they have to be decoded one by one.
        """
        if not self._joins or len(files) == 1:
            return False
        size = sum(f.task.size for f in files)
        self._link.begin(SEVERAL, size)
        tables = self._reader.rows_of_all(files, self._work.limits)
        self._link.rest()
        self._joins = tables is not None
        if tables is None:
            return False
        share = tables[0].get_total_buffer_size() // len(tables)  # they have the same buffers
        for file, rows in zip(files, tables, strict=True):
            key = file.task.batch_id, file.task.uri
            self._numbers[key], self._outcomes[key] = file.number, FileOutcome()
            self._waiting.add(Piece(file.task, rows), share)
            self._ended.append(key)
        self._bytes += size
        if self._waiting.is_full or self._bytes >= BYTES_PER_BATCH:
            self.flush()
        return True

    def _decode(self, file: SentFile) -> None:
        """Decode one file into pieces of rows."""
        number, task, source, skip = file.number, file.task, file.source, file.skip
        key = task.batch_id, task.uri
        self._numbers[key], self._outcomes[key] = number, FileOutcome()
        self._bytes += task.size if source.content is not None else 0
        keys: list[bytes] = []
        decoded, has_all = 0, not self._keyed(task)
        self._link.begin(number, min(task.size, BLOCK_BYTES) if self._work.columns_only else task.size)
        try:
            if self._work.columns_only:
                with source.faults(self._reader.format.name):
                    self._reader.opened(task, source, self._work.limits)
            else:
                for rows in self._reader.rows(task, source, self._work.limits, keys):
                    passed = min(skip, rows.num_rows)
                    skip -= passed
                    if passed < rows.num_rows or not rows.num_rows:
                        first_row = decoded + passed if has_all else None
                        piece = Piece(task, rows.slice(passed) if passed else rows, first_row)
                        self._waiting.add(piece, rows.get_total_buffer_size())
                    decoded += rows.num_rows
                    self._link.advance(decoded)
                    if self._waiting.is_full:
                        self._send_waiting()
                        self._link.mark(number)
        except BadFile as e:
            outcome = self._outcomes[key]
            self._outcomes[key] = replace(outcome, error=outcome.error or error_of(task, e))
        if keys:
            self._outcomes[key] = replace(self._outcomes[key], keys=tuple(keys))
        self._ended.append(key)
        if self._bytes >= BYTES_PER_BATCH:
            self.flush()
        self._link.rest()

    def flush(self) -> None:
        """Convert the rows that wait, and send them."""
        if self._waiting.pieces:
            tasks = {p.task.uri: p.task for p in self._waiting.pieces}
            self._link.begin(SEVERAL, sum(t.size for t in tasks.values()))
            self._send_waiting()
            self._link.rest()
        self._bytes = 0
        self.send_outcomes()

    def _send_waiting(self) -> None:
        pieces = self._waiting.taken()
        passed: dict[tuple[str, str], int] = {}
        for piece in pieces:
            key = piece.task.batch_id, piece.task.uri
            passed[key] = passed.get(key, 0) + piece.rows.num_rows
        before = {key: self._outcomes[key].rows for key in passed}
        self._link.mark(self._numbers[next(iter(passed))] if len(passed) == 1 else SEVERAL)
        fitted = fit(self._reader.fitting, pieces, self._outcomes)
        rows = [(self._numbers[k], count, self._outcomes[k].rows - before[k]) for k, count in passed.items()]
        self._send(rows, [encoded_rows(t) for t in self._to_send(fitted)], list(self._failing(fitted)))

    def _to_send(self, fitted: Iterable[tuple[Sequence[Piece], pa.Table]]) -> Iterator[pa.Table]:
        """The rows, or only the columns that the parent compares."""
        columns = self._reader.settings.checks.key_columns
        for _, table in fitted:
            if self._work.send_rows:
                yield table
            elif columns:
                yield table.select(columns)

    def _failing(self, fitted: Iterable[tuple[Sequence[Piece], pa.Table]]) -> Iterator[Failed]:
        """The rows that fail a check: the number of the unit and of the check, how many, and the first rows of the file."""
        for pieces, table in fitted:
            starts = np.cumsum([0, *(p.rows.num_rows for p in pieces)])
            for check, rows in self._reader.settings.checks.failing(table):
                for piece, start, end in zip(pieces, starts[:-1], starts[1:], strict=True):
                    here = rows[(rows >= start) & (rows < end)]
                    if len(here):
                        failed = FailedRows.of(here - start + (piece.first_row or 0))
                        number = self._numbers[piece.task.batch_id, piece.task.uri]
                        yield number, check, failed.count, failed.first

    def send_outcomes(self) -> None:
        """Send the outcomes of files that have no rows among those that wait."""
        if self._ended and not self._waiting.pieces:
            self._send([], [], [])

    def _send(self, rows: list[tuple[int, int, int]], tables: list[Any], failed: list[Failed]) -> None:
        outcomes: list[tuple[int, tuple[str, str, bool] | None, int]] = []
        keys: list[bytes] = []
        for key in self._ended:
            outcome, number = self._outcomes.pop(key), self._numbers.pop(key)
            e = outcome.error
            outcomes.append((number, None if e is None else (e.reason, e.message, e.unread), len(outcome.keys)))
            keys += outcome.keys
        self._ended = []
        document = {
            "kind": "result",
            "rows": rows,
            "failed": failed,
            "outcomes": outcomes,
            "tables": len(tables),
            "settled": [o[0] for o in outcomes],
        }
        self._link.send(document, [*tables, *keys])


def warm_up() -> None:
    """Decode a small file, so that decoders that are forked later find Arrow initialised, which takes as long as 30 files.

    It starts no thread. Reading text would.
    """
    columns = pa.schema(
        [("n", pa.int64()), ("text", pa.string()), ("at", pa.timestamp("us", "UTC")), ("id", pa.string())]
    )
    written = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([{"n": 1, "text": "a", "at": 0}], columns.remove(3)), written)
    content = written.getvalue().to_pybytes()
    reader, task = Reader(columns, ReadSettings("id", {})), FileTask("", "", len(content))
    pieces = [Piece(task, rows) for rows in reader.rows(task, Bytes(content), Limits(), [])]
    for _, table in fit(reader.fitting, pieces, {("", ""): FileOutcome()}):
        encoded_rows(table)


def encoded_rows(table: pa.Table) -> memoryview:
    """Rows as a decoder sends them: a stream of Arrow's IPC format."""
    whole = table.combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, whole.schema) as writer:
        writer.write_table(whole)
    return memoryview(sink.getvalue())


def decoded_rows(content: memoryview) -> pa.Table:
    """Rows that a decoder has sent."""
    table = pa.ipc.open_stream(pa.py_buffer(content)).read_all()
    table.validate()
    return table


@dataclass
class Waiting:
    """Rows to convert together."""

    pieces: list[Piece] = field(default_factory=list)
    rows: int = 0
    """Of all pieces."""
    bytes: int = 0
    """Of all pieces."""

    @property
    def is_full(self) -> bool:
        """Whether the rows or their bytes in memory reach the limit, so that they must be converted now."""
        return self.rows >= ROWS_TOGETHER or self.bytes >= BYTES_PER_BATCH

    def add(self, piece: Piece, size: int) -> None:
        """Keep rows.

        Args:
            size: In memory, in bytes. `nbytes` would read every buffer, which takes as long as decoding a column.
        """
        self.pieces.append(piece)
        self.rows, self.bytes = self.rows + piece.rows.num_rows, self.bytes + size

    def taken(self) -> list[Piece]:
        """Return all pieces in the order of `add`, and wait for new ones from then on."""
        taken, self.pieces, self.rows, self.bytes = self.pieces, [], 0, 0
        return taken


def fit(
    fitting: Fitting, pieces: list[Piece], outcomes: dict[tuple[str, str], FileOutcome]
) -> list[tuple[list[Piece], pa.Table]]:
    """Convert rows to the table's columns, all together.

    If that fails, convert them piece by piece, to find the file with the error, and leave out all pieces of its batch.

    Returns:
        Pieces and their rows, in the order of the pieces.
    """
    try:
        alike = [list(some) for _, some in groupby(pieces, lambda p: p.rows.schema)]
        fitted = [(some, fitting.fitted(some)) for some in alike]
    except MemoryError:
        raise
    except Exception:
        by_piece: list[tuple[Piece, pa.Table]] = []
        bad: set[str] = set()
        for piece in pieces:
            try:
                by_piece.append((piece, fitting.fitted([piece])))
            except MemoryError:
                raise
            except Exception as e:
                bad_file = e if isinstance(e, BadFile) else unfitting(e)
                key = piece.task.batch_id, piece.task.uri
                outcomes[key] = replace(outcomes[key], error=outcomes[key].error or error_of(piece.task, bad_file))
                bad.add(piece.task.batch_id)
        fitted = [([p], t) for p, t in by_piece if p.task.batch_id not in bad]
    for piece in (p for some, _ in fitted for p in some):
        key = piece.task.batch_id, piece.task.uri
        outcomes[key] = replace(outcomes[key], rows=outcomes[key].rows + piece.rows.num_rows)
    return fitted


def unfitting(error: Exception) -> BadFile:
    """Why rows cannot be converted: something that no format or type was expected to do."""
    return BadFile("UnreadableFile", f"its values cannot be read ({type(error).__name__})")
