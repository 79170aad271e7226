"""The cluster of the benchmark of the operator: Lethe as its chart installs it, with the operator as a process here. I/O.

`make bench-operator` sets the cluster up. The operator's Deployment is scaled to zero; the committer and the runs are pods.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import kubernetes.client
import yaml
from lethe.kube import CONFIG_MAPS, AlreadyExists, Kube, ResourceKind
from lethe_operator.cluster.client import of_configuration
from sqlalchemy import create_engine, text

from bench import machine
from bench.operator_process import OperatorProcess, environment_of, write_catalogs
from bench.operator_scales import OperatorScale
from bench.site import SYSTEM, Site, connect
from bench.suite import Place
from bench.timing import say

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
    found = machine.describe_host()
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
