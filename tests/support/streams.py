"""A topic, a Dataset whose source it is, its table and its buffer: what the inlet reads and writes."""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from confluent_kafka import Producer, TopicPartition
from lethe.base import names
from lethe.base.names import batch_id_of_folder
from lethe.contract.status import SourceStatus
from lethe_inlet.serving import _kafka
from lethe_inlet.settings import Cluster, Registry
from lethe_inlet.source import TopicSource
from lethe_operator.resources.dataset import parse_dataset
from pyiceberg.catalog import Catalog

from tests.support.clock import wait_until
from tests.support.resources import a_dataset_body
from tests.support.servers.kafka import Broker
from tests.support.steps import Killed
from tests.support.tables import new_table

SECONDS = 60.0


def row(v: int) -> bytes:
    return json.dumps({"v": v}).encode()


@dataclass
class Stream:
    broker: Broker
    topic: str
    catalog: Catalog
    buffer: Path
    spec: Mapping[str, Any] = field(default_factory=dict)  # of spec.source.kafka
    properties: Mapping[str, Any] = field(default_factory=dict)  # of the cluster
    allowed: tuple[str, ...] | None = None  # patterns of "cluster/topic" that the boundary of the namespace allows
    registry: str = ""  # the URL of its schema registry; "": it has none
    states: list[SourceStatus] = field(default_factory=list)
    _read: dict[tuple[Path, int], list[int]] = field(default_factory=dict)

    def create_table(self) -> None:
        new_table(self.catalog, "air.flights", **{names.CLAIM: "ns/flights"})

    # --- the producer -------------------------------------------------------------------------------------------------

    def produce(self, values: Iterable[bytes | None], partition: int = 0, **config: Any) -> None:
        producer = Producer({"bootstrap.servers": self.broker.servers, "log_level": 0, **config})
        for value in values:
            producer.produce(self.topic, value, partition=partition)
        assert producer.flush(SECONDS) == 0

    def rows(self, numbers: Iterable[int], partition: int = 0) -> None:
        self.produce(map(row, numbers), partition)

    def delete_before(self, offset: int, partition: int = 0) -> None:
        """Let the first messages expire."""
        admin = self.broker.admin
        place = TopicPartition(self.topic, partition, offset)
        for future in admin.delete_records([place]).values():
            future.result(SECONDS)

    # --- the inlet ----------------------------------------------------------------------------------------------------

    def source(self, **more: Any) -> TopicSource:
        kafka = {
            "cluster": "main",
            "topics": [self.topic],
            "format": "JSON",
            "epoch": {"maxSeconds": 1},
            **self.spec,
            **more,
        }
        wanted: Any = {
            "table": {"catalog": "lite", "name": "air.flights"},
            "buffer": {"uri": f"file://{self.buffer}"},
            "source": {"kafka": kafka},
        }
        dataset = parse_dataset(a_dataset_body("flights", **wanted))
        registry = Registry(url=self.registry) if self.registry else None
        properties = {"bootstrap.servers": self.broker.servers, **self.properties}
        cluster = Cluster(properties=properties, schema_registry=registry, topics=self.allowed)
        return TopicSource(dataset, _kafka(dataset), lambda: {"main": cluster}, self.states.append)

    @contextmanager
    def running(self, source: TopicSource | None = None) -> Iterator[TopicSource]:
        found = source or self.source()
        thread = threading.Thread(target=found.run, daemon=True)
        thread.start()
        try:
            yield found
        finally:
            found.stopped.set()
            thread.join(SECONDS)
            assert not thread.is_alive()

    def read(self, rows: int, **more: Any) -> None:
        """Run the inlet until so many rows are in complete batches."""
        with self.running(self.source(**more)):
            self.wait(lambda: len(self.values) >= rows)

    def killed_at(self, step: str, times: int = 1) -> None:
        """Run the inlet until it dies at a step, for the so manieth time that it is there."""
        source, seen = self.source(), 0

        def die(name: str) -> None:
            nonlocal seen
            seen += name == step
            if name == step and seen == times:
                raise Killed(step)

        source.step = die
        thread = threading.Thread(target=_until_killed, args=(source,), daemon=True)
        thread.start()
        thread.join(SECONDS)
        assert not thread.is_alive(), f"never at {step}; {self.reasons}"

    @property
    def reasons(self) -> list[tuple[str, str]]:
        return [(s.reason, s.message) for s in self.states[-3:]]

    def wait_for(self, reason: str) -> SourceStatus:
        self.wait(lambda: bool(self.states) and self.states[-1].reason == reason)
        return self.states[-1]

    def wait(self, condition: Callable[[], bool]) -> None:
        try:
            wait_until(condition, SECONDS)
        except AssertionError as e:
            raise AssertionError(f"{e}; {self.reasons}; {sorted(self.batches)}") from e

    # --- the buffer ---------------------------------------------------------------------------------------------------

    @property
    def batches(self) -> dict[str, list[int]]:
        """The values of `v` of each complete batch, by its id."""
        found = {}
        for marker in self.buffer.glob(f"batch_id=*/{names.SUCCESS_MARKER}"):
            id = batch_id_of_folder("batch_id", marker.parent.name)
            assert id is not None
            found[id] = [v for f in marker.parent.glob("*.parquet") for v in self._values_in(f)]
        return found

    def _values_in(self, file: Path) -> list[int]:
        """Tests look many times, so a file is read once in each state."""
        state = (file, file.stat().st_mtime_ns)
        if state not in self._read:
            self._read[state] = pq.read_table(file).column("v").to_pylist()
        return self._read[state]

    @property
    def values(self) -> list[int]:
        return sorted(v for values in self.batches.values() for v in values)

    @property
    def refused(self) -> list[dict[str, Any]]:
        files = sorted(self.buffer.glob("_refused/*/messages.jsonl"))
        return [json.loads(line) for f in files for line in f.read_text().splitlines()]


def _until_killed(source: TopicSource) -> None:
    with suppress(Killed):
        source.run()
