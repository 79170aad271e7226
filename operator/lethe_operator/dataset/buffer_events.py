"""Reads the queues of event notifications of buffers, in windows, each queue in its own thread. I/O.

Invariant: a message is deleted only when the ledger of a commit, or the buffer, shows that it will have no further effect. Until
then it is in flight; after its visibility timeout it comes again and is treated like a new one. Promotion does not depend on
notifications: a listing finds batches without one.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from lethe.base.errors import TransientError
from lethe.buffer.digest import Folders
from lethe.buffer.layout import BufferedBatch, layout_of
from lethe.buffer.notifications import (
    NotANotification,
    Notice,
    Written,
    folders_to_list,
    is_over,
    is_settled,
    latest,
    read,
)
from lethe.contract.dataset import EventsSpec
from lethe.ingest.shared_folders import open_buffer
from lethe.ledger.ledger import BatchEntry, get_many
from lethe.storage.s3 import LONGEST_POLL_SECONDS, Queue, QueueMessage
from lethe.uri import is_s3

from lethe_operator.cluster.time_limit import scrubbed, unavailable
from lethe_operator.dataset.listing import Listings
from lethe_operator.reasons import Reason
from lethe_operator.resources.common import Meta
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import EventsView, Unavailable

log = logging.getLogger(__name__)

BACK_OFF_AT_MOST_SECONDS: Final = 30.0
# Folders that are read in parallel.
LOOKS: Final = 8
# How long a reader at its limit of messages waits for a commit before it checks whether messages have timed out.
FULL_SECONDS: Final = 5.0


@dataclass(frozen=True)
class _HeldMessage:
    """A message in flight."""

    receipt: str
    sent: datetime
    writes: tuple[Written, ...]
    """That it reports."""
    until: float
    """When its visibility timeout ends, by the clock."""


@dataclass
class _SharedState:
    """What reconciles and the reader share, under a lock."""

    entries: Mapping[str, BatchEntry]
    """Batches of the ledger; only the reader looks them up."""
    in_flight: dict[str, _HeldMessage] = field(default_factory=dict)
    """By message id."""
    is_read: bool = False
    """The queue answers."""
    trouble: Unavailable | None = None
    """Why it is not read; None: unknown, or it is read."""


@dataclass(frozen=True)
class ReaderContext:
    """What all readers share. The callbacks are called in a reader's thread."""

    listings: Listings
    clock: Callable[[], float]
    """Seconds."""
    open_queue: Callable[[str, Mapping[str, str]], Queue]
    """Opens the queue with a URL and the properties of a catalog."""
    on_change: Callable[[Meta], None]
    """Called with a Dataset whose buffer or queue has changed."""
    on_messages: Callable[[Meta, str, int], None]
    """Called with the Dataset, an outcome and the number of messages."""


class EventReader:
    """Reads the queue of one Dataset until it is stopped."""

    def __init__(
        self,
        around: ReaderContext,
        dataset: Dataset,
        entries: Mapping[str, BatchEntry],
        properties: Mapping[str, str],
    ) -> None:
        assert dataset.spec.buffer.events is not None
        self.stopped = False
        self._known = _SharedState(entries)
        self._lock = threading.Lock()
        self._wake = threading.Event()  # another ledger, or stop
        self._around = around
        self._dataset = dataset
        self._spec: EventsSpec = dataset.spec.buffer.events
        self._properties = properties
        self._queue: Queue | None = None
        self._settled: Mapping[str, BatchEntry] = entries  # the ledger that messages were last compared with
        self._failures = 0

    def run(self) -> None:
        """Read the queue until `stop`. An error is reported, and followed by a pause that doubles up to a limit."""
        while not self.stopped:
            try:
                self._step()
            except Exception as e:
                self._failures += 1
                self._report(_trouble(e, self._spec.queue_url, self._properties))
                pause = min(2.0 ** min(self._failures - 1, 10), BACK_OFF_AT_MOST_SECONDS)
                self._wait(pause)

    def update(self, dataset: Dataset, entries: Mapping[str, BatchEntry]) -> None:
        """Set the current Dataset and the batches of the current ledger."""
        with self._lock:
            self._dataset = dataset
            changed, self._known.entries = entries is not self._known.entries, entries
        if changed:
            self._wake.set()

    def view(self) -> EventsView:
        """The state of the reader."""
        with self._lock:
            held = list(self._known.in_flight.values())
            is_read, trouble = self._known.is_read, self._known.trouble
        oldest = min((h.sent for h in held), default=None)
        return EventsView(is_read, trouble, len(held), oldest, latest(w for h in held for w in h.writes))

    def stop(self) -> None:
        """Let `run` return after the step that it is in. It does not wait for that."""
        self.stopped = True
        self._wake.set()

    def _wait(self, seconds: float) -> None:
        if self._wake.wait(seconds):
            self._wake.clear()

    def _step(self) -> None:
        self._queue = self._queue or self._around.open_queue(self._spec.queue_url, self._properties)
        with self._lock:
            now, entries = self._around.clock(), self._known.entries
            for id in [i for i, h in self._known.in_flight.items() if h.until <= now]:
                del self._known.in_flight[id]
            in_flight = dict(self._known.in_flight)
        if entries is not self._settled:
            self._settle(in_flight, entries)
            self._settled = entries
        room = self._spec.max_in_flight - len(self._known.in_flight)
        if room <= 0:
            self._wait(FULL_SECONDS)
            return
        window, until = self._window(min(room, self._spec.max_messages))
        if window and not self.stopped:
            self._take(window, until, entries)
        self._failures = 0
        self._report(None)

    def _window(self, at_most: int) -> tuple[list[QueueMessage], float]:
        """Receive messages up to a number, or until a time after the first. Also return when their visibility timeout ends."""
        assert self._queue is not None
        clock, seconds = self._around.clock, self._spec.window_seconds
        messages: list[QueueMessage] = []
        until = ends = clock() + self._spec.visibility_seconds
        wait = float(min(seconds, LONGEST_POLL_SECONDS))
        while len(messages) < at_most and wait >= 0 and not self.stopped:
            try:
                asked = clock()
                came = self._queue.receive(at_most - len(messages), wait, self._spec.visibility_seconds)
            except TransientError:
                if not messages:
                    raise
                break  # keep the received messages; the next window reports the error
            if not messages:
                until, ends = asked + self._spec.visibility_seconds, clock() + seconds
            messages += came
            if not came and (not messages or wait < 1):
                break
            wait = min(ends - clock(), LONGEST_POLL_SECONDS)
        return messages, until

    def _take(self, window: list[QueueMessage], until: float, entries: Mapping[str, BatchEntry]) -> None:
        self._count("Received", len(window))
        notices = {m.id: (m, n) for m in window if (n := self._read(m)) is not None}
        ids = {w.batch_id for _, n in notices.values() for w in n.written}
        known = get_many(entries, ids)
        open_ = [(w, m.receives == 1) for m, n in notices.values() for w in n.written if not _by_ledger(w, known)]
        with self._lock:
            marked = frozenset(w.folder for h in self._known.in_flight.values() for w in h.writes if w.is_marker)
        folders = self._list(folders_to_list(open_, marked))
        done: dict[str, str] = {}
        ours = [(m, n) for m, n in notices.values() if not n.elsewhere]  # the others stay in the queue
        for m, n in ours:
            if all(_by_ledger(w, known) or _by_listing(w, folders, known) for w in n.written):
                done[m.id] = m.receipt
        with self._lock:
            for m, n in ours:
                if m.id not in done:
                    self._known.in_flight[m.id] = _HeldMessage(m.receipt, m.sent, n.written, until)
        if folders:
            self._around.listings.add_folders(self._dataset, folders, known)
            self._around.on_change(self._dataset.meta)
        self._acknowledge(done)

    def _settle(self, in_flight: Mapping[str, _HeldMessage], entries: Mapping[str, BatchEntry]) -> None:
        """Acknowledge the messages that a new ledger has settled."""
        known = get_many(entries, {w.batch_id for h in in_flight.values() for w in h.writes})
        recorded = {i: h for i, h in in_flight.items() if all(w.batch_id in known for w in h.writes)}
        unclear = [w for h in recorded.values() for w in h.writes if not _by_ledger(w, known)]
        folders = self._list(list(dict.fromkeys(w.folder for w in unclear)))
        self._acknowledge(
            {
                i: h.receipt
                for i, h in recorded.items()
                if all(_by_ledger(w, known) or _by_listing(w, folders, known) for w in h.writes)
            }
        )

    def _read(self, message: QueueMessage) -> Notice | None:
        """Parse a message; None: leave it in the queue."""
        spec = self._dataset.spec
        try:
            notice = read(message.body, spec.buffer.uri, layout_of(spec.buffer.layout, spec.batch_column))
        except NotANotification:
            self._count("Unreadable", 1)
            return None
        if notice.elsewhere:
            self._count("Elsewhere", 1)
        return notice

    def _list(self, names: list[str]) -> Folders:
        """The current content of these folders, without those that could not be read.

        Raises:
            Exception: The store's error, if none could.
        """
        if not names:
            return {}
        spec = self._dataset.spec
        buffer = open_buffer(spec.buffer.uri, spec.batch_column, self._properties, spec.buffer.layout)
        with ThreadPoolExecutor(LOOKS, thread_name_prefix="look") as pool:
            looks = {name: pool.submit(buffer.folder, name) for name in names}
        failures = [e for look in looks.values() if (e := look.exception()) is not None]
        if len(failures) == len(looks):
            raise failures[0]
        return {name: look.result() for name, look in looks.items() if look.exception() is None}

    def _acknowledge(self, done: Mapping[str, str]) -> None:
        """Delete messages, by id and receipt. If a deletion fails, the message comes again, and the ledger settles it then."""
        assert self._queue is not None
        if not done or self.stopped:
            return
        with self._lock:
            for id in done:
                self._known.in_flight.pop(id, None)
        self._count("Acknowledged", self._queue.delete(done.values()))

    def _report(self, trouble: Unavailable | None) -> None:
        with self._lock:
            before = (self._known.is_read, self._known.trouble)
            self._known.is_read, self._known.trouble = trouble is None, trouble
            changed = before != (self._known.is_read, self._known.trouble)
        if changed and not self.stopped:
            if trouble is not None:
                log.warning("%s: %s", self._dataset.meta.full_name, trouble.message)
            self._around.on_change(self._dataset.meta)

    def _count(self, outcome: str, number: int) -> None:
        if number and not self.stopped:
            self._around.on_messages(self._dataset.meta, outcome, number)


def _by_ledger(written: Written, known: Mapping[str, BatchEntry]) -> bool:
    return is_settled(written, known.get(written.batch_id))


def _by_listing(written: Written, folders: Folders, known: Mapping[str, BatchEntry]) -> bool:
    """Whether the content of its folder settles the message; not if the folder was not read."""
    if written.folder not in folders:
        return False
    folder = folders[written.folder]
    return is_over(written, folder if isinstance(folder, BufferedBatch) else None, known.get(written.batch_id))


def _trouble(error: Exception, url: str, properties: Mapping[str, str]) -> Unavailable:
    if isinstance(error, TransientError):
        text = f"spec.buffer.events: {error.message}. The operator retries, and lists the buffer meanwhile."
        return Unavailable(error.reason, scrubbed(text, properties))
    return unavailable(error, f"The batches in notifications of the queue {url}", properties, storage=True)


class EventSources:
    """The queues of all Datasets. One per operator, shared by its threads. `clock` returns seconds."""

    def __init__(
        self,
        listings: Listings,
        clock: Callable[[], float] = time.monotonic,
        open_queue: Callable[[str, Mapping[str, str]], Queue] = Queue,
    ) -> None:
        self.listings = listings
        self._clock = clock
        self._open_queue = open_queue
        # See ReaderContext.
        self.on_change: Callable[[Meta], None] = lambda _: None
        self.on_messages: Callable[[Meta, str, int], None] = lambda *_: None
        self._lock = threading.Lock()
        self._readers: dict[str, tuple[Any, EventReader]] = {}

    def view(
        self,
        dataset: Dataset,
        entries: Mapping[str, BatchEntry] | None,
        properties: Mapping[str, str],
        others: str = "",
    ) -> EventsView | None:
        """How a Dataset's notifications are read; the first call starts the reader. None: the Dataset has no queue.

        Args:
            entries: The batches of the current ledger; only the reader's thread looks them up. None: unknown.
            properties: Of the catalog.
            others: Name of the Dataset that owns the queue; "": this one does.
        """
        name, spec = dataset.meta.full_name, dataset.spec
        if spec.buffer.events is None:
            self.forget(name)
            return None
        idle = _why_idle(dataset, others)
        if idle is not None or dataset.meta.deleting:
            self.forget(name)
            return EventsView(trouble=idle)
        identity = (dataset.meta.uid, spec.table.catalog, spec.batch_column, spec.buffer, dict(properties))
        with self._lock:
            known = self._readers.get(name)
            if known is not None and known[0] != identity:
                self._readers.pop(name)[1].stop()
                known = None
            if known is None:
                if entries is None:
                    return EventsView()
                around = ReaderContext(self.listings, self._clock, self._open_queue, self._on_change, self._on_messages)
                reader = EventReader(around, dataset, entries, properties)
                self._readers[name] = known = (identity, reader)
                threading.Thread(target=reader.run, name=f"events {name}", daemon=True).start()
        reader = known[1]
        if entries is not None:
            reader.update(dataset, entries)
        return reader.view()

    def forget(self, name: str) -> None:
        """Stop reading the queue of a Dataset. Messages in flight come again after their visibility timeout."""
        with self._lock:
            known = self._readers.pop(name, None)
        if known is not None:
            known[1].stop()

    def _on_change(self, dataset: Meta) -> None:
        self.on_change(dataset)

    def _on_messages(self, dataset: Meta, outcome: str, number: int) -> None:
        self.on_messages(dataset, outcome, number)


def _why_idle(dataset: Dataset, others: str) -> Unavailable | None:
    """Why the queue is not read; None: it is."""
    if others:
        text = f"The older Dataset {others} already reads this queue. Set another queue in spec.buffer.events.queueUrl."
        return Unavailable(Reason.QUEUE_SHARED, text, transient=False)
    stays = "no batch is promoted, so messages stay in the queue."
    if not is_s3(dataset.spec.buffer.uri):
        text = "spec.buffer.uri is not in S3, and only S3 sends notifications. Remove spec.buffer.events."
        return Unavailable(Reason.NOT_SUPPORTED, text, transient=False)
    if dataset.paused:
        return Unavailable(Reason.PAUSED, f"The annotation lethe.dev/paused is set: {stays}")
    if dataset.spec.consolidation.suspend:
        return Unavailable(Reason.SUSPENDED, f"spec.consolidation.suspend is true: {stays}")
    return None
