"""Puts the publisher together from the settings. I/O."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from lethe_operator.kube import Kube
from lethe_operator.observe.open_catalogs import OpenCatalogs
from lethe_operator.publish.enabled import EnabledTimes
from lethe_operator.publish.metrics import PublishingMetrics
from lethe_operator.publish.opening import TableOpener
from lethe_operator.publish.publisher import Publisher
from lethe_operator.publish.sinks.http import HttpSink
from lethe_operator.publish.sinks.sink import Sink
from lethe_operator.settings import Settings


def publisher_of(
    settings: Settings, kube: Kube, opened: OpenCatalogs, acts_in: Callable[[str], bool], registry: CollectorRegistry
) -> Publisher | None:
    """The publisher of status events; None: they are not enabled, and cost nothing.

    Args:
        opened: The catalogs of the operator.
        acts_in: Whether this process may act in a namespace.
        registry: Of metrics.
    """
    if not settings.events.enabled:
        return None
    opener = TableOpener(opened, settings.events.max_event_bytes)
    made = Publisher(settings.events, _sink(settings), opener, EnabledTimes(kube).of, acts_in)
    metrics = PublishingMetrics(registry, made.lags)
    made.on_sent, made.on_failure, made.on_forget = metrics.sent, metrics.failed, metrics.forget
    return made


def _sink(settings: Settings) -> Sink:
    events = settings.events
    if events.http is not None:
        return HttpSink(events.http, settings.events_secret)
    from lethe_operator.publish.sinks.kafka import KafkaSink  # loads librdkafka, which few installations need

    assert events.kafka is not None
    return KafkaSink(events.kafka, settings.events_secret)
