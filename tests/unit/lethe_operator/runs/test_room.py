"""An idle warm driver ends when no node has room for a run's pod, and stays away until there is room again."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from lethe.contract.run import DatasetRef
from lethe.kube import CONFIG_MAPS, JOBS, PODS
from lethe_operator.cluster.queue import WARM_DRIVER
from lethe_operator.cluster.schedule import Key, Next
from lethe_operator.handlers import keys_of
from lethe_operator.metrics import Metrics
from lethe_operator.resources.common import ANNOTATION_AWAY_UNTIL
from lethe_operator.resources.observed import Engine, UnplacedPod, WarmEngine, WorkerView, unplaced_pod
from lethe_operator.runs.job import warm_driver_job
from lethe_operator.runs.launch import start_warm_driver
from lethe_operator.runs.room import HELPED_WITHIN, LOOK_AGAIN, NEXT_AFTER, STAYS_AWAY, MakingWay, make_way
from lethe_operator.settings import Settings, WarmDriverSettings

from tests.support.builders import NOW
from tests.support.fake_cluster import Client, FakeCluster, an_operator

AFTER = timedelta(seconds=15)
IDLE = WorkerView(alive=True, starting=True)
BUSY = replace(IDLE, mailbox=frozenset({"0123456789ab"}))
GONE = WorkerView(alive=False)
AWAY = replace(GONE, away_until=NOW + STAYS_AWAY)
LACKS_CPU = "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available."
NAME = "lethe-warm-driver"
SETTINGS = Settings(
    warm_drivers=WarmDriverSettings(enabled=True), watch_namespaces=("ns", "other"), spark_image="spark:1"
)


def a_pod_of(namespace: str = "ns", waits: timedelta = AFTER, name: str = "flights-restatement-1-1-x") -> UnplacedPod:
    return UnplacedPod(namespace, name, "flights", "uid-flights", NOW - waits, LACKS_CPU)


def decided(
    *drivers: tuple[str, WorkerView], pods: tuple[UnplacedPod, ...] = (a_pod_of(),), now: datetime = NOW
) -> MakingWay:
    return make_way(pods, drivers, AFTER, now)


# --- which warm driver ends -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("drivers", "ends"),
    [
        ([("ns", IDLE)], "ns"),
        ([("ns", BUSY)], None),
        ([("ns", GONE)], None),
        ([], None),
        ([("air", IDLE), ("ns", IDLE), ("sea", IDLE)], "ns"),
        ([("sea", IDLE), ("air", IDLE), ("ns", BUSY)], "air"),
        ([("air", BUSY), ("ns", BUSY)], None),
        ([("ns", replace(IDLE, away_until=NOW + STAYS_AWAY)), ("air", IDLE)], "ns"),
    ],
    ids=[
        "idle",
        "with a run",
        "none runs",
        "none",
        "first that of the namespace",
        "then others, by name",
        "all with runs",
        "one that was to end, and had received a run",
    ],
)
def test_an_idle_warm_driver_ends_and_one_with_a_run_never_does(
    drivers: list[tuple[str, WorkerView]], ends: str | None
) -> None:
    assert decided(*drivers).ends == ends


@pytest.mark.parametrize(
    ("waits", "ends"),
    [
        (AFTER - timedelta(seconds=1), None),
        (AFTER, "ns"),
        (HELPED_WITHIN - timedelta(seconds=1), "ns"),
        (HELPED_WITHIN, None),
    ],
)
def test_it_ends_for_a_pod_that_has_waited_long_enough_and_not_for_one_that_it_cannot_help(
    waits: timedelta, ends: str | None
) -> None:
    assert decided(("ns", IDLE), pods=(a_pod_of(waits=waits),)).ends == ends


def test_without_a_pod_that_waits_nothing_happens() -> None:
    assert decided(("ns", IDLE), pods=()) == MakingWay()


def test_a_pod_that_waits_for_a_moment_is_looked_at_when_it_has_waited_long_enough() -> None:
    assert decided(("ns", IDLE), pods=(a_pod_of(waits=timedelta(0)),)) == MakingWay(look_again=NOW + AFTER)


@pytest.mark.parametrize(("later", "ends"), [(timedelta(0), None), (NEXT_AFTER, "air")])
def test_one_warm_driver_ends_after_the_other(later: timedelta, ends: str | None) -> None:
    now = NOW + later

    assert decided(("ns", AWAY), ("air", IDLE), ("sea", IDLE), now=now).ends == ends


def test_it_stays_away_as_long_as_a_pod_waits() -> None:
    first = decided(("ns", IDLE))
    later = decided(("ns", AWAY), now=NOW + LOOK_AGAIN)
    soon = decided(("ns", AWAY), now=NOW + timedelta(seconds=1))

    assert (first.stay_away, first.until, first.look_again) == (("ns",), NOW + STAYS_AWAY, NOW + LOOK_AGAIN)
    assert (later.stay_away, later.until) == (("ns",), NOW + LOOK_AGAIN + STAYS_AWAY)
    assert soon.stay_away == ()  # it was written a second ago


# --- which pods wait --------------------------------------------------------------------------------------------------


def a_pod(name: str = "flights-1-x", message: str = LACKS_CPU, **changes: Any) -> dict[str, Any]:
    """A pod of a run that the scheduler has tried to place 15 seconds ago."""
    labels = {"app.kubernetes.io/managed-by": "lethe", "lethe.dev/dataset-uid": "uid-flights"}
    annotations = {"lethe.dev/dataset": "flights"}
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
        "lastTransitionTime": (NOW - AFTER).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return {
        "metadata": {"namespace": "ns", "name": name, "labels": labels, "annotations": annotations},
        "status": {"phase": "Pending", "conditions": [{**condition, **changes}]},
    }


@pytest.mark.parametrize(
    "message",
    [
        LACKS_CPU,
        "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient memory.",
        "0/1 nodes are available: 1 Too many pods.",
    ],
)
def test_a_pod_of_a_run_without_room_waits(message: str) -> None:
    found = unplaced_pod(a_pod(message=message))

    assert found == UnplacedPod("ns", "flights-1-x", "flights", "uid-flights", NOW - AFTER, message)


def test_a_warm_driver_makes_way_for_the_one_with_values_and_not_for_another_of_its_kind() -> None:
    status = a_pod()["status"]
    dataset = DatasetRef(namespace="ns", name="flights", uid="uid-d")

    def waiting(engine: WarmEngine) -> UnplacedPod | None:
        job = warm_driver_job("ns", "uid", Settings(), engine, dataset=dataset)
        metadata = {**job["spec"]["template"]["metadata"], "namespace": "ns", "name": f"{job['metadata']['name']}-x"}
        return unplaced_pod({"metadata": metadata, "status": status})

    found = waiting(Engine.VALUES_DRIVER)
    assert found is not None
    assert (found.dataset, found.dataset_uid) == ("flights", "uid-d")
    assert waiting(Engine.WARM_DRIVER) is None


@pytest.mark.parametrize(
    "pod",
    [
        a_pod(message="0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."),
        a_pod(status="True"),
        a_pod(reason="SchedulingGated"),
        a_pod(type="Ready"),
        {**a_pod(), "status": {**a_pod()["status"], "phase": "Running"}},
        {"metadata": {**a_pod()["metadata"], "labels": {}}, "status": a_pod()["status"]},
        {"metadata": {**a_pod()["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": a_pod()["status"]},
        {"metadata": a_pod()["metadata"]},
    ],
    ids=["affinity", "scheduled", "gated", "condition", "runs", "no run", "being deleted", "new"],
)
def test_another_pod_does_not(pod: dict[str, Any]) -> None:
    assert unplaced_pod(pod) is None


def test_such_a_pod_concerns_its_dataset_and_the_warm_driver() -> None:
    assert keys_of(PODS, a_pod()) == [Key("Dataset", "ns", "flights"), Key(WARM_DRIVER, "ns", "")]
    assert keys_of(PODS, a_pod(status="True")) == [Key("Dataset", "ns", "flights")]


# --- in a cluster -----------------------------------------------------------------------------------------------------


def a_server(*namespaces: str) -> FakeCluster:
    """A cluster in which the warm drivers of these namespaces run, and the mailboxes are empty."""
    labels = {"app.kubernetes.io/name": "lethe"}
    boxes = [(CONFIG_MAPS, {"metadata": {"namespace": n, "name": NAME, "labels": labels}}) for n in ("ns", "other")]
    server = FakeCluster(*boxes)
    for namespace in namespaces:
        assert start_warm_driver(server, namespace, SETTINGS)  # type: ignore[arg-type]
    return server


def reconciled(client: FakeCluster | Client, metrics: Metrics | None = None, **more: Any) -> Next | None:
    operator = an_operator(
        client, settings=SETTINGS, clock=lambda: NOW, **({"metrics": metrics} if metrics else {}), **more
    )
    return operator(Key(WARM_DRIVER, "ns", ""))


def away_until(server: FakeCluster, namespace: str) -> str | None:
    metadata = server.get(CONFIG_MAPS, namespace, NAME)["metadata"]
    return (metadata.get("annotations") or {}).get(ANNOTATION_AWAY_UNTIL)


def drivers(server: FakeCluster) -> set[str]:
    return {namespace for kind, namespace, _ in server.objects if kind == JOBS.name}


def events(server: FakeCluster) -> list[dict[str, Any]]:
    return [o for (kind, _, _), o in server.objects.items() if kind == "Event"]


def test_an_idle_warm_driver_ends_and_an_event_says_why() -> None:
    server, metrics = a_server("ns", "other"), Metrics()
    server.create(PODS, "ns", a_pod())

    again = reconciled(server, metrics)

    assert drivers(server) == {"other"}
    assert (away_until(server, "ns"), away_until(server, "other")) == ((NOW + STAYS_AWAY).isoformat(), None)
    (event,) = events(server)
    assert event["reason"] == "WarmDriverMadeWay"
    assert event["regarding"]["uid"] == "uid-flights"
    assert "flights-1-x" in event["note"]
    assert LACKS_CPU in event["note"]
    assert metrics.registry.get_sample_value("lethe_warm_driver_made_way_total", {"namespace": "ns"}) == 1
    assert again == Next(NOW + LOOK_AGAIN, idle=True)


def test_one_of_another_namespace_ends_if_there_is_none_and_the_event_does_not_name_it() -> None:
    server = a_server("other")
    server.create(PODS, "ns", a_pod())

    reconciled(server)

    assert drivers(server) == set()
    (event,) = events(server)
    assert event["metadata"]["namespace"] == "ns"
    assert "other" not in event["note"]


def test_a_run_that_arrives_meanwhile_keeps_it() -> None:
    """The mailbox looks empty until the warm driver is told to stay away."""
    server = a_server("ns")
    server.create(PODS, "ns", a_pod())
    server.held_back.add(CONFIG_MAPS)

    def arrives() -> None:
        server.patch(CONFIG_MAPS, "ns", NAME, {"data": {"0123456789ab": "{}"}})

    patches = Client(server)
    patches.before = {0: arrives}
    reconciled(patches)

    assert patches.requests == ["patch ConfigMap"]
    assert drivers(server) == {"ns"}
    assert events(server) == []
    assert away_until(server, "ns")  # it takes no other run, and ends when it has none


@pytest.mark.parametrize("namespace", ["ns", "other"])
def test_without_a_pod_that_waits_no_warm_driver_ends(namespace: str) -> None:
    """One of another namespace is looked at by the reconcile of that namespace."""
    server = a_server("ns", "other")
    if namespace == "other":
        pod = a_pod()
        server.create(PODS, "other", {**pod, "metadata": {**pod["metadata"], "namespace": "other"}})

    again = reconciled(server)

    assert drivers(server) == {"ns", "other"}
    assert again == Next(idle=True)


def test_the_warm_driver_of_a_namespace_in_which_another_process_acts_stays() -> None:
    server = a_server("other")
    server.create(PODS, "ns", a_pod())

    reconciled(server, acts_in=lambda namespace: namespace == "ns")

    assert drivers(server) == {"other"}
