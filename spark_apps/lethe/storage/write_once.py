"""Writes and reads files that are written once and never changed. I/O."""

from collections.abc import Mapping
from datetime import UTC, datetime

from pyiceberg.io import FileIO

from lethe.base.errors import InputError
from lethe.base.retention_lock import Retention
from lethe.storage.object_store import not_retained, open_store
from lethe.uri import backend_of, scheme_of

TAKEN = "RecordTaken"


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
