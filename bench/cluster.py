"""A cluster with Lethe, its bucket and its catalog, and the operator as a process beside it. I/O.

The operator authenticates as the Deployment's ServiceAccount, so it has the rights that the chart gives it, and the API server
counts its requests apart from all others. The Deployment is scaled to zero; the committer and the runs are pods. `make
bench-operator` sets the cluster up.
"""

import json
import os
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

import boto3
import kubernetes.client
import kubernetes.config
import yaml
from botocore.config import Config
from lethe.kube import CONFIG_MAPS, DATASETS, RESTATEMENTS, VACUUM_POLICIES, AlreadyExists, KubeError, NotFound
from lethe_operator.cluster.client import Kube, ResourceKind, of_configuration
from prometheus_client.parser import text_string_to_metric_families
from pyarrow.fs import FileSelector, S3FileSystem
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from sqlalchemy import create_engine, text

from bench import timing
from bench.operator_process import OperatorProcess, environment_of
from bench.runner import Place, sizes
from bench.timing import say


@dataclass(frozen=True)
class OperatorScale:
    """The sizes that determine how long the benchmark takes."""

    name: str
    # Datasets that are created at once.
    datasets: int
    # Seconds after which their statuses need not become correct any more.
    correct_within_seconds: int
    # Finished Restatements that exist while the operator is idle.
    finished: int
    # Seconds within which the intervals of idle Datasets must reach their maximum, before anything is measured.
    settle_seconds: int
    # Seconds for which the idle operator is measured.
    idle_seconds: int
    # Reverts, one at a time, each on another of the Datasets.
    reverts: int
    # Runs that become due per minute.
    runs_per_minute: int
    # Duration of these runs.
    run_minutes: int
    # How often the operator is killed.
    kills: int
    # Replays, one at a time, by a warm driver.
    replays: int
    # Reverts, one at a time, each until PyIceberg sees it.
    seen: int
    # Reverts without a vacuum, and as many beside one.
    beside_vacuum: int
    # Small files in the buffer of a Dataset.
    small_files: int
    # Datasets with few small batches each.
    small_datasets: int
    # For how long they get batches.
    small_minutes: int
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
    # Reverts of one batch each, one after the other.
    commits: int
    # Commits that are evaluated together.
    window: int
    # Memory of the session that consecutive Reverts run in, as Spark takes it.
    driver_memory: str


SCALES: Final = sizes(
    OperatorScale,
    datasets=(20, 100, 10_000),
    correct_within_seconds=(300, 600, 3_600),
    finished=(100, 500, 50_000),
    settle_seconds=(600, 900, 2_400),
    idle_seconds=(20, 60, 300),
    reverts=(3, 10, 40),
    runs_per_minute=(60, 200, 200),
    run_minutes=(1, 1, 10),
    kills=(1, 3, 5),
    replays=(2, 5, 20),
    seen=(2, 10, 20),
    beside_vacuum=(3, 8, 30),
    small_files=(100, 10_000, 100_000),
    small_datasets=(5, 100, 1_000),
    small_minutes=(1, 10, 30),
    thrown=(40, 1_000, 15_000),
    replay_every=(10, 20, 50),
    per_minute=(60, 208, 208),
    minutes=(1, 3, 15),
    batches_per_minute=(30, 60, 60),
    vacuum_at=(30, 300, 1_000),
    commits=(30, 1_000, 10_000),
    window=(10, 200, 1_000),
    driver_memory=("768m", "2g", "4g"),
)

NAMESPACE: Final = "default"
SYSTEM: Final = "lethe-system"
OPERATOR: Final = "lethe-operator"
AT_ONCE: Final = 16
RESOURCES: Final = (VACUUM_POLICIES, RESTATEMENTS, DATASETS)
DEPLOYMENTS: Final = ResourceKind("/apis/apps/v1", "deployments", "Deployment")
FLOW_SCHEMAS: Final = ResourceKind("/apis/flowcontrol.apiserver.k8s.io/v1", "flowschemas", "FlowSchema")
LEADS_WITHIN_SECONDS: Final = 300.0
# Names a flow that only the operator's ServiceAccount has: the API server counts its requests by it.
FLOW: Final = "lethe-bench-operator"
TOKEN_SECONDS: Final = 48 * 3600
WANTED: Final = (
    *("KUBECONFIG", "LETHE_S3_ENDPOINT", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"),
    *("LETHE_CATALOG_NAME", "LETHE_CATALOG_URI", "LETHE_WAREHOUSE"),
)
Object = dict[str, Any]


@dataclass(frozen=True)
class Site:
    """Threads may share it."""

    kube: Kube
    core: kubernetes.client.CoreV1Api
    s3: Any
    files: S3FileSystem
    catalog: Catalog = field(repr=False)
    work: Path
    # The replicas of the operator. The benchmark starts one of them unless it measures a failover.
    replicas: tuple[OperatorProcess, ...] = field(repr=False)

    # --- resources ---

    def create(
        self, kind: ResourceKind, name: str, spec: Mapping[str, Any], labels: Mapping[str, str] | None = None
    ) -> None:
        metadata = {"name": name, "labels": dict(labels or {})}
        body = {"apiVersion": "lethe.dev/v1beta1", "kind": kind.name, "metadata": metadata, "spec": dict(spec)}
        self.kube.create(kind, NAMESPACE, body)

    def get(self, kind: ResourceKind, name: str) -> Object | None:
        try:
            return self.kube.get(kind, NAMESPACE, name)
        except NotFound:
            return None

    def status(self, dataset: str) -> Object:
        """Of a Dataset; empty, if there is none."""
        return (self.get(DATASETS, dataset) or {}).get("status") or {}

    def delete_all(self, kind: ResourceKind, label: str = "") -> None:
        """Delete those with a label, or all; the API server does it in one request."""
        objects = kubernetes.client.CustomObjectsApi(self.core.api_client)
        objects.delete_collection_namespaced_custom_object(
            "lethe.dev", "v1beta1", NAMESPACE, kind.plural, label_selector=label
        )

    # --- the operator ---

    @property
    def process(self) -> OperatorProcess:
        return self.replicas[0]

    def operator_requests(self) -> float:
        """Requests of the operator that the API server has started to carry out, including watches."""
        client = self.core.api_client
        answer = client.call_api(*client.param_serialize("GET", "/metrics", auth_settings=["BearerToken"]))
        name = "apiserver_flowcontrol_dispatched_requests_total"
        lines = "\n".join(line for line in answer.read().decode().splitlines() if line.startswith(name)) + "\n"
        samples = (s for family in text_string_to_metric_families(lines) for s in family.samples)
        return float(sum(s.value for s in samples if s.name == name and s.labels.get("flow_schema") == FLOW))

    def containers(self) -> "Iterator[tuple[str, str, Usage]]":
        """The pod, the name, and the use of each container in CONTAINERS, as the kubelets last measured it."""
        for node in self.core.list_node().items:
            answer = self.core.connect_get_node_proxy_with_path(
                node.metadata.name, "stats/summary", _preload_content=False
            )
            for pod in json.loads(answer.data)["pods"]:
                for found in (c for c in pod.get("containers") or () if c["name"] in CONTAINERS):
                    used = Usage(
                        found["cpu"].get("usageCoreNanoSeconds", 0) / 1e9, found["memory"].get("workingSetBytes", 0)
                    )
                    yield pod["podRef"]["name"], found["name"], used

    def usage(self) -> "dict[str, Usage]":
        """What the containers of each name use together."""
        used = dict.fromkeys(CONTAINERS, Usage(0, 0))
        for _, name, more in self.containers():
            used[name] = Usage(used[name].cpu_seconds + more.cpu_seconds, used[name].memory_bytes + more.memory_bytes)
        return used

    def catalog_queries(self) -> float:
        """Transactions of the catalog's database since its start. Each query of a catalog's client is one."""
        engine = create_engine(os.environ["LETHE_CATALOG_URI"])
        try:
            with engine.connect() as connection:
                name = text(
                    "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()"
                )
                return float(connection.execute(name).scalar_one())
        finally:
            engine.dispose()

    def restart(self) -> None:
        """A new operator, without anything that the old one has in memory."""
        for replica in self.replicas:
            replica.stop()
        self.process.start()
        until(self.process.leads, "the operator became no leader")

    def running(self) -> OperatorProcess:
        """The operator, started if it does not run."""
        if not self.process.is_running:
            self.restart()
        return self.process

    @property
    def has_warm_drivers(self) -> bool:
        """Whether the installed chart has them switched on."""
        return any("WARM" in name and '"enabled":true' in value for name, value in self.process.env.items())

    def settled_leader(self) -> OperatorProcess:
        """The replica that acts, while all of them run and are ready."""
        for replica in self.replicas:
            if not replica.is_running:
                replica.start()
        until(lambda: all(r.is_ready() for r in self.replicas), "not all replicas became ready")
        until(lambda: any(r.leads() for r in self.replicas), "no replica became the leader")
        return next(r for r in self.replicas if r.leads())

    def stop_standbys(self) -> None:
        for replica in self.replicas[1:]:
            replica.stop()

    def stop(self) -> None:
        for replica in self.replicas:
            replica.stop()

    def clear_namespace(self) -> None:
        """Delete all resources of Lethe that earlier parts left."""
        for kind in RESOURCES:
            while self.kube.page(kind, NAMESPACE, limit=1).items:
                self.delete_all(kind)
                time.sleep(1)

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
        """The names of the objects directly below a folder; empty if there is none."""
        selector = FileSelector(folder.removeprefix("s3://"), allow_not_found=True)
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


@dataclass(frozen=True)
class Usage:
    """Of containers that exist."""

    # Since they started.
    cpu_seconds: float
    memory_bytes: int


@contextmanager
def place(work: Path, _: object) -> Iterator[Place]:
    """Connect to the cluster, and stop all operators at the end."""
    work.mkdir(parents=True, exist_ok=True)
    site = _site(work)
    found = timing.describe_host()
    version = kubernetes.client.VersionApi(site.core.api_client).get_code().git_version
    found["setting"] = (
        f"one node of Kubernetes {version}, PostgreSQL and versitygw in it, the operator as a process beside it"
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the operators do not stay behind
    try:
        yield Place(site, found)
    finally:
        site.stop()


def _site(work: Path) -> Site:
    """The cluster that the environment names. Raises: RuntimeError, if it names none."""
    missing = [name for name in WANTED if not os.environ.get(name)]
    if missing:
        raise RuntimeError(f'{", ".join(missing)} not set: run `make up install`, then `eval "$(make -s env)"`')
    environment = os.environ
    kubernetes.config.load_kube_config(environment["KUBECONFIG"])
    core = kubernetes.client.CoreV1Api(kubernetes.client.ApiClient())
    kube = Kube(of_configuration(kubernetes.client.Configuration.get_default_copy()))
    deployment = kube.get(DEPLOYMENTS, SYSTEM, OPERATOR)
    kube.patch(DEPLOYMENTS, SYSTEM, OPERATOR, {"spec": {"replicas": 0}})
    while (kube.get(DEPLOYMENTS, SYSTEM, OPERATOR).get("status") or {}).get("replicas"):
        time.sleep(1)
    _count_requests(kube)
    endpoint, region = environment["LETHE_S3_ENDPOINT"], environment["AWS_REGION"]
    # The catalog as processes of this machine reach it. Runs and the committer have the chart's Secret.
    catalog = {
        "type": "sql",
        "uri": environment["LETHE_CATALOG_URI"],
        "init_catalog_tables": "false",
        "warehouse": environment["LETHE_WAREHOUSE"],
        "s3.endpoint": endpoint,
        "s3.access-key-id": environment["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": environment["AWS_SECRET_ACCESS_KEY"],
        "s3.region": region,
        "s3.path-style-access": "true",
    }
    boundaries = kube.get(CONFIG_MAPS, SYSTEM, f"{OPERATOR}-boundaries")["data"]["boundaries.yaml"]
    env = environment_of(deployment, SYSTEM) | {
        "KUBECONFIG": str(_kubeconfig(core, work)),
        "PYICEBERG_HOME": str(
            _private(work / ".pyiceberg.yaml", yaml.safe_dump({"catalog": {"main": catalog}})).parent
        ),
        "LETHE_BOUNDARIES_FILE": str(_private(work / "boundaries.yaml", boundaries)),
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    log = work / "operator.log"
    log.unlink(missing_ok=True)
    say(f"  the operator's log is {log}")
    config = Config(s3={"addressing_style": "path"}, request_checksum_calculation="when_required")
    return Site(
        kube,
        core,
        boto3.client("s3", endpoint_url=endpoint, region_name=region, config=config),
        # Without these two an object takes three requests instead of one, and a thread more.
        S3FileSystem(endpoint_override=endpoint, region=region, allow_delayed_open=True, background_writes=False),
        load_catalog(environment["LETHE_CATALOG_NAME"], **catalog),
        work,
        tuple(OperatorProcess(env, log, f"operator-{n}") for n in range(2)),
    )


def _private(file: Path, content: str) -> Path:
    """Write a file that only this user can read."""
    file.touch(mode=0o600)
    file.write_text(content)
    return file


def _kubeconfig(core: kubernetes.client.CoreV1Api, work: Path) -> Path:
    """A kubeconfig of the operator's ServiceAccount."""
    request = {"spec": {"expirationSeconds": TOKEN_SECONDS}}
    token = core.create_namespaced_service_account_token(OPERATOR, SYSTEM, request).status.token
    document = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    document["users"] = [{"name": u["name"], "user": {"token": token}} for u in document["users"]]
    return _private(work / "kubeconfig", yaml.safe_dump(document))


def _count_requests(kube: Kube) -> None:
    """Give the operator's requests a flow of their own, at the priority that all ServiceAccounts have."""
    account = {"kind": "ServiceAccount", "serviceAccount": {"name": OPERATOR, "namespace": SYSTEM}}
    everything: dict[str, Any] = {
        "verbs": ["*"],
        "apiGroups": ["*"],
        "resources": ["*"],
        "namespaces": ["*"],
        "clusterScope": True,
    }
    document = {
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
        "kind": "FlowSchema",
        "metadata": {"name": FLOW},
        "spec": {
            "matchingPrecedence": 500,
            "priorityLevelConfiguration": {"name": "workload-low"},
            "distinguisherMethod": {"type": "ByUser"},
            "rules": [
                {
                    "subjects": [account],
                    "resourceRules": [everything],
                    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
                }
            ],
        },
    }
    try:
        kube.create(FLOW_SCHEMAS, "", document)
    except AlreadyExists:
        return


def until(holds: Callable[[], bool], otherwise: str) -> None:
    """Raises: RuntimeError, if it does not hold in time."""
    deadline = time.monotonic() + LEADS_WITHIN_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{otherwise} within {LEADS_WITHIN_SECONDS:.0f} s: see its log")
        time.sleep(0.2)


MEMORY_EVERY_SECONDS: Final = 2.0
# Of the committer's pods, of those of runs, warm drivers among them, and of the S3 server.
CONTAINERS: Final = ("committer", "spark", "versitygw")


@contextmanager
def costs(site: Site) -> Iterator[dict[str, float]]:
    """What the operator, the committer, the pods of runs and the S3 server cost: is filled in at the end of the block.

    Processor time of pods that end in the block is missing.
    """
    found: dict[str, float] = {}
    ended, peaks = threading.Event(), dict.fromkeys(CONTAINERS, 0)

    def look() -> None:
        while not ended.wait(MEMORY_EVERY_SECONDS):
            for name, used in site.usage().items():
                peaks[name] = max(peaks[name], used.memory_bytes)

    before = site.usage()
    site.process.forget_peak()
    cpu, requests, queries = site.process.cpu_seconds(), site.operator_requests(), site.catalog_queries()
    looks = threading.Thread(target=look, name="memory", daemon=True)
    looks.start()
    try:
        yield found
    finally:
        ended.set()
        looks.join()
    found |= {
        **{f"{name}_memory_peak_bytes": peak for name, peak in peaks.items()},
        **{f"{n}_cpu_seconds": round(u.cpu_seconds - before[n].cpu_seconds, 1) for n, u in site.usage().items()},
        "operator_cpu_seconds": round(site.process.cpu_seconds() - cpu, 1),
        "operator_memory_peak_bytes": site.process.memory_bytes(peak=True),
        "operator_api_requests": site.operator_requests() - requests,
        "catalog_queries": site.catalog_queries() - queries,
    }


EVENT_WATCH_SECONDS: Final = 60


def events_of(
    kube: Kube, kind: ResourceKind, closed: threading.Event, labels: str = ""
) -> Iterator[tuple[str, Object]]:
    """Events of objects, first of those that exist, until `closed` is set. After an interruption it begins again, so that an
    object may be reported twice."""
    version = ""
    while not closed.is_set():
        try:
            for event in kube.watch(kind, NAMESPACE, version, labels=labels, seconds=EVENT_WATCH_SECONDS):
                if event["type"] == "ERROR":
                    version = ""
                    break
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    yield event["type"], event["object"]
                if closed.is_set():
                    return
        except (KubeError, OSError, ValueError, KeyError):
            version = ""
            time.sleep(0.5)


class Watcher(ABC):
    """Follows objects by a watch, in a thread. Use as a context."""

    def __init__(self, kube: Kube, kind: ResourceKind, labels: str = "") -> None:
        self._events = kube, kind, labels
        self._closed, self._more = threading.Event(), threading.Condition()

    def __enter__(self) -> Self:
        threading.Thread(target=self._follow, name=type(self).__name__, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()

    def wait_for(self, holds: Callable[[], bool], within_seconds: float) -> bool:
        """Until it holds. Returns: whether it does."""
        with self._more:
            return self._more.wait_for(holds, within_seconds)

    def _follow(self) -> None:
        kube, kind, labels = self._events
        for change, body in events_of(kube, kind, self._closed, labels):
            with self._more:
                self.take(change, body)
                self._more.notify_all()

    @abstractmethod
    def take(self, change: str, body: Object) -> None:
        """Take in an event."""
