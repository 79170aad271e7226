"""An upgrade from the previous version, back, and again: no run is lost or starts twice, and the definitions remain.

The operators are processes of the code of each version. Runs are ended by the test, as a run ends: it commits, and then reports.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from lethe.contract.run import RunSpec, parse_run
from lethe.ledger.ledger import Delta

from tests.cluster.install import apply_definitions
from tests.cluster.kube import Cluster, Object
from tests.cluster.operators import LocalOperator
from tests.cluster.previous import unpack
from tests.cluster.replicas import START_SECONDS, Replicas, a_release
from tests.support.buffers import batches_in
from tests.support.builders import a_batch
from tests.support.clock import wait_until
from tests.support.tables import SCHEMA, summary_of

pytestmark = [pytest.mark.cluster, pytest.mark.long]


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("previous"))


@dataclass
class Upgrade:
    replicas: Replicas
    previous: Path

    @property
    def cluster(self) -> Cluster:
        return self.replicas.cluster

    def start_old(self, name: str) -> LocalOperator:
        apply_definitions(self.cluster, self.previous / "crds")
        return self.replicas.start(name, self.previous)

    def start_new(self, *names: str) -> list[LocalOperator]:
        """As the chart does: new pods start while the old one runs."""
        apply_definitions(self.cluster)
        started = [self.replicas.start(name) for name in names]
        for operator in started:
            wait_until(lambda o=operator: bool(o.ready()), START_SECONDS)  # type: ignore[misc]
        return started

    def run_of(self, dataset: str) -> RunSpec:
        config_map = self.cluster.get(f"configmap/{dataset}-runs")
        assert config_map is not None
        (text,) = (v for k, v in config_map["data"].items() if k.endswith(".run.json"))
        return parse_run(text)

    def wait_for_run(self, dataset: str) -> None:
        wait_until(lambda: self.replicas.jobs()[dataset] == 1, START_SECONDS)

    def end_run(self, dataset: str) -> None:
        """Let the run of a Dataset commit and end."""
        run = self.run_of(dataset)
        table = self.replicas.catalog.load_table(f"air.{dataset}")
        buffered = {b.id: b for b in batches_in(f"file://{self.replicas.home}/{dataset}")}
        assert run.consolidation is not None
        now = datetime.now(UTC)
        entries = [
            a_batch(i, time=now, objects=buffered[i].data_objects, run=run.run_id) for i in run.consolidation.batch_ids
        ]
        keys = summary_of(table, Delta(run.run_id, set_batches=entries), kind="Consolidation")
        table.append(SCHEMA.empty_table(), snapshot_properties=keys)
        result = {
            "kind": "Consolidation",
            "outcome": "Committed",
            "runId": run.run_id,
            "attempt": 1,
            "batchesPromoted": 1,
        }
        prefix = run.run_id[:12]
        document = json.dumps({**result, "finishedTime": now.isoformat()})
        self.cluster.patch(f"configmap/{dataset}-runs", {"data": {f"{prefix}.result.json": document}})
        of_dataset = ["jobs", "-l", f"lethe.dev/dataset={dataset}"]
        # Kubernetes sets it once, and nothing may change it.
        job = self.cluster.wait_for(
            of_dataset, lambda j: "startTime" in j.get("status", {}), within_seconds=START_SECONDS, why="a startTime"
        )
        ended = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        conditions = [
            {"type": kind, "status": "True", "lastTransitionTime": ended} for kind in ("SuccessCriteriaMet", "Complete")
        ]
        started = job["status"]["startTime"]
        status = {"startTime": started, "completionTime": ended, "succeeded": 1, "conditions": conditions}
        patch = json.dumps({"status": status})
        self.cluster.run("patch", f"job/{job['metadata']['name']}", "--subresource=status", "--type=merge", "-p", patch)

    def wait_for_promotion(self, dataset: str) -> None:
        def promoted(body: Object) -> bool:
            return bool(body.get("status", {}).get("batches", {}).get("promoted") == 1)

        self.cluster.wait_for(f"datasets.lethe.dev/{dataset}", promoted, within_seconds=START_SECONDS)

    def identities(self) -> dict[str, str]:
        """UIDs of the definitions and of all Datasets."""
        definitions = [d for d in self.cluster.list("customresourcedefinitions") if d["spec"]["group"] == "lethe.dev"]
        found = [*definitions, *self.cluster.list("datasets.lethe.dev")]
        return {body["metadata"]["name"]: body["metadata"]["uid"] for body in found}


@pytest.fixture
def upgrade(
    bare_cluster: Cluster, previous: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Upgrade]:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    with a_release(bare_cluster, tmp_path) as made:
        yield Upgrade(made, previous)
    apply_definitions(bare_cluster)


def test_runs_survive_an_upgrade_a_rollback_and_another_upgrade(upgrade: Upgrade) -> None:
    replicas, jobs = upgrade.replicas, upgrade.replicas.jobs
    old = upgrade.start_old("old")
    first, second = replicas.add_datasets(2)
    for dataset in (first, second):
        upgrade.wait_for_run(dataset)

    # Upgrade. Both versions run for a while, and only the old one acts.
    new = upgrade.start_new("new-1", "new-2")
    (third,) = replicas.add_datasets(1)
    upgrade.wait_for_run(third)
    assert set(replicas.started_by()) == {"old"}
    old.end()
    upgrade.end_run(first)
    (fourth,) = replicas.add_datasets(1)
    upgrade.wait_for_promotion(first)
    upgrade.wait_for_run(fourth)
    assert set(replicas.started_by()) & {"new-1", "new-2"}
    reasons = {e["reason"] for e in upgrade.cluster.list("events.events.k8s.io")}
    assert "VersionSkew" in reasons, "the run of the first Dataset reported no version"
    kept = upgrade.identities()

    # Roll back, as a Deployment with the strategy Recreate does.
    for operator in new:
        operator.end()
    older = upgrade.start_old("old-again")
    upgrade.end_run(fourth)  # the new version started it
    upgrade.end_run(second)  # the old version started it
    (fifth,) = replicas.add_datasets(1)
    for dataset in (second, fourth):
        upgrade.wait_for_promotion(dataset)
    upgrade.wait_for_run(fifth)

    # Upgrade again.
    upgrade.start_new("new-3", "new-4")
    older.end()
    for dataset in (third, fifth):
        upgrade.end_run(dataset)
    for dataset in (third, fifth):
        upgrade.wait_for_promotion(dataset)

    assert {d: jobs()[d] for d in (first, second, third, fourth, fifth) if jobs()[d] > 1} == {}
    assert sum(replicas.started_by().values()) == 5, "each run was started once"
    assert upgrade.identities().items() >= kept.items()
