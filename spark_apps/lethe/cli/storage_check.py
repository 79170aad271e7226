"""Searches the storage for what an erasure removed: the files, rows of the batches, the values. I/O: lists every location
of the table and reads its objects; writes and deletes nothing.

The folders, the listing and the reading are independent of the code that erases: folders follow from all metadata files, objects
are listed by two clients, and nothing is passed over because of its name.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, BinaryIO, Final

from pyiceberg.schema import Schema

from lethe.base.errors import InputError, TransientError
from lethe.cli.bound_values import bound_values
from lethe.cli.object_contents import Unreadable as NotReadable
from lethe.cli.object_contents import Values, holds, holds_batch
from lethe.cli.opening import Opened
from lethe.cli.table_folders import TableFolders
from lethe.decoder.limits import Limits
from lethe.decoder.objects import ObjectWork, Unreadable, read_objects
from lethe.decoder.process import NoDecoder
from lethe.erasure.strays import Locations
from lethe.iceberg.locations import of_this_table
from lethe.storage.object_store import open_store
from lethe.storage.object_versions import Storage, VersionsDenied, open_storage
from lethe.storage.vended import of_table
from lethe.uri import Place, backend_of, contains, place, surely_contains, without_values

# Decoders at once, and the memory of each. An auditor has a machine of their own, and data files may be large.
DECODERS: Final = 4
MEMORY_BYTES: Final = 4 * 1024**3
_LIMITS: Final = Limits(memory_bytes=MEMORY_BYTES)


@dataclass(frozen=True)
class Listed:
    """The objects below the locations of a table, including deleted objects that still have versions."""

    storage: Storage
    paths: tuple[str, ...]  # of all objects
    own: tuple[str, ...]  # of the objects in folders that contain only files of this table
    unlisted: Mapping[str, str] = field(default_factory=dict)  # location -> why it cannot be listed


@dataclass(frozen=True)
class SearchedColumn:
    """The batch column to search for erased batches."""

    field_id: int
    name: str  # finds it in files without field ids


@dataclass(frozen=True)
class Searched:
    """The outcome of a search. Paths are without partition values."""

    holding: tuple[str, ...] = ()  # objects that hold what was searched for
    unreadable: Mapping[str, str] = field(default_factory=dict)  # object -> why a part of it cannot be read


def list_locations(opened: Opened) -> Listed:
    """Raises: InputError (VersionsNotListed), TransientError, what the storage raises."""
    properties = of_table(opened.properties, opened.name.partition(".")[2])
    storage = open_storage(opened.facts.location, opened.table.io, properties)

    def read(path: str) -> bytes | None:
        stream = storage.open(path)
        if stream is None:
            return None
        with stream:
            return stream.read()

    folders = TableFolders(opened.facts.uuid, read)
    folders.follow(opened.table.metadata_location)
    root = opened.load_ledger().root
    for location, of_table_then in root.locations if root is not None else ():
        folders.add(location, of_table_then)
    listed: dict[Place, tuple[str, datetime]] = {}
    unlisted: dict[str, str] = {}
    seen: list[str] = []
    try:
        # An old metadata file in one folder may name another folder.
        while (
            uri := next((r for r in folders.roots if not any(surely_contains(s, r) for s in seen)), None)
        ) is not None:
            seen.append(uri)
            if (why := storage.cannot_list(uri)) is not None:
                unlisted[uri] = why
                continue
            there = [*storage.under(uri)]
            if backend_of(uri) is not None:
                there += ((o.key, o.modified) for o in open_store(uri, properties).list(uri))
            found = {place(path): (path, modified) for path, modified in reversed(there)}
            listed |= found
            folders.find_in(path for path, _ in found.values())
    except VersionsDenied as e:
        raise InputError(
            "VersionsNotListed",
            f"s3://{e.bucket}: the versions of objects cannot be listed. Grant s3:ListBucketVersions.",
        ) from e
    own, others = tuple(sorted(folders.own)), tuple(sorted(folders.others))
    try:
        alone = of_this_table(
            opened.table, opened.table.io, Locations(own, others, others, others), listed.values()
        ).own
    except NoDecoder as e:
        raise TransientError("ReadingFailed", f"{e}.") from e
    paths = tuple(path for path, _ in listed.values())
    return Listed(storage, paths, tuple(p for p in paths if any(contains(o, p) for o in alone)), unlisted)


def files_present(listed: Listed, record: Mapping[str, Any]) -> list[str]:
    """The files that a record lists as removed and that exist; paths without partition values."""
    gone = {place(str(f["path"])) for f in record.get("files", ()) if isinstance(f, dict) and "path" in f}
    return sorted({name for path in listed.paths if place(name := without_values(path)) in gone})


def files_with_batches(
    listed: Listed, column: SearchedColumn, batch_ids: Collection[str], tick: Callable[[], object]
) -> Searched:
    """The data files with rows of one of these batches, whatever their names. Raises: what the storage raises."""
    return _search(listed, listed.own, BatchWork(_LIMITS, column, frozenset(batch_ids)), tick)


def objects_with_values(
    listed: Listed, values: Collection[str], schemas: Collection[Schema], tick: Callable[[], object]
) -> Searched:
    """The objects with one of these values: in the path, in a column, in a bound of one, or anywhere in what their content
    unpacks to.

    Args:
        schemas: All of the table.
    """
    wanted = Values(tuple(sorted(values)), bound_values(values, schemas))
    return _search(listed, listed.paths, ValuesWork(_LIMITS, wanted), tick)


@dataclass(frozen=True)
class BatchWork(ObjectWork):
    """Whether a data file has a row of one of some batches."""

    column: SearchedColumn
    batch_ids: frozenset[str]

    def read(self, stream: BinaryIO, path: str) -> Any:
        """See `ObjectWork`. A text: why it cannot be searched."""
        del path
        try:
            return holds_batch(stream, self.column.name, self.column.field_id, self.batch_ids)
        except NotReadable as e:
            return str(e)


@dataclass(frozen=True)
class ValuesWork(ObjectWork):
    """Whether an object holds one of some values."""

    values: Values = field(repr=False)

    def read(self, stream: BinaryIO, path: str) -> Any:
        """See `ObjectWork`. A text: why it cannot be searched."""
        try:
            return holds(path, stream.read(), self.values)
        except NotReadable as e:
            return str(e)


def _search(listed: Listed, paths: Sequence[str], work: ObjectWork, tick: Callable[[], object]) -> Searched:
    """Search objects with decoders, because anyone may have written them. Raises: TransientError (`ReadingFailed`)."""
    folders: set[str] = set()

    def opened(path: str) -> BinaryIO | None:
        try:
            return listed.storage.open(path)
        except IsADirectoryError:
            folders.add(path)
            return None

    def search(some: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for path, result in read_objects(work, some, opened):
            found[path] = result
            tick()
        return found

    try:
        with ThreadPoolExecutor(DECODERS) as pool:
            parts = pool.map(search, [paths[n::DECODERS] for n in range(DECODERS)])
            results = {path: result for part in parts for path, result in part.items()}
    except NoDecoder as e:
        raise TransientError("ReadingFailed", f"{e}.") from e
    hidden = listed.storage.find(p for p, r in results.items() if r == Unreadable() and p not in folders)
    unreadable = {
        **{p: r for p, r in results.items() if isinstance(r, str)},
        **{p: r.why for p, r in results.items() if isinstance(r, Unreadable) and r.why},
        **dict.fromkeys(folders, "it is a link to a folder, or a folder that cannot be listed"),
        **dict.fromkeys(hidden, "the storage refuses to show it"),  # the others were deleted after the listing
    }
    holding = {without_values(p) for p, r in results.items() if r is True}
    named = {without_values(p): why for p, why in sorted(unreadable.items())}
    return Searched(tuple(sorted(holding)), {p: why for p, why in named.items() if p not in holding})
