"""A Dataset that hears of its batches from a queue: queue and buffer are real, producers, S3's messages and runs are played."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from lethe.base import names
from lethe.contract.run import RunSpec, parse_run
from lethe.kube import CONFIG_MAPS, DATASETS, JOBS
from lethe.ledger.ledger import BatchEntry, BatchState
from lethe_operator.dataset.listing import Listings
from lethe_operator.dataset.listing_schedule import ListingLimits
from lethe_operator.dataset.tables import TableReader
from lethe_operator.metrics import Metrics
from lethe_operator.resources.common import RUN_KEY
from lethe_operator.resources.dataset import parse_dataset
from pyiceberg.table import Table

from tests.support.buffers import batches_in
from tests.support.builders import a_batch
from tests.support.clock import wait_until
from tests.support.fake_cluster import FakeCluster, an_operator
from tests.support.resources import condition
from tests.support.servers import s3
from tests.support.servers.sqs import TestQueue, created
from tests.support.small_lake import FLIGHTS
from tests.support.tables import commit

SECONDS = 120
LABELS = {"namespace": "ns", "dataset": "flights"}


@dataclass
class Air:
    """A Dataset with a buffer in S3, a table on SQLite, and a queue. Producers, S3's messages and runs are simulated."""

    store: s3.S3
    queue: TestQueue
    bucket: str
    table: Table
    cluster: FakeCluster
    operators: list[TableReader] = field(default_factory=list)
    metrics: Metrics = field(default_factory=Metrics)

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}/buffer"

    def put(self, *ids: str, content: bytes = b"rows") -> dict[str, str]:
        """What a producer writes, without a word of it. The messages that S3 would send, by key below the bucket."""
        reported: dict[str, str] = {}
        for id in ids:
            for n, name in enumerate(("p.parquet", names.SUCCESS_MARKER)):
                key = f"buffer/batch_id={id}/{name}"
                data = b"" if n else content
                etag = self.store.client.put_object(Bucket=self.bucket, Key=key, Body=data)["ETag"].strip('"')
                reported[key] = created(self.bucket, key, etag, f"0{n + 1}", len(data))
        return reported

    def operator(self) -> Callable[[], None]:
        """A new one, which remembers nothing. Each call is a reconcile of the Dataset."""
        tables = TableReader(listings=Listings(limits=ListingLimits(shortest_seconds=5)))
        self.operators.append(tables)
        tables.events.on_messages = lambda of, outcome, n: self.metrics.messages(of.namespace, of.name, outcome, n)
        reconcile = an_operator(self.cluster, tables, metrics=self.metrics)
        return lambda: reconcile(FLIGHTS) and None

    def commit(self, *entries: BatchEntry) -> None:
        """A ledger commit: a snapshot of a summary and no rows."""
        commit(self.table, *entries)

    def entry(self, id: str, state: BatchState = BatchState.PROMOTED) -> BatchEntry:
        """The objects of a batch in the buffer."""
        (found,) = (b for b in batches_in(self.uri, self.store.properties()) if b.id == id)
        return a_batch(id, state, time=datetime.now(UTC), objects=found.data_objects)

    def runs(self) -> list[RunSpec]:
        """What was launched, as it would read it."""
        jobs = self.cluster.list(JOBS, "ns")
        texts = [v for c in self.cluster.list(CONFIG_MAPS, "ns") for k, v in c["data"].items() if k.endswith(RUN_KEY)]
        assert len(texts) == len(jobs)
        return [parse_run(t) for t in texts]

    def batches(self) -> list[tuple[str, ...]]:
        return [r.consolidation.batch_ids for r in self.runs() if r.consolidation]

    def waiting(self) -> tuple[int, int]:
        """Batches and bytes, as the status shows them."""
        buffer = self.cluster.get(DATASETS, "ns", "flights")["status"]["buffer"]
        return buffer["batches"], buffer["bytes"]

    def events_ready(self) -> tuple[str, str]:
        return condition(self.cluster.get(DATASETS, "ns", "flights")["status"], "EventsReady")

    def listed(self) -> int | None:
        """How many objects the newest operator's last whole listing has found."""
        taken = self.operators[-1].listings.last_duration("ns/flights")
        return taken[1] if taken else None

    def rests(self) -> bool:
        """Whether the newest operator has listed the buffer, does not list it now, and leaves it to the queue."""
        listings = self.operators[-1].listings
        dataset = parse_dataset(self.cluster.get(DATASETS, "ns", "flights"))
        events, pause_seconds = dataset.spec.buffer.events, listings.pause_seconds(dataset.meta.full_name)
        assert events is not None
        is_left = pause_seconds is not None and pause_seconds >= events.resync_seconds
        return self.listed() is not None and is_left and not listings.is_listed_now(dataset)

    def count(self, outcome: str) -> int:
        return int(self.metrics.registry.get_sample_value("lethe_events_total", {**LABELS, "outcome": outcome}) or 0)


def readers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "events ns/flights"]


def eventually(
    holds: Callable[[], bool], reconcile: Callable[[], None] | None = None, seconds: float = SECONDS
) -> None:
    """Reconcile until the condition holds."""
    wait_until(holds, seconds, before_each=reconcile)


def reading(air: Air) -> Callable[[], None]:
    """An operator that hears from its queue, and has listed the buffer for the last time in this test."""
    reconcile = air.operator()
    eventually(lambda: air.events_ready() == ("True", "QueueRead") and air.rests(), reconcile)
    return reconcile


def reading_soon(air: Air) -> Callable[[], None]:
    """As `reading`, where the queue answers only after a long poll: until then an empty buffer has been listed."""
    reconcile = air.operator()
    eventually(lambda: air.listed() is not None and air.events_ready()[0] == "Unknown", reconcile)
    return reconcile
