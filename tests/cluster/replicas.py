"""Operators of one release as processes on this machine, Datasets on local files for them, and a real API server.

The namespace allows no pods, so that no run ends by itself.
"""

import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lethe.base import names
from pyiceberg.catalog import Catalog

from tests.cluster.kube import Cluster, Object
from tests.cluster.operators import LocalOperator, local_operator
from tests.support.clock import wait_until
from tests.support.documents import resource
from tests.support.small_lake import eager_dataset, put_batches
from tests.support.tables import catalog_in, new_table

START_SECONDS = 120
LEASE = "leader"


@dataclass
class Replicas:
    """The operators of one release that watch a namespace."""

    cluster: Cluster
    home: Path
    catalog: Catalog
    stack: ExitStack
    operators: dict[str, LocalOperator] = field(default_factory=dict)
    made: int = 0

    def start(self, name: str) -> LocalOperator:
        """Start a process."""
        namespace = self.cluster.namespace
        settings = {
            "LETHE_WATCH_NAMESPACES": namespace,
            "LETHE_OPERATOR": f"{namespace}/{LEASE}",
            "LETHE_LEADER_LEASE": f"{namespace}/{LEASE}",
            "LETHE_RESYNC_SECONDS": "3",
            "PYICEBERG_HOME": str(self.home),
        }
        started = local_operator(name, self.cluster.kubeconfig, self.home, settings)
        self.operators[name] = self.stack.enter_context(started)
        return self.operators[name]

    def holder(self) -> str:
        lease = self.cluster.get(f"lease/{LEASE}") or {}
        return str(lease.get("spec", {}).get("holderIdentity", ""))

    def leader_and_standby(self) -> tuple[LocalOperator, LocalOperator]:
        for operator in self.operators.values():
            wait_until(lambda o=operator: bool(o.ready()), START_SECONDS)  # type: ignore[misc]
        wait_until(lambda: self.holder() != "", START_SECONDS)
        leader = self.operators[self.holder()]
        (standby,) = (o for o in self.operators.values() if o is not leader)
        wait_until(lambda: "leads" in leader.ready() and "standby" in standby.ready(), START_SECONDS)
        return leader, standby

    def add_datasets(self, number: int, are_due: bool = True) -> list[str]:
        """Datasets with tables, and with a batch each for which a run is due, or with nothing to do."""
        added, bodies = [f"flights-{self.made + n}" for n in range(number)], []
        for name in added:
            new_table(self.catalog, f"air.{name}", **{names.CLAIM: f"{self.cluster.namespace}/{name}"})
            (self.home / name).mkdir()
            if are_due:
                put_batches(self.home / name, "A")
            bodies.append(resource("Dataset", name, eager_dataset(name, f"file://{self.home}/{name}")["spec"]))
        self.made += number
        self.cluster.apply(*bodies)
        return added

    def jobs(self) -> Counter[str]:
        """How many Jobs each Dataset has."""
        return Counter(job["metadata"]["labels"]["lethe.dev/dataset"] for job in self.cluster.list("jobs"))

    def started_by(self) -> Counter[str]:
        """How many starts of runs each process has reported, by its name."""
        events = (e for e in self.cluster.list("events.events.k8s.io") if e["reason"] == "RunStarted")
        return Counter(str(e["reportingInstance"]) for e in events)


@contextmanager
def a_release(bare_cluster: Cluster, home: Path) -> Iterator[Replicas]:
    """A namespace without operators yet. PYICEBERG_HOME has to be `home`."""
    namespace = f"release-{uuid.uuid4().hex[:6]}"
    cluster = bare_cluster.in_namespace(namespace)
    quota: Object = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "no-pods"}}
    cluster.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        {**quota, "spec": {"hard": {"pods": "0"}}},
    )
    with ExitStack() as stack:
        yield Replicas(cluster, home, catalog_in(home), stack)
    bare_cluster.begin_to_delete(f"namespace/{namespace}")
