"""Datasets of one namespace that share a driver, by whole reconciles: tables and buffers are real, drivers are played."""

from datetime import timedelta
from pathlib import Path

import pytest
from lethe_operator.apply.launch import delete_shared
from lethe_operator.decide.restatement.queue import PAUSE_BETWEEN_COMMITS
from lethe_operator.kube import (
    CONFIG_MAPS,
    DATASETS,
    JOBS,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    Away,
    Document,
    Refused,
    ResourceKind,
)
from lethe_operator.resources.members import ANNOTATION_MEMBERS, member_label, members_of, needed_by
from pyiceberg.catalog import Catalog

from tests.support.fake_cluster import Client, FakeCluster
from tests.unit.lethe_operator.tenant import Tenant


@pytest.fixture
def tenant(catalog: Catalog, tmp_path: Path) -> Tenant:
    return Tenant(catalog, tmp_path)


@pytest.fixture
def two(tenant: Tenant) -> Tenant:
    """Datasets a and b, each with a batch that is due, and offered."""
    tenant.dataset("a", "A")
    tenant.dataset("b", "B")
    tenant.look_at("a", "b")
    return tenant


@pytest.fixture
def sharing(two: Tenant) -> Tenant:
    """Both in one Job, whose driver has not begun."""
    two.gather(after_seconds=5)
    return two


def test_two_that_are_due_together_get_one_job(two: Tenant) -> None:
    """Their intents are stored before, each in its own ConfigMap, and nothing starts while others may come."""
    assert (two.jobs(), two.gather(after_seconds=4)) == ([], two.now + timedelta(seconds=1))
    intents = [two.run(n).consolidation.batch_ids for n in "ab"]  # type: ignore[union-attr]

    two.gather(after_seconds=1)
    two.look_at("a", "b")

    assert intents == [("A",), ("B",)]
    job = two.job()
    assert [o["name"] for o in job["metadata"]["ownerReferences"]] == ["a", "b"]
    assert two.shown("a") == two.shown("b") == [(job["metadata"]["name"], "Pending")]
    assert two.status("a")["consolidation"]["decision"] == "Running"
    assert "RunStarted" in two.reasons("a") & two.reasons("b")


def rights_of(tenant: Tenant, account: str) -> list[str]:
    """The ConfigMaps that a ServiceAccount may touch; every rule names some."""
    bindings = [b for b in tenant.cluster.list(ROLE_BINDINGS, "ns") if account in {s["name"] for s in b["subjects"]}]
    rules = [r for b in bindings for r in tenant.cluster.get(ROLES, "ns", b["roleRef"]["name"])["rules"]]
    return [name for rule in rules for name in rule["resourceNames"]]


def test_a_shared_driver_has_rights_in_its_members_config_maps_for_as_long_as_its_job_is_there(two: Tenant) -> None:
    two.gather(after_seconds=5)
    job = two.job()["metadata"]["name"]

    assert rights_of(two, job) == ["a-runs", "b-runs"]
    assert rights_of(two, "a-runs") == ["a-runs"]

    for name in "ab":
        two.finish(name)
    two.end_job()
    for name in "ab":
        two.cluster.delete(DATASETS, "ns", name)
    two.gather()

    assert job not in {j["metadata"]["name"] for j in two.jobs()}
    for kind in (SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS):
        assert job not in {o["metadata"]["name"] for o in two.cluster.list(kind, "ns")}


def test_an_operator_that_dies_while_it_deletes_a_shared_job_deletes_the_rights_first() -> None:
    """What is left then is the Job, which the next one finds and deletes."""
    client = Client(FakeCluster())

    delete_shared(client, "ns", "shared-1")  # type: ignore[arg-type]

    assert client.requests == ["delete RoleBinding", "delete Role", "delete ServiceAccount", "delete Job"]


def test_one_that_stays_alone_gets_a_job_of_its_own(tenant: Tenant) -> None:
    tenant.dataset("a", "A")
    tenant.look_at("a")

    tenant.gather(after_seconds=5)

    metadata = tenant.job()["metadata"]
    assert metadata["name"] == f"a-consolidation-{tenant.run('a').run_id[:8]}-1"
    assert ANNOTATION_MEMBERS not in metadata["annotations"]
    assert "RunStarted" in tenant.reasons("a")


def test_one_fails_and_the_other_has_succeeded_before_the_driver_ends(sharing: Tenant) -> None:
    sharing.finish("a", reason="SchemaMismatch", message="the table is odd", permanent=True)
    sharing.finish("b")

    sharing.look_at("a", "b")

    name = sharing.job()["metadata"]["name"]
    assert (sharing.shown("a"), sharing.shown("b")) == ([(name, "Failed")], [(name, "Succeeded")])
    ready = {n: sharing.status(n)["conditions"][0] for n in "ab"}
    assert (ready["a"]["status"], ready["a"]["reason"]) == ("False", "SchemaMismatch")
    assert (ready["b"]["status"], ready["b"]["reason"]) == ("True", "Available")
    assert sharing.status("b")["batches"]["promoted"] == 1


def test_a_member_that_has_ended_goes_on_while_the_driver_is_at_the_next(sharing: Tenant) -> None:
    """Its next run need not wait for the others' parts, nor does a Restatement of it."""
    sharing.finish("a")
    sharing.put("a", "A2")
    sharing.wait(PAUSE_BETWEEN_COMMITS)
    sharing.look_at("a", "b")
    sharing.gather(after_seconds=5)

    started = [j["metadata"]["name"] for j in sharing.jobs() if not members_of(j["metadata"])]

    assert [n.rpartition("-consolidation-")[0] for n in started] == ["a"]
    assert sharing.status("b")["consolidation"]["decision"] == "Running"


def test_a_restatement_waits_for_the_members_part_and_not_for_the_job(sharing: Tenant) -> None:
    sharing.revert("a", "A")
    sharing.look_at("a")
    assert len(sharing.jobs()) == 1

    sharing.finish("a")
    sharing.wait(PAUSE_BETWEEN_COMMITS)
    sharing.look_at("a")

    assert [j["metadata"]["name"].split("-")[:2] for j in sharing.jobs()[1:]] == [["a", "restatement"]]


def test_a_restatement_that_comes_while_others_are_waited_for_goes_first(two: Tenant) -> None:
    two.revert("a", "X")
    two.look_at("a")

    two.gather(after_seconds=5)

    started = sorted(j["metadata"]["name"].rsplit("-", 2)[0] for j in two.jobs())
    assert started == ["a-restatement", "b-consolidation"]


def test_a_run_does_not_start_beside_one_that_is_just_being_decided(two: Tenant) -> None:
    """The reconcile has seen no Job; between that and its start of a Restatement the window ends."""
    two.revert("a", "X")
    decided = two.cluster.get

    def while_it_looks(kind: ResourceKind, namespace: str, name: str) -> Document:
        found = decided(kind, namespace, name)
        if (kind, name) == (CONFIG_MAPS, "a-runs"):
            two.gather(after_seconds=10)
        return found

    two.cluster.get = while_it_looks  # type: ignore[method-assign]
    two.look_at("a")
    two.gather(after_seconds=10)

    started = sorted(j["metadata"]["name"].rsplit("-", 2)[0] for j in two.jobs())
    assert started == ["a-restatement", "b-consolidation"]


@pytest.mark.parametrize("how", ["paused", "deleted"])
def test_one_that_is_not_wanted_any_more_is_left_behind(two: Tenant, how: str) -> None:
    if how == "paused":
        two.cluster.patch(DATASETS, "ns", "a", {"metadata": {"annotations": {"lethe.dev/paused": "true"}}})
    else:
        two.cluster.delete(DATASETS, "ns", "a")
    two.look_at("a")

    two.gather(after_seconds=5)

    assert two.job()["metadata"]["name"].startswith("b-consolidation-")


def test_a_new_operator_between_intents_and_job_starts_them_once(two: Tenant) -> None:
    runs = [two.run(n).run_id for n in "ab"]
    two.start_operator()

    two.look_at("a", "b")
    two.gather(after_seconds=5)

    assert [m.run_id for m in members_of(two.job()["metadata"])] == runs


def test_a_new_operator_adopts_the_shared_job(sharing: Tenant) -> None:
    sharing.start_operator()
    sharing.begin("a")

    sharing.look_at("a", "b")
    sharing.gather(after_seconds=60)

    name = sharing.job()["metadata"]["name"]
    assert (sharing.shown("a"), sharing.shown("b")) == ([(name, "Reading")], [(name, "Pending")])
    (told,) = sharing.status("b")["runs"]
    assert "pod" in told["message"]


def test_a_job_whose_answer_was_lost_is_not_started_again_with_others(two: Tenant) -> None:
    """It carries the runs already, under a name that another company would not have."""
    two.cluster.loses = 1
    with pytest.raises(Away):
        two.gather(after_seconds=5)
    two.dataset("c", "C")
    two.look_at("c")

    two.gather(after_seconds=5)

    names = [[m.dataset for m in members_of(j["metadata"])] for j in two.jobs()]
    assert names == [["a", "b"], []]


def test_a_job_that_one_has_left_does_not_count_for_it(sharing: Tenant) -> None:
    """As if it had been deleted, which for the others it must not be: the same run may start anew."""
    shared = sharing.job()["metadata"]
    label = {member_label("uid-a"): None}
    sharing.cluster.patch(JOBS, "ns", shared["name"], {"metadata": {"labels": label}})

    sharing.look_at("a")
    sharing.gather(after_seconds=5)

    own = [j["metadata"]["name"] for j in sharing.jobs() if not members_of(j["metadata"])]
    assert own == [f"a-consolidation-{sharing.run('a').run_id[:8]}-1"]


def test_a_job_that_is_refused_is_told_to_each_and_tried_again(two: Tenant) -> None:
    two.cluster.refuses = 1
    with pytest.raises(Refused):
        two.gather(after_seconds=5)
    assert "LaunchFailed" in two.reasons("a") & two.reasons("b")

    two.gather()

    assert [m.dataset for m in members_of(two.job()["metadata"])] == ["a", "b"]


def test_the_same_company_again_finds_its_job(two: Tenant) -> None:
    """409 means look: the name follows from the attempts, in whatever order they came."""
    two.gather(after_seconds=5)
    job = two.job()
    two.cluster.delete(JOBS, "ns", job["metadata"]["name"])
    two.start_operator()
    two.look_at("b", "a")
    two.cluster.create(JOBS, "ns", {**job, "metadata": {**job["metadata"], "labels": {}}})  # not in the listing yet

    two.gather(after_seconds=5)

    assert two.job()["metadata"]["name"] == job["metadata"]["name"]


def test_what_a_killed_driver_left_open_is_tried_again_by_drivers_of_its_own(sharing: Tenant) -> None:
    """Whoever killed it kills no others a second time; what was finished stays so."""
    sharing.dataset("c")
    sharing.finish("a")
    sharing.begin("b")
    sharing.end_job("Failed")
    sharing.look_at("a", "b")
    (told,) = sharing.status("b")["runs"]
    assert (told["phase"], told["reason"]) == ("Failed", "DriverLost")
    assert sharing.shown("a")[0][1] == "Succeeded"

    sharing.put("c", "C")
    sharing.now += timedelta(seconds=11)
    sharing.look_at("b", "c")
    sharing.gather(after_seconds=5)

    own = sorted(j["metadata"]["name"] for j in sharing.jobs() if not members_of(j["metadata"]))
    assert own == [
        f"b-consolidation-{sharing.run('b').run_id[:8]}-2",
        f"c-consolidation-{sharing.run('c').run_id[:8]}-1",
    ]


def test_one_that_the_driver_never_came_to_says_so(sharing: Tenant) -> None:
    """Out of memory was the one that the driver was at."""
    sharing.begin("a")
    job = sharing.job()["metadata"]
    pod = {"name": "spark", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    labels = {**job["labels"], "job-name": job["name"]}
    sharing.cluster.create(
        ResourceKind("/api/v1", "pods", "Pod"),
        "ns",
        {
            "metadata": {"name": "p", "namespace": "ns", "labels": labels},
            "status": {"phase": "Failed", "containerStatuses": [pod]},
        },
    )
    sharing.end_job("Failed")

    sharing.look_at("a", "b")

    reasons = {n: sharing.status(n)["runs"][0]["reason"] for n in "ab"}
    assert reasons == {"a": "OOMKilled", "b": "SharedRunEnded"}
    assert "2 Datasets share" in sharing.status("b")["runs"][0]["message"]


def test_a_member_that_is_deleted_under_way_leaves_the_others_run_alone(sharing: Tenant) -> None:
    sharing.begin("a")
    sharing.cluster.delete(DATASETS, "ns", "b")
    sharing.look_at("b")
    sharing.finish("a")
    sharing.end_job("Failed")  # the driver could not say how b ended

    sharing.look_at("a")

    assert sharing.shown("a")[0][1] == "Succeeded"


def test_a_shared_job_goes_when_the_last_of_its_datasets_has_left_it(sharing: Tenant) -> None:
    """Each keeps the last runs of a kind; what one has no need of, another may."""
    shared = sharing.job()["metadata"]["name"]
    for name in "ab":
        sharing.finish(name)
    sharing.end_job()
    sharing.look_at("a", "b")

    def three_more(dataset: str) -> None:
        for n in range(3):
            sharing.now += timedelta(minutes=1)
            sharing.put(dataset, f"{dataset}{n}")
            sharing.look_at(dataset)
            sharing.gather(after_seconds=5)
            (new,) = [j["metadata"]["name"] for j in sharing.jobs() if not j.get("status")]
            later = {"metadata": {"creationTimestamp": (sharing.now + timedelta(days=900)).isoformat()}}
            sharing.cluster.patch(JOBS, "ns", new, later)
            sharing.finish(dataset)
            sharing.end_job()
            sharing.look_at(dataset, dataset)

    three_more("a")
    sharing.gather()
    metadata = sharing.cluster.get(JOBS, "ns", shared)["metadata"]
    assert needed_by(metadata) == {"uid-b"}
    three_more("b")

    sharing.gather()

    assert shared not in [j["metadata"]["name"] for j in sharing.jobs()]
