"""Reads objects that anyone may have written, in decoders: of each object, a document of what it contains. I/O.

Parts of objects are fetched by this process, many at once, and decoded by one decoder after another.
"""

import io
import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final, Protocol

from lethe.base.ahead import ahead
from lethe.decoder.child import ChildLink, RemoteFile
from lethe.decoder.limits import Limits
from lethe.decoder.process import Unit, supervise
from lethe.uri import without_values

log = logging.getLogger(__name__)
OPENED_AT_ONCE: Final = 8
PIECE_BYTES: Final = 64 * 1024


class Open(Protocol):
    """Opens an object. Returns None, if it does not exist or may not be read.

    Raises:
        OSError: The system refused it.
    """

    def __call__(self, path: str, /) -> BinaryIO | None:
        """Open the object for reading, at any position; the caller closes it. It must be seekable.

        Raises:
            OSError: The system refused it. The object then counts as unreadable.
        """
        ...


@dataclass(frozen=True)
class UnreadableObject:
    """An object of which nothing is known."""

    why: str = ""
    """How the object ends decoders; empty: it could not be fetched."""


@dataclass(frozen=True)
class ObjectWork:
    """What a decoder does with objects. Subclasses define `read`."""

    limits: Limits

    @abstractmethod
    def read(self, stream: BinaryIO, path: str) -> Any:
        """What an object contains, as a document of JSON. An error ends the decoder, so bad content must not raise one."""

    def bytes_read(self, size: int) -> int:
        """How many bytes of an object of this size are read at most. This limits the time."""
        return size

    def run(self, link: ChildLink) -> None:
        """Read the objects that the link names, until it is closed."""
        while True:
            document, _ = link.receive()
            for number, size, _, entry in document["units"]:
                link.begin(number, size)
                content = self.read(
                    io.BufferedReader(RemoteFile(link, number, entry["size"]), PIECE_BYTES), entry["path"]
                )
                link.rest()
                link.send({"kind": "result", "settled": [number], "found": content})
            link.send({"kind": "ready"})


def read_objects(work: ObjectWork, paths: Iterable[str], open_object: Open) -> Iterator[tuple[str, Any]]:
    """Read objects.

    Args:
        open_object: Is called by several threads.

    Returns:
        For each path the document of `work`, or `UnreadableObject`.

    Raises:
        NoDecoder: No decoder can be started, or decoders end before they decode anything.
        Exception: What `open_object` raises, unless it is an OSError.
    """
    unreadable: list[tuple[str, Any]] = []

    def units() -> Iterator[Unit]:
        for path, found in ahead(lambda p: _opened(p, open_object), paths, OPENED_AT_ONCE):
            if found is None:
                unreadable.append((path, UnreadableObject()))
            else:
                entry = {"path": path, "size": found.size}
                yield Unit(entry, None, work.bytes_read(found.size), without_values(path), found.part, (path, found))

    def used(
        document: dict[str, Any], _: list[memoryview], units_by_number: dict[int, Unit]
    ) -> Iterator[tuple[str, Any]]:
        path, opened = units_by_number[document["settled"][0]].of
        opened.stream.close()
        yield path, UnreadableObject() if opened.failed else document["found"]

    def refused(unit: Unit, why: str) -> None:
        path, opened = unit.of
        opened.stream.close()
        unreadable.append((path, UnreadableObject(why)))

    yield from supervise(work, units(), used, refused)
    yield from unreadable


@dataclass
class _Opened:
    """An object, of which the first and the last bytes are here."""

    stream: BinaryIO
    size: int
    first: bytes
    last: bytes
    failed: bool = field(default=False)
    """A part could not be fetched, so what was found means nothing."""

    def part(self, offset: int, size: int) -> bytes:
        """A range of the object.

        Raises:
            Exception: Nothing that comes from the storage. Then the object seems to end.
        """
        if offset + size <= len(self.first):
            return self.first[offset : offset + size]
        before = self.size - len(self.last)
        if offset >= before:
            return self.last[offset - before :][:size]
        try:
            self.stream.seek(offset)
            return self.stream.read(size)
        except OSError as e:
            log.info("an object cannot be read: %s", type(e).__name__)
            self.failed = True
            return b""


def _opened(path: str, open_object: Open) -> _Opened | None:
    try:
        stream = open_object(path)
        if stream is None:
            return None
        size = stream.seek(0, io.SEEK_END)
        stream.seek(0)
        first = stream.read(min(size, PIECE_BYTES))
        stream.seek(max(0, size - PIECE_BYTES))
        last = first if size <= PIECE_BYTES else stream.read(PIECE_BYTES)
    except OSError as e:
        log.info("an object cannot be read: %s", type(e).__name__)
        return None
    return _Opened(stream, size, first, last)
