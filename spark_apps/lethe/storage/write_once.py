"""A file that is written once and never changed: created only if there is none of its name. I/O."""

from collections.abc import Mapping
from datetime import UTC, datetime

from pyiceberg.io import FileIO

from lethe.base.errors import InputError
from lethe.erasure.retention_lock import Retention
from lethe.storage.exclusive_folder import LocalFolder, S3Folder, not_retained
from lethe.uri import is_local, is_s3, scheme_of

TAKEN = "RecordTaken"


def write_once(
    uri: str, content: bytes, io: FileIO, properties: Mapping[str, str], retention: Retention | None = None
) -> None:
    """Write a file, unless it is there with the same content.

    S3 and local files are created on a condition, so that of two writers one wins. Of other storage PyIceberg looks first and
    writes then.

    Args:
        properties: The catalog's, as PyIceberg names them.
        retention: How long the store has to keep it; None: as it keeps everything.
    Raises: InputError: `RecordTaken`, if there is another content; `RecordNotRetained`, if this storage has no object lock;
        `UnsupportedStorage`. TransientError; what the store raises.
    """
    folder_uri, _, name = uri.rpartition("/")
    if retention is not None and not is_s3(uri):
        raise not_retained(uri, f"{scheme_of(uri)} storage has none")
    if is_s3(uri):
        folder, now = S3Folder(folder_uri, properties), datetime.now(UTC)
        if folder.create(name, content, retention, now):
            return
        if folder.read(name) == content:
            if retention is not None and (folder.kept_until(name) or now) <= now:
                raise not_retained(uri, "it is there without one")
            return
    elif is_local(uri):
        local = LocalFolder(folder_uri)
        if local.create(name, content) or local.read(name) == content:
            return
    elif _created(uri, content, io):
        return
    raise InputError(TAKEN, f"{uri} is there with another content, and it is never overwritten. Find out who wrote it.")


def read(uri: str, io: FileIO, properties: Mapping[str, str]) -> bytes | None:
    """The content of such a file, None if there is none. Of S3 with time-outs of seconds. Raises: what the store raises."""
    folder, _, name = uri.rpartition("/")
    if is_s3(uri):
        return S3Folder(folder, properties).read(name)
    if is_local(uri):
        return LocalFolder(folder).read(name)
    try:
        with io.new_input(uri).open() as found:
            return bytes(found.read())
    except FileNotFoundError:
        return None


def _created(uri: str, content: bytes, io: FileIO) -> bool:
    try:
        with io.new_output(uri).create(overwrite=False) as stream:
            stream.write(content)
        return True
    except FileExistsError:
        return read(uri, io, {}) == content
