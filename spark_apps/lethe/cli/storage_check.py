"""Searches the storage for what an erasure removed: the files, rows of the batches, the values. I/O: lists every location
of the table and reads its objects; writes and deletes nothing.

The listing and the reading are independent of the code that erases: objects are listed by two clients, and nothing is passed over
because of its name.
"""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from lethe.base.errors import InputError
from lethe.cli.object_contents import Unreadable, Values, holds, holds_batch
from lethe.cli.opening import Opened
from lethe.iceberg.locations import locations_of, of_this_table
from lethe.storage.object_store import open_store
from lethe.storage.object_versions import Storage, VersionsDenied, open_storage
from lethe.storage.vended import of_table
from lethe.uri import backend_of, contains, place, without_values

PARALLEL_READS: Final = 8


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
    root = opened.load_ledger().root
    known = locations_of(opened.table, root.locations if root is not None else ()).locations
    properties = of_table(opened.properties, opened.name.partition(".")[2])
    storage = open_storage(opened.facts.location, opened.table.io, properties)
    listed: list[Any] = []
    unlisted: dict[str, str] = {}
    try:
        for uri in known.roots:
            if (why := storage.cannot_list(uri)) is not None:
                unlisted[uri] = why
                continue
            listed += storage.under(uri)
            if backend_of(uri) is not None:
                there = {place(path) for path, _ in listed}
                listed += [
                    (o.key, o.modified) for o in open_store(uri, properties).list(uri) if place(o.key) not in there
                ]
    except VersionsDenied as e:
        raise InputError(
            "VersionsNotListed",
            f"s3://{e.bucket}: the versions of objects cannot be listed. Grant s3:ListBucketVersions.",
        ) from e
    alone = of_this_table(opened.table, opened.table.io, known, listed).own
    paths = tuple(path for path, _ in listed)
    return Listed(storage, paths, tuple(p for p in paths if any(contains(o, p) for o in alone)), unlisted)


def files_present(listed: Listed, record: Mapping[str, Any]) -> list[str]:
    """The files that a record lists as removed and that exist; paths without partition values."""
    gone = {place(str(f["path"])) for f in record.get("files", ()) if isinstance(f, dict) and "path" in f}
    return sorted({name for path in listed.paths if place(name := without_values(path)) in gone})


def files_with_batches(
    listed: Listed, column: SearchedColumn, batch_ids: Collection[str], tick: Callable[[], object]
) -> Searched:
    """The data files with rows of one of these batches, whatever their names. Raises: what the storage raises."""

    def found(path: str) -> bool:
        stream = listed.storage.open(path)
        if stream is None:
            return _gone(listed, path)
        with stream:
            return holds_batch(stream, column.name, column.field_id, batch_ids)

    return _search(listed.own, found, tick)


def objects_with_values(listed: Listed, values: Collection[str], tick: Callable[[], object]) -> Searched:
    """The objects with one of these values: in the path, in a column, or anywhere in what their content unpacks to."""
    wanted = Values(tuple(sorted(values)))

    def found(path: str) -> bool:
        stream = listed.storage.open(path)
        if stream is None:
            return _gone(listed, path)
        with stream:
            content = stream.read()
        return holds(path, content, wanted)

    return _search(listed.paths, found, tick)


def _gone(listed: Listed, path: str) -> bool:
    """Raises: Unreadable, unless the object was deleted after the listing."""
    if listed.storage.find([path]):
        raise Unreadable("the storage refuses to show it")
    return False


def _search(paths: Collection[str], found: Callable[[str], bool], tick: Callable[[], object]) -> Searched:
    def search(path: str) -> bool | str:
        try:
            return found(path)
        except Unreadable as e:
            return str(e)
        except IsADirectoryError:
            return "it is a link to a folder, or a folder that cannot be listed"
        finally:
            tick()

    with ThreadPoolExecutor(PARALLEL_READS) as pool:
        results = {without_values(p): r for p, r in zip(paths, pool.map(search, paths), strict=True) if r}
    unreadable = {path: r for path, r in sorted(results.items()) if isinstance(r, str)}
    return Searched(tuple(sorted(results.keys() - unreadable.keys())), unreadable)
