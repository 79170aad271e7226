"""`lethe report` on a cluster: whose pods and Jobs it holds."""

from typing import Any

import pytest
import yaml
from lethe.kube import DATASETS, JOBS, PODS
from lethe_kubectl import report
from lethe_kubectl.errors import ResourcePlace
from lethe_kubectl.target import Connection
from lethe_operator.runs.names import dataset_labels

from tests.support.fake_cluster import FakeCluster

LONG = f"sales.{'x' * 80}"
"""A name that is too long for a label."""


@pytest.mark.parametrize(
    ("dataset", "expected"), [("flights", ["flights-1"]), (LONG, ["sales-1"]), ("", ["flights-1", "sales-1"])]
)
def test_the_report_of_a_dataset_has_the_pods_and_jobs_of_its_own_runs(
    dataset: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "_versions", lambda _: {})
    cluster = FakeCluster()
    for of, run in (("flights", "flights-1"), (LONG, "sales-1")):
        labels = {**dataset_labels(of, f"uid of {of}"), "lethe.dev/run-id": run}
        body: dict[str, Any] = {"metadata": {"name": run, "namespace": "air", "labels": labels}, "spec": {}}
        cluster.create(DATASETS, "air", {"metadata": {"name": of, "namespace": "air"}})
        cluster.create(PODS, "air", body)
        cluster.create(JOBS, "air", body)
    place = ResourcePlace("context tests", "https://127.0.0.1:1", "air", "kubectl -n air", "lethe {} -n air")

    bundle = report.collect(Connection(cluster, place), "lethe-system", dataset)  # type: ignore[arg-type]

    for file in ("pods.yaml", "jobs.yaml"):
        assert [d["metadata"]["name"] for d in yaml.safe_load_all(bundle.files[file])] == expected, file
