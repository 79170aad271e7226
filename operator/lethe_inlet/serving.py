"""Serves all Datasets of a namespace that have a source, with one thread for each, and its metrics. I/O: the API server, a port.

It reads Datasets, and writes `status.source` of each. The operator makes a condition of it, and has the lag and the counts of
each source as metrics. The inlet's own metrics say which sources are being read.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from lethe.contract.dataset import KafkaSource
from lethe.contract.status import DatasetStatus, SourceStatus
from lethe.kube import DATASETS, KubeError, NotFound, ResourceKind
from lethe.metrics_server import serve_metrics
from lethe_operator import conditions
from lethe_operator.reasons import Reason
from lethe_operator.resources.common import InvalidSpec
from lethe_operator.resources.dataset import Dataset, parse_dataset
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from lethe_inlet.epochs import STARTING
from lethe_inlet.settings import Cluster
from lethe_inlet.source import TopicSource

_OF_DATASET: Final = ("namespace", "dataset")


@dataclass(frozen=True)
class SourceSeen:
    """What the process knows of a source."""

    namespace: str
    dataset: str
    reason: str
    """As in `status.source`."""
    silent_seconds: float
    """Since its thread last said something."""


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
        """Yield, at each scrape, whether each source is read, and why, and how long its thread has been silent."""
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
        """Serve `/metrics` on a port, in a thread; None: do not.

        Raises:
            OSError: The port is in use.
        """
        if port is not None:
            serve_metrics(port, self.registry)


log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 5.0
# An unchanged state is reported again after this time, so that the operator sees that the inlet works.
REPORT_SECONDS: Final = 60.0
# A source that says nothing for this long hangs, and the process ends, so that Kubernetes starts another one.
HANGS_SECONDS: Final = 900.0
_STOP_SECONDS: Final = 20.0


class DatasetApi(Protocol):
    """The part of `lethe.kube.Kube` that is used."""

    def list(self, kind: ResourceKind, namespace: str, labels: str = "") -> list[dict[str, Any]]:
        """List the objects of a kind in a namespace; an empty label selector selects all of them.

        Raises:
            KubeError: The API server rejected a request, or did not answer (`status` 0).
        """

    def patch(
        self, kind: ResourceKind, namespace: str, name: str, patch: Mapping[str, Any], subresource: str = ""
    ) -> dict[str, Any]:
        """Apply a merge patch to an object, or to its subresource, and return the result.

        Raises:
            NotFound: The object does not exist.
            KubeError: The API server rejected a request, or did not answer (`status` 0).
        """


class Hangs(Exception):
    """A source has said nothing for too long."""


@dataclass
class Served:
    """A Dataset whose topics are being read."""

    key: tuple[object, ...]
    """What must be the same for the thread to go on."""
    source: TopicSource
    thread: threading.Thread
    latest: SourceStatus = STARTING
    heard: float = field(default_factory=time.monotonic)
    reported: tuple[float, SourceStatus] | None = None

    def take(self, state: SourceStatus) -> None:
        """Note a state that the thread reports, and the time: a thread that reports nothing for too long hangs."""
        self.latest, self.heard = state, time.monotonic()


@dataclass
class Serving:
    """One per process: it runs a thread for each Dataset that has a source, and writes what the threads report."""

    api: DatasetApi
    namespace: str
    clusters: Callable[[], Mapping[str, Cluster]]
    make: Callable[..., TopicSource] = TopicSource
    _served: dict[str, Served] = field(default_factory=dict)

    def look(self) -> None:
        """Start and stop threads as Datasets come, change and go, and report.

        Raises:
            KubeError: The API server rejected a request, or did not answer (`status` 0).
            Hangs: A source has said nothing for too long.
        """
        wanted = {d.meta.name: d for d in map(_parsed, self.api.list(DATASETS, self.namespace)) if d is not None}
        for name, served in list(self._served.items()):
            dataset = wanted.get(name)
            if dataset is None or _key(dataset) != served.key or not may_read(dataset):
                served.source.stopped.set()
                if not served.thread.is_alive():
                    del self._served[name]
        for name, dataset in wanted.items():
            if name not in self._served and may_read(dataset):
                self._served[name] = self._start(dataset)
        self._report()

    def sources(self) -> list[SourceSeen]:
        """What is known of the sources that are read. Any thread may call it."""
        now = time.monotonic()
        return [
            SourceSeen(self.namespace, name, str(served.latest.reason), now - served.heard)
            for name, served in list(self._served.items())
        ]

    def stop(self) -> None:
        """Stop all threads, and wait for them. What they have begun is finished by the next process."""
        for served in self._served.values():
            served.source.stopped.set()
        until = time.monotonic() + _STOP_SECONDS
        for served in self._served.values():
            served.thread.join(max(0.0, until - time.monotonic()))

    def _start(self, dataset: Dataset) -> Served:
        source = self.make(dataset, _kafka(dataset), self.clusters, lambda _state: None)
        served = Served(_key(dataset), source, threading.Thread(target=source.run, name=dataset.claim, daemon=True))
        source.report = served.take
        served.thread.start()
        log.info("%s: reads %s", dataset.claim, ", ".join(source.kafka.topics))
        return served

    def _report(self) -> None:
        now = time.monotonic()
        for name, served in self._served.items():
            if now - served.heard > HANGS_SECONDS:
                raise Hangs(f"{served.source.dataset.claim} has said nothing for {HANGS_SECONDS:.0f} s")
            if served.source.stopped.is_set():
                continue
            latest = served.latest
            if served.reported is not None:
                at, before = served.reported
                if before == latest and now - at < REPORT_SECONDS:
                    continue
            seen = SourceStatus.model_validate({**dict(latest), "observed_time": datetime.now(UTC)})
            document = DatasetStatus(source=seen).to_document()
            try:
                self.api.patch(DATASETS, self.namespace, name, {"status": document}, "status")
            except NotFound:
                continue
            except KubeError as e:
                log.warning("%s: its status could not be written: %s", served.source.dataset.claim, e)
                continue
            served.reported = now, latest


def may_read(dataset: Dataset) -> bool:
    """Whether the operator has accepted this generation of the Dataset: its table, its buffer and its boundary."""
    if dataset.meta.deleting or dataset.status.observed_generation != dataset.meta.generation:
        return False
    return not dataset.status.is_true(conditions.STALLED)


def _parsed(body: Mapping[str, Any]) -> Dataset | None:
    try:
        dataset = parse_dataset(body)
    except InvalidSpec:
        return None  # the operator says so in its status
    return dataset if dataset.spec.source.kafka is not None else None


def _kafka(dataset: Dataset) -> KafkaSource:
    assert dataset.spec.source.kafka is not None
    return dataset.spec.source.kafka


def _key(dataset: Dataset) -> tuple[object, ...]:
    spec = dataset.spec
    table = (spec.table.catalog, spec.table.name)
    return dataset.meta.uid, spec.source, table, spec.buffer.uri, spec.batch_column, spec.schema_evolution
