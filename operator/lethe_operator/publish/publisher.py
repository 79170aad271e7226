"""Publishes the events of all Datasets, in a few threads of its own, with its schedule and metrics. I/O.

A reconcile reports which ledger it saw, which costs a look into a dictionary. Only if that ledger is not published yet, a thread
opens the table. So an idle Dataset costs nothing, and a sink that hangs holds up nothing but these threads.

The oldest due Dataset is next, with pauses after failures. A sink that fails for all is tried by one Dataset at a time.
Otherwise ten thousand Datasets would each wait for its time limit.

A ConfigMap in the namespace has the time when status events were first enabled. It is created once and never changed, so that a
table that was created while no publisher ran is published from its beginning.
"""

import heapq
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import Final, Protocol

from lethe.base.errors import Verdict
from lethe.iceberg import catalogs
from lethe.kube import CONFIG_MAPS, AlreadyExists, Document, Kube, NotFound, NotLeading, ResourceKind
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from lethe_operator.cluster.time_limit import Limiter, unavailable
from lethe_operator.dataset.pointers import OpenCatalogs
from lethe_operator.publish.cursor import UnreadableCursor
from lethe_operator.publish.cursor_files import CursorFiles, CursorMoved
from lethe_operator.publish.delivery import EventSink, FailureScope, HttpSink, SinkError, raw
from lethe_operator.publish.events import CloudEvent, Origin
from lethe_operator.publish.feed import Feed, FeedState, OpenTable, PublishedDataset, TableOpener
from lethe_operator.reasons import Reason
from lethe_operator.resources.common import MANAGED_LABELS, Meta
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import NO_TROUBLE, EventsSettings, NoTable, TableView, Unavailable
from lethe_operator.settings import Settings

# A sink that does not answer is reported after this time, so not after one lost connection.
TROUBLE_SECONDS: Final = 10.0


@dataclass
class Pacing:
    """The due times of Datasets, as `namespace/name`. Times are in seconds, of a monotonic clock."""

    base_seconds: float
    """The pause after a first failure."""
    max_seconds: float
    """The longest pause."""
    random: Random = field(default_factory=Random)
    _due: dict[str, float] = field(default_factory=dict)
    _heap: list[tuple[float, str]] = field(default_factory=list)
    _failures: dict[str, int] = field(default_factory=dict)
    """In a row, of Datasets."""
    _sink_failures: int = 0
    """In a row, of the sink."""
    _closed_until: float = 0.0
    """Nothing is sent before."""

    def add(self, name: str, time: float) -> None:
        """Publish a Dataset at this time, or earlier if this was asked for before."""
        if name not in self._due or time < self._due[name]:
            self._due[name] = time
            heapq.heappush(self._heap, (time, name))

    def is_planned(self, name: str) -> bool:
        """Whether the Dataset has a due time. `take` removes it."""
        return name in self._due

    def remove(self, name: str) -> None:
        """Forget the due time of a Dataset and its failures."""
        self._due.pop(name, None)
        self._failures.pop(name, None)

    def take(self, now: float) -> str | None:
        """The next Dataset; None: none is due, or the sink is given a pause."""
        if now < self._closed_until:
            return None
        while self._heap and self._heap[0][0] <= now:
            time, name = heapq.heappop(self._heap)
            if self._due.get(name) == time:
                del self._due[name]
                return name
        return None

    def next_time(self) -> float | None:
        """When something may be due; None: nothing is planned."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)  # replaced or removed
        return max(self._heap[0][0], self._closed_until) if self._heap else None

    def succeeded(self, name: str) -> None:
        """Forget the failures of a Dataset and of the sink: the next pause is the shortest again."""
        self._failures.pop(name, None)
        self._sink_failures = 0

    def failed(self, name: str, now: float, error: Exception) -> None:
        """Plan the next attempt."""
        self._failures[name] = self._failures.get(name, 0) + 1
        pause = self._pause(self._failures[name])
        if isinstance(error, SinkError) and error.scope is FailureScope.SINK:
            self._sink_failures += 1
            closed = max(self._pause(self._sink_failures), error.retry_after_seconds or 0.0)
            self._closed_until = max(self._closed_until, now + closed)
        self.add(name, now + pause)

    def _pause(self, failures: int) -> float:
        pause: float = min(self.max_seconds, self.base_seconds * 2 ** min(failures - 1, 20))
        return pause * self.random.uniform(0.9, 1.1)


NAME: Final = "lethe-events"
KEY: Final = "enabledTime"
# Clocks of runs and of the operator may differ. Too early is harmless: more is published.
CLOCKS_DIFFER_BY: Final = timedelta(minutes=10)


class KubeObjects(Protocol):
    """The part of `Kube` that this needs."""

    def get(self, kind: ResourceKind, namespace: str, name: str) -> Document:
        """The object as the API server has it now.

        Raises:
            NotFound: The object does not exist.
        """

    def create(self, kind: ResourceKind, namespace: str, document: Document) -> Document:
        """Create an object, and return it as the API server has stored it.

        Raises:
            AlreadyExists: An object of this name exists.
        """


class EnabledTimes:
    """Reads or creates the ConfigMap of each namespace once. Thread-safe."""

    def __init__(self, kube: KubeObjects, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._kube = kube
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, int] = {}

    def of(self, namespace: str) -> int:
        """In milliseconds since 1970, a little early.

        Raises:
            KubeError: The API server rejected a request, or did not answer (`status` 0).
            NotLeading: This process may not act in a namespace any more, so it sent no request.
        """
        with self._lock:
            if namespace not in self._known:
                start = datetime.fromisoformat(self._read(namespace)) - CLOCKS_DIFFER_BY
                self._known[namespace] = int(start.timestamp() * 1000)
            return self._known[namespace]

    def _read(self, namespace: str) -> str:
        try:
            return _time(self._kube.get(CONFIG_MAPS, namespace, NAME))
        except NotFound:
            pass
        document = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": NAME, "namespace": namespace, "labels": dict(MANAGED_LABELS)},
            "data": {KEY: self._clock().isoformat(timespec="seconds")},
        }
        try:
            return _time(self._kube.create(CONFIG_MAPS, namespace, document))
        except AlreadyExists:
            return _time(self._kube.get(CONFIG_MAPS, namespace, NAME))


def _time(document: Document) -> str:
    """Nothing, or something that is no time, counts as the beginning of time: then everything is published."""
    text = str((document.get("data") or {}).get(KEY, ""))
    try:
        return text if datetime.fromisoformat(text).tzinfo is not None else _BEGINNING
    except ValueError:
        return _BEGINNING


_BEGINNING: Final = "1970-01-02T00:00:00+00:00"


log = logging.getLogger(__name__)

# After a start, each table is looked at once. A new commit goes before tables of which nothing new was seen, unless these have
# waited for so long.
FIRST_LOOKS_WAIT_SECONDS: Final = 600.0

# A ledger: the table's UUID, and the URI of the root; None: the empty ledger.
LedgerOf = tuple[str, str | None]


class Opener(Protocol):
    """Opens tables, as `TableOpener` does."""

    def __call__(self, target: PublishedDataset) -> OpenTable | None:
        """Load a table and its ledger; None: it does not exist, or another Dataset has claimed it."""

    def cursors(self, target: PublishedDataset) -> CursorFiles:
        """The files of the cursor beside the table, at its last known location."""


@dataclass
class _Published:
    """The publishing of one Dataset. Guarded by the publisher's lock, except for `state` while a thread is busy with it."""

    target: PublishedDataset
    meta: Meta
    seen: LedgerOf
    """By the last reconcile."""
    state: FeedState = field(default_factory=FeedState)
    busy: bool = False
    """A thread publishes it."""
    behind_since: float | None = (
        None  # when an unpublished ledger was first seen, by the clock; None: nothing is behind
    )
    failing_since: float | None = None
    """Since when no attempt has succeeded, by the clock; None: the last one did."""
    trouble: Verdict = NO_TROUBLE
    shown: Verdict = NO_TROUBLE
    """What the last reconcile got."""


@dataclass(frozen=True)
class Lag:
    """What one Dataset has not delivered."""

    namespace: str
    name: str
    events: int
    """That are read from the ledger and wait."""
    seconds: float
    """Since the commit of the oldest of them."""


class Publisher:
    """One per operator. Any thread may call its methods; none of them waits for a sink, a catalog or a store."""

    def __init__(
        self,
        settings: EventsSettings,
        sink: EventSink,
        opener: Opener,
        enabled_ms: Callable[[str], int],
        acts_in: Callable[[str], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create `Publisher`.

        Args:
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
        """Start the threads that publish. Before, `table_seen` only notes what is to be published."""
        for number in range(self._settings.workers):
            thread = threading.Thread(target=self._run, name=f"publish {number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self, within_seconds: float = 5.0) -> None:
        """Begin nothing more, and wait for what is being sent.

        What is not delivered is published by the next leader. Stopping twice does nothing.
        """
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
            target = PublishedDataset(
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

    def view(self, dataset: Dataset) -> Verdict:
        """What to show of a Dataset. `on_change` says when it is something else."""
        with self._changed:
            known = self._datasets.get(dataset.meta.full_name)
            if known is None:
                return NO_TROUBLE
            known.shown = self._view_of(known)
            return known.shown

    def _view_of(self, known: _Published) -> Verdict:
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

    def _publish(self, target: PublishedDataset, state: FeedState, ledger: LedgerOf) -> None:
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

    def _sent(self, target: PublishedDataset, events: Sequence[CloudEvent]) -> None:
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
                    if error.scope is FailureScope.MESSAGE:
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
            self._sink_trouble = Verdict(error.reason, error.message)

    def _trouble(self, known: _Published, error: Exception, now: float) -> Verdict:
        """What to show. A short trouble is not shown."""
        assert known.failing_since is not None
        if isinstance(error, SinkError):
            short = error.reason is Reason.SINK_UNAVAILABLE and now - known.failing_since < TROUBLE_SECONDS
            return known.trouble if short else Verdict(error.reason, error.message)
        if isinstance(error, UnreadableCursor):
            return Verdict(Reason.CURSOR_UNREADABLE, str(error))
        if isinstance(error, CursorMoved) or now - known.failing_since < TROUBLE_SECONDS:
            return known.trouble
        trouble = unavailable(error, f"Table {known.target.table}", _properties(known.target), storage=False)
        return Verdict(trouble.reason, trouble.message)

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


def _properties(target: PublishedDataset) -> dict[str, str]:
    """Of the catalog, whose secrets no message may contain; empty, if its configuration cannot be read."""
    try:
        return catalogs.properties(target.catalog)
    except Exception:
        return {}


_OF_DATASET: Final = ("namespace", "dataset", "output")


class PublishingMetrics(Collector):
    """One per operator. The lag is computed when metrics are collected."""

    def __init__(self, registry: CollectorRegistry, publishers: Mapping[str, Publisher]) -> None:
        """Create `PublishingMetrics`.

        Args:
            publishers: By the value of the label `output`.
        """
        self._publishers = publishers
        self._sent = Counter(
            "lethe_status_events_total",
            "Events that the receiver has accepted, repeated ones included.",
            _OF_DATASET,
            registry=registry,
        )
        self._failures = Counter(
            "lethe_status_events_failures_total",
            "Attempts to deliver events that failed, by reason.",
            ("output", "reason"),
            registry=registry,
        )
        registry.register(self)
        for output, publisher in publishers.items():
            publisher.on_sent = partial(self._on_sent, output)
            publisher.on_failure = partial(self._on_failure, output)
            publisher.on_forget = partial(self._on_forget, output)

    def _on_sent(self, output: str, namespace: str, dataset: str, number: int) -> None:
        self._sent.labels(namespace, dataset, output).inc(number)

    def _on_failure(self, output: str, reason: Reason) -> None:
        self._failures.labels(output, str(reason)).inc()

    def _on_forget(self, output: str, namespace: str, dataset: str) -> None:
        """Remove the numbers of a deleted Dataset."""
        self._sent.remove_by_labels({"namespace": namespace, "dataset": dataset, "output": output})

    def collect(self) -> Iterator[Metric]:
        """Yield how much each publisher has not delivered, for each Dataset."""
        seconds = GaugeMetricFamily(
            "lethe_status_events_lag_seconds",
            "How long ago the oldest commit was made whose events are not delivered; 0 if there is none.",
            labels=_OF_DATASET,
        )
        waiting = GaugeMetricFamily(
            "lethe_status_events_waiting",
            "Events of the oldest such commit that are not delivered; of a large commit, only the next ones.",
            labels=_OF_DATASET,
        )
        for output, publisher in self._publishers.items():
            for lag in publisher.lags():
                seconds.add_metric((lag.namespace, lag.name, output), lag.seconds)
                waiting.add_metric((lag.namespace, lag.name, output), lag.events)
        yield seconds
        yield waiting


STATUS_EVENTS, OPEN_LINEAGE = "StatusEvents", "OpenLineage"


@dataclass
class Publishers:
    """The publisher of status events, that of OpenLineage, or both. A trouble of one does not hold up the other."""

    members: Sequence[Publisher]
    on_change: Callable[[Meta], None] = field(default=lambda _: None)
    """Called with each Dataset whose condition changes."""

    def start(self) -> None:
        """Start the threads of each publisher, which from now on reports changed conditions to `on_change`."""
        for publisher in self.members:
            publisher.on_change = self.on_change
            publisher.start()

    def stop(self) -> None:
        """Stop one publisher after the other. Each may wait for five seconds for what it is sending."""
        for publisher in self.members:
            publisher.stop()

    def table_seen(self, dataset: Dataset, table: TableView | NoTable | Unavailable) -> None:
        """Let each publisher publish what the Dataset's table has committed."""
        for publisher in self.members:
            publisher.table_seen(dataset, table)

    def view(self, dataset: Dataset) -> Verdict:
        """The first trouble."""
        views = [publisher.view(dataset) for publisher in self.members]
        return next((view for view in views if view.reason), NO_TROUBLE)

    def forget_all(self, namespaces: Collection[str]) -> None:
        """Let each publisher forget the Datasets of these namespaces, when this process acts in them no longer."""
        for publisher in self.members:
            publisher.forget_all(namespaces)

    def forget(self, name: str) -> None:
        """Let each publisher forget a Dataset, as `namespace/name`."""
        for publisher in self.members:
            publisher.forget(name)


def publishers_of(
    settings: Settings, kube: Kube, opened: OpenCatalogs, acts_in: Callable[[str], bool], registry: CollectorRegistry
) -> Publishers | None:
    """The publishers of status events; None: they are not enabled, and cost nothing.

    Args:
        opened: The catalogs of the operator.
        acts_in: Whether this process may act in a namespace.
        registry: Of metrics.
    """
    events = settings.events
    if not events.enabled:
        return None
    enabled, limiter = EnabledTimes(kube), Limiter()
    outputs: dict[str, tuple[EventSink, TableOpener]] = {}
    if events.http is not None or events.kafka is not None:
        outputs[STATUS_EVENTS] = (_sink(settings), TableOpener(opened, limiter, events.max_event_bytes))
    if events.open_lineage is not None:
        sink = HttpSink(events.open_lineage, settings.events_secret, raw)
        outputs[OPEN_LINEAGE] = (
            sink,
            TableOpener(opened, limiter, events.max_event_bytes, events.open_lineage.namespace),
        )
    made = {output: Publisher(events, sink, opener, enabled.of, acts_in) for output, (sink, opener) in outputs.items()}
    PublishingMetrics(registry, made)
    return Publishers(tuple(made.values()))


def _sink(settings: Settings) -> EventSink:
    events = settings.events
    if events.http is not None:
        return HttpSink(events.http, settings.events_secret)
    from lethe_operator.publish.delivery import KafkaSink  # loads librdkafka, which few installations need

    assert events.kafka is not None
    return KafkaSink(events.kafka, settings.events_secret)
