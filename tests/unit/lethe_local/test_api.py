"""Objects behave as those of a Kubernetes API server, and what its definitions and rules refuse is refused."""

import base64
import copy
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lethe.kube import CONFIG_MAPS, DATASETS, JOBS, ResourceKind
from lethe_local.admission import Definition, NotAdmitted, Undecodable, admitted, broken_rules
from lethe_local.api.objects import SECRETS, LocalObjects, StatusError, kinds, matches, merged
from lethe_local.api.store import KEPT_CHANGES, ChangeType, LocalApiStore, StoreClosed

from tests.support.crd_rules import ACCEPTED, FIXED, FREE, FROM_A_MAP, REFUSED
from tests.support.manifests import dataset_manifest, named, restatement_manifest

NS = "default"
Document = dict[str, Any]


@pytest.fixture
def objects(tmp_path: Path) -> Iterator[LocalObjects]:
    store = LocalApiStore(tmp_path / "state.db")
    yield LocalObjects(store)
    store.close()


class Client:
    """Requests for one kind."""

    def __init__(self, objects: LocalObjects, resource: ResourceKind) -> None:
        self.objects, self.kind = objects, objects.kinds[resource.api, resource.plural]

    def create(self, document: Document) -> Document:
        return self.objects.create(self.kind, NS, document)

    def get(self, name: str) -> Document:
        return self.objects.get(self.kind, NS, name)

    def patch(self, name: str, patch: Document, subresource: str = "") -> Document:
        return self.objects.patch(self.kind, (NS, name, subresource), patch)

    def delete(self, name: str, uid: str = "") -> None:
        self.objects.delete(self.kind, NS, name, uid)

    def names(self, selector: str = "") -> list[str]:
        return [o["metadata"]["name"] for o in self.objects.list(self.kind, NS, selector)[0]]


@pytest.fixture
def maps(objects: LocalObjects) -> Client:
    return Client(objects, CONFIG_MAPS)


@pytest.fixture
def datasets(objects: LocalObjects) -> Client:
    return Client(objects, DATASETS)


def config_map(name: str, **metadata: Any) -> Document:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}, "data": {"k": "v"}}


def job(name: str, **metadata: Any) -> Document:
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, **metadata}, "spec": {}}


def refused(status: int, reason: str) -> Any:
    return pytest.raises(StatusError, check=lambda e: (e.status, e.reason) == (status, reason))


def test_a_created_object_has_what_the_server_sets(datasets: Client) -> None:
    created = datasets.create({**named("a", dataset_manifest()), "status": {"phase": "mine"}})

    metadata = created["metadata"]
    assert metadata["generation"] == 1
    assert {"uid", "creationTimestamp", "resourceVersion", "namespace"} <= metadata.keys()
    assert "phase" not in created.get("status", {})  # only the subresource takes a status
    assert datasets.get("a") == created


def test_only_a_deletion_marks_an_object_as_deleted(datasets: Client) -> None:
    marks = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0, "generation": 7}

    created = datasets.create({**dataset_manifest(), "metadata": {"name": "a", **marks}})
    changed = datasets.patch("a", {"metadata": {**marks, "labels": {"team": "air"}}})

    for metadata in (created["metadata"], changed["metadata"]):
        assert (metadata["generation"], metadata.keys() & marks.keys()) == (1, {"generation"})
    assert changed["metadata"]["labels"] == {"team": "air"}


@pytest.mark.parametrize(
    "marks",
    [
        {"labels": {"team": "a b"}},
        {"labels": {"team": "c" * 64}},
        {"labels": {"a b": "c"}},
        {"annotations": {"a/b/c": "any text"}},
        {"annotations": {"-.example/a": "any text"}},
    ],
)
def test_labels_and_annotations_are_those_of_kubernetes(datasets: Client, marks: Document) -> None:
    datasets.create(named("a", dataset_manifest()))

    with refused(422, "Invalid"):
        datasets.patch("a", {"metadata": marks})


def test_a_name_is_taken_once(maps: Client) -> None:
    maps.create(config_map("a"))

    with refused(409, "AlreadyExists"):
        maps.create(config_map("a"))


def test_an_outdated_version_is_a_conflict(maps: Client) -> None:
    version = maps.create(config_map("a"))["metadata"]["resourceVersion"]
    maps.patch("a", {"data": {"k": "new"}})

    with refused(409, "Conflict"):
        maps.patch("a", {"metadata": {"resourceVersion": version}, "data": {"k": "late"}})
    assert maps.get("a")["data"] == {"k": "new"}


def test_a_spec_changes_the_generation_and_a_status_does_not(datasets: Client) -> None:
    datasets.create(named("a", dataset_manifest()))

    with_status = datasets.patch("a", {"status": {"observedGeneration": 1}, "spec": {"deletes": "x"}}, "status")
    with_spec = datasets.patch("a", {"spec": {"consolidation": {"minBatches": 7}}, "status": {"lost": True}})

    assert (with_status["metadata"]["generation"], with_status["spec"]["deletes"]) == (1, "Auto")
    assert (with_spec["metadata"]["generation"], with_spec["status"]) == (2, {"observedGeneration": 1})


def test_a_patch_that_changes_nothing_is_no_change(maps: Client) -> None:
    before = maps.create(config_map("a"))

    assert maps.patch("a", {"data": {"k": "v"}}) == before


def test_an_invalid_change_is_refused_and_nothing_is_stored(maps: Client, datasets: Client) -> None:
    before = datasets.create(named("a", dataset_manifest()))
    maps.create(config_map("b", labels={"x": "1"}))
    maps.create(config_map("c"))

    with refused(422, "Invalid"):
        datasets.patch("a", {"spec": {"batchColumn": "other"}})
    assert datasets.get("a") == before
    assert maps.names("x=1") == ["b"]


def test_an_immutable_object_keeps_its_data(maps: Client) -> None:
    maps.create({**config_map("a"), "immutable": True})
    for patch in ({"data": {"k": "w"}}, {"data": {"l": "v"}}, {"data": None}, {"immutable": False}):
        with refused(422, "Invalid"):
            maps.patch("a", patch)

    assert maps.patch("a", {"data": {"k": "v"}, "metadata": {"labels": {"l": "x"}}})["data"] == {"k": "v"}


def test_a_delete_with_another_uid_is_a_conflict(maps: Client) -> None:
    maps.create(config_map("a"))

    with refused(409, "Conflict"):
        maps.delete("a", uid="another")
    assert maps.names() == ["a"]


def test_what_an_object_owns_goes_with_it_but_jobs_wait_for_their_process(
    objects: LocalObjects, datasets: Client, maps: Client
) -> None:
    owner = datasets.create(named("a", dataset_manifest()))["metadata"]
    owners = [{"apiVersion": "lethe.dev/v1beta1", "kind": "Dataset", "name": "a", "uid": owner["uid"]}]
    jobs = Client(objects, JOBS)
    maps.create(config_map("owned", ownerReferences=owners))
    maps.create(config_map("other"))
    jobs.create(job("run", ownerReferences=owners))

    datasets.delete("a")

    assert maps.names() == ["other"]
    assert "deletionTimestamp" in jobs.get("run")["metadata"]
    objects.remove(jobs.kind, NS, "run", jobs.get("run")["metadata"]["uid"])
    assert jobs.names() == []


def test_an_object_stays_as_long_as_it_has_an_owner(objects: LocalObjects, maps: Client) -> None:
    def owner(of: Document) -> Document:
        return {"apiVersion": "v1", "kind": "ConfigMap", **{k: of["metadata"][k] for k in ("name", "uid")}}

    first, second, gone = (maps.create(config_map(name)) for name in ("first", "second", "gone"))
    maps.delete("gone")
    maps.create(config_map("of-both", ownerReferences=[owner(first), owner(second)]))
    # As by an operator that has not seen the deletion yet.
    maps.create(config_map("too-late", ownerReferences=[owner(gone)]))
    maps.create(config_map("of-too-late", ownerReferences=[owner(maps.get("too-late"))]))

    maps.delete("first")
    objects.collect()

    assert maps.names() == ["of-both", "second"]
    assert maps.get("of-both")["metadata"]["ownerReferences"] == [owner(second)]
    maps.delete("second")
    assert maps.names() == []


def test_the_state_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    first = LocalApiStore(path)
    before = Client(LocalObjects(first), CONFIG_MAPS).create(config_map("a"))
    # Not closed, as after a kill.
    again = Client(LocalObjects(LocalApiStore(path)), CONFIG_MAPS)

    assert again.get("a") == before
    after = again.patch("a", {"data": {"k": "new"}})
    assert int(after["metadata"]["resourceVersion"]) > int(before["metadata"]["resourceVersion"])
    first.close()


@pytest.mark.parametrize("by", ["delete", "change"])
def test_the_former_content_of_a_secret_leaves_the_files_of_the_database(tmp_path: Path, by: str) -> None:
    """Also from the changes that are kept for watches, from the log of the database, and from freed pages."""
    store = LocalApiStore(tmp_path / "state.db")
    client = Client(LocalObjects(store), SECRETS)
    value = base64.b64encode(b"passenger <7>" * 2000).decode()
    applied = {"kubectl.kubernetes.io/last-applied-configuration": f'{{"data": "{value}"}}'}

    def left() -> list[str]:
        return [p.name for p in tmp_path.iterdir() if value[:40].encode() in p.read_bytes()]

    client.create(named("erase-x", {"kind": "Secret", "metadata": {"annotations": applied}, "data": {"k": value}}))
    client.create(named("other", {"kind": "Secret", "metadata": {}, "data": {"k": "b3RoZXI="}}))
    before = left()
    if by == "delete":
        client.delete("erase-x")
    else:
        client.patch("erase-x", {"data": {"k": "bmV3"}, "metadata": {"annotations": None}})

    assert before
    assert left() == []
    assert client.get("other")["data"] == {"k": "b3RoZXI="}
    changes = store.changes("secrets", 0, 0)
    assert changes is not None
    assert [c.type for c in changes[0]] == ["ADDED", "ADDED", "DELETED" if by == "delete" else "MODIFIED"]


def test_the_texts_of_a_secret_replace_its_data(objects: LocalObjects) -> None:
    """As `kubectl patch secret … -p '{"stringData": …}'` does in a cluster: a run mounts the new values."""
    client = Client(objects, SECRETS)
    client.create(named("erase-x", {"kind": "Secret", "metadata": {}, "data": {"ids": "b2xk", "other": "b2xk"}}))

    changed = client.patch("erase-x", {"stringData": {"ids": "new"}})

    assert changed["data"] == {"ids": base64.b64encode(b"new").decode(), "other": "b2xk"}
    assert "stringData" not in changed
    with refused(400, "BadRequest"):
        client.patch("erase-x", {"stringData": {"ids": 7}})


@pytest.mark.parametrize(
    ("content", "status", "reason"),
    [
        (
            {"data": {"ids": "ana@example.org"}},
            400,
            "BadRequest",
        ),  # plain text, which would be decoded to something else
        ({"data": {"ids": "MQ"}}, 400, "BadRequest"),
        ({"data": {"ids": 7}}, 400, "BadRequest"),
        ({"data": ["MQ=="]}, 400, "BadRequest"),
        ({"data": {"../../.profile": "MQ=="}}, 422, "Invalid"),  # it would be written outside of the folder of the pod
        ({"data": {"..": "MQ=="}}, 422, "Invalid"),
        ({"stringData": {"a/b": "x"}}, 422, "Invalid"),
    ],
)
def test_the_content_of_a_secret_is_that_of_files(
    objects: LocalObjects, content: Document, status: int, reason: str
) -> None:
    secrets = Client(objects, SECRETS)
    made = secrets.create(named("a", {"kind": "Secret", "metadata": {}, "data": {"ids": "MQ\n==\n", ".x.yaml": None}}))
    assert made["data"][".x.yaml"] == ""

    with refused(status, reason):
        secrets.create(named("b", {"kind": "Secret", "metadata": {}, **content}))
    with refused(status, reason):
        secrets.patch("a", content)


def test_a_failed_transaction_changes_nothing(objects: LocalObjects, maps: Client) -> None:
    def fail_after_a_write() -> None:
        with objects.store.transaction() as t:
            t.put("configmaps", {"metadata": {"name": "a", "namespace": NS, "uid": "u"}}, ChangeType.ADDED)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_after_a_write()

    assert maps.names() == []


def test_a_wait_for_changes_ends_with_the_first_one(objects: LocalObjects, maps: Client) -> None:
    after = objects.store.version()
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(objects.store.changes("configmaps", after, 60)))
    waiting.start()

    maps.create(config_map("a"))

    waiting.join(timeout=60)
    ((changes, version),) = found
    assert [c.type for c in changes] == [ChangeType.ADDED]
    assert version == objects.store.version()


def test_changes_that_are_no_longer_kept_are_reported_as_expired(
    objects: LocalObjects, maps: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert KEPT_CHANGES > 1000
    monkeypatch.setattr("lethe_local.api.store.KEPT_CHANGES", 2)
    for n in range(5):
        maps.create(config_map(f"m{n}"))

    assert objects.store.changes("configmaps", 1, 0) is None
    assert objects.store.changes("configmaps", objects.store.version() - 2, 0) is not None


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("", ["a", "b", "c"]),
        ("x=1", ["a"]),
        ("x==1", ["a"]),
        ("x!=1", ["b", "c"]),
        ("x", ["a", "b"]),
        ("!x", ["c"]),
        ("x=2,y=3", ["b"]),
        ("x=1,y=3", []),
        ("x in (1, 2),y=3", ["b"]),
        ("x notin (1)", ["b", "c"]),
    ],
)
def test_selectors(selector: str, names: list[str]) -> None:
    labels = {"a": {"x": "1"}, "b": {"x": "2", "y": "3"}, "c": {}}

    assert [name for name, of in labels.items() if matches(selector, of)] == names


@pytest.mark.parametrize(
    ("old", "patch", "new"),
    [
        ({"a": 1}, {"a": None}, {}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}, {"a": {"b": 3, "c": 2}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": 1}, {"a": {"b": None}}, {"a": {}}),
    ],
)
def test_merge_patches(old: Any, patch: Any, new: Any) -> None:
    """The examples of RFC 7396."""
    assert merged(old, patch) == new


def test_a_watch_ends_with_the_store(tmp_path: Path) -> None:
    """The process ends with open watches: they must not ask a closed database."""
    store = LocalApiStore(tmp_path / "state.db")
    ended: list[BaseException] = []

    def watch() -> None:
        try:
            store.changes("pods", store.version(), wait_seconds=60)
        except StoreClosed as e:
            ended.append(e)

    waiting = threading.Thread(target=watch)
    waiting.start()
    store.close()
    waiting.join(timeout=30)

    assert len(ended) == 1
    with pytest.raises(StoreClosed):
        store.version()


DEFINITIONS = {k.definition.kind: k.definition for k in kinds() if k.definition is not None}


def definition_of(document: Document) -> Definition:
    return DEFINITIONS[document["kind"]]


@pytest.mark.parametrize("body", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_what_obeys_the_rules_is_accepted(body: Document) -> None:
    admitted(definition_of(body), body)


@pytest.mark.parametrize(("body", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_breaks_a_rule_is_refused_with_the_message_of_the_api_server(body: Document, message: str) -> None:
    with pytest.raises((NotAdmitted, Undecodable)) as refusal:
        admitted(definition_of(body), body)

    assert message.lower() in str(refusal.value).lower()


@pytest.fixture(scope="module")
def stored() -> dict[str, Document]:
    bodies = {
        "revert": restatement_manifest("Revert", evictBySeconds=60),
        "by reference": restatement_manifest("Revert", batchIds=None, batchIdsFrom=FROM_A_MAP),
        "replay": restatement_manifest("Replay"),
        "undo": restatement_manifest("Undo"),
        "erase": restatement_manifest("Erase"),
        "redact": restatement_manifest("Redact"),
        "dataset": dataset_manifest(table={"catalog": "nowhere", "name": "crds.table"}),
    }
    return {key: admitted(definition_of(body), named(key.replace(" ", "-"), body)) for key, body in bodies.items()}


@pytest.mark.parametrize(("key", "change", "message"), FIXED.values(), ids=FIXED.keys())
def test_what_is_fixed_at_creation_cannot_be_edited(
    stored: dict[str, Document], key: str, change: Document, message: str
) -> None:
    old = stored[key]

    with pytest.raises(NotAdmitted) as refusal:
        admitted(definition_of(old), merged(old, {"spec": change}), old)

    assert message in str(refusal.value)


@pytest.mark.parametrize(("key", "change"), FREE.values(), ids=FREE.keys())
def test_what_steers_a_request_can_be_edited(stored: dict[str, Document], key: str, change: Document) -> None:
    old = stored[key]

    admitted(definition_of(old), merged(old, {"spec": change}), old)


def test_cancelling_cannot_be_taken_back(stored: dict[str, Document]) -> None:
    old = merged(stored["replay"], {"spec": {"cancel": True}})

    with pytest.raises(NotAdmitted, match="cancel cannot be taken back"):
        admitted(definition_of(old), merged(old, {"spec": {"cancel": False}}), old)


def test_defaults_are_in_the_admitted_resource() -> None:
    dataset = admitted(DEFINITIONS["Dataset"], named("a", dataset_manifest()))

    assert dataset["spec"]["snapshots"] == {"maxAgeSeconds": 432000, "minToKeep": 5, "maxCount": 500}
    assert dataset["spec"]["consolidation"]["minBytes"] == "128Mi"
    assert dataset["spec"]["buffer"]["layout"] == "Directory"
    assert "runTemplate" not in dataset["spec"]


def test_a_null_becomes_the_default() -> None:
    restatement = admitted(DEFINITIONS["Restatement"], named("a", restatement_manifest(suspend=None)))

    assert restatement["spec"]["suspend"] is False


def test_the_given_document_is_not_changed() -> None:
    body = named("a", dataset_manifest())
    before = copy.deepcopy(body)

    admitted(DEFINITIONS["Dataset"], body)

    assert body == before


def test_all_problems_are_listed_and_the_rules_wait() -> None:
    body = named("a", dataset_manifest(batchColumn="a.b", deletes="Never", snapshots={"minToKeep": 4, "maxCount": 3}))

    with pytest.raises(NotAdmitted) as refusal:
        admitted(DEFINITIONS["Dataset"], body)

    text = str(refusal.value)
    assert "spec.batchColumn" in text
    assert "spec.deletes" in text
    assert "some validation rules were not checked" in text
    assert "minToKeep cannot be greater" not in text


@pytest.mark.parametrize("name", ["Upper", "a_b", "-a", "", "a" * 254])
def test_names_are_those_of_kubernetes(name: str) -> None:
    with pytest.raises(NotAdmitted, match=r"metadata\.name"):
        admitted(DEFINITIONS["Restatement"], named(name, restatement_manifest()))


def test_rules_are_checked_only_where_something_changes() -> None:
    """A status is written often, beside a spec that was checked when it was stored."""
    even = {"x-kubernetes-validations": [{"rule": "self % 2 == 0", "message": "not even"}]}
    schema = {"properties": {"spec": {"additionalProperties": even}, "status": {"additionalProperties": even}}}
    stored = {"spec": {"a": 1}, "status": {"b": 2, "c": 3}}

    def problems(old: dict[str, Any] | None, **changes: Any) -> list[str]:
        return [p.partition(":")[0] for p in broken_rules(schema, {**stored, **changes}, old)]

    assert problems(None) == ["spec.a", "status.c"]
    assert problems(stored, status={"b": 5, "c": 3}) == ["status.b"]
    assert problems(stored, status={"b": 4, "c": 3}) == []
