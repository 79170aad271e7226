"""Fetches the bytes of buffered files ahead of their use, and distinguishes store failures from damaged files. I/O.

Runs in Spark's Python workers. If the store fails, it raises BufferAway, so that Spark retries, and then the operator.
"""

import json
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from io import UnsupportedOperation
from typing import Any, Final

import pyarrow as pa

from lethe.ledger.ledger import BufferedObject
from lethe.storage.object_store import DENIED, ObjectStore, StoreError, open_store
from lethe.uri import Backend, backend_of, is_local

TRANSIENT_MARKER: Final = "LETHE-BUFFER-AWAY"
WHOLE_FILE_BYTES: Final = 32 * 1024 * 1024  # files up to this size are fetched in one request
_CAUSES: Final = {
    "crypt": "it is encrypted",
    "out of range": "a value is out of range",
    "overflow": "a value is out of range",
}
FILES_AHEAD: Final = 32  # files that one task fetches in parallel, because latency dominates for small files
BYTES_AHEAD: Final = 64 * 1024 * 1024  # the limit for the bytes of these files, unless one alone is larger


@dataclass(frozen=True)
class FileTask:
    """A file to read, as it was listed."""

    batch_id: str
    uri: str
    size: int  # in bytes
    etag: str = ""  # "": unknown; then only the size shows whether the file has changed

    @staticmethod
    def encode(tasks: Sequence["FileTask"]) -> str:
        return json.dumps([[t.batch_id, t.uri, t.size, t.etag] for t in tasks])

    @staticmethod
    def decode(text: str) -> "list[FileTask]":
        return [FileTask(*t) for t in json.loads(text)]


class BadFile(Exception):
    """The file cannot be used, and reading it again does not change that."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


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

    def opened(self, tasks: Sequence[FileTask]) -> Iterator[tuple[FileTask, "Bytes | Unread"]]:
        """Open the files in their order, and fetch the next ones in parallel. Raises: BufferAway."""
        if all(is_local(t.uri) for t in tasks):  # local files have no latency, so threads cost more than they save
            yield from ((t, self.open(t)) for t in tasks)
            return
        remaining, window, ahead = deque(tasks), deque[tuple[FileTask, Future[Bytes | Unread]]](), 0
        with ThreadPoolExecutor(FILES_AHEAD, thread_name_prefix="lethe-fetch") as pool:
            while remaining or window:
                while (
                    remaining and len(window) < FILES_AHEAD and (not window or ahead + remaining[0].size <= BYTES_AHEAD)
                ):
                    task = remaining.popleft()
                    window.append((task, pool.submit(self.open, task)))
                    ahead += task.size
                task, future = window.popleft()
                ahead -= task.size
                yield task, future.result()

    def open(self, task: FileTask) -> "Bytes | Unread":
        """Open one file, if it is unchanged since the listing. Raises: BufferAway."""
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
        """Read a part of a file with one request. Raises: BufferAway.

        Args:
            start: Offset in bytes.
            size: In bytes.
        Returns: None, if the file is not as it was listed, or the store cannot tell. `open` finds out.
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
            return None if reader is None else (reader.size, reader.etag, Bytes(Watched(reader)))
        content = store.read(task.uri)
        return None if content is None else (len(content.data), content.etag, Bytes(pa.BufferReader(content.data)))

    def _store(self, uri: str) -> ObjectStore:
        backend = backend_of(uri)
        with self._lock:
            if backend not in self._stores:
                self._stores[backend] = open_store(uri, self.io_properties)
            return self._stores[backend]


def _denied(uri: str, error: Exception) -> Unread:
    """The outcome for a file that these credentials may not read. Raises: BufferAway, for any other failure of the store."""
    if isinstance(error, PermissionError) or (isinstance(error, StoreError) and error.code == DENIED):
        return Unread("AccessDenied", "the store does not let this run read it; grant the run's credentials access")
    raise BufferAway(uri, error) from None


def _why(error: Exception) -> str:
    """The cause in fixed words, because the text of a library's error may contain values of the file."""
    text = str(error).lower()
    return next((cause for found, cause in _CAUSES.items() if found in text), type(error).__name__)


class Watched:
    """A file that records a failure of the store. pyarrow raises OSError both for such a failure and for a corrupt file."""

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
    """A fetched file, or an open large one. As a context manager, it converts errors of decoding into BadFile or BufferAway."""

    def __init__(self, source: Any) -> None:
        self.watched = source if isinstance(source, Watched) else None
        self.file = pa.PythonFile(source, mode="r") if self.watched else source
        self._uri = self._format = ""

    def faults(self, uri: str, format_name: str) -> "Bytes":
        """The context manager for decoding the file. `format_name` is for error messages."""
        self._uri, self._format = uri, format_name
        return self

    def __enter__(self) -> "Bytes":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, BadFile | MemoryError | pa.ArrowMemoryError):
            if self.watched and self.watched.failure:
                raise BufferAway(self._uri, self.watched.failure) from None
            raise BadFile("UnreadableFile", f"it is not readable as {self._format} ({_why(error)})") from error
