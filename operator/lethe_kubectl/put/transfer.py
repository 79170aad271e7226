"""Writes the objects of a batch: each only if it is absent, and last what completes the batch. I/O.

Invariant: an object that exists is never overwritten, so a repetition goes on where the last attempt ended, and two attempts with
different files never mix.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from lethe.base.errors import InputError
from lethe.buffer.upload import Upload, strangers
from lethe.storage.object_store import ObjectStore

_PIECE: Final = 8 * 1024 * 1024  # bytes that are compared at once


def is_there(store: ObjectStore, upload: Upload) -> bool:
    """Whether the buffer holds the whole batch. Raises: InputError (`OtherFiles`), if it holds other files of this id."""
    listed = list(store.list(upload.folder)) if upload.marker else []
    if others := strangers(upload, listed):
        raise _other(others[0], upload)
    if upload.marker and all(o.key != upload.marker for o in listed):
        return False
    return all(store.head(uri) is not None for uri in upload.files)


def transfer(store: ObjectStore, upload: Upload, folder: Path, on_file: Callable[[], object]) -> int:
    """Write what is missing. Returns: the number of objects written, without the marker.

    Args:
        on_file: Called after each file, written or found.
    Raises: InputError (`OtherFiles`), if an object exists with another content; StoreError.
    """
    written = 0
    for uri, file in upload.files.items():
        if store.head(uri) is None and store.put_if_absent(uri, (folder / file.path).read_bytes()):
            written += 1
        elif not _is_same(store, uri, folder / file.path):
            raise _other(uri, upload)
        on_file()
    if upload.marker:
        store.put_if_absent(upload.marker, b"")
    return written


def _is_same(store: ObjectStore, uri: str, path: Path) -> bool:
    found = store.head(uri)
    if found is None or found.size != path.stat().st_size:
        return False
    start = 0
    for piece in _pieces(path):
        if store.read_range(uri, start, len(piece)) != piece:
            return False
        start += len(piece)
    return True


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece


def _other(uri: str, upload: Upload) -> InputError:
    return InputError(
        "OtherFiles",
        f"{uri} exists and is not a file of this folder, so another producer, or an attempt with other files, uses the batch id "
        f"{upload.batch_id}. Nothing was overwritten. Choose another id with --batch, or remove what is in {upload.folder}.",
    )
