"""The bytes of buffered files: fetched ahead, and a store's failure told from a file's damage. Runs in Spark's Python
workers.

I/O: fetches files. A store that does not answer raises BufferAway, so that Spark, and then the operator, try again.
"""

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from io import UnsupportedOperation
from itertools import islice
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
from lethe.buffer.batch import file_etag
from lethe.uri import is_local, local_path
from pyarrow.fs import FileSystem, LocalFileSystem

TRANSIENT_MARKER: Final = "LETHE-BUFFER-AWAY"
WHOLE_FILE_BYTES: Final = 32 * 1024 * 1024  # up to here a file is fetched in one request
_CAUSES: Final = {
    "crypt": "it is encrypted",
    "out of range": "a value is out of range",
    "overflow": "a value is out of range",
}
PREFETCH: Final = 8  # files fetched at once by one task: small files are all latency


@dataclass(frozen=True)
class FileTask:
    """A file to read as it was listed; without an ETag, its size alone says whether it is still the same."""

    batch_id: str
    uri: str
    size: int
    etag: str = ""

    @staticmethod
    def encode(tasks: Sequence["FileTask"]) -> str:
        return json.dumps([[t.batch_id, t.uri, t.size, t.etag] for t in tasks])

    @staticmethod
    def decode(text: str) -> "list[FileTask]":
        return [FileTask(*t) for t in json.loads(text)]


class BadFile(Exception):
    """This file cannot become rows of the table, however often it is read."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class Unread(BadFile):
    """This file of a batch cannot be had now, and nothing speaks against the batch: it waits, the others go in."""


class BufferAway(Exception):
    """The store did not give the bytes. The text reaches the driver inside a stack trace: hence the marker."""

    def __init__(self, uri: str, error: BaseException) -> None:
        first = (str(error).splitlines() or [""])[0]
        super().__init__(f"{TRANSIENT_MARKER}: {uri}: {type(error).__name__} {first[:200]}")


class Store:
    """The file systems of the buffer, by scheme and bucket, configured as PyIceberg does it. Of files of more than
    `whole_file_bytes` nothing is fetched before it is read."""

    def __init__(self, io_properties: dict[str, str], whole_file_bytes: int | None = None) -> None:
        self.io_properties = io_properties
        self.whole_file_bytes = WHOLE_FILE_BYTES if whole_file_bytes is None else whole_file_bytes
        self._local = LocalFileSystem()
        self._known: dict[tuple[str, str], FileSystem] = {}

    def opened(self, tasks: Sequence[FileTask]) -> Iterator[tuple[FileTask, "Bytes | Unread"]]:
        """The files in their order, the next few being fetched meanwhile. Raises BufferAway."""
        if all(is_local(t.uri) for t in tasks):  # nothing to wait for: threads cost more than they save
            yield from ((t, self.open(t)) for t in tasks)
            return
        with ThreadPoolExecutor(PREFETCH, thread_name_prefix="lethe-fetch") as pool:
            remaining = iter(tasks)
            window: list[tuple[FileTask, Future[Bytes | Unread]]] = []
            for task in islice(remaining, PREFETCH):
                window.append((task, pool.submit(self.open, task)))
            while window:
                task, future = window.pop(0)
                source = future.result()
                for following in islice(remaining, 1):
                    window.append((following, pool.submit(self.open, following)))
                yield task, source

    def open(self, task: FileTask) -> "Bytes | Unread":
        """One file, if it is what was listed. Raises BufferAway."""
        try:
            files, path = self._locate(task.uri)
            file = files.open_input_file(path)
            etag = _etag(files, path, file)
            if task.size > self.whole_file_bytes:
                found, source = file.size(), Bytes(Watched(file))
            else:
                content = file.read()
                found, source = len(content), Bytes(pa.BufferReader(content))
        except FileNotFoundError:
            return Unread("ObjectGone", "it was listed and is gone; it is looked for again with the next run")
        except Exception as e:
            if isinstance(e, PermissionError) or "ACCESS_DENIED" in str(e):
                return Unread(
                    "AccessDenied", "the store does not let this run read it; grant the run's credentials access"
                )
            raise BufferAway(task.uri, e) from None
        if (found, etag or task.etag) != (task.size, task.etag or etag):
            return Unread(
                "ObjectChanged",
                f"it changed after it was listed ({task.size} bytes then, {found} now); files are written before "
                "_SUCCESS, and not touched any more. It is read again with the next run",
            )
        return source

    def _locate(self, uri: str) -> tuple[FileSystem, str]:
        if is_local(uri):
            return self._local, local_path(uri)
        scheme, _, rest = uri.partition("://")
        netloc, _, path = rest.partition("/")
        if (scheme, netloc) not in self._known:
            from pyiceberg.io.pyarrow import PyArrowFileIO

            split = urlsplit(f"{scheme}://{netloc}")
            self._known[scheme, netloc] = PyArrowFileIO(self.io_properties).fs_by_scheme(split.scheme, split.netloc)
        return self._known[scheme, netloc], f"{netloc}/{path}"


def _etag(files: FileSystem, path: str, file: Any) -> str:
    """As a listing has it; empty where the store does not say."""
    if isinstance(files, LocalFileSystem):
        stat = os.stat(path)
        return file_etag(stat.st_size, stat.st_mtime_ns)
    return str((file.metadata().get("ETag") or b"").decode()).strip('"')


def _why(error: Exception) -> str:
    """In our own words: what a library says may repeat what the file contains."""
    text = str(error).lower()
    return next((said for found, said in _CAUSES.items() if found in text), type(error).__name__)


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
        self._uri = self._format = ""

    def faults(self, uri: str, format_name: str) -> "Bytes":
        """A `with` around the decoding of the file, which is said to be of this format."""
        self._uri, self._format = uri, format_name
        return self

    def __enter__(self) -> "Bytes":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, BadFile | MemoryError | pa.ArrowMemoryError):
            if self.watched and self.watched.failure:
                raise BufferAway(self._uri, self.watched.failure) from None
            raise BadFile("UnreadableFile", f"it is not readable as {self._format} ({_why(error)})") from error
