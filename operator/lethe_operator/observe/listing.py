"""Lists buffers in threads, while reconciles continue with the digest of the previous listing. I/O.

A reconcile waits for the listing of a small buffer, but not for that of a large one. Between reconciles, `listing_schedule` says
which buffer is listed, and a Dataset is reported if its buffer has changed. A thread cannot be killed: a listing that is no
longer needed ends at its next object.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from lethe.base.errors import InputError
from lethe.buffer.arrivals import Folders, with_folders
from lethe.buffer.batch import BufferedBatch
from lethe.buffer.digest import BufferDigest, digest
from lethe.buffer.layout import layout_of
from lethe.guards.rejections import Around
from lethe.iceberg import catalogs
from lethe.ledger.ledger import BatchEntry
from lethe.ledger.parts import get_many
from lethe.storage import surroundings
from lethe.storage.buffer import Buffer
from lethe.storage.object_store import open_store

from lethe_operator.observe.failures import unavailable
from lethe_operator.observe.listed_buffer import ListedBuffer, ListingContext, ListingRequest, PlannedListing
from lethe_operator.observe.listing_schedule import ListingBudget, ListingCost, ListingLimits, ListingSchedule
from lethe_operator.observe.tables_around import TablesAround
from lethe_operator.observe.time_limit import Threads, TookTooLong
from lethe_operator.resources.common import ACCEPT_HEAD, Meta
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import NotListed, Unavailable

log = logging.getLogger(__name__)

# How long a reconcile waits for the listing that it needs.
PATIENCE_SECONDS: Final = 2.0
# Expired objects are returned once, and only this long after the listing: an object that is deleted by its key must still be the
# one that was listed.
SWEEP_WITHIN_SECONDS: Final = 60.0
# A store that returns no object for this long hangs.
SILENCE_SECONDS: Final = 60.0


class _Stopped(Exception):
    """The listing is no longer needed."""


class _OtherProperties(Exception):
    """The properties of the catalog have changed since the last reconcile, which decides what they mean."""


class Listings:
    """The last digest of each Dataset's buffer. One per operator, shared by its threads. `clock` returns seconds, and `spread` a
    number from 0 to 1."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        patience_seconds: float = PATIENCE_SECONDS,
        limits: ListingLimits | None = None,
        spread: Callable[[], float] = random.random,
    ) -> None:
        self._clock = clock
        self._patience_seconds = patience_seconds
        self._spread = spread
        self._budget = ListingBudget(limits or ListingLimits())
        self._schedule = ListingSchedule()
        self._threads = Threads("listing")
        self._lock = threading.Lock()
        self._planned = threading.Condition(self._lock)
        self._is_stopped = False
        self._buffers: dict[str, ListedBuffer] = {}
        self._tables_around = TablesAround(clock)
        # Called in the listing's thread with the Dataset, if a listing that no reconcile waits for was requested or found
        # something; and whether the buffer has changed since an earlier listing.
        self.on_change: Callable[[Meta, bool], None] = lambda _dataset, _is_news: None

    def start(self) -> None:
        """List buffers when their time has come, from now on. Before, only `digest` starts listings."""
        threading.Thread(target=self._run, name="listing schedule", daemon=True).start()

    def stop(self) -> None:
        with self._lock:
            self._is_stopped = True
            self._planned.notify_all()

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
        context = ListingContext(dataset, entries, properties, request, head_id)
        with self._lock:
            buffer = self._of(context)
            buffer.suspended = False
            before, buffer.context = buffer.context, context
            buffer.horizons = {uid: time for uid, time in buffer.horizons.items() if uid in request.searching}
            if buffer.running is not None:
                buffer.again |= request.at_once
            elif before.request.rest_seconds != request.rest_seconds:
                buffer.due = buffer.ended + self._pause(buffer)
                buffer.planned = None
            listing = self._plan(buffer, urgent=request.at_once or buffer.found is None)
            if listing is not None and not listing.requested and (listing.urgent or buffer.due <= self._clock()):
                listing.requested = listing.awaited = True
            else:
                listing = None
        self._start_due()
        if listing is not None and self._begins_at_once(buffer, listing):
            listing.done.wait(self._patience_seconds)
        with self._lock:
            if listing is not None:
                listing.awaited = False
            current = buffer.running or (buffer.planned if buffer.planned and buffer.planned.urgent else None)
            if current is not None and self._clock() - current.last_object > SILENCE_SECONDS:
                late = TookTooLong(f"no answer within {SILENCE_SECONDS:g} s")
                return unavailable(late, f"Buffer {dataset.spec.buffer.uri}", properties, storage=True)
            known = buffer.digest
            if isinstance(known, BufferDigest):
                buffer.digest = known.swept()
                if self._clock() - buffer.ended > SWEEP_WITHIN_SECONDS:
                    return buffer.digest
        return known

    def _begins_at_once(self, buffer: ListedBuffer, listing: PlannedListing) -> bool:
        """Whether it is worth waiting for a listing: it is urgent, or it has begun. While many others are overdue, it would make
        reconciles wait for listings that they do not need; what the listing finds leads to another reconcile."""
        with self._lock:
            if not listing.urgent and buffer.planned is listing:
                listing.requested = listing.awaited = False
                return False
            return True

    def last(self, dataset: Dataset) -> BufferDigest | NotListed | Unavailable:
        """The digest of the last listing, without a new listing and without expired objects."""
        with self._lock:
            buffer = self._buffers.get(dataset.meta.full_name)
            known = buffer.digest if buffer is not None and buffer.identity == _identity(dataset) else NotListed()
        return known.swept() if isinstance(known, BufferDigest) else known

    def suspend(self, dataset: str) -> None:
        """Do not list the buffer of a Dataset, as `namespace/name`, until `digest` is called again."""
        with self._lock:
            buffer = self._buffers.get(dataset)
            if buffer is not None:
                buffer.suspended, buffer.planned = True, None
                self._schedule.drop(dataset)

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
            buffer = self._buffers.get(dataset.meta.full_name)
            if buffer is None or buffer.identity != _identity(dataset):
                return
            if isinstance(buffer.digest, BufferDigest):
                buffer.digest = buffer.digest.as_of(batches)

    def last_duration(self, name: str) -> tuple[float, int] | None:
        """Seconds and objects of the last successful listing for a Dataset, as `namespace/name`; None: there was none."""
        with self._lock:
            buffer = self._buffers.get(name)
            cost = buffer.last_cost if buffer is not None else None
        return (cost.took_seconds, cost.objects) if cost is not None else None

    def pause_seconds(self, name: str) -> float | None:
        """The pause between the last listing for a Dataset, as `namespace/name`, and the next; None: it was not listed."""
        with self._lock:
            buffer = self._buffers.get(name)
            return buffer.due - buffer.ended if buffer is not None and buffer.found is not None else None

    def overdue_seconds(self) -> float:
        """How long the longest overdue listing has been due; 0: none is."""
        with self._lock:
            return self._schedule.overdue_seconds(self._clock())

    def forget(self, name: str) -> None:
        """Stop the listing of a deleted Dataset, as `namespace/name`, and drop its digest."""
        with self._lock:
            self._drop(name)

    def _drop(self, name: str) -> None:
        buffer = self._buffers.pop(name, None)
        if buffer is not None and buffer.running is not None:
            buffer.running.stop.set()
        self._schedule.drop(name)
        self._budget.record(name, None)

    def _of(self, context: ListingContext) -> ListedBuffer:
        name, identity = context.dataset.meta.full_name, _identity(context.dataset)
        known = self._buffers.get(name)
        if known is None or known.identity != identity:
            self._drop(name)
            known = self._buffers[name] = ListedBuffer(identity, _store_of(context), context)
        return known

    def _pause(self, buffer: ListedBuffer) -> float:
        name = buffer.context.dataset.meta.full_name
        if isinstance(buffer.digest, BufferDigest) and not buffer.is_complete:
            return self._budget.pause(name, 0)
        at_least = buffer.context.request.rest_seconds if buffer.is_complete else 0.0
        within_seconds = buffer.context.dataset.spec.consolidation.max_age_seconds
        return max(self._budget.pause(name, buffer.unchanged, within_seconds), at_least)

    def _plan(self, buffer: ListedBuffer, urgent: bool) -> PlannedListing | None:
        """Plan the next listing, or make the planned one urgent. None: one is running."""
        if buffer.running is not None:
            return None
        now, planned = self._clock(), buffer.planned
        if planned is not None and (planned.urgent or not urgent):
            return planned
        if planned is None:
            planned = buffer.planned = PlannedListing(now, now)
        planned.urgent = urgent
        if urgent:
            planned.since = planned.last_object = now
        due = now if urgent else buffer.due
        self._schedule.put(buffer.context.dataset.meta.full_name, buffer.store, due, urgent)
        self._planned.notify_all()
        return planned

    def _run(self) -> None:
        while True:
            self._start_due()
            with self._lock:
                if self._is_stopped:
                    return
                self._planned.wait(self._schedule.next_in(self._clock()))

    def _start_due(self) -> None:
        """Start all listings whose time has come."""
        while True:
            with self._lock:
                now = self._clock()
                name = self._schedule.take(now)
                if name is None:
                    return
                buffer = self._buffers[name]
                listing, buffer.planned = buffer.planned, None
                assert listing is not None
                listing.since = listing.last_object = now
                listing.searching = frozenset(buffer.context.request.searching)
                buffer.running, buffer.again = listing, False
                buffer.meanwhile.clear()
                self._threads.start(partial(self._list, buffer, listing, buffer.context))

    def _list(self, buffer: ListedBuffer, listing: PlannedListing, context: ListingContext) -> None:
        dataset, spec, began = context.dataset, context.dataset.spec, time.thread_time()
        found: BufferDigest | Unavailable | None = None
        outdated = False
        try:
            if not listing.requested:
                _require_same_properties(context)
            store = open_store(spec.buffer.uri, context.properties)
            listed = Buffer(spec.buffer.uri, layout_of(spec.buffer.layout, spec.batch_column), store)
            found = digest(
                listed.folders(lambda: self._on_object(listing)),
                lambda ids: get_many(context.entries, ids),
                spec.consolidation.max_batches_per_run,
                spec.buffer.retention_seconds,
                datetime.now(UTC),
            )
            tables = self._tables_around.of(spec.buffer.uri, context.properties)
            around = Around(tables, surroundings.claim_in(store, spec.buffer.uri))
            found = replace(found, head_id=context.head_id, around=around)
        except _Stopped:
            log.info("%s: stopped the listing of %s", dataset.meta.full_name, spec.buffer.uri)
        except _OtherProperties:
            outdated = True
        except Exception as e:
            found = unavailable(e, f"Buffer {spec.buffer.uri}", context.properties, storage=True)
        with self._lock:
            core_seconds = time.thread_time() - began
            is_later = buffer.found is not None
            reported, news = self._ended(buffer, listing, found, core_seconds)
            reported = (reported or outdated) and not listing.stop.is_set()
            listing.done.set()
        self._start_due()
        if reported:
            self.on_change(dataset.meta, news and is_later)

    def _ended(
        self,
        buffer: ListedBuffer,
        listing: PlannedListing,
        found: BufferDigest | Unavailable | None,
        core_seconds: float,
    ) -> tuple[bool, bool]:
        """Keep the result of a listing, and plan the next one. Returns: whether the Dataset must be reconciled, and whether that
        is because of what was found."""
        name, spec = buffer.context.dataset.meta.full_name, buffer.context.dataset.spec
        buffer.running, buffer.ended = None, self._clock()
        self._schedule.ended(buffer.store, listing.since)
        is_first = buffer.found is None
        head_id = found.head_id if isinstance(found, BufferDigest) else None
        news = isinstance(buffer.digest, BufferDigest) and buffer.digest.head_id != head_id
        cost = ListingCost(core_seconds=core_seconds)  # of one that failed
        if isinstance(found, BufferDigest):
            buffer.last_cost = cost = ListingCost(buffer.ended - listing.since, core_seconds, found.objects)
            known = {b.id: e for b, e in buffer.meanwhile.values() if isinstance(b, BufferedBatch) and e}
            folders = {name: b for name, (b, _) in buffer.meanwhile.items()}
            found = with_folders(found, folders, known, spec.consolidation.max_batches_per_run)
            found = buffer.with_horizons(found, listing.searching)
            news = news or bool(found.expired) or bool(listing.searching)
        buffer.meanwhile.clear()
        if found is not None:
            news = buffer.take(found) or news
        if self._buffers.get(name) is buffer:
            self._budget.record(name, cost)
            pause = self._pause(buffer)
            if is_first and buffer.unchanged is None:  # spreads the listings of many Datasets evenly
                shortest = self._budget.pause(name, 0)
                pause = max(shortest + (pause - shortest) * self._spread(), buffer.context.request.rest_seconds)
            buffer.due = buffer.ended + pause
            planned = self._plan(buffer, urgent=buffer.again) if not buffer.suspended else None
            if planned is not None:
                planned.requested = buffer.again
        return not listing.awaited and (news or listing.requested), news

    def _on_object(self, listing: PlannedListing) -> None:
        if listing.stop.is_set():
            raise _Stopped
        listing.last_object = self._clock()


def _identity(dataset: Dataset) -> tuple[str, ...]:
    """What a listing depends on. After the user accepts a rollback, listings compared with the earlier ledger do not count."""
    spec, accepted = dataset.spec, dataset.meta.annotations.get(ACCEPT_HEAD, "")
    return (dataset.meta.uid, spec.table.catalog, spec.buffer.uri, spec.batch_column, spec.buffer.layout, accepted)


def _store_of(context: ListingContext) -> str:
    """What limits the listings of a buffer: the server of its store."""
    return f"{urlsplit(context.dataset.spec.buffer.uri).scheme} {context.properties.get('s3.endpoint', '')}"


def _require_same_properties(context: ListingContext) -> None:
    """Raises: _OtherProperties."""
    try:
        now = catalogs.properties(context.dataset.spec.table.catalog)
    except InputError:
        raise _OtherProperties from None
    if now != context.properties:
        raise _OtherProperties
