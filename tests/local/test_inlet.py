"""A topic of Kafka becomes a table, on `lethe local`: the operator creates the table, the inlet makes batches, and a batch that
was taken back stays so, whatever happens to the inlet."""

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.local.lake import Lake, orders, restatement
from tests.support.servers import kafka
from tests.support.servers.kafka import Broker

TOPIC = "orders"
NAME = "streamed"  # of the Dataset


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with kafka.running(tmp_path_factory.mktemp("kafka")) as made:
        made.create_topic(TOPIC, partitions=1)
        yield made


@pytest.fixture
def streaming(lake: Lake, broker: Broker) -> Lake:
    """The running `lethe local`, which may read the broker."""
    lake.kafka_cluster(broker.servers)
    os.kill(lake.part("inlet"), signal.SIGKILL)  # the next one reads the file
    return lake


def produce(broker: Broker, *values: Any) -> None:
    producer = Producer({"bootstrap.servers": broker.servers})
    for value in values:
        producer.produce(TOPIC, value if isinstance(value, bytes) else json.dumps(value))
    assert producer.flush(60) == 0


def source_of(lake: Lake) -> dict[str, Any]:
    found: dict[str, Any] = (lake.get("dataset", NAME).get("status") or {}).get("source") or {}
    return found


def test_a_topic_becomes_a_table_and_a_batch_of_it_is_taken_back(streaming: Lake, broker: Broker) -> None:
    lake, dataset = streaming, orders(streaming.home.parent / NAME, NAME)
    dataset["spec"]["source"] = {
        "kafka": {"cluster": "main", "topics": [TOPIC], "format": "JSON", "epoch": {"maxSeconds": 1}}
    }
    produce(broker, {"id": 1}, {"id": 2}, b"not a row")
    lake.apply(dataset)
    lake.wait_until("promoted", lambda: lake.promoted(1, NAME))
    assert lake.ids(NAME) == [1, 2]

    lake.apply(restatement("bad-orders", "Revert", NAME, batchIds=["orders-0-000000000000-000000000002"]))
    lake.wait_until("reverted", lambda: lake.ids(NAME) == [])
    os.kill(lake.part("inlet"), signal.SIGKILL)
    produce(broker, {"id": 3})
    lake.wait_until("promoted", lambda: lake.ids(NAME) == [3])

    lake.wait_until("reported", lambda: source_of(lake).get("rows") == 3)
    reported = source_of(lake)
    assert (reported["reason"], reported["lag"], reported["refusedMessages"]) == ("SourceRead", 0, 1)
    conditions = {c["type"]: c["status"] for c in lake.get("dataset", NAME)["status"]["conditions"]}
    assert (conditions["SourceRead"], conditions["Ready"]) == ("True", "True")
    (refused,) = (lake.home.parent / NAME).glob("_refused/*/messages.jsonl")
    assert json.loads(refused.read_text())["offset"] == 2
