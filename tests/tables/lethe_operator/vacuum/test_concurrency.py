"""How many vacuums run at once under one VacuumPolicy, and who goes first. The races are made with whole reconciles in threads,
real tables and an API server in memory."""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from lethe.kube import DATASETS, EVENTS, JOBS, VACUUM_POLICIES, Document, RequestRefused, ResourceKind
from lethe_operator.cluster.queue import Key
from lethe_operator.dataset.objects import WatchedObjects
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import VacuumJob
from lethe_operator.resources.vacuum_policy import VacuumPolicy
from pyiceberg.catalog import Catalog

from tests.support.builders import NOW, a_ledger, a_tombstone, ago
from tests.support.resources import a_dataset, a_policy
from tests.support.tables import revert
from tests.unit.lethe_operator.tenant import Tenant, Unreliable
from tests.unit.lethe_operator.vacuuming import VacuumStory

ONE = a_policy(limits={"concurrentRuns": 1})
TWO = a_policy(limits={"concurrentRuns": 2})


def other(name: str, **changes: Any) -> Dataset:
    """Another Dataset of the namespace, with a buffer of its own."""
    return a_dataset(name, buffer={"uri": f"s3://lake/buffer/{name}"}, **changes)


def waiting(name: str, since: float, reason: str = "TooManyTombstones", **meta: Any) -> Dataset:
    """A Dataset that waits for a place since so many minutes ago."""
    told = {"decision": "Due", "waitingSince": ago(minutes=since).isoformat(), "dueReason": reason}
    return other(name, status={"vacuum": told}, meta=meta)


def running(name: str) -> VacuumJob:
    return VacuumJob(name, f"uid-{name}", active=True)


def ended(name: str, minutes_ago: float) -> VacuumJob:
    return VacuumJob(name, f"uid-{name}", active=False, finished=ago(minutes=minutes_ago))


def decided(
    policy: VacuumPolicy, *others: Dataset, jobs: tuple[VacuumJob, ...] = (), since: float | None = None
) -> VacuumStory:
    """What is decided about flights, which is due, and waits since so many minutes."""
    story = VacuumStory((policy,), peers_in_namespace=others, vacuums=jobs)
    if since is not None:
        story.status = {"vacuum": {"waitingSince": ago(minutes=since).isoformat()}}
    story.decide()
    return story


def test_a_place_that_is_free_is_taken() -> None:
    assert len(decided(ONE, other("a"), jobs=(ended("a", 60),)).launched) == 1
    assert len(decided(TWO, other("a"), jobs=(running("a"),)).launched) == 1


def test_without_a_free_place_it_waits_and_names_the_running_vacuum() -> None:
    story = decided(ONE, other("a"), jobs=(running("a"),))

    assert (story.launched, story.told) == ([], ("Due", "WaitsForOtherVacuums"))
    assert "Waiting for the running vacuum of Dataset a: VacuumPolicy air allows 1 at a time" in story.message
    assert story.status["vacuum"]["waitingSince"] == "2026-03-01T12:00:00Z"
    assert "WaitsForOtherVacuums" in {e.verdict.reason for e in story.events()}


def test_it_has_waited_since_it_first_did() -> None:
    story = decided(ONE, other("a"), jobs=(running("a"),))
    story.wait(hours=1)
    story.decide()

    assert story.status["vacuum"]["waitingSince"] == "2026-03-01T12:00:00Z"
    story.vacuums = (ended("a", 0),)
    assert story.decide().launch is not None
    assert "waitingSince" not in story.status["vacuum"]


@pytest.mark.parametrize(
    ("since", "starts"), [(10, False), (30, True), (None, False)], ids=["shorter", "longer", "only now"]
)
def test_who_has_waited_longest_goes_first(since: float | None, starts: bool) -> None:
    """A place has just become free, and Dataset a waits for twenty minutes."""
    story = decided(ONE, waiting("a", 20), other("b"), jobs=(ended("b", 1),), since=since)

    assert bool(story.launched) == starts
    if not starts:
        assert "Waiting because Dataset a may start first under VacuumPolicy air." in story.message


def test_an_evict_by_goes_before_who_has_waited_longer() -> None:
    story = decided(ONE, waiting("a", 1, "EvictByNear"), since=90)

    assert story.launched == []
    due = VacuumStory((ONE,), a_ledger(a_tombstone("A", evict_by=NOW)), peers_in_namespace=(waiting("a", 90),))
    assert due.decide().launch is not None


def test_there_is_a_place_for_those_behind_if_there_are_enough() -> None:
    assert len(decided(TWO, waiting("a", 20), jobs=(ended("b", 1),), since=10).launched) == 1
    others = waiting("a", 20), waiting("b", 15), other("c")
    assert decided(TWO, *others, jobs=(ended("c", 1),), since=10).launched == []


def test_who_does_not_take_its_turn_keeps_no_other() -> None:
    """A quota refuses its Job, say; five minutes are enough to take a turn."""

    def launches(free_since: float) -> int:
        return len(decided(ONE, waiting("a", 90), jobs=(ended("a", free_since),), since=10).launched)

    assert (launches(4), launches(6)) == (0, 1)


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(waiting("a", 90, annotations={"lethe.dev/paused": "true"}), id="paused"),
        pytest.param(waiting("a", 90, labels={"team": "sea"}), id="another policy decides for it"),
    ],
)
def test_some_who_wait_do_not_count(one: Dataset) -> None:
    sea = a_policy("sea", datasetSelector={"matchLabels": {"team": "sea"}})
    story = VacuumStory((ONE, sea), peers_in_namespace=(one,), vacuums=(ended("b", 1),))

    assert story.decide().launch is not None


def test_vacuums_under_another_policy_take_no_place() -> None:
    sea = a_policy("sea", datasetSelector={"matchLabels": {"team": "sea"}})
    others = (other("a", meta={"labels": {"team": "sea"}}),)
    story = VacuumStory((ONE, sea), peers_in_namespace=others, vacuums=(running("a"),))

    assert story.decide().launch is not None


@pytest.mark.parametrize(("number", "seconds"), [(0, 15), (19, 15), (20, 30), (45, 45), (5_000, 300)])
def test_of_thousands_that_wait_the_last_ones_look_for_a_place_less_often(number: int, seconds: int) -> None:
    """A window opens for a whole fleet at once, and each of its Datasets becomes due."""
    others = (waiting(f"d{i}", 20 + i / 1000) for i in range(number))
    busy = running("busy")

    story = VacuumStory((ONE,), peers_in_namespace=(other("busy"), *others), vacuums=(busy,))
    story.status = {"vacuum": {"waitingSince": ago(minutes=10).isoformat()}}

    assert story.decide().look_again == NOW + timedelta(seconds=seconds)
    assert story.told == ("Due", "WaitsForOtherVacuums")


def test_a_retry_takes_a_place_too() -> None:
    story = decided(ONE, other("a"))
    story.fail()
    story.wait(minutes=5)
    story.vacuums = (running("a"),)

    assert story.decide().launch is None
    assert story.told == ("Due", "WaitsForOtherVacuums")


def test_only_a_limit_costs_a_look_at_the_vacuums_of_others(catalog: Catalog, tmp_path: Path) -> None:
    """Every reconcile of every Dataset would pay for it."""

    def looks(policy: VacuumPolicy, home: Path) -> int:
        tenant = Tenant(catalog, home)
        asked: list[str] = []
        objects = tenant.reconcile.objects
        look = objects.vacuum_jobs
        objects.vacuum_jobs = lambda ns: asked.append(ns) or look(ns)  # type: ignore
        with_tombstones(tenant, policy, home.name)
        tenant.look_at(home.name)
        assert vacuums(tenant) == [home.name]
        return len(asked)

    assert (looks(a_policy(), tmp_path / "a"), looks(ONE, tmp_path / "b")) == (0, 2)


def test_a_run_that_only_looks_at_erasures_takes_no_place(catalog: Catalog, tmp_path: Path) -> None:
    """It purges nothing, and asks for no place either."""
    tenant = Tenant(catalog, tmp_path)
    with_tombstones(tenant, ONE, "a", "b")
    tenant.look_at("a")
    look = tenant.job()
    look["metadata"]["annotations"]["lethe.dev/for-uid"] = "erasures"
    tenant.cluster.patch(JOBS, "ns", look["metadata"]["name"], {"metadata": look["metadata"]})

    tenant.look_at("b")

    assert vacuums(tenant) == ["a", "b"]


# --- races -------------------------------------------------------------------------------------------------------------


class Together(Unreliable):
    """Whoever lists the vacuums of the namespace for the first time waits until all of the party have done so: each of them has
    seen every place free by then. And whoever creates a Job waits whether another one of them is about to as well."""

    def __init__(self) -> None:
        super().__init__()
        self.meet(1)
        self._seen = threading.local()

    def meet(self, party: int) -> None:
        self._all_there, self._all_create = threading.Barrier(party), threading.Barrier(party)

    def create(self, kind: ResourceKind, namespace: str, document: Mapping[str, Any]) -> Document:
        if kind is JOBS:
            with suppress(threading.BrokenBarrierError):  # as it should be: no other one comes
                self._all_create.wait(timeout=1)
        return super().create(kind, namespace, document)

    def hold(self, objects: WatchedObjects) -> None:
        """Let each thread that looks at the vacuums for the first time wait for the others."""
        look = objects.vacuum_jobs

        def vacuum_jobs(namespace: str) -> tuple[Document, ...]:
            found = look(namespace)
            if not getattr(self._seen, "once", False):
                self._seen.once = True
                self._all_there.wait(timeout=60)
            return found

        objects.vacuum_jobs = vacuum_jobs  # type: ignore[method-assign]


@pytest.fixture
def tenant(catalog: Catalog, tmp_path: Path) -> Tenant:
    cluster = Together()
    found = Tenant(catalog, tmp_path, cluster=cluster)
    cluster.hold(found.reconcile.objects)
    return found


def with_tombstones(tenant: Tenant, policy: VacuumPolicy, *names: str) -> None:
    """Datasets whose tables each have four tombstones, under one policy."""
    for name in names:
        tenant.dataset(name, deletes="Ledger")
        revert(tenant.catalog.load_table(f"air.{name}"), "A", "B", "C", "D")
    spec = policy.spec.model_dump(by_alias=True, mode="json", exclude_none=True)
    metadata = {"namespace": "ns", "name": "air", "uid": "uid-air", "generation": 1}
    tenant.cluster.create(VACUUM_POLICIES, "ns", {"metadata": metadata, "spec": spec})


def at_once(*acts: Callable[[], object]) -> None:
    failures: list[BaseException] = []

    def carried_out(act: Callable[[], object]) -> None:
        try:
            act()
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=carried_out, args=(act,)) for act in acts]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert failures == []


def vacuums(tenant: Tenant) -> list[str]:
    return sorted(j["metadata"]["annotations"]["lethe.dev/dataset"] for j in tenant.jobs())


@pytest.mark.parametrize(("policy", "places"), [(ONE, 1), (TWO, 2)])
def test_datasets_that_are_reconciled_at_the_same_moment_cannot_take_the_last_place_twice(
    tenant: Tenant, policy: VacuumPolicy, places: int
) -> None:
    """Each of the three has seen no vacuum at all when it decides to start its own."""
    with_tombstones(tenant, policy, "a", "b", "c")
    tenant.cluster.meet(3)  # type: ignore[attr-defined]

    at_once(*(lambda n=n: tenant.look_at(n) for n in "abc"))  # type: ignore[misc]

    assert len(vacuums(tenant)) == places


def test_the_dataset_that_was_too_late_waits_and_goes_next(tenant: Tenant) -> None:
    with_tombstones(tenant, ONE, "a", "b")
    tenant.cluster.meet(2)  # type: ignore[attr-defined]
    at_once(lambda: tenant.look_at("a"), lambda: tenant.look_at("b"))
    (first,) = vacuums(tenant)
    (second,) = {"a", "b"} - {first}
    tenant.cluster.meet(1)  # type: ignore[attr-defined]

    tenant.look_at(second, first)
    told = tenant.status(second)["vacuum"]
    job = tenant.job()["metadata"]["name"]
    complete = {"type": "Complete", "status": "True", "lastTransitionTime": tenant.now.isoformat()}
    tenant.cluster.patch(JOBS, "ns", job, {"status": {"conditions": [complete]}})
    tenant.wait(timedelta(seconds=5))
    tenant.look_at(first, second)

    assert (told["decision"], told["reason"], f"Dataset {first}" in told["message"]) == (
        "Due",
        "WaitsForOtherVacuums",
        True,
    )
    assert vacuums(tenant) == ["a", "b"]
    assert tenant.status(first)["vacuum"]["decision"] == "Later"
    entries = {e["name"]: e for e in tenant.cluster.get(VACUUM_POLICIES, "ns", "air")["status"]["datasets"]}
    assert (entries[first]["decision"], "lastRunTime" in entries[first]) == ("Later", True)


def test_who_came_too_late_looks_again_at_once(tenant: Tenant) -> None:
    """Only its own reconcile shows which Dataset it waits for, or that none runs any more."""
    with_tombstones(tenant, ONE, "a", "b")
    tenant.cluster.meet(2)  # type: ignore[attr-defined]
    times: dict[str, Any] = {}

    def look(name: str) -> None:
        again = tenant.reconcile(Key("Dataset", "ns", name))
        times[name] = again.time if again is not None else None

    at_once(lambda: look("a"), lambda: look("b"))

    (first,) = vacuums(tenant)
    (second,) = {"a", "b"} - {first}
    assert times[second] <= tenant.now + timedelta(seconds=1)


def test_a_launch_that_fails_gives_its_place_back(tenant: Tenant) -> None:
    """The API server refuses its Job: the next one must not wait for what never was."""
    with_tombstones(tenant, ONE, "a", "b")
    tenant.cluster.refuses = 1
    with pytest.raises(RequestRefused, match="quota"):
        tenant.look_at("a")

    tenant.look_at("b")

    assert vacuums(tenant) == ["b"]
    assert "LaunchFailed" in {e["reason"] for e in tenant.cluster.list(EVENTS, "ns")}
    assert len(tenant.cluster.list(DATASETS, "ns")) == 2


def test_a_launch_that_fails_again_and_again_is_told_once_in_half_an_hour(tenant: Tenant) -> None:
    """It is tried every minute: thousands of Datasets without quota would flood the API server with events."""
    with_tombstones(tenant, ONE, "a")
    tenant.cluster.refuses = 4

    def told_after(*pauses: timedelta) -> int:
        for pause in pauses:
            tenant.wait(pause)
            with pytest.raises(RequestRefused, match="quota"):
                tenant.look_at("a")
        return [e["reason"] for e in tenant.cluster.list(EVENTS, "ns")].count("LaunchFailed")

    assert told_after(*[timedelta(minutes=1)] * 3) == 1
    assert told_after(timedelta(minutes=31)) == 2
