"""A run gets the rights of its own Dataset and no others: what bears a name that it needs and is somebody else's is neither
used nor changed."""

from typing import Any

import pytest
from lethe.kube import BY_NAME, JOBS, ROLE_BINDINGS, ROLES
from lethe_operator.actions import Launch
from lethe_operator.resources.dataset import Dataset
from lethe_operator.runs.launch import NameTaken, launch

from tests.support.builders import NOW
from tests.support.fake_cluster import FakeCluster
from tests.support.resources import SETTINGS, a_consolidation, a_dataset, a_table

FLIGHTS, SHIPS = a_dataset("flights"), a_dataset("ships")
OWNED = ("ConfigMap", "ServiceAccount", "Role", "RoleBinding")
STRANGERS: dict[str, Any] = {
    "somebody's own": {},
    "a Dataset's of the same name that is gone": {
        "ownerReferences": [{"kind": "Dataset", "name": "flights", "uid": "old"}]
    },
}


def start(server: FakeCluster, dataset: Dataset = FLIGHTS) -> str:
    """The name of the Job."""
    run = a_consolidation(dataset=dataset)
    wanted = Launch(run, bytes=10, generation=1, why="a test")
    return launch(server, dataset, wanted, a_table(), NOW, SETTINGS).job  # type: ignore[arg-type]


def a_stranger(kind: str, name: str, **metadata: Any) -> FakeCluster:
    """A server with an object of that name, which could hold anybody's rights."""
    document = {"kind": kind, "metadata": {"namespace": "ns", "name": name, **metadata}, "rules": [{"verbs": ["*"]}]}
    return FakeCluster((BY_NAME[kind], document))


@pytest.mark.parametrize("owner", STRANGERS.values(), ids=STRANGERS)
@pytest.mark.parametrize("kind", OWNED)
def test_an_account_or_rights_of_somebody_else_are_not_borrowed(kind: str, owner: dict[str, Any]) -> None:
    """A user who may create a ServiceAccount or a Role must not get a run's driver for it, nor the other way round."""
    server = a_stranger(kind, "flights-runs", **owner)
    before = server.get(BY_NAME[kind], "ns", "flights-runs")

    with pytest.raises(NameTaken, match=f"{kind} flights-runs: Dataset ns/flights needs this name") as taken:
        start(server)

    assert taken.value.reason == "NameTaken"
    assert server.list(JOBS, "ns") == []
    assert server.get(BY_NAME[kind], "ns", "flights-runs") == before


def test_a_job_of_somebody_else_is_not_taken_for_the_run() -> None:
    name = start(FakeCluster())
    server = a_stranger("Job", name)

    with pytest.raises(NameTaken, match=f"Job {name}"):
        start(server)

    assert start(FakeCluster()) == name


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        (ROLES, {"rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["*"]}]}),
        (ROLE_BINDINGS, {"subjects": [{"kind": "ServiceAccount", "name": "somebody", "namespace": "ns"}]}),
    ],
)
def test_rights_that_somebody_widened_are_put_right_before_the_next_run(kind: Any, changed: dict[str, Any]) -> None:
    server = FakeCluster()
    start(server)
    (field,) = changed
    before = server.get(kind, "ns", "flights-runs")[field]
    server.patch(kind, "ns", "flights-runs", changed)

    start(server)

    assert server.get(kind, "ns", "flights-runs")[field] == before


def test_rights_over_pods_come_with_the_first_run_that_has_executors() -> None:
    def after(dataset: Dataset) -> tuple[str, list[str]]:
        server = FakeCluster()
        job = server.get(JOBS, "ns", start(server, dataset))
        bound = [b["metadata"]["name"] for b in server.list(ROLE_BINDINGS, "ns")]
        return job["spec"]["template"]["spec"]["serviceAccountName"], bound

    scaled = a_dataset("flights", runTemplate={"executors": {"min": 1}})
    assert after(FLIGHTS) == ("flights-runs", ["flights-runs"])
    assert after(scaled) == ("flights-scaled-runs", ["flights-runs", "flights-scaled-runs", "flights-executor-pods"])


def test_two_datasets_of_a_namespace_share_no_account_no_rights_and_no_config_map() -> None:
    server = FakeCluster()

    jobs = {name: server.get(JOBS, "ns", start(server, d)) for name, d in (("flights", FLIGHTS), ("ships", SHIPS))}

    for name, job in jobs.items():
        pod = job["spec"]["template"]["spec"]
        assert (job["metadata"]["namespace"], pod["serviceAccountName"]) == ("ns", f"{name}-runs")
        assert [v["configMap"]["name"] for v in pod["volumes"] if "configMap" in v] == [f"{name}-runs"]
        binding = server.get(ROLE_BINDINGS, "ns", f"{name}-runs")
        assert [binding["roleRef"]["name"], *(s["name"] for s in binding["subjects"])] == [f"{name}-runs"] * 2
        allowed = [r["resourceNames"] for r in server.get(ROLES, "ns", f"{name}-runs")["rules"] if "resourceNames" in r]
        assert allowed == [[f"{name}-runs"]]
