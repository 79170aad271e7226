"""Searches the storage for what an erasure removed: the files, rows of the batches, the values. I/O: writes and deletes nothing.

This is independent of the code that erases. Folders follow from all metadata files, objects are listed by two clients, and
nothing is passed over because of its name. What cannot be taken apart completely is reported, because it may hold a value.
"""

import gzip
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, BinaryIO, Final

from pyiceberg.schema import Schema

from lethe.base.errors import InputError, TransientError
from lethe.cli.content_search import (
    SearchedColumn,
    SearchedValues,
    UnsearchableContent,
    bound_values,
    holds,
    holds_batch,
)
from lethe.cli.opening import Opened
from lethe.decoder.limits import Limits
from lethe.decoder.objects import ObjectWork, UnreadableObject, read_objects
from lethe.decoder.process import NoDecoder
from lethe.erasure.strays import Locations
from lethe.iceberg.locations import of_this_table
from lethe.search.object_versions import Storage, VersionsDenied, open_storage
from lethe.storage.object_store import open_store
from lethe.storage.vended import of_table
from lethe.uri import Place, backend_of, contains, place, surely_contains, without_values

_NAMES: Final = (".metadata.json", ".metadata.json.gz", ".gz.metadata.json")
_PATH_PREFIX, _PATH_SUFFIX = "write.", ".path"

# Decoders at once, and the memory of each. An auditor has a machine of their own, and data files may be large.
DECODERS: Final = 4
MEMORY_BYTES: Final = 4 * 1024**3
_LIMITS: Final = Limits(memory_bytes=MEMORY_BYTES)


@dataclass
class TableFolders:
    """The folders that are known until now.

    Each metadata file counts that another one names in its log, or that lies in one of the folders, however old it is. The caller
    lists and reads.
    """

    uuid: str
    read: Callable[[str], bytes | None]
    """The content of an object; None: it does not exist, or may not be read."""
    own: set[str] = field(default_factory=set)
    """Locations of the table."""
    others: set[str] = field(default_factory=set)
    """Folders that its properties name, or that metadata is in."""
    _known: set[Any] = field(default_factory=set)

    @property
    def roots(self) -> list[str]:
        """The folders to list; none contains another."""
        folders: list[str] = []
        for uri in sorted({*self.own, *self.others}, key=lambda u: (len(place(u).names), u)):
            if not any(surely_contains(outer, uri) for outer in folders):
                folders.append(uri)
        return folders

    def follow(self, metadata_file: str) -> None:
        """Read a metadata file, and those that it names in its log, and those that they name."""
        waiting = [metadata_file]
        while waiting:
            uri = waiting.pop()
            if place(uri) in self._known:
                continue
            self._known.add(place(uri))
            document = _parsed(self.read(uri))
            if document is None or document.get("table-uuid") not in (None, self.uuid):
                continue
            self.others.add(uri.rpartition("/")[0])
            self._add(document)
            waiting += [str(e["metadata-file"]) for e in _dicts(document.get("metadata-log")) if e.get("metadata-file")]

    def find_in(self, listed: Iterable[str]) -> None:
        """Follow the metadata files among these objects."""
        for path in listed:
            if path.endswith(_NAMES):
                self.follow(path)

    def _add(self, document: Mapping[str, Any]) -> None:
        if isinstance(document.get("location"), str):
            self.add(document["location"], document.get("properties") or {})
        for snapshot in _dicts(document.get("snapshots")):
            if snapshot.get("manifest-list"):
                self.others.add(str(snapshot["manifest-list"]).rpartition("/")[0])

    def add(self, location: str, properties: Mapping[str, Any]) -> None:
        """Add the folders of a location and of the paths in properties.

        Args:
            properties: Of the table while it had this location.
        """
        self.own.add(location.rstrip("/"))
        paths = (v for k, v in properties.items() if k.startswith(_PATH_PREFIX) and k.endswith(_PATH_SUFFIX) and v)
        self.others.update(str(p).rstrip("/") for p in paths)


def _parsed(content: bytes | None) -> Mapping[str, Any] | None:
    """The content of a metadata file; None: the object is no metadata file, or it is damaged."""
    if content is None:
        return None
    try:
        document = json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
    except (OSError, EOFError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _dicts(value: Any) -> Iterator[Mapping[str, Any]]:
    yield from (v for v in value if isinstance(v, dict)) if isinstance(value, list) else ()


@dataclass(frozen=True)
class ListedObjects:
    """The objects below the locations of a table, including deleted objects that still have versions."""

    storage: Storage
    paths: tuple[str, ...]
    """The paths of all objects."""
    own: tuple[str, ...]
    """The paths of the objects in folders that contain only files of this table."""
    unlisted: Mapping[str, str] = field(default_factory=dict)
    """Location -> why it cannot be listed."""


@dataclass(frozen=True)
class StorageSearch:
    """The outcome of a search. Paths are without partition values."""

    holding: tuple[str, ...] = ()
    """Objects that hold what was searched for."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Object -> why a part of it cannot be read."""


def list_locations(opened: Opened) -> ListedObjects:
    """List the locations of a table.

    Raises:
        InputError: VersionsNotListed.
        TransientError: What the storage raises.
    """
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
            there = [*storage.list_below(uri)]
            if backend_of(uri) is not None:
                there += ((o.key, o.modified) for o in open_store(uri, properties).list(uri))
            locations = {place(path): (path, modified) for path, modified in reversed(there)}
            listed |= locations
            folders.find_in(path for path, _ in locations.values())
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
    return ListedObjects(storage, paths, tuple(p for p in paths if any(contains(o, p) for o in alone)), unlisted)


def files_present(listed: ListedObjects, record: Mapping[str, Any]) -> list[str]:
    """The files that a record lists as removed and that exist; paths without partition values."""
    gone = {place(str(f["path"])) for f in _dicts(record.get("files")) if "path" in f}
    return sorted({name for path in listed.paths if place(name := without_values(path)) in gone})


def files_with_batches(
    listed: ListedObjects, column: SearchedColumn, batch_ids: Collection[str], tick: Callable[[], object]
) -> StorageSearch:
    """The data files with rows of one of these batches, whatever their names.

    Raises:
        Exception: What the storage raises.
    """
    return _search(listed, listed.own, BatchWork(_LIMITS, column, frozenset(batch_ids)), tick)


def objects_with_values(
    listed: ListedObjects, values: Collection[str], schemas: Collection[Schema], tick: Callable[[], object]
) -> StorageSearch:
    """The objects with one of these values.

    In the path, in a column, in a bound of one, or anywhere in what their content unpacks to.

    Args:
        schemas: All of the table.
    """
    searched = SearchedValues(tuple(sorted(values)), bound_values(values, schemas))
    return _search(listed, listed.paths, ValuesWork(_LIMITS, searched), tick)


@dataclass(frozen=True)
class BatchWork(ObjectWork):
    """Whether a data file has a row of one of some batches."""

    column: SearchedColumn
    batch_ids: frozenset[str]

    def read(self, stream: BinaryIO, path: str) -> Any:
        """See `ObjectWork`. A text: why it cannot be searched."""
        del path
        try:
            return holds_batch(stream, self.column, self.batch_ids)
        except UnsearchableContent as e:
            return str(e)


@dataclass(frozen=True)
class ValuesWork(ObjectWork):
    """Whether an object holds one of some values."""

    values: SearchedValues = field(repr=False)

    def read(self, stream: BinaryIO, path: str) -> Any:
        """See `ObjectWork`. A text: why it cannot be searched."""
        try:
            return holds(path, stream.read(), self.values)
        except UnsearchableContent as e:
            return str(e)


def _search(listed: ListedObjects, paths: Sequence[str], work: ObjectWork, tick: Callable[[], object]) -> StorageSearch:
    """Search objects with decoders, because anyone may have written them.

    Raises:
        TransientError: `ReadingFailed`.
    """
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
    hidden = listed.storage.find(p for p, r in results.items() if r == UnreadableObject() and p not in folders)
    unreadable = {
        **{p: r for p, r in results.items() if isinstance(r, str)},
        **{p: r.why for p, r in results.items() if isinstance(r, UnreadableObject) and r.why},
        **dict.fromkeys(folders, "it is a link to a folder, or a folder that cannot be listed"),
        **dict.fromkeys(hidden, "the storage refuses to show it"),  # the others were deleted after the listing
    }
    holding = {without_values(p) for p, r in results.items() if r is True}
    named = {without_values(p): why for p, why in sorted(unreadable.items())}
    return StorageSearch(tuple(sorted(holding)), {p: why for p, why in named.items() if p not in holding})
