"""Reads the footers of Parquet files to register. Runs in Spark's Python workers, without Spark. I/O.

Only the last bytes of a file are read, of several files in parallel. Raises BufferAway if the store fails.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from lethe.ingest.buffer_files import FileError, error_of
from lethe.ingest.buffer_store import FILES_AHEAD, BadFile, BufferedFiles, FileTask, Unread
from lethe.ingest.registrable import Described, Target, describe

# Smaller files are fetched whole; of larger files only the end is fetched.
TAIL_BYTES: Final = 64 * 1024
FORMAT: Final = "Parquet"


@dataclass(frozen=True)
class Footer:
    """The result for one file: either `described` or `error` is set."""

    batch_id: str
    uri: str
    size: int  # in bytes
    described: Described | None = None
    error: FileError | None = None  # why the file cannot be registered

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> "Footer":
        known = json.loads(text)
        described, error = known.pop("described"), known.pop("error")
        return cls(**known, described=described and Described(**described), error=error and FileError(**error))


@dataclass(frozen=True)
class FooterReader:
    """Reads the footers of a task. It is pickled and sent to the workers."""

    target: Target
    io_properties: dict[str, str]

    def read(self, payload: str) -> Iterator[str]:
        """Read the footers of files.

        Args:
            payload: The files, encoded by `FileTask.encode`.
        Returns: Each footer, encoded by `Footer.encode`.
        """
        store = BufferedFiles(self.io_properties, TAIL_BYTES)
        with ThreadPoolExecutor(FILES_AHEAD, thread_name_prefix="lethe-footer") as pool:
            for footer in pool.map(lambda task: self.one(store, task), FileTask.decode(payload)):
                yield footer.encode()

    def one(self, store: BufferedFiles, task: FileTask) -> Footer:
        try:
            described = self._described(store, task)
            return Footer(task.batch_id, task.uri, task.size, described)
        except BadFile as e:
            return Footer(task.batch_id, task.uri, task.size, error=error_of(task, e))

    def _described(self, store: BufferedFiles, task: FileTask) -> Described:
        if "?" in task.uri or "#" in task.uri:
            raise BadFile(
                "NameNotReadable",
                "its name contains ? or #, and readers of Iceberg tables cut a path there; rename the file",
            )
        if task.size == 0:
            raise BadFile("UnreadableFile", f"the file is empty (0 bytes), expected {FORMAT}")
        source = store.open(task)
        if isinstance(source, Unread):
            raise source
        with source.faults(task.uri, FORMAT):
            return describe(metadata_of(source.file, task.size), task.uri, task.size, task.batch_id, self.target)


def metadata_of(file: pa.NativeFile, size: int) -> pq.FileMetaData:
    """The footer of a file, read with one request, or two if it is large. Raises: BadFile, errors of pyarrow.

    Args:
        size: Of the file, in bytes.
    """
    tail = _last(file, size, TAIL_BYTES)
    length = int.from_bytes(tail[-8:-4], "little")
    if length + 8 > len(tail):
        tail = _last(file, size, length + 8)
    # pyarrow reads the footer from the end of a file, so the footer alone can be read like a file.
    metadata = pq.read_metadata(pa.BufferReader(tail))
    if metadata.serialized_size != length:
        # A file with encrypted columns and a plain footer has a signature after the footer. Reading its column metadata would
        # abort the process, because pyarrow does not catch the exception of the Parquet library.
        raise BadFile("UnreadableFile", f"it is encrypted, expected plain {FORMAT}")
    return metadata


def _last(file: pa.NativeFile, size: int, count: int) -> bytes:
    count = min(size, count)
    file.seek(size - count)
    return bytes(file.read(count))
