"""Status events in tests: a table's ledgers on local files without a catalog, a sink that remembers, and a consumer."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow  # noqa: F401 - PyIceberg's FileIO
from lethe import ledger_store
from lethe.iceberg.facts import TableFacts
from lethe.ledger.ledger import BatchEntry, Delta, RequestEntry
from lethe.ledger.lineage import Snapshot
from lethe.ledger.tombstone import Tombstone
from lethe.storage.local_store import LocalStore
from lethe_operator.publish.cursor import line_of
from lethe_operator.publish.cursor_files import CursorFiles
from lethe_operator.publish.delivery import SinkError
from lethe_operator.publish.events import CloudEvent, EventType, Origin, TableOf
from lethe_operator.publish.feed import Feed, FeedState, LedgerVersions, OpenTable
from lethe_operator.resources.observed import StartedFrom
from pyiceberg.io import FileIO, load_file_io

from tests.support.builders import NOW, RUN, a_snapshot
from tests.support.clock import wait_until

DATASET = "ns/flights"
UUID = "6b5a3f0c-0000-4000-8000-000000000001"


@dataclass
class LedgerHistory:
    """The ledgers of one table, whose snapshots are only values."""

    home: Path
    uuid: str = UUID
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    head_id: int | None = None
    made: int = 0  # snapshots
    dataset: str = DATASET

    @property
    def location(self) -> str:
        return f"file://{self.home}/flights"

    @property
    def io(self) -> FileIO:
        return load_file_io({}, self.location)

    @property
    def facts(self) -> TableFacts:
        return TableFacts("air.flights", self.uuid, self.location, 2, self.head_id, NOW, snapshots=self.snapshots)

    def commit(self, *entries: BatchEntry | RequestEntry | Tombstone, run: str = RUN, **delta: Any) -> int:
        """Commit a delta on the head. Returns: the snapshot's id."""
        change = Delta(
            run,
            set_batches=tuple(e for e in entries if isinstance(e, BatchEntry)),
            set_requests=tuple(e for e in entries if isinstance(e, RequestEntry)),
            add_tombstones=tuple(e for e in entries if isinstance(e, Tombstone)),
            **delta,
        )
        base = ledger_store.load(self.io, self.facts)
        written = ledger_store.write(self.io, self.facts, base, change)
        return self._add(written.root)

    def append_of_another(self) -> int:
        """A bare snapshot."""
        return self._add(None)

    def _add(self, root: str | None) -> int:
        self.made += 1
        self.snapshots[self.made] = a_snapshot(self.made, self.head_id, ledger=root)
        self.head_id = self.made
        return self.made

    def roll_back(self, to: int | None) -> None:
        self.head_id = to

    def expire(self, *snapshot_ids: int, files: bool = True) -> None:
        """Expire snapshots, and delete the roots that no other one needs, with the chunks that no other root lists."""
        gone = [self.snapshots.pop(i) for i in snapshot_ids]
        if not files:
            return
        needed = {s.ledger for s in self.snapshots.values() if s.ledger}
        kept = {f for root in needed for f in ledger_store.read_root(self.io, self.facts, root).files}
        for snapshot in gone:
            if snapshot.ledger and snapshot.ledger not in needed:
                root = ledger_store.read_root(self.io, self.facts, snapshot.ledger)
                path = Path(snapshot.ledger.removeprefix("file://"))
                path.unlink()
                for file in root.files - kept:
                    (path.parent / file).unlink(missing_ok=True)

    def opened(self, max_event_bytes: int = 64 * 1024) -> OpenTable:
        """The table as a publisher loads it."""
        facts = replace(self.facts, snapshots=dict(self.snapshots))
        loaded = ledger_store.load(self.io, facts)
        table = TableOf(catalog="lite", name="air.flights", uuid=self.uuid)
        versions = LedgerVersions(self.io, facts, table, max_event_bytes)
        return OpenTable(
            self.uuid,
            line_of(facts.snapshots, facts.head_id, loaded.resolution),
            versions,
            versions,
            CursorFiles(LocalStore(), self.location, self.uuid, self.dataset),
        )

    def states(self) -> dict[str, str]:
        return {i: str(b.state) for i, b in ledger_store.load(self.io, self.facts).ledger.batches.items()}


CHUNK = 100  # events of one call
WAIT_SECONDS = 30


@dataclass
class RememberingSink:
    """A sink that keeps what it receives, and fails when it is told to."""

    at_once = CHUNK
    received: list[CloudEvent] = field(default_factory=list)
    calls: int = 0
    failures: list[SinkError] = field(default_factory=list)  # raised by the next calls, first one first
    on_send: Callable[[], object] = lambda: None

    def send(self, events: Sequence[CloudEvent]) -> None:
        self.calls += 1
        self.on_send()
        if self.failures:
            failure = self.failures.pop(0)
            self.received += events[: failure.delivered]
            raise failure
        self.received += events

    def close(self) -> None:
        pass


def a_feed(sink: Any, start: StartedFrom = StartedFrom.BEGINNING, **changes: Any) -> Feed:
    wanted: dict[str, Any] = {
        "origin": Origin("ns", "flights"),
        "max_event_bytes": 64 * 1024,
        "enabled_ms": lambda: 0,
        **changes,
    }
    return Feed(sink=sink, start=start, **wanted)


def publish(history: LedgerHistory, sink: Any, state: FeedState | None = None, **changes: Any) -> FeedState:
    """Publish as a process that remembers only `state`."""
    state = state or FeedState()
    a_feed(sink, **changes).publish(history.opened(changes.get("max_event_bytes", 64 * 1024)), state)
    return state


def deduplicated(events: Iterable[CloudEvent]) -> list[CloudEvent]:
    """What is left for a consumer that ignores ids that it knows."""
    first: dict[tuple[str, str], CloudEvent] = {}
    for event in events:
        first.setdefault((event.source, event.id), event)
    return list(first.values())


_STATES = {
    EventType.BATCH_PROMOTED: "promoted",
    EventType.BATCH_REFUSED: "refused",
    EventType.BATCH_HELD: "held",
    EventType.BATCH_REVERTED: "reverted",
    EventType.BATCH_REPLACED: "replaced",
    EventType.BATCH_ERASED: "erased",
    EventType.BATCH_RESTORED: "promoted",
}


def view_of(events: Iterable[CloudEvent]) -> dict[str, str]:
    """The state of each batch, as a consumer knows it."""
    found: dict[str, str] = {}
    for event in deduplicated(events):
        if event.type == EventType.BATCH_FORGOTTEN:
            found.pop(event.subject, None)
        elif event.type in _STATES:
            found[event.subject] = _STATES[event.type]
    return found


def told(events: Iterable[CloudEvent]) -> list[tuple[str, str]]:
    """Types, shortened, and subjects."""
    return [(e.type.removeprefix("dev.lethe.").removesuffix(".v1"), e.subject) for e in events]


def wait_for(condition: Callable[[], object]) -> None:
    """Wait for what the threads of a publisher do."""
    wait_until(lambda: bool(condition()), WAIT_SECONDS)
