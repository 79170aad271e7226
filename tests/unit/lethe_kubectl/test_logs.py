"""`lethe logs` on a cluster: which pod's log is shown, and what is said when there is none."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from lethe.base.errors import InputError
from lethe.contract.result import BEGINNING, lines_of_run
from lethe.kube import DATASETS, PODS, NotFound
from lethe_kubectl.errors import ResourcePlace
from lethe_kubectl.logs import _before, _run_of, last_lines, lines_of
from lethe_kubectl.target import Connection
from lethe_operator.cluster.run_pods import container_of
from lethe_operator.resources.common import CONTAINER

from tests.support.fake_cluster import FakeCluster

JOB, APP = "batch.kubernetes.io/job-name", "sparkoperator.k8s.io/app-name"


@dataclass
class Cluster(FakeCluster):
    """With logs, by pod."""

    logs: dict[str, list[str]] = field(default_factory=dict)

    def __init__(self) -> None:
        super().__init__()
        self.logs = {}

    def log(self, _namespace: str, pod: str, container: str, last: int = 0, _follow: bool = False) -> Iterator[str]:
        if pod not in self.logs:
            raise NotFound(404, "NotFound", f"GET: pods {pod} not found")
        yield from [f"{container}: {line}" for line in self.logs[pod]][-last:]


RUN = {"kind": "Restatement", "phase": "Succeeded", "startTime": "2026-01-02T00:00:00Z"}


def a_pod(name: str, container: str = CONTAINER, **labels: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": "air", "labels": {k.replace("_", "-"): v for k, v in labels.items()}}
    return {"metadata": meta, "spec": {"containers": [{"name": "proxy"}, {"name": container}]}}


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    runs = [
        {**RUN, "name": "restatement-2", "phase": "Failed", "message": "No memory."},
        {**RUN, "name": "consolidation-1", "startTime": "2026-01-01T00:00:00Z", "message": "12 rows"},
    ]
    dataset = {"metadata": {"name": "flights", "namespace": "air"}, "status": {"runs": runs}}
    cluster.create(DATASETS, "air", dataset)
    cluster.create(DATASETS, "air", {"metadata": {"name": "idle", "namespace": "air"}})
    first = a_pod("a", **{JOB: "restatement-1", "lethe.dev/run-id": "r", "lethe.dev/attempt": "1"})
    second = a_pod("b", **{JOB: "restatement-2", "lethe.dev/run-id": "r", "lethe.dev/attempt": "2"})
    for pod in (first, second):
        cluster.create(PODS, "air", pod)
    cluster.logs = {"a": ["one"], "b": [f"line {n}" for n in range(30)]}
    return cluster


def at(cluster: Cluster) -> Connection:
    place = ResourcePlace("context tests", "https://127.0.0.1:1", "air", "kubectl -n air", "lethe {} -n air")
    return Connection(cluster, place)  # type: ignore[arg-type]


def test_the_log_is_that_of_the_drivers_container(cluster: Cluster) -> None:
    assert list(lines_of(at(cluster), "restatement-2", 2)) == [f"{CONTAINER}: line 28", f"{CONTAINER}: line 29"]


def test_the_driver_of_a_spark_application_is_no_executor(cluster: Cluster) -> None:
    driver = a_pod("app-driver", "spark-kubernetes-driver", **{APP: "app", "spark-role": "driver"})
    executor = a_pod("app-exec-1", "executor", **{APP: "app", "spark-role": "executor"})
    for pod in (driver, executor):
        cluster.create(PODS, "air", pod)
        cluster.logs[pod["metadata"]["name"]] = [pod["metadata"]["name"]]

    assert list(lines_of(at(cluster), "app", 0)) == ["spark-kubernetes-driver: app-driver"]
    assert container_of(a_pod("x", "other")) == "proxy"


def test_a_dataset_means_its_newest_run_and_other_names_are_runs(cluster: Cluster) -> None:
    assert _run_of(at(cluster), "flights") == "restatement-2"
    assert _run_of(at(cluster), "dataset/flights") == "restatement-2"
    assert _run_of(at(cluster), "consolidation-1") == "consolidation-1"
    with pytest.raises(InputError, match=r"NoRun: dataset/idle has had no run. See: lethe why dataset/idle -n air"):
        _run_of(at(cluster), "idle")


def test_the_attempt_before_is_found_by_its_labels(cluster: Cluster) -> None:
    assert _before(at(cluster), "restatement-2") == "restatement-1"
    with pytest.raises(InputError, match="restatement-1 is the first attempt"):
        _before(at(cluster), "restatement-1")


def test_a_pod_that_is_gone_gives_an_error_that_says_where_its_log_was(cluster: Cluster) -> None:
    with pytest.raises(
        InputError, match=r"It ended as Succeeded: 12 rows .* label batch.kubernetes.io/job-name=consol"
    ):
        list(lines_of(at(cluster), "consolidation-1", 10))
    with pytest.raises(
        InputError, match=r"UnknownName: namespace air has no run restatemnt-2. Do you mean restatement-2"
    ):
        list(lines_of(at(cluster), "restatemnt-2", 10))
    cluster.logs.clear()
    with pytest.raises(InputError, match="NoLog: run restatement-2"):
        list(lines_of(at(cluster), "restatement-2", 10))


def warm_log(*parts: tuple[str, str]) -> list[str]:
    """What a warm driver writes about runs, by their names and a line of each."""
    return ["serving the mailbox", *(line for name, line in parts for line in (f"INFO x: {BEGINNING}{name}", line))]


def test_the_log_of_a_run_in_the_warm_driver_is_its_part_of_the_warm_drivers_log() -> None:
    log = warm_log(("restatement-1", "first"), ("restatement-10", "second"), ("restatement-1", "third"))

    assert list(lines_of_run(log, "restatement-1"))[1::2] == ["first", "third"]
    assert list(lines_of_run(log, "restatement-10"))[1:] == ["second"]
    assert list(lines_of_run(log, "restatement-2")) == []


def test_a_run_without_a_pod_of_its_own_is_looked_for_in_the_newest_warm_drivers(cluster: Cluster) -> None:
    run = {**RUN, "name": "vacuum-1", "finishTime": "2026-01-03T00:00:00Z"}
    cluster.patch(DATASETS, "air", "flights", {"status": {"runs": [run]}}, "status")
    for name, line in (("warm-1", "old"), ("warm-2", "new"), ("warm-3", "other")):
        pod = a_pod(name, **{"app.kubernetes.io/component": "warm-driver"})
        pod["metadata"]["creationTimestamp"] = f"2026-01-0{name[-1]}T00:00:00Z"
        cluster.create(PODS, "air", pod)
        cluster.logs[name] = warm_log(("vacuum-1" if line != "other" else "vacuum-2", line))

    assert [line.rpartition(" ")[2] for line in lines_of(at(cluster), run["name"], 0)] == ["vacuum-1", "new"]
    assert [line.rpartition(" ")[2] for line in lines_of(at(cluster), run["name"], 1)] == ["new"]


def test_a_failure_shows_the_last_lines_of_its_run(cluster: Cluster) -> None:
    shown = last_lines(at(cluster), "flights")

    assert (shown[0], shown[-1], len(shown)) == (
        "the last lines of run restatement-2:", f"  {CONTAINER}: line 29", 11,
    )  # fmt: skip
    cluster.logs.clear()
    assert last_lines(at(cluster), "flights") == ()
    assert last_lines(at(cluster), "idle") == ()
