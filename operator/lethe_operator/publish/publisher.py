"""Publishes the events of all Datasets, in a few threads of its own. I/O.

A reconcile reports which ledger it saw, which costs a look into a dictionary. Only if that ledger is not published yet, a thread
opens the table. So an idle Dataset costs nothing, and a sink that hangs holds up nothing but these threads.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from lethe.iceberg import catalogs

from lethe_operator.decide.publishing.cloud_event import CloudEvent
from lethe_operator.decide.publishing.cursor import UnreadableCursor
from lethe_operator.decide.publishing.numbering import Origin
from lethe_operator.kube import NotLeading
from lethe_operator.observe.failures import unavailable
from lethe_operator.publish.cursor_files import CursorFiles, CursorMoved
from lethe_operator.publish.feed import Feed, FeedState, OpenTable
from lethe_operator.publish.opening import Target
from lethe_operator.publish.pacing import TROUBLE_SECONDS, Pacing
from lethe_operator.publish.sinks.sink import Scope, Sink, SinkError
from lethe_operator.reasons import Reason
from lethe_operator.resources.common import Meta
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import NoTable, TableView, Unavailable
from lethe_operator.resources.publishing import NO_TROUBLE, EventsSettings, PublishingView

log = logging.getLogger(__name__)

# After a start, each table is looked at once. A new commit goes before tables of which nothing new was seen, unless these have
# waited for so long.
FIRST_LOOKS_WAIT_SECONDS: Final = 600.0

# A ledger: the table's UUID, and the URI of the root; None: the empty ledger.
LedgerOf = tuple[str, str | None]


class Opener(Protocol):
    """Opens tables, as `TableOpener` does."""

    def __call__(self, target: Target) -> OpenTable | None: ...

    def cursors(self, target: Target) -> CursorFiles: ...


@dataclass
class _Published:
    """The publishing of one Dataset. Guarded by the publisher's lock, except for `state` while a thread is busy with it."""

    target: Target
    meta: Meta
    seen: LedgerOf  # by the last reconcile
    state: FeedState = field(default_factory=FeedState)
    busy: bool = False  # a thread publishes it
    behind_since: float | None = (
        None  # when an unpublished ledger was first seen, by the clock; None: nothing is behind
    )
    failing_since: float | None = None  # since when no attempt has succeeded, by the clock; None: the last one did
    trouble: PublishingView = NO_TROUBLE
    shown: PublishingView = NO_TROUBLE  # what the last reconcile got


@dataclass(frozen=True)
class Lag:
    """What one Dataset has not delivered."""

    namespace: str
    name: str
    events: int  # that are read from the ledger and wait
    seconds: float  # since the commit of the oldest of them


class Publisher:
    """One per operator. Any thread may call its methods; none of them waits for a sink, a catalog or a store."""

    def __init__(
        self,
        settings: EventsSettings,
        sink: Sink,
        opener: Opener,
        enabled_ms: Callable[[str], int],
        acts_in: Callable[[str], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        enabled_ms: When events were enabled for a namespace, in milliseconds since 1970.
        acts_in: Whether this process, and no other one, may act in a namespace.
        """
        self._settings = settings
        self._sink = sink
        self._opener = opener
        self._enabled_ms = enabled_ms
        self._acts_in = acts_in
        self._clock = clock
        # Called with each Dataset whose condition changes.
        self.on_change: Callable[[Meta], None] = lambda _: None
        # Called with namespace, name and number of events that were delivered; and with the reason of each failure.
        self.on_sent: Callable[[str, str, int], None] = lambda *_: None
        self.on_failure: Callable[[Reason], None] = lambda _: None
        # Called with namespace and name of each Dataset that is forgotten.
        self.on_forget: Callable[[str, str], None] = lambda *_: None
        self._changed = threading.Condition()
        self._datasets: dict[str, _Published] = {}
        self._pacing = Pacing(settings.retry_base_seconds, settings.retry_max_seconds)
        self._sink_failing_since: float | None = None  # by the clock; None: the last call delivered, or none was made
        self._sink_trouble = NO_TROUBLE  # concerns every Dataset that is behind
        self._stopped = False
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        for number in range(self._settings.workers):
            thread = threading.Thread(target=self._run, name=f"publish {number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self, within_seconds: float = 5.0) -> None:
        """Begin nothing more, and wait for what is being sent. What is not delivered is published by the next leader. Stopping
        twice does nothing."""
        with self._changed:
            was_stopped, self._stopped = self._stopped, True
            self._changed.notify_all()
        if was_stopped:
            return
        ends = self._clock() + within_seconds
        for thread in self._threads:
            thread.join(max(ends - self._clock(), 0.0))
        self._sink.close()

    def table_seen(self, dataset: Dataset, table: TableView | NoTable | Unavailable) -> None:
        """Publish what the Dataset's table has committed, if it is not published."""
        if not isinstance(table, TableView) or table.claim != dataset.claim:
            return
        name, ledger = dataset.meta.full_name, (table.uuid, table.ledger_uri)
        spec = dataset.spec
        with self._changed:
            known = self._datasets.get(name)
            same = known is not None and known.seen == ledger and known.meta.generation == dataset.meta.generation
            if known is not None and same and (known.state.published == ledger or self._is_planned(name, known)):
                return
            target = Target(
                dataset.meta.namespace,
                dataset.meta.name,
                spec.table.catalog,
                spec.table.name,
                spec.batch_column,
                dataset.claim,
                table.location,
                table.uuid,
                spec.buffer.uri,
            )
            if known is None:
                known = self._datasets[name] = _Published(target, dataset.meta, ledger)
            elif known.target != target:
                known.target, known.state = target, FeedState()
            is_news = known.seen != ledger
            known.seen, known.meta = ledger, dataset.meta
            if known.state.published == ledger:
                return
            known.behind_since = self._clock() if known.behind_since is None else known.behind_since
            if not known.busy:
                self._pacing.add(name, self._clock() - (FIRST_LOOKS_WAIT_SECONDS if is_news else 0.0))
                self._changed.notify()

    def _is_planned(self, name: str, known: _Published) -> bool:
        return known.busy or self._pacing.is_planned(name)

    def view(self, dataset: Dataset) -> PublishingView:
        """What to show of a Dataset. `on_change` says when it is something else."""
        with self._changed:
            known = self._datasets.get(dataset.meta.full_name)
            if known is None:
                return NO_TROUBLE
            known.shown = self._view_of(known)
            return known.shown

    def _view_of(self, known: _Published) -> PublishingView:
        """Its own trouble, or that of the sink if it waits for it."""
        waits = not known.trouble.reason and known.behind_since is not None
        return self._sink_trouble if waits else known.trouble

    def forget(self, name: str) -> None:
        """Publish nothing more of a Dataset, as `namespace/name`."""
        with self._changed:
            known = self._datasets.pop(name, None)
            self._pacing.remove(name)
        if known is not None:
            self.on_forget(known.target.namespace, known.target.name)

    def forget_all(self, namespaces: Collection[str]) -> None:
        """Forget all Datasets of these namespaces: another process may have moved their cursors meanwhile."""
        with self._changed:
            names = [name for name, known in self._datasets.items() if known.target.namespace in namespaces]
        for name in names:
            self.forget(name)

    def lags(self) -> list[Lag]:
        """Of all Datasets."""
        now, now_ms = self._clock(), time.time_ns() // 1_000_000
        with self._changed:
            return [
                Lag(
                    d.target.namespace,
                    d.target.name,
                    d.state.waiting if d.behind_since is not None else 0,
                    _behind_seconds(d, now, now_ms),
                )
                for d in self._datasets.values()
            ]

    def _run(self) -> None:
        for name in self._names():
            with self._changed:
                known = self._datasets.get(name)
                if known is None:
                    continue
                known.busy = True
                ledger, target, state = known.seen, known.target, known.state
            error: Exception | None = None
            try:
                self._publish(target, state, ledger)
            except Exception as e:
                error = e
            try:
                self._ended(name, known, ledger, error)
            except Exception:  # a thread that ends would publish nothing more, unnoticed
                log.exception("after publishing %s", name)

    def _names(self) -> Iterator[str]:
        """What to publish next, whenever something is due."""
        while True:
            with self._changed:
                name = self._pacing.take(self._clock())
                while name is None and not self._stopped:
                    at = self._pacing.next_time()
                    self._changed.wait(None if at is None else max(at - self._clock(), 0.001))
                    name = self._pacing.take(self._clock())
                if self._stopped or name is None:
                    return
            yield name

    def _publish(self, target: Target, state: FeedState, ledger: LedgerOf) -> None:
        self._check(target.namespace)
        if state.numbered is None:
            # After a start, most tables are published: their cursor says so, and they need not be loaded.
            state.numbered = self._opener.cursors(target).load()
            if state.numbered is not None and state.numbered.cursor.shows(*ledger):
                state.published = ledger
                return
        table = self._opener(target)
        if table is None:
            return  # the next reconcile sees it, too
        feed = Feed(
            Origin(target.namespace, target.name, self._settings.source_prefix),
            self._sink,
            self._settings.start,
            self._settings.max_event_bytes,
            enabled_ms=lambda: self._enabled_ms(target.namespace),
            check=lambda: self._check(target.namespace),
            on_sent=lambda events: self._sent(target, events),
        )
        feed.publish(table, state)

    def _check(self, namespace: str) -> None:
        if self._stopped or not self._acts_in(namespace):
            raise NotLeading(namespace)

    def _sent(self, target: Target, events: Sequence[CloudEvent]) -> None:
        if not events:
            return
        self.on_sent(target.namespace, target.name, len(events))
        with self._changed:
            self._sink_failing_since, self._sink_trouble = None, NO_TROUBLE
            changed = self._changed_views()
        for meta in changed:
            self.on_change(meta)

    def _changed_views(self) -> list[Meta]:
        """The Datasets that show something else than they should. The caller has the lock."""
        return [d.meta for d in self._datasets.values() if self._view_of(d) != d.shown]

    def _ended(self, name: str, known: _Published, ledger: LedgerOf, error: Exception | None) -> None:
        if error is not None and not isinstance(error, NotLeading | CursorMoved):
            self._report(name, known, error)
        with self._changed:
            known.busy = False
            if self._datasets.get(name) is not known:
                return  # forgotten meanwhile
            if isinstance(error, NotLeading):  # if this process may act again, a reconcile says what to publish
                del self._datasets[name]
                self._pacing.remove(name)
                return
            now = self._clock()
            if error is None:
                self._pacing.succeeded(name)
                known.failing_since, known.behind_since, known.trouble = None, None, NO_TROUBLE
                if known.seen != ledger and known.state.published != known.seen:
                    known.behind_since = now
                    self._pacing.add(name, now)
            else:
                known.failing_since = now if known.failing_since is None else known.failing_since
                known.trouble = self._trouble(known, error, now)
                if isinstance(error, SinkError):
                    if error.scope is Scope.MESSAGE:
                        known.state.numbered = None  # somebody may delete the cursor to give the message up
                    else:
                        self._sink_failed(error, now)
                self._pacing.failed(name, now, error)
            changed = self._changed_views()
            self._changed.notify_all()
        for meta in changed:
            self.on_change(meta)

    def _sink_failed(self, error: SinkError, now: float) -> None:
        """The caller has the lock."""
        since = self._sink_failing_since = now if self._sink_failing_since is None else self._sink_failing_since
        if error.reason is not Reason.SINK_UNAVAILABLE or now - since >= TROUBLE_SECONDS:
            self._sink_trouble = PublishingView(error.reason, error.message)

    def _trouble(self, known: _Published, error: Exception, now: float) -> PublishingView:
        """What to show. A short trouble is not shown."""
        assert known.failing_since is not None
        if isinstance(error, SinkError):
            short = error.reason is Reason.SINK_UNAVAILABLE and now - known.failing_since < TROUBLE_SECONDS
            return known.trouble if short else PublishingView(error.reason, error.message)
        if isinstance(error, UnreadableCursor):
            return PublishingView(Reason.CURSOR_UNREADABLE, str(error))
        if isinstance(error, CursorMoved) or now - known.failing_since < TROUBLE_SECONDS:
            return known.trouble
        found = unavailable(error, f"Table {known.target.table}", _properties(known.target), storage=False)
        return PublishingView(found.reason, found.message)

    def _report(self, name: str, known: _Published, error: Exception) -> None:
        if isinstance(error, SinkError):
            self.on_failure(error.reason)
            text = error.message
        else:
            text = unavailable(error, f"table {known.target.table}", _properties(known.target), storage=False).message
        level = logging.DEBUG if known.failing_since is not None else logging.WARNING
        log.log(level, "status events of %s are not delivered: %s", name, text)


def _behind_seconds(known: _Published, now: float, now_ms: int) -> float:
    if known.behind_since is None:
        return 0.0
    step = known.state.numbered.cursor.step if known.state.numbered is not None else None
    if step is not None and step.to.time_ms is not None:
        return max((now_ms - step.to.time_ms) / 1000, 0.0)
    return now - known.behind_since


def _properties(target: Target) -> dict[str, str]:
    """Of the catalog, whose secrets no message may contain; empty, if its configuration cannot be read."""
    try:
        return catalogs.properties(target.catalog)
    except Exception:
        return {}
