"""Reads the references that deliveries name in their `_SUCCESS`. I/O."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from lethe.base.ahead import ahead
from lethe.base.errors import InputError
from lethe.buffer.digest import pieces
from lethe.buffer.layout import BufferedBatch
from lethe.buffer.reference import MARKER_BYTES_AT_MOST, reference_of
from lethe.ingest.shared_folders import BufferClaims
from lethe.ledger.ledger import BatchEntry, get_many
from lethe.storage.object_store import DENIED, ObjectStore, StoreError

_AT_ONCE: Final = 16


@dataclass(frozen=True)
class NamedReferences:
    """What the markers of batches name."""

    references: Mapping[str, str] = field(default_factory=dict)
    """By batch id, of the batches that name one."""
    invalid: Mapping[str, InputError] = field(default_factory=dict)
    """Why the reference of a batch cannot be one, by batch id."""
    gone: frozenset[str] = frozenset()
    """Ids of batches whose marker was deleted after it was listed."""
    denied: frozenset[str] = frozenset()
    """Ids of batches whose marker these credentials may not read."""


def read_references(store: ObjectStore, batches: Iterable[BufferedBatch]) -> NamedReferences:
    """Read the markers that have a content, several at a time. An empty marker names none, and costs no request.

    Raises:
        StoreError: A store refused a request or did not answer.
    """
    references: dict[str, str] = {}
    invalid: dict[str, InputError] = {}
    gone: set[str] = set()
    denied: set[str] = set()

    def read(marked: tuple[str, str]) -> bytes | None:
        try:
            return store.read_range(marked[1], 0, MARKER_BYTES_AT_MOST + 1)
        except (StoreError, PermissionError) as e:
            if isinstance(e, StoreError) and e.code != DENIED:
                raise
            denied.add(marked[0])
            return None

    marked = ((b.id, b.marker.key) for b in batches if b.marker is not None and b.marker.size)
    for (batch_id, _), content in ahead(read, marked, _AT_ONCE):
        if content is None:
            if batch_id not in denied:
                gone.add(batch_id)
            continue
        try:
            reference = reference_of(content)
        except InputError as e:
            invalid[batch_id] = e
            continue
        if reference is not None:
            references[batch_id] = reference
    return NamedReferences(references, invalid, frozenset(gone), frozenset(denied))


def find_waiting(
    buffer: BufferClaims,
    batches: Mapping[str, BatchEntry],
    references: Collection[str],
    on_object: Callable[[], None] = lambda: None,
) -> dict[str, set[str]]:
    """The complete batches in a buffer that runs of other programs delivered, and that may be promoted yet.

    Args:
        batches: Of the ledger: the markers of those that are promoted or taken back are not read.
        references: Of these runs.
        on_object: As in `BufferClaims.folders`.

    Returns:
        The ids by reference.

    Raises:
        StoreError: A store refused a request or did not answer.
    """
    found: dict[str, set[str]] = {}
    for piece in pieces(buffer.folders(on_object)):
        marked = [b for b in piece if isinstance(b, BufferedBatch) and b.marker is not None and b.marker.size]
        known = get_many(batches, [b.id for b in marked])
        waiting = [b for b in marked if b.id not in known or not known[b.id].blocks_promotion]
        named = read_references(buffer.store, waiting)
        for batch in waiting:
            if batch.id in named.denied and batch.marker is not None:  # it may be one of them
                raise StoreError(batch.marker.key, DENIED)
        for batch_id, reference in named.references.items():
            if reference in references:
                found.setdefault(reference, set()).add(batch_id)
    return found
