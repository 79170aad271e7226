"""Finds all folders and files of a table, and checks that no other table uses its folders. I/O: reads.

Two tables share a folder after DDL with a location, or if a table is renamed and its old name is used again. For each of them,
the files of the other look like orphans.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table

from lethe.base import names
from lethe.base.errors import LedgerError
from lethe.base.objects import ListedObject
from lethe.decoder.objects import UnreadableObject
from lethe.erasure.strays import TABLE_FILES, Locations
from lethe.iceberg.metadata_file import documents_of, manifests_in
from lethe.ledger.root import Location
from lethe.uri import contains, place, surely_contains
from lethe.vacuum.housekeeping import Folders, key_of

PARALLEL_READS: Final = 8
_Document: TypeAlias = Mapping[str, Any] | UnreadableObject | None
"""The needed part of a metadata file. None: it is damaged, or is not there."""

READ_AT_ONCE: Final = 64
MAX_ROOTS: Final = 500
_METADATA: Final = (".metadata.json", ".metadata.json.gz")


@dataclass(frozen=True)
class KnownLocations:
    """The known locations of a table."""

    locations: Locations
    unread: tuple[str, ...] = ()
    """Unreadable metadata files, which may name further locations."""


def locations_of(table: Table, remembered: Iterable[Location] = ()) -> KnownLocations:
    """The locations of a table.

    Args:
        remembered: The locations in the ledger, with their properties.

    Raises:
        NoDecoder: No decoder can be started, or decoders end before they decode anything.
    """
    metadata = table.metadata
    states: list[Location] = [(metadata.location, metadata.properties), *remembered]
    unread: list[str] = []
    files = [entry.metadata_file for entry in metadata.metadata_log]
    documents = documents_of(table.io, files)
    for file in files:
        found = _state(documents[file])
        if found is None:
            unread.append(file)
        else:
            states.append(found)
    own = {location.rstrip("/") for location, _ in states}
    data = {f"{location}/data" for location in own} | {
        p[name].rstrip("/") for _, p in states for name in names.DATA_PROPERTIES if p.get(name)
    }
    folders = {f"{location}/metadata" for location in own} | {
        p[names.METADATA_PROPERTY].rstrip("/") for _, p in states if p.get(names.METADATA_PROPERTY)
    }
    folders |= {file.rpartition("/")[0] for file in (table.metadata_location, *files)}
    shared = {uri for uri in (*data, *folders) if not any(surely_contains(o, uri) for o in own)}
    return KnownLocations(Locations(*(tuple(sorted(uris)) for uris in (own, shared, folders, data))), tuple(unread))


def of_this_table(table: Table, io: FileIO, locations: Locations, listed: Iterable[tuple[str, datetime]]) -> Locations:
    """The locations without those in which another table has metadata: files there may belong to that table.

    Args:
        listed: The files below the locations, with the times of writing.

    Raises:
        NoDecoder: No decoder can be started, or decoders end before they decode anything.
    """
    ours = {place(table.metadata_location), *(place(e.metadata_file) for e in table.metadata.metadata_log)}
    folders: dict[str, list[str]] = {}  # of each metadata file that is not ours, the locations that it is in
    for path, _ in listed:
        if path.endswith(TABLE_FILES) and place(path) not in ours:
            found = [own for own in locations.own if contains(f"{own}/metadata", path)]
            if found:
                folders[path] = found
    # One metadata file of another table is enough, however many newer ones this table has left.
    read = documents_of(io, folders)
    taken = {own for path, found in folders.items() if _is_of_another(table, read[path]) for own in found}
    if not taken:
        return locations
    return Locations(
        tuple(uri for uri in locations.own if uri not in taken),
        tuple(sorted({*locations.shared, *taken})),
        locations.metadata,
        locations.data,
    )


def _state(document: _Document) -> Location | None:
    """The location and the properties in a metadata file; None: the file is missing or unreadable."""
    if document is None or isinstance(document, UnreadableObject) or not isinstance(document.get("location"), str):
        return None
    return document["location"], document["properties"]


def _is_of_another(table: Table, document: _Document) -> bool:
    """Whether a metadata file may be that of another table. A damaged file is not."""
    if isinstance(document, UnreadableObject):
        return bool(document.why)
    return document is not None and document.get("table-uuid") not in (None, str(table.metadata.table_uuid))


def reachable(table: Table) -> set[str]:
    """The keys of all files that the table's metadata and all retained snapshots name.

    That includes those of branches, tags and staged snapshots: data and delete files, manifests, manifest lists,
    statistics, current and earlier metadata. Reads each manifest once. `lethe.vacuum.housekeeping.key_of` makes the
    keys.

    The files found until then are not all.

    Raises:
        Exception: What an unreadable manifest raises.
    """
    metadata = table.metadata
    keys = {key_of(table.metadata_location), *(key_of(entry.metadata_file) for entry in metadata.metadata_log)}
    keys |= {key_of(s.statistics_path) for s in (*metadata.statistics, *metadata.partition_statistics)}
    keys |= {key_of(s.manifest_list) for s in metadata.snapshots}
    with ThreadPoolExecutor(PARALLEL_READS) as pool:
        manifests: dict[str, ManifestFile] = {}
        for of_snapshot in pool.map(lambda s: s.manifests(table.io), metadata.snapshots):
            manifests |= {m.manifest_path: m for m in of_snapshot}
        keys |= {key_of(path) for path in manifests}
        for files in pool.map(lambda m: _files(table, m), manifests.values()):
            keys.update(files)
    return keys


def reached_by(io: FileIO, document: Mapping[str, Any]) -> set[str]:
    """The URIs of all metadata files that the metadata of a table names. Of what is unreadable, only the name is known.

    Args:
        document: The parsed metadata.

    Raises:
        NoDecoder: No decoder can be started, or decoders end before they decode anything.
    """
    files = {str(e.get("metadata-file")) for e in document.get("metadata-log") or ()}
    for kind in ("statistics", "partition-statistics"):
        files |= {str(s.get("statistics-path")) for s in document.get(kind) or ()}
    lists = [str(s["manifest-list"]) for s in document.get("snapshots") or () if s.get("manifest-list")]
    return files.union(lists, manifests_in(io, lists))


def _files(table: Table, manifest: ManifestFile) -> set[str]:
    """Leaves out removed files: a retained snapshot that needs one lists it in another manifest."""
    return {key_of(e.data_file.file_path) for e in manifest.fetch_manifest_entry(table.io, discard_deleted=True)}


def other_table(
    io: FileIO, listed: Iterable[ListedObject], needed: Collection[str], folders: Folders, uuid: str
) -> str | None:
    """The URI of a metadata file of another table in the table's own folder of metadata.

    Or of one that cannot be read. None: there is none.

    Args:
        needed: Keys (`key_of`) of the files that the table needs.
        uuid: Of the table.

    Raises:
        NoDecoder: No decoder can be started, or decoders end before they decode anything.
    """
    candidates = [o.key for o in listed if o.key.endswith(_METADATA) and key_of(o.key) not in needed]
    own = [c for c in candidates if folders.metadata is None or c.startswith(f"{folders.metadata}/")]
    return next(_of_others(io, own, (uuid,)), None)


def other_ledger(
    io: FileIO, listed: Iterable[ListedObject], needed: Collection[str], uuid: str, planned: Iterable[str] = ()
) -> str | None:
    """The URI of a ledger root of another table; None: none was found.

    Checks the roots to delete, and the newest of the others: a table that commits every few seconds has thousands.

    Args:
        listed: The files in the folder of ledgers.
        needed: Names of the files that the table needs.
        planned: URIs of the roots to delete.

    Raises:
        NoDecoder: No decoder can be started, or decoders end before they decode anything.
    """
    roots = [o for o in listed if o.key.endswith("-root.json") and o.key.rpartition("/")[2] not in needed]
    newest = sorted(roots, key=lambda o: o.modified, reverse=True)[:MAX_ROOTS]
    uris = list(dict.fromkeys((*planned, *(o.key for o in newest))))
    return next(_of_others(io, uris, (uuid, None)), None)


def refused(table: str, location: str, file_uri: str) -> LedgerError:
    """The error that no file of a location is removed.

    Args:
        file_uri: The URI of a file of the other table.
    """
    return LedgerError(
        "FolderHoldsTable",
        f"{table}: another table uses the same location {location}: {file_uri} belongs to it. Nothing below the location was "
        "removed, because files of the other table would be taken for orphans. Give one of the tables a location of its own. "
        "If the other table was dropped, delete the files that it left.",
    )


def _of_others(io: FileIO, uris: Sequence[str], uuids: Collection[str | None]) -> Iterator[str]:
    """The documents of other tables, and those that cannot be read. Reads some at a time.

    Args:
        uuids: The UUIDs in the table's own documents. With None, documents without one are not of another table.
    """
    for start in range(0, len(uris), READ_AT_ONCE):
        for uri, document in documents_of(io, uris[start : start + READ_AT_ONCE]).items():
            if isinstance(document, UnreadableObject):
                is_of_other = bool(document.why) or io.new_input(uri).exists()
            else:
                is_of_other = (document or {}).get("table-uuid") not in uuids
            if is_of_other:
                yield uri
