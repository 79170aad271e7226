"""Reads the queues of event notifications, each in its own thread, in parallel with listings and reconciles. I/O."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from lethe.ledger.ledger import BatchEntry
from lethe.storage.queue import Queue
from lethe.uri import is_s3

from lethe_operator.observe.event_reader import EventReader, ReaderContext
from lethe_operator.observe.listing import Listings
from lethe_operator.reasons import Reason
from lethe_operator.resources.common import Meta
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import EventsView, Unavailable


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
