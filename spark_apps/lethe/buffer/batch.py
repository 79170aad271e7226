"""The elements of a buffer listing: objects, and the batches that `lethe.buffer.layout` groups them into. Pure."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Final

from lethe.ledger.ledger import BufferedObject

# In the folder of a batch, so that listings, runs and the ledger have bounded memory: about 650 bytes for each object.
OBJECTS_AT_MOST: Final = 100_000
_FOLDER_MARKER: Final = "_$folder$"  # of Hadoop's S3 clients, also that of EMR


@dataclass(frozen=True)
class ListedObject:
    """One object as a store lists it."""

    key: str  # its full URI
    size: int  # in bytes
    etag: str  # without quotes
    modified: datetime  # aware


@dataclass(frozen=True)
class BufferedBatch:
    """A batch in the buffer: a folder, or with the layout File a single file."""

    id: str
    folder: str  # the URI of the folder, or of the file
    objects: tuple[BufferedObject, ...]  # includes the `_SUCCESS` marker
    complete: bool  # a folder is complete when it contains `_SUCCESS`; a file always is
    bytes: int  # of its data files
    oldest_time: datetime  # when the oldest object was written

    @cached_property
    def data_objects(self) -> tuple[BufferedObject, ...]:
        return tuple(o for o in self.objects if is_data(o.key, self.folder))

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.data_objects)


@dataclass(frozen=True)
class NoBatch:
    """A folder or file of the buffer that is not a batch. Lethe never moves or deletes it."""

    folder: str  # its name below the buffer
    message: str  # why it is not a batch
    table: bool = False  # True: its file names are those of an Iceberg table


def file_etag(size: int, modified_ns: int) -> str:
    """The substitute for an ETag on a file system. Code that compares a file with a listing must use this function."""
    return f"{size:x}-{modified_ns:x}"


def fingerprint(objects: Iterable[BufferedObject]) -> str:
    """A hash that changes when any of the objects changes. A refused batch is checked again only after such a change."""
    lines = sorted(f"{o.key}\n{o.size}\n{o.etag}" for o in objects)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def is_data(key: str, folder: str = "") -> bool:
    """Whether an object is a data file. By the convention of Hadoop and Spark, names that begin with `_` or `.` are markers or
    unfinished files, and so are objects that stand for an empty folder.

    Args:
        folder: Subfolders of this folder with such names are excluded as well; "": only the file name counts.
    """
    if key.endswith(_FOLDER_MARKER):
        return False
    names_ = key.removeprefix(folder) if folder else key.rsplit("/", 1)[-1]
    return not (names_.startswith(("_", ".")) or "/_" in names_ or "/." in names_)


def same_id(batch_id: str) -> str:
    """Why none of several folders or files of one id is a batch: it is unknown which of them the producer means."""
    return f"several names in the buffer belong to the batch {batch_id!r}"


def hidden_folder(key: str, prefix: str) -> str:
    """The first folder of a key below `prefix` if its name begins with `_` or `.`; otherwise ""."""
    folder, slash, _ = key.removeprefix(prefix).partition("/")
    return folder if slash and folder.startswith(("_", ".")) else ""
