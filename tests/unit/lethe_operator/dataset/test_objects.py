"""What the operator knows of the objects of Kubernetes: never older than its own writes, whatever comes in whichever order."""

from collections.abc import Iterable
from typing import Any

import pytest
from lethe.kube import (
    CONFIG_MAPS,
    DATASETS,
    JOBS,
    LEASES,
    PODS,
    RESTATEMENTS,
    SERVICE_ACCOUNTS,
    SPARK_APPLICATIONS,
    VACUUM_POLICIES,
    Document,
    ResourceKind,
)
from lethe_operator.dataset import objects as module
from lethe_operator.dataset.objects import WatchedObjects
from lethe_operator.resources.observed import Invalid
from lethe_operator.runs.observe import RunObject

from tests.support.resources import a_dataset_body, a_restatement_body
from tests.unit.lethe_operator.dataset.known_objects import a_body, a_dataset_at, known

# --- versions ----------------------------------------------------------------------------------------------------------


def test_an_object_never_becomes_older() -> None:
    objects = WatchedObjects()
    told = [objects.record_event(DATASETS, "MODIFIED", a_dataset_at(v, batchColumn=f"c{v}")) for v in (5, 9, 7, 9, 10)]

    assert told == [True, True, False, False, True]
    assert known(objects).spec.batch_column == "c10"


def test_a_new_leader_finds_what_has_something_to_do() -> None:
    objects = WatchedObjects()
    active = {"name": "r2", "kind": "Vacuum"}
    ended = {**active, "name": "r1", "finishTime": "2026-03-01T12:00:00Z"}
    statuses: dict[str, dict[str, Any]] = {
        "idle": {"observedGeneration": 1, "runs": [ended]},
        "edited": {"observedGeneration": 0},
        "new": {},
        "running": {"observedGeneration": 1, "runs": [active, ended]},
        "restated": {"observedGeneration": 1},
        "done": {"observedGeneration": 1},
    }
    for name, status in statuses.items():
        objects.record_event(DATASETS, "ADDED", a_dataset_body(name, meta={"uid": f"uid-{name}"}, status=status))
    succeeded = {"type": "Succeeded", "status": "True"}
    for name, shown in (("restated", {}), ("done", {"observedGeneration": 1, "conditions": [succeeded]})):
        body = a_restatement_body(f"r-{name}", datasetRef={"name": name}, status=shown)
        objects.record_event(RESTATEMENTS, "ADDED", body)

    assert objects.unsettled_datasets("ns") == {"edited", "new", "running", "restated"}
    assert objects.unsettled_datasets("other") == frozenset()


def test_late_news_about_a_deleted_object_does_not_bring_it_back() -> None:
    objects = WatchedObjects()
    objects.record_event(DATASETS, "ADDED", a_dataset_at(5))

    assert objects.record_event(DATASETS, "DELETED", a_dataset_at(8))
    assert not objects.record_event(DATASETS, None, a_dataset_at(7))
    assert objects.dataset("ns", "d") is None


def test_an_object_that_matches_its_selector_again_is_known_again() -> None:
    """A watch reports it as deleted when somebody removes the label, and as added when it is back: with one UID."""
    objects = WatchedObjects()
    objects.record_event(CONFIG_MAPS, "ADDED", a_body("m", 5))
    objects.record_event(CONFIG_MAPS, "DELETED", a_body("m", 8))

    assert objects.record_event(CONFIG_MAPS, "ADDED", a_body("m", 9))
    assert objects.config_map("ns", "m") is not None


def test_a_successor_of_the_same_name_survives_late_news_about_its_predecessor() -> None:
    objects = WatchedObjects()
    objects.record_event(DATASETS, "ADDED", a_dataset_at(5, "old"))
    objects.record_event(DATASETS, "ADDED", a_dataset_at(9, "new"))

    assert not objects.record_event(DATASETS, "MODIFIED", a_dataset_at(7, "old"))
    assert not objects.record_event(DATASETS, "DELETED", a_dataset_at(8, "old"))
    assert known(objects).meta.uid == "new"


def test_a_dataset_is_parsed_once_for_each_version(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse = module.parse_dataset
    monkeypatch.setattr(module, "parse_dataset", lambda body: parsed.append(body["metadata"]["name"]) or parse(body))
    objects = WatchedObjects()
    for version in (5, 5, 6, 6, 5):
        objects.record_event(DATASETS, "MODIFIED", a_dataset_at(version))

    assert objects.datasets("ns")[0] is objects.dataset("ns", "d")
    assert parsed == ["d", "d"]


def test_an_invalid_dataset_is_known_and_not_among_the_valid_ones() -> None:
    objects = WatchedObjects()
    objects.record_event(DATASETS, "ADDED", a_dataset_at(5, batchColumn=7))

    found = objects.dataset("ns", "d")
    assert isinstance(found, Invalid)
    assert "spec.batchColumn" in found.message
    assert (objects.datasets("ns"), [m.name for m in objects.dataset_metas("ns")]) == ((), ["d"])


def test_what_no_decision_reads_is_not_kept() -> None:
    objects = WatchedObjects()
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": "{}", "lethe.dev/paused": "true"}
    meta = {"managedFields": [{"manager": "kubectl"}], "annotations": annotations}
    spec = {"suspend": True, "template": {"spec": {}}, "backoffLimit": 0}
    objects.record_event(JOBS, "ADDED", a_body("j", 5, labels={"lethe.dev/dataset-uid": "u"}, meta=meta, spec=spec))

    objects.record_event(
        PODS, "ADDED", a_body("p", 5, labels={"lethe.dev/dataset-uid": "u"}, spec={"volumes": [1], "x": 2})
    )

    (job,) = objects.launchers_of("ns", "u")
    assert job.suspended
    assert job.metadata["annotations"] == {"lethe.dev/paused": "true"}
    assert "managedFields" not in job.metadata
    (found,) = objects.pods_of("ns", "u")
    assert found["spec"] == {"x": 2}


# --- the operator's own writes -----------------------------------------------------------------------------------------


def test_the_operators_own_write_is_known_at_once_and_no_news_from_the_watch() -> None:
    objects = WatchedObjects()
    objects.record_event(DATASETS, "ADDED", a_dataset_at(5))
    objects.written(DATASETS, {**a_dataset_at(8), "status": {"phase": "8"}})

    told = [objects.record_event(DATASETS, "MODIFIED", a_dataset_at(v)) for v in (7, 8)]

    assert (known(objects).stored.document, told) == ({"phase": "8"}, [False, False])


@pytest.mark.parametrize(
    "change",
    [
        {"generation": 2},
        {"labels": {"team": "air"}},
        {"annotations": {"lethe.dev/paused": "true"}},
        {"deletionTimestamp": "2026-03-01T12:00:00Z"},
    ],
)
def test_a_change_by_others_that_only_an_answer_shows_is_reported(change: dict[str, Any]) -> None:
    """The user edits, the operator writes the status: the answer has both, and the event of the edit is older than it."""
    objects, reported = WatchedObjects(), []
    objects.on_change = lambda kind, body: reported.append((kind, body["metadata"]["resourceVersion"]))
    objects.record_event(DATASETS, "ADDED", a_dataset_at(5))

    own, both = a_dataset_at(6), a_dataset_at(9)
    both["metadata"].update(change)
    objects.written(DATASETS, own)
    objects.written(DATASETS, both)

    assert reported == [(DATASETS, "9")]


def test_a_version_of_a_config_map_that_an_answer_has_skipped_is_news() -> None:
    """It may be the result of a run, written between two keys of the operator's."""
    objects = WatchedObjects()
    objects.record_event(CONFIG_MAPS, "ADDED", a_body("m", 5))
    objects.written(CONFIG_MAPS, a_body("m", 8, data={"result": "there"}))

    assert objects.record_event(CONFIG_MAPS, "MODIFIED", a_body("m", 7))
    assert not objects.record_event(CONFIG_MAPS, "MODIFIED", a_body("m", 8))
    assert (objects.config_map("ns", "m") or {})["data"] == {"result": "there"}


def test_answers_about_objects_that_no_watch_reports_are_not_kept() -> None:
    """They would never change again."""
    objects = WatchedObjects("the-committer")
    other = a_body("m", 5, meta={"labels": {}})
    objects.written(CONFIG_MAPS, other)
    objects.written(SERVICE_ACCOUNTS, a_body("s", 5))
    for name in ("the-committer", "another"):
        objects.written(LEASES, a_body(name, 5))

    assert objects.config_map("ns", "m") is None
    assert (objects.lease("ns", "the-committer") is not None, objects.lease("ns", "another")) == (True, None)


def test_a_deletion_counts_at_once_and_an_object_that_is_being_deleted_stays() -> None:
    objects = WatchedObjects()
    labels = {"lethe.dev/dataset-uid": "u"}
    for name in ("gone", "going"):
        objects.record_event(JOBS, "ADDED", a_body(name, 5, labels=labels))

    objects.deleted(JOBS, "ns", "gone", {"kind": "Status", "details": {"uid": "uid-gone"}})
    going = a_body("going", 7, labels=labels, meta={"labels": labels, "deletionTimestamp": "2026-03-01T12:00:00Z"})
    objects.deleted(JOBS, "ns", "going", {"kind": "Job", **going})

    assert not objects.record_event(JOBS, "MODIFIED", a_body("gone", 9, labels=labels))
    (left,) = objects.launchers_of("ns", "u")
    assert (left.name, "deletionTimestamp" in left.metadata) == ("going", True)


# --- indexes -----------------------------------------------------------------------------------------------------------


def test_jobs_and_pods_are_found_by_what_they_belong_to() -> None:
    objects = WatchedObjects()

    def names(found: Iterable[Document | RunObject]) -> list[str]:
        return [f.name if isinstance(f, RunObject) else f["metadata"]["name"] for f in found]

    def at(kind: ResourceKind, name: str, version: int, **labels: str) -> None:
        body = a_body(name, version, labels={k.replace("__", "/").replace("_", "."): v for k, v in labels.items()})
        objects.record_event(kind, "MODIFIED", body)

    objects.record_event(JOBS, "ADDED", a_body("other", 4, labels={"lethe.dev/dataset-uid": "v"}))
    vacuum = {"lethe.dev/dataset-uid": "u", "lethe.dev/kind": "Vacuum"}
    objects.record_event(JOBS, "ADDED", a_body("vacuum", 5, labels=vacuum))
    objects.record_event(PODS, "ADDED", a_body("pod", 6, labels={"batch.kubernetes.io/job-name": "vacuum", **vacuum}))

    assert (names(objects.launchers_of("ns", "u")), names(objects.launchers_of("ns", "v"))) == (
        ["vacuum"],
        ["other"],
    )
    assert names(objects.vacuum_jobs("ns")) == ["vacuum"]
    assert names(objects.pods_of("ns", "u")) == ["pod"]
    application = a_body("application", 6, labels=vacuum)
    objects.record_event(SPARK_APPLICATIONS, "ADDED", application)
    assert names(objects.launchers_of("ns", "u")) == ["vacuum", "application"]
    assert names(objects.vacuum_jobs("ns")) == ["vacuum", "application"]
    objects.record_event(SPARK_APPLICATIONS, "DELETED", application)
    assert objects.launchers_of("other", "u") == ()

    objects.record_event(JOBS, "MODIFIED", a_body("other", 7))
    objects.record_event(JOBS, "DELETED", a_body("vacuum", 8, labels=vacuum))

    assert (objects.launchers_of("ns", "u"), objects.launchers_of("ns", "v"), objects.vacuum_jobs("ns")) == ((), (), ())


def test_a_policy_is_known_with_its_version() -> None:
    objects = WatchedObjects()
    body = {"metadata": {**a_body("p", 5)["metadata"], "generation": 1}, "spec": {"datasetSelector": {}}}
    objects.record_event(VACUUM_POLICIES, "ADDED", body)

    found = objects.policy("ns", "p")
    assert found is not None
    assert (found.meta.resource_version, objects.policy_names("ns")) == ("5", ("p",))


# --- Datasets that use the same places --------------------------------------------------------------------------------


def near(objects: WatchedObjects, *uris: str, queue: str = "") -> list[str]:
    return [d.meta.name for d in objects.datasets_near("ns", uris, queue)]


def a_dataset_with(name: str, buffer: dict[str, Any], version: int = 1, **more: Any) -> Document:
    return a_dataset_body(name, meta={"resourceVersion": str(version), **more.pop("meta", {})}, buffer=buffer, **more)


def test_datasets_are_found_by_buffer_table_and_queue_as_they_are_now() -> None:
    objects = WatchedObjects()
    queue = {"queueUrl": "https://sqs/q"}
    table = {"table": {"location": "s3://lake/wh/b"}}
    objects.record_event(DATASETS, "ADDED", a_dataset_with("a", {"uri": "s3://lake/buffer/a", "events": queue}))
    objects.record_event(DATASETS, "ADDED", a_dataset_with("b", {"uri": "s3://sea/b"}, status=table))

    assert near(objects, "s3a://lake/buffer/a/x") == ["a"]
    assert near(objects, "s3://lake") == ["a", "b"]
    assert near(objects, "s3://lake/wh/b/data", "s3://sea/b2") == ["b"]
    assert near(objects, queue="https://sqs/q") == ["a"]
    assert near(objects, "s3://lake/buffer/ab", queue="https://sqs/other") == []

    objects.record_event(DATASETS, "MODIFIED", a_dataset_with("a", {"uri": "s3://sea/a"}, version=2))
    objects.record_event(DATASETS, "DELETED", a_dataset_with("b", {"uri": "s3://sea/b"}, version=2))

    assert near(objects, "s3://lake", queue="https://sqs/q") == []
    assert near(objects, "s3://sea") == ["a"]


def test_a_dataset_that_is_being_deleted_is_not_in_the_way_of_another() -> None:
    objects = WatchedObjects()
    deleting = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    objects.record_event(DATASETS, "ADDED", a_dataset_with("a", {"uri": "s3://lake/a"}, meta=deleting))

    assert near(objects, "s3://lake/a") == []
