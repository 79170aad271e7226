"""Prometheus metrics of the inlet: which sources are being read. I/O: a port.

The operator has the lag and the counts of each source, because the Dataset's status shows them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from lethe.metrics_server import serve_metrics
from lethe_operator.reasons import Reason
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

_OF_DATASET: Final = ("namespace", "dataset")


@dataclass(frozen=True)
class SourceSeen:
    """What the process knows of a source."""

    namespace: str
    dataset: str
    reason: str  # as in `status.source`
    silent_seconds: float  # since its thread last said something


class InletMetrics(Collector):
    """One per process.

    Args:
        sources: Those that are served now. Any thread may call it.
    """

    def __init__(self, sources: Callable[[], list[SourceSeen]]) -> None:
        self._sources = sources
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        reading = GaugeMetricFamily(
            "lethe_inlet_source_reading",
            "1 while a Dataset's source is read, 0 while it is not; the label reason says why.",
            labels=(*_OF_DATASET, "reason"),
        )
        silent = GaugeMetricFamily(
            "lethe_inlet_source_silent_seconds",
            "How long ago the thread of a Dataset's source last reported anything.",
            labels=_OF_DATASET,
        )
        for seen in self._sources():
            key = (seen.namespace, seen.dataset)
            reading.add_metric((*key, seen.reason), seen.reason == Reason.SOURCE_READ)
            silent.add_metric(key, seen.silent_seconds)
        yield reading
        yield silent

    def serve(self, port: int | None) -> None:
        """Serve `/metrics` on a port, in a thread; None: do not. Raises: OSError, if the port is in use."""
        if port is not None:
            serve_metrics(port, self.registry)
