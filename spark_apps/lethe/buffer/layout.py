"""How the objects of a buffer become batches: each folder of it is one, or each file. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC
from itertools import groupby
from typing import Final, Protocol

from lethe.base import names
from lethe.base.errors import InputError
from lethe.base.ids import batch_id_of_file, batch_id_of_folder
from lethe.buffer.batch import BufferedBatch, ListedObject, NoBatch, is_data
from lethe.guards.table_files import is_table_data, is_table_metadata
from lethe.ledger.ledger import BufferedObject

DIRECTORY: Final = "Directory"
FILE: Final = "File"
_TABLE: Final = "is no batch: it is part of an Iceberg table"


class Layout(Protocol):
    """What in a buffer is a batch. `of_files`: each file, not each folder."""

    @property
    def of_files(self) -> bool: ...

    def id_of(self, name: str) -> str:
        """The id of the batch of a name. Raises: InputError, if it names none."""
        ...

    def name_of(self, path: str) -> str:
        """The name, below the buffer, of what an object belongs to; "" for an object that is to be passed over.

        Args:
            path: The object's own, below the buffer.
        """
        ...

    def batch(self, name: str, uri: str, listed: Iterable[ListedObject]) -> BufferedBatch | NoBatch:
        """What is of that name, and has that URI. `listed` are its objects, at least one."""
        ...

    def stray(self, path: str) -> NoBatch | None:
        """What an object is that `name_of` passes over; None for a hidden one."""
        ...


@dataclass(frozen=True)
class Directories:
    """A batch is a folder `<batch column>=<id>`, complete once it holds `_SUCCESS`."""

    batch_column: str
    of_files = False

    def id_of(self, name: str) -> str:
        batch_id = batch_id_of_folder(self.batch_column, name)
        if batch_id is None:
            raise InputError("InvalidBatchId", f"the folder {name!r} is not named {self.batch_column}=<batch id>")
        return batch_id

    def name_of(self, path: str) -> str:
        folder, slash, rest = path.partition("/")
        return folder if slash and rest and not _is_hidden(folder) else ""

    def batch(self, name: str, uri: str, listed: Iterable[ListedObject]) -> BufferedBatch | NoBatch:
        try:
            batch_id = self.id_of(name)
        except InputError as e:
            return NoBatch(name, e.message, table=any(is_table_metadata(o.key) for o in listed))
        objects = sorted(listed, key=lambda o: o.key)
        if any(is_table_metadata(o.key) for o in objects):
            return NoBatch(name, f"the folder {name[:80]!r} {_TABLE}", table=True)
        return BufferedBatch(
            id=batch_id,
            folder=uri,
            objects=tuple(BufferedObject(o.key, o.size, o.etag) for o in objects),
            complete=any(o.key == f"{uri}/{names.SUCCESS_MARKER}" for o in objects),
            bytes=sum(o.size for o in objects if is_data(o.key, uri)),
            oldest_time=min(o.modified for o in objects).astimezone(UTC),
        )

    def stray(self, path: str) -> NoBatch | None:
        if _is_hidden(path) or not path or "/" in path:
            return None
        text = f"the file {path[:80]!r} is no batch: with spec.buffer.layout {DIRECTORY}, each folder is one"
        return NoBatch(path, text, table=is_table_metadata(path))


@dataclass(frozen=True)
class Files:
    """A batch is a file directly in the buffer, `<id>` with or without an extension. A store shows an object when it is
    whole, so that there is nothing to wait for."""

    of_files = True

    def id_of(self, name: str) -> str:
        return batch_id_of_file(name)

    def name_of(self, path: str) -> str:
        name, slash, _ = path.partition("/")
        return "" if _is_hidden(name) else name + slash

    def batch(self, name: str, uri: str, listed: Iterable[ListedObject]) -> BufferedBatch | NoBatch:
        if name.endswith("/"):
            text = f"the folder {name[:80]!r} is no batch: with spec.buffer.layout {FILE}, each file is one"
            return NoBatch(name, text, table=any(is_table_metadata(o.key) for o in listed))
        (found,) = listed
        if is_table_metadata(name) or is_table_data(name):
            return NoBatch(name, f"the file {name[:80]!r} {_TABLE}", table=True)
        try:
            batch_id = self.id_of(name)
        except InputError as e:
            return NoBatch(name, e.message)
        return BufferedBatch(
            id=batch_id,
            folder=uri,
            objects=(BufferedObject(found.key, found.size, found.etag),),
            complete=True,
            bytes=found.size,
            oldest_time=found.modified.astimezone(UTC),
        )

    def stray(self, path: str) -> NoBatch | None:  # noqa: ARG002
        return None


def layout_of(name: str, batch_column: str) -> Layout:
    """By its name in `spec.buffer.layout`. Raises: InputError (`UnknownLayout`)."""
    if name == DIRECTORY:
        return Directories(batch_column)
    if name == FILE:
        return Files()
    raise InputError("UnknownLayout", f"a buffer's layout is {DIRECTORY} or {FILE}, found {name!r}.")


def folders_of(objects: Iterable[ListedObject], root: str, layout: Layout) -> Iterator[BufferedBatch | NoBatch]:
    """A listing, folder by folder, or file by file, as they come. Holds the objects of one at a time.

    Args:
        objects: The objects of a folder one after the other, as a listing in the order of the keys has them.
    Folders and files of the buffer that start with `_` or `.` are passed over. What has no name of a batch is no batch.
    """
    prefix = root.rstrip("/") + "/"
    for name, listed in groupby(objects, lambda o: layout.name_of(o.key.removeprefix(prefix))):
        if name:
            yield layout.batch(name, prefix + name, listed)
        else:
            yield from filter(None, (layout.stray(o.key.removeprefix(prefix)) for o in listed))


def is_of_batch(key: str, root: str, layout: Layout) -> bool:
    """Whether an object below the buffer `root` has a name that only an object of a batch has."""
    prefix = root.rstrip("/") + "/"
    name = layout.name_of(key.removeprefix(prefix)) if key.startswith(prefix) else ""
    if not name or name.endswith("/") or is_table_metadata(key) or (layout.of_files and is_table_data(key)):
        return False
    try:
        return bool(layout.id_of(name))
    except InputError:
        return False


def _is_hidden(name: str) -> bool:
    """Somebody's unfinished work, or our own `_refused`."""
    return name.startswith(("_", "."))
