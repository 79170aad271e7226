"""A table with many batches, an API server with its Dataset, and a gateway as a process of its own. I/O."""

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import yaml
from lethe import batches_table, ledger_store
from lethe.base import names
from lethe.base.errors import Verdict
from lethe.contract.result import RequestResult
from lethe.iceberg import catalogs
from lethe.iceberg.facts import observe
from lethe.kube import DATASETS
from lethe.ledger.ledger import BatchEntry, BatchState, Delta, RequestEntry
from lethe.ledger.lineage import summary
from lethe_local.api.objects import ApiKind, LocalObjects
from lethe_local.api.server import ApiServer
from lethe_local.api.store import LocalApiStore
from lethe_local.folder import NAMESPACE, Folder
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, LongType, NestedField, StringType

from bench import timing
from bench.runner import Place, sizes
from bench.timing import say
from tests.support.servers import s3 as servers
from tests.support.servers.s3 import S3


@dataclass(frozen=True)
class GatewayScale:
    """The sizes that determine how long the benchmark takes."""

    name: str
    # Batches in the one table.
    batches: int
    # Requests of each kind.
    requests: int
    # Seconds for which as many pages as possible are read.
    seconds: float
    # Batches that change before the index is refreshed.
    changed: int
    # Batches of one small file that are uploaded.
    small_batches: int
    # The size of one large file that is uploaded, and how often.
    large_bytes: int
    rounds: int
    # Commits of 100 batches whose events are published as a backlog, and commits whose lag is measured.
    event_commits: int
    lag_commits: int
    # Messages that the inlet and its rival read, and how often each of them does.
    messages: int
    inlet_rounds: int

    @property
    def driver_memory(self) -> str:
        return ""  # there is no driver


SCALES = sizes(
    GatewayScale,
    batches=(2_000, 100_000, 1_000_000),
    requests=(3, 50, 200),
    seconds=(0.2, 5, 20),
    changed=(5, 100, 100),
    small_batches=(5, 50, 500),
    large_bytes=(70 << 20, 256 << 20, 1 << 30),
    rounds=(1, 3, 5),
    event_commits=(2, 50, 300),
    lag_commits=(3, 50, 300),
    messages=(2_000, 200_000, 2_000_000),
    inlet_rounds=(1, 1, 3),
)


NAME: Final = "air.flights"
# The Dataset whose buffer is on S3, and its table.
UPLOADED: Final = "uploads"
UPLOADED_TABLE: Final = "air.uploads"
LAKE: Final = "lake"
RUN: Final = "0123456789abcdef0123456789abcdef"
PATH: Final = f"/v1/namespaces/{NAMESPACE}/datasets/flights"
START: Final = datetime(2026, 1, 1, tzinfo=UTC)
RESTATEMENTS: Final = 200
WAIT_SECONDS: Final = 900


@dataclass
class Site:
    """Where the gateway is measured."""

    folder: Path
    catalog: Catalog
    ids: list[str]
    token: str
    s3: S3
    bucket: str
    objects: LocalObjects  # of the API server
    port: int = 0
    process: "subprocess.Popen[bytes] | None" = None
    _connection: http.client.HTTPConnection | None = field(default=None, repr=False)

    def get(self, path: str, **query: Any) -> tuple[float, int, Any]:
        """Seconds, status and body of one answer, on a connection that stays open."""
        if self._connection is None:
            self._connection = self.connection()
        return ask(self._connection, self.token, path, query)

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def cpu_seconds(self) -> float:
        """What the gateway has used so far."""
        assert self.process is not None
        return timing.cpu_seconds(self.process.pid)

    def memory_mib(self) -> float:
        """The largest resident memory of the gateway so far."""
        assert self.process is not None
        return round(timing.memory_bytes(self.process.pid, peak=True) / 2**20, 1)

    def index_bytes(self) -> int:
        return sum(f.stat().st_size for f in (self.folder / "index").glob("*.db*"))

    def change(self, count: int) -> None:
        """Let so many batches be reverted, and the table of batches show it."""
        chosen = random.Random(7).sample(self.ids, count)
        commit(self.catalog, [replace(entry(0, i), state=BatchState.REVERTED, time=datetime.now(UTC)) for i in chosen])
        batches_table.bring_up_to_date(self.catalog, NAME, "batch_id", batches_table.TrackingUpdate(create=True))


def ask(connection: http.client.HTTPConnection, token: str, path: str, query: Any) -> tuple[float, int, Any]:
    target = f"{path}?{urlencode(query, doseq=True)}" if query else path
    started = time.perf_counter()
    connection.request("GET", target, headers={"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    content = answer.read()
    return time.perf_counter() - started, answer.status, json.loads(content)


@contextmanager
def place(work: Path, scale: GatewayScale) -> Iterator[Place]:
    """The table is made by one ledger commit and one update, as runs make them."""
    folder = Folder(work)
    folder.prepare()
    os.environ["PYICEBERG_HOME"] = str(work)
    say(f"making a table with {scale.batches:,} batches")
    catalog = catalogs.load("local")
    ids = _table(catalog, scale.batches)
    with servers.running() as s3:
        yield from _placed(work, folder, catalog, ids, s3)


def _placed(work: Path, folder: Folder, catalog: Catalog, ids: list[str], s3: S3) -> Iterator[Place]:
    bucket = s3.bucket("lake")
    _lake(folder, s3)
    folder.state.unlink(missing_ok=True)  # of an earlier run, whose table was kept
    store = LocalApiStore(folder.state)
    objects = LocalObjects(store)
    server = ApiServer(objects, folder.token, folder.certificate)
    server.start()
    folder.write_kubeconfig(server.port)
    for name, of, table, uri in (
        ("flights", "local", NAME, f"file://{work}/buffer"),
        (UPLOADED, LAKE, UPLOADED_TABLE, f"s3://{bucket}/buffer"),
    ):
        spec = {"table": {"catalog": of, "name": table}, "batchColumn": "batch_id", "buffer": {"uri": uri}}
        document = {"apiVersion": "lethe.dev/v1beta1", "kind": "Dataset", "metadata": {"name": name}, "spec": spec}
        objects.create(kind_of_datasets(objects), NAMESPACE, document)
    site = Site(work, catalog, ids, folder.token, s3, bucket, objects)
    try:
        with gateway(site, folder):
            found = timing.describe_host()
            yield Place(site, {**found, "setting": "SQLite, local files, versitygw, the API server of lethe local"})
    finally:
        server.stop()
        store.close()


def kind_of_datasets(objects: LocalObjects) -> ApiKind:
    return next(k for k in objects.kinds.values() if k.resource == DATASETS)


@contextmanager
def gateway(site: Site, folder: Folder) -> Iterator[None]:
    from socket import socket

    with socket() as free:
        free.bind(("127.0.0.1", 0))
        site.port = int(free.getsockname()[1])
    environ = {
        **os.environ,
        "KUBECONFIG": str(folder.kubeconfig),
        "LETHE_GATEWAY_HOST": "127.0.0.1",
        "LETHE_GATEWAY_PORT": str(site.port),
        "LETHE_GATEWAY_TOKEN_FILE": str(folder.account / "token"),
        "LETHE_GATEWAY_INDEX_FOLDER": str(site.folder / "index"),
        "LETHE_GATEWAY_LIMITS": json.dumps({"requestsPerSecond": 1e6, "burst": 1e6}),
        "LETHE_WATCH_NAMESPACES": NAMESPACE,
    }
    with (site.folder / "gateway.log").open("wb") as log:
        site.process = subprocess.Popen([sys.executable, "-m", "lethe_gateway"], env=environ, stdout=log, stderr=log)
    try:
        _wait(site, "/healthz")
        yield
    finally:
        site.process.send_signal(signal.SIGTERM)
        site.process.wait(60)


def built(site: Site) -> float:
    """Seconds until the first page is answered."""
    started = time.monotonic()
    while True:
        _, status, body = site.get(f"{PATH}/batches", limit=1)
        if status == 200:
            return time.monotonic() - started
        assert status == 503, body
        assert time.monotonic() - started < WAIT_SECONDS, body
        time.sleep(0.05)


def _wait(site: Site, path: str) -> None:
    until = time.monotonic() + 120
    while True:
        try:
            connection = site.connection()
            connection.request("GET", path)
            connection.getresponse().read()
            return
        except OSError:
            assert time.monotonic() < until, (site.folder / "gateway.log").read_text()[-2000:]
            time.sleep(0.1)


def _table(catalog: Catalog, batches: int) -> list[str]:
    catalog.create_namespace_if_not_exists("air")
    ids = [_id(n, batches) for n in range(batches)]
    if catalog.table_exists(NAME):
        return ids
    schema = Schema(NestedField(1, "batch_id", StringType()))
    properties = {"format-version": "2", names.CLAIM: f"{NAMESPACE}/flights"}
    catalog.create_table(NAME, schema, properties=properties)
    commit(catalog, [entry(n, id) for n, id in enumerate(ids)], [_request(n) for n in range(RESTATEMENTS)])
    batches_table.bring_up_to_date(catalog, NAME, "batch_id", batches_table.TrackingUpdate(create=True))
    return ids


def _lake(folder: Folder, s3: S3) -> None:
    """A catalog with the credentials of the S3 server, and the table of uploads in it."""
    known = yaml.safe_load(folder.catalogs.read_text())["catalog"]
    known[LAKE] = {**known["local"], **s3.properties()}
    folder.catalogs.write_text(yaml.safe_dump({"catalog": known}))
    catalog = catalogs.load(LAKE)
    catalog.create_namespace_if_not_exists("air")
    if not catalog.table_exists(UPLOADED_TABLE):
        columns = (("v", LongType()), ("payload", BinaryType()), ("batch_id", StringType()))
        schema = Schema(*(NestedField(n, name, kind) for n, (name, kind) in enumerate(columns, 1)))
        properties = {"format-version": "2", names.CLAIM: f"{NAMESPACE}/{UPLOADED}"}
        catalog.create_table(UPLOADED_TABLE, schema, properties=properties)


def commit(
    catalog: Catalog, entries: list[BatchEntry], requests: Sequence[RequestEntry] = (), name: str = NAME
) -> None:
    table = catalog.load_table(name)
    facts = observe(table, "batch_id")
    base = ledger_store.load(table.io, facts)
    delta = Delta(RUN, set_batches=tuple(entries), set_requests=tuple(requests))
    written = ledger_store.write(table.io, facts, base, delta)
    table.append(table.schema().as_arrow().empty_table(), snapshot_properties=summary(written, RUN, "Consolidation"))


def _id(n: int, batches: int) -> str:
    """Ids as of producers that name them by time."""
    time = START + timedelta(seconds=n * 365 * 86_400 / batches)
    return f"{time:%Y-%m-%dT%H%M%S}-{n % 97:02d}-{n}"


def entry(n: int, id: str) -> BatchEntry:
    """Of a hundred batches, five were reverted and one was refused, at a later time."""
    time = START + timedelta(seconds=n * 31 + (n * 7919) % 86_400)
    base = BatchEntry(id, BatchState.PROMOTED, RUN, time, rows=500, bytes=40_000)
    if n % 100 == 99:
        refusal = Verdict("SchemaMismatch", "part-0.parquet: column delay: expected int, found string")
        return replace(base, state=BatchState.REFUSED, rows=None, refusal=refusal)
    if n % 20 == 7:
        return replace(base, state=BatchState.REVERTED, restatement=_key(n // 20 % RESTATEMENTS))
    return base


def _key(n: int) -> str:
    return f"{NAMESPACE}/revert-{n}/{n:064x}"


def _request(n: int) -> RequestEntry:
    result = RequestResult(key=_key(n), name=f"{NAMESPACE}/revert-{n}", succeeded=True, committed_time=START)
    return RequestEntry(_key(n), RUN, START, result.model_dump(mode="json", by_alias=True, exclude_none=True))
