"""What is known of a buffer, and what a listing of it depends on. Values; `Listings` changes them under its lock."""

import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from lethe.buffer.batch import BufferedBatch, NoBatch
from lethe.buffer.digest import BufferDigest
from lethe.ledger.ledger import BatchEntry

from lethe_operator.observe.listing_schedule import ListingCost
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import NotListed, Unavailable

_BEGINNING: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class ListingRequest:
    """What a reconcile needs of a listing."""

    # List now, without the pause, for example because a run has just ended.
    at_once: bool = False
    # The minimum pause between listings, in seconds, while notifications report changes.
    rest_seconds: float = 0.0
    # UIDs of the Restatements that need to know which batches arrived before them. Horizons of others are forgotten.
    searching: Collection[str] = ()


@dataclass(frozen=True)
class ListingContext:
    """What a listing depends on, as of the last reconcile."""

    dataset: Dataset
    # The batches of the ledger that the listing is compared with. Only its thread uses them.
    entries: Mapping[str, BatchEntry]
    # Of the catalog.
    properties: Mapping[str, str]
    request: ListingRequest
    # The snapshot of that ledger; None: there is none.
    head_id: int | None


@dataclass
class PlannedListing:
    """A listing that is planned or runs."""

    since: float  # when it was planned, then when it began, by the clock, in seconds
    last_object: float  # when the store returned the last object; before that, as `since`
    urgent: bool = False  # it does not wait for the end of the pause
    requested: bool = False  # a reconcile needs it; False: only its time has come
    awaited: bool = False  # a reconcile waits for it now
    searching: frozenset[str] = frozenset()  # UIDs of the Restatements that existed before it began
    stop: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)


@dataclass
class ListedBuffer:
    """What is known of one Dataset's buffer."""

    identity: tuple[str, ...]
    store: str
    context: ListingContext
    digest: BufferDigest | NotListed | Unavailable = field(default_factory=NotListed)
    # What the last listing found, to notice changes.
    found: BufferDigest | Unavailable | None = None
    # When the last listing ended, and when the next one is due.
    ended: float = float("-inf")
    due: float = float("-inf")
    # Listings without a change since the last change; None: no listing has found a change.
    unchanged: int | None = None
    # The next listing; None: one is running, or the table cannot be read.
    planned: PlannedListing | None = None
    # The running listing; None: there is none.
    running: PlannedListing | None = None
    # A listing was requested at once after the running one had begun.
    again: bool = False
    # It is not listed until the next reconcile that can use the result.
    suspended: bool = False
    # Of the last successful listing; None: there was none.
    last_cost: ListingCost | None = None
    # Folders that were read since the running listing began, and the ledger's entries of their batches.
    meanwhile: dict[str, tuple[BufferedBatch | NoBatch | None, BatchEntry | None]] = field(default_factory=dict)
    # As of `BufferDigest`.
    horizons: dict[str, datetime] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether the digest shows all batches that wait or have expired."""
        return isinstance(self.digest, BufferDigest) and not self.digest.is_cut and not self.digest.more_expired

    def with_horizons(self, found: BufferDigest, searching: Iterable[str]) -> BufferDigest:
        """The digest with the horizons of the Restatements that existed before its listing began."""
        for uid in searching:
            self.horizons.setdefault(uid, found.youngest_time or _BEGINNING)
        return replace(found, horizons=dict(self.horizons))

    def take(self, found: BufferDigest | Unavailable) -> bool:
        """Keep what a listing found. Returns: whether it differs from what the last one found."""
        comparable = found.swept() if isinstance(found, BufferDigest) else found
        first, changed = self.found is None, self.found != comparable
        self.digest, self.found = found, comparable
        if changed and not (first and isinstance(found, BufferDigest)):
            self.unchanged = 0
        elif not changed and self.unchanged is not None:
            self.unchanged += 1
        return changed
