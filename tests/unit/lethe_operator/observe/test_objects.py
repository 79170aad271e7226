"""What the operator knows of the objects of Kubernetes: never older than its own writes, whatever comes in whichever order."""

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from lethe_operator.handlers.relist import AFTER_LISTING_SECONDS, Relists
from lethe_operator.handlers.watch_events import keys_of
from lethe_operator.health import OperatorHealth
from lethe_operator.kube import (
    CONFIG_MAPS,
    DATASETS,
    JOBS,
    LEASES,
    PODS,
    RESTATEMENTS,
    SERVICE_ACCOUNTS,
    SPARK_APPLICATIONS,
    VACUUM_POLICIES,
    Away,
    Document,
    ResourceKind,
)
from lethe_operator.observe import objects as module
from lethe_operator.observe.objects import Objects
from lethe_operator.observe.relist import READ_ONE_BY_ONE
from lethe_operator.observe.run_objects import RunObject
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import Invalid
from lethe_operator.schedule import Key

from tests.support.clock import ManualClock
from tests.support.fake_cluster import Client, FakeCluster, watched
from tests.support.resources import a_dataset_body, a_restatement_body

MANAGED = {"app.kubernetes.io/managed-by": "lethe", "app.kubernetes.io/name": "lethe"}


def a_body(name: str, version: int, uid: str = "", **fields: Any) -> Document:
    """An object as a watch reports it; labels are those of an object that is watched, and more."""
    labels = {**MANAGED, **fields.pop("labels", {})}
    metadata = {"namespace": "ns", "name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": {**metadata, "labels": labels, **fields.pop("meta", {})}, **fields}


def a_dataset_at(version: int, uid: str = "u", generation: int = 1, **spec: Any) -> Document:
    return a_dataset_body("d", meta={"resourceVersion": str(version), "uid": uid, "generation": generation}, **spec)


def known(objects: Objects) -> Dataset:
    found = objects.dataset("ns", "d")
    assert isinstance(found, Dataset)
    return found


# --- versions ----------------------------------------------------------------------------------------------------------


def test_an_object_never_becomes_older() -> None:
    objects = Objects()
    told = [objects.record_event(DATASETS, "MODIFIED", a_dataset_at(v, batchColumn=f"c{v}")) for v in (5, 9, 7, 9, 10)]

    assert told == [True, True, False, False, True]
    assert known(objects).spec.batch_column == "c10"


def test_a_new_leader_finds_what_has_something_to_do() -> None:
    objects = Objects()
    ended, active = {"name": "r1", "finishTime": "2026-03-01T12:00:00Z"}, {"name": "r2"}
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
    objects = Objects()
    objects.record_event(DATASETS, "ADDED", a_dataset_at(5))

    assert objects.record_event(DATASETS, "DELETED", a_dataset_at(8))
    assert not objects.record_event(DATASETS, None, a_dataset_at(7))
    assert objects.dataset("ns", "d") is None


def test_an_object_that_matches_its_selector_again_is_known_again() -> None:
    """A watch reports it as deleted when somebody removes the label, and as added when it is back: with one UID."""
    objects = Objects()
    objects.record_event(CONFIG_MAPS, "ADDED", a_body("m", 5))
    objects.record_event(CONFIG_MAPS, "DELETED", a_body("m", 8))

    assert objects.record_event(CONFIG_MAPS, "ADDED", a_body("m", 9))
    assert objects.config_map("ns", "m") is not None


def test_a_successor_of_the_same_name_survives_late_news_about_its_predecessor() -> None:
    objects = Objects()
    objects.record_event(DATASETS, "ADDED", a_dataset_at(5, "old"))
    objects.record_event(DATASETS, "ADDED", a_dataset_at(9, "new"))

    assert not objects.record_event(DATASETS, "MODIFIED", a_dataset_at(7, "old"))
    assert not objects.record_event(DATASETS, "DELETED", a_dataset_at(8, "old"))
    assert known(objects).meta.uid == "new"


def test_a_dataset_is_parsed_once_for_each_version(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse = module.parse_dataset
    monkeypatch.setattr(module, "parse_dataset", lambda body: parsed.append(body["metadata"]["name"]) or parse(body))
    objects = Objects()
    for version in (5, 5, 6, 6, 5):
        objects.record_event(DATASETS, "MODIFIED", a_dataset_at(version))

    assert objects.datasets("ns")[0] is objects.dataset("ns", "d")
    assert parsed == ["d", "d"]


def test_an_invalid_dataset_is_known_and_not_among_the_valid_ones() -> None:
    objects = Objects()
    objects.record_event(DATASETS, "ADDED", a_dataset_at(5, batchColumn=7))

    found = objects.dataset("ns", "d")
    assert isinstance(found, Invalid)
    assert "spec.batchColumn" in found.message
    assert (objects.datasets("ns"), [m.name for m in objects.dataset_metas("ns")]) == ((), ["d"])


def test_what_no_decision_reads_is_not_kept() -> None:
    objects = Objects()
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
    objects = Objects()
    objects.record_event(DATASETS, "ADDED", a_dataset_at(5))
    objects.written(DATASETS, {**a_dataset_at(8), "status": {"phase": "8"}})

    told = [objects.record_event(DATASETS, "MODIFIED", a_dataset_at(v)) for v in (7, 8)]

    assert (known(objects).status, told) == ({"phase": "8"}, [False, False])


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
    objects, reported = Objects(), []
    objects.on_change = lambda kind, body: reported.append((kind, body["metadata"]["resourceVersion"]))
    objects.record_event(DATASETS, "ADDED", a_dataset_at(5))

    own, both = a_dataset_at(6), a_dataset_at(9)
    both["metadata"].update(change)
    objects.written(DATASETS, own)
    objects.written(DATASETS, both)

    assert reported == [(DATASETS, "9")]


def test_a_version_of_a_config_map_that_an_answer_has_skipped_is_news() -> None:
    """It may be the result of a run, written between two keys of the operator's."""
    objects = Objects()
    objects.record_event(CONFIG_MAPS, "ADDED", a_body("m", 5))
    objects.written(CONFIG_MAPS, a_body("m", 8, data={"result": "there"}))

    assert objects.record_event(CONFIG_MAPS, "MODIFIED", a_body("m", 7))
    assert not objects.record_event(CONFIG_MAPS, "MODIFIED", a_body("m", 8))
    assert (objects.config_map("ns", "m") or {})["data"] == {"result": "there"}


def test_answers_about_objects_that_no_watch_reports_are_not_kept() -> None:
    """They would never change again."""
    objects = Objects("the-committer")
    other = a_body("m", 5, meta={"labels": {}})
    objects.written(CONFIG_MAPS, other)
    objects.written(SERVICE_ACCOUNTS, a_body("s", 5))
    for name in ("the-committer", "another"):
        objects.written(LEASES, a_body(name, 5))

    assert objects.config_map("ns", "m") is None
    assert (objects.lease("ns", "the-committer") is not None, objects.lease("ns", "another")) == (True, None)


def test_a_deletion_counts_at_once_and_an_object_that_is_being_deleted_stays() -> None:
    objects = Objects()
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
    objects = Objects()

    def names(found: Iterable[Document | RunObject]) -> list[str]:
        return [f.name if isinstance(f, RunObject) else f["metadata"]["name"] for f in found]

    def at(kind: ResourceKind, name: str, version: int, **labels: str) -> None:
        body = a_body(name, version, labels={k.replace("__", "/").replace("_", "."): v for k, v in labels.items()})
        objects.record_event(kind, "MODIFIED", body)

    shared = {"lethe.dev/shared": "true", "member.lethe.dev/u": "run", "member.lethe.dev/v": "run"}
    objects.record_event(JOBS, "ADDED", a_body("shared", 4, labels=shared))
    vacuum = {"lethe.dev/dataset-uid": "u", "lethe.dev/kind": "Vacuum"}
    objects.record_event(JOBS, "ADDED", a_body("vacuum", 5, labels=vacuum))
    objects.record_event(PODS, "ADDED", a_body("pod", 6, labels={"batch.kubernetes.io/job-name": "vacuum", **vacuum}))

    assert (names(objects.launchers_of("ns", "u")), names(objects.launchers_of("ns", "v"))) == (
        ["shared", "vacuum"],
        ["shared"],
    )
    assert (names(objects.vacuum_jobs("ns")), names(objects.shared_jobs("ns"))) == (["vacuum"], ["shared"])
    assert names(objects.pods_of("ns", "u")) == ["pod"]
    application = a_body("application", 6, labels=vacuum)
    objects.record_event(SPARK_APPLICATIONS, "ADDED", application)
    assert names(objects.launchers_of("ns", "u")) == ["shared", "vacuum", "application"]
    assert names(objects.vacuum_jobs("ns")) == ["vacuum", "application"]
    objects.record_event(SPARK_APPLICATIONS, "DELETED", application)
    assert objects.launchers_of("other", "u") == ()

    objects.record_event(JOBS, "MODIFIED", a_body("shared", 7, labels={"lethe.dev/shared": "true"}))
    objects.record_event(JOBS, "DELETED", a_body("vacuum", 8, labels=vacuum))

    assert (objects.launchers_of("ns", "u"), objects.vacuum_jobs("ns"), names(objects.shared_jobs("ns"))) == (
        (),
        (),
        ["shared"],
    )


# --- listings ----------------------------------------------------------------------------------------------------------


def a_server(count: int) -> FakeCluster:
    return FakeCluster(*((DATASETS, a_dataset_body(f"d{n:03}", meta={"resourceVersion": "1"})) for n in range(count)))


@dataclass
class Finds:
    """What a relist finds that no watch has reported."""

    open: dict[str, str] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)  # what the operator must look at

    def found(self, uid: str, version: str) -> None:
        self.open[uid] = version

    def watched(self, uid: str, version: str) -> None:
        assert self.open.pop(uid, version) == version


def test_a_namespace_is_listed_once_although_several_ask_at_once() -> None:
    client, objects = Client(a_server(2)), Objects()
    asked = threading.Event()
    client.before = {0: lambda: asked.wait(10)}
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(objects.ensure, client, "ns") for _ in range(2)]  # type: ignore[arg-type]
        asked.set()
        for one in both:
            one.result()

    assert len(objects.datasets("ns")) == 2
    assert client.requests.count("page Dataset") == 1
    assert objects.is_synced(["ns"])
    assert not objects.is_synced(["ns", "other"])


def test_a_listing_that_fails_is_repeated() -> None:
    def fail() -> None:
        raise Away(0, "NoAnswer", "GET")

    client, objects = Client(a_server(1), before={3: fail}), Objects()
    with pytest.raises(Away):
        objects.ensure(client, "ns")  # type: ignore[arg-type]

    assert not objects.is_synced(["ns"])
    objects.ensure(client, "ns")  # type: ignore[arg-type]
    assert objects.is_synced(["ns"])


def test_an_event_that_comes_while_a_page_is_read_is_newer_than_the_page() -> None:
    server, objects = a_server(3), Objects()
    server.watchers.append(objects)

    def change() -> None:
        server.patch(DATASETS, "ns", "d000", {"spec": {"batchColumn": "edited"}})
        server.delete(DATASETS, "ns", "d001")
        server.create(DATASETS, "ns", a_dataset_body("new", meta={"resourceVersion": "99"}))

    objects.ensure(Client(server, after={0: change}), "ns")  # type: ignore[arg-type]

    found = {d.meta.name: d.spec.batch_column for d in objects.datasets("ns")}
    assert found == {"d000": "edited", "d002": "batch_id", "new": "batch_id"}


def behind(server: FakeCluster, kind: ResourceKind = DATASETS) -> tuple[Objects, Finds]:
    """A store whose watch of a kind has stopped."""
    objects, finds = watched(server), Finds()
    objects.finds = finds
    objects.on_change = lambda _, body: finds.changed.append(body["metadata"]["name"])
    server.held_back.add(kind)
    return objects, finds


def test_a_relist_finds_what_the_watch_has_lost_and_reads_only_that() -> None:
    server = a_server(40)
    objects, finds = behind(server)
    server.patch(DATASETS, "ns", "d003", {"spec": {"batchColumn": "edited"}})
    server.delete(DATASETS, "ns", "d004")
    server.create(DATASETS, "ns", a_dataset_body("new", meta={"resourceVersion": "99"}))
    client = Client(server)

    objects.catch_up(client, ["ns"], [DATASETS])  # type: ignore[arg-type]

    assert client.requests == ["page Dataset", "get Dataset", "get Dataset"]
    found = {d.meta.name: d.spec.batch_column for d in objects.datasets("ns")}
    assert (len(found), found["d003"], "d004" in found, "new" in found) == (40, "edited", False, True)
    assert set(finds.open) == {"uid-d003", "uid-new"}
    assert sorted(finds.changed) == ["d003", "d004", "new"]


def test_a_page_of_which_much_has_changed_is_read_in_one_request() -> None:
    server = a_server(40)
    objects, finds = behind(server)
    for n in range(READ_ONE_BY_ONE + 1):
        server.patch(DATASETS, "ns", f"d{n:03}", {"spec": {"batchColumn": "edited"}})
    client = Client(server)

    objects.catch_up(client, ["ns"], [DATASETS])  # type: ignore[arg-type]

    assert client.requests == ["page Dataset", "page Dataset"]
    assert (
        [d.spec.batch_column for d in objects.datasets("ns")].count("edited") == len(finds.open) == READ_ONE_BY_ONE + 1
    )


def test_a_change_that_the_watch_reports_during_the_relist_is_no_sign_of_a_dead_watch() -> None:
    server = a_server(2)
    objects, finds = behind(server)
    server.patch(DATASETS, "ns", "d000", {"spec": {"batchColumn": "edited"}})
    # Between the page of metadata and the read of the object.
    client = Client(server, before={1: lambda: server.release(DATASETS)})

    objects.catch_up(client, ["ns"], [DATASETS])  # type: ignore[arg-type]

    assert (finds.open, finds.changed) == ({}, [])


def test_a_job_or_a_restatement_that_a_relist_does_not_find_concerns_its_dataset() -> None:
    job = a_body("j", 3, labels={"lethe.dev/dataset-uid": "u"}, meta={"annotations": {"lethe.dev/dataset": "flights"}})
    job["metadata"]["labels"] = MANAGED
    server = FakeCluster((JOBS, job), (RESTATEMENTS, a_restatement_body("r", datasetRef={"name": "trains"})))
    objects, _ = behind(server, JOBS)
    server.held_back.add(RESTATEMENTS)
    keys: list[Key] = []
    objects.on_change = lambda kind, body: keys.extend(keys_of(kind, body))
    server.delete(JOBS, "ns", "j")
    server.delete(RESTATEMENTS, "ns", "r")

    objects.catch_up(server, ["ns"], [JOBS, RESTATEMENTS])  # type: ignore[arg-type]

    assert keys == [Key("Dataset", "ns", "flights"), Key("Dataset", "ns", "trains")]


def test_an_object_of_the_operators_own_that_a_page_is_too_old_to_show_stays() -> None:
    server = a_server(1)
    objects, _ = behind(server)

    def create() -> None:
        objects.written(DATASETS, server.create(DATASETS, "ns", a_dataset_body("own", meta={"resourceVersion": "99"})))

    objects.catch_up(Client(server, after={0: create}), ["ns"], [DATASETS])  # type: ignore[arg-type]

    assert [d.meta.name for d in objects.datasets("ns")] == ["d000", "own"]


def test_a_watch_that_lists_again_causes_a_relist_of_its_kind_because_it_does_not_report_deletions() -> None:
    server, clock = a_server(2), ManualClock()
    objects, _ = behind(server)
    health = OperatorHealth(clock, 600)
    client = Client(server)
    monotonic = ManualClock(1000.0)
    relists = Relists(objects, client, ["ns"], health, clock=monotonic)  # type: ignore[arg-type]
    objects.clock = monotonic
    relists.step()
    server.delete(DATASETS, "ns", "d001")
    client.requests.clear()

    objects.record_event(DATASETS, None, server.get(DATASETS, "ns", "d000"))
    relists.step()
    assert client.requests == []  # it may still be listing
    monotonic.now += AFTER_LISTING_SECONDS + 1
    relists.step()
    relists.step()

    assert client.requests == ["page Dataset"]
    assert [d.meta.name for d in objects.datasets("ns")] == ["d000"]


def test_everything_is_listed_again_after_an_error_and_when_its_time_has_come() -> None:
    server, clock = a_server(1), ManualClock()
    objects, client = watched(server), Client(server)
    relists = Relists(objects, client, ["ns"], OperatorHealth(clock, 600), clock=clock, seconds=600)  # type: ignore[arg-type]

    def listings() -> int:
        client.requests.clear()
        relists.step()
        return client.requests.count("page Dataset")

    assert listings() == 1
    clock.now += 500
    assert listings() == 0
    clock.now += 161  # with the jitter
    assert listings() == 1
    clock.now += 661

    def fail() -> None:
        raise Away(0, "NoAnswer", "GET")

    client.before = {0: fail}
    with pytest.raises(Away):
        listings()
    client.before = {}
    assert listings() == 1


# --- writes without an answer ------------------------------------------------------------------------------------------


def test_a_write_without_an_answer_is_looked_up_before_the_next_decision() -> None:
    """Otherwise the operator could start another run beside the Job that it did create."""
    server = a_server(1)
    objects, _ = behind(server, JOBS)
    server.create(JOBS, "ns", a_body("made", 0, labels={"lethe.dev/dataset-uid": "u"}))
    objects.unanswered(JOBS, "ns", "made")
    objects.unanswered(JOBS, "ns", "not-made")
    client = Client(server)

    objects.ensure(client, "ns")  # type: ignore[arg-type]
    objects.ensure(client, "ns")  # type: ignore[arg-type]

    assert [j.name for j in objects.launchers_of("ns", "u")] == ["made"]
    assert client.requests == ["get Job", "get Job"]


def test_a_write_stays_doubtful_until_it_could_be_looked_up() -> None:
    def fail() -> None:
        raise Away(0, "NoAnswer", "GET")

    server = a_server(1)
    objects, _ = behind(server, JOBS)
    objects.unanswered(JOBS, "ns", "made")
    # The second write is lost while the first one is being looked up.
    client = Client(server, before={0: fail, 1: lambda: objects.unanswered(JOBS, "ns", "made")})

    with pytest.raises(Away):
        objects.ensure(client, "ns")  # type: ignore[arg-type]
    for _ in range(3):
        objects.ensure(client, "ns")  # type: ignore[arg-type]

    assert client.requests == ["get Job"] * 3


def test_a_policy_is_known_with_its_version() -> None:
    objects = Objects()
    body = {"metadata": {**a_body("p", 5)["metadata"], "generation": 1}, "spec": {"datasetSelector": {}}}
    objects.record_event(VACUUM_POLICIES, "ADDED", body)

    found = objects.policy("ns", "p")
    assert found is not None
    assert (found.meta.resource_version, objects.policy_names("ns")) == ("5", ("p",))


# --- Datasets that use the same places --------------------------------------------------------------------------------


def near(objects: Objects, *uris: str, queue: str = "") -> list[str]:
    return [d.meta.name for d in objects.datasets_near("ns", uris, queue)]


def a_dataset_with(name: str, buffer: dict[str, Any], version: int = 1, **more: Any) -> Document:
    return a_dataset_body(name, meta={"resourceVersion": str(version), **more.pop("meta", {})}, buffer=buffer, **more)


def test_datasets_are_found_by_buffer_table_and_queue_as_they_are_now() -> None:
    objects = Objects()
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
    objects = Objects()
    deleting = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    objects.record_event(DATASETS, "ADDED", a_dataset_with("a", {"uri": "s3://lake/a"}, meta=deleting))

    assert near(objects, "s3://lake/a") == []
