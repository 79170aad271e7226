"""The Kafka sink against a real broker: order, a broker that is away, missing topics, limits of topics."""

import base64
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from cloudevents.core.bindings.kafka import KafkaMessage, from_kafka
from cloudevents.core.formats.json import JSONFormat
from lethe_operator.publish.delivery import FailureScope, KafkaSink, SinkError
from lethe_operator.publish.events import CloudEvent
from lethe_operator.reasons import Reason
from lethe_operator.resources.observed import ContentMode, KafkaSinkSettings

from tests.support.builders import a_batch
from tests.support.publishing import LedgerHistory, RememberingSink, publish
from tests.support.servers import kafka
from tests.support.servers.kafka import Broker, Record
from tests.support.steps import Killed


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    name = f"t{abs(hash(request.node.nodeid))}"
    broker.create_topic(name)
    return name


def a_sink(broker: Broker, topic: str, **changes: Any) -> KafkaSink:
    wanted = {"bootstrap_servers": broker.servers, "topic": topic, "timeout_seconds": 20, **changes}
    return KafkaSink(KafkaSinkSettings(**wanted), None)


def read(record: Record) -> Any:
    return from_kafka(KafkaMessage(dict(record.headers), record.key.encode(), record.value), JSONFormat())


def subjects(records: list[Record]) -> list[str]:
    return [read(r).get_subject() or "" for r in records]


def incompressible(bytes: int, seed: int = 0) -> str:
    """A text of this size, which compression makes little smaller."""
    return base64.b64encode(Random(seed).randbytes(bytes * 3 // 4)).decode()


@pytest.mark.parametrize("mode", ContentMode)
def test_the_events_of_a_dataset_are_in_one_partition_in_order(
    broker: Broker, topic: str, events: list[CloudEvent], mode: ContentMode
) -> None:
    others = [replace(e, partition_key=f"ns/other-{n}", source=f"/other/{n}") for n in range(9) for e in events]
    sink = a_sink(broker, topic, mode=mode)

    sink.send([*events, *others])
    sink.send([replace(events[0], subject="next")])

    records = broker.read(topic)
    ours = [r for r in records if r.key == "ns/flights"]
    assert subjects(ours) == ["", "A", "B", "C", "D", "next"]
    assert len({r.partition for r in ours}) == 1
    assert len({r.partition for r in records}) > 1
    found = read(ours[1])
    assert (found.get_id(), found.get_source(), found.get_type()) == (events[1].id, events[1].source, events[1].type)
    assert found.get_data()["batchId"] == "A"
    sink.close()


def test_a_thousand_events_keep_their_order(broker: Broker, topic: str, events: list[CloudEvent]) -> None:
    many = [replace(events[1], subject=f"{n:04}") for n in range(1000)]
    sink = a_sink(broker, topic)

    for begin in range(0, 1000, 100):
        sink.send(many[begin : begin + 100])

    assert subjects(broker.read(topic)) == [f"{n:04}" for n in range(1000)]


def test_a_missing_topic_is_reported_and_everything_follows_once_it_is_there(
    broker: Broker, history: LedgerHistory
) -> None:
    sink = a_sink(broker, "missing")
    with pytest.raises(SinkError) as failure:
        publish(history, sink)
    error = failure.value
    assert (error.reason, error.scope, error.delivered) == (Reason.SINK_NOT_FOUND, FailureScope.SINK, 0)
    assert error.message.startswith(f"topic missing of {broker.servers} does not exist")
    broker.create_topic("missing")
    history.commit(a_batch("E"))

    publish(history, sink)

    assert subjects(broker.read("missing")) == ["", "A", "B", "C", "D", "E"]


def test_an_event_larger_than_the_topic_allows_stops_those_after_it(
    broker: Broker, topic: str, events: list[CloudEvent]
) -> None:
    broker.configure_topic(topic, max_message_bytes="8000")
    large = replace(events[2], data=json.dumps({"batchIds": incompressible(20_000)}))
    sink = a_sink(broker, topic)

    with pytest.raises(SinkError) as failure:
        sink.send([*events[:2], large, *events[3:]])

    error = failure.value
    assert (error.reason, error.scope, error.delivered) == (Reason.MESSAGE_TOO_LARGE, FailureScope.MESSAGE, 2)
    assert subjects(broker.read(topic)) == ["", "A"]
    broker.configure_topic(topic, max_message_bytes="1000000")
    sink.send([large, *events[3:]])
    assert subjects(broker.read(topic)) == ["", "A", "B", "C", "D"]


def test_events_that_are_only_together_larger_than_the_topic_allows_are_delivered(
    broker: Broker, topic: str, events: list[CloudEvent]
) -> None:
    broker.configure_topic(topic, max_message_bytes="2500")
    data = [json.dumps({"batchId": incompressible(1500, seed)}) for seed in range(100)]
    many = [replace(events[1], subject=f"{n:03}", data=d) for n, d in enumerate(data)]

    a_sink(broker, topic).send(many)

    assert subjects(broker.read(topic)) == [f"{n:03}" for n in range(100)]


@pytest.mark.long
def test_a_publisher_killed_at_any_step_delivers_everything_in_order(broker: Broker, tmp_path: Path) -> None:
    def lake(home: Path) -> LedgerHistory:
        made = LedgerHistory(home)
        made.commit(a_batch("A"), a_batch("B"))
        made.commit(a_batch("C"))
        return made

    steps: list[str] = []
    publish(lake(tmp_path / "whole"), RememberingSink(), at_step=steps.append)
    for number, name in enumerate(steps):
        topic = f"killed-{number}"
        broker.create_topic(topic, partitions=1)
        history, left = lake(tmp_path / str(number)), iter(range(len(steps)))

        def die(_: str, number: int = number, left: Iterator[int] = left) -> None:
            if next(left) == number:
                raise Killed

        with pytest.raises(Killed):
            publish(history, a_sink(broker, topic), at_step=die)
        publish(history, a_sink(broker, topic))

        found = [read(r) for r in broker.read(topic)]
        first = {e.get_id(): e.get_subject() or "" for e in reversed(found)}
        in_order = sorted({e.get_id(): e.get_extension("sequence") for e in found}.items(), key=lambda i: str(i[1]))
        assert [first[i] for i, _ in in_order] == ["", "A", "B", "C"], name
        assert len(found) - len(first) <= 2, name


@pytest.mark.long
def test_a_broker_that_was_away_gets_everything_in_order(broker: Broker, topic: str, history: LedgerHistory) -> None:
    """The time limit is short; the broker is really away."""
    sink = a_sink(broker, topic, timeout_seconds=2)
    publish(history, sink)
    with broker.away():
        for n in range(3):
            history.commit(a_batch(f"E{n}"))
            began = time.monotonic()
            with pytest.raises(SinkError, match="acknowledges nothing") as failure:
                publish(history, sink)
            assert failure.value.reason is Reason.SINK_UNAVAILABLE
            assert time.monotonic() - began < 10

    publish(history, a_sink(broker, topic))

    assert subjects(broker.read(topic)) == ["", "A", "B", "C", "D", "E0", "E1", "E2"]


def test_a_password_is_read_from_the_secret_and_a_corrected_one_without_a_restart(
    broker: Broker, topic: str, tmp_path: Path, events: list[CloudEvent]
) -> None:
    settings = KafkaSinkSettings(
        bootstrap_servers=f"127.0.0.1:{broker.sasl_port}",
        topic=topic,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        timeout_seconds=5,
    )
    (tmp_path / "username").write_text(kafka.USER)
    (tmp_path / "password").write_text("wr0ng-horse")
    sink = KafkaSink(settings, tmp_path)

    with pytest.raises(SinkError) as failure:
        sink.send(events)

    assert (failure.value.reason, failure.value.delivered) == (Reason.SINK_DENIED, 0)
    assert "horse" not in failure.value.message
    (tmp_path / "password").write_text(f"{kafka.PASSWORD}\n")
    sink.send(events)
    assert subjects(broker.read(topic)) == ["", "A", "B", "C", "D"]


def test_a_broker_without_tls_is_no_broker_with_tls(broker: Broker, events: list[CloudEvent]) -> None:
    sink = a_sink(broker, "t", security_protocol="SSL", timeout_seconds=3)

    with pytest.raises(SinkError) as failure:
        sink.send(events)

    assert failure.value.reason in (Reason.SINK_DENIED, Reason.SINK_UNAVAILABLE)
