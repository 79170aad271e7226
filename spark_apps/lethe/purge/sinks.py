"""Where a file without the deleted rows is written: by this process, or with the help of a store that copies ranges. I/O."""

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from pyiceberg.io import FileIO

from lethe.purge.footer import Unreadable
from lethe.storage.s3_composed import BYTES_AT_MOST, ComposedObject, compose
from lethe.storage.s3_uploads import PART_BYTES_AT_LEAST
from lethe.uri import is_s3

_READ_AT_ONCE: Final = 8 * 1024**2


class Sink:
    """A new file that this process writes."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        # In bytes.
        self.size = 0

    @property
    def copied_by_store(self) -> int:
        """Bytes that did not come through this process."""
        return 0

    def write(self, content: bytes) -> None:
        self._stream.write(content)
        self.size += len(content)

    def copy(self, source: Any, start: int, size: int) -> None:
        """Append a range of an open file. Raises: Unreadable, if the file ends within it."""
        for begin in range(start, start + size, _READ_AT_ONCE):
            self.write(read(source, begin, min(_READ_AT_ONCE, start + size - begin)))


class ComposedSink(Sink):
    """A new object into which the store copies ranges of an old one."""

    def __init__(self, composed: ComposedObject, source: Any) -> None:
        """Args:
        source: The old one, as an open file.
        """
        super().__init__(composed)
        self._composed, self._source = composed, source

    @property
    def copied_by_store(self) -> int:
        return self._composed.copied

    def copy(self, source: Any, start: int, size: int) -> None:
        if source is not self._source:
            super().copy(source, start, size)
            return
        self._composed.copy(start, size)
        self.size += size


@contextmanager
def new_file(io: FileIO, properties: Mapping[str, str], to: str, path: str, source: Any, size: int) -> Iterator[Sink]:
    """A new file. It is complete when the block has ended. If the block fails, there may be a file of some of its bytes.

    Args:
        properties: Of `io`.
        to: URI of the new file.
        path: URI of the file that it is made of, which is open as `source` and has `size` bytes.
    Raises: StoreError, and what `io` raises.
    """
    composed = _composed(properties, to, path, source, size)
    if composed is None:
        with io.new_output(to).create(overwrite=True) as stream:
            yield Sink(stream)
    else:
        with composed:
            yield ComposedSink(composed, source)


def read(source: Any, start: int, size: int) -> bytes:
    """A range of an open file. Raises: Unreadable, if the file ends within it."""
    source.seek(start)
    content = bytes(source.read(size))
    if len(content) < size:
        raise Unreadable("it ends within a row group")
    return content


def _composed(properties: Mapping[str, str], to: str, path: str, source: Any, size: int) -> ComposedObject | None:
    large = 2 * PART_BYTES_AT_LEAST <= size <= BYTES_AT_MOST  # no range of a smaller one is a part
    if not large or not is_s3(to) or not is_s3(path):
        return None
    return compose(properties, to, path, size, lambda start, count: read(source, start, count))


def path_of_attempt(path: str) -> str:
    """A path that no other attempt of a task has. Spark may repeat a task whose first attempt goes on, and deletes its file after
    an error."""
    return f"{path.removesuffix('.parquet')}-{uuid.uuid4().hex[:8]}.parquet"
