"""A listing of buffer objects grouped into batches. Pure."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

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
class Grouped:
    """`invalid`: folders that are no batch, each with the reason."""

    batches: tuple[BufferedBatch, ...]
    invalid: tuple[tuple[str, str], ...] = ()


def fingerprint(objects: Iterable[BufferedObject]) -> str:
    """Changes when any object of a batch does; a refused batch is looked at again only then."""
    lines = sorted(f"{o.key}\n{o.size}\n{o.etag}" for o in objects)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def is_data(key: str, folder: str = "") -> bool:
    """Whether an object is a data file: names that begin with `_` or `.` are markers or somebody's unfinished work, as
    everywhere in the field; so are, below `folder`, whole folders of such names."""
    names_ = key.removeprefix(folder).split("/") if folder else [key.rsplit("/", 1)[-1]]
    return not any(name.startswith(("_", ".")) for name in names_)


def group(objects: Iterable[ListedObject], root: str, batch_column: str) -> Grouped:
    """Group a listing by the first folder under `root`. Folders and objects that start with `_` or `.` are passed over."""
    prefix = root.rstrip("/") + "/"
    folders: dict[str, list[ListedObject]] = {}
    for o in objects:
        folder, slash, rest = o.key.removeprefix(prefix).partition("/")
        if slash and rest and not folder.startswith(("_", ".")):
            folders.setdefault(folder, []).append(o)
    batches: list[BufferedBatch] = []
    invalid: list[tuple[str, str]] = []
    for folder in sorted(folders):
        listed = folders[folder]
        try:
            batch_id = batch_id_of_folder(batch_column, folder)
        except InputError as e:
            invalid.append((folder, e.message))
            continue
        if batch_id is None:
            invalid.append((folder, f"the folder {folder!r} is not named {batch_column}=<batch id>"))
            continue
        batches.append(
            BufferedBatch(
                id=batch_id,
                folder=prefix + folder,
                objects=tuple(BufferedObject(o.key, o.size, o.etag) for o in sorted(listed, key=lambda o: o.key)),
                complete=any(o.key == f"{prefix}{folder}/{names.SUCCESS_MARKER}" for o in listed),
                bytes=sum(o.size for o in listed if is_data(o.key, prefix + folder)),
                oldest_time=min(o.modified for o in listed).astimezone(UTC),
            )
        )
    by_id: dict[str, list[BufferedBatch]] = {}
    for b in batches:
        by_id.setdefault(b.id, []).append(b)
    for twins in by_id.values():
        if len(twins) > 1:
            invalid += [(b.folder.removeprefix(prefix), f"several folders name the batch {b.id!r}") for b in twins]
    return Grouped(tuple(b for b in batches if len(by_id[b.id]) == 1), tuple(invalid))
