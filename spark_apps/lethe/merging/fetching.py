"""Opens the data files of a bin one after the other, and fetches small ones ahead of their use. I/O."""

from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyiceberg.io import FileIO

from lethe.ingest.buffer_store import BYTES_AHEAD, FILES_AHEAD
from lethe.purge.row_ids import RowIds

# Files up to this size are fetched whole, because latency dominates. Bytes.
_WHOLE: Final = 8 * 1024**2


@dataclass(frozen=True)
class FileToMerge:
    """A data file of a bin."""

    path: str
    bytes: int
    # Number of rows.
    records: int
    # Iceberg's JSON of the file.
    document: str
    # What its rows inherit. None: the table's rows have no ids.
    row_ids: RowIds | None = None


@dataclass(frozen=True)
class OpenFile:
    """A file that is open until the next one is."""

    file: FileToMerge
    stream: Any
    # In bytes, as it is stored.
    size: int


def opened(io: FileIO, files: Sequence[FileToMerge]) -> Generator[OpenFile, None, None]:
    """Open the files in their order. Raises: FileNotFoundError, and what the storage raises."""
    remaining, window, ahead = deque(files), deque[tuple[FileToMerge, Future[bytes] | None]](), 0
    with ThreadPoolExecutor(FILES_AHEAD, thread_name_prefix="lethe-fetch") as pool:
        try:
            while remaining or window:
                while remaining and len(window) < FILES_AHEAD and (not window or ahead < BYTES_AHEAD):
                    file = remaining.popleft()
                    future = pool.submit(_content, io, file.path) if file.bytes <= _WHOLE else None
                    ahead += file.bytes if future is not None else 0
                    window.append((file, future))
                file, future = window.popleft()
                if future is not None:
                    content = future.result()
                    ahead -= file.bytes
                    yield OpenFile(file, pa.BufferReader(content), len(content))
                else:
                    given = io.new_input(file.path)
                    with given.open() as stream:
                        yield OpenFile(file, stream, len(given))
        finally:
            for _, future in window:
                if future is not None:
                    future.cancel()


def _content(io: FileIO, path: str) -> bytes:
    with io.new_input(path).open() as stream:
        return bytes(stream.read())
