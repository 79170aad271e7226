"""A listing of buffer objects grouped into batches. Pure."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby

from lethe import names
from lethe.errors import InputError
from lethe.ids import batch_id_of_folder
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
    """A folder of the buffer. `complete` once it holds `_SUCCESS`; `bytes` of its data files; `objects` include the
    marker."""

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
    """A folder of the buffer that is no batch: its name below the buffer, and why."""

    folder: str
    message: str


@dataclass(frozen=True)
class Grouped:
    """`invalid`: folders that are no batch, each with the reason."""

    batches: tuple[BufferedBatch, ...]
    invalid: tuple[tuple[str, str], ...] = ()


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


def folders_of(objects: Iterable[ListedObject], root: str, batch_column: str) -> Iterator[BufferedBatch | NoBatch]:
    """A listing, folder by folder as they come. Holds the objects of one folder at a time.

    Args:
        objects: The objects of a folder one after the other, as a listing in the order of the keys has them.
    Folders and objects that start with `_` or `.` are passed over.
    """
    prefix = root.rstrip("/") + "/"
    for folder, listed in groupby(objects, lambda o: _folder(o, prefix)):
        if folder:
            yield _batch(folder, tuple(listed), prefix, batch_column)


def group(objects: Iterable[ListedObject], root: str, batch_column: str) -> Grouped:
    """A whole listing, in any order, by the first folder under `root`, in the order of the folders' names."""
    prefix = root.rstrip("/") + "/"
    in_order = sorted(objects, key=lambda o: _folder(o, prefix))
    batches: dict[str, list[BufferedBatch]] = {}
    invalid: list[tuple[str, str]] = []
    for found in folders_of(in_order, root, batch_column):
        if isinstance(found, NoBatch):
            invalid.append((found.folder, found.message))
        else:
            batches.setdefault(found.id, []).append(found)
    for id, twins in batches.items():
        if len(twins) > 1:
            invalid += [(b.folder.removeprefix(prefix), same_id(id)) for b in twins]
    return Grouped(tuple(found[0] for found in batches.values() if len(found) == 1), tuple(invalid))


def same_id(batch_id: str) -> str:
    """Why neither of two folders of one id is a batch: which of them it is, is nobody's to guess."""
    return f"several folders name the batch {batch_id!r}"


def hidden_folder(key: str, prefix: str) -> str:
    """The first folder of a key below `prefix` if its name begins with `_` or `.`, else ""."""
    folder, slash, _ = key.removeprefix(prefix).partition("/")
    return folder if slash and folder.startswith(("_", ".")) else ""


def _folder(o: ListedObject, prefix: str) -> str:
    """The first folder below the buffer, "" for what is to be passed over."""
    folder, slash, rest = o.key.removeprefix(prefix).partition("/")
    return folder if slash and rest and not hidden_folder(o.key, prefix) else ""


def _batch(folder: str, listed: Sequence[ListedObject], prefix: str, batch_column: str) -> BufferedBatch | NoBatch:
    try:
        batch_id = batch_id_of_folder(batch_column, folder)
    except InputError as e:
        return NoBatch(folder, e.message)
    if batch_id is None:
        return NoBatch(folder, f"the folder {folder!r} is not named {batch_column}=<batch id>")
    return BufferedBatch(
        id=batch_id,
        folder=prefix + folder,
        objects=tuple(BufferedObject(o.key, o.size, o.etag) for o in sorted(listed, key=lambda o: o.key)),
        complete=any(o.key == f"{prefix}{folder}/{names.SUCCESS_MARKER}" for o in listed),
        bytes=sum(o.size for o in listed if is_data(o.key, prefix + folder)),
        oldest_time=min(o.modified for o in listed).astimezone(UTC),
    )
