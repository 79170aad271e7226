"""Measure the publisher of status events: a backlog, and the time until a consumer has an event. I/O.

The topic is in a Kafka broker on the same machine. The publisher is told of each commit at once, as the
operator is by the end of a run.
"""

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition
from lethe.base import names
from lethe.iceberg.facts import observe
from lethe.ledger.ledger import BatchEntry, BatchState
from lethe_local.folder import NAMESPACE
from lethe_operator.cluster.time_limit import Limiter
from lethe_operator.dataset.pointers import OpenCatalogs
from lethe_operator.dataset.tables import view_of
from lethe_operator.publish.feed import TableOpener
from lethe_operator.publish.publisher import Publisher
from lethe_operator.publish.sinks.kafka import KafkaSink
from lethe_operator.resources.dataset import Dataset, parse_dataset
from lethe_operator.resources.publishing import EventsSettings, KafkaSinkSettings, StartedFrom
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType

from bench.gateway_pages import percentile
from bench.gateway_scales import GatewayScale
from bench.gateway_site import RUN, Site, commit
from bench.timing import say
from tests.support.servers import kafka
from tests.support.servers.kafka import Broker

DATASET: Final = "events"
TABLE: Final = "air.events"
TOPIC: Final = "lethe"
BATCHES_PER_COMMIT: Final = 100
COMMITS_PER_SECOND: Final = 5.0
WITHIN_SECONDS: Final = 600.0
_SUBJECT: Final = "ce_subject"


@dataclass
class Reader:
    """A consumer of the topic that notes when each batch's event has come."""

    broker: Broker
    seen: dict[str, float] = field(default_factory=dict)  # by batch id, in monotonic seconds
    count: int = 0  # events of any type
    _ended: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def reading(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run, name="reader")
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def wait_for(self, batches: int) -> None:
        """Raises: TimeoutError."""
        until = time.monotonic() + WITHIN_SECONDS
        while len(self.seen) < batches:
            if time.monotonic() > until:
                raise TimeoutError(f"{len(self.seen):,} of {batches:,} events came within {WITHIN_SECONDS:.0f} s")
            time.sleep(0.01)

    def _run(self) -> None:
        consumer = Consumer(
            {"bootstrap.servers": self.broker.servers, "group.id": "bench", "enable.auto.commit": False}
        )
        try:
            partitions = consumer.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions
            consumer.assign([TopicPartition(TOPIC, p, 0) for p in partitions])
            while not self._ended.is_set():
                for message in consumer.consume(500, timeout=0.05):
                    now, headers = time.monotonic(), dict(message.headers() or ())
                    self.count += 1
                    if subject := headers.get(_SUBJECT):
                        self.seen.setdefault(subject.decode(), now)
        finally:
            consumer.close()


@dataclass
class Producer:
    """A table whose commits are reported to a publisher."""

    site: Site
    dataset: Dataset
    publisher: Publisher
    made: int = 0  # batches

    def commit(self, batches: int) -> list[str]:
        """The ids of the batches that this commit promotes."""
        now = datetime.now(UTC)
        ids = [f"b{n:07}" for n in range(self.made, self.made + batches)]
        self.made += batches
        commit(
            self.site.catalog,
            [BatchEntry(i, BatchState.PROMOTED, RUN, now, rows=500, bytes=40_000) for i in ids],
            name=TABLE,
        )
        return ids

    def report(self) -> None:
        table = self.site.catalog.load_table(TABLE)
        self.publisher.table_seen(self.dataset, view_of(observe(table, "batch_id"), table.io))


def events(site: Site, scale: GatewayScale) -> dict[str, Any]:
    """Events per second of a backlog, then the lag beside a steady rate of commits."""
    _create_table(site)
    with kafka.running(site.folder / "kafka") as broker:
        broker.create_topic(TOPIC)
        reader = Reader(broker)
        producer = Producer(site, _dataset(site.folder), _publisher(broker))
        for done in range(scale.event_commits):
            producer.commit(BATCHES_PER_COMMIT)
            if (done + 1) % 100 == 0:
                say(f"  {done + 1:,} of {scale.event_commits:,} commits")
        with reader.reading():
            backlog = _backlog(producer, reader)
            lag = _lag(producer, reader, scale.lag_commits)
        producer.publisher.stop()
    return {"results": [backlog, lag]}


def _backlog(producer: Producer, reader: Reader) -> dict[str, Any]:
    wanted, cpu, began = producer.made, time.process_time(), time.monotonic()
    producer.publisher.start()
    producer.report()
    reader.wait_for(wanted)
    seconds = max(reader.seen.values()) - began
    return {
        "kind": "backlog",
        "commits": wanted // BATCHES_PER_COMMIT,
        "events": reader.count,
        "seconds": round(seconds, 3),
        "per_second": round(reader.count / seconds, 1),
        "cpu_seconds": round(time.process_time() - cpu, 3),
    }


def _lag(producer: Producer, reader: Reader, commits: int) -> dict[str, Any]:
    committed: dict[str, float] = {}
    began = time.monotonic()
    for n in range(commits):
        (id,) = producer.commit(1)
        committed[id] = time.monotonic()
        producer.report()
        time.sleep(max(0.0, began + (n + 1) / COMMITS_PER_SECOND - time.monotonic()))
    seconds = time.monotonic() - began
    reader.wait_for(producer.made)
    lags = [reader.seen[id] - at for id, at in committed.items()]
    spread = {"median": statistics.median(lags), "p95": percentile(lags, 95), "max": max(lags)}
    return {
        "kind": "lag",
        "commits": commits,
        "commits_per_second": round(commits / seconds, 2),
        "seconds": {name: round(value, 4) for name, value in spread.items()},
    }


def _create_table(site: Site) -> None:
    if site.catalog.table_exists(TABLE):
        site.catalog.drop_table(TABLE)
    properties = {"format-version": "2", names.CLAIM: f"{NAMESPACE}/{DATASET}"}
    site.catalog.create_table(TABLE, Schema(NestedField(1, "batch_id", StringType())), properties=properties)


def _dataset(folder: Path) -> Dataset:
    spec = {
        "table": {"catalog": "local", "name": TABLE},
        "batchColumn": "batch_id",
        "buffer": {"uri": f"file://{folder}/buffer-{DATASET}"},
    }
    metadata = {"namespace": NAMESPACE, "name": DATASET, "uid": DATASET, "generation": 1}
    return parse_dataset({"metadata": metadata, "spec": spec})


def _publisher(broker: Broker) -> Publisher:
    sink = KafkaSinkSettings(bootstrap_servers=broker.servers, topic=TOPIC)
    settings = EventsSettings(enabled=True, kafka=sink, start=StartedFrom.BEGINNING)
    opener = TableOpener(OpenCatalogs(), Limiter(), settings.max_event_bytes)
    return Publisher(settings, KafkaSink(sink, None), opener, lambda _: 0, lambda _: True)
