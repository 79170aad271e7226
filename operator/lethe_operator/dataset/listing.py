"""Lists buffers in threads, the most due one first; reconciles continue with the digest of the previous listing. I/O.

A reconcile waits for the listing of a small buffer, but not for that of a large one. A Dataset is reported if its buffer has
changed. A thread cannot be killed: a listing that is no longer needed ends at its next object.

Tables at and above buffers are found as well, and what was found is shared: 10,000 buffers below one folder have the same
parents. If a folder holds no table, that counts for a while and for all of them; if it holds one, it is checked again each time,
so that the removal of the table is noticed at once.
"""

import logging
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from lethe.base.errors import InputError
from lethe.buffer.digest import BufferDigest, Folders, Newest, digest, named_for, with_folders
from lethe.buffer.layout import BufferedBatch, NoBatch, layout_of
from lethe.contract.kubernetes import ACCEPT_HEAD
from lethe.guards.claim import Around, Claim
from lethe.iceberg import catalogs
from lethe.ingest import shared_folders
from lethe.ingest.shared_folders import BufferClaims
from lethe.ledger.ledger import BatchEntry, apart, get_many
from lethe.storage.object_store import open_store

from lethe_operator.cluster.time_limit import Threads, TookTooLong, unavailable
from lethe_operator.dataset.listing_schedule import ListingBudget, ListingCost, ListingLimits, ListingSchedule
from lethe_operator.resources.common import Meta
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import NotListed, Unavailable

# How often to check a folder again. It costs two requests.
AGAIN_SECONDS: Final = 600.0

Properties = frozenset[tuple[str, str]]


@dataclass
class _Check:
    """Whether a folder holds a table."""

    result: Future[bool] = field(default_factory=Future)
    until: float = float("inf")
    """By the clock, in seconds."""


class TablesAround:
    """One per operator, shared by its threads. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._checks: defaultdict[Properties, dict[str, _Check]] = defaultdict(dict)
        self._sweep_at = clock() + AGAIN_SECONDS

    def of(self, uri: str, properties: Mapping[str, str]) -> tuple[str, ...]:
        """The folders at and above a URI that hold a table, as `shared_folders.tables_around`.

        A folder is checked by one thread at a time, and the others wait for its result.

        Args:
            properties: Of the catalog. Other credentials may see other folders, so they share nothing.

        Raises:
            Exception: Errors of the store.
        """
        key = frozenset(properties.items())
        mine: dict[str, _Check] = {}
        checks: dict[str, _Check] = {}
        with self._lock:
            now = self._clock()
            self._sweep(now)
            known = self._checks[key]
            for place in shared_folders.places_around(uri):
                if place not in known or known[place].until <= now:
                    known[place] = mine[place] = _Check()
                checks[place] = known[place]
        self._look(mine, properties)  # before waiting for others, which may wait for these
        return tuple(place for place, check in checks.items() if check.result.result())

    def _look(self, mine: Mapping[str, _Check], properties: Mapping[str, str]) -> None:
        try:
            holding = set(shared_folders.holding_tables(tuple(mine), properties))
        except BaseException as e:
            self._keep(mine, not_these=set(mine))
            for check in mine.values():
                check.result.set_exception(e)
            raise
        self._keep(mine, not_these=holding)
        for place, check in mine.items():
            check.result.set_result(place in holding)

    def _keep(self, mine: Mapping[str, _Check], not_these: set[str]) -> None:
        with self._lock:
            for place, check in mine.items():
                check.until = self._clock() + (0 if place in not_these else AGAIN_SECONDS)

    def _sweep(self, now: float) -> None:
        """Drop what no longer counts, now and then: buffers and credentials go."""
        if now < self._sweep_at:
            return
        self._sweep_at = now + AGAIN_SECONDS
        for key, known in list(self._checks.items()):
            self._checks[key] = kept = {place: check for place, check in known.items() if check.until > now}
            if not kept:
                del self._checks[key]


_BEGINNING: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class ListingRequest:
    """What a reconcile needs of a listing."""

    at_once: bool = False
    """List now, without the pause, for example because a run has just ended."""
    new: bool = False
    """Look for new batches now, without a listing of all: those that come after the known ones in the order of names."""
    rest_seconds: float = 0.0
    """The minimum pause between listings, in seconds, while notifications report changes."""
    searching: Collection[str] = ()
    """UIDs of the Restatements that need to know which batches arrived before them. Horizons of others are forgotten."""
    waits: bool = True
    """Wait a moment for what is listed. False: only for the first listing, because something may start without another one. What
    is found later leads to another reconcile.
    """


@dataclass(frozen=True)
class ListingContext:
    """What a listing depends on, as of the last reconcile."""

    dataset: Dataset
    entries: Mapping[str, BatchEntry]
    """The batches of the ledger that the listing is compared with. Only its thread uses them."""
    # Of the catalog.
    properties: Mapping[str, str]
    request: ListingRequest
    head_id: int | None
    """The snapshot of that ledger; None: there is none."""


@dataclass
class PlannedListing:
    """A listing that is planned or runs."""

    since: float
    """When it was planned, then when it began, by the clock, in seconds."""
    last_object: float
    """When the store returned the last object; before that, as `since`."""
    urgent: bool = False
    """It does not wait for the end of the pause."""
    requested: bool = False
    """A reconcile needs it; False: only its time has come."""
    awaited: bool = False
    """A reconcile waits for it now."""
    searching: frozenset[str] = frozenset()
    """UIDs of the Restatements that existed before it began."""
    stop: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)


@dataclass
class ListedBuffer:
    """What is known of one Dataset's buffer."""

    identity: tuple[str, ...]
    store: str
    context: ListingContext
    digest: BufferDigest | NotListed | Unavailable = field(default_factory=NotListed)
    found: BufferDigest | Unavailable | None = None
    """What the last listing found, to notice changes."""
    to_sweep: bool = False
    """No reconcile has received the expired batches of the digest."""
    # When the last listing ended, and when the next one is due.
    ended: float = float("-inf")
    due: float = float("-inf")
    unchanged: int | None = None
    """Listings without a change since the last change; None: no listing has found a change."""
    unswept: int = 0
    """Listings in a row that found as many expired batches as the one before, because nothing may delete them."""
    planned: PlannedListing | None = None
    """The next listing; None: one is running, or the table cannot be read."""
    running: PlannedListing | None = None
    """The running listing; None: there is none."""
    again: bool = False
    """A listing was requested at once after the running one had begun."""
    after: str = ""
    """The name after which new batches are looked for; "": none is known."""
    ahead: PlannedListing | None = None
    """Looks for them now; None: nothing does."""
    suspended: bool = False
    """It is not listed until the next reconcile that can use the result."""
    claim: tuple[str, Claim | None] | None = None
    """The ETag of the claim that was read last, and the claim; None: none was read."""
    last_cost: ListingCost | None = None
    """Of the last successful listing; None: there was none."""
    meanwhile: dict[str, tuple[BufferedBatch | NoBatch | None, BatchEntry | None]] = field(default_factory=dict)
    """Folders that were read since the running listing began, and the ledger's entries of their batches."""
    horizons: dict[str, datetime] = field(default_factory=dict)
    """As of `BufferDigest`."""

    @property
    def is_complete(self) -> bool:
        """Whether the digest shows all batches that wait, and no sweep has changed the buffer since."""
        return isinstance(self.digest, BufferDigest) and not self.digest.is_cut and not self.digest.expired

    def with_horizons(self, found: BufferDigest, searching: Iterable[str]) -> BufferDigest:
        """The digest with the horizons of the Restatements that existed before its listing began."""
        for uid in searching:
            self.horizons.setdefault(uid, found.youngest_time or _BEGINNING)
        return replace(found, horizons=dict(self.horizons))

    def take(self, found: BufferDigest | Unavailable) -> bool:
        """Keep what a listing found.

        Returns:
            Whether it differs from what the last one found.
        """
        comparable = found.swept() if isinstance(found, BufferDigest) else found
        first, changed = self.found is None, self.found != comparable
        is_stuck = _expired(found) > 0 and _expired(found) == _expired(self.digest)
        self.unswept = self.unswept + 1 if is_stuck else 0
        self.digest, self.found, self.to_sweep = found, comparable, True
        if changed and not (first and isinstance(found, BufferDigest)):
            self.unchanged = 0
        elif not changed and self.unchanged is not None:
            self.unchanged += 1
        return changed


def _expired(found: BufferDigest | NotListed | Unavailable) -> int:
    return found.expired if isinstance(found, BufferDigest) else 0


log = logging.getLogger(__name__)

# How long a reconcile waits for the listing that it needs.
PATIENCE_SECONDS: Final = 2.0
# A store that returns no object for this long hangs.
SILENCE_SECONDS: Final = 60.0
# A look for new batches ends after so many objects, and the next one goes on behind them.
NEW_OBJECTS_AT_MOST: Final = 10_000


class _Stopped(Exception):
    """The listing is no longer needed."""


class _OtherProperties(Exception):
    """The properties of the catalog have changed since the last reconcile, which decides what they mean."""


class Listings:
    """The last digest of each Dataset's buffer.

    One per operator, shared by its threads. `clock` returns seconds, and `spread` a number from 0 to 1.
    """

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
        """Start no planned listing any more. A listing under way goes on."""
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
        """The digest of the last listing; it counts expired batches only once, because a sweep of them begins. Never raises.

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
            ahead = self._look_ahead(buffer) if request.new else None
            patience_seconds = self._patience_seconds if request.waits or buffer.found is None else 0.0
        self._start_due()
        if listing is not None and self._begins_at_once(buffer, listing):
            listing.done.wait(patience_seconds)
        if ahead is not None:
            ahead.done.wait(patience_seconds)
        with self._lock:
            for waited in filter(None, (listing, ahead)):
                waited.awaited = False
            current = buffer.running or (buffer.planned if buffer.planned and buffer.planned.urgent else None)
            if current is not None and self._clock() - current.last_object > SILENCE_SECONDS:
                late = TookTooLong(f"no answer within {SILENCE_SECONDS:g} s")
                return unavailable(late, f"Buffer {dataset.spec.buffer.uri}", properties, storage=True)
            known, to_sweep, buffer.to_sweep = buffer.digest, buffer.to_sweep, False
        return known.swept() if isinstance(known, BufferDigest) and not to_sweep else known

    def _look_ahead(self, buffer: ListedBuffer) -> PlannedListing | None:
        """Look for new batches beside a listing, which may be under way. None: it is not known where."""
        if buffer.ahead is None and buffer.after and isinstance(buffer.digest, BufferDigest):
            now, context = self._clock(), replace(buffer.context, entries=apart(buffer.context.entries))
            buffer.ahead = PlannedListing(now, now)
            self._threads.start(partial(self._find_new, buffer, buffer.ahead, context))
        if buffer.ahead is not None:
            buffer.ahead.awaited = True
        return buffer.ahead

    def _find_new(self, buffer: ListedBuffer, ahead: PlannedListing, context: ListingContext) -> None:
        dataset, newest = context.dataset, Newest(datetime.now(UTC))
        folders: dict[str, BufferedBatch | NoBatch] = {}
        objects = 0
        try:
            for folder in newest.passing(_opened(context).folders(lambda: self._on_object(ahead), buffer.after)):
                name = folder.name if isinstance(folder, BufferedBatch) else folder.folder
                folders[name] = folder
                objects += len(folder.objects) if isinstance(folder, BufferedBatch) else 1
                if objects >= NEW_OBJECTS_AT_MOST:
                    newest.after = name
                    break
            ids = [f.id for f in folders.values() if isinstance(f, BufferedBatch)]
            self.add_folders(dataset, folders, get_many(context.entries, ids))
        except Exception as e:  # the next listing reports it
            log.info("%s: did not find new batches: %s", dataset.meta.full_name, type(e).__name__)
        with self._lock:
            buffer.after, buffer.ahead = newest.after or buffer.after, None
            reported = not ahead.awaited and not ahead.stop.is_set()
            ahead.done.set()
        if reported:
            self.on_change(dataset.meta, True)

    def _begins_at_once(self, buffer: ListedBuffer, listing: PlannedListing) -> bool:
        """Whether it is worth waiting for a listing: it is urgent, or it has begun.

        While many others are overdue, it would make reconciles wait for listings that they do not need; what the listing finds
        leads to another reconcile.
        """
        with self._lock:
            if not listing.urgent and buffer.planned is listing:
                listing.requested = listing.awaited = False
                return False
            return True

    def last(self, dataset: Dataset) -> BufferDigest | NotListed | Unavailable:
        """The digest of the last listing, without a new listing and without expired batches."""
        with self._lock:
            buffer = self._buffers.get(dataset.meta.full_name)
            known = buffer.digest if buffer is not None and buffer.identity == _identity(dataset) else NotListed()
        return known.swept() if isinstance(known, BufferDigest) else known

    def is_listed_now(self, dataset: Dataset) -> bool:
        """Whether a listing, or a look for new batches, is under way or about to begin."""
        with self._lock:
            buffer = self._buffers.get(dataset.meta.full_name)
            if buffer is None or buffer.identity != _identity(dataset):
                return False
            is_urgent = buffer.planned is not None and buffer.planned.urgent
            return is_urgent or buffer.running is not None or buffer.ahead is not None

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
                names = named_for(dataset.spec.consolidation.max_batches_per_run)
                buffer.digest = with_folders(buffer.digest, folders, entries, names)
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
        for going in (buffer.running, buffer.ahead) if buffer is not None else ():
            if going is not None:
                going.stop.set()
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
            return self._budget.pause(name, 0 if buffer.digest.is_cut else buffer.unswept)
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
        result: BufferDigest | Unavailable | None = None
        outdated, newest = False, Newest(datetime.now(UTC))
        try:
            if not listing.requested:
                _require_same_properties(context)
            listed = _opened(context)
            result = digest(
                newest.passing(listed.folders(lambda: self._on_object(listing))),
                lambda ids: get_many(context.entries, ids),
                named_for(spec.consolidation.max_batches_per_run),
                spec.buffer.retention_seconds,
                datetime.now(UTC),
                last.doubled if isinstance(last := buffer.digest, BufferDigest) else frozenset(),
            )
            tables = self._tables_around.of(spec.buffer.uri, context.properties)
            around = Around(tables, _claim_of(buffer, listed))
            result = replace(result, head_id=context.head_id, around=around)
        except _Stopped:
            log.info("%s: stopped the listing of %s", dataset.meta.full_name, spec.buffer.uri)
        except _OtherProperties:
            outdated = True
        except Exception as e:
            result = unavailable(e, f"Buffer {spec.buffer.uri}", context.properties, storage=True)
        with self._lock:
            core_seconds = time.thread_time() - began
            is_later = buffer.found is not None
            reported, news = self._ended(buffer, listing, result, core_seconds)
            if isinstance(result, BufferDigest):
                buffer.after = newest.after
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
        """Keep the result of a listing, and plan the next one.

        Returns:
            Whether the Dataset must be reconciled, and whether that is because of what was found.
        """
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
            found = with_folders(found, folders, known, named_for(spec.consolidation.max_batches_per_run))
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


def _opened(context: ListingContext) -> BufferClaims:
    spec = context.dataset.spec
    store = open_store(spec.buffer.uri, context.properties)
    return BufferClaims(spec.buffer.uri, layout_of(spec.buffer.layout, spec.batch_column), store)


def _claim_of(buffer: ListedBuffer, listed: BufferClaims) -> Claim | None:
    """The claim of a buffer that was just listed. It is read again only if the listing shows another object."""
    etag = listed.claim_etag
    if etag is None:
        return None
    if buffer.claim is None or not etag or buffer.claim[0] != etag:
        buffer.claim = etag, shared_folders.claim_in(listed.store, listed.uri)
    return buffer.claim[1]


def _store_of(context: ListingContext) -> str:
    """What limits the listings of a buffer: the server of its store."""
    return f"{urlsplit(context.dataset.spec.buffer.uri).scheme} {context.properties.get('s3.endpoint', '')}"


def _require_same_properties(context: ListingContext) -> None:
    """Require the catalog's properties that a listing began with.

    Raises:
        _OtherProperties: The properties of the catalog have changed.
    """
    try:
        now = catalogs.properties(context.dataset.spec.table.catalog)
    except InputError:
        raise _OtherProperties from None
    if now != context.properties:
        raise _OtherProperties
