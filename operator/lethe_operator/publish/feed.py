"""Publishes one table: reads its cursor, sends the events of each following version, and moves the cursor. I/O.

What happens when this process dies is decided by the order: the cursor names a step before its first event is sent, and moves on
after its last one is delivered. So events are repeated, with the same ids, and never lost. Of two versions of the ledger only
the chunks are read that they do not share, so the cost follows the change and not the size of the ledger.

RunEvents of OpenLineage are made of the same steps. They have a cursor and a sink of their own, so neither holds up the other.
"""

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol, TypeVar, assert_never

from lethe import ledger_store
from lethe.base import names
from lethe.base.errors import InputError, LedgerError
from lethe.contract.settings import RunFamily
from lethe.iceberg import catalogs
from lethe.iceberg.facts import TableFacts, observe
from lethe.ledger.ledger import EMPTY, BatchEntry, Ledger, RequestEntry, apart, get_many
from lethe.ledger.root import Root
from lethe.ledger_chunks import TooDifferent, all_entries, differing
from lethe.storage.object_store import open_store
from lethe.storage.vended import of_table
from lethe.uri import backend_of
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io import FileIO

from lethe_operator.cluster.time_limit import Limiter
from lethe_operator.dataset.pointers import OpenCatalogs, service_of
from lethe_operator.dataset.tables import TABLE_SECONDS
from lethe_operator.publish import changes
from lethe_operator.publish.changes import Common, EntryChange, LineageCommit, run_event
from lethe_operator.publish.cursor import (
    Carried,
    Cursor,
    HeadHistory,
    Move,
    PublishedPosition,
    PublishingStep,
    generator_of,
    line_of,
    move_to,
    next_candidate,
    started,
)
from lethe_operator.publish.cursor_files import CursorFiles, CursorMoved, Numbered
from lethe_operator.publish.delivery import EventSink, SinkError
from lethe_operator.publish.events import (
    CloudEvent,
    EventData,
    GapReason,
    HistoryGap,
    Origin,
    PublishingStarted,
    TableOf,
    TableRolledBack,
    identity,
    numbered,
)
from lethe_operator.resources.observed import StartedFrom

# After a gap without the earlier version, the present state of what is newer than it is published. Clocks of runs may differ.
CLOCKS_DIFFER_BY: Final = timedelta(hours=1)

K = TypeVar("K", bound=Any)
V = TypeVar("V")


@dataclass(frozen=True)
class LedgerVersions:
    """The versions of the ledger of one table."""

    io: FileIO
    facts: TableFacts
    table: TableOf
    max_event_bytes: int
    _roots: dict[str, Root] = field(default_factory=dict)

    def require(self, position: PublishedPosition) -> None:
        """Require that the ledger of a position can be read.

        Raises:
            LedgerError: The root cannot be read.
            Exception: What the store raises.
        """
        if position.root is not None:
            self._root(position.root)

    def version_of(self, root: str) -> int:
        """The version of the ledger with this root.

        Raises:
            LedgerError: A ledger file is unusable.
            Exception: What the store raises.
        """
        return self._root(root).ledger_version

    def _root(self, uri: str) -> Root:
        """Roots never change, and each is read once."""
        if uri not in self._roots:
            self._roots[uri] = ledger_store.read_root(self.io, self.facts, uri)
        return self._roots[uri]

    def _at(self, position: PublishedPosition) -> Ledger:
        if position.root is None:
            return EMPTY
        root = self._root(position.root)
        return ledger_store.ledger_of(self.io, position.root, root, position.snapshot_id)

    def events(self, cursor: Cursor, origin: Origin) -> Iterator[CloudEvent]:
        """The events of the cursor's step.

        Raises:
            Exception: As `contents`.
        """
        return numbered(self.contents(cursor), cursor, origin)

    def contents(self, cursor: Cursor) -> Iterator[EventData]:
        """The contents of the events of the cursor's step, in an order that depends on nothing but both ledgers.

        Raises:
            LedgerError: A version cannot be read.
            Exception: What the store raises.
        """
        step = cursor.step
        assert step is not None
        after = self._at(step.to)
        common: dict[str, Any] = {
            "table": self.table,
            "ledger_version": step.to.version,
            "snapshot_id": step.to.snapshot_id,
        }
        match step.move:
            case Move.START:
                start = step.start or StartedFrom.HEAD
                states = dict(after.states)
                yield PublishingStarted(start=start, replaces_table=step.replaces, states=states, **common)
            case Move.NEXT:
                yield from self._differences(self._at(cursor.at), after, common, after.pending_run)
            case Move.ROLL_BACK:
                yield TableRolledBack(from_version=cursor.at.version, **common)
                yield from self._differences(self._at(cursor.at), after, common, "")
            case Move.SKIP:
                yield _gap(GapReason.VERSIONS_EXPIRED, cursor, after, common)
                yield from self._differences(self._at(cursor.at), after, common, "")
            case Move.RECOVER:
                yield _gap(GapReason.HISTORY_EXPIRED, cursor, after, common)
                yield from _present(after, cursor.at.time_ms, common)
            case _:
                assert_never(step.move)

    def _differences(self, before: Ledger, after: Ledger, common: Common, run: str) -> Iterator[EventData]:
        """The differences.

        Args:
            run: That committed the later version; "": several runs may have.
        """
        for batch in _versions(before.batches, after.batches):
            if (data := changes.of_batch(batch, common)) is not None:
                yield data
        for request in _versions(before.requests, after.requests):
            yield from changes.of_request(request, common)
        removed = [id for _, id in _removed(before.tombstones, after.tombstones)]
        purged = changes.purged_ids(removed, get_many(apart(after.batches), removed))
        yield from changes.of_purged(purged, common, run, self.max_event_bytes)


def _gap(reason: GapReason, cursor: Cursor, after: Ledger, common: Common) -> HistoryGap:
    return HistoryGap(reason=reason, from_version=cursor.at.version, states=dict(after.states), **common)


def _present(after: Ledger, since_ms: int | None, common: Common) -> Iterator[EventData]:
    """The present state of what was set at this time or later.

    Args:
        since_ms: None: of everything.
    """
    since = datetime.fromtimestamp((since_ms or 0) / 1000, UTC) - CLOCKS_DIFFER_BY if since_ms is not None else None

    def is_new(entry: BatchEntry | RequestEntry) -> bool:
        return since is None or entry.time >= since

    for batches in all_entries(after.batches):
        for batch in filter(is_new, (batches[k] for k in sorted(batches))):
            if (data := changes.of_batch(EntryChange(None, batch), common)) is not None:
                yield data
    for requests in all_entries(after.requests):
        for request in filter(is_new, (requests[k] for k in sorted(requests))):
            yield from changes.of_request(EntryChange(None, request), common)


def _versions(before: Mapping[K, V], after: Mapping[K, V]) -> Iterator[EntryChange[V]]:
    """The entries that may differ, in both versions."""
    try:
        then, now = differing(before, after)
    except TooDifferent:
        yield from _all_versions(before, after)
        return
    for key in sorted({*then, *now}):
        yield EntryChange(then.get(key), now.get(key))


def _all_versions(before: Mapping[K, V], after: Mapping[K, V]) -> Iterator[EntryChange[V]]:
    """All entries in both versions. Keeps one chunk of each in memory."""
    for entries in all_entries(after):
        then = get_many(apart(before), entries)
        for key in sorted(entries):
            yield EntryChange(then.get(key), entries[key])
    for entries in all_entries(before):
        now = get_many(apart(after), entries)
        for key in sorted(entries.keys() - now.keys()):
            yield EntryChange(entries[key], None)


def _removed(before: Mapping[K, V], after: Mapping[K, V]) -> Iterable[K]:
    """The keys that are missing later."""
    try:
        then, now = differing(before, after)
    except TooDifferent:
        return [k for some in all_entries(before) for k in some.keys() - get_many(apart(after), some).keys()]
    return then.keys() - now.keys()


TYPE: Final = "io.openlineage.run-event"
# The folder of the cursor, below that of status events.
FOLDER: Final = f"{names.EVENTS_FOLDER}/openlineage"


@dataclass(frozen=True)
class LineageVersions:
    """The versions of the ledger of one table, with one event for each commit of a run."""

    versions: LedgerVersions
    namespace: str
    """Of the jobs, in OpenLineage."""
    buffer: str
    """URI."""

    def events(self, cursor: Cursor, origin: Origin) -> Iterator[CloudEvent]:
        """At most one: versions in between that are gone have none, and neither has a commit of no run."""
        step = cursor.step
        assert step is not None
        snapshot = self.versions.facts.snapshots.get(step.to.snapshot_id or -1)
        if step.move is Move.START or snapshot is None or names.RUN_ID not in snapshot.summary:
            return
        commit = LineageCommit(
            namespace=self.namespace,
            kube_namespace=origin.namespace,
            dataset=origin.name,
            run_id=snapshot.summary[names.RUN_ID],
            family=RunFamily(snapshot.summary.get(names.RUN_KIND, RunFamily.VACUUM)),
            unfinished=names.UNFINISHED in snapshot.summary,
            time=datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC),
            snapshot_id=snapshot.id,
            table=self.versions.table.name,
            catalog=self.versions.table.catalog,
            location=self.versions.facts.location,
            buffer=self.buffer,
        )
        contents = self.versions.contents(cursor) if step.move is Move.NEXT else ()
        yield identity(cursor, origin, 0, TYPE, "", run_event(commit, contents))


log = logging.getLogger(__name__)

# The number of events after which the cursor notes the progress of a step. At most so many are repeated after a crash.
NOTED_EVERY: Final = 2000
FIRST_VERSION: Final = 1  # of a ledger


class Ledgers(Protocol):
    """The versions of a ledger, as `LedgerVersions` reads them."""

    def require(self, position: PublishedPosition) -> None:
        """Read the ledger of a position, so that its loss is found before anything is sent.

        Raises:
            LedgerError: The root cannot be read.
        """

    def version_of(self, root: str) -> int:
        """The version of the ledger whose root has this URI.

        Raises:
            LedgerError: A ledger file is unusable.
        """


class Events(Protocol):
    """Makes the events of a step: always the same ones, in the same order."""

    def events(self, cursor: Cursor, origin: Origin) -> Iterator[CloudEvent]:
        """All events of the step of a cursor, also those that were sent before. They are made one by one."""


@dataclass(frozen=True)
class OpenTable:
    """A table as it was loaded."""

    uuid: str
    line: HeadHistory
    ledgers: Ledgers
    events: Events
    cursors: CursorFiles


@dataclass
class FeedState:
    """What is known of a table's publishing. Other threads read it for metrics."""

    numbered: Numbered | None = None
    """The cursor as this process read or wrote it last; None: not read yet."""
    waiting: int = 0
    """Events that are read from the ledger and not delivered."""
    published: tuple[str, str | None] | None = None
    """The table's UUID and the root that is published; None: unknown."""


@dataclass(frozen=True)
class Feed:
    """Publishes one table with a sink."""

    origin: Origin
    sink: EventSink
    start: StartedFrom
    max_event_bytes: int
    enabled_ms: Callable[[], int]
    """When events were first enabled for the namespace, in milliseconds since 1970."""
    check: Callable[[], None] = lambda: None
    """Raises, if this process may not act any more."""
    on_sent: Callable[[Sequence[CloudEvent]], None] = lambda _: None
    """Called with events that were delivered."""
    clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    at_step: Callable[[str], None] = lambda _: None
    """Called with the name of each step, for tests."""

    def publish(self, table: OpenTable, state: FeedState) -> None:
        """Publish everything up to the head.

        The caller repeats the call later; nothing is lost.

        Raises:
            SinkError: An event was not delivered.
            CursorMoved: Another process has changed the cursor, so this one must read it again.
            UnreadableCursor: A cursor has an unknown format; the message says which.
            LedgerError: A ledger file is unusable.
            Exception: What `check` and the store raise.
        """
        try:
            self._publish(table, state)
        except CursorMoved:
            state.numbered = None
            raise
        state.waiting = 0

    def _publish(self, table: OpenTable, state: FeedState) -> None:
        current = self._cursor(table, state)
        while True:
            if current.cursor.step is not None:
                current = self._finish(table, state, current)
            step = self._next_step(table, current.cursor)
            if step is None:
                break
            # One write ends the step before and begins this one.
            current = self._write(table, state, current.cursor.begun(step, self.clock_ms()), current)
            self.at_step("begun")
        if state.numbered is not current:
            self._write(table, state, current.cursor, current)
            self.at_step("finished")
        state.published = (table.uuid, current.cursor.at.root)

    def _cursor(self, table: OpenTable, state: FeedState) -> Numbered:
        """The cursor of this table; a new one, if there is none."""
        known = state.numbered
        if known is None or known.cursor.table_uuid != table.uuid:
            known = state.numbered = table.cursors.load()
        if known is None:
            at, start = self._beginning(table)
            replaced = table.cursors.of_replaced()
            made = started(table.uuid, at, start, self._generator, self.clock_ms(), replaced)
            known = self._write(table, state, made, None)
            self.at_step("started")
            return known
        cursor = known.cursor.resumed(self._generator, self.clock_ms())
        return known if cursor is known.cursor else self._write(table, state, cursor, known)

    def _beginning(self, table: OpenTable) -> tuple[PublishedPosition, StartedFrom]:
        """A table whose first ledger was committed after events were enabled is always published from its beginning."""
        if self.start is StartedFrom.BEGINNING or self._is_new(table):
            return PublishedPosition(), StartedFrom.BEGINNING
        head = table.line.carried[-1]
        return head.at(table.ledgers.version_of(head.root)), StartedFrom.HEAD

    def _is_new(self, table: OpenTable) -> bool:
        """Whether the first ledger of a table was committed after events were enabled.

        The oldest one that is retained may be a later one; if it cannot be read, the table counts as new, so that nothing is
        lost.
        """
        carried = table.line.carried
        if not carried:
            return True
        first = carried[0].time_ms
        if first is None or first < self.enabled_ms():
            return False
        try:
            return table.ledgers.version_of(carried[0].root) == FIRST_VERSION
        except LedgerError:
            return True

    @property
    def _generator(self) -> str:
        return generator_of(self.max_event_bytes)

    def _next_step(self, table: OpenTable, cursor: Cursor) -> PublishingStep | None:
        candidate = next_candidate(cursor.at, table.line)
        if candidate is None:
            return None
        to = _position(table, candidate.to)
        move = move_to(candidate, cursor.at, to.version, _is_readable(table, cursor.at))
        return PublishingStep(move, to, self._generator)

    def _finish(self, table: OpenTable, state: FeedState, current: Numbered) -> Numbered:
        """Send the rest of a step.

        Returns:
            The cursor after the step, which is not written yet.
        """
        step = current.cursor.step
        try:
            return self._send(table, state, current)
        except LedgerError as e:
            assert step is not None
            assert state.numbered is not None
            # Some of its events may have been sent, and what corrects them cannot be known.
            current = state.numbered
            recovery = PublishingStep(Move.RECOVER, _recovered(table, current.cursor), self._generator)
            if step.move is Move.RECOVER and step.to == recovery.to:
                raise
            log.warning("%s: a ledger version was deleted before it was published: %s", self.origin.partition_key, e)
        return self._finish(
            table, state, self._write(table, state, current.cursor.begun(recovery, self.clock_ms()), current)
        )

    def _send(self, table: OpenTable, state: FeedState, current: Numbered) -> Numbered:
        assert current.cursor.step is not None
        sent = current.cursor.step.sent
        events = table.events.events(current.cursor, self.origin)
        for _ in itertools.islice(events, sent):
            pass  # delivered before
        noted = sent
        while window := list(itertools.islice(events, NOTED_EVERY)):
            if sent > noted:
                current, noted = self._write(table, state, current.cursor.progressed(sent), current), sent
                self.at_step("noted")
            for begin in range(0, len(window), self.sink.at_once):
                state.waiting = len(window) - begin
                chunk = window[begin : begin + self.sink.at_once]
                try:
                    self._deliver(chunk)
                except SinkError as e:
                    state.waiting -= e.delivered
                    if sent + e.delivered > noted:
                        self._write(table, state, current.cursor.progressed(sent + e.delivered), current)
                    raise
                sent += len(chunk)
        return Numbered(current.number, current.cursor.finished())

    def _deliver(self, chunk: Sequence[CloudEvent]) -> None:
        self.check()
        self.at_step("before-send")
        try:
            self.sink.send(chunk)
        except SinkError as e:
            self.on_sent(chunk[: e.delivered])
            raise
        self.on_sent(chunk)
        self.at_step("sent")

    def _write(self, table: OpenTable, state: FeedState, cursor: Cursor, after: Numbered | None) -> Numbered:
        self.check()
        self.at_step("before-cursor")
        state.numbered = table.cursors.create(cursor, after)
        return state.numbered


def _recovered(table: OpenTable, cursor: Cursor) -> PublishedPosition:
    """Where to go on after a version that cannot be read: the next one that can, or the head's.

    Raises:
        LedgerError: A ledger file is unusable.
    """
    candidate = next_candidate(cursor.at, table.line)
    head = next(iter(table.line.carried[-1:]), None)
    if candidate is None or candidate.to == head:
        return _position(table, head)
    try:
        return _position(table, candidate.to)
    except LedgerError:
        return _position(table, head)


def _position(table: OpenTable, carried: Carried | None) -> PublishedPosition:
    """The position.

    Args:
        carried: None: the empty ledger.
    """
    return PublishedPosition() if carried is None else carried.at(table.ledgers.version_of(carried.root))


def _is_readable(table: OpenTable, position: PublishedPosition) -> bool:
    """Whether the root of a version is there.

    Raises:
        Exception: What the store raises.
    """
    try:
        table.ledgers.require(position)
    except LedgerError:
        return False
    return True


@dataclass(frozen=True)
class PublishedDataset:
    """A Dataset whose events are published."""

    namespace: str
    name: str
    catalog: str
    table: str
    """`namespace.table`."""
    batch_column: str
    claim: str
    """The value of the table property by which the Dataset claims its table."""
    location: str
    """URI of the table, as last seen."""
    uuid: str
    """Of the table, as last seen."""
    buffer: str
    """URI."""

    @property
    def full_name(self) -> str:
        """The Dataset as `namespace/name`."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class TableOpener:
    """Opens tables, with the catalogs of the operator."""

    opened: OpenCatalogs
    limiter: Limiter
    """Of its own: a catalog that hangs must not use up the calls of reconciles."""
    max_event_bytes: int
    lineage: str | None = None
    """The namespace of jobs in OpenLineage; None: status events."""

    def __call__(self, target: PublishedDataset) -> OpenTable | None:
        """None: there is no such table, or another Dataset has claimed it.

        Raises:
            LedgerError: The head has lost its ledger.
            InputError: UnsupportedStorage among them.
            TookTooLong: The call has not returned within its time limit.
            Exception: What the catalog raises.
        """
        call = f"events of {target.full_name}"
        return self.limiter.call(call, TABLE_SECONDS, lambda: self._open(target), service_of(target.catalog))

    def _open(self, target: PublishedDataset) -> OpenTable | None:
        properties = catalogs.properties(target.catalog)
        try:
            table = self.opened.get(target.catalog, properties).load_table(target.table)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        facts = observe(table, target.batch_column)
        if facts.claim != target.claim:
            return None
        loaded = ledger_store.load(table.io, facts)
        name = TableOf(catalog=target.catalog, name=target.table, uuid=facts.uuid)
        versions = LedgerVersions(table.io, facts, name, self.max_event_bytes)
        return OpenTable(
            facts.uuid,
            line_of(facts.snapshots, facts.head_id, loaded.resolution),
            versions,
            versions if self.lineage is None else LineageVersions(versions, self.lineage, target.buffer),
            self._cursors(target, facts.location, facts.uuid),
        )

    def cursors(self, target: PublishedDataset) -> CursorFiles:
        """The cursor of the table where it was last seen.

        Raises:
            InputError: The user has to change something.
        """
        return self._cursors(target, target.location, target.uuid)

    def _cursors(self, target: PublishedDataset, location: str, uuid: str) -> CursorFiles:
        if backend_of(location) is None:
            raise InputError(
                "UnsupportedStorage",
                f"{location}: status events need a store in which Lethe creates files atomically: S3, Google Cloud Storage, "
                "Azure, or local folders.",
            )
        store = open_store(location, of_table(catalogs.properties(target.catalog), target.table))
        folder = names.EVENTS_FOLDER if self.lineage is None else FOLDER
        return CursorFiles(store, location, uuid, target.full_name, folder)
