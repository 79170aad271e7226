"""Every folder that a table's files may lie in: of now, of each metadata file that is still known, and of those that the
ledger remembers. I/O: reads metadata files."""

import gzip
import json
import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pyiceberg.io import FileIO
from pyiceberg.table import Table

from lethe.base import names
from lethe.erasure.strays import TABLE_FILES, Locations
from lethe.ledger.root import Location
from lethe.uri import contains, place, surely_contains

log = logging.getLogger(__name__)
READ_AT_ONCE: Final = 8


@dataclass(frozen=True)
class Known:
    """The locations, and the metadata files of which nobody can say what they named."""

    locations: Locations
    unread: tuple[str, ...] = ()


def locations_of(table: Table, remembered: Iterable[Location] = ()) -> Known:
    """Args:
    remembered: Locations with the properties that were set then, as the ledger has them.
    """
    metadata = table.metadata
    states: list[Location] = [(metadata.location, metadata.properties), *remembered]
    unread: list[str] = []
    with ThreadPoolExecutor(READ_AT_ONCE) as pool:
        files = [entry.metadata_file for entry in metadata.metadata_log]
        for file, found in zip(files, pool.map(lambda f: _state(table.io, f), files), strict=True):
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
    shared = {uri for uri in data if not any(surely_contains(o, uri) for o in own)}
    return Known(Locations(*(tuple(sorted(uris)) for uris in (own, shared, folders, data))), tuple(unread))


def of_this_table(table: Table, io: FileIO, locations: Locations, listed: Iterable[tuple[str, datetime]]) -> Locations:
    """The locations without those at which another table lives by now: what lies there is no longer this one's to judge.

    Args:
        listed: What lies below them.
    """
    ours = {place(table.metadata_location), *(place(e.metadata_file) for e in table.metadata.metadata_log)}
    newest: dict[str, tuple[datetime, str]] = {}
    for path, modified in listed:
        if not path.endswith(TABLE_FILES) or place(path) in ours:
            continue
        for own in locations.own:
            if contains(f"{own}/metadata", path):
                newest[own] = max((modified, path), newest.get(own, (modified, path)))
    taken = {own for own, (_, file) in newest.items() if _uuid(io, file) not in (None, str(table.metadata.table_uuid))}
    if not taken:
        return locations
    return Locations(
        tuple(uri for uri in locations.own if uri not in taken),
        tuple(sorted({*locations.shared, *taken})),
        locations.metadata,
        locations.data,
    )


def _state(io: FileIO, file: str) -> Location | None:
    """The location and the properties that a metadata file says; None: it is gone, or nobody can read it."""
    found = metadata_document(io, file)
    if found is None or not isinstance(found.get("location"), str):
        return None
    return found["location"], {str(k): str(v) for k, v in (found.get("properties") or {}).items()}


def _uuid(io: FileIO, file: str) -> str | None:
    found = metadata_document(io, file)
    return None if found is None else str(found.get("table-uuid"))


def metadata_document(io: FileIO, file: str) -> Mapping[str, Any] | None:
    """The content of a metadata file; None: the file does not exist, or cannot be read."""
    try:
        with io.new_input(file).open() as stream:
            content = bytes(stream.read())
        document = json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
    except Exception as e:
        log.info("a metadata file cannot be read: %s", type(e).__name__)
        return None
    return document if isinstance(document, dict) else None
