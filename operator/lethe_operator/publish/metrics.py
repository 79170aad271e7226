"""Prometheus metrics of the publisher. They exist only if status events are enabled."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from lethe_operator.publish.publisher import Lag
from lethe_operator.reasons import Reason

_OF_DATASET: Final = ("namespace", "dataset")


class PublishingMetrics(Collector):
    """One per operator. The lag is computed when metrics are collected."""

    def __init__(self, registry: CollectorRegistry, lags: Callable[[], Sequence[Lag]]) -> None:
        self._lags = lags
        self._sent = Counter(
            "lethe_status_events_total",
            "Status events that the sink has accepted, repeated ones included.",
            _OF_DATASET,
            registry=registry,
        )
        self._failures = Counter(
            "lethe_status_events_failures_total",
            "Attempts to deliver status events that failed, by reason.",
            ("reason",),
            registry=registry,
        )
        registry.register(self)

    def sent(self, namespace: str, dataset: str, number: int) -> None:
        self._sent.labels(namespace, dataset).inc(number)

    def failed(self, reason: Reason) -> None:
        self._failures.labels(str(reason)).inc()

    def forget(self, namespace: str, dataset: str) -> None:
        """Remove the numbers of a deleted Dataset."""
        self._sent.remove_by_labels({"namespace": namespace, "dataset": dataset})

    def collect(self) -> Iterator[Metric]:
        lags = self._lags()
        seconds = GaugeMetricFamily(
            "lethe_status_events_lag_seconds",
            "How long ago the oldest commit was made whose status events are not delivered; 0 if there is none.",
            labels=_OF_DATASET,
        )
        waiting = GaugeMetricFamily(
            "lethe_status_events_waiting",
            "Status events of the oldest such commit that are not delivered; of a large commit, only the next ones.",
            labels=_OF_DATASET,
        )
        for lag in lags:
            seconds.add_metric((lag.namespace, lag.name), lag.seconds)
            waiting.add_metric((lag.namespace, lag.name), lag.events)
        yield seconds
        yield waiting
