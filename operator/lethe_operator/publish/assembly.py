"""Puts the publishers together from the settings. I/O."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from lethe.kube import Kube
from prometheus_client import CollectorRegistry

from lethe_operator.cluster.time_limit import Limiter
from lethe_operator.dataset.pointers import OpenCatalogs
from lethe_operator.publish.feed import TableOpener
from lethe_operator.publish.publisher import EnabledTimes, Publisher, PublishingMetrics
from lethe_operator.publish.sinks.http import EventSink, HttpSink, raw
from lethe_operator.resources.common import Meta
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import NoTable, TableView, Unavailable
from lethe_operator.resources.publishing import NO_TROUBLE, PublishingView
from lethe_operator.settings import Settings

STATUS_EVENTS, OPEN_LINEAGE = "StatusEvents", "OpenLineage"


@dataclass
class Publishers:
    """The publisher of status events, that of OpenLineage, or both. A trouble of one does not hold up the other."""

    members: Sequence[Publisher]
    on_change: Callable[[Meta], None] = field(default=lambda _: None)
    """Called with each Dataset whose condition changes."""

    def start(self) -> None:
        for publisher in self.members:
            publisher.on_change = self.on_change
            publisher.start()

    def stop(self) -> None:
        for publisher in self.members:
            publisher.stop()

    def table_seen(self, dataset: Dataset, table: TableView | NoTable | Unavailable) -> None:
        for publisher in self.members:
            publisher.table_seen(dataset, table)

    def view(self, dataset: Dataset) -> PublishingView:
        """The first trouble."""
        views = [publisher.view(dataset) for publisher in self.members]
        return next((view for view in views if view.reason), NO_TROUBLE)

    def forget_all(self, namespaces: Collection[str]) -> None:
        for publisher in self.members:
            publisher.forget_all(namespaces)

    def forget(self, name: str) -> None:
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
    from lethe_operator.publish.sinks.kafka import KafkaSink  # loads librdkafka, which few installations need

    assert events.kafka is not None
    return KafkaSink(events.kafka, settings.events_secret)
