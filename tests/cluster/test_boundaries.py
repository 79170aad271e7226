"""Datasets and Restatements outside the boundary of their namespace, on the real API server. The operator is this process."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes.client
import kubernetes.config
import pytest
from lethe.kube import CONFIG_MAPS, JOBS, Kube
from lethe_operator.cluster.client import of_configuration
from lethe_operator.cluster.queue import Key
from lethe_operator.dataset.objects import WatchedObjects
from lethe_operator.dataset.tables import TableReader
from lethe_operator.reconcile import Reconciler
from lethe_operator.resources.boundaries import Boundaries, Boundary
from lethe_operator.settings import Settings

from tests.cluster.kube import Cluster, Object, condition
from tests.cluster.test_crds import cluster  # the definitions alone, without an operator
from tests.support.manifests import dataset_manifest, named, restatement_manifest
from tests.support.tables import catalog_in, new_table

pytestmark = pytest.mark.cluster
__all__ = ["cluster"]


@dataclass(frozen=True)
class BoundedTenant:
    """A namespace with a boundary, and the folder in which its lake may be."""

    cluster: Cluster
    kube: Kube
    home: Path
    operator: Reconciler

    def dataset(self, name: str, **spec: Any) -> Object:
        """After a reconcile."""
        given = {"table": {"catalog": "lite", "name": "air.flights"}, "buffer": {"uri": f"file://{self.home}/buffer"}}
        self.cluster.apply(named(name, dataset_manifest(**{**given, **spec})))
        return self.seen(f"dataset/{name}", name)

    def seen(self, ref: str, dataset: str) -> Object:
        self.operator.objects.catch_up(self.kube, [self.cluster.namespace])
        self.operator(Key("Dataset", self.cluster.namespace, dataset))
        found = self.cluster.get(ref)
        assert found is not None
        return found

    def started(self) -> list[str]:
        """Jobs, and ConfigMaps of runs."""
        config_maps = self.kube.list(CONFIG_MAPS, self.cluster.namespace, "app.kubernetes.io/managed-by=lethe")
        found = [*self.kube.list(JOBS, self.cluster.namespace), *config_maps]
        return [o["metadata"]["name"] for o in found]


@pytest.fixture
def tenant(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BoundedTenant]:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    new_table(catalog_in(tmp_path), "air.flights")
    configuration = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(str(cluster.kubeconfig), client_configuration=configuration)
    kube, name = Kube(of_configuration(configuration)), f"boundaries-{uuid.uuid4().hex[:6]}"
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    boundary = Boundary(catalogs=("lite",), tables=("air.*",), uris=(f"file://{tmp_path}",))
    asked = Settings(watch_namespaces=(name,), boundaries=Boundaries(namespaces={name: boundary}))
    operator = Reconciler(kube, WatchedObjects(), TableReader(), asked)
    yield BoundedTenant(cluster.in_namespace(name), kube, tmp_path, operator)
    cluster.begin_to_delete(f"namespace/{name}")


@pytest.mark.parametrize(
    ("spec", "boundary", "value"),
    [
        ({"table": {"catalog": "other", "name": "air.flights"}}, "catalogs", "other"),
        ({"table": {"catalog": "lite", "name": "sea.ships"}}, "tables", "sea.ships"),
        ({"buffer": {"uri": "s3://lake/other/buffer"}}, "uris", "s3://lake/other/buffer"),
        ({"buffer": {"uri": "file:///etc"}}, "uris", "file:///etc"),
    ],
)
def test_a_dataset_outside_its_boundary_shows_it_and_nothing_starts(
    tenant: BoundedTenant, spec: dict[str, Any], boundary: str, value: str
) -> None:
    stalled = condition(tenant.dataset("flights", **spec), "Stalled")

    assert (stalled["status"], stalled["reason"]) == ("True", "OutsideBoundary")
    assert f"{value} is outside the boundary {boundary} of namespace {tenant.cluster.namespace}" in stalled["message"]
    assert tenant.started() == []


def test_a_list_and_a_replacement_outside_say_so_and_nothing_starts(tenant: BoundedTenant) -> None:
    adopted = {"catalog": "lite", "name": "air.flights", "adopt": True}
    assert condition(tenant.dataset("flights", table=adopted), "Stalled").get("status") != "True"
    outside = {
        "listed": restatement_manifest(batchIds=None, batchIdsFrom={"uri": "file:///etc/hostname"}, suspend=None),
        "replayed": restatement_manifest(
            "Replay", replacement={"batchId": "b", "uri": f"file://{tenant.home}/../other/b"}, suspend=None
        ),
    }
    tenant.cluster.apply(*(named(name, body) for name, body in outside.items()))

    for name in outside:
        stalled = condition(tenant.seen(f"restatement/{name}", "flights"), "Stalled")
        assert (stalled["status"], stalled["reason"]) == ("True", "OutsideBoundary")
        assert "is outside the boundary uris of namespace" in stalled["message"]
    assert tenant.started() == []
