"""How the objects of a buffer become batches: each folder of it is one, or each file. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC
from itertools import groupby
from typing import Final, Protocol

from lethe import names
from lethe.errors import InputError
from lethe.ids import batch_id_of_file, batch_id_of_folder
from lethe.ledger.ledger import BufferedObject
from lethe.plan.batches import BufferedBatch, ListedObject, NoBatch, is_data

DIRECTORY: Final = "Directory"
FILE: Final = "File"


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
            return NoBatch(name, e.message)
        objects = sorted(listed, key=lambda o: o.key)
        return BufferedBatch(
            id=batch_id,
            folder=uri,
            objects=tuple(BufferedObject(o.key, o.size, o.etag) for o in objects),
            complete=any(o.key == f"{uri}/{names.SUCCESS_MARKER}" for o in objects),
            bytes=sum(o.size for o in objects if is_data(o.key, uri)),
            oldest_time=min(o.modified for o in objects).astimezone(UTC),
        )


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
            return NoBatch(
                name, f"the folder {name[:80]!r} is no batch: with spec.buffer.layout {FILE}, each file is one"
            )
        (found,) = listed
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
    Folders and files of the buffer that start with `_` or `.` are passed over.
    """
    prefix = root.rstrip("/") + "/"
    for name, listed in groupby(objects, lambda o: layout.name_of(o.key.removeprefix(prefix))):
        if name:
            yield layout.batch(name, prefix + name, listed)


def _is_hidden(name: str) -> bool:
    """Somebody's unfinished work, or our own `_refused`."""
    return name.startswith(("_", "."))
