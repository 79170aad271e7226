"""Checks that no other table uses the folders of a table. I/O: reads metadata files and ledger roots that the table does not
need.

Two tables share a folder after DDL with a location, or if a table is renamed and its old name is used again. For each of them,
the files of the other look like orphans.
"""

import gzip
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from pyiceberg.io import FileIO

from lethe.base.errors import LedgerError
from lethe.buffer.batch import ListedObject
from lethe.vacuum.orphans import Folders, key_of

PARALLEL_READS: Final = 8
READ_AT_ONCE: Final = 64
MAX_ROOTS: Final = 500
_METADATA: Final = (".metadata.json", ".metadata.json.gz")


def other_table(
    io: FileIO, listed: Iterable[ListedObject], needed: Collection[str], folders: Folders, uuid: str
) -> str | None:
    """The URI of a metadata file in the table's own folder of metadata that is of another table, or that cannot be read; None:
    there is none.

    Args:
        needed: Keys (`key_of`) of the files that the table needs.
        uuid: Of the table.
    """
    candidates = [o.key for o in listed if o.key.endswith(_METADATA) and key_of(o.key) not in needed]
    own = [c for c in candidates if folders.metadata is None or c.startswith(f"{folders.metadata}/")]
    return next((uri for uri, found in _uuids(io, own) if found is not None and found != uuid), None)


def other_ledger(
    io: FileIO, listed: Iterable[ListedObject], needed: Collection[str], uuid: str, planned: Iterable[str] = ()
) -> str | None:
    """The URI of a ledger root of another table; None: none was found. Checks the roots to delete, and the newest of the others:
    a table that commits every few seconds has thousands.

    Args:
        listed: The files in the folder of ledgers.
        needed: Names of the files that the table needs.
        planned: URIs of the roots to delete.
    """
    roots = [o for o in listed if o.key.endswith("-root.json") and o.key.rpartition("/")[2] not in needed]
    newest = sorted(roots, key=lambda o: o.modified, reverse=True)[:MAX_ROOTS]
    uris = list(dict.fromkeys((*planned, *(o.key for o in newest))))
    return next((uri for uri, found in _uuids(io, uris) if found not in (None, "", uuid)), None)


def refused(table: str, location: str, found: str) -> LedgerError:
    """The error that no file of a location is removed.

    Args:
        found: The URI of a file of the other table.
    """
    return LedgerError(
        "FolderHoldsTable",
        f"{table}: another table uses the same location {location}: {found} belongs to it. Nothing below the location was "
        "removed, because files of the other table would be taken for orphans. Give one of the tables a location of its own. "
        "If the other table was dropped, delete the files that it left.",
    )


def _uuids(io: FileIO, uris: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """The table UUID in each document; empty: it is unreadable; None: it is missing. Reads some documents at a time."""

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
        for at in range(0, len(uris), READ_AT_ONCE):
            yield from pool.map(read, uris[at : at + READ_AT_ONCE])
