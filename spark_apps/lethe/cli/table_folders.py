"""Finds every folder that files of a table may be in, from its metadata files alone. Pure: the caller lists and reads.

This is independent of the code that erases, which takes the folders from the current metadata log and from the ledger. Here, each
metadata file counts that another one names in its log, or that lies in one of the folders, however old it is.
"""

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lethe.uri import place, surely_contains

_NAMES: Final = (".metadata.json", ".metadata.json.gz", ".gz.metadata.json")
_PATH_PREFIX, _PATH_SUFFIX = "write.", ".path"


@dataclass
class TableFolders:
    """The folders that are known until now."""

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
    """A metadata file; None: it is none, or it is damaged."""
    if content is None:
        return None
    try:
        document = json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
    except (OSError, EOFError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _dicts(value: Any) -> Iterator[Mapping[str, Any]]:
    yield from (v for v in value if isinstance(v, dict)) if isinstance(value, list) else ()
