"""A cluster with Lethe, its bucket and its catalog, as a user sees them, and Restatements that are carried out there. I/O.

Needs the exports of `make env`.
"""

import io
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import boto3
import kubernetes.client
import kubernetes.config
import lethe
import pyarrow as pa
import pyarrow.parquet as pq
import urllib3
from botocore.config import Config
from kubernetes import watch
from kubernetes.client import ApiException
from lethe import ledger_store
from lethe.base import names
from lethe_operator.cluster.client import ResourceKind
from lethe_operator.restatement.queue import PAUSE_BETWEEN_COMMITS
from prometheus_client.parser import text_string_to_metric_families
from pyarrow.fs import FileSelector, S3FileSystem
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

from bench.lake import Size
from bench.timing import say

# Between two Restatements: longer than the pause between two commits, so that none waits for the commit before it.
QUIET_SECONDS: Final = PAUSE_BETWEEN_COMMITS.total_seconds() + 1


@dataclass(frozen=True)
class RestatementScale:
    """The sizes that determine how long the benchmark takes."""

    name: str
    # Restatements that are created at once, each of one batch.
    thrown: int
    # One of this many Restatements is a Replay. The others are Reverts.
    replay_every: int
    # Restatements per minute of the steady part.
    per_minute: int
    # Duration of the steady part.
    minutes: int
    # Batches that a producer adds per minute of the steady part.
    batches_per_minute: int
    # Active tombstones at which the vacuum of the steady part starts.
    vacuum_at: int
    # Restatements that are each created when nothing else is running.
    alone: int
    # The table whose batches Lethe and SQL delete in one session.
    table: Size
    # Batches that are deleted together in that session.
    group: int
    # Rounds of ways that do not rewrite data.
    rounds: int
    # Rounds of ways that rewrite data.
    rewrite_rounds: int
    # Reverts of one batch each, one after the other.
    commits: int
    # Commits that are evaluated together.
    window: int
    # Memory of the driver, as Spark takes it.
    driver_memory: str = "2g"


SCALES = {
    "tiny": RestatementScale(
        "tiny",
        thrown=40,
        replay_every=10,
        per_minute=60,
        minutes=1,
        batches_per_minute=30,
        vacuum_at=30,
        alone=3,
        table=Size(2, 60, 20, 2),
        group=20,
        rounds=1,
        rewrite_rounds=1,
        commits=30,
        window=10,
        driver_memory="768m",
    ),
    "small": RestatementScale(
        "small",
        thrown=1_000,
        replay_every=20,
        per_minute=208,
        minutes=3,
        batches_per_minute=60,
        vacuum_at=300,
        alone=10,
        table=Size(12, 2_000, 100, 1),
        group=1_000,
        rounds=3,
        rewrite_rounds=1,
        commits=1_000,
        window=200,
    ),
    "full": RestatementScale(
        "full",
        thrown=15_000,
        replay_every=50,
        per_minute=208,
        minutes=15,
        batches_per_minute=60,
        vacuum_at=1_000,
        alone=30,
        table=Size(12, 20_000, 100, 4),
        group=1_000,
        rounds=5,
        rewrite_rounds=2,
        commits=10_000,
        window=1_000,
        driver_memory="4g",
    ),
}


GROUP: Final = "lethe.dev"
VERSION: Final = "v1alpha1"
NAMESPACE: Final = "default"
SYSTEM: Final = "lethe-system"
METRICS_PORT: Final = 9090
AT_ONCE: Final = 16
WANTED: Final = (
    *("KUBECONFIG", "LETHE_S3_ENDPOINT", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"),
    *("LETHE_CATALOG_NAME", "LETHE_CATALOG_URI", "LETHE_WAREHOUSE"),
)
Object = dict[str, Any]


@dataclass(frozen=True)
class Site:
    """`objects` are those of lethe.dev, in `NAMESPACE`; safe to share between threads."""

    objects: kubernetes.client.CustomObjectsApi
    core: kubernetes.client.CoreV1Api
    s3: Any
    files: S3FileSystem
    catalog: Catalog = field(repr=False)

    # --- resources ---

    def create(self, kind: str, name: str, spec: Mapping[str, Any], labels: Mapping[str, str] | None = None) -> None:
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": kind,
            "metadata": {"name": name, "labels": dict(labels or {})},
            "spec": dict(spec),
        }
        self.objects.create_namespaced_custom_object(GROUP, VERSION, NAMESPACE, plural(kind), body)

    def get(self, kind: str, name: str) -> Object | None:
        try:
            found: Object = self.objects.get_namespaced_custom_object(GROUP, VERSION, NAMESPACE, plural(kind), name)
        except ApiException as e:
            if e.status == 404:
                return None
            raise
        return found

    def delete_all(self, kind: str, label: str = "") -> None:
        """Delete those with a label, or all; the API server does it in one request."""
        self.objects.delete_collection_namespaced_custom_object(
            GROUP, VERSION, NAMESPACE, plural(kind), label_selector=label
        )

    def has_any(self, kind: str) -> bool:
        found = self.objects.list_namespaced_custom_object(GROUP, VERSION, NAMESPACE, plural(kind), limit=1)
        return bool(found["items"])

    # --- numbers ---

    def operator(self) -> dict[str, float]:
        """Of the operator's process: `memory_bytes`, `cpu_seconds`, `api_requests` since its start."""
        pods = self.core.list_namespaced_pod(SYSTEM, label_selector="app.kubernetes.io/component=operator").items
        (running,) = (p.metadata.name for p in pods if p.status.phase == "Running")
        path = f"{running}:{METRICS_PORT}"
        text = self.core.connect_get_namespaced_pod_proxy_with_path(path, SYSTEM, "metrics")
        samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
        return {
            "memory_bytes": _sum(samples, "process_resident_memory_bytes"),
            "cpu_seconds": _sum(samples, "process_cpu_seconds_total"),
            "api_requests": _sum(samples, "lethe_api_requests_total"),
        }

    def operator_memory(self) -> float:
        """Bytes of the operator's process."""
        return self.operator()["memory_bytes"]

    def requests_served(self) -> float:
        """By the API server, since its start, for whomever."""
        return self.server_metric("apiserver_request_total")

    def server_metric(self, name: str, labels: Mapping[str, str] | None = None) -> float:
        """The sum of the API server's samples of a name that have these labels."""
        client = self.core.api_client
        answer = client.call_api(*client.param_serialize("GET", "/metrics", auth_settings=["BearerToken"]))
        text = "\n".join(line for line in answer.read().decode().splitlines() if line.startswith(name)) + "\n"
        samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
        wanted = (labels or {}).items()
        return _sum((s for s in samples if wanted <= s.labels.items()), name)

    # --- the lake ---

    def put_all(self, contents: Iterable[tuple[str, bytes]]) -> None:
        """Write objects, many at a time, in no order."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for _ in pool.map(lambda item: self.put(*item), contents):
                pass

    def put(self, uri: str, content: bytes) -> None:
        with self.files.open_output_stream(uri.removeprefix("s3://")) as stream:
            stream.write(content)

    def read(self, uri: str) -> bytes:
        with self.files.open_input_file(uri.removeprefix("s3://")) as stream:
            return bytes(stream.read())

    def names_in(self, folder: str) -> list[str]:
        """The names of the objects directly below a folder."""
        selector = FileSelector(folder.removeprefix("s3://"))
        return [one.base_name for one in self.files.get_file_info(selector)]

    def clear(self, folder: str) -> None:
        parts = urlsplit(folder)
        pages = self.s3.get_paginator("list_objects_v2").paginate(
            Bucket=parts.netloc, Prefix=f"{parts.path.strip('/')}/"
        )
        for page in pages:
            if keys := [{"Key": one["Key"]} for one in page.get("Contents", ())]:
                self.s3.delete_objects(Bucket=parts.netloc, Delete={"Objects": keys, "Quiet": True})

    def drop_table(self, name: str) -> None:
        """Drop the table, if it exists, and delete everything below its location."""
        try:
            location = self.catalog.load_table(name).location()
        except (NoSuchTableError, NoSuchNamespaceError):
            return
        self.catalog.drop_table(name)
        self.clear(location)


def connect() -> Site:
    """The cluster that the environment names. Raises: RuntimeError, if it names none."""
    missing = [name for name in WANTED if not os.environ.get(name)]
    if missing:
        raise RuntimeError(f'{", ".join(missing)} not set: run `make up install`, then `eval "$(make -s env)"`')
    kubernetes.config.load_kube_config(os.environ["KUBECONFIG"])
    configuration = kubernetes.client.Configuration.get_default_copy()
    configuration.connection_pool_maxsize = 2 * AT_ONCE
    client = kubernetes.client.ApiClient(configuration)
    endpoint, region = os.environ["LETHE_S3_ENDPOINT"], os.environ["AWS_REGION"]
    config = Config(s3={"addressing_style": "path"}, request_checksum_calculation="when_required")
    catalog = load_catalog(
        os.environ["LETHE_CATALOG_NAME"],
        **{
            "type": "sql",
            "uri": os.environ["LETHE_CATALOG_URI"],
            "warehouse": os.environ["LETHE_WAREHOUSE"],
            "init_catalog_tables": "false",
            "s3.endpoint": endpoint,
            "s3.region": region,
            "s3.access-key-id": os.environ["AWS_ACCESS_KEY_ID"],
            "s3.secret-access-key": os.environ["AWS_SECRET_ACCESS_KEY"],
        },
    )
    return Site(
        kubernetes.client.CustomObjectsApi(client),
        kubernetes.client.CoreV1Api(client),
        boto3.client("s3", endpoint_url=endpoint, region_name=region, config=config),
        # Without these two an object takes three requests instead of one, and a thread more.
        S3FileSystem(endpoint_override=endpoint, region=region, allow_delayed_open=True, background_writes=False),
        catalog,
    )


def plural(kind: str) -> str:
    return {"Dataset": "datasets", "Restatement": "restatements", "VacuumPolicy": "vacuumpolicies"}[kind]


def _sum(samples: Iterable[Any], name: str) -> float:
    return float(sum(s.value for s in samples if s.name == name))


EVENT_WATCH_SECONDS: Final = 60
PIECE: Final = 1 << 16
Event = tuple[str, dict[str, Any]]


def events_of(
    kind: ResourceKind, namespace: str, closed: threading.Event, labels: str = "", fields: str = ""
) -> Iterator[Event]:
    """Events of objects, first of those that exist, until `closed` is set. After an interruption it begins again, so that an
    object may be reported twice. It uses the default configuration of the client."""
    pool = _pool()
    selectors = {k: v for k, v in (("labelSelector", labels), ("fieldSelector", fields)) if v}
    version = ""
    while not closed.is_set():
        query = {"watch": "1", "timeoutSeconds": str(EVENT_WATCH_SECONDS), "allowWatchBookmarks": "true", **selectors}
        if version:
            query["resourceVersion"] = version
        try:
            for event in _events(pool, f"{kind.path(namespace)}?{urlencode(query)}"):
                if event["type"] == "ERROR":
                    version = ""
                    break
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    yield event["type"], event["object"]
                if closed.is_set():
                    return
        except (urllib3.exceptions.HTTPError, OSError, ValueError, KeyError):
            version = ""
            time.sleep(0.5)


def _events(pool: urllib3.PoolManager, path: str) -> Iterator[dict[str, Any]]:
    """The events of one request."""
    url = kubernetes.client.Configuration.get_default_copy().host + path
    response = pool.request("GET", url, preload_content=False, headers={"Accept": "application/json"})
    try:
        if response.status != 200:
            raise OSError(f"{path}: {response.status}")
        rest = b""
        for piece in response.stream(PIECE):
            *lines, rest = (rest + piece).split(b"\n")
            yield from map(json.loads, lines)
    finally:
        response.close()


def _pool() -> urllib3.PoolManager:
    found = kubernetes.client.Configuration.get_default_copy()
    timeout = urllib3.Timeout(connect=5, read=EVENT_WATCH_SECONDS + 30)
    files = {"ca_certs": found.ssl_ca_cert, "cert_file": found.cert_file, "key_file": found.key_file}
    return urllib3.PoolManager(num_pools=1, maxsize=4, timeout=timeout, retries=False, **files)


WATCH_SECONDS = 240


@dataclass(frozen=True)
class Ending:
    """`seen`: when the status said so, and `committed`, both in seconds since the epoch; `group`: how many shared the commit."""

    succeeded: bool
    reason: str
    seen: float
    committed: float | None
    group: int


class Endings:
    """Use as a context; `by_name` grows while it is open."""

    def __init__(self, site: Site, label: str) -> None:
        self.by_name: dict[str, Ending] = {}
        self._site, self._label = site, label
        self._more = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._follow, name="endings", daemon=True)

    def __enter__(self) -> "Endings":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True

    def wait(self, number: int, within_seconds: float) -> bool:
        """Until so many have ended. Returns: whether they have."""
        with self._more:
            return self._more.wait_for(lambda: len(self.by_name) >= number, within_seconds)

    def _follow(self) -> None:
        """Watch, and start again after an interruption. Restatements that were seen to end are not counted a second time."""
        stream = watch.Watch()
        while not self._closed:
            try:
                for event in stream.stream(
                    self._site.objects.list_namespaced_custom_object,
                    GROUP,
                    VERSION,
                    NAMESPACE,
                    "restatements",
                    label_selector=self._label,
                    timeout_seconds=WATCH_SECONDS,
                ):
                    self._take(event["object"])
                    if self._closed:
                        return
            except ApiException:
                time.sleep(1)

    def _take(self, body: Mapping[str, Any]) -> None:
        name, now = body["metadata"]["name"], time.time()
        if name in self.by_name:
            return
        status = body.get("status") or {}
        ended: Mapping[str, str] = next((c for c in status.get("conditions") or () if c["type"] == "Succeeded"), {})
        if ended.get("status") not in ("True", "False"):
            return
        result = status.get("result") or {}
        committed = result.get("committedTime")
        with self._more:
            self.by_name[name] = Ending(
                ended["status"] == "True",
                ended["reason"],
                now,
                datetime.fromisoformat(committed).timestamp() if committed else None,
                result.get("groupSize", 0),
            )
            self._more.notify_all()


BATCH_COLUMN: Final = "batch_id"
COLUMNS: Final = "id BIGINT, at TIMESTAMP, value DOUBLE"
SCHEMA: Final = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("value", pa.float64())])
ROWS: Final = 10  # of each batch
DAYS: Final = 10
CREATORS: Final = 8
PROMOTED_WITHIN_SECONDS: Final = 1800.0


@dataclass(frozen=True)
class Subject:
    """`name` is the Dataset's, and the label of all that belongs to it."""

    site: Site
    name: str

    @property
    def table(self) -> str:
        return f"bench.{self.name.replace('-', '_')}"

    @property
    def buffer(self) -> str:
        return f"s3://lake/bench/{self.name}/buffer"

    @property
    def label(self) -> str:
        return f"bench={self.name}"

    def replacement(self, index: int) -> str:
        return f"s3://lake/bench/{self.name}/restated/{index}"

    # --- before ---

    def clean(self) -> None:
        """Remove what an earlier run left."""
        for kind in ("VacuumPolicy", "Restatement", "Dataset"):
            self.site.delete_all(kind, self.label)
        while self.site.get("Dataset", self.name) is not None:
            time.sleep(1)
        self.site.drop_table(self.table)
        self.site.clear(f"s3://lake/bench/{self.name}")

    def put_batches(self, indexes: Sequence[int]) -> None:
        folders = [f"{self.buffer}/{BATCH_COLUMN}={batch_id(i)}" for i in indexes]
        self._put(folders, indexes)

    def put_replacements(self, indexes: Sequence[int]) -> None:
        self._put([self.replacement(i) for i in indexes], indexes)

    def _put(self, folders: Sequence[str], indexes: Sequence[int]) -> None:
        self.site.put_all((f"{folder}/part-0.parquet", parquet(i)) for folder, i in zip(folders, indexes, strict=True))
        self.site.put_all((f"{folder}/{names.SUCCESS_MARKER}", b"") for folder in folders)

    def begin(self, batches: int) -> None:
        """Make the Dataset, and wait until its first batches are promoted. Raises: RuntimeError, if that takes half an hour."""
        self.site.create(
            "Dataset",
            self.name,
            {
                "table": {
                    "catalog": "main",
                    "name": self.table,
                    "create": {"schema": COLUMNS, "partitionBy": ["days(at)"]},
                },
                "batchColumn": BATCH_COLUMN,
                "buffer": {"uri": self.buffer},
                "consolidation": {"minBatches": min(100, batches), "maxAgeSeconds": 120},
            },
            {"bench": self.name},
        )
        self.await_promoted(batches, PROMOTED_WITHIN_SECONDS)

    def await_promoted(self, batches: int, within_seconds: float) -> float:
        """Wait until so many batches are promoted. Returns: the seconds that it took. Raises: RuntimeError, after the limit."""
        since = time.monotonic()
        while (promoted := self._promoted()) < batches:
            if time.monotonic() - since > within_seconds:
                raise RuntimeError(f"{promoted:,} of {batches:,} batches were promoted within {within_seconds:.0f} s")
            time.sleep(0.5)
        seconds = time.monotonic() - since
        say(f"  {batches:,} batches are promoted after {seconds:.0f} s")
        return seconds

    def _promoted(self) -> int:
        found = self.site.get("Dataset", self.name) or {}
        return int(((found.get("status") or {}).get("batches") or {}).get("promoted", 0))

    # --- asking ---

    def ask(self, index: int, replay: bool) -> float:
        """Create a Restatement of one batch. Returns: the time, in seconds since the epoch."""
        spec: dict[str, Any] = {
            "datasetRef": {"name": self.name},
            "operation": "Replay" if replay else "Revert",
            "batchIds": [batch_id(index)],
            "reason": "measured",
        }
        if replay:
            spec["replacement"] = {"batchId": f"{batch_id(index)}.2", "uri": self.replacement(index)}
        at = time.time()
        self.site.create("Restatement", self.request(index), spec, {"bench": self.name})
        return at

    def request(self, index: int) -> str:
        return f"{self.name}-{index:06d}"

    def ask_all(self, indexes: Sequence[int], replays: frozenset[int]) -> dict[str, float]:
        """Create Restatements as fast as the API server accepts them. Returns: the time of each, by name."""
        with ThreadPoolExecutor(CREATORS) as pool:
            times = pool.map(lambda i: self.ask(i, i in replays), indexes)
            return {self.request(i): at for i, at in zip(indexes, times, strict=True)}

    # --- after ---

    def wrong(self, promoted: Sequence[int], asked: Sequence[int], replays: frozenset[int]) -> str:
        """Check that each remaining row exists once and the ledger has each request. Returns: the difference; empty if none."""
        view = lethe.scan(self.table, columns=[BATCH_COLUMN, "id"], catalog=self.site.catalog)
        found = view.to_arrow()
        rows = Counter(zip(found[BATCH_COLUMN].to_pylist(), found["id"].to_pylist(), strict=True))
        left = {batch_id(i): i for i in set(promoted) - set(asked)}
        left |= {f"{batch_id(i)}.2": i for i in asked if i in replays}
        wanted = Counter((name, n) for name, i in left.items() for n in ids(i))
        known = len(ledger_store.load(view.table.io, view.facts).ledger.requests)
        if known != len(asked):
            return f"the ledger holds {known} requests, expected {len(asked)}"
        return "" if rows == wanted else f"{(rows - wanted).total()} rows too many, {(wanted - rows).total()} too few"

    def commits(self) -> dict[str, int]:
        """How many snapshots each kind of run has made, of those that are retained."""
        table = self.site.catalog.load_table(self.table)
        kinds = [s.summary.additional_properties.get(names.RUN_KIND, "other") for s in table.snapshots() if s.summary]
        return dict(Counter(kinds))


def batch_id(index: int) -> str:
    return f"b-{index:06d}"


def ids(index: int) -> range:
    return range(index * ROWS, (index + 1) * ROWS)


def parquet(index: int) -> bytes:
    midnight = datetime(2024, 1, 1 + index % DAYS, tzinfo=UTC)
    times = [midnight + timedelta(minutes=n) for n in range(ROWS)]
    rows = pa.table({"id": list(ids(index)), "at": times, "value": [float(n) for n in ids(index)]}, schema=SCHEMA)
    sink = io.BytesIO()
    pq.write_table(rows, sink)
    return sink.getvalue()


WITHIN_SECONDS: Final = 3600
AFTERWARDS_SECONDS: Final = 600
SAMPLED_EVERY_SECONDS: Final = 2.0


def all_at_once(site: Site, scale: RestatementScale) -> dict[str, Any]:
    """Restatements that are created as fast as the API server accepts them, each of another batch."""
    subject = Subject(site, "bench-thrown")
    indexes = list(range(scale.thrown))
    replays = frozenset(i for i in indexes if i % scale.replay_every == 0)
    subject.clean()
    subject.put_batches(indexes)
    subject.put_replacements(sorted(replays))
    subject.begin(scale.thrown)
    before = subject.commits()
    with _numbers(subject.site) as numbers, Endings(subject.site, subject.label) as endings:
        since = time.time()
        asked = subject.ask_all(indexes, replays)
        created = time.time() - since
        say(f"  {scale.thrown:,} Restatements are created after {created:.0f} s")
        endings.wait(scale.thrown, WITHIN_SECONDS)
        took = time.time() - since
    ended = endings.by_name
    commits = _more(subject.commits(), before)
    say(f"  {len(ended):,} have ended after {took:.0f} s")
    result = {
        "restatements": scale.thrown,
        "replays": len(replays),
        "succeeded": sum(e.succeeded for e in ended.values()),
        "create_seconds": round(created, 1),
        "last_committed_seconds": round(max((e.committed or 0 for e in ended.values()), default=0) - since, 1),
        "last_seen_seconds": round(took, 1),
        "commits": commits.get("Restatement", 0),
        "ended_after": [round(e.seen - since, 1) for e in sorted(ended.values(), key=lambda e: e.seen)],
        "committed_after": sorted(round(e.committed - since, 1) for e in ended.values() if e.committed),
        **numbers,
    }
    if problem := _problem(subject, indexes, asked, ended, replays, indexes):
        result["error"] = problem
    return {"results": [result]}


def at_a_steady_rate(site: Site, scale: RestatementScale) -> dict[str, Any]:
    """Restatements at a steady rate, with a producer whose batches are consolidated and a policy that vacuums."""
    subject = Subject(site, "bench-steady")
    indexes = list(range(scale.per_minute * scale.minutes))
    replays = frozenset(i for i in indexes if i % scale.replay_every == 0)
    subject.clean()
    subject.put_batches(indexes)
    subject.put_replacements(sorted(replays))
    subject.begin(len(indexes))
    policy = {
        "datasetSelector": {"matchLabels": {"bench": subject.name}},
        "triggers": {"activeTombstones": scale.vacuum_at},
    }
    subject.site.create("VacuumPolicy", subject.name, policy, {"bench": subject.name})
    before = subject.commits()
    added: list[int] = []
    with _numbers(subject.site) as numbers, Endings(subject.site, subject.label) as endings:
        stop = threading.Event()
        producer = threading.Thread(
            target=_produce, args=(subject, len(indexes), scale.batches_per_minute, added, stop)
        )
        producer.start()
        asked: dict[str, float] = {}
        started = time.time()
        for index in indexes:
            time.sleep(max(0.0, started + index * 60 / scale.per_minute - time.time()))
            asked[subject.request(index)] = subject.ask(index, index in replays)
        endings.wait(len(indexes), AFTERWARDS_SECONDS)
        stop.set()
        producer.join()
        took = time.time() - started
    ended = endings.by_name
    commits = _more(subject.commits(), before)
    say(f"  {len(ended):,} of {len(indexes):,} have ended after {took:.0f} s, beside {commits}")
    result = {
        "restatements": len(indexes),
        "replays": len(replays),
        "succeeded": sum(e.succeeded for e in ended.values()),
        "seconds": round(took, 1),
        "to_committed": [round(e.committed - asked[n], 2) for n, e in ended.items() if e.committed],
        "to_seen": [round(e.seen - asked[n], 2) for n, e in ended.items()],
        "asked_after": [round(asked[n] - started, 1) for n, e in ended.items() if e.committed],
        "commits": commits,
        "batches_added": len(added),
        **numbers,
    }
    if problem := _problem(subject, indexes, asked, ended, replays, [*indexes, *_promoted_of(subject, added)]):
        result["error"] = problem
    return {"results": [result]}


def _produce(subject: Subject, first: int, per_minute: int, added: list[int], stop: threading.Event) -> None:
    """Batches of new indexes, one at a time."""
    index = first
    while not stop.wait(60 / per_minute):
        subject.put_batches([index])
        added.append(index)
        index += 1


def _promoted_of(subject: Subject, added: list[int]) -> list[int]:
    """Wait until the last produced batches are promoted, before the rows are counted."""
    _until(lambda: _waiting(subject) == 0, AFTERWARDS_SECONDS)
    return added


def _waiting(subject: Subject) -> int:
    found = subject.site.get("Dataset", subject.name) or {}
    return int(((found.get("status") or {}).get("buffer") or {}).get("batches", -1))


def _until(done: Callable[[], bool], within_seconds: float) -> None:
    deadline = time.monotonic() + within_seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(2)


def _problem(
    subject: Subject,
    indexes: list[int],
    asked: dict[str, float],
    ended: dict[str, Ending],
    replays: frozenset[int],
    promoted: list[int],
) -> str:
    """What did not come to be, in a sentence."""
    if missing := asked.keys() - ended.keys():
        return f"{len(missing)} have not ended, the first of them {min(missing)}"
    if failed := {e.reason for e in ended.values() if not e.succeeded}:
        return f"some failed: {', '.join(sorted(failed))}"
    return subject.wrong(promoted, indexes, replays)


def _more(after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {kind: n - before.get(kind, 0) for kind, n in sorted(after.items()) if n > before.get(kind, 0)}


@contextmanager
def _numbers(site: Site) -> Iterator[dict[str, float]]:
    """What it costs: is filled in at the end of the block. The memory is the most that was seen."""
    found: dict[str, float] = {}
    before, served = site.operator(), site.requests_served()
    peak, stop = [before["memory_bytes"]], threading.Event()

    def sample() -> None:
        while not stop.wait(SAMPLED_EVERY_SECONDS):
            peak.append(site.operator_memory())

    sampling = threading.Thread(target=sample, name="sampling", daemon=True)
    sampling.start()
    yield found
    stop.set()
    sampling.join()
    after = site.operator()
    found |= {
        "operator_memory_before_bytes": before["memory_bytes"],
        "operator_memory_peak_bytes": max(peak),
        "operator_cpu_seconds": round(after["cpu_seconds"] - before["cpu_seconds"], 1),
        "operator_api_requests": after["api_requests"] - before["api_requests"],
        "api_requests_of_all": site.requests_served() - served,
    }
