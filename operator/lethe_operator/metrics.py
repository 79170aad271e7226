"""Prometheus metrics: numbers of each Dataset as its status shows them, and counts of runs and reconciles. I/O: a port.

They start again at zero when the operator restarts. Only counts and durations are not in the resources too.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from lethe.buffer.batch_rows import STATES, Total, Totals
from lethe.contract.status import DatasetStatus, ErasureCounts, EvictBy, SourceStatus, TombstoneCounts
from lethe.metrics_server import serve_metrics
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from lethe_operator.cluster.schedule import Priority, Start
from lethe_operator.conditions import EVICTION_ON_TIME
from lethe_operator.resources.observed import EventsView

OF_DATASET: Final = ("namespace", "dataset")
GAUGES: Final[Mapping[str, str]] = {
    "lethe_buffer_batches": "Complete batches in the buffer that wait for promotion.",
    "lethe_buffer_bytes": "Bytes of the batches that wait for promotion.",
    "lethe_buffer_oldest_batch_age_seconds": "How long the oldest of these batches has waited; 0 if none waits.",
    "lethe_active_tombstones": "Tombstones in the ledger of the table's head.",
    "lethe_tombstoned_rows": "Rows of the batches that active tombstones hide, if the ledger knows their number.",
    "lethe_evict_by_seconds": "Seconds until the first evictBy of rows that are not purged yet; negative once it has passed.",
    "lethe_evict_by_slack_seconds": "Seconds until the latest possible start of a vacuum for it, based on previous vacuums.",
    "lethe_eviction_on_time": "1 while the condition EvictionOnTime is True, 0 while it is False; missing without an evictBy.",
    "lethe_source_lag": "Offsets of the source's topics that are in no complete epoch.",
    "lethe_source_rows": "Rows that the inlet has written into the buffer, since the first epoch.",
    "lethe_source_refused_messages": "Messages of the source that are not rows of the table, since the first epoch.",
    "lethe_source_lost_offsets": "Offsets of the source that expired in Kafka before they were read, since the first epoch.",
    "lethe_open_erasures": "Restatements whose rows must be gone, and for which this is not verified yet.",
    "lethe_overdue_erasures": "Open erasures whose deadline has passed.",
    "lethe_blocked_erasures": "Open erasures that a tag, branch, snapshot, object lock or hold blocks.",
    "lethe_holds": "Holds that are in force.",
    "lethe_promoted_batches": "Batches in the ledger that are part of the table.",
    "lethe_listing_duration_seconds": "How long the last listing of the buffer took.",
    "lethe_listing_objects": "Objects that the last listing of the buffer found.",
    "lethe_listing_pause_seconds": "The pause between the last listing of the buffer and the next one.",
    "lethe_batches_behind": "Commits of the ledger that the table of batches does not show yet.",
    "lethe_events_in_flight": "Messages of the queue that were received and wait for a commit.",
    "lethe_events_oldest_age_seconds": "How long ago the oldest of these messages was sent; 0 if there is none.",
}
# These change by themselves: ages grow, unless nothing waits (0), and the time until a deadline shrinks.
AGES: Final = frozenset({"lethe_buffer_oldest_batch_age_seconds", "lethe_events_oldest_age_seconds"})
REMAINING: Final = frozenset({"lethe_evict_by_seconds", "lethe_evict_by_slack_seconds"})
# Bounds of histograms, in seconds.
LATENESS_BUCKETS: Final = (0.05, 0.25, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
DURATION_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
OF_STATE: Final = (*OF_DATASET, "state")
# With thousands of Datasets, most of the lines of a scrape would be about states without batches: only this gauge has them.
OF_EVERY_STATE: Final = "lethe_batches"
STATE_GAUGES: Final[Mapping[str, str]] = {
    "lethe_batches": "Batches in each state, as the table of batches shows them.",
    "lethe_batches_rows": "Known rows of the batches in each state that has any.",
    "lethe_batches_bytes": "Known bytes in the buffer of the batches in each state that has any.",
}


DECISIONS: Final[Mapping[str, tuple[str, str]]] = {
    "consolidation": (
        "lethe_consolidation_decision",
        "1 for the last decision about consolidation (Due, Later or Running) and its reason.",
    ),
    "vacuum": (
        "lethe_vacuum_decision",
        "1 for the last decision about a vacuum (Due, Later, Running or NeedsApproval) and its reason.",
    ),
}


@dataclass(frozen=True, slots=True)
class _Shown:
    """What the metrics show of one Dataset."""

    numbers: Mapping[str, float]
    """Values of GAUGES, by name."""
    decisions: Mapping[str, tuple[str, str]]
    """Decision and reason, by the key of DECISIONS."""
    batches: Totals | None
    """None: there is no table of batches."""
    since: float
    """When the numbers were right, by the clock, in seconds."""

    def number(self, gauge: str, now: float) -> float:
        """The value of a gauge that it has at a time, by the same clock."""
        known = self.numbers[gauge]
        if gauge in REMAINING:
            return known - (now - self.since)
        return known + (now - self.since) if known > 0 and gauge in AGES else known


class _OfDatasets(Collector):
    """The gauges of all Datasets, made when they are scraped.

    A gauge of the client library for each number would take a kilobyte, and removing those of one Dataset would search those of
    all.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.shown: dict[tuple[str, str], _Shown] = {}  # by namespace and name

    def collect(self) -> Iterator[Metric]:
        shown, now = list(self.shown.items()), self._clock()
        for name, text in GAUGES.items():
            family = GaugeMetricFamily(name, text, labels=OF_DATASET)
            for key, of in shown:
                if name in of.numbers:
                    family.add_metric(key, of.number(name, now))
            yield family
        for name, text in STATE_GAUGES.items():
            family = GaugeMetricFamily(name, text, labels=OF_STATE)
            for key, of in shown:
                if of.batches is not None:
                    for state in STATES:
                        total = of.batches[state]
                        if total.batches or name == OF_EVERY_STATE:
                            family.add_metric((*key, state), _total(total, name))
            yield family
        for what, (name, text) in DECISIONS.items():
            family = GaugeMetricFamily(name, text, labels=(*OF_DATASET, "decision", "reason"))
            for key, of in shown:
                if what in of.decisions:
                    family.add_metric((*key, *of.decisions[what]), 1)
            yield family


def _total(total: Total, gauge: str) -> float:
    """The value of a gauge of STATE_GAUGES."""
    return {"lethe_batches": total.batches, "lethe_batches_rows": total.rows, "lethe_batches_bytes": total.bytes}[gauge]


class Metrics:
    """One per operator. An unknown number is missing, not 0. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._datasets = _OfDatasets(clock)
        self.registry.register(self._datasets)
        self._runs = Counter(
            "lethe_runs_total",
            "Runs that ended, by kind (Consolidation, Restatement, Vacuum) and outcome (Succeeded, Failed).",
            (*OF_DATASET, "kind", "outcome"),
            registry=self.registry,
        )
        self._messages = Counter(
            "lethe_events_total",
            "Messages of a buffer's queue by outcome: Received, Acknowledged; and among the received Unreadable, Elsewhere.",
            (*OF_DATASET, "outcome"),
            registry=self.registry,
        )
        self._requests = Counter(
            "lethe_api_requests_total",
            "Requests to the API server by method, resource and status of the answer (0: no answer), without watches.",
            ("method", "resource", "status"),
            registry=self.registry,
        )
        self._queries = Counter(
            "lethe_catalog_queries_total",
            "Queries to a catalog. One query of a SQL catalog may be about a thousand tables.",
            ("catalog",),
            registry=self.registry,
        )
        self._overdue = Gauge(
            "lethe_listing_overdue_seconds",
            "How long the longest overdue listing of a buffer has been due; 0 if none is.",
            registry=self.registry,
        )
        self._reconciles = Counter(
            "lethe_reconciles_total", "Reconciles by kind of resource.", ("kind",), registry=self.registry
        )
        self._acts = Gauge(
            "lethe_namespace_held",
            "1 while this process acts in a namespace that it watches, 0 while another process or release does.",
            ("namespace",),
            registry=self.registry,
        )
        self._skew = Gauge(
            "lethe_version_skew",
            "1 if the last run that ended had another version of Lethe than the operator, else 0.",
            ("namespace",),
            registry=self.registry,
        )
        self._made_way = Counter(
            "lethe_warm_driver_made_way_total",
            "Idle warm drivers that ended because no node had room for a run's pod.",
            ("namespace",),
            registry=self.registry,
        )
        self._leader = Gauge(
            "lethe_leader",
            "1 while this process is the leader of its release and shard, 0 while it is a standby.",
            ("shard",),
            registry=self.registry,
        )
        self._failures = Counter(
            "lethe_reconcile_failures_total",
            "Reconciles that failed and are repeated after a pause.",
            ("kind",),
            registry=self.registry,
        )
        self._durations = Histogram(
            "lethe_reconcile_duration_seconds",
            "How long reconciles take, by kind of resource.",
            ("kind",),
            buckets=DURATION_BUCKETS,
            registry=self.registry,
        )
        self._depth = Gauge(
            "lethe_queue_depth",
            "Resources that are due and wait for their reconcile to start, by priority (Changed, Due, Periodic).",
            ("priority",),
            registry=self.registry,
        )
        self._lateness = Histogram(
            "lethe_queue_lateness_seconds",
            "How long after it became due a reconcile starts, by priority (Changed, Due, Periodic).",
            ("priority",),
            buckets=LATENESS_BUCKETS,
            registry=self.registry,
        )

    def watch_queue(self, depth: Callable[[Priority], int]) -> None:
        """Show the depth of the queue. Any thread may call `depth`."""
        for priority in Priority:
            self._depth.labels(priority.name.capitalize()).set_function(lambda p=priority: depth(p))  # type: ignore[misc]

    def reconcile_starts(self, start: Start) -> None:
        """Record how long after its due time a reconcile starts, by its priority."""
        self._lateness.labels(start.priority.name.capitalize()).observe(start.late_seconds)

    def acts_in(self, namespace: str, acts: bool) -> None:
        """Show whether this process acts in a namespace. One that does not knows nothing of the last run there."""
        self._acts.labels(namespace).set(1 if acts else 0)
        if not acts:
            self._skew.remove_by_labels({"namespace": namespace})

    def leads(self, shard: int, leads: bool) -> None:
        """Show whether this process is the leader of its shard."""
        self._leader.labels(str(shard)).set(1 if leads else 0)

    def serve(self, port: int) -> None:
        """Serve `/metrics` on a port, in a thread.

        Raises:
            OSError: The port is in use.
        """
        serve_metrics(port, self.registry)

    @contextmanager
    def reconcile(self, kind: str) -> Iterator[None]:
        """Count a reconcile, how long it takes, and whether it raises."""
        self._reconciles.labels(kind).inc()
        with self._failures.labels(kind).count_exceptions(), self._durations.labels(kind).time():
            yield

    def show(
        self,
        namespace: str,
        dataset: str,
        status: DatasetStatus,
        numbers: Mapping[str, float],
        batches: Totals | None = None,
    ) -> None:
        """Show a Dataset.

        Args:
            numbers: Values of gauges by name, see `numbers_of`.
            batches: Totals of the table of batches; None: there is no such table.
        """
        decided = {"consolidation": status.consolidation, "vacuum": status.vacuum}
        decisions = {what: (str(d.decision), str(d.reason)) for what, d in decided.items() if d is not None}
        self._datasets.shown[namespace, dataset] = _Shown(dict(numbers), decisions, batches, self._clock())

    def run_ended(self, namespace: str, dataset: str, kind: str, outcome: str) -> None:
        """Count a run that has ended, by its outcome."""
        self._runs.labels(namespace, dataset, kind, outcome).inc()

    def version_skew(self, namespace: str, differs: bool) -> None:
        """Show whether the last run that ended had another version of Lethe than this operator."""
        self._skew.labels(namespace).set(1 if differs else 0)

    def warm_driver_made_way(self, namespace: str) -> None:
        """Count an idle warm driver of a namespace that ended because no node had room for a run's pod."""
        self._made_way.labels(namespace).inc()

    def api_request(self, method: str, resource: str, status: int) -> None:
        """Count a request to the API server by the status of its answer; 0: it got none."""
        self._requests.labels(method, resource, str(status)).inc()

    def overdue_listings(self, seconds: Callable[[], float]) -> None:
        """Show what the function returns whenever metrics are collected."""
        self._overdue.set_function(seconds)

    def catalog_query(self, catalog: str) -> None:
        """Count a query to a catalog, however many tables it is about."""
        self._queries.labels(catalog).inc()

    def messages(self, namespace: str, dataset: str, outcome: str, number: int) -> None:
        """Count messages of the queue of a Dataset's buffer, by what became of them."""
        self._messages.labels(namespace, dataset, outcome).inc(number)

    def forget(self, namespace: str, dataset: str) -> None:
        """Remove the numbers of a deleted Dataset."""
        self._datasets.shown.pop((namespace, dataset), None)
        for metric in (self._runs, self._messages):
            metric.remove_by_labels({"namespace": namespace, "dataset": dataset})


def numbers_of(
    status: DatasetStatus,
    oldest: datetime | None,
    listing: tuple[float, int] | None,
    events: EventsView | None,
    now: datetime,
    behind: int | None = None,
) -> dict[str, float]:
    """The known gauges of a Dataset, by name.

    Args:
        status: Of the Dataset.
        oldest: Since when the oldest batch waits; None: none waits.
        listing: Seconds and objects of the last listing; None: there was none.
        events: None: the Dataset has no queue.
        behind: How many commits the table of batches is behind the ledger; None: unknown.
    """
    buffer, source = status.buffer, status.source or SourceStatus()
    tombstones, erasures = status.tombstones or TombstoneCounts(), status.erasures or ErasureCounts()
    numbers: dict[str, float | None] = {
        "lethe_active_tombstones": tombstones.active,
        "lethe_tombstoned_rows": tombstones.rows,
        "lethe_open_erasures": erasures.open,
        "lethe_overdue_erasures": erasures.overdue,
        "lethe_blocked_erasures": erasures.blocked,
        "lethe_holds": sum(bool(h.active) for h in status.holds) if status.holds is not None else None,
        "lethe_promoted_batches": status.batches.promoted if status.batches is not None else None,
        "lethe_batches_behind": behind,
        "lethe_source_lag": source.lag,
        "lethe_source_rows": source.rows,
        "lethe_source_refused_messages": source.refused_messages,
        "lethe_source_lost_offsets": source.lost_offsets,
    }
    if buffer is not None:
        numbers["lethe_buffer_batches"], numbers["lethe_buffer_bytes"] = buffer.batches, buffer.bytes
        numbers["lethe_buffer_oldest_batch_age_seconds"] = (now - oldest).total_seconds() if oldest else 0
    if listing is not None:
        numbers["lethe_listing_duration_seconds"], numbers["lethe_listing_objects"] = listing
    if events is not None:
        numbers["lethe_events_in_flight"] = events.in_flight
        sent = events.oldest_time
        numbers["lethe_events_oldest_age_seconds"] = max((now - sent).total_seconds(), 0) if sent else 0
    due = (status.vacuum.evict_by if status.vacuum is not None else None) or EvictBy()
    for gauge, at in (("lethe_evict_by_seconds", due.time), ("lethe_evict_by_slack_seconds", due.possible_until_time)):
        if at is not None:
            numbers[gauge] = (at - now).total_seconds()
    if status.condition(EVICTION_ON_TIME) is not None:
        numbers["lethe_eviction_on_time"] = status.is_true(EVICTION_ON_TIME)
    return {name: float(number) for name, number in numbers.items() if number is not None}
