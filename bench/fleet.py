"""Thousands of Datasets for the operator, and a node on which their runs end at once. I/O.

Lethe makes one table; the others are copies of its metadata, ledger and table of batches, each with its own location and UUID.
All name the same data files and manifests. To the operator and the committer they are different tables. The node starts no
container: each pod on it succeeds at once, with a result that there was nothing to do. The node of this cluster starts about one
pod a second, so it would be measured instead of the operator. Jobs, pods and the scheduler are real.
"""

import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from lethe.base import names
from lethe.contract.result import RunOutcome, RunResult
from lethe.contract.settings import RunFamily
from lethe.kube import DATASETS, LEASES, PODS, KubeError
from lethe_operator.cluster.client import Kube, ResourceKind
from lethe_operator.resources.common import ANNOTATION_DATASET, CONTAINER, LABEL_ATTEMPT, LABEL_KIND, LABEL_RUN_ID
from sqlalchemy import create_engine, text

from bench.cluster import NAMESPACE, Site, events_of
from bench.restatements import BATCH_COLUMN, Subject, batch_id, parquet
from bench.timing import say

# Batches that each table holds, and that a buffer holds at most.
PROMOTED: Final = 3
WAITING_AT_MOST: Final = 3
BUCKETS: Final = 4
THREADS: Final = 16
LABEL: Final = "bench=fleet"
CATALOG: Final = "main"
# Batches wait for so many others or seconds, so that no run is due.
MIN_BATCHES: Final = 100
MAX_AGE_SECONDS: Final = 30 * 86_400
Json = dict[str, Any]


@dataclass(frozen=True)
class Copy:
    """One Dataset of the fleet."""

    index: int

    @property
    def name(self) -> str:
        return f"fleet-{self.index:05d}"

    @property
    def table(self) -> str:
        return f"fleet.t{self.index:05d}"

    @property
    def bucket(self) -> str:
        return f"fleet-{self.index % BUCKETS}"

    @property
    def location(self) -> str:
        return f"s3://{self.bucket}/tables/t{self.index:05d}"

    @property
    def batches_location(self) -> str:
        return f"{self.location}{names.BATCHES_SUFFIX}"

    @property
    def buffer(self) -> str:
        return f"s3://{self.bucket}/buffers/t{self.index:05d}"

    @property
    def uuid(self) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, self.location))

    @property
    def waiting(self) -> int:
        """Batches in its buffer: in every third none."""
        return self.index % (WAITING_AT_MOST + 1) if self.index % 3 else 0

    @property
    def dataset(self) -> Json:
        """No run of it is due. If one is, it runs on the fake node."""
        body = self.with_defaults
        body["spec"]["consolidation"] = {"minBatches": MIN_BATCHES, "maxAgeSeconds": MAX_AGE_SECONDS}
        body["spec"]["runTemplate"] = {"podTemplate": dict(POD_TEMPLATE)}
        return body

    @property
    def with_defaults(self) -> Json:
        """Its runs are real."""
        return {
            "apiVersion": "lethe.dev/v1beta1",
            "kind": "Dataset",
            "metadata": {"name": self.name, "labels": {"bench": "fleet"}},
            "spec": {
                "table": {"catalog": CATALOG, "name": self.table},
                "batchColumn": BATCH_COLUMN,
                "buffer": {"uri": self.buffer},
            },
        }

    def wrong(self, body: Json) -> str:
        """What is not yet correct in the status of its Dataset; "": nothing. Pure."""
        status = body.get("status") or {}
        ready: Json = next((c for c in status.get("conditions") or () if c["type"] == "Ready"), {})
        decision = "BelowTriggers" if self.waiting else "NothingWaits"
        wanted = {
            "observedGeneration": (status.get("observedGeneration"), body["metadata"]["generation"]),
            "Ready": ((ready.get("status"), ready.get("reason")), ("True", "Available")),
            "table.uuid": ((status.get("table") or {}).get("uuid"), self.uuid),
            "batches.promoted": ((status.get("batches") or {}).get("promoted"), PROMOTED),
            "buffer.batches": ((status.get("buffer") or {}).get("batches"), self.waiting),
            "consolidation": ((status.get("consolidation") or {}).get("reason"), decision),
        }
        return ", ".join(f"{k} is {was}, expected {should}" for k, (was, should) in wanted.items() if was != should)


@dataclass(frozen=True)
class Template:
    """The table that Lethe made, as documents."""

    # Its location, its UUID, and its metadata document.
    location: str
    uuid: str
    metadata: Json
    # Files of its ledger, by name.
    ledger: dict[str, bytes]
    # The metadata document of its table of batches, and its location.
    batches: Json
    batches_location: str

    def objects(self, copy: Copy) -> Iterator[tuple[str, bytes]]:
        """All objects of a copy, by URI. Pure."""
        yield metadata_uri(copy.location), self._copied(self.metadata, copy, copy.location, copy.uuid)
        own = str(uuid.uuid5(uuid.NAMESPACE_URL, copy.batches_location))
        yield metadata_uri(copy.batches_location), self._copied(self.batches, copy, copy.batches_location, own)
        for name, content in self.ledger.items():
            new = content
            if name.endswith("-root.json"):
                new = content.replace(self.uuid.encode(), copy.uuid.encode())
                new = new.replace(self.location.encode() + b'"', copy.location.encode() + b'"')
            yield f"{copy.location}/{names.LEDGER_FOLDER}/{name}", new

    def _copied(self, document: Json, copy: Copy, location: str, own_uuid: str) -> bytes:
        """A metadata document for another location. Manifests and data files stay where they are."""
        ledger, new_ledger = (f"{at}/{names.LEDGER_FOLDER}/" for at in (self.location, copy.location))
        found = json.loads(json.dumps(document).replace(ledger, new_ledger).replace(self.uuid, copy.uuid))
        found["location"], found["table-uuid"], found["metadata-log"] = location, own_uuid, []
        if names.CLAIM in found["properties"]:
            found["properties"][names.CLAIM] = f"{NAMESPACE}/{copy.name}"
        return json.dumps(found).encode()


def metadata_uri(location: str) -> str:
    return f"{location}/metadata/00000-{uuid.uuid5(uuid.NAMESPACE_URL, location)}.metadata.json"


def template(site: Site) -> Template:
    """Let Lethe make a table with some batches, and read it."""
    subject = Subject(site, "bench-template")
    subject.clean()
    subject.put_batches(range(PROMOTED))
    subject.begin(PROMOTED)
    while not all(r.get("finishTime") for r in site.status(subject.name)["runs"]):
        time.sleep(1)  # the run writes the table of batches after its commit
    table = site.catalog.load_table(subject.table)
    batches = site.catalog.load_table(f"{subject.table}{names.BATCHES_SUFFIX}")
    folder = f"{table.location()}/{names.LEDGER_FOLDER}"
    ledger = {name: site.read(f"{folder}/{name}") for name in site.names_in(folder)}
    site.delete_all(DATASETS, subject.label)
    return Template(
        table.location(),
        str(table.metadata.table_uuid),
        json.loads(site.read(table.metadata_location)),
        ledger,
        json.loads(site.read(batches.metadata_location)),
        batches.location(),
    )


def make_tables(site: Site, made: Template, copies: Sequence[Copy]) -> None:
    """Write all objects and the rows of the catalog. Copies of an earlier run are replaced."""
    for number in range(BUCKETS):
        bucket = f"fleet-{number}"
        if bucket not in {b["Name"] for b in site.s3.list_buckets()["Buckets"]}:
            site.s3.create_bucket(Bucket=bucket)
    in_threads(copies, lambda copy: _write(site, made, copy), "tables")
    rows = [
        {"catalog": CATALOG, "namespace": "fleet", "name": table.partition(".")[2], "location": metadata_uri(location)}
        for copy in copies
        for table, location in (
            (copy.table, copy.location),
            (f"{copy.table}{names.BATCHES_SUFFIX}", copy.batches_location),
        )
    ]
    engine = create_engine(os.environ["LETHE_CATALOG_URI"])
    with engine.begin() as connection:
        connection.execute(text("delete from iceberg_tables where table_namespace = 'fleet'"))
        columns = "catalog_name, table_namespace, table_name, metadata_location, iceberg_type"
        connection.execute(
            text(f"insert into iceberg_tables ({columns}) values (:catalog, :namespace, :name, :location, 'TABLE')"),
            rows,
        )
    engine.dispose()


def _write(site: Site, made: Template, copy: Copy) -> None:
    site.clear(copy.location)
    site.clear(copy.buffer)
    for uri, content in made.objects(copy):
        site.put(uri, content)
    for number in range(copy.waiting):
        put_batch(site, copy, PROMOTED + number)


def empty(site: Site, copy: Copy) -> None:
    """Remove all batches from a buffer, but not its claim."""
    folder = f"{copy.buffer}/"
    for name in site.names_in(copy.buffer):
        if name != names.CLAIM_FILE:
            site.clear(folder + name)


def put_batch(site: Site, copy: Copy, number: int) -> None:
    """Put a complete batch into a buffer of the fleet."""
    folder = f"{copy.buffer}/{BATCH_COLUMN}={batch_id(number)}"
    site.put(f"{folder}/part-0.parquet", _rows(number))
    site.put(f"{folder}/{names.SUCCESS_MARKER}", b"")


_ROWS: dict[int, bytes] = {}


def _rows(number: int) -> bytes:
    return _ROWS.setdefault(number, parquet(number))


def apply(site: Site, bodies: Iterable[Json]) -> None:
    """Create Datasets, with as many connections as a GitOps controller has."""
    in_threads(list(bodies), lambda body: site.kube.create(DATASETS, NAMESPACE, body), "Datasets")


def in_threads(items: Sequence[Any], act: Callable[[Any], object], what: str) -> None:
    """Act on each, many at a time, with a line of progress now and then."""
    done = 0
    with ThreadPoolExecutor(THREADS) as pool:
        for done, _ in enumerate(pool.map(act, items), 1):
            if done % 2_000 == 0:
                say(f"  {done:,} of {len(items):,} {what}")
    say(f"  {done:,} {what} are made")


NAME: Final = "fake"
# Key of its taint, so that only pods that tolerate it come here. A Dataset's pod template must be allowed to do so.
TAINT: Final = "bench.lethe.dev/fake"
NODES: Final = ResourceKind("/api/v1", "nodes", "Node")
LEASE_NAMESPACE: Final = "kube-node-lease"
RENEW_SECONDS: Final = 5.0
WORKERS: Final = 8
POD_TEMPLATE: Final[Mapping[str, Any]] = {
    "spec": {
        "nodeSelector": {"kubernetes.io/hostname": NAME},
        "tolerations": [{"key": TAINT, "operator": "Exists", "effect": "NoSchedule"}],
    }
}


@dataclass
class FakeNode:
    """Use as a context. `ends` is called with the name of a run's Dataset before its pod succeeds."""

    kube: Kube
    ends: Callable[[str], None]
    ended: int = 0
    _closed: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> "FakeNode":
        with suppress(KubeError):
            self.kube.create(NODES, "", node())
        self._beat()
        for work in (self._keep_alive, self._follow):
            self._threads.append(threading.Thread(target=work, name="fake node", daemon=True))
            self._threads[-1].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        for thread in self._threads:
            thread.join(30)
        self.kube.delete(NODES, "", NAME)

    def _keep_alive(self) -> None:
        while not self._closed.wait(RENEW_SECONDS):
            with suppress(KubeError):
                self._beat()

    def _beat(self) -> None:
        """Renew the node's Lease and conditions, as a kubelet does."""
        now = datetime.now(UTC)
        spec = {"holderIdentity": NAME, "leaseDurationSeconds": 40, "renewTime": f"{now:%Y-%m-%dT%H:%M:%S.%fZ}"}
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": NAME}, "spec": spec}
        try:
            self.kube.create(LEASES, LEASE_NAMESPACE, lease)
        except KubeError:
            self.kube.patch(LEASES, LEASE_NAMESPACE, NAME, {"spec": spec})
        self.kube.patch(NODES, "", NAME, {"status": node_status(now)}, "status")

    def _follow(self) -> None:
        with ThreadPoolExecutor(WORKERS, thread_name_prefix="fake pod") as pool:
            started: set[str] = set()
            for kind, pod in events_of(self.kube, PODS, self._closed):
                uid, is_here = pod["metadata"]["uid"], pod["spec"].get("nodeName") == NAME
                if is_here and kind != "DELETED" and pod["status"].get("phase") == "Pending" and uid not in started:
                    started.add(uid)
                    pool.submit(self._end, pod)

    def _end(self, pod: Mapping[str, Any]) -> None:
        metadata = pod["metadata"]
        self.ends((metadata.get("annotations") or {}).get(ANNOTATION_DATASET, ""))
        status = {"status": succeeded(pod, datetime.now(UTC))}
        for _ in range(3):
            try:
                self.kube.patch(PODS, metadata["namespace"], metadata["name"], status, "status")
                self.ended += 1
                return
            except KubeError:
                time.sleep(1)


def node() -> dict[str, Any]:
    """The node as it is created. Pure."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": NAME, "labels": {"kubernetes.io/hostname": NAME, "kubernetes.io/os": "linux"}},
        "spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}]},
    }


def node_status(now: datetime) -> dict[str, Any]:
    """A ready node without limits. Pure."""
    plenty = {"cpu": "10000", "memory": "100Ti", "pods": "100000", "ephemeral-storage": "1000Ti"}
    beat = f"{now:%Y-%m-%dT%H:%M:%SZ}"
    ready = {"type": "Ready", "status": "True", "reason": "Fake", "lastHeartbeatTime": beat, "lastTransitionTime": beat}
    return {"capacity": plenty, "allocatable": plenty, "conditions": [ready]}


def succeeded(pod: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """The status of a pod whose container has ended with a result. Pure."""
    at = f"{now:%Y-%m-%dT%H:%M:%SZ}"
    ended = {"exitCode": 0, "reason": "Completed", "startedAt": at, "finishedAt": at, "message": result(pod, now)}
    container = {
        "name": CONTAINER,
        "state": {"terminated": ended},
        "ready": False,
        "restartCount": 0,
        "image": "none",
        "imageID": "",
    }
    conditions = [{"type": "Ready", "status": "False", "reason": "PodCompleted", "lastTransitionTime": at}]
    return {"phase": "Succeeded", "startTime": at, "conditions": conditions, "containerStatuses": [container]}


def result(pod: Mapping[str, Any], now: datetime) -> str:
    """The termination message: the result of a run that had nothing to do. Pure."""
    labels = pod["metadata"]["labels"]
    return RunResult(
        run_id=labels[LABEL_RUN_ID],
        family=RunFamily(labels[LABEL_KIND]),
        attempt=int(labels[LABEL_ATTEMPT]),
        outcome=RunOutcome.NOTHING_TO_DO,
        finished_time=now,
    ).to_json()
