"""Listings of buffers, each in a thread of its own while reconciles go on with the digest of the one before. I/O.

A small buffer is listed while its reconcile waits; nobody waits for a large one. A thread cannot be killed: a listing that
nobody wants any more ends with the next object that it sees.
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
# After a listing the buffer is left alone for so many times what it took, and for at least so long, since events come in
# bursts. The end of a run cuts it short.
REST: Final = 2.0
REST_AT_LEAST_SECONDS: Final = 5.0
# What retention may delete is handed out once, and only so soon after the listing: what is deleted by its key must still be
# what was listed.
SWEEP_WITHIN_SECONDS: Final = 60.0
# A store that gives no object for so long hangs.
SILENCE_SECONDS: Final = 60.0
# Whether a table lies above a buffer is looked at so often: it costs a request or two for each folder above.
AROUND_AGAIN_SECONDS: Final = 600.0
_BEGINNING: Final = datetime.min.replace(tzinfo=UTC)


class _Stopped(Exception):
    """Nobody wants the listing any more."""


@dataclass
class _Listing:
    """One under way."""

    began: float  # by the operator's clock, in seconds
    heard: float  # when the store gave the last object
    searching: frozenset[str] = frozenset()  # UIDs of the Restatements that were there before it began
    stop: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)


@dataclass
class _Buffer:
    """What is known of one Dataset's buffer. `asked_again`: a run ended after the listing under way had begun; `meanwhile`:
    folders that were looked at since it began, and what the ledger knew of their batches."""

    identity: tuple[str, ...]
    digest: BufferDigest | NotListed | Unavailable = field(default_factory=NotListed)
    ended: float = float("-inf")
    rest_seconds: float = 0.0
    under_way: _Listing | None = None
    asked_again: bool = False
    taken: tuple[float, int] | None = None
    around: Around | None = None  # as it was looked at last, but for the claim
    around_until: float = 0.0  # that look is good until then
    meanwhile: dict[str, tuple[BufferedBatch | NoBatch | None, BatchEntry | None]] = field(default_factory=dict)
    horizons: dict[str, datetime] = field(default_factory=dict)  # as of `BufferDigest`

    def look_back(self, found: BufferDigest, searching: Iterable[str]) -> BufferDigest:
        """The digest with the horizons of the Restatements that were there before its listing began."""
        for uid in searching:
            self.horizons.setdefault(uid, found.youngest_time or _BEGINNING)
        return replace(found, horizons=dict(self.horizons))

    def rests(self, at_least_seconds: float) -> float:
        """How long it is left alone after a listing. A listing that could not tell everything does not wait for more than it
        must."""
        told = isinstance(self.digest, BufferDigest) and not self.digest.is_cut and not self.digest.more_expired
        return max(self.rest_seconds, at_least_seconds if told else 0.0)


class Listings:
    """The last digest of each Dataset's buffer. One per operator, shared by its threads; `clock` counts seconds.

    `told` hears, in the listing's thread, of the Dataset whose listing has ended after its reconcile went on.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._clock = clock
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._buffers: dict[str, _Buffer] = {}
        self.told: Callable[[Meta], None] = lambda _: None

    def digest(
        self,
        dataset: Dataset,
        entries: Mapping[str, BatchEntry],
        properties: Mapping[str, str],
        run_ended: bool,
        rest_seconds: float = 0.0,
        head_id: int | None = None,
        searching: Collection[str] = (),
    ) -> BufferDigest | NotListed | Unavailable:
        """The buffer as it was listed last; what retention may delete is in it only once. Never raises.

        Args:
            entries: The batches of the ledger that the listing is compared with, for its thread alone.
            properties: The catalog's.
            run_ended: A run has just ended, so that the buffer is worth another look.
            rest_seconds: How long the buffer may be left alone at least, since news of it come another way.
            head_id: The snapshot whose ledger that is.
            searching: The UIDs of the Restatements that have to know which batches came before them. Horizons of others are
                forgotten.
        """
        name, now = dataset.meta.full_name, self._clock()
        with self._lock:
            buffer = self._of(dataset)
            buffer.asked_again |= run_ended
            buffer.horizons = {uid: time for uid, time in buffer.horizons.items() if uid in searching}
            started: _Listing | None = None
            if buffer.under_way is None and (buffer.asked_again or now >= buffer.ended + buffer.rests(rest_seconds)):
                buffer.asked_again = False
                buffer.meanwhile.clear()
                buffer.under_way = started = _Listing(now, now, frozenset(searching))
        if started is not None:
            arguments = (dataset, buffer, started, entries, properties, head_id)
            threading.Thread(target=self._list, args=arguments, name=f"listing {name}", daemon=True).start()
            started.done.wait(self._patience_seconds)
        with self._lock:
            listing = buffer.under_way
            if listing is not None and self._clock() - listing.heard > SILENCE_SECONDS:
                late = TookTooLong(f"no answer within {SILENCE_SECONDS:g} s")
                return unavailable(late, f"Buffer {dataset.spec.buffer.uri}", properties, storage=True)
            known = buffer.digest
            if isinstance(known, BufferDigest):
                buffer.digest = known.swept()
                if self._clock() - buffer.ended > SWEEP_WITHIN_SECONDS:
                    return buffer.digest
        return known

    def last(self, dataset: Dataset) -> BufferDigest | NotListed | Unavailable:
        """What was listed last, without listing anything and with nothing to delete."""
        with self._lock:
            known = self._of(dataset).digest
        return known.swept() if isinstance(known, BufferDigest) else known

    def note(self, dataset: Dataset, folders: Folders, entries: Mapping[str, BatchEntry]) -> None:
        """Make folders that were looked at just now part of what is known.

        Args:
            entries: What the ledger knows of their batches.
        """
        with self._lock:
            buffer = self._buffers.get(dataset.meta.full_name)
            if buffer is None or buffer.identity != _identity(dataset):
                return
            if isinstance(buffer.digest, BufferDigest):
                takes = dataset.spec.consolidation.max_batches_per_run
                buffer.digest = with_folders(buffer.digest, folders, entries, takes)
            if buffer.under_way is None:
                return
            # The listing may have passed by before they came.
            for name, found in folders.items():
                known = entries.get(found.id) if isinstance(found, BufferedBatch) else None
                buffer.meanwhile[name] = (found, known)
            if len(buffer.meanwhile) > dataset.spec.consolidation.max_batches_per_run:
                buffer.meanwhile.clear()
                buffer.asked_again = True

    def settle(self, dataset: Dataset, batches: Mapping[str, BatchEntry]) -> None:
        """Forget those of the batches that wait which, as the ledger says, do not any more."""
        with self._lock:
            buffer = self._of(dataset)
            if isinstance(buffer.digest, BufferDigest):
                buffer.digest = buffer.digest.as_of(batches)

    def taken(self, name: str) -> tuple[float, int] | None:
        """Of the last listing for a Dataset, as `namespace/name`, that ended well: seconds, and objects in folders."""
        with self._lock:
            buffer = self._buffers.get(name)
        return buffer.taken if buffer is not None else None

    def forget(self, name: str) -> None:
        """A Dataset is gone: its listing stops."""
        with self._lock:
            buffer = self._buffers.pop(name, None)
        if buffer is not None and buffer.under_way is not None:
            buffer.under_way.stop.set()

    def _of(self, dataset: Dataset) -> _Buffer:
        identity = _identity(dataset)
        known = self._buffers.get(dataset.meta.full_name)
        if known is None or known.identity != identity:
            if known is not None and known.under_way is not None:
                known.under_way.stop.set()
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
                store.folders(lambda: self._heard(listing)),
                lambda ids: get_many(entries, ids),
                spec.consolidation.max_batches_per_run,
                spec.buffer.retention_seconds,
                datetime.now(UTC),
            )
            found = replace(found, head_id=head_id, around=self._around(dataset, buffer, properties))
        except _Stopped:
            log.info("%s: the listing of %s was stopped", dataset.meta.full_name, spec.buffer.uri)
        except Exception as e:
            found = unavailable(e, f"Buffer {spec.buffer.uri}", properties, storage=True)
        with self._lock:
            buffer.under_way, buffer.ended = None, self._clock()
            took = buffer.ended - listing.began
            buffer.rest_seconds = REST_AT_LEAST_SECONDS
            if isinstance(found, BufferDigest):
                buffer.rest_seconds = max(REST * took, REST_AT_LEAST_SECONDS)
                buffer.taken = (took, found.objects)
                known = {b.id: e for b, e in buffer.meanwhile.values() if isinstance(b, BufferedBatch) and e}
                folders = {name: b for name, (b, _) in buffer.meanwhile.items()}
                found = with_folders(found, folders, known, spec.consolidation.max_batches_per_run)
                found = buffer.look_back(found, listing.searching)
            buffer.meanwhile.clear()
            if found is not None:
                buffer.digest = found
        listing.done.set()
        if took > self._patience_seconds and not listing.stop.is_set():
            self.told(dataset.meta)

    def _around(self, dataset: Dataset, buffer: _Buffer, properties: Mapping[str, str]) -> Around:
        """The claim as it is now; tables above are looked for from time to time, and while there are some. Raises: what the store
        raises."""
        uri = dataset.spec.buffer.uri
        if buffer.around is not None and not buffer.around.tables and self._clock() < buffer.around_until:
            return replace(buffer.around, claim=surroundings.read_claim(uri, properties))
        buffer.around = surroundings.around(uri, properties)
        buffer.around_until = self._clock() + AROUND_AGAIN_SECONDS
        return buffer.around

    def _heard(self, listing: _Listing) -> None:
        if listing.stop.is_set():
            raise _Stopped
        listing.heard = self._clock()


def _identity(dataset: Dataset) -> tuple[str, ...]:
    """What a listing is of. What the ledger said before a roll-back was accepted is forgotten with it."""
    spec, accepted = dataset.spec, dataset.meta.annotations.get(ACCEPT_HEAD, "")
    return (dataset.meta.uid, spec.table.catalog, spec.buffer.uri, spec.batch_column, spec.buffer.layout, accepted)
