"""Reconciles of a real table: what they report to the publisher, and what the Dataset shows."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from lethe.base import names
from lethe.base.errors import InvalidSettings
from lethe.kube import CONFIG_MAPS
from lethe_operator.cluster.time_limit import Limiter
from lethe_operator.publish.cursor import Cursor, Move, PublishedPosition, PublishingStep
from lethe_operator.publish.delivery import FailureScope, SinkError
from lethe_operator.publish.events import (
    BatchReplaced,
    CloudEvent,
    EventType,
    Origin,
    numbered,
    schema_file,
    schema_of,
    structured,
)
from lethe_operator.publish.feed import TableOpener
from lethe_operator.publish.publisher import (
    NAME,
    STATUS_EVENTS,
    EnabledTimes,
    Publisher,
    Publishers,
    PublishingMetrics,
    publishers_of,
)
from lethe_operator.reasons import Reason
from lethe_operator.reconcile import Reconciler
from lethe_operator.resources.observed import EventsSettings, HttpSinkSettings, KafkaSinkSettings, OpenLineageSettings
from lethe_operator.settings import Settings, from_environment
from prometheus_client import CollectorRegistry, generate_latest

from tests.support.fake_cluster import FakeCluster, an_operator
from tests.support.publishing import RememberingSink, told, wait_for
from tests.support.small_lake import FLIGHTS, SmallLake

SETTINGS = EventsSettings(
    enabled=True, http=HttpSinkSettings(url="http://sink"), retry_base_seconds=0.01, retry_max_seconds=0.02
)


@dataclass
class Publishing:
    lake: SmallLake
    reconcile: Reconciler
    publisher: Publisher
    sink: RememberingSink
    changed: list[str] = field(default_factory=list)

    def condition(self) -> dict[str, Any]:
        found = [c for c in self.lake.status()["conditions"] if c["type"] == "EventsPublished"]
        return found[0] if found else {}

    def events(self) -> list[tuple[str, str]]:
        return told(self.sink.received)


@pytest.fixture
def publishing(lake: SmallLake) -> Iterator[Publishing]:
    sink = RememberingSink()
    operator = an_operator(lake.cluster)
    opener = TableOpener(operator.tables.opened, Limiter(), SETTINGS.max_event_bytes)
    enabled = EnabledTimes(lake.cluster)
    publisher = Publisher(SETTINGS, sink, opener, enabled.of, lambda _: True)
    object.__setattr__(operator, "publishers", Publishers((publisher,)))
    made = Publishing(lake, operator, publisher, sink)
    publisher.on_change = lambda meta: made.changed.append(meta.name)
    publisher.start()
    yield made
    publisher.stop()


def test_a_promotion_that_a_reconcile_sees_is_published(lake: SmallLake, publishing: Publishing) -> None:
    lake.put("A")
    lake.commit(lake.promoted("A"))

    publishing.reconcile(FLIGHTS)

    wait_for(lambda: len(publishing.sink.received) == 2)
    assert publishing.events() == [("publishing.started", ""), ("batch.promoted", "A")]
    data = json.loads(publishing.sink.received[1].data)
    assert data["table"] == {"catalog": "lite", "name": "air.flights", "uuid": str(lake.table.metadata.table_uuid)}
    assert publishing.condition()["reason"] == "EventsDelivered"
    folder = lake.home / "wh/air/flights" / names.EVENTS_FOLDER / str(lake.table.metadata.table_uuid) / "ns.flights"
    # A cursor that is being written has another name until it is whole.
    wait_for(lambda: [p.suffix for p in folder.iterdir()] == [".json"] * 2)


def test_a_table_that_existed_when_events_were_enabled_starts_at_its_head(
    lake: SmallLake, publishing: Publishing
) -> None:
    lake.cluster.create(
        CONFIG_MAPS, "ns", {"metadata": {"name": NAME}, "data": {"enabledTime": "2099-01-01T00:00:00+00:00"}}
    )
    lake.put("A", "B")
    lake.commit(lake.promoted("A"))
    publishing.reconcile(FLIGHTS)
    wait_for(lambda: len(publishing.sink.received) == 1)

    lake.commit(lake.promoted("B"))
    publishing.reconcile(FLIGHTS)

    wait_for(lambda: len(publishing.sink.received) == 2)
    assert publishing.events() == [("publishing.started", ""), ("batch.promoted", "B")]


def test_a_refused_message_is_a_condition_that_goes_away(lake: SmallLake, publishing: Publishing) -> None:
    refuse = SinkError(Reason.MESSAGE_TOO_LARGE, "http://sink answers 413.", scope=FailureScope.MESSAGE)
    publishing.sink.failures = [refuse] * 10_000
    lake.put("A")
    lake.commit(lake.promoted("A"))
    publishing.reconcile(FLIGHTS)
    wait_for(lambda: publishing.changed)

    publishing.reconcile(FLIGHTS)

    condition = publishing.condition()
    assert (condition["status"], condition["reason"]) == ("False", "MessageTooLarge")
    assert condition["message"] == "http://sink answers 413."
    ready = next(c for c in lake.status()["conditions"] if c["type"] == "Ready")
    assert ready["status"] == "True"  # nothing else depends on it
    publishing.changed.clear()
    publishing.sink.failures = []
    wait_for(lambda: publishing.changed)
    publishing.reconcile(FLIGHTS)
    assert (publishing.condition()["status"], publishing.condition()["reason"]) == ("True", "EventsDelivered")


def test_the_time_of_enabling_is_kept_by_the_first_who_writes_it(lake: SmallLake) -> None:
    first, second = EnabledTimes(lake.cluster).of("ns"), EnabledTimes(lake.cluster).of("ns")

    assert first == second
    stored = lake.cluster.get(CONFIG_MAPS, "ns", NAME)["data"]["enabledTime"]
    assert abs(first / 1000 + 600 - time.time()) < 60, stored


def test_without_a_sink_there_is_no_publisher() -> None:
    cluster: Any = FakeCluster()

    assert publishers_of(Settings(), cluster, None, lambda _: True, CollectorRegistry()) is None  # type: ignore[arg-type]
    assert Reconciler.__dataclass_fields__["publishers"].default is None


def test_lag_and_numbers_are_metrics(lake: SmallLake, publishing: Publishing) -> None:
    registry = CollectorRegistry()
    PublishingMetrics(registry, {STATUS_EVENTS: publishing.publisher})
    away = SinkError(Reason.SINK_UNAVAILABLE, "away")
    publishing.sink.failures = [away] * 3
    lake.put("A", "B")
    lake.commit(lake.promoted("A"), lake.promoted("B"))
    publishing.reconcile(FLIGHTS)
    wait_for(lambda: len(publishing.sink.received) == 3 and publishing.publisher.lags()[0].seconds == 0)
    text = generate_latest(registry).decode()
    assert 'lethe_status_events_total{dataset="flights",namespace="ns",output="StatusEvents"} 3.0' in text
    assert 'lethe_status_events_failures_total{output="StatusEvents",reason="SinkUnavailable"} 3.0' in text
    assert 'lethe_status_events_lag_seconds{dataset="flights",namespace="ns",output="StatusEvents"} 0.0' in text

    publishing.sink.failures = [SinkError(Reason.SINK_UNAVAILABLE, "away", delivered=1)] + [away] * 100_000
    lake.put("C", "D")
    lake.commit(lake.promoted("C"), lake.promoted("D"))
    publishing.reconcile(FLIGHTS)

    wait_for(
        lambda: (
            'waiting{dataset="flights",namespace="ns",output="StatusEvents"} 1.0' in generate_latest(registry).decode()
        )
    )
    assert publishing.publisher.lags()[0].seconds > 0
    publishing.publisher.forget("ns/flights")
    assert "lethe_status_events_total{" not in generate_latest(registry).decode()


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ('{"enabled": true}', "set either http or kafka"),
        ('{"enabled": true, "http": {"url": "ftp://x"}}', "url"),
        ('{"enabled": true, "kafka": {"bootstrapServers": "b:9092", "topic": "a b"}}', "topic"),
        ('{"maxEventBytes": 10}', "maxEventBytes"),
        ("{", "JSON"),
    ],
)
def test_wrong_settings_name_the_field(document: str, named: str) -> None:
    with pytest.raises(InvalidSettings, match="LETHE_EVENTS must be JSON like the chart's value events") as error:
        from_environment({"LETHE_EVENTS": document})

    assert named in str(error.value)


def test_settings_are_read_from_the_environment() -> None:
    found = from_environment(
        {
            "LETHE_EVENTS": '{"enabled": true, "start": "Beginning", "http": {"url": "https://x/y", "mode": "Structured"}}',
            "LETHE_EVENTS_SECRET": "/etc/lethe/events",
        }
    )

    assert (found.events.start, found.events.http) == (
        "Beginning",
        HttpSinkSettings(url="https://x/y", mode="Structured"),  # type: ignore[arg-type]
    )
    assert str(found.events_secret) == "/etc/lethe/events"


def test_the_pages_name_every_metric_type_reason_and_setting() -> None:
    docs = Path(__file__).parents[4] / "docs"
    registry = CollectorRegistry()
    PublishingMetrics(registry, {})
    families = {m.name + ("_total" if m.type == "counter" else "") for m in registry.collect()}
    metrics, page = (docs / "metrics.md").read_text(), (docs / "events.md").read_text()

    assert {f for f in families if f"`{f}`" not in metrics} == set()
    assert {t for t in EventType if f"[`{t}`](reference/events/{schema_file(t)})" not in page} == set()
    settings = (EventsSettings, HttpSinkSettings, KafkaSinkSettings, OpenLineageSettings)
    fields = {f.alias for model in settings for f in model.model_fields.values()} - {"http", "kafka", "openLineage"}
    assert {f for f in fields if f and f not in page} == set()
    reasons = Reason.SINK_UNAVAILABLE, Reason.SINK_DENIED, Reason.SINK_NOT_FOUND, Reason.MESSAGE_TOO_LARGE
    assert {r for r in (*reasons, Reason.MESSAGE_REFUSED, Reason.CURSOR_UNREADABLE) if f"`{r}`" not in page} == set()


def test_the_example_on_the_page_is_what_is_published() -> None:
    page = (Path(__file__).parents[4] / "docs/events.md").read_text()
    example = json.loads(page.partition("## An example\n\n```json\n")[2].partition("```")[0])
    event = from_json_event(example)

    assert structured_json(event) == example
    jsonschema.validate(example["data"], schema_of(EventType(example["type"])))


def from_json_event(document: dict[str, Any]) -> CloudEvent:
    """Written anew from its content: `numbered` gives it the attributes that it has on the page."""
    data = BatchReplaced.model_validate(document["data"])
    uuid, epoch, version, _ = document["id"].split("/")
    time_ms = int(datetime.fromisoformat(document["time"]).timestamp() * 1000)
    step = PublishingStep(Move.NEXT, PublishedPosition("r", int(version), data.snapshot_id, 1, time_ms), "1:1")
    (event,) = numbered([data], Cursor(uuid, int(epoch), PublishedPosition(), step), Origin("air", "flights"))
    return event


def structured_json(event: CloudEvent) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(structured(event))
    return found
