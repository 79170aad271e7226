"""`lethe plan` against a real API server, with a role that may only get and list Lethe's resources."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from lethe.base import names
from lethe.kube import DATASETS, RESTATEMENTS, VACUUM_POLICIES

from tests.support import tables
from tests.support.builders import a_batch
from tests.support.commands import definitions, lethe, one_line
from tests.support.documents import Document, resource
from tests.support.servers.kubernetes import (
    TOKEN,
    TOKEN_WITHOUT_RIGHTS,
    ApiServerProcess,
    api_server,
    apply_definitions,
    kubectl,
)

READER = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "Role",
    "metadata": {"name": "plan", "namespace": "default"},
    "rules": [
        {
            "apiGroups": ["lethe.dev"],
            "resources": ["datasets", "restatements", "vacuumpolicies"],
            "verbs": ["get", "list"],
        }
    ],
}
BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "RoleBinding",
    "metadata": {"name": "plan", "namespace": "default"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "plan"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "guest"}],
}


class Cluster:
    """An API server with Lethe's definitions, a table in SQLite, and a guest who may only read."""

    def __init__(self, server: ApiServerProcess, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.guest = folder / "guest"
        self.guest.write_text(server.kubeconfig.read_text().replace(TOKEN, TOKEN_WITHOUT_RIGHTS))
        apply_definitions(server, definitions())
        kubectl(server, "apply", READER, BINDING)
        catalog = tables.catalog_in(folder / "home")
        table = tables.new_table(catalog, **{names.CLAIM: "default/flights"})
        table.append(tables.rows("A", "A", "A"))
        tables.commit(table, a_batch("A", rows=3))

    def dataset(self, **spec: Any) -> Document:
        own = {
            "table": {"catalog": "lite", "name": "air.flights"},
            "batchColumn": "batch_id",
            "buffer": {"uri": f"file://{self.folder}/buffer"},
        }
        return resource("Dataset", "flights", {**own, **spec})

    def apply(self, *documents: Document) -> list[str]:
        """What kubectl says that it did."""
        return kubectl(self.server, "apply", *documents).split("\n")

    def plan(self, *documents: Document, code: int = 0, home: str = "home") -> dict[str, Any]:
        """As the guest sees it."""
        file = self.folder / "plan.yaml"
        file.write_text(yaml.safe_dump_all(documents))
        ended = lethe(self.guest, "plan", "-f", str(file), "-o", "json", PYICEBERG_HOME=str(self.folder / home))
        assert ended.returncode == code, ended.stdout + ended.stderr
        found: dict[str, Any] = json.loads(ended.stdout)
        return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("plan")
    with api_server(folder / "server") as server:
        yield Cluster(server, folder)


@pytest.fixture
def flights(cluster: Cluster) -> Cluster:
    """With the Dataset, as kubectl applies it, and nothing else."""
    for kind in (RESTATEMENTS, VACUUM_POLICIES, DATASETS):
        for found in cluster.server.kube.list(kind, "default"):
            cluster.server.kube.delete(kind, "default", found["metadata"]["name"])
    cluster.apply(cluster.dataset(consolidation={"minBatches": 5, "maxAgeSeconds": 60}))
    return cluster


def a_revert(*batches: str) -> Document:
    return resource(
        "Restatement",
        "fix",
        {
            "datasetRef": {"name": "flights"},
            "operation": "Revert",
            "batchIds": [*batches],
            "unknownBatches": "Allow",
        },
    )


def test_a_reader_sees_the_effect_of_a_revert(flights: Cluster) -> None:
    found = flights.plan(a_revert("A", "B"))

    (revert,) = found["resources"]
    assert found["message"] == "1 to create, 0 to change, 0 unchanged; deletes 3 rows of 1 batch in 1 file"
    assert revert["effect"]["batches"] == {"inTable": ["A"], "waiting": [], "deletedBefore": [], "unknown": ["B"]}


def test_kubectl_changes_what_the_plan_says(flights: Cluster) -> None:
    """A field that left the manifest, one that changed, and a default that is written out."""
    wanted = flights.dataset(consolidation={"minBatches": 7, "minBytes": "128Mi"})
    before = flights.server.kube.get(DATASETS, "default", "flights")["spec"]

    (change,) = flights.plan(wanted)["resources"]
    flights.apply(wanted)
    after = flights.server.kube.get(DATASETS, "default", "flights")["spec"]

    assert {f["path"]: f["new"] for f in change["fields"]} == {
        "spec.consolidation.maxAgeSeconds": after["consolidation"]["maxAgeSeconds"],
        "spec.consolidation.minBatches": 7,
    }
    changed = {k for k in after["consolidation"] if after["consolidation"][k] != before["consolidation"][k]}
    assert changed == {"maxAgeSeconds", "minBatches"}
    assert flights.plan(wanted)["message"] == "0 to create, 0 to change, 1 unchanged"
    assert flights.apply(wanted)[0] == "dataset.lethe.dev/flights unchanged"


def test_what_the_server_refuses_the_plan_refuses_with_the_same_reason(flights: Cluster) -> None:
    flights.apply(a_revert("A"))
    other = a_revert("A", "B")

    (refused,) = flights.plan(other, code=1)["resources"]
    with pytest.raises(AssertionError) as of_server:
        flights.apply(other)

    assert refused["action"] == "refused"
    for said in (refused["problem"], str(of_server.value)):
        assert "spec.batchIds" in said
        assert "batchIds is immutable; create a new Restatement instead" in said


def test_without_credentials_for_the_catalog_the_status_is_used(flights: Cluster) -> None:
    status = {"status": {"batches": {"promoted": 7}, "buffer": {"batches": 2}}}
    flights.server.kube.patch(DATASETS, "default", "flights", status, "status")

    found = flights.plan(a_revert("A"), flights.dataset(consolidation={"minBatches": 1}), home="nowhere")

    revert, dataset = found["resources"]
    assert "the catalog lite is not in .pyiceberg.yaml of this machine" in revert["unknown"]
    assert found["message"].endswith("; unknown effects of 2 resources")
    assert dataset["action"] == "change"


def test_a_missing_right_is_one_line(flights: Cluster) -> None:
    file = flights.folder / "other.yaml"
    file.write_text(yaml.safe_dump({**a_revert("A"), "metadata": {"name": "fix", "namespace": "kube-system"}}))

    ended = lethe(flights.guest, "plan", "-f", str(file))

    one_line(ended, 10, "Forbidden", "you may not get restatements.lethe.dev in namespace")


def test_the_guest_may_not_write(flights: Cluster) -> None:
    """Otherwise the tests above would not show that a plan only reads."""
    refused = lethe(flights.guest, "revert", "flights", "A", "--dry-run")

    one_line(refused, 10, "Forbidden", "you may not create restatements.lethe.dev")
