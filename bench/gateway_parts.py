"""What is measured of the gateway: pages and single batches of a table with many, uploads, and status events. I/O.

Uploads go to an S3 server of this machine, so the network is no limit. The topic of events is in a Kafka broker of this machine,
and the publisher hears of each commit at once, as the operator does at the end of a run.
"""

import os
import random
import statistics
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import lethe
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, TopicPartition
from lethe.base import names
from lethe.iceberg.facts import observe
from lethe.ledger.ledger import BatchEntry, BatchState
from lethe_local.folder import NAMESPACE
from lethe_operator.cluster.time_limit import Limiter
from lethe_operator.dataset.pointers import OpenCatalogs
from lethe_operator.dataset.tables import view_of
from lethe_operator.publish.delivery import KafkaSink
from lethe_operator.publish.feed import TableOpener
from lethe_operator.publish.publisher import Publisher
from lethe_operator.resources.dataset import Dataset, parse_dataset
from lethe_operator.resources.observed import EventsSettings, KafkaSinkSettings, StartedFrom
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType

from bench.gateway_site import PATH, RUN, START, UPLOADED, GatewayScale, Site, ask, built, commit
from bench.report import percentile
from bench.timing import Case, Sample, failure, in_turns, say, spread
from tests.support.servers import kafka
from tests.support.servers.kafka import Broker

Ask = Callable[[random.Random], tuple[str, dict[str, Any]]]
PAGE = 100
READERS = 2
BATCH = "one batch"


def pages(site: Site, scale: GatewayScale) -> dict[str, Any]:
    """The first answer builds the index. Then each kind of request is sent as often, at random places of the order."""
    built_seconds = built(site)
    after_build = site.memory_mib()
    say(f"  the index was built in {built_seconds:.1f} s, {site.index_bytes():,} bytes, peak {after_build} MiB")
    span = scale.batches * 31
    results = [_measured(site, scale, name, make) for name, make in _kinds(site, span).items()]
    rate = _pages_per_second(site, scale)
    refresh = _refreshed(site, scale)
    return {
        "batches": scale.batches,
        "results": results,
        "index": {"build_seconds": round(built_seconds, 2), "bytes": site.index_bytes(), "refresh_seconds": refresh},
        "pages_per_second": rate,
        "memory_mib": {"after_build": after_build, "peak": site.memory_mib()},
    }


def _kinds(site: Site, span: int) -> dict[str, Ask]:
    def moment(chance: random.Random) -> str:
        return (START + timedelta(seconds=chance.randrange(span))).isoformat().replace("+00:00", "Z")

    def page(**query: Any) -> Ask:
        def make(chance: random.Random) -> tuple[str, dict[str, Any]]:
            chosen = {k: v(chance) if callable(v) else v for k, v in query.items()}
            return f"{PATH}/batches", {**chosen, "limit": PAGE}

        return make

    def day(chance: random.Random) -> str:
        return f"2026-{chance.randrange(1, 13):02d}-{chance.randrange(1, 29):02d}"

    return {
        "newest page": page(),
        "page at any time": page(until=moment),
        "refused, at any time": page(until=moment, state="refused"),
        "reverted or refused, at any time": page(until=moment, state=["reverted", "refused"]),
        "of one Restatement": page(restatement=lambda c: f"revert-{c.randrange(200)}"),
        "ids of a month": page(idPrefix=lambda c: f"2026-{c.randrange(1, 13):02d}"),
        "ids of an hour": page(idPrefix=lambda c: f"{day(c)}T{c.randrange(24):02d}"),
        "ids that do not exist": page(idPrefix="absent"),
        "refused, ids of a day": page(state="refused", idPrefix=day),
        BATCH: lambda c: (f"{PATH}/batches/{c.choice(site.ids)}", {}),
    }


def _measured(site: Site, scale: GatewayScale, name: str, make: Ask) -> dict[str, Any]:
    chance = random.Random(name)
    taken: list[float] = []
    before = site.cpu_seconds()
    try:
        for _ in range(scale.requests):
            path, query = make(chance)
            seconds, status, body = site.get(path, **query)
            assert status == 200, body
            taken.append(round(seconds, 5))
    except Exception as e:
        return {"kind": name, "error": failure(e)}
    found: dict[str, Any] = {"kind": name, "seconds": spread(taken), "p95": percentile(taken, 95)}
    found["cpu_seconds"] = round((site.cpu_seconds() - before) / scale.requests, 5)
    say(f"  {name}: median {found['seconds']['median'] * 1000:.1f} ms, 95 % below {found['p95'] * 1000:.1f} ms")
    return found


def _pages_per_second(site: Site, scale: GatewayScale) -> float:
    """Of clients that send one request after the other."""
    make = _kinds(site, scale.batches * 31)["page at any time"]
    counts = [0] * READERS
    until = time.monotonic() + scale.seconds

    def client(number: int) -> None:
        connection, chance = site.connection(), random.Random(number)
        while time.monotonic() < until:
            path, query = make(chance)
            _, status, body = ask(connection, site.token, path, query)
            assert status == 200, body
            counts[number] += 1

    threads = [threading.Thread(target=client, args=(n,)) for n in range(READERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return round(sum(counts) / scale.seconds, 1)


def _refreshed(site: Site, scale: GatewayScale) -> float:
    """Seconds from a commit to the first answer that shows it."""
    site.disconnect()  # the server closes a connection that was idle while the others read pages
    _, _, before = site.get(f"{PATH}/batches", limit=1)
    site.change(scale.changed)
    site.disconnect()
    started = time.monotonic()
    while True:
        _, _, body = site.get(f"{PATH}/batches", limit=1)
        if body["freshness"]["ledgerVersion"] > before["freshness"]["ledgerVersion"]:
            return round(time.monotonic() - started, 2)
        assert time.monotonic() - started < 300, body["freshness"]
        time.sleep(0.02)


CLIENTS: Final = 2
ROWS: Final = 10
PLAIN, UPLOAD = "plain PUT", "upload"
_CHUNK: Final = 64 * 1024 * 1024
_COLUMNS: Final = pa.schema([("v", pa.int64()), ("payload", pa.binary())])


def uploads(site: Site, scale: GatewayScale) -> dict[str, Any]:
    """Both on an S3 server of this machine, so the network is no limit."""
    with _client(site) as client:
        small = _small(site, client, scale)
        say(f"  {small['per_second']:.1f} small batches per second")
        large = _large(site, client, scale)
    return {"results": large, "small": small, "bytes": scale.large_bytes, "memory_mib": site.memory_mib()}


@contextmanager
def _client(site: Site) -> Iterator[lethe.GatewayClient]:
    with lethe.GatewayClient(f"http://127.0.0.1:{site.port}", site.token, NAMESPACE) as client:
        yield client


def _small(site: Site, client: lethe.GatewayClient, scale: GatewayScale) -> dict[str, Any]:
    """Batches of one small file, from several clients: opened, sent to the store, checked and completed."""
    folder = site.folder / "small"
    folder.mkdir(exist_ok=True)
    rows = pa.table({"v": range(ROWS), "payload": [b"row"] * ROWS}, _COLUMNS)
    pq.write_table(rows, folder / "part-0.parquet")

    def one(number: int) -> float:
        began = time.perf_counter()
        client.put(UPLOADED, f"small-{uuid.uuid4().hex[:8]}-{number}", folder)
        return time.perf_counter() - began

    one(-1)
    before, began = site.cpu_seconds(), time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        seconds = list(pool.map(one, range(scale.small_batches)))
    took = time.perf_counter() - began
    return {
        "batches": scale.small_batches,
        "clients": CLIENTS,
        "per_second": round(scale.small_batches / took, 2),
        "cpu_seconds": round((site.cpu_seconds() - before) / scale.small_batches, 4),
        "seconds": spread([round(s, 4) for s in seconds]),
    }


def _large(site: Site, client: lethe.GatewayClient, scale: GatewayScale) -> list[dict[str, Any]]:
    """One file, sent whole by boto3, and as a batch through presigned URLs with checksums."""
    folder = site.folder / "large"
    folder.mkdir(exist_ok=True)
    file = folder / "part-0.parquet"
    _write(file, scale.large_bytes)
    size = file.stat().st_size

    def plain(number: int) -> Sample:
        key = f"plain/{number}-{uuid.uuid4().hex[:8]}"
        began = time.perf_counter()
        with file.open("rb") as body:
            site.s3.client.put_object(Bucket=site.bucket, Key=key, Body=body)
        took = time.perf_counter() - began
        site.s3.client.delete_object(Bucket=site.bucket, Key=key)
        return Sample(took, size)

    def upload(number: int) -> Sample:
        batch_id = f"large-{number}-{uuid.uuid4().hex[:8]}"
        began = time.perf_counter()
        client.put(UPLOADED, batch_id, folder)
        took = time.perf_counter() - began
        for found in site.s3.client.list_objects_v2(Bucket=site.bucket, Prefix=f"buffer/batch_id={batch_id}")[
            "Contents"
        ]:
            site.s3.client.delete_object(Bucket=site.bucket, Key=found["Key"])
        return Sample(took, size)

    cases = [Case({"kind": kind}, act, scale.rounds) for kind, act in ((PLAIN, plain), (UPLOAD, upload))]
    return in_turns(cases)


def _write(file: Path, size: int) -> None:
    """Values that cannot be compressed, so the file is about as large as asked."""
    with pq.ParquetWriter(file, _COLUMNS, compression="none", use_dictionary=False) as writer:
        for begin in range(0, size, _CHUNK):
            values = [os.urandom(min(_CHUNK, size - begin) // 64) for _ in range(64)]
            writer.write_table(pa.table({"v": range(64), "payload": values}, _COLUMNS))


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
    spread = {"median": statistics.median(lags), "p95": percentile(lags, 95) or 0.0, "max": max(lags)}
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
