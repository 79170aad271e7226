"""One interface for S3, Google Cloud Storage, Azure and local folders. I/O. Keys are full URIs."""

import io
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol

from pyiceberg.io import FileIO

from lethe.base.errors import InputError, TransientError
from lethe.base.objects import BufferedObject, ListedObject, Retention
from lethe.uri import Backend, backend_of, scheme_of

# How long a store of a remote service is used again, and how many at most.
STORE_KEPT_SECONDS: Final = 300.0
STORES_KEPT_AT_MOST: Final = 32
NO_BUCKET: Final = "NoSuchBucket"
DENIED: Final = "AccessDenied"
NOT_VISIBLE: Final = (NO_BUCKET, DENIED)
"""The codes for a folder that does not exist or that these credentials may not list."""

_AGAIN: Final = "The request is repeated later."
_ADVICE: Final = {
    NO_BUCKET: "Create the bucket, or correct the URI.",
    DENIED: "Check the credentials of the catalog's properties and what they are allowed to do.",
}

_READ_BY_CLIENTS: Final = (
    *(f"AWS_{name}" for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE", "REGION")),
    *(f"AWS_{name}" for name in ("DEFAULT_REGION", "ENDPOINT_URL", "ENDPOINT_URL_S3", "ROLE_ARN", "CA_BUNDLE")),
    *(f"AWS_{name}" for name in ("WEB_IDENTITY_TOKEN_FILE", "CONFIG_FILE", "SHARED_CREDENTIALS_FILE")),
    *("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
    *("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY"),
    *(f"AZURE_{name}" for name in ("CLIENT_ID", "CLIENT_SECRET", "TENANT_ID", "FEDERATED_TOKEN_FILE")),
    *(f"AZURE_STORAGE_{name}" for name in ("ACCOUNT_NAME", "ACCOUNT_KEY", "CONNECTION_STRING", "SAS_TOKEN")),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("HOME", "SSL_CERT_FILE", "SSL_CERT_DIR"),
)
"""The variables of the environment that clients of stores read."""

TAKEN = "RecordTaken"


class StoreError(TransientError):
    """A store refused a request or did not answer. Nothing was changed, except if it is a `WriteUnknown`."""

    def __init__(self, uri: str, code: str) -> None:
        """Create `StoreError`.

        Args:
            code: `NO_BUCKET`, `DENIED`, the store's own error code, an HTTP status, or the kind of a connection failure.
        """
        super().__init__("StorageUnavailable", f"{uri}: the store answers {code}. {_ADVICE.get(code, _AGAIN)}")
        self.uri = uri
        self.code = code


class WriteUnknown(StoreError):
    """The store did not answer a request to create an object, which may exist now or later."""


@dataclass(frozen=True)
class Content:
    """An object as it was read."""

    data: bytes
    etag: str
    """The ETag without quotes, as in a listing; empty: the store has none."""


class ObjectReader(io.RawIOBase):
    """A seekable object, read in ranges. Reading fails if the object was overwritten since it was opened."""

    size: int  # in bytes
    etag: str  # without quotes, as in a listing


class ObjectStore(Protocol):
    """A store with objects. Methods raise StoreError, unless their docstring says otherwise.

    What is atomic depends on the backend:

    | operation           | S3                        | GCS, Azure                | local folders                |
    |---------------------|---------------------------|---------------------------|------------------------------|
    | `put_if_absent`     | atomic (If-None-Match)    | atomic                    | atomic (link)                |
    | `copy`              | atomic (CopySourceIfMatch)| checked before and after  | checked before the last step |
    | `delete_unchanged`  | atomic (If-Match), where the server knows it | check, then delete | check, then delete |
    | `delete`            | check, then delete        | check, then delete        | check, then delete           |
    """

    def list(self, uri: str, hidden: bool = True, after: str = "") -> Iterator[ListedObject]:
        """List the objects below a URI, page by page, those of a folder one after the other.

        Args:
            hidden: Include folders directly below the URI whose names begin with `_` or `.`. If False, such folders cost
                next to nothing.
            after: The name of a folder or file directly below the URI. Names that sort before it are left out, and it
                may be if it is a file. "": none are.
        """
        ...

    def names(self, folder: str, prefix: str = "", at_most: int | None = None) -> Iterator[str]:
        """List the names of the objects directly in a folder that begin with `prefix`.

        Args:
            at_most: Stop after looking at about this many names; None: list all.
        """
        ...

    def head(self, uri: str) -> ListedObject | None:
        """Return the object of exactly this URI; None: it does not exist."""
        ...

    def read(self, uri: str) -> Content | None:
        """Read a whole object. Return None if it does not exist."""
        ...

    def read_range(self, uri: str, start: int, size: int) -> bytes | None:
        """Read up to `size` bytes from offset `start`. Return None if the object does not exist."""
        ...

    def read_unchanged(self, listed: BufferedObject, start: int, size: int) -> bytes | None:
        """Read up to `size` bytes from offset `start`, with one request.

        Return None if the object does not exist or differs from what was listed, or if the store cannot tell with one request.
        """
        ...

    def open(self, uri: str) -> ObjectReader | None:
        """Open an object for reading in ranges. Return None if it does not exist."""
        ...

    def put(self, uri: str, content: bytes) -> None:
        """Write an object, whole or not at all, and overwrite an existing one."""
        ...

    def put_if_absent(self, uri: str, content: bytes, retention: Retention | None = None) -> bool:
        """Create an object, whole or not at all, if there is none. Return False if there is one.

        Args:
            retention: How long the store must keep the object from now on (S3 only); None: no object lock.

        WriteUnknown.

        Raises:
            InputError: UnsupportedStorage, RecordNotRetained and StoreError: nothing was created.
        """
        ...

    def retained_until(self, uri: str) -> datetime | None:
        """Return until when an object lock keeps the newest version of an object; None: it has no lock."""
        ...

    def copy(self, source: BufferedObject, target: str) -> bool:
        """Copy an object within the store. Return False if it does not exist or differs from what was listed."""
        ...

    def delete(self, objects: Iterable[BufferedObject]) -> int:
        """Delete objects that are unchanged since they were listed, in bulk. Return how many no longer exist."""
        ...

    def delete_unchanged(self, listed: BufferedObject) -> bool:
        """Delete one object if it is unchanged since it was listed. Return False if it differs; True if it no longer exists."""
        ...

    def remove(self, uri: str) -> None:
        """Delete an object, whatever it contains. A missing object is not an error."""
        ...


class FolderListing:
    """The objects directly in one folder of a store, by name."""

    def __init__(self, store: ObjectStore, uri: str) -> None:
        self.uri = uri.rstrip("/")
        self._store = store

    def names(self, prefix: str) -> list[str]:
        """The names of all objects with this prefix. Names of subfolders are left out."""
        return list(self._store.names(self.uri, prefix))

    def read(self, name: str) -> bytes | None:
        """The whole content of an object; None: it does not exist."""
        content = self._store.read(self._of(name))
        return None if content is None else content.data

    def create(self, name: str, content: bytes) -> bool:
        """Create an object with this content, unless it exists, as `ObjectStore.put_if_absent`."""
        return self._store.put_if_absent(self._of(name), content)

    def replace(self, name: str, content: bytes) -> None:
        """Write an object, whole or not at all, whether or not one of this name exists."""
        self._store.put(self._of(name), content)

    def delete(self, name: str) -> None:
        """Delete an object, whatever it contains. A missing object is not an error."""
        self._store.remove(self._of(name))

    def _of(self, name: str) -> str:
        return f"{self.uri}/{name}"


def not_created(uri: str, code: str) -> TransientError:
    """The error of a creation that the store refused."""
    return TransientError(
        "StorageRefused", f"{uri}: creating it was refused ({code}). Nothing was committed. Check the storage's rights."
    )


def not_retained(uri: str, why: str) -> InputError:
    """The error of an object that requires an object lock and has none."""
    return InputError(
        "RecordNotRetained",
        f"{uri} has to be kept by an object lock (the chart's value erase.record.retention), and {why}. Its erasure stays "
        "open. Keep the table in an S3 bucket that was made with object lock, or set the value to 0 days.",
    )


def open_store(uri: str, properties: Mapping[str, str]) -> ObjectStore:
    """Open the store of a URI. Stores of the same service with the same properties share their connections for some minutes.

    Args:
        properties: Of the catalog, with PyIceberg's names (`s3.endpoint`, `gcs.…`, `adls.…`).

    Raises:
        InputError: UnsupportedScheme.
    """
    backend = backend_of(uri)
    if backend is None:
        raise InputError(
            "UnsupportedScheme",
            f"{uri}: expected an s3://, gs://, abfss:// or file:// URI, found {scheme_of(uri)}://.",
        )
    if backend is Backend.LOCAL:
        from lethe.storage.local_store import LocalStore

        return LocalStore(uri)
    return _REMOTE.get(backend, properties)


class _RemoteStores:
    """The remote stores that were opened lately.

    A client costs tens of milliseconds, mostly for the certificates that it trusts. Credentials outside of the properties may
    change at any time, so no store is kept for long.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[tuple[object, ...], tuple[float, ObjectStore]] = {}

    def get(self, backend: Backend, properties: Mapping[str, str]) -> ObjectStore:
        from lethe.storage.remote_store import RemoteStore, S3Store

        # Clients read the environment when they are made. A child process must not use the connections of its parent.
        key = (os.getpid(), backend, frozenset(properties.items()), tuple(map(os.environ.get, _READ_BY_CLIENTS)))
        with self._lock:
            now = time.monotonic()
            until, store = self._kept.get(key, (now, None))
            if store is None or until <= now:
                self._kept = {k: kept for k, kept in self._kept.items() if kept[0] > now}
                if len(self._kept) >= STORES_KEPT_AT_MOST:
                    self._kept.clear()
                own = dict(properties)
                store = S3Store(own) if backend is Backend.S3 else RemoteStore(backend, own)
                self._kept[key] = now + STORE_KEPT_SECONDS, store
            return store


_REMOTE: Final = _RemoteStores()


def open_folder(uri: str, properties: Mapping[str, str]) -> FolderListing:
    """Open the listing of one folder of a store.

    Raises:
        InputError: UnsupportedStorage.
    """
    if backend_of(uri) is None:
        raise InputError(
            "UnsupportedStorage",
            f"{uri}: tables of a catalog of type hadoop can be kept in file://, s3://, gs:// and abfss:// folders, found "
            f"{scheme_of(uri)}://. Where a rename refuses to replace a file, as in HDFS, Iceberg's own Hadoop catalog is safe; "
            "Lethe does not use it.",
        )
    return FolderListing(open_store(uri, properties), uri)


def write_once(
    uri: str, content: bytes, io: FileIO, properties: Mapping[str, str], retention: Retention | None = None
) -> None:
    """Write a file, unless it exists with the same content.

    In the stores that Lethe supports, the creation is atomic: only one of two writers succeeds. In other storage, PyIceberg
    checks first and then writes.

    Args:
        properties: Of the catalog, with PyIceberg's names.
        retention: How long the store must keep the file; None: no object lock.

    TransientError.

    Raises:
        InputError: `RecordTaken`, if the file exists with other content. `RecordNotRetained`, if it cannot have an object
            lock. `UnsupportedStorage`.
    """
    if backend_of(uri) is None:
        if retention is not None:
            raise not_retained(uri, f"{scheme_of(uri)} storage has none")
        if _created(uri, content, io):
            return
    else:
        store, now = open_store(uri, properties), datetime.now(UTC)
        if store.put_if_absent(uri, content, retention):
            return
        existing = store.read(uri)
        if existing is not None and existing.data == content:
            if retention is not None and (store.retained_until(uri) or now) <= now:
                raise not_retained(uri, "it exists without one")
            return
    raise InputError(TAKEN, f"{uri} exists with another content, and it is never overwritten. Find out who wrote it.")


def read(uri: str, io: FileIO, properties: Mapping[str, str]) -> bytes | None:
    """Read such a file; None: it does not exist.

    Raises:
        StoreError: A store refused a request or did not answer.
        Exception: Errors of PyIceberg.
    """
    if backend_of(uri) is not None:
        content = open_store(uri, properties).read(uri)
        return None if content is None else content.data
    try:
        with io.new_input(uri).open() as stream:
            return bytes(stream.read())
    except FileNotFoundError:
        return None


def _created(uri: str, content: bytes, io: FileIO) -> bool:
    try:
        with io.new_output(uri).create(overwrite=False) as stream:
            stream.write(content)
        return True
    except FileExistsError:
        return read(uri, io, {}) == content
