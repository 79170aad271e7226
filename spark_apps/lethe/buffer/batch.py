"""What a listing of a buffer consists of: objects, and the batches that `lethe.buffer.layout` makes of them. Pure."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from lethe.ledger.ledger import BufferedObject


@dataclass(frozen=True)
class ListedObject:
    """One object as a store lists it: `key` its full URI, `modified` an aware datetime."""

    key: str
    size: int
    etag: str
    modified: datetime


@dataclass(frozen=True)
class BufferedBatch:
    """A folder of the buffer, or a file of it. `folder` is its URI, also the file's; `complete` once a folder holds
    `_SUCCESS`; `bytes` of its data files; `objects` include the marker."""

    id: str
    folder: str
    objects: tuple[BufferedObject, ...]
    complete: bool
    bytes: int
    oldest_time: datetime

    @property
    def data_objects(self) -> tuple[BufferedObject, ...]:
        return tuple(o for o in self.objects if is_data(o.key, self.folder))

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.data_objects)


@dataclass(frozen=True)
class NoBatch:
    """A folder or file of the buffer that is no batch. Nothing ever moves or deletes it."""

    folder: str  # its name below the buffer
    message: str  # why
    table: bool = False  # its files have names that only Iceberg gives


def file_etag(size: int, modified_ns: int) -> str:
    """What stands for an ETag on a file system: as good as one offers. Whoever compares with a listing needs the same."""
    return f"{size:x}-{modified_ns:x}"


def fingerprint(objects: Iterable[BufferedObject]) -> str:
    """Changes when any object of a batch does; a refused batch is looked at again only then."""
    lines = sorted(f"{o.key}\n{o.size}\n{o.etag}" for o in objects)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def is_data(key: str, folder: str = "") -> bool:
    """Whether an object is a data file: names that begin with `_` or `.` are markers or somebody's unfinished work, as
    everywhere in the field; so are, below `folder`, whole folders of such names."""
    names_ = key.removeprefix(folder).split("/") if folder else [key.rsplit("/", 1)[-1]]
    return not any(name.startswith(("_", ".")) for name in names_)


def same_id(batch_id: str) -> str:
    """Why none of several folders or files of one id is a batch: which of them it is, is nobody's to guess."""
    return f"several names in the buffer stand for the batch {batch_id!r}"


def hidden_folder(key: str, prefix: str) -> str:
    """The first folder of a key below `prefix` if its name begins with `_` or `.`, else ""."""
    folder, slash, _ = key.removeprefix(prefix).partition("/")
    return folder if slash and folder.startswith(("_", ".")) else ""
