"""Opens files with PyIceberg, with one client for all who need the same. I/O."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Final, TypeAlias

from pyarrow.fs import AzureFileSystem, FileSystem, S3FileSystem
from pyiceberg.io import PY_IO_IMPL, S3_RETRY_STRATEGY_IMPL, FileIO, load_file_io
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties

from lethe.storage.azure import AzureAccount
from lethe.uri import Backend, backend_of

SHARED: Final = f"{__name__}.SharedFileIO"
"""The value of PyIceberg's property `py-io-impl`."""
_KEPT_AT_MOST: Final = 32
_Key: TypeAlias = tuple[str, str | None, frozenset[tuple[str, str]]]
"""Scheme, host or bucket, and the properties of files."""


def file_io(properties: Mapping[str, str], location: str) -> FileIO:
    """A FileIO for a location: SharedFileIO, or the class that the properties name.

    Args:
        properties: Of the catalog or of a table (`lethe.storage.vended.of_table`), with PyIceberg's names.

    Raises:
        ValueError: PyIceberg cannot load the class.
    """
    return load_file_io({PY_IO_IMPL: SHARED, **properties}, location)


class _Clients:
    """The clients that threads share, by properties."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[_Key, Future[FileSystem]] = OrderedDict()

    def get(self, key: _Key, create: Callable[[], FileSystem]) -> FileSystem:
        """The client of a key. One thread creates it, and others that need it wait.

        Raises:
            Exception: What `create` raises.
        """
        with self._lock:
            entry = self._kept.get(key)
            mine = entry is None
            if entry is None:
                entry = self._kept[key] = Future()
            self._kept.move_to_end(key)
            while len(self._kept) > _KEPT_AT_MOST:
                self._kept.popitem(last=False)
        if mine:
            try:
                entry.set_result(create())
            except BaseException as e:
                with self._lock:
                    if self._kept.get(key) is entry:
                        del self._kept[key]
                entry.set_exception(e)
        return entry.result()


_clients: Final = _Clients()


class SharedFileIO(PyArrowFileIO):
    """Two FileIO with the same properties share their clients.

    PyIceberg makes a FileIO for each table that it loads, and a SQL catalog another one for the table's metadata, each with a
    client of its own. The constructor of Arrow's S3 client waits for all S3 requests of the process that are in flight, so that
    many tables would be loaded one after the other.

    It also opens `abfss://CONTAINER@ACCOUNT.HOST/PATH`, which PyIceberg hands to Arrow as if the container had this whole name,
    and writes a small file to S3 with one request. PyIceberg's client begins a multipart upload for each file, which takes three.
    """

    @staticmethod
    def parse_location(location: str, properties: Properties = EMPTY_DICT) -> tuple[str, str, str]:
        """Split a location into its scheme, its host or bucket, and the path for the client of these two."""
        scheme, netloc, path = PyArrowFileIO.parse_location(location, properties)
        if netloc and backend_of(location) is Backend.AZURE:
            path = netloc.partition("@")[0] + path.removeprefix(netloc)
        return scheme, netloc, path

    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> FileSystem:
        key = (scheme, netloc, frozenset(self.properties.items()))
        return _clients.get(key, lambda: self._new_client(scheme, netloc))

    def _new_client(self, scheme: str, netloc: str | None) -> FileSystem:
        if backend_of(f"{scheme}://{netloc}") is Backend.AZURE:
            return AzureFileSystem(**AzureAccount.of(netloc or "", self.properties).of_arrow())
        client = super()._initialize_fs(scheme, netloc)
        # A copy has no strategy for retries, so a client that was given one stays as it is.
        if isinstance(client, S3FileSystem) and S3_RETRY_STRATEGY_IMPL not in self.properties:
            copy, (options,) = client.__reduce__()
            return copy({**options, "allow_delayed_open": True})
        return client
