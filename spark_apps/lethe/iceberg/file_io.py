"""One FileIO for all tables of a catalog that keep their files in the same way. I/O: creates clients.

PyIceberg makes a FileIO for each table that it loads, with a client of its own. The constructor of Arrow's S3 client waits for
all S3 requests of the process that are in flight, so that many tables would be loaded one after the other.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from pyiceberg.io import FileIO, load_file_io

from lethe.uri import scheme_of

KEPT_AT_MOST: Final = 16
# Beginnings of table properties that no FileIO reads.
_NOT_OF_FILES: Final = (
    "lethe.",
    "write.",
    "read.",
    "commit.",
    "history.",
    "format-version",
    "owner",
    "created-at",
    "gc.",
)


class SharedFileIO:
    """Replaces `_load_file_io` of a catalog, whose properties are `own`. Threads may share it.

    Tables whose own properties configure the access to files get a FileIO of their own.
    """

    def __init__(self, own: Mapping[str, str]) -> None:
        self._own = dict(own)
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, frozenset[tuple[str, str]]], FileIO] = OrderedDict()

    def __call__(self, properties: Mapping[str, str] | None = None, location: str | None = None) -> FileIO:
        of_files = {k: v for k, v in (properties or {}).items() if not k.startswith(_NOT_OF_FILES)}
        key = (scheme_of(location) if location else "", frozenset(of_files.items()))
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                found = self._kept[key] = load_file_io({**self._own, **of_files}, location)
            self._kept.move_to_end(key)
            while len(self._kept) > KEPT_AT_MOST:
                self._kept.popitem(last=False)
            return found
