"""The store of objects on the real API server: what it lists, in which pages, and what its answers tell."""

import json
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import kubernetes.client
import kubernetes.config
import pytest
from lethe import kube as kube_module
from lethe.kube import DATASETS, JOBS, RESTATEMENTS, Kube
from lethe_operator.cluster.client import of_configuration
from lethe_operator.dataset import objects as objects_module
from lethe_operator.dataset.objects import WatchedObjects

from tests.cluster.kube import Cluster
from tests.cluster.test_crds import cluster  # the definitions alone, without an operator
from tests.support.manifests import dataset_manifest, named, restatement_manifest

pytestmark = pytest.mark.cluster
__all__ = ["cluster"]


@dataclass
class Reader:
    """The store of an operator in this process, in a namespace of its own. No watch feeds it."""

    cluster: Cluster
    kube: Kube
    objects: WatchedObjects = field(default_factory=WatchedObjects)
    requests: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.kube.answers = self.objects
        self.kube.on_request = lambda method, plural, _status: self.requests.update([f"{method} {plural}"])

    def dataset(self, name: str) -> None:
        self.cluster.apply(named(name, dataset_manifest(buffer={"uri": f"s3://lake/buffer/{name}"})))

    def versions(self) -> dict[str, str]:
        return {d.name: d.resource_version for d in self.objects.dataset_metas(self.cluster.namespace)}

    def real(self) -> dict[str, str]:
        found = self.cluster.list("datasets")
        return {d["metadata"]["name"]: d["metadata"]["resourceVersion"] for d in found}

    def catch_up(self) -> Counter[str]:
        """The requests that it takes."""
        self.requests.clear()
        self.objects.catch_up(self.kube, [self.cluster.namespace])
        return self._of_datasets()

    def take_over(self) -> Counter[str]:
        """The same for a new leader, without its watches."""
        self.requests.clear()
        self.objects.take_over(self.kube, [self.cluster.namespace])
        return self._of_datasets()

    def _of_datasets(self) -> Counter[str]:
        return Counter({k: n for k, n in self.requests.items() if k.endswith("datasets")})


@pytest.fixture
def reader(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.setattr(kube_module, "PAGE", 2)
    configuration = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(str(cluster.kubeconfig), client_configuration=configuration)
    name = f"reads-{uuid.uuid4().hex[:6]}"
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield Reader(cluster.in_namespace(name), Kube(of_configuration(configuration)))
    cluster.begin_to_delete(f"namespace/{name}")


def test_pages_of_metadata_find_what_changed_and_only_that_is_read(reader: Reader) -> None:
    for name in "abcde":
        reader.dataset(name)
    assert reader.catch_up() == {"GET datasets": 3}  # whole pages
    assert reader.versions() == reader.real()
    reader.cluster.annotate("dataset/b", paused="true")
    reader.cluster.delete("dataset/d")
    reader.dataset("f")

    assert reader.catch_up() == {"GET datasets": 3 + 2}  # pages of metadata, and b and f
    assert reader.versions() == reader.real()
    assert reader.catch_up() == {"GET datasets": 3}


def test_a_new_leader_reads_only_what_has_changed_of_a_kind_with_many_objects(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcde":
        reader.dataset(name)
    assert reader.take_over() == {"GET datasets": 3}  # nothing is known yet
    changed: list[str] = []
    reader.objects.on_change = lambda kind, body: changed.append(f"{kind.name} {body['metadata']['name']}")
    reader.cluster.annotate("dataset/b", paused="true")
    reader.cluster.delete("dataset/d")
    reader.dataset("f")
    monkeypatch.setattr(objects_module, "CHANGES_FROM", 4)

    assert reader.take_over() == {}  # a watch
    assert reader.versions() == reader.real()
    assert sorted(changed) == ["Dataset b", "Dataset d", "Dataset f"]


def test_a_new_leader_lists_what_the_api_server_no_longer_knows_the_changes_of(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader.dataset("a")
    reader.take_over()
    monkeypatch.setattr(objects_module, "CHANGES_FROM", 0)
    monkeypatch.setattr(objects_module, "newest", lambda _known: "1")
    reader.dataset("b")

    assert reader.take_over() == {"GET datasets": 1 + 1}  # a page of metadata, and b
    assert reader.versions() == reader.real()


def test_answers_to_writes_are_what_a_list_would_show(reader: Reader) -> None:
    """So the operator need not read again what it has written or deleted."""
    namespace = reader.cluster.namespace
    reader.dataset("a")
    reader.cluster.apply(named("r", restatement_manifest(datasetRef={"name": "a"})))
    reader.catch_up()
    pod = {"restartPolicy": "Never", "containers": [{"name": "spark", "image": "none"}]}
    labels = {"app.kubernetes.io/managed-by": "lethe", "lethe.dev/dataset-uid": "u"}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j", "labels": labels},
        "spec": {"suspend": True, "template": {"spec": pod}},
    }

    reader.kube.patch(DATASETS, namespace, "a", {"status": {"observedGeneration": 1}}, "status")
    reader.kube.create(JOBS, namespace, job)
    uid = reader.objects.restatements.uid(namespace, "r")
    reader.kube.delete(RESTATEMENTS, namespace, "r", uid=uid)

    assert reader.versions() == reader.real()
    (known,) = reader.objects.launchers_of(namespace, "u")
    assert (known.name, known.suspended != "") == ("j", True)
    assert reader.objects.restatements.uid(namespace, "r") == ""
    assert reader.catch_up() == {"GET datasets": 1}

    reader.kube.delete(JOBS, namespace, "j", policy="Foreground")
    # It stays until its dependants are gone, and the answer shows it so.
    for left in reader.objects.launchers_of(namespace, "u"):
        assert "deletionTimestamp" in left.metadata


def test_a_watch_from_an_expired_version_is_answered_by_an_event(reader: Reader) -> None:
    """kopf lists again after such an event. An error in its place would stop the operator."""
    path = f"{DATASETS.path(reader.cluster.namespace)}?watch=true&resourceVersion=1&timeoutSeconds=5"

    (event,) = reader.cluster.run("get", "--raw", path).splitlines()

    assert (json.loads(event)["type"], json.loads(event)["object"]["code"]) == ("ERROR", 410)
