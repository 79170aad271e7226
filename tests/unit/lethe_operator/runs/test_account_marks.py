"""ServiceAccounts and pods carry what the boundary of their namespace says, for the identity service of a cloud."""

from typing import Any

from lethe.contract.dataset import RunTemplate
from lethe.contract.kubernetes import GIB
from lethe.kube import JOBS, SERVICE_ACCOUNTS
from lethe_operator.actions import Launch
from lethe_operator.resources.boundaries import Boundaries, Boundary
from lethe_operator.runs import pod
from lethe_operator.runs.launch import DatasetObjects, launch
from lethe_operator.runs.pod import size
from lethe_operator.settings import Settings

from tests.support.builders import NOW
from tests.support.fake_cluster import FakeCluster
from tests.support.resources import a_consolidation, a_dataset, a_table

ROLE = "eks.amazonaws.com/role-arn"
FLIGHTS = a_dataset()
RUN = a_consolidation(dataset=FLIGHTS)
MARKED: dict[str, Any] = {
    "driver": {"annotations": {ROLE: "driver"}, "labels": {"team": "a"}, "podLabels": {"identity": "driver"}},
    "executor": {"annotations": {ROLE: "executor"}, "podLabels": {"identity": "executor"}},
}


def settings(**boundary: Any) -> Settings:
    return Settings(boundaries=Boundaries(namespaces={"ns": Boundary.model_validate(boundary)}))


def metadata(server: FakeCluster, account: str) -> dict[str, Any]:
    found: dict[str, Any] = server.get(SERVICE_ACCOUNTS, "ns", account)["metadata"]
    return found


def ensured(server: FakeCluster, asked: Settings) -> FakeCluster:
    DatasetObjects().ensure(server, RUN.dataset, asked, with_executors=True)  # type: ignore[arg-type]
    return server


def test_each_account_has_the_annotations_and_labels_of_its_kind() -> None:
    server = ensured(FakeCluster(), settings(serviceAccounts=MARKED))

    for account in ("flights-runs", "flights-scaled-runs"):
        assert metadata(server, account)["annotations"][ROLE] == "driver"
        assert metadata(server, account)["labels"]["team"] == "a"
        assert metadata(server, account)["labels"]["lethe.dev/dataset"] == "flights"
    assert metadata(server, "flights-executors")["annotations"][ROLE] == "executor"


def test_a_role_that_the_boundary_does_not_name_any_more_is_taken_away_and_what_others_set_stays() -> None:
    server = ensured(FakeCluster(), settings(serviceAccounts=MARKED))
    server.patch(SERVICE_ACCOUNTS, "ns", "flights-runs", {"metadata": {"annotations": {"other": "x", ROLE: "changed"}}})

    ensured(server, settings(serviceAccounts=MARKED))
    assert metadata(server, "flights-runs")["annotations"][ROLE] == "driver"
    ensured(server, settings())

    assert ROLE not in metadata(server, "flights-runs")["annotations"]
    assert metadata(server, "flights-runs")["annotations"]["other"] == "x"
    assert "team" not in metadata(server, "flights-runs")["labels"]
    assert metadata(server, "flights-runs")["labels"]["lethe.dev/dataset"] == "flights"


def test_pods_have_the_labels_by_which_a_webhook_finds_them() -> None:
    asked = settings(serviceAccounts={"driver": {"podLabels": {"identity": "driver", "lethe.dev/role": "x"}}})
    wanted = Launch(RUN, bytes=10, generation=1, why="a test")
    server = FakeCluster()

    job = launch(server, FLIGHTS, wanted, a_table(), NOW, asked).job  # type: ignore[arg-type]

    labels = server.get(JOBS, "ns", job)["spec"]["template"]["metadata"]["labels"]
    assert (labels["identity"], labels["lethe.dev/role"]) == ("driver", "driver")
    executor = pod.executor(RUN, size(GIB, RunTemplate()), RunTemplate(), settings(serviceAccounts=MARKED))
    assert executor["metadata"]["labels"]["identity"] == "executor"
    assert executor["spec"]["serviceAccountName"] == "flights-executors"


def test_a_run_mounts_the_catalogs_secret_of_its_namespace() -> None:
    wanted = Launch(RUN, bytes=10, generation=1, why="a test")

    def mounted(asked: Settings) -> str:
        server = FakeCluster()
        job = launch(server, FLIGHTS, wanted, a_table(), NOW, asked).job  # type: ignore[arg-type]
        volumes = server.get(JOBS, "ns", job)["spec"]["template"]["spec"]["volumes"]
        return next(str(v["secret"]["secretName"]) for v in volumes if v["name"] == "catalogs")

    assert mounted(settings()) == "lethe-catalogs"
    assert mounted(settings(catalogsSecret="team-a")) == "team-a"
