"""Reads two versions of a ledger and gives the contents of the events between them. I/O.

Reads the chunks that the versions do not share, so the cost follows the change and not the size of the ledger.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar, assert_never

from lethe import ledger_store
from lethe.iceberg.facts import TableFacts
from lethe.ledger.ledger import EMPTY, BatchEntry, Ledger, RequestEntry, apart, get_many
from lethe.ledger.root import Root
from lethe.ledger_store import TooDifferent, all_entries, differing
from pyiceberg.io import FileIO

from lethe_operator.publish import changes
from lethe_operator.publish.changes import Common, EntryChange
from lethe_operator.publish.cursor import Cursor, Move, PublishedPosition
from lethe_operator.publish.events import (
    CloudEvent,
    EventData,
    GapReason,
    HistoryGap,
    Origin,
    PublishingStarted,
    TableOf,
    TableRolledBack,
    numbered,
)
from lethe_operator.resources.publishing import StartedFrom

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
