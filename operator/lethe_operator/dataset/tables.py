"""Observes the table and the buffer of a Dataset, with PyIceberg and the object store. I/O.

Facts and ledger are cached by metadata location, whose content never changes. While the polled pointer of a table is that of the
cached view, observing the table costs nothing.

A ledger may have a million entries in many files, so the operator never reads all of it: only its statistics, and the entries
with the keys that decisions may look up. Decisions get plain values, so they need no I/O.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from lethe import batches_table, ledger_store
from lethe.base import names
from lethe.base.errors import InputError, LedgerError
from lethe.batches_table import Shown
from lethe.buffer.digest import BufferDigest
from lethe.contract.run import RunPointer
from lethe.contract.status import TableStatus
from lethe.guards import claim
from lethe.guards.boundary import PATH_PROPERTIES
from lethe.iceberg import catalogs, facts, run_documents
from lethe.iceberg.holds import Holds
from lethe.ledger.ledger import BatchEntry, Ledger, RequestEntry, apart, get_many
from lethe.ledger.lineage import Resolution, Snapshot, last_ledger, shows_again
from lethe.ledger_chunks import entries_since
from lethe.ledger_store import Loaded
from lethe.storage.properties import require_safe_table
from lethe.vacuum.housekeeping import keeps_files
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.schema import Schema

from lethe_operator.cluster.time_limit import Limiter, scrubbed, unavailable
from lethe_operator.dataset.buffer_events import EventSources
from lethe_operator.dataset.listing import ListingRequest, Listings
from lethe_operator.dataset.pointers import OpenCatalogs, Pointer, Pointers, service_of
from lethe_operator.guards.holds import digest
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import (
    EventsView,
    LookupView,
    LostLedger,
    NoTable,
    NotListed,
    ObservedRun,
    TableView,
    Unavailable,
)
from lethe_operator.resources.restatement import Restatement
from lethe_operator.runs.observe import Documents
from lethe_operator.settings import IdleChecks

E = TypeVar("E")


@dataclass(frozen=True)
class LedgerKeys:
    """Keys that a decision may look up."""

    batch_ids: frozenset[str] = frozenset()
    request_keys: frozenset[str] = frozenset()


def asked_by(
    dataset: Dataset,
    restatements: Collection[Restatement],
    runs: Collection[ObservedRun],
    buffer: BufferDigest | NotListed | Unavailable,
) -> LedgerKeys:
    """The keys that the decision may look up.

    Batches that a run may take, that are deleted from the buffer, shown as refused or held, restated or promoted; and
    all requests. Refused batches leave the buffer, so the status remembers them.
    """
    shown = dataset.status.batches
    batch_ids = {b.batch_id for b in (*(shown.refused_batches or ()), *(shown.held_batches or ()))} if shown else set()
    if isinstance(buffer, BufferDigest):
        batch_ids |= {b.id for b in buffer.oldest}
        batch_ids |= {*buffer.refused_ids, *buffer.held_ids}
    keys = {r.key for r in restatements}
    for r in restatements:
        if r.added_batch_id is not None:  # the size of its run depends on the replaced batches
            batch_ids |= set(r.sized_by)
    for run in runs:
        batch_ids |= set(run.intent.consolidation.batch_ids if run.intent and run.intent.consolidation else ())
        keys |= {request.key for request in run.requests}
    return LedgerKeys(frozenset(batch_ids), frozenset(keys))


@dataclass
class Lookup:
    """A cache of entries of one ledger. The ledger of one metadata location never changes."""

    batches: dict[str, BatchEntry | None] = field(default_factory=dict)
    requests: dict[str, RequestEntry | None] = field(default_factory=dict)
    earlier: tuple[Mapping[str, BatchEntry], frozenset[str]] | None = None
    """The batches of another ledger, and ids that it does not have, as those of batches that wait. These are
    searched for in chunks that it does not have alone. None: no other ledger is known, or it was used.
    """

    def later(self, ledger: Ledger) -> "Lookup":
        """An empty cache for the next ledger of the table. `ledger`: the one that this cache is of."""
        absent = frozenset(k for k, e in list(self.batches.items()) if e is None)
        return Lookup(earlier=(ledger.batches, absent) if absent else self.earlier)

    def has(self, asked: LedgerKeys) -> bool:
        """Whether `known` reads nothing."""
        return asked.batch_ids <= self.batches.keys() and asked.request_keys <= self.requests.keys()

    def known(self, ledger: Ledger, asked: LedgerKeys) -> Ledger:
        """The ledger with only these batches and requests, and with the statistics of all.

        Raises:
            LedgerError: And the store's errors.
        """
        if self.earlier is not None:
            before, absent = self.earlier
            still_asked = absent & asked.batch_ids
            entries = entries_since(before, ledger.batches, still_asked)
            self.batches.update({k: entries.get(k) for k in still_asked})
            self.earlier = None
        batches = _looked_up(self.batches, ledger.batches, asked.batch_ids)
        requests = _looked_up(self.requests, ledger.requests, asked.request_keys)
        return replace(ledger, batches=batches, requests=requests, recorded=ledger.statistics)


def _looked_up(kept: dict[str, E | None], part: Mapping[str, E], keys: Collection[str]) -> dict[str, E]:
    new = [k for k in keys if k not in kept]
    if new:
        entries = get_many(part, new)
        kept.update({k: entries.get(k) for k in new})
    for k in kept.keys() - set(keys):
        del kept[k]
    return {k: e for k in keys if (e := kept[k]) is not None}


log = logging.getLogger(__name__)

TABLE_SECONDS: Final = 25.0
# The longest time until a table of batches that is behind its ledger is read again.
BATCHES_AGAIN_SECONDS: Final = 3600.0


@dataclass(frozen=True)
class _CachedTable:
    """A table at one metadata location."""

    found: tuple[str, str, str]
    """The Dataset's UID and the location."""
    view: TableView
    for_listings: Mapping[str, BatchEntry]
    """Batches of the ledger, for the thread that lists the buffer."""
    for_events: Mapping[str, BatchEntry]
    """Batches of the ledger, for the thread that reads notifications."""
    lookup: Lookup = field(default_factory=Lookup)
    """Cached entries of the ledger."""


@dataclass
class _ShownBatches:
    """What a table of batches showed, for one head of its table."""

    of_head: tuple[str, int | None, int]
    """The table's UUID, head and ledger version."""
    since: float
    """When that head was first seen, by time.monotonic(), in seconds."""
    read_at: float
    """By the same clock."""
    shown: Shown | None
    """None: there is no table of batches, or it cannot be read."""
    final: bool
    """It shows the ledger of the head."""

    def may_change(self, now: float) -> bool:
        """Whether to read it again. Pauses grow with the time for which it has been behind."""
        return not self.final and now - self.read_at >= min(self.read_at - self.since, BATCHES_AGAIN_SECONDS)


class LookupViews:
    """The Datasets in whose tables Restatements of other Datasets look up values, as their last reconciles have seen them.

    One per operator, shared by its threads. So the reconcile of a Restatement's Dataset reads neither the table nor the buffer of
    another one.
    """

    def __init__(self) -> None:
        # Called with the namespace and the name of a Dataset whose Restatements look up in one that has changed.
        self.on_change: Callable[[str, str], None] = lambda _namespace, _name: None
        self._views: dict[str, LookupView] = {}

    def put(self, view: LookupView, asked_by: Collection[Restatement]) -> None:
        """Keep what the reconcile of a Dataset has seen, as long as Restatements of others look up in it."""
        name = view.dataset.meta.full_name
        if not asked_by:
            self._views.pop(name, None)
            return
        before = self._views.get(name)
        self._views[name] = view
        if before is None or _seen_of(before) != _seen_of(view):
            for asking in sorted({r.spec.dataset for r in asked_by}):
                self.on_change(view.dataset.meta.namespace, asking)

    def of(self, dataset: Dataset) -> LookupView:
        """What is known of a Dataset. Without a listing, if no reconcile has seen this generation of it."""
        known = self._views.get(dataset.meta.full_name)
        if known is None or _generation(known.dataset) != _generation(dataset):
            return LookupView(dataset)
        return known

    def forget(self, dataset: str) -> None:
        """Drop what is known of a deleted Dataset, as `namespace/name`."""
        self._views.pop(dataset, None)


def _generation(dataset: Dataset) -> tuple[str, int]:
    return dataset.meta.uid, dataset.meta.generation


def _seen_of(view: LookupView) -> tuple[object, ...]:
    head_id = view.table.head_id if isinstance(view.table, TableView) else None
    return (view.dataset.meta.generation, head_id, view.buffer)


class TableReader:
    """Reads tables and buffers. One per operator, shared by its threads."""

    def __init__(
        self,
        limiter: Limiter | None = None,
        listings: Listings | None = None,
        events: EventSources | None = None,
        checks: IdleChecks | None = None,
    ) -> None:
        self._limiter = limiter or Limiter()
        self._opened = OpenCatalogs()
        self._views: dict[str, _CachedTable] = {}
        # The metadata location of the view that was returned last, if the catalog was not asked; None in it: there is no table.
        self._as_polled: dict[str, str | None] = {}
        # The Datasets of which the catalog has said that there is neither a table nor a view.
        self._absent: set[str] = set()
        self._batches: dict[str, _ShownBatches] = {}
        self.pointers = Pointers(self._limiter, self._opened, checks or IdleChecks())
        self.listings = listings or Listings()
        self.lookups = LookupViews()
        self.events = events or EventSources(self.listings)
        self.documents = Documents(self._read)

    @property
    def opened(self) -> OpenCatalogs:
        """The catalogs of the operator."""
        return self._opened

    def start(self) -> None:
        """Begin to check tables and buffers periodically. Before, `view` always asks the catalog."""
        self.pointers.start()
        self.listings.start()

    def stop(self) -> None:
        """Begin no periodic check of tables and buffers any more. It does not wait for those under way."""
        self.pointers.stop()
        self.listings.stop()

    def view(self, dataset: Dataset, fresh: bool = False) -> TableView | NoTable | Unavailable:
        """The table; `known` reads its ledger. Never raises: an error is part of the observation.

        Args:
            fresh: True: as it is now; False: it may be as old as the last round of the pointers.
        """
        spec, name = dataset.spec.table, dataset.meta.full_name
        properties: dict[str, str] = {}
        self._as_polled.pop(name, None)
        try:
            properties = catalogs.properties(spec.catalog)
            catalogs.require_service(spec.catalog, properties)
            self.pointers.register(dataset)
            if not fresh and (trouble := self.pointers.trouble(spec.catalog)) is not None:
                return _unavailable_table(dataset, trouble, properties)
            polled = self.pointers.known(dataset) if not fresh else None
            if polled is not None and (cached := self._cached(dataset, polled, properties)) is not None:
                self._as_polled[name] = polled.location
                return cached
            service = service_of(spec.catalog)
            return self._limiter.call(
                f"table of {name}", TABLE_SECONDS, lambda: self._load(dataset, properties, polled), service
            )
        except Exception as e:
            failure = _unavailable_table(dataset, e, properties)
            if failure.reason == Reason.CATALOG_UNAVAILABLE:
                self._opened.drop(spec.catalog)
            return failure

    def is_current(self, dataset: Dataset) -> bool:
        """Whether the table that `view` returned last for the Dataset is still the current one.

        Asks the catalog, unless `view` did. Never raises: False, if the catalog does not answer.
        """
        name = dataset.meta.full_name
        if name not in self._as_polled:
            return True
        spec = dataset.spec.table
        try:
            properties = catalogs.properties(spec.catalog)
            pointer = self._limiter.call(
                f"table of {name}",
                TABLE_SECONDS,
                lambda: self.pointers.ask(dataset, properties),
                service_of(spec.catalog),
            )
        except Exception as e:
            log.debug("cannot ask for the pointer of %s: %s", name, type(e).__name__)
            return False
        return pointer.location == self._as_polled.pop(name)

    def known(self, dataset: Dataset, view: TableView, asked: LedgerKeys) -> TableView | Unavailable:
        """The table with the entries of its ledger that decisions may look up. Never raises."""
        spec = dataset.spec.table
        seen = self._views.get(dataset.meta.full_name)
        lookup = seen.lookup if seen is not None and seen.view is view else Lookup()
        if lookup.has(asked):  # nearly always; a call in another thread would cost more than the rest of the reconcile
            return replace(view, ledger=lookup.known(view.ledger, asked))
        properties: dict[str, str] = {}
        try:
            properties = catalogs.properties(spec.catalog)
            ledger = self._limiter.call(
                f"ledger of {dataset.meta.full_name}",
                TABLE_SECONDS,
                lambda: lookup.known(view.ledger, asked),
                f"store of catalog {spec.catalog}",
            )
        except Exception as e:
            return unavailable(e, f"The ledger of table {spec.name}", properties, storage=True)
        return replace(view, ledger=ledger)

    def entries(self, dataset: str) -> Mapping[str, BatchEntry]:
        """The batches of the ledger that was read last for a Dataset, as `namespace/name`, for another thread."""
        seen = self._views.get(dataset)
        return apart(seen.view.ledger.batches) if seen is not None and isinstance(seen.view, TableView) else {}

    def batches(self, dataset: Dataset, view: TableView) -> Shown | None:
        """What the table of batches shows; None: there is no such table, or it cannot be read.

        It is read again only until it shows the ledger of the head. Never raises: no decision depends on it.
        """
        if not dataset.spec.batch_tracking.enabled:
            return None
        name, spec, now = dataset.meta.full_name, dataset.spec.table, time.monotonic()
        of_head = (view.uuid, view.head_id, view.ledger.version)
        kept = self._batches.get(name)
        if kept is not None and kept.of_head == of_head and not kept.may_change(now):
            return kept.shown

        def read() -> Shown | None:
            self.pointers.on_query(spec.catalog)
            table = batches_table.find(self._opened.get(spec.catalog, catalogs.properties(spec.catalog)), spec.name)
            return batches_table.shown(table) if table is not None else None

        rows: Shown | None = None
        try:
            rows = self._limiter.call(f"batches of {name}", TABLE_SECONDS, read, service_of(spec.catalog))
        except Exception as e:
            log.debug("cannot read the table of batches of %s: %s", name, type(e).__name__)
        since = kept.since if kept is not None and kept.of_head == of_head else now
        final = rows is not None and (rows.table_uuid, rows.version) == (view.uuid, view.ledger.version)
        self._batches[name] = _ShownBatches(of_head, since, now, rows, final)
        return rows

    def buffer(
        self,
        dataset: Dataset,
        table: TableView | NoTable | Unavailable,
        request: ListingRequest,
    ) -> BufferDigest | NotListed | Unavailable:
        """The digest of the buffer's last listing.

        While the table cannot be read, nothing is listed, because promoted batches could not be recognized. Never raises.

        Args:
            table: As returned by `view`.
        """
        if isinstance(table, Unavailable):
            self.listings.suspend(dataset.meta.full_name)
            return self.listings.last(dataset)
        entries: Mapping[str, BatchEntry] = {}
        if isinstance(table, TableView):
            seen = self._views.get(dataset.meta.full_name)
            entries = seen.for_listings if seen is not None and seen.view is table else apart(table.ledger.batches)
        try:
            properties = catalogs.properties(dataset.spec.table.catalog)
        except Exception as e:
            self.listings.suspend(dataset.meta.full_name)
            return unavailable(e, f"Buffer {dataset.spec.buffer.uri}", {}, storage=True)
        spec = dataset.spec
        local = claim.local(
            f"Dataset {dataset.meta.name}: spec.buffer.uri",
            spec.buffer.uri,
            spec.table.catalog,
            catalogs.is_local(properties),
        )
        if local is not None:
            self.listings.suspend(dataset.meta.full_name)
            return Unavailable(Reason.BUFFER_LOCAL, local, transient=False)
        head_id = table.head_id if isinstance(table, TableView) else None
        return self.listings.digest(dataset, entries, properties, request, head_id)

    def notifications(
        self, dataset: Dataset, table: TableView | NoTable | Unavailable, others: str = ""
    ) -> EventsView | None:
        """How the notifications of the buffer are read; the first call starts the reader.

        None: the Dataset has no queue. While the table cannot be read, its last ledger counts. Never raises.

        Args:
            table: As returned by `view`.
            others: Name of the Dataset that owns the queue; "": this one does.
        """
        entries: Mapping[str, BatchEntry] | None = None
        if not isinstance(table, Unavailable):
            seen = self._views.get(dataset.meta.full_name)
            entries = seen.for_events if seen is not None and seen.view is table else {}
        properties: Mapping[str, str] = {}
        with suppress(InputError):  # the observation of the table reports what is wrong with the catalog
            properties = catalogs.properties(dataset.spec.table.catalog)
        return self.events.view(dataset, entries, properties, others)

    def _read(self, pointer: RunPointer) -> bytes | None:
        store = "/".join(pointer.uri.split("/", 3)[:3])
        return self._limiter.call(f"run {pointer.uri}", TABLE_SECONDS, lambda: run_documents.read(pointer), store)

    def forget(self, dataset: str) -> None:
        """Drop everything about a deleted Dataset, as `namespace/name`."""
        self.listings.forget(dataset)
        self.lookups.forget(dataset)
        self.events.forget(dataset)
        self.pointers.forget(dataset)
        self._views.pop(dataset, None)
        self._absent.discard(dataset)
        self._as_polled.pop(dataset, None)
        self._batches.pop(dataset, None)

    def _cached(self, dataset: Dataset, pointer: Pointer, properties: dict[str, str]) -> TableView | NoTable | None:
        """What is known of the table at this pointer; None: it must be loaded."""
        if pointer.location is None:
            return NoTable(properties.get("warehouse", "")) if dataset.meta.full_name in self._absent else None
        kept = self._views.get(dataset.meta.full_name)
        return kept.view if kept is not None and kept.found == _key(dataset, pointer.location) else None

    def _load(
        self, dataset: Dataset, properties: dict[str, str], polled: Pointer | None
    ) -> TableView | NoTable | LostLedger:
        """Load a table, unless its pointer has not moved.

        Args:
            polled: A pointer that differs from that of the cached view; None: unknown.
        """
        if polled is None and dataset.meta.full_name in self._views:
            pointer = self.pointers.ask(dataset, properties)
            if (cached := self._cached(dataset, pointer, properties)) is not None:
                return cached
        asked = time.monotonic()
        self.pointers.on_query(dataset.spec.table.catalog)
        try:
            table = self._opened.get(dataset.spec.table.catalog, properties).load_table(dataset.spec.table.name)
        except (NoSuchTableError, NoSuchNamespaceError):
            self.pointers.record(dataset, Pointer(None, asked))
            self._absent.add(dataset.meta.full_name)
            return NoTable(properties.get("warehouse", ""))
        self.pointers.record(dataset, Pointer(table.metadata_location, asked))
        self._absent.discard(dataset.meta.full_name)
        key = _key(dataset, table.metadata_location)
        kept = self._views.get(dataset.meta.full_name)
        if kept is not None and kept.found == key:
            return kept.view
        seen = facts.observe(table, dataset.spec.batch_column)
        try:
            view = replace(view_of(seen, table.io), invalid_hold=_invalid_hold(dataset, table.schema()))
        except LedgerError as e:
            if e.reason != Reason.LEDGER_LOST:
                raise
            return _lost(dataset, seen, scrubbed(e.message, properties))
        lookup = kept.lookup.later(kept.view.ledger) if kept is not None else Lookup()
        self._views[dataset.meta.full_name] = _CachedTable(
            key, view, apart(view.ledger.batches), apart(view.ledger.batches), lookup
        )
        return view


def _unavailable_table(dataset: Dataset, error: Exception, properties: Mapping[str, str]) -> Unavailable:
    spec = dataset.spec.table
    return unavailable(error, f"Table {spec.name} of catalog {spec.catalog}", properties, storage=False)


def _lost(dataset: Dataset, table_facts: facts.TableFacts, message: str) -> LostLedger:
    before = dataset.status.table
    known = before if before is not None and before.uuid == table_facts.uuid else TableStatus()
    last = last_ledger(table_facts.snapshots, known.ledger, known.sequence_number)
    return LostLedger(Reason.LEDGER_LOST, message, table_facts.uuid, table_facts.head_id or 0, last, transient=False)


def _key(dataset: Dataset, location: str) -> tuple[str, str, str]:
    """What a view depends on: the table's metadata, and the filters that it is compared with."""
    return dataset.meta.uid, location, digest(dataset.spec.holds)


def _invalid_hold(dataset: Dataset, schema: Schema) -> str | None:
    try:
        Holds.of(dataset.spec.holds, schema)
    except InputError as e:
        return e.message
    return None


def view_of(table_facts: facts.TableFacts, io: Any) -> TableView:
    """What decisions need of a table. Reads the root of its ledger.

    Raises:
        LedgerError: And the store's errors.
    """
    ancestry = _ancestry(table_facts)
    head = ancestry.get(table_facts.head_id) if table_facts.head_id is not None else None
    loaded = ledger_store.load(io, table_facts)
    return TableView(
        uuid=table_facts.uuid,
        location=table_facts.location,
        format_version=table_facts.format_version,
        head_id=table_facts.head_id,
        head_time=table_facts.head_time,
        claim=table_facts.claim,
        batch_field_id=table_facts.batch_field_id,
        prepared=table_facts.sorted_by_batch and table_facts.metrics_full,
        head_sequence_number=head.sequence_number if head is not None else 0,
        is_masked=_is_masked(ancestry, loaded),
        bare_since=_bare_since(ancestry, loaded.resolution),
        # Keeping all summaries would take too much memory.
        ancestry={i: s if shows_again(s) else replace(s, summary={}) for i, s in ancestry.items()},
        ledger=loaded.ledger,
        run_ids=frozenset(s.summary[names.RUN_ID] for s in ancestry.values() if _ends_run(s)),
        total_bytes=int(head.summary.get("total-files-size", 0)) if head is not None else 0,
        total_records=int(records) if head is not None and (records := head.summary.get("total-records")) else None,
        holds_batches=names.TRACKS in table_facts.properties,
        refs=table_facts.refs,
        snapshot_ids=frozenset(table_facts.snapshots),
        write_paths={p: table_facts.properties[p] for p in PATH_PROPERTIES if table_facts.properties.get(p)},
        keeps_files=keeps_files(table_facts.properties),
        ledger_uri=loaded.resolution.pointer,
        unsafe=_unsafe(table_facts),
    )


def _unsafe(table_facts: facts.TableFacts) -> str | None:
    """What a run would say about a property of the table that its JVM would follow; None: there is none."""
    try:
        require_safe_table(table_facts.name, table_facts.location, table_facts.properties)
    except InputError as e:
        return e.message
    return None


def _ancestry(table_facts: facts.TableFacts) -> dict[int, Snapshot]:
    """The head and its retained ancestors, newest first. Staged snapshots also name their run, but are not committed."""
    line: dict[int, Snapshot] = {}
    current = table_facts.head_id
    while current is not None and (snapshot := table_facts.snapshots.get(current)) is not None:
        line[current] = snapshot
        current = snapshot.parent_id
    return line


def _ends_run(snapshot: Snapshot) -> bool:
    """Whether the snapshot is the last or only commit of a run."""
    return bool(snapshot.summary.get(names.RUN_ID)) and names.UNFINISHED not in snapshot.summary


def _is_masked(ancestry: Mapping[int, Snapshot], loaded: Loaded) -> bool:
    if not loaded.ledger.tombstones:
        return True
    carrier = ancestry.get(loaded.resolution.carrier_id or 0)
    return not loaded.resolution.bare and carrier is not None and carrier.summary.get(names.MASKED) == "true"


def _bare_since(ancestry: dict[int, Snapshot], resolution: Resolution) -> datetime | None:
    """Since when the head has no ledger; None: it has one, or the table never had one."""
    if resolution.pointer is None or not resolution.bare:
        return None
    first = ancestry[resolution.bare[-1]]
    return datetime.fromtimestamp(first.timestamp_ms / 1000, UTC)
