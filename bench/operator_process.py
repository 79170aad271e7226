"""The operator as a process of this machine, with the settings of its Deployment, beside a cluster with Lethe. I/O.

As a process, its processor time and memory can be read exactly. It authenticates as the Deployment's ServiceAccount, so it has
the rights that the chart gives it, and the API server counts its requests apart from all others. The Deployment is scaled to
zero; the committer and the runs are pods. `make bench-operator` sets the cluster up.
"""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import kubernetes.client
import yaml
from lethe.kube import CONFIG_MAPS, AlreadyExists
from lethe_operator.cluster.client import Kube, ResourceKind, of_configuration
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import create_engine, text

from bench import cluster, timing
from bench.cluster import SYSTEM, RestatementScale, Site, connect
from bench.runner import Place
from bench.timing import say
from tests.support.servers.postgres import free_port


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
    # Reverts without a vacuum, and as many beside one.
    beside_vacuum: int
    # Small files in the buffer of a Dataset.
    small_files: int
    # The sizes of thousands of Restatements at once, of a steady rate, and of consecutive Reverts.
    restatement: RestatementScale

    @property
    def driver_memory(self) -> str:
        """Memory of the session that consecutive Reverts run in, as Spark takes it."""
        return self.restatement.driver_memory


SCALES = {
    "tiny": OperatorScale(
        "tiny",
        datasets=20,
        correct_within_seconds=300,
        finished=100,
        settle_seconds=600,
        idle_seconds=20,
        reverts=3,
        runs_per_minute=60,
        run_minutes=1,
        kills=1,
        replays=2,
        beside_vacuum=3,
        small_files=100,
        restatement=cluster.SCALES["tiny"],
    ),
    "small": OperatorScale(
        "small",
        datasets=100,
        correct_within_seconds=600,
        finished=500,
        settle_seconds=900,
        idle_seconds=60,
        reverts=10,
        runs_per_minute=200,
        run_minutes=1,
        kills=3,
        replays=5,
        beside_vacuum=8,
        small_files=10_000,
        restatement=cluster.SCALES["small"],
    ),
    "medium": OperatorScale(
        "medium",
        datasets=1_000,
        correct_within_seconds=1_200,
        finished=5_000,
        settle_seconds=1_200,
        idle_seconds=120,
        reverts=20,
        runs_per_minute=200,
        run_minutes=3,
        kills=3,
        replays=5,
        beside_vacuum=8,
        small_files=20_000,
        restatement=cluster.SCALES["small"],
    ),
    "full": OperatorScale(
        "full",
        datasets=10_000,
        correct_within_seconds=3_600,
        finished=50_000,
        settle_seconds=2_400,
        idle_seconds=300,
        reverts=40,
        runs_per_minute=200,
        run_minutes=10,
        kills=5,
        replays=20,
        beside_vacuum=30,
        small_files=100_000,
        restatement=cluster.SCALES["full"],
    ),
}


STARTS_WITHIN_SECONDS: Final = 120


@dataclass
class OperatorProcess:
    """One replica. `start` may be called again after `kill` or `stop`."""

    # Environment variables that the chart sets, with the values of this machine for addresses and files.
    env: Mapping[str, str]
    # Receives the log.
    log: Path
    name: str = "operator-0"
    # How often it was started. As for a Deployment, each start is a pod of another name.
    starts: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _ports: tuple[int, int] = field(default=(0, 0))

    @property
    def pid(self) -> int:
        assert self._process is not None, "the operator was not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, wait: bool = True) -> None:
        """Start it; wait until it is ready. Raises: RuntimeError, with the end of its log."""
        assert not self.is_running, f"{self.name} runs already"
        self._ports = free_port(), free_port()
        self.starts += 1
        environment = {
            **os.environ,
            **self.env,
            "POD_NAME": f"{self.name}-{self.starts}",
            "LETHE_METRICS_PORT": str(self._ports[0]),
            "LETHE_PROBES_PORT": str(self._ports[1]),
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lethe_operator"], env=environment, stdout=log, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + STARTS_WITHIN_SECONDS
        while wait and not self._answers():
            if not self.is_running or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not start: {self.log.read_text()[-3000:]}")
            time.sleep(0.2)

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._ports[1]}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def leads(self) -> bool:
        """Whether it acts. The answer of its readiness probe says so."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._ports[1]}/readyz", timeout=5) as answer:
                return b"leads" in answer.read()
        except OSError:
            return False

    def kill(self) -> None:
        """Kill it, as a lost node or a full memory would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Let it end in order."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._ports[1]}/healthz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    # --- numbers ---

    def cpu_seconds(self) -> float:
        """Of the process and its threads, since its start."""
        return timing.cpu_seconds(self.pid)

    def memory_bytes(self, peak: bool = False) -> int:
        """Resident memory now, or at its peak since the start or the last `forget_peak`."""
        return timing.memory_bytes(self.pid, peak=peak)

    def forget_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def metrics(self) -> tuple[dict[str, float], int]:
        """The sums of all metrics by sample name, and the size of the answer in bytes."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._ports[0]}/metrics", timeout=120) as answer:
            content = answer.read()
        sums: dict[str, float] = {}
        for family in text_string_to_metric_families(content.decode()):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
        return sums, len(content)


def environment_of(deployment: Mapping[str, Any], namespace: str) -> dict[str, str]:
    """The environment of a Deployment's first container. Fields of the pod other than its namespace are left out. Pure."""
    found: dict[str, str] = {}
    for one in deployment["spec"]["template"]["spec"]["containers"][0].get("env") or ():
        if "value" in one:
            found[one["name"]] = one["value"]
        elif ((one.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath") == "metadata.namespace":
            found[one["name"]] = namespace
    return found


def write_catalogs(folder: Path, catalogs: Mapping[str, Mapping[str, str]]) -> None:
    """Write PyIceberg's configuration, readable by this user only."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / ".pyiceberg.yaml"
    file.touch(mode=0o600)
    file.write_text(yaml.safe_dump({"catalog": {name: dict(own) for name, own in catalogs.items()}}))


DEPLOYMENTS: Final = ResourceKind("/apis/apps/v1", "deployments", "Deployment")
FLOW_SCHEMAS: Final = ResourceKind("/apis/flowcontrol.apiserver.k8s.io/v1", "flowschemas", "FlowSchema")
OPERATOR: Final = "lethe-operator"
LEADS_WITHIN_SECONDS: Final = 300.0
# Names a flow that only the operator's ServiceAccount has: the API server counts its requests by it.
FLOW: Final = "lethe-bench-operator"
TOKEN_SECONDS: Final = 48 * 3600


@dataclass(frozen=True)
class OperatorSite(Site):
    """`Site`, whose operator is a process of this machine."""

    work: Path
    kube: Kube
    # The replicas. The benchmark starts one of them unless it measures a failover.
    replicas: tuple[OperatorProcess, ...] = field(repr=False)

    @property
    def process(self) -> OperatorProcess:
        return self.replicas[0]

    def operator(self) -> dict[str, float]:
        return {
            "memory_bytes": float(self.process.memory_bytes()),
            "cpu_seconds": self.process.cpu_seconds(),
            "api_requests": self.operator_requests(),
        }

    def operator_memory(self) -> float:
        return float(self.process.memory_bytes())

    def operator_requests(self) -> float:
        """Requests of the operator that the API server has started to carry out, including watches."""
        return self.server_metric("apiserver_flowcontrol_dispatched_requests_total", {"flow_schema": FLOW})

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
        _until(self.process.leads, "the operator became no leader")

    def running(self) -> OperatorProcess:
        """The operator, started if it does not run."""
        if not self.process.is_running:
            self.restart()
        return self.process

    @property
    def has_warm_drivers(self) -> bool:
        """Whether the installed chart has them switched on."""
        return any("WARM" in name and '"enabled":true' in value for name, value in self.process.env.items())

    @property
    def replicas_used(self) -> int:
        """How many replicas a failover is measured with."""
        return len(self.replicas)

    def settled_leader(self) -> OperatorProcess:
        """The replica that acts, while all of them run and are ready."""
        for replica in self.replicas:
            if not replica.is_running:
                replica.start()
        _until(lambda: all(r.is_ready() for r in self.replicas), "not all replicas became ready")
        _until(lambda: any(r.leads() for r in self.replicas), "no replica became the leader")
        return next(r for r in self.replicas if r.leads())

    def stop_standbys(self) -> None:
        for replica in self.replicas[1:]:
            replica.stop()

    def after_kill(self, killed: OperatorProcess) -> None:
        """Start a killed replica again, as a Deployment does."""
        killed.start(wait=False)

    def stop(self) -> None:
        for replica in self.replicas:
            replica.stop()

    def clear_namespace(self) -> None:
        """Delete all resources of Lethe that earlier rows left."""
        for kind in ("VacuumPolicy", "Restatement", "Dataset"):
            while self.has_any(kind):
                self.delete_all(kind)
                time.sleep(1)


@contextmanager
def place(work: Path, _: OperatorScale) -> Iterator[Place]:
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


def _site(work: Path) -> OperatorSite:
    base = connect()
    kube = Kube(of_configuration(kubernetes.client.Configuration.get_default_copy()))
    deployment = kube.get(DEPLOYMENTS, SYSTEM, OPERATOR)
    kube.patch(DEPLOYMENTS, SYSTEM, OPERATOR, {"spec": {"replicas": 0}})
    while (kube.get(DEPLOYMENTS, SYSTEM, OPERATOR).get("status") or {}).get("replicas"):
        time.sleep(1)
    _count_requests(kube)
    write_catalogs(work / "catalogs", {"main": _catalog()})
    (work / "boundaries.yaml").write_text(
        kube.get(CONFIG_MAPS, SYSTEM, f"{OPERATOR}-boundaries")["data"]["boundaries.yaml"]
    )
    env = environment_of(deployment, SYSTEM) | {
        "KUBECONFIG": str(_kubeconfig(base, work)),
        "PYICEBERG_HOME": str(work / "catalogs"),
        "LETHE_BOUNDARIES_FILE": str(work / "boundaries.yaml"),
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    log = work / "operator.log"
    log.unlink(missing_ok=True)
    replicas = tuple(OperatorProcess(env, log, f"operator-{n}") for n in range(2))
    say(f"  the operator's log is {log}")
    return OperatorSite(
        **{f.name: getattr(base, f.name) for f in fields(Site)}, work=work, kube=kube, replicas=replicas
    )


def _catalog() -> dict[str, str]:
    """The catalog `main` as processes of this machine reach it. Runs and the committer have the chart's Secret."""
    environment = os.environ
    return {
        "type": "sql",
        "uri": environment["LETHE_CATALOG_URI"],
        "init_catalog_tables": "false",
        "warehouse": environment["LETHE_WAREHOUSE"],
        "s3.endpoint": environment["LETHE_S3_ENDPOINT"],
        "s3.access-key-id": environment["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": environment["AWS_SECRET_ACCESS_KEY"],
        "s3.region": environment["AWS_REGION"],
        "s3.path-style-access": "true",
    }


def _kubeconfig(site: Site, work: Path) -> Path:
    """A kubeconfig of the operator's ServiceAccount."""
    request = {"spec": {"expirationSeconds": TOKEN_SECONDS}}
    token = site.core.create_namespaced_service_account_token(OPERATOR, SYSTEM, request).status.token
    document = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    document["users"] = [{"name": u["name"], "user": {"token": token}} for u in document["users"]]
    file = work / "kubeconfig"
    file.touch(mode=0o600)
    file.write_text(yaml.safe_dump(document))
    return file


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


def _until(holds: Callable[[], bool], otherwise: str) -> None:
    """Raises: RuntimeError, if it does not hold in time."""
    deadline = time.monotonic() + LEADS_WITHIN_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{otherwise} within {LEADS_WITHIN_SECONDS:.0f} s: see its log")
        time.sleep(0.2)
