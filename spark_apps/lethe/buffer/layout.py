"""Groups the objects of a buffer into batches: each folder is a batch, or each file. Pure."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import chain, groupby, islice
from typing import Final, Protocol, assert_never

from lethe.base import names
from lethe.base.errors import InputError
from lethe.base.names import batch_id_of_file, batch_id_of_folder
from lethe.base.objects import BufferedObject, ListedObject
from lethe.contract.settings import BufferLayout
from lethe.guards.claim import is_table_data, is_table_metadata
from lethe.uri import is_utf8, surely_contains

# In the folder of a batch, so that listings, runs and the ledger have bounded memory: about 650 bytes for each object.
OBJECTS_AT_MOST: Final = 100_000
_FOLDER_MARKER: Final = "_$folder$"
"""The suffix of folder markers of Hadoop's S3 clients, also that of EMR."""
_ANY_FOLDER: Final = "s3://buffer/batch"

_TABLE: Final = "is not a batch: it is part of an Iceberg table"


@dataclass(frozen=True)
class BufferedBatch:
    """A batch in the buffer: a folder, or with the layout File a single file."""

    id: str
    folder: str
    """The URI of the folder, or of the file."""
    objects: tuple[BufferedObject, ...]
    """Includes the `_SUCCESS` marker."""
    complete: bool
    """A folder is complete when it contains `_SUCCESS`; a file always is."""
    bytes: int
    """The size of its data files."""
    oldest_time: datetime
    """When the oldest object was written."""

    @property
    def name(self) -> str:
        """The name of the folder or file below the buffer."""
        return self.folder.rpartition("/")[2]

    @cached_property
    def data_objects(self) -> tuple[BufferedObject, ...]:
        """The objects with rows, in the order of `objects`: without markers, hidden files and hidden subfolders."""
        return tuple(o for o in self.objects if is_data(o.key, self.folder))

    @property
    def marker(self) -> BufferedObject | None:
        """The `_SUCCESS` marker of a folder; None: it is not complete, or the batch is a file."""
        uri = f"{self.folder}/{names.SUCCESS_MARKER}"
        return next((o for o in self.objects if o.key == uri), None)

    @property
    def fingerprint(self) -> str:
        """A hash of the keys, sizes and ETags of the data objects. The `_SUCCESS` marker does not change it."""
        return fingerprint(self.data_objects)


@dataclass(frozen=True)
class NoBatch:
    """A folder or file of the buffer that is not a batch. Lethe never moves or deletes it."""

    folder: str
    """Its name below the buffer."""
    message: str
    """Why it is not a batch."""
    table: bool = False
    """True: its file names are those of an Iceberg table."""
    too_large: bool = False
    """True: a producer meant it as a batch, but it has too many objects."""


def fingerprint(objects: Iterable[BufferedObject]) -> str:
    """A hash that changes when any of the objects changes. A refused batch is checked again only after such a change."""
    lines = sorted(f"{o.key}\n{o.size}\n{o.etag}" for o in objects)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def is_data(key: str, folder: str = "") -> bool:
    """Whether an object is a data file.

    By the convention of Hadoop and Spark, names that begin with `_` or `.` are markers or unfinished files, and so are objects
    that stand for an empty folder.

    Args:
        folder: Subfolders of this folder with such names are excluded as well; "": only the file name counts.
    """
    if key.endswith(_FOLDER_MARKER):
        return False
    names_ = key.removeprefix(folder) if folder else key.rsplit("/", 1)[-1]
    return not (names_.startswith(("_", ".")) or "/_" in names_ or "/." in names_)


def path_problem(path: str) -> str | None:
    """Why no file of a batch can have a path below the folder of the batch; None: it can.

    Checked before a file is sent. Whatever reads it must find it in the folder, even if it percent-decodes paths. Spark encodes
    values in the names of folders (`time=10%3A00`), so `%` is not unusual.
    """
    if any(step in ("", ".", "..") for step in path.split("/")):
        return "a step of its path is empty, . or .."
    if any(c < " " or c == "\x7f" for c in path):
        return "its path has a line break or another control character"
    if not is_utf8(path):
        return "its path is not UTF-8"
    if "%" in path and not surely_contains(_ANY_FOLDER, f"{_ANY_FOLDER}/{path}"):
        return "its path, percent-decoded, leads out of the folder of the batch"
    return None


def same_id(batch_id: str) -> str:
    """Why none of several folders or files of one id is a batch: it is unknown which of them the producer means."""
    return f"several names in the buffer belong to the batch {batch_id!r}"


class Layout(Protocol):
    """Defines what is a batch in a buffer."""

    @property
    def of_files(self) -> bool:
        """True: each file is a batch; False: each folder."""
        ...

    def id_of(self, name: str) -> str:
        """The id of the batch with this name.

        Raises:
            InputError: It is not the name of a batch.
        """
        ...

    def name_of(self, path: str) -> str:
        """The name below the buffer of the folder or file that an object belongs to; "": the object is ignored.

        Args:
            path: Of the object, below the buffer.
        """
        ...

    def batch(self, name: str, uri: str, listed: Iterable[ListedObject]) -> BufferedBatch | NoBatch:
        """The folder or file of this name.

        Args:
            uri: Of the folder or file.
            listed: Its objects, at least one.
        """
        ...

    def stray(self, path: str) -> NoBatch | None:
        """Describe an object that `name_of` ignores; None: it is hidden."""
        ...


@dataclass(frozen=True)
class Directories:
    """A batch is a folder `<batch column>=<id>`, complete when it contains `_SUCCESS`."""

    batch_column: str
    of_files = False

    def id_of(self, name: str) -> str:
        """The percent-decoded id after `<batch column>=`.

        Raises:
            InputError: InvalidBatchId, if the folder has another name, or its id is unusable.
        """
        batch_id = batch_id_of_folder(self.batch_column, name)
        if batch_id is None:
            raise InputError("InvalidBatchId", f"the folder {name!r} is not named {self.batch_column}=<batch id>")
        return batch_id

    def name_of(self, path: str) -> str:
        """The first folder of the path; "" for an object directly in the buffer and for a hidden folder."""
        folder, slash, inner_path = path.partition("/")
        return folder if slash and inner_path and not _is_hidden(folder) else ""

    def batch(self, name: str, uri: str, listed: Iterable[ListedObject]) -> BufferedBatch | NoBatch:
        """The batch of a folder. NoBatch: an unusable name, a file of a table, or too many objects."""
        try:
            batch_id = self.id_of(name)
        except InputError as e:
            return NoBatch(_shown(name), e.message, table=any(is_table_metadata(o.key) for o in listed))
        remaining = iter(listed)
        objects = sorted(islice(remaining, OBJECTS_AT_MOST), key=lambda o: o.key)
        more = next(remaining, None)
        if any(is_table_metadata(o.key) for o in chain(objects, filter(None, [more]), remaining)):
            return NoBatch(name, f"the folder {name[:80]!r} {_TABLE}", table=True)
        if more is not None:
            text = f"the folder {name[:80]!r} has more than {OBJECTS_AT_MOST} objects; divide it into several batches"
            return NoBatch(name, text, too_large=True)
        if (unnamed := next((o.key for o in objects if _shown(o.key) != o.key), None)) is not None:
            inner = unnamed.removeprefix(uri).lstrip("/")
            text = f"the folder {name[:80]!r} has a file whose name is not UTF-8 ({inner[:80]!r}); rename the file"
            return NoBatch(name, text)
        return BufferedBatch(
            id=batch_id,
            folder=uri,
            objects=tuple(BufferedObject(o.key, o.size, o.etag) for o in objects),
            complete=any(o.key == f"{uri}/{names.SUCCESS_MARKER}" for o in objects),
            bytes=sum(o.size for o in objects if is_data(o.key, uri)),
            oldest_time=min(o.modified for o in objects).astimezone(UTC),
        )

    def stray(self, path: str) -> NoBatch | None:
        """Why a visible file directly in the buffer is no batch; None for hidden objects and those in folders."""
        if _is_hidden(path) or not path or "/" in path:
            return None
        text = f"the file {path[:80]!r} is not a batch: with spec.buffer.layout {BufferLayout.DIRECTORY}, each folder is a batch"
        return NoBatch(_shown(path), text, table=is_table_metadata(path))


@dataclass(frozen=True)
class Files:
    """A batch is a file directly in the buffer, `<id>` with or without an extension.

    It is always complete, because a store shows an object only when it is whole.
    """

    of_files = True

    def id_of(self, name: str) -> str:
        """The percent-decoded file name, without extensions of a compression and a format.

        Raises:
            InputError: InvalidBatchId, if the id is empty, too long or not valid UTF-8.
        """
        return batch_id_of_file(name)

    def name_of(self, path: str) -> str:
        """The name of the file, or of the first folder, with a slash that makes `batch` reject it; "": hidden."""
        name, slash, _ = path.partition("/")
        return "" if _is_hidden(name) else name + slash

    def batch(self, name: str, uri: str, listed: Iterable[ListedObject]) -> BufferedBatch | NoBatch:
        """The batch of one file. NoBatch: a folder, a file of a table, or a name without a usable id."""
        if name.endswith("/"):
            text = f"the folder {name[:80]!r} is not a batch: with spec.buffer.layout {BufferLayout.FILE}, each file is a batch"
            return NoBatch(_shown(name), text, table=any(is_table_metadata(o.key) for o in listed))
        (found,) = listed
        if is_table_metadata(name) or is_table_data(name):
            return NoBatch(_shown(name), f"the file {name[:80]!r} {_TABLE}", table=True)
        try:
            batch_id = self.id_of(name)
        except InputError as e:
            return NoBatch(_shown(name), e.message)
        return BufferedBatch(
            id=batch_id,
            folder=uri,
            objects=(BufferedObject(found.key, found.size, found.etag),),
            complete=True,
            bytes=found.size,
            oldest_time=found.modified.astimezone(UTC),
        )

    def stray(self, path: str) -> NoBatch | None:  # noqa: ARG002
        """Always None: `name_of` ignores only hidden objects, and `batch` reports all others."""
        return None


def layout_of(layout: BufferLayout, batch_column: str) -> Layout:
    """The meaning of `spec.buffer.layout`."""
    match layout:
        case BufferLayout.DIRECTORY:
            return Directories(batch_column)
        case BufferLayout.FILE:
            return Files()
        case _:
            assert_never(layout)


def folders_of(objects: Iterable[ListedObject], root: str, layout: Layout) -> Iterator[BufferedBatch | NoBatch]:
    """Group a listing by folders or files, in its order. Only the objects of one of them are in memory.

    Folders and files directly in the buffer that start with `_` or `.` are ignored.

    Args:
        objects: The listing. The objects of a folder must follow one another, as in a listing ordered by key.
        root: The URI of the buffer.
    """
    prefix = root.rstrip("/") + "/"
    for name, listed in groupby(objects, lambda o: layout.name_of(o.key.removeprefix(prefix))):
        if name:
            yield layout.batch(name, prefix + name, listed)
        else:
            yield from filter(None, (layout.stray(o.key.removeprefix(prefix)) for o in listed))


def is_of_batch(key: str, root: str, layout: Layout) -> bool:
    """Whether an object below the buffer `root` has the name of an object of a batch, and nothing else has such a name."""
    prefix = root.rstrip("/") + "/"
    name = layout.name_of(key.removeprefix(prefix)) if key.startswith(prefix) else ""
    if not name or name.endswith("/") or is_table_metadata(key) or (layout.of_files and is_table_data(key)):
        return False
    try:
        return bool(layout.id_of(name))
    except InputError:
        return False


def _shown(name: str) -> str:
    """A name that can be stored as UTF-8: the same, unless a local file has other bytes in its name."""
    return name if name.isascii() else name.encode("utf-8", "backslashreplace").decode()


def _is_hidden(name: str) -> bool:
    """Whether this is the name of unfinished work of a producer, or of the folder `_refused`."""
    return name.startswith(("_", "."))
