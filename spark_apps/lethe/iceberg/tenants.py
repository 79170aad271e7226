"""Checks that no other table uses the folders of a table. I/O: reads metadata files and ledger roots that the table does not
need.

Two tables share a folder after DDL with a location, or if a table is renamed and its old name is used again. For each of them,
the files of the other look like orphans.
"""

import gzip
import json
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from pyiceberg.io import FileIO

from lethe.buffer.batch import ListedObject
from lethe.vacuum.orphans import Folders, key_of

PARALLEL_READS: Final = 8
MAX_ROOTS: Final = 100
_METADATA: Final = (".metadata.json", ".metadata.json.gz")


def other_table(
    io: FileIO, listed: Iterable[ListedObject], needed: Collection[str], folders: Folders, uuid: str
) -> str | None:
    """The URI of a metadata file in the table's own folders that may be of another table; None: there is none.

    Args:
        needed: Keys (`key_of`) of the files that the table needs.
        uuid: Of the table.
    """
    candidates = [o.key for o in listed if o.key.endswith(_METADATA) and key_of(o.key) not in needed]
    own = [c for c in candidates if folders.metadata is None or c.startswith(f"{folders.metadata}/")]
    return next((uri for uri, found in _uuids(io, own) if found is not None and found != uuid), None)


def other_ledger(
    io: FileIO, listed: Iterable[ListedObject], needed: Collection[str], planned: Iterable[str], uuid: str
) -> str | None:
    """The URI of a ledger root of another table; None: none was found. Checks the roots to delete, and the newest of the others.

    Args:
        needed: Names of the files that the table needs.
        planned: URIs of the roots to delete.
    """
    roots = [o for o in listed if o.key.endswith("-root.json") and o.key.rpartition("/")[2] not in needed]
    newest = sorted(roots, key=lambda o: o.modified, reverse=True)[:MAX_ROOTS]
    uris = dict.fromkeys((*planned, *(o.key for o in newest)))
    return next((uri for uri, found in _uuids(io, uris) if found not in (None, "", uuid)), None)


def _uuids(io: FileIO, uris: Iterable[str]) -> list[tuple[str, str | None]]:
    """The table UUID in each document; empty: it is unreadable; None: it is missing."""

    def read(uri: str) -> tuple[str, str | None]:
        try:
            with io.new_input(uri).open() as stream:
                content = stream.read()
        except FileNotFoundError:
            return uri, None
        try:
            document: Any = json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
            return uri, str(document.get("table-uuid") or "")
        except (ValueError, OSError, AttributeError, EOFError):
            return uri, ""

    with ThreadPoolExecutor(PARALLEL_READS, thread_name_prefix="lethe-tenants") as pool:
        return list(pool.map(read, uris))
