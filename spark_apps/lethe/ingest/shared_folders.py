"""Finds tables at and above a URI, and reads and writes the claim of a buffer. I/O.

The search is bounded: it lists a few pages of names of each folder above. It skips folders that the credentials may not list and
raises other errors of the store.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final

from lethe.base import names
from lethe.base.errors import InputError
from lethe.base.objects import BufferedObject, ListedObject
from lethe.buffer.layout import BufferedBatch, Layout, NoBatch, folders_of, is_of_batch, layout_of
from lethe.contract.settings import BufferLayout
from lethe.guards import claim as claims
from lethe.guards.claim import Around, Claim, Holder, Owner, holder_of, is_table_metadata
from lethe.storage.object_store import NO_BUCKET, NOT_VISIBLE, ObjectStore, StoreError, open_folder, open_store
from lethe.uri import backend_of, is_local, is_root, local_path, parents, spellings

PLACE_IN_TABLE: Final = "PlaceInTable"
_NAMES_AT_MOST: Final = 1000
"""How many names of one folder are listed."""
_LOOKS_AT_ONCE: Final = 8
_METADATA: Final = "metadata"
_SKIPPED: Final = (*NOT_VISIBLE, "NoSuchKey", "404", "InvalidBucketName")
"""The codes for a folder that does not exist, cannot exist, or that these credentials may not list."""


class BufferClaims:
    """The buffer of one Dataset."""

    def __init__(self, uri: str, layout: Layout, store: ObjectStore) -> None:
        self.uri = uri
        self.claim_etag: str | None = None
        """The ETag of the claim in the last listing; None: it had none."""
        self._layout = layout
        self._store = store

    @property
    def store(self) -> ObjectStore:
        """The store of the buffer."""
        return self._store

    def folders(self, on_object: Callable[[], None], after: str = "") -> Iterator[BufferedBatch | NoBatch]:
        """List batches, complete or not, and other folders and files, in the order of the store. Duplicate ids are not detected.

        Args:
            on_object: Called for each object that the store lists. An exception from it ends the listing.
            after: The name of a folder or file. Names that sort before it are left out. "": none are.
        """
        claim = f"{self.uri.rstrip('/')}/{names.CLAIM_FILE}"

        def objects() -> Iterator[ListedObject]:
            self.claim_etag = None
            for found in self._store.list(self.uri, hidden=False, after=after):
                on_object()
                if found.key == claim:
                    self.claim_etag = found.etag
                yield found

        return folders_of(objects(), self.uri, self._layout)

    def ids(self, on_object: Callable[[], None]) -> frozenset[str]:
        """The ids of the batches: complete, incomplete, and those with too many objects.

        Args:
            on_object: As in `folders`.
        """
        return frozenset(
            found.id if isinstance(found, BufferedBatch) else self._layout.id_of(found.folder)
            for found in self.folders(on_object)
            if isinstance(found, BufferedBatch) or found.too_large
        )

    def folder(self, name: str) -> BufferedBatch | NoBatch | None:
        """Return the folder or file of this name; None: it does not exist."""
        uri = f"{self.uri.rstrip('/')}/{name}"
        objects = filter(None, (self._store.head(uri),)) if self._layout.of_files else self._store.list(uri)
        return next(folders_of(objects, self.uri, self._layout), None)

    def delete(self, objects: Iterable[BufferedObject]) -> int:
        """Delete the objects that belong to batches and are unchanged since the listing. Return how many no longer exist."""
        return self._store.delete([o for o in objects if self.is_of_batch(o.key)])

    def is_of_batch(self, key: str) -> bool:
        """Whether, with the declared layout, only an object of a batch can have this name."""
        return is_of_batch(key, self.uri, self._layout)


def open_buffer(
    uri: str, batch_column: str, properties: Mapping[str, str], layout: BufferLayout = BufferLayout.DIRECTORY
) -> BufferClaims:
    """Open the buffer of a Dataset.

    Raises:
        InputError: `UnsupportedScheme`.
    """
    return BufferClaims(uri, layout_of(layout, batch_column), open_store(uri, properties))


def around(uri: str, properties: Mapping[str, str]) -> Around:
    """The claim of a buffer, and tables at and above it.

    Raises:
        Exception: Errors of the store.
    """
    return Around(tables_around(uri, properties), read_claim(uri, properties))


def tables_around(uri: str, properties: Mapping[str, str]) -> tuple[str, ...]:
    """The folders at and above a URI, in any reading of it, that contain metadata of an Iceberg table."""
    return holding_tables(places_around(uri), properties)


def places_around(uri: str) -> tuple[str, ...]:
    """The folders at and above a URI, in any reading of it; none if no backend of Lethe reads the URI."""
    if backend_of(uri) is None:
        return ()
    read = [uri]
    if is_local(uri):
        read += [f"file://{os.path.realpath(local_path(s))}" for s in spellings(uri)]
    return tuple(dict.fromkeys(p for r in read for p in (*spellings(r), *parents(r))))


def holding_tables(places: Sequence[str], properties: Mapping[str, str]) -> tuple[str, ...]:
    """Find out which of some folders of one store contain metadata of an Iceberg table.

    Raises:
        Exception: Errors of the store.
    """
    if not places:
        return ()
    store = open_store(places[0], properties)
    if len(places) == 1:  # of the buffers in one folder, only the buffers themselves differ
        return tuple(places) if _holds_table(store, places[0]) else ()
    with ThreadPoolExecutor(_LOOKS_AT_ONCE, thread_name_prefix="lethe-around") as pool:
        holding = list(pool.map(partial(_holds_table, store), places))
    return tuple(place for place, holds in zip(places, holding, strict=True) if holds)


def _holds_table(store: ObjectStore, place: str) -> bool:
    """Whether a folder, or its subfolder `metadata`, directly contains metadata of a table."""
    metadata = f"{place.rstrip('/')}/{_METADATA}"
    if _has_metadata(store, place):
        return True
    if not _has_objects(store, metadata):  # most folders have no `metadata`, and this is one request
        return False
    # The first names of `metadata` may all be unrelated. So also list names that sort late and that tables commonly have.
    return any(_has_metadata(store, metadata, prefix) for prefix in ("", "snap-", "v"))


def _has_metadata(store: ObjectStore, folder: str, prefix: str = "") -> bool:
    try:
        return any(map(is_table_metadata, store.names(folder, prefix, _NAMES_AT_MOST)))
    except StoreError as e:
        return _skipped(e)


def _has_objects(store: ObjectStore, folder: str) -> bool:
    try:
        return next(iter(store.list(folder, hidden=True)), None) is not None
    except StoreError as e:
        return _skipped(e)


def check_place(what: str, uri: str, around: Callable[[str], tuple[str, ...]]) -> None:
    """Check that a replacement or a list is not in a table.

    Args:
        what: The subject of the message.
        around: Returns `tables_around` of a folder, possibly cached.

    Raises:
        InputError: PlaceInTable, errors of the store.
    """
    above = uri.rstrip("/").rpartition("/")[0]
    inside = claims.found_in(what, uri, around(above)) if not is_root(above) else None
    if inside is not None:
        raise InputError(PLACE_IN_TABLE, inside)


def read_claim(uri: str, properties: Mapping[str, str]) -> Claim | None:
    """The claim of a buffer; None: it has none."""
    return claim_in(open_store(uri, properties), uri)


def claim_in(store: ObjectStore, uri: str) -> Claim | None:
    """Read the claim of a buffer in an open store."""
    try:
        content = store.read(f"{uri.rstrip('/')}/{names.CLAIM_FILE}")
    except StoreError as e:
        if e.code == NO_BUCKET:
            return None
        raise
    return claims.parse(content.data) if content is not None else None


@dataclass(frozen=True)
class Adopted:
    """Objects of a buffer that are not batches and may stay, because of `spec.buffer.adopt`."""

    count: int = 0
    names: tuple[str, ...] = ()
    """The first of them."""


def take_claim(
    uri: str, properties: Mapping[str, str], owner: Owner, layout: BufferLayout, adopted: Adopted = Adopted()
) -> Claim:
    """Claim a buffer if it has no claim, and return its claim. If several Datasets try at the same time, one succeeds.

    The caller must have checked the buffer before.

    Args:
        layout: spec.buffer.layout.
        adopted: Recorded in the claim.

    Raises:
        InputError: UnsupportedStorage.
        TransientError: Errors of the store.
    """
    folder = open_folder(uri, properties)
    content = claims.document(owner, layout, adopted.names, adopted.count, datetime.now(UTC))
    for _ in range(3):
        there = folder.read(names.CLAIM_FILE)
        if there is None:
            if folder.create(names.CLAIM_FILE, content):
                return Claim(owner)
            continue  # another writer created it first
        claim = claims.parse(there)
        if holder_of(claim, owner) is Holder.TAKEN_OVER:
            folder.replace(names.CLAIM_FILE, content)
            return Claim(owner)
        return claim
    return Claim(None)  # another writer creates and deletes it again and again: treat the buffer as claimed


def _skipped(error: StoreError) -> bool:
    """False for a folder that cannot hold a table of these credentials.

    Raises:
        Exception: Other errors.
    """
    if error.code not in _SKIPPED:
        raise error
    return False
