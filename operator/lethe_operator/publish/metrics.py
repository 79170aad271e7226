"""Prometheus metrics of the publishers. They exist only if status events are enabled."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from lethe_operator.publish.publisher import Publisher
from lethe_operator.reasons import Reason

_OF_DATASET: Final = ("namespace", "dataset", "output")


class PublishingMetrics(Collector):
    """One per operator. The lag is computed when metrics are collected."""

    def __init__(self, registry: CollectorRegistry, publishers: Mapping[str, Publisher]) -> None:
        """Args:
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
