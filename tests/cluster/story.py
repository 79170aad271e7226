"""One Dataset of one test: its table and buffer have names of their own, so that tests neither meet nor wait for each other."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from tests.cluster.kube import Cluster, Object
from tests.cluster.lake import CATALOG, COLUMNS, ClusterLake, Rows, a_table_of, batch_folder, rows_of
from tests.support.clock import wait_until
from tests.support.documents import resource

# A run takes half a minute alone and several on a busy machine.
RUN_SECONDS = 300
# What a Dataset asks of the driver of a run. The warm driver has less than A_JOB asks for.
WARM = {"driver": {"cpu": "100m"}}
A_JOB = {"driver": {"cpu": "150m"}}


@dataclass
class ClusterStory:
    """`expected` is what a reader must find: kept by the test, from what it wrote."""

    cluster: Cluster
    lake: ClusterLake
    name: str
    catalog: str = CATALOG
    expected: Rows = field(default_factory=Rows)
    _made: list[str] = field(default_factory=list)

    @property
    def table(self) -> str:
        return f"tests.{self.name.replace('-', '_')}"

    @property
    def buffer(self) -> str:
        return f"s3://lake/tests/{self.name}/buffer"

    @property
    def restated(self) -> str:
        return f"s3://lake/tests/{self.name}/restated"

    @property
    def dataset(self) -> str:
        return f"datasets.lethe.dev/{self.name}"

    # --- resources ---

    def a_dataset(self, **spec: object) -> Object:
        """Takes every batch at once; any field can be given anew. Runs are Jobs, or the committer's."""
        base = {
            "table": {
                "catalog": self.catalog,
                "name": self.table,
                "create": {"schema": COLUMNS, "partitionBy": ["days(at)"]},
            },
            "batchColumn": "batch_id",
            "buffer": {"uri": self.buffer},
            "consolidation": {"minBatches": 1},
            "runTemplate": A_JOB,
            "snapshots": {"maxAgeSeconds": 0, "minToKeep": 1},
        }
        return self.a("Dataset", self.name, {**base, **spec})

    def a_restatement(self, name: str, operation: str = "Revert", **spec: object) -> Object:
        return self.a(
            "Restatement", f"{self.name}-{name}", {"datasetRef": {"name": self.name}, "operation": operation, **spec}
        )

    def a_policy(self, **spec: object) -> Object:
        selector = {"matchLabels": {"story": self.name}}
        return self.a("VacuumPolicy", self.name, {"datasetSelector": selector, **spec})

    def a(self, kind: str, name: str, spec: Object) -> Object:
        return resource(kind, name, spec, labels={"story": self.name})

    def apply(self, *bodies: Object) -> None:
        self.cluster.apply(*bodies)
        plurals = {"Dataset": "datasets", "Restatement": "restatements", "VacuumPolicy": "vacuumpolicies"}
        self._made += [f"{plurals[body['kind']]}.lethe.dev/{body['metadata']['name']}" for body in bodies]

    def restatement(self, name: str) -> str:
        return f"restatements.lethe.dev/{self.name}-{name}"

    # --- batches ---

    def put_batch(
        self, batch_id: str, rows: int = 100, day: int = 1, *, complete: bool = True, first_id: int = 0
    ) -> pa.Table:
        """Write a batch into the buffer and expect its rows."""
        table = a_table_of(rows, first_id, day)
        self.lake.put_batch(batch_folder(self.buffer, batch_id), table, complete=complete)
        if complete:
            self.expected += rows_of(batch_id, table)
        return table

    def forget(self, batch_id: str) -> None:
        """No longer expect the rows of a batch."""
        self.expected = Rows({key: n for key, n in self.expected.items() if key[0] != batch_id})

    # --- waiting ---

    def wait_for_status(self, within_seconds: float = RUN_SECONDS, **wanted: int) -> Object:
        """Wait until numbers of the Dataset's status are reached, given as `batches_promoted=3`."""

        def reached(body: Object) -> bool:
            for path, number in wanted.items():
                group, _, key = path.partition("_")
                if body.get("status", {}).get(group, {}).get(key) != number:
                    return False
            return True

        return self.cluster.wait_for(self.dataset, reached, within_seconds=within_seconds, why=str(wanted))

    def wait_for_success(self, name: str, within_seconds: float = RUN_SECONDS) -> Object:
        return self.cluster.wait_for_condition(self.restatement(name), "Succeeded", within_seconds=within_seconds)

    def wait_for_a_driver(self, within_seconds: float = RUN_SECONDS, but_not: frozenset[str] = frozenset()) -> str:
        """The name of a driver pod of this Dataset that runs, Spark not being up yet."""

        def runs(pod: Object) -> bool:
            return pod["metadata"]["name"] not in but_not and pod["status"].get("phase") == "Running"

        what = ["pods", "-l", f"lethe.dev/dataset={self.name},job-name"]
        pod = self.cluster.wait_for(what, runs, within_seconds=within_seconds, why="a running driver")
        return str(pod["metadata"]["name"])

    def wait_for_decision(self, decision: str, reason: str = "", within_seconds: float = RUN_SECONDS) -> Object:
        """`status.vacuum` of the Dataset once it says so."""

        def decided(body: Object) -> bool:
            told = body.get("status", {}).get("vacuum", {})
            return told.get("decision") == decision and reason in ("", told.get("reason"))

        why = f"{decision} {reason}".strip()
        body = self.cluster.wait_for(self.dataset, decided, within_seconds=within_seconds, why=why)
        return dict(body["status"]["vacuum"])

    def vacuum_now(self, value: str, within_seconds: float = RUN_SECONDS) -> Object:
        """Ask for a vacuum; `status.vacuum.requested` once it has ended."""
        self.annotate(vacuum_now=value)

        def ended(body: Object) -> bool:
            told = body.get("status", {}).get("vacuum", {}).get("requested", {})
            return told.get("value") == value and told.get("outcome") in ("Succeeded", "Failed")

        body = self.cluster.wait_for(self.dataset, ended, within_seconds=within_seconds, why=f"vacuum-now {value}")
        return dict(body["status"]["vacuum"]["requested"])

    def annotate(self, **annotations: str) -> None:
        """The Dataset, given as `vacuum_now="…"`."""
        self.cluster.annotate(self.dataset, **annotations)

    def jobs(self) -> list[str]:
        return [job["metadata"]["name"] for job in self.cluster.list("jobs", f"lethe.dev/dataset={self.name}")]

    def _active_pods(self) -> list[Object]:
        pods = self.cluster.list("pods", f"lethe.dev/dataset={self.name}")
        return [p for p in pods if p.get("status", {}).get("phase") not in ("Succeeded", "Failed")]

    def clean(self) -> None:
        """Pods that have ended are left to Kubernetes."""
        self.cluster.delete(*reversed(dict.fromkeys(self._made)))
        wait_until(lambda: not self._active_pods(), 90)
        self.lake.drop(self.table)
        self.lake.drop(f"{self.table}_batches")
        self.lake.clear(f"s3://lake/tests/{self.name}")


@contextmanager
def telling(cluster: Cluster, lake: ClusterLake) -> Iterator[Callable[[str], ClusterStory]]:
    """Make Datasets, by a hint for the name; all are removed at the end of the block."""
    begun: list[ClusterStory] = []

    def begin(hint: str) -> ClusterStory:
        begun.append(ClusterStory(cluster, lake, a_name(hint)))
        return begun[-1]

    yield begin
    for story in begun:
        story.clean()


def a_name(hint: str) -> str:
    return f"{hint}-{uuid.uuid4().hex[:6]}"
