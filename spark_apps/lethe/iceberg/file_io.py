"""PyIceberg's FileIO with clients that all tables of a catalog share. I/O: creates clients.

PyIceberg makes a FileIO for each table that it loads, and a SQL catalog another one for the table's metadata, each with a client
of its own. The constructor of Arrow's S3 client waits for all S3 requests of the process that are in flight, so that many tables
would be loaded one after the other.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeAlias

from pyarrow.fs import FileSystem
from pyiceberg.io.pyarrow import PyArrowFileIO

# For PyIceberg's property `py-io-impl`.
IMPLEMENTATION: Final = f"{__name__}.SharedFileIO"
KEPT_AT_MOST: Final = 32
# Scheme, host or bucket, and the properties of files.
_Key: TypeAlias = tuple[str, str | None, frozenset[tuple[str, str]]]


class _Clients:
    """Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[_Key, Future[FileSystem]] = OrderedDict()

    def get(self, key: _Key, create: Callable[[], FileSystem]) -> FileSystem:
        """The client of a key. One thread creates it, and others that need it wait. Raises: what `create` raises."""
        with self._lock:
            found = self._kept.get(key)
            mine = found is None
            if found is None:
                found = self._kept[key] = Future()
            self._kept.move_to_end(key)
            while len(self._kept) > KEPT_AT_MOST:
                self._kept.popitem(last=False)
        if mine:
            try:
                found.set_result(create())
            except BaseException as e:
                with self._lock:
                    if self._kept.get(key) is found:
                        del self._kept[key]
                found.set_exception(e)
        return found.result()


_clients: Final = _Clients()


class SharedFileIO(PyArrowFileIO):
    """Two FileIO with the same properties share their clients."""

    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> FileSystem:
        key = (scheme, netloc, frozenset(self.properties.items()))
        return _clients.get(key, lambda: super(SharedFileIO, self)._initialize_fs(scheme, netloc))
