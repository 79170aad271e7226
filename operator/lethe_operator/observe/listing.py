"""Lists buffers, each in its own thread, while reconciles continue with the digest of the previous listing. I/O.

A reconcile waits for the listing of a small buffer, but not for that of a large one. A thread cannot be killed: a listing that is
no longer needed ends at its next object.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from lethe.buffer.arrivals import Folders, with_folders
from lethe.buffer.batch import BufferedBatch, NoBatch
from lethe.buffer.digest import BufferDigest, digest
from lethe.guards.rejections import Around
from lethe.ledger.ledger import BatchEntry
from lethe.ledger.parts import get_many
from lethe.storage import surroundings
from lethe.storage.buffer import open_buffer

from lethe_operator.observe.failures import unavailable
from lethe_operator.observe.time_limit import TookTooLong
from lethe_operator.resources.common import ACCEPT_HEAD, Meta
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import NotListed, Unavailable

log = logging.getLogger(__name__)

# How long a reconcile waits for the listing that it started.
PATIENCE_SECONDS: Final = 2.0
# The pause after a listing, as a multiple of its duration, and at least this long, because watch events come in bursts. The
# end of a run ends the pause.
REST: Final = 2.0
REST_AT_LEAST_SECONDS: Final = 5.0
# Expired objects are returned once, and only this long after the listing: an object that is deleted by its key must still be the
# one that was listed.
SWEEP_WITHIN_SECONDS: Final = 60.0
# A store that returns no object for this long hangs.
SILENCE_SECONDS: Final = 60.0
# How often to check for tables above a buffer. It costs a request or two for each parent folder.
AROUND_AGAIN_SECONDS: Final = 600.0
_BEGINNING: Final = datetime.min.replace(tzinfo=UTC)


class _Stopped(Exception):
    """The listing is no longer needed."""


@dataclass(frozen=True)
class ListingRequest:
    """What a reconcile needs of a listing."""

    # List now, without the pause, for example because a run has just ended.
    at_once: bool = False
    # The minimum pause between listings, in seconds, while notifications report changes.
    rest_seconds: float = 0.0
    # UIDs of the Restatements that need to know which batches arrived before them. Horizons of others are forgotten.
    searching: Collection[str] = ()


@dataclass
class _Listing:
    """A running listing."""

    began: float  # by the operator's clock, in seconds
    last_object: float  # when the store returned the last object
    searching: frozenset[str] = frozenset()  # UIDs of the Restatements that existed before it began
    stop: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)


@dataclass
class _Buffer:
    """What is known of one Dataset's buffer."""

    identity: tuple[str, ...]
    digest: BufferDigest | NotListed | Unavailable = field(default_factory=NotListed)
    # When the last listing ended.
    ended: float = float("-inf")
    # The pause after it.
    rest_seconds: float = 0.0
    # The running listing; None: there is none.
    running: _Listing | None = None
    # A listing was requested at once after the running one had begun.
    again: bool = False
    # Seconds and objects of the last successful listing; None: there was none.
    last_duration: tuple[float, int] | None = None
    # Tables around the buffer, as last checked. Its claim is not current.
    around: Around | None = None
    # When to check them again.
    around_until: float = 0.0
    # Folders that were read since the running listing began, and the ledger's entries of their batches.
    meanwhile: dict[str, tuple[BufferedBatch | NoBatch | None, BatchEntry | None]] = field(default_factory=dict)
    # As of `BufferDigest`.
    horizons: dict[str, datetime] = field(default_factory=dict)

    def with_horizons(self, found: BufferDigest, searching: Iterable[str]) -> BufferDigest:
        """The digest with the horizons of the Restatements that existed before its listing began."""
        for uid in searching:
            self.horizons.setdefault(uid, found.youngest_time or _BEGINNING)
        return replace(found, horizons=dict(self.horizons))

    def rests(self, at_least_seconds: float) -> float:
        """The pause after the last listing. An incomplete digest has no longer pause than necessary."""
        complete = isinstance(self.digest, BufferDigest) and not self.digest.is_cut and not self.digest.more_expired
        return max(self.rest_seconds, at_least_seconds if complete else 0.0)


class Listings:
    """The last digest of each Dataset's buffer. One per operator, shared by its threads. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._clock = clock
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._buffers: dict[str, _Buffer] = {}
        # Called in the listing's thread with the Dataset, if the listing ended after its reconcile had continued.
        self.on_change: Callable[[Meta], None] = lambda _: None

    def digest(
        self,
        dataset: Dataset,
        entries: Mapping[str, BatchEntry],
        properties: Mapping[str, str],
        request: ListingRequest,
        head_id: int | None = None,
    ) -> BufferDigest | NotListed | Unavailable:
        """The digest of the last listing; it contains expired objects only once. Never raises.

        Args:
            entries: The batches of the ledger that the listing is compared with. Only its thread uses them.
            properties: Of the catalog.
            head_id: The snapshot of that ledger; None: there is none.
        """
        name, now = dataset.meta.full_name, self._clock()
        with self._lock:
            buffer = self._of(dataset)
            buffer.again |= request.at_once
            buffer.horizons = {uid: time for uid, time in buffer.horizons.items() if uid in request.searching}
            started: _Listing | None = None
            if buffer.running is None and (buffer.again or now >= buffer.ended + buffer.rests(request.rest_seconds)):
                buffer.again = False
                buffer.meanwhile.clear()
                buffer.running = started = _Listing(now, now, frozenset(request.searching))
        if started is not None:
            arguments = (dataset, buffer, started, entries, properties, head_id)
            threading.Thread(target=self._list, args=arguments, name=f"listing {name}", daemon=True).start()
            started.done.wait(self._patience_seconds)
        with self._lock:
            listing = buffer.running
            if listing is not None and self._clock() - listing.last_object > SILENCE_SECONDS:
                late = TookTooLong(f"no answer within {SILENCE_SECONDS:g} s")
                return unavailable(late, f"Buffer {dataset.spec.buffer.uri}", properties, storage=True)
            known = buffer.digest
            if isinstance(known, BufferDigest):
                buffer.digest = known.swept()
                if self._clock() - buffer.ended > SWEEP_WITHIN_SECONDS:
                    return buffer.digest
        return known

    def last(self, dataset: Dataset) -> BufferDigest | NotListed | Unavailable:
        """The digest of the last listing, without a new listing and without expired objects."""
        with self._lock:
            known = self._of(dataset).digest
        return known.swept() if isinstance(known, BufferDigest) else known

    def add_folders(self, dataset: Dataset, folders: Folders, entries: Mapping[str, BatchEntry]) -> None:
        """Add folders that were just read to the digest.

        Args:
            entries: The ledger's entries of their batches.
        """
        with self._lock:
            buffer = self._buffers.get(dataset.meta.full_name)
            if buffer is None or buffer.identity != _identity(dataset):
                return
            if isinstance(buffer.digest, BufferDigest):
                takes = dataset.spec.consolidation.max_batches_per_run
                buffer.digest = with_folders(buffer.digest, folders, entries, takes)
            if buffer.running is None:
                return
            # The running listing may have passed their place before they arrived.
            for name, found in folders.items():
                known = entries.get(found.id) if isinstance(found, BufferedBatch) else None
                buffer.meanwhile[name] = (found, known)
            if len(buffer.meanwhile) > dataset.spec.consolidation.max_batches_per_run:
                buffer.meanwhile.clear()
                buffer.again = True

    def drop_settled(self, dataset: Dataset, batches: Mapping[str, BatchEntry]) -> None:
        """Remove the batches that no longer wait, according to the ledger, from the digest."""
        with self._lock:
            buffer = self._of(dataset)
            if isinstance(buffer.digest, BufferDigest):
                buffer.digest = buffer.digest.as_of(batches)

    def last_duration(self, name: str) -> tuple[float, int] | None:
        """Seconds and objects of the last successful listing for a Dataset, as `namespace/name`; None: there was none."""
        with self._lock:
            buffer = self._buffers.get(name)
        return buffer.last_duration if buffer is not None else None

    def forget(self, name: str) -> None:
        """Stop the listing of a deleted Dataset, as `namespace/name`, and drop its digest."""
        with self._lock:
            buffer = self._buffers.pop(name, None)
        if buffer is not None and buffer.running is not None:
            buffer.running.stop.set()

    def _of(self, dataset: Dataset) -> _Buffer:
        identity = _identity(dataset)
        known = self._buffers.get(dataset.meta.full_name)
        if known is None or known.identity != identity:
            if known is not None and known.running is not None:
                known.running.stop.set()
            known = self._buffers[dataset.meta.full_name] = _Buffer(identity)
        return known

    def _list(
        self,
        dataset: Dataset,
        buffer: _Buffer,
        listing: _Listing,
        entries: Mapping[str, BatchEntry],
        properties: Mapping[str, str],
        head_id: int | None,
    ) -> None:
        spec = dataset.spec
        found: BufferDigest | Unavailable | None = None
        try:
            store = open_buffer(spec.buffer.uri, spec.batch_column, properties, spec.buffer.layout)
            found = digest(
                store.folders(lambda: self._on_object(listing)),
                lambda ids: get_many(entries, ids),
                spec.consolidation.max_batches_per_run,
                spec.buffer.retention_seconds,
                datetime.now(UTC),
            )
            found = replace(found, head_id=head_id, around=self._around(dataset, buffer, properties))
        except _Stopped:
            log.info("%s: stopped the listing of %s", dataset.meta.full_name, spec.buffer.uri)
        except Exception as e:
            found = unavailable(e, f"Buffer {spec.buffer.uri}", properties, storage=True)
        with self._lock:
            buffer.running, buffer.ended = None, self._clock()
            took = buffer.ended - listing.began
            buffer.rest_seconds = REST_AT_LEAST_SECONDS
            if isinstance(found, BufferDigest):
                buffer.rest_seconds = max(REST * took, REST_AT_LEAST_SECONDS)
                buffer.last_duration = (took, found.objects)
                known = {b.id: e for b, e in buffer.meanwhile.values() if isinstance(b, BufferedBatch) and e}
                folders = {name: b for name, (b, _) in buffer.meanwhile.items()}
                found = with_folders(found, folders, known, spec.consolidation.max_batches_per_run)
                found = buffer.with_horizons(found, listing.searching)
            buffer.meanwhile.clear()
            if found is not None:
                buffer.digest = found
        listing.done.set()
        if took > self._patience_seconds and not listing.stop.is_set():
            self.on_change(dataset.meta)

    def _around(self, dataset: Dataset, buffer: _Buffer, properties: Mapping[str, str]) -> Around:
        """The current claim. Tables above the buffer are checked periodically, and each time while there are some. Raises: the
        store's errors."""
        uri = dataset.spec.buffer.uri
        if buffer.around is not None and not buffer.around.tables and self._clock() < buffer.around_until:
            return replace(buffer.around, claim=surroundings.read_claim(uri, properties))
        buffer.around = surroundings.around(uri, properties)
        buffer.around_until = self._clock() + AROUND_AGAIN_SECONDS
        return buffer.around

    def _on_object(self, listing: _Listing) -> None:
        if listing.stop.is_set():
            raise _Stopped
        listing.last_object = self._clock()


def _identity(dataset: Dataset) -> tuple[str, ...]:
    """What a listing depends on. After the user accepts a rollback, listings compared with the earlier ledger do not count."""
    spec, accepted = dataset.spec, dataset.meta.annotations.get(ACCEPT_HEAD, "")
    return (dataset.meta.uid, spec.table.catalog, spec.buffer.uri, spec.batch_column, spec.buffer.layout, accepted)
