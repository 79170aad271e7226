"""The queue of one buffer's event notifications, read in windows. I/O, in a thread of its own.

Invariant: a message is deleted only when the ledger of a commit, or the buffer, says that nothing will come of it any more.
Until then it is in flight; after its time it comes again, and is judged as if it were new. Nothing here is needed for a batch
to be promoted: what no message told of, a listing finds.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from lethe.base.errors import TransientError
from lethe.buffer.arrivals import Folders
from lethe.buffer.batch import BufferedBatch
from lethe.buffer.layout import layout_of
from lethe.buffer.notifications import Notice, Unreadable, Written, folders_to_list, is_over, is_settled, latest, read
from lethe.ledger.ledger import BatchEntry
from lethe.ledger.parts import get_many
from lethe.storage.buffer import open_buffer
from lethe.storage.queue import LONGEST_POLL_SECONDS, Message, Queue

from lethe_operator.observe.failures import scrubbed, unavailable
from lethe_operator.observe.listing import Listings
from lethe_operator.resources.common import Meta
from lethe_operator.resources.dataset import Dataset, EventsSpec
from lethe_operator.resources.observed import EventsView, Unavailable

log = logging.getLogger(__name__)

BACK_OFF_AT_MOST_SECONDS: Final = 30.0
# Folders that are looked at together.
LOOKS: Final = 8
# How long a reader that may receive no more waits for a commit before it looks whether messages have gone back.
FULL_SECONDS: Final = 5.0


@dataclass(frozen=True)
class _Held:
    """A message in flight until something happened to what it told of, or its time is over."""

    receipt: str
    sent: datetime
    writes: tuple[Written, ...]
    until: float


@dataclass
class _Known:
    """What reconciles and the reader tell one another, under the lock of both. `entries`: the batches of the ledger, for the
    reader alone."""

    entries: Mapping[str, BatchEntry]
    in_flight: dict[str, _Held] = field(default_factory=dict)
    is_read: bool = False
    trouble: Unavailable | None = None


@dataclass(frozen=True)
class ReaderContext:
    """What all readers share. `clock` counts seconds; `told` hears of a Dataset of which there are news; `counted` of messages:
    the Dataset, what became of them, how many. Both are called in a reader's thread."""

    listings: Listings
    clock: Callable[[], float]
    open_queue: Callable[[str, Mapping[str, str]], Queue]
    told: Callable[[Meta], None]
    counted: Callable[[Meta, str, int], None]


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
        self._known = _Known(entries)
        self._lock = threading.Lock()
        self._news = threading.Event()  # another ledger, or the end
        self._around = around
        self._dataset = dataset
        self._spec: EventsSpec = dataset.spec.buffer.events
        self._properties = properties
        self._queue: Queue | None = None
        self._heeded: Mapping[str, BatchEntry] = entries
        self._failures = 0

    def run(self) -> None:
        while not self.stopped:
            try:
                self._step()
            except Exception as e:
                self._failures += 1
                self._say(_trouble(e, self._spec.queue_url, self._properties))
                pause = min(2.0 ** min(self._failures - 1, 10), BACK_OFF_AT_MOST_SECONDS)
                self._wait(pause)

    def tell(self, dataset: Dataset, entries: Mapping[str, BatchEntry]) -> None:
        """The Dataset and the ledger of now."""
        with self._lock:
            self._dataset = dataset
            changed, self._known.entries = entries is not self._known.entries, entries
        if changed:
            self._news.set()

    def view(self) -> EventsView:
        """How it stands."""
        with self._lock:
            held = list(self._known.in_flight.values())
            is_read, trouble = self._known.is_read, self._known.trouble
        oldest = min((h.sent for h in held), default=None)
        return EventsView(is_read, trouble, len(held), oldest, latest(w for h in held for w in h.writes))

    def stop(self) -> None:
        self.stopped = True
        self._news.set()

    def _wait(self, seconds: float) -> None:
        if self._news.wait(seconds):
            self._news.clear()

    def _step(self) -> None:
        self._queue = self._queue or self._around.open_queue(self._spec.queue_url, self._properties)
        with self._lock:
            now, entries = self._around.clock(), self._known.entries
            for id in [i for i, h in self._known.in_flight.items() if h.until <= now]:
                del self._known.in_flight[id]
            in_flight = dict(self._known.in_flight)
        if entries is not self._heeded:
            self._settle(in_flight, entries)
            self._heeded = entries
        room = self._spec.max_in_flight - len(self._known.in_flight)
        if room <= 0:
            self._wait(FULL_SECONDS)
            return
        window, until = self._window(min(room, self._spec.max_messages))
        if window and not self.stopped:
            self._take(window, until, entries)
        self._failures = 0
        self._say(None)

    def _window(self, at_most: int) -> tuple[list[Message], float]:
        """Messages up to a number, or a time after the first of them; and until when they are hidden."""
        assert self._queue is not None
        clock, seconds = self._around.clock, self._spec.window_seconds
        found: list[Message] = []
        until = ends = clock() + self._spec.visibility_seconds
        wait = float(min(seconds, LONGEST_POLL_SECONDS))
        while len(found) < at_most and wait >= 0 and not self.stopped:
            try:
                asked = clock()
                came = self._queue.receive(at_most - len(found), wait, self._spec.visibility_seconds)
            except TransientError:
                if not found:
                    raise
                break  # those that came are not lost on it; it will be told with the next
            if not found:
                until, ends = asked + self._spec.visibility_seconds, clock() + seconds
            found += came
            if not came and (not found or wait < 1):
                break
            wait = min(ends - clock(), LONGEST_POLL_SECONDS)
        return found, until

    def _take(self, window: list[Message], until: float, entries: Mapping[str, BatchEntry]) -> None:
        self._count("Received", len(window))
        notices = {m.id: (m, n) for m in window if (n := self._read(m)) is not None}
        ids = {w.batch_id for _, n in notices.values() for w in n.written}
        known = get_many(entries, ids)
        open_ = [(w, m.receives == 1) for m, n in notices.values() for w in n.written if not _by_ledger(w, known)]
        with self._lock:
            marked = frozenset(w.folder for h in self._known.in_flight.values() for w in h.writes if w.is_marker)
        folders = self._look(folders_to_list(open_, marked))
        done: dict[str, str] = {}
        for m, n in notices.values():
            if all(_by_ledger(w, known) or _by_listing(w, folders, known) for w in n.written):
                done[m.id] = m.receipt
        with self._lock:
            for m, n in notices.values():
                if m.id not in done:
                    self._known.in_flight[m.id] = _Held(m.receipt, m.sent, n.written, until)
        if folders:
            self._around.listings.note(self._dataset, folders, known)
            self._around.told(self._dataset.meta)
        self._acknowledge(done)

    def _settle(self, in_flight: Mapping[str, _Held], entries: Mapping[str, BatchEntry]) -> None:
        """Acknowledge what another ledger has settled."""
        known = get_many(entries, {w.batch_id for h in in_flight.values() for w in h.writes})
        heard = {i: h for i, h in in_flight.items() if all(w.batch_id in known for w in h.writes)}
        unclear = [w for h in heard.values() for w in h.writes if not _by_ledger(w, known)]
        folders = self._look(list(dict.fromkeys(w.folder for w in unclear)))
        self._acknowledge(
            {
                i: h.receipt
                for i, h in heard.items()
                if all(_by_ledger(w, known) or _by_listing(w, folders, known) for w in h.writes)
            }
        )

    def _read(self, message: Message) -> Notice | None:
        """None: a message to leave where it is."""
        spec = self._dataset.spec
        try:
            notice = read(message.body, spec.buffer.uri, layout_of(spec.buffer.layout, spec.batch_column))
        except Unreadable:
            self._count("Unreadable", 1)
            return None
        if notice.elsewhere:
            self._count("Elsewhere", 1)
            return None
        return notice

    def _look(self, names: list[str]) -> Folders:
        """What these folders hold now, as far as the store says: one that it fails on holds up no other. Raises: what the store
        raises, if it fails on all."""
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
        """By receipt. One whose deletion fails comes again, and is known by the ledger then."""
        assert self._queue is not None
        if not done or self.stopped:
            return
        with self._lock:
            for id in done:
                self._known.in_flight.pop(id, None)
        self._count("Acknowledged", self._queue.delete(done.values()))

    def _say(self, trouble: Unavailable | None) -> None:
        with self._lock:
            before = (self._known.is_read, self._known.trouble)
            self._known.is_read, self._known.trouble = trouble is None, trouble
            changed = before != (self._known.is_read, self._known.trouble)
        if changed and not self.stopped:
            if trouble is not None:
                log.warning("%s: %s", self._dataset.meta.full_name, trouble.message)
            self._around.told(self._dataset.meta)

    def _count(self, outcome: str, number: int) -> None:
        if number and not self.stopped:
            self._around.counted(self._dataset.meta, outcome, number)


def _by_ledger(written: Written, known: Mapping[str, BatchEntry]) -> bool:
    return is_settled(written, known.get(written.batch_id))


def _by_listing(written: Written, folders: Folders, known: Mapping[str, BatchEntry]) -> bool:
    """By what its folder holds; not, when nobody looked."""
    if written.folder not in folders:
        return False
    found = folders[written.folder]
    return is_over(written, found if isinstance(found, BufferedBatch) else None, known.get(written.batch_id))


def _trouble(error: Exception, url: str, properties: Mapping[str, str]) -> Unavailable:
    if isinstance(error, TransientError):
        text = (
            f"spec.buffer.events: {error.message}. It is asked again; meanwhile the buffer is listed as without events."
        )
        return Unavailable(error.reason, scrubbed(text, properties))
    return unavailable(error, f"The batches that the queue {url} told of", properties, storage=True)
