"""Fetches the bytes of buffered files ahead of their use, and distinguishes store failures from damaged files. I/O.

Runs in Spark's Python workers. If the store fails, it raises BufferAway, so that Spark retries, and then the operator.
"""

import json
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from lethe.base.ahead import ahead
from lethe.base.objects import BufferedObject
from lethe.decoder.child import Closed
from lethe.storage.object_store import DENIED, ObjectStore, StoreError, open_store
from lethe.uri import Backend, backend_of, is_local

TRANSIENT_MARKER: Final = "LETHE-BUFFER-AWAY"
WHOLE_FILE_BYTES: Final = 32 * 1024 * 1024
"""Files up to this size are fetched in one request."""
_CAUSES: Final = {
    "crypt": "it is encrypted",
    "crc checksum": "a page does not match its checksum: the file is damaged",
    "out of range": "a value is out of range",
    "overflow": "a value is out of range",
}
FILES_AHEAD: Final = 32
"""How many files one task fetches in parallel, because latency dominates for small files."""
BYTES_AHEAD: Final = 64 * 1024 * 1024
"""The most bytes of the files that a task fetches in parallel, unless one alone is larger."""


@dataclass(frozen=True)
class Peek:
    """The part of an open file that is read ahead."""

    bytes: int
    at_end: bool = False
    """False: at its start."""


@dataclass(frozen=True)
class FileTask:
    """A file to read, as it was listed."""

    batch_id: str
    uri: str
    size: int
    """In bytes."""
    etag: str = ""
    """Empty: unknown; then only the size shows whether the file has changed."""
    folders: str = ""
    """The folders that name values of columns (`lethe.ingest.schema_fit.named_folders`)."""

    @staticmethod
    def encode(tasks: Sequence["FileTask"]) -> str:
        """One JSON text for several tasks, as Spark sends it to its workers. `decode` reads it."""
        return json.dumps([astuple(t) for t in tasks])

    @staticmethod
    def decode(text: str) -> "list[FileTask]":
        """The tasks of a text that `encode` made, in their order."""
        return [FileTask(*t) for t in json.loads(text)]


class BadFile(Exception):
    """The file cannot be used, and reading it again does not change that."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class Damaged(Exception):
    """What was read is not a whole file. The text says why, and contains no value."""


class Unread(BadFile):
    """The file cannot be read now. Its batch is not refused: it waits, and the other batches are promoted."""


class BufferAway(Exception):
    """The store failed. The driver sees only the text in a stack trace of Spark, and finds it by TRANSIENT_MARKER."""

    def __init__(self, uri: str, error: BaseException) -> None:
        first = (str(error).splitlines() or [""])[0]
        super().__init__(f"{TRANSIENT_MARKER}: {uri}: {type(error).__name__} {first[:200]}")


class BufferedFiles:
    """Opens files of a buffer. Files larger than `whole_file_bytes` are fetched in ranges while they are read."""

    def __init__(self, io_properties: dict[str, str], whole_file_bytes: int | None = None) -> None:
        self.io_properties = io_properties
        self.whole_file_bytes = WHOLE_FILE_BYTES if whole_file_bytes is None else whole_file_bytes
        self._stores: dict[Backend | None, ObjectStore] = {}
        self._lock = threading.Lock()

    def opened(
        self, tasks: Sequence[FileTask], peek: Peek | None = None
    ) -> Iterator[tuple[FileTask, "Bytes | Unread"]]:
        """Open the files in their order, and fetch the next ones in parallel.

        Args:
            peek: Of files that are not fetched whole, this part is.

        Raises:
            BufferAway: The store failed.
        """
        if all(is_local(t.uri) for t in tasks):  # local files have no latency, so threads cost more than they save
            yield from ((t, self.open(t)) for t in tasks)
            return

        def bytes_of(task: FileTask) -> int:
            return task.size if peek is None or task.size <= self.whole_file_bytes else min(task.size, peek.bytes)

        yield from ahead(
            lambda task: self._peeked(task, peek), tasks, FILES_AHEAD, bytes_of=bytes_of, bytes_at_most=BYTES_AHEAD
        )

    def _peeked(self, task: FileTask, peek: Peek | None) -> "Bytes | Unread":
        source = self.open(task)
        if peek is not None and isinstance(source, Bytes) and source.content is None:
            source.peek(task, peek)
        return source

    def open(self, task: FileTask) -> "Bytes | Unread":
        """Open one file, if it is unchanged since the listing.

        Raises:
            BufferAway: The store failed.
        """
        try:
            source = self._fetched(task)
        except Exception as e:
            return _denied(task.uri, e)
        if source is None:
            return Unread("ObjectGone", "it was deleted after it was listed; the next run looks for it again")
        size, etag, found = source
        if (size, etag or task.etag) != (task.size, task.etag or etag):
            return Unread(
                "ObjectChanged",
                f"it changed after it was listed ({task.size} bytes then, {size} now); write all files before "
                "_SUCCESS, and do not change them afterwards. The next run reads it again",
            )
        return found

    def part(self, task: FileTask, start: int, size: int) -> "bytes | Unread | None":
        """Read a part of a file with one request.

        Raises:
            BufferAway: The store failed.

        Args:
            start: Offset in bytes.
            size: In bytes.

        Returns:
            None, if the file is not as it was listed, or the store cannot tell. `open` finds out.
        """
        try:
            return self._store(task.uri).read_unchanged(BufferedObject(task.uri, task.size, task.etag), start, size)
        except Exception as e:
            return _denied(task.uri, e)

    def _fetched(self, task: FileTask) -> "tuple[int, str, Bytes] | None":
        """The current size and ETag of a file, and its bytes. None: it does not exist."""
        store = self._store(task.uri)
        if task.size > self.whole_file_bytes:
            reader = store.open(task.uri)
            return None if reader is None else (reader.size, reader.etag, Bytes(reader))
        content = store.read(task.uri)
        return None if content is None else (len(content.data), content.etag, Bytes(content.data))

    def _store(self, uri: str) -> ObjectStore:
        backend = backend_of(uri)
        with self._lock:
            if backend not in self._stores:
                self._stores[backend] = open_store(uri, self.io_properties)
            return self._stores[backend]


def _denied(uri: str, error: Exception) -> Unread:
    """The outcome for a file that these credentials may not read.

    Raises:
        BufferAway: For any other failure of the store.
    """
    # A folder is listed like a file if it could not be read.
    if isinstance(error, PermissionError | IsADirectoryError) or (
        isinstance(error, StoreError) and error.code == DENIED
    ):
        return Unread("AccessDenied", "the store does not let this run read it; grant the run's credentials access")
    raise BufferAway(uri, error) from None


def _why(error: Exception) -> str:
    """The cause in fixed words, because the text of a library's error may contain values of the file."""
    if isinstance(error, Damaged):
        return str(error)
    text = str(error).lower()
    if codec := re.search(r"(?:codec|compression type) '?(lzo|lz4_hadoop|[a-z0-9_]+)'? (?:not built|is not|not)", text):
        return f"its compression {codec[1].upper()} is not supported"
    if isinstance(error, NotImplementedError):
        return "it uses a feature that is not supported"
    return next((cause for found, cause in _CAUSES.items() if found in text), "it is damaged or cut off")


class Bytes:
    """A fetched file, or an open large one. As a context manager, it converts errors of decoding into BadFile."""

    def __init__(self, source: Any) -> None:
        """Create `Bytes`.

        Args:
            source: The bytes of a fetched file, or an open file.
        """
        self.content: bytes | memoryview | None = source if isinstance(source, bytes | memoryview) else None
        self._source = source
        self._format = ""
        self._ahead = (0, b"")  # a part that was read ahead: its offset and its bytes

    @cached_property
    def file(self) -> Any:
        """For Arrow's readers."""
        if self.content is not None:
            return pa.BufferReader(pa.py_buffer(self.content))
        return pa.PythonFile(self._source, mode="r")

    def range(self, uri: str, offset: int, size: int) -> bytes:
        """Read a range of an open file, for a decoder, which cannot tell a failure of the store from a damaged file.

        Returns:
            As many bytes, or fewer, but at least one before the end.

        Raises:
            BufferAway: The store failed.
        """
        start, ahead = self._ahead
        if start <= offset < start + len(ahead):
            return ahead[offset - start : offset - start + size]
        try:
            self._source.seek(offset)
            return bytes(self._source.read(size))
        except Exception as e:
            raise BufferAway(uri, e) from None

    def peek(self, task: FileTask, peek: Peek) -> None:
        """Read a part of an open file ahead.

        Raises:
            BufferAway: The store failed.
        """
        size = min(task.size, peek.bytes)
        start = task.size - size if peek.at_end else 0
        self._ahead = start, self.range(task.uri, start, size)

    def faults(self, format_name: str) -> "Bytes":
        """The context manager for decoding the file. `format_name` is for error messages."""
        self._format = format_name
        return self

    def __enter__(self) -> "Bytes":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, BadFile | MemoryError | Closed):
            raise BadFile("UnreadableFile", f"it is not readable as {self._format} ({_why(error)})") from error
