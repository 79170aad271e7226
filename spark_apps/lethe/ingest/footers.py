"""Reads the footers of Parquet files to register, in Spark's Python workers or in the driver, without Spark. I/O.

Only the last bytes of a file are read, of remote files many in parallel. Raises BufferAway if the store fails.
"""

import json
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from lethe.decoder.child import ChildLink
from lethe.decoder.limits import TOO_COSTLY, Limits
from lethe.decoder.supervisor import Unit, limits_here, supervise
from lethe.ingest.buffer_files import FileError, error_of
from lethe.ingest.buffer_store import BadFile, BufferedFiles, Bytes, FileTask, Unread
from lethe.ingest.costs import check_columns
from lethe.ingest.registrable import Described, Target, describe
from lethe.uri import is_local

# Smaller files are fetched whole; of larger files only the end is fetched.
TAIL_BYTES: Final = 64 * 1024
# Requests for footers of remote files in flight, of one task.
REQUESTS_AT_ONCE: Final = 32
FORMAT: Final = "Parquet"
# The reason for a file whose footer is larger than the reader accepts. The file is not refused.
FOOTER_TOO_LARGE: Final = "FooterTooLarge"
# The last bytes of a file: of Parquet, and of Parquet with an encrypted footer.
MAGIC: Final = (b"PAR1", b"PARE")


@dataclass(frozen=True)
class Footer:
    """The result for one file: either `described` or `error` is set."""

    batch_id: str
    uri: str
    size: int  # in bytes
    described: Described | None = None
    error: FileError | None = None  # why the file cannot be registered

    def encode(self) -> str:
        d, e = self.described, self.error
        described = None if d is None else (d.records, d.document, d.partition)
        error = None if e is None else (e.uri, e.reason, e.message, e.unread)
        return json.dumps((self.batch_id, self.uri, self.size, described, error))

    @classmethod
    def decode(cls, text: str) -> "Footer":
        batch_id, uri, size, described, error = json.loads(text)
        return cls(batch_id, uri, size, described and Described(*described), error and FileError(*error))


class _OtherFile(Exception):
    """The file may not be as it was listed."""


@dataclass(frozen=True)
class FooterReader:
    """Reads the footers of a task. It is pickled and sent to the workers."""

    target: Target
    io_properties: dict[str, str]
    # A file with a larger footer is unread, with the reason FOOTER_TOO_LARGE. None: no limit.
    footer_bytes_at_most: int | None = None

    def read(self, payload: str) -> Iterator[str]:
        """Read the footers of files.

        Args:
            payload: The files, encoded by `FileTask.encode`.
        Returns: Each footer, encoded by `Footer.encode`.
        """
        for footer in self.footers(FileTask.decode(payload)):
            yield footer.encode()

    def footers(self, tasks: Sequence[FileTask]) -> Generator[Footer]:
        """Read the footers of files, in their order. A decoder decodes them (`lethe.decoder`). Raises: BufferAway; NoDecoder."""
        yield from _Reading(self, tasks).footers()

    def tails(self, tasks: Sequence[FileTask]) -> Generator[tuple[FileTask, "bytes | FileError"]]:
        """The ends of files, with the whole footers, in the order of the files; or why a file cannot be used."""
        store = BufferedFiles(self.io_properties, TAIL_BYTES)
        if all(is_local(t.uri) for t in tasks):  # local files have no latency, so threads cost more than they save
            yield from ((task, self._tail(store, task)) for task in tasks)
            return
        with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="lethe-footer") as pool:
            yield from zip(tasks, pool.map(lambda task: self._tail(store, task), tasks), strict=True)

    def _tail(self, store: BufferedFiles, task: FileTask) -> "bytes | FileError":
        try:
            return self._fetched(store, task)
        except BadFile as e:
            return error_of(task, e)

    def _fetched(self, store: BufferedFiles, task: FileTask) -> bytes:
        if problem := name_problem(task.uri):
            raise BadFile("NameNotReadable", problem)
        if task.size == 0:
            raise BadFile("UnreadableFile", f"the file is empty (0 bytes), expected {FORMAT}")
        try:
            return tail_of(lambda count: _part(store, task, count), task.size, self.footer_bytes_at_most)
        except _OtherFile:
            source = store.open(task)
            if isinstance(source, Unread):
                raise source from None
            return tail_of(lambda count: _last(source, task, count), task.size, self.footer_bytes_at_most)


class _Reading:
    """Decodes the footers of files with decoders, and returns them in the order of the files."""

    def __init__(self, reader: FooterReader, tasks: Sequence[FileTask]) -> None:
        self._reader, self._tasks = reader, tasks
        self._work = FooterWork(reader.target, limits_here())
        self._found: dict[int, Footer] = {}  # those that were not returned yet, by the place of their file
        self._returned = 0

    def footers(self) -> Iterator[Footer]:
        yield from supervise(self._work, self._units(), self._used, self._refused)
        yield from self._in_order()

    def _units(self) -> Iterator[Unit]:
        for place, (task, tail) in enumerate(self._reader.tails(self._tasks)):
            if isinstance(tail, FileError):
                self._add(place, error=tail)
            else:
                of = {"batch": task.batch_id, "uri": task.uri, "size": task.size, "folders": task.folders}
                yield Unit(of, tail, len(tail), task.uri, of=place)

    def _add(self, place: int, described: Described | None = None, error: FileError | None = None) -> None:
        task = self._tasks[place]
        self._found[place] = Footer(task.batch_id, task.uri, task.size, described, error)

    def _in_order(self) -> Iterator[Footer]:
        while (footer := self._found.pop(self._returned, None)) is not None:
            self._returned += 1
            yield footer

    def _used(self, document: dict[str, Any], _: list[memoryview], units: dict[int, Unit]) -> Iterator[Footer]:
        for number, text in zip(document["settled"], document["footers"], strict=True):
            footer = Footer.decode(text)
            self._add(units[number].of, footer.described, footer.error)
        yield from self._in_order()

    def _refused(self, unit: Unit, why: str) -> None:
        self._add(unit.of, error=FileError(unit.name, TOO_COSTLY, f"its footer: {why}"))


@dataclass(frozen=True)
class FooterWork:
    """What a decoder does with footers."""

    target: Target
    limits: Limits

    def run(self, link: ChildLink) -> None:
        while True:
            document, tails = link.receive()
            footers = []
            for (number, size, _, of), tail in zip(document["units"], tails, strict=True):
                link.begin(number, size)
                footers.append(
                    self._footer(FileTask(of["batch"], of["uri"], of["size"], folders=of["folders"]), tail).encode()
                )
            link.rest()
            link.send({"kind": "result", "settled": [u[0] for u in document["units"]], "footers": footers})
            link.send({"kind": "ready"})

    def _footer(self, task: FileTask, tail: memoryview) -> Footer:
        try:
            with Bytes(tail).faults(FORMAT):
                metadata = metadata_of(tail)
                check_columns(metadata.num_columns, self.limits)
                described = describe(metadata, task.uri, task.size, task.batch_id, self.target, task.folders)
        except BadFile as e:
            return Footer(task.batch_id, task.uri, task.size, error=error_of(task, e))
        return Footer(task.batch_id, task.uri, task.size, described)


def name_problem(uri: str) -> str | None:
    """Why readers of Iceberg tables could not open a data file of this name; None: they can."""
    if "?" in uri or "#" in uri:
        return "its name contains ? or #, and readers of Iceberg tables cut a path there; rename the file"
    if not all(c.isprintable() for c in uri):
        return (
            "its name contains a line break or another character that is not printable, and Spark cannot open such a path; "
            "rename the file"
        )
    steps = uri.partition("://")[2].split("/")[1:]
    if "" in steps or "." in steps or ".." in steps:
        return "its path contains //, /./ or /../, which readers of Iceberg tables shorten; rename the file"
    return None


def tail_of(last: Callable[[int], bytes], size: int, footer_bytes_at_most: int | None = None) -> bytes:
    """The end of a file, with the whole footer if it is Parquet. Reads once, or twice if the footer is large.

    Args:
        last: Reads that many bytes from the end of the file.
        size: Of the file, in bytes.
        footer_bytes_at_most: Of a footer that is read with a second request. None: no limit.
    Raises: Unread (FOOTER_TOO_LARGE); as `last`.
    """
    tail = last(min(size, TAIL_BYTES))
    length = int.from_bytes(tail[-8:-4], "little")
    if length + 8 <= len(tail) or not tail.endswith(MAGIC):
        return tail
    if footer_bytes_at_most is not None and min(size, length) > footer_bytes_at_most:
        raise Unread(
            FOOTER_TOO_LARGE, f"its footer has {length} bytes, and at most {footer_bytes_at_most} are read here"
        )
    return last(min(size, length + 8))


def metadata_of(tail: "bytes | memoryview") -> pq.FileMetaData:
    """The footer in the end of a file. Raises: BadFile, errors of pyarrow."""
    # pyarrow reads the footer from the end of a file, so the footer alone can be read like a file.
    metadata = pq.read_metadata(pa.BufferReader(pa.py_buffer(tail)))
    if metadata.serialized_size != int.from_bytes(tail[-8:-4], "little"):
        # A file with encrypted columns and a plain footer has a signature after the footer. Reading its column metadata would
        # abort the process, because pyarrow does not catch the exception of the Parquet library.
        raise BadFile("UnreadableFile", f"it is encrypted, expected plain {FORMAT}")
    return metadata


def _part(store: BufferedFiles, task: FileTask, count: int) -> bytes:
    """The last bytes of the file, if it is as it was listed. Raises: _OtherFile, Unread, BufferAway."""
    found = store.part(task, task.size - count, count)
    if isinstance(found, Unread):
        raise found
    if found is None:
        raise _OtherFile
    return found


def _last(source: Bytes, task: FileTask, count: int) -> bytes:
    """The last bytes of an open file. Raises: BufferAway."""
    if source.content is not None:
        return bytes(source.content[task.size - count :])
    return source.range(task.uri, task.size - count, count)
