"""The rights of runs are looked at once in a while, and whenever they may be the reason of a failure."""

from dataclasses import replace
from typing import Any

import pytest
from lethe.contract.run import DatasetRef
from lethe.kube import CONFIG_MAPS, ROLES, ResourceKind
from lethe_operator.runs.launch import AGAIN_SECONDS, DatasetObjects, NameTaken

from tests.support.clock import ManualClock
from tests.support.fake_cluster import FakeCluster
from tests.support.resources import SETTINGS

FLIGHTS = DatasetRef(namespace="ns", name="flights", uid="uid-flights")


class Counted(FakeCluster):
    """A server that counts requests for objects of Datasets."""

    requests = 0

    def create(self, kind: ResourceKind, namespace: str, document: Any) -> Any:
        self.requests += 1
        return super().create(kind, namespace, document)


@pytest.fixture
def server() -> Counted:
    return Counted()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


@pytest.fixture
def objects(server: Counted, clock: ManualClock) -> DatasetObjects:
    """They have been created."""
    found = DatasetObjects(clock)
    found.ensure(server, FLIGHTS, SETTINGS)  # type: ignore[arg-type]
    server.requests = 0
    return found


def requests(objects: DatasetObjects, server: Counted, dataset: DatasetRef = FLIGHTS, **how: Any) -> int:
    """Of one more look."""
    before = server.requests
    objects.ensure(server, dataset, how.pop("settings", SETTINGS), **how)  # type: ignore[arg-type]
    return server.requests - before


def test_the_next_run_makes_no_request(objects: DatasetObjects, server: Counted) -> None:
    assert requests(objects, server) == 0


def test_after_ten_minutes_they_are_looked_at_again(
    objects: DatasetObjects, server: Counted, clock: ManualClock
) -> None:
    before = server.get(ROLES, "ns", "flights-runs")["rules"]
    server.patch(ROLES, "ns", "flights-runs", {"rules": []})
    clock.now += AGAIN_SECONDS

    assert requests(objects, server) > 0

    assert server.get(ROLES, "ns", "flights-runs")["rules"] == before


def test_a_run_with_executors_needs_more(objects: DatasetObjects, server: Counted) -> None:
    assert requests(objects, server, with_executors=True) > 0
    assert requests(objects, server, with_executors=True) == 0
    assert requests(objects, server) == 0


def test_other_settings_and_another_dataset_of_the_name_are_other_objects(
    objects: DatasetObjects, server: Counted
) -> None:
    assert (
        requests(
            objects,
            server,
            settings=replace(SETTINGS, committer=SETTINGS.committer.model_copy(update={"enabled": True})),
        )
        > 0
    )
    with pytest.raises(NameTaken):
        requests(objects, server, FLIGHTS.model_copy(update={"uid": "uid-later"}))


def test_when_a_run_has_failed_or_was_refused_they_are_looked_at(objects: DatasetObjects, server: Counted) -> None:
    server.delete(CONFIG_MAPS, "ns", "flights-runs")
    assert requests(objects, server, certainly=True) > 0
    assert server.get(CONFIG_MAPS, "ns", "flights-runs")

    objects.forget("ns", "flights")

    assert requests(objects, server) > 0


def test_when_another_process_may_have_changed_them_they_are_looked_at(
    objects: DatasetObjects, server: Counted
) -> None:
    objects.forget_all({"elsewhere"})
    assert requests(objects, server) == 0

    objects.forget_all({"ns"})

    assert requests(objects, server) > 0


def test_a_look_that_failed_is_repeated(objects: DatasetObjects, server: Counted, clock: ManualClock) -> None:
    clock.now += AGAIN_SECONDS
    server.delete(ROLES, "ns", "flights-runs")
    server.create(ROLES, "ns", {"kind": "Role", "metadata": {"namespace": "ns", "name": "flights-runs"}})

    for _ in range(2):
        with pytest.raises(NameTaken, match="Role flights-runs"):
            requests(objects, server)
