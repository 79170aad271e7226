"""Two releases that watch one namespace: one of them acts, the other one says so and waits."""

import logging
from pathlib import Path
from typing import Any

import pytest
from lethe_operator.apply.leases import Leases
from lethe_operator.decide.leadership import LEASE, LEASE_SECONDS, RENEW_EVERY_SECONDS, RENEW_WITHIN_SECONDS
from lethe_operator.kube import DATASETS, LEASES, Away, Refused
from lethe_operator.metrics import Metrics
from lethe_operator.observe.tables import TableReader
from lethe_operator.reconcile import Reconciler
from lethe_operator.settings import Settings
from lethe_operator.work_queue import Key

from tests.support.clock import ManualClock
from tests.support.fake_cluster import Client, FakeCluster
from tests.support.small_lake import SmallLake


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


def operator(server: Any, name: str, clock: ManualClock, **more: Any) -> Leases:
    return Leases(server, ["ns"], name, monotonic=clock, **more)


def holder(server: FakeCluster) -> str:
    return str(server.get(LEASES, "ns", LEASE)["spec"]["holderIdentity"])


def test_the_first_operator_acts_and_the_second_waits_and_names_it(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    server, metrics = FakeCluster(), Metrics()
    first, second = operator(server, "a/one", clock), operator(server, "b/two", clock, on_renewal=metrics.acts_in)
    caplog.set_level(logging.WARNING)

    for _ in range(20):
        first.renew()
        second.renew()
        clock.now += RENEW_EVERY_SECONDS

    assert (first.acts_in("ns"), second.acts_in("ns")) == (True, False)
    assert metrics.registry.get_sample_value("lethe_namespace_held", {"namespace": "ns"}) == 0
    (said,) = [r.getMessage() for r in caplog.records]
    assert "namespace ns: the operator a/one acts here" in said
    assert "watchNamespaces" in said


def test_when_the_first_is_gone_the_second_acts_and_never_both(clock: ManualClock) -> None:
    server = FakeCluster()
    first, second = operator(server, "a/one", clock), operator(server, "b/two", clock)
    first.renew()
    second.renew()
    acted: list[tuple[bool, bool]] = []

    for _ in range(2 * LEASE_SECONDS):  # nothing renews the first one's Lease
        clock.now += 1
        second.renew()
        acted.append((first.acts_in("ns"), second.acts_in("ns")))

    assert (True, True) not in acted
    assert acted[int(RENEW_WITHIN_SECONDS) - 2] == (True, False)
    assert acted.index((False, True)) + 1 == LEASE_SECONDS
    first.renew()
    assert (first.acts_in("ns"), second.acts_in("ns")) == (False, True)
    assert server.get(LEASES, "ns", LEASE)["spec"]["leaseTransitions"] == 2


def test_a_restarted_pod_of_the_same_release_goes_on_at_once(clock: ManualClock) -> None:
    server = FakeCluster()
    operator(server, "a/one", clock).renew()

    again = operator(server, "a/one", clock)
    again.renew()

    assert again.acts_in("ns")


@pytest.mark.parametrize("there", [False, True], ids=["no Lease yet", "an expired Lease"])
def test_of_two_that_take_it_at_the_same_moment_one_gets_it(clock: ManualClock, there: bool) -> None:
    server = FakeCluster()
    second = operator(server, "b/two", clock)
    if there:
        operator(server, "gone", clock).renew()
        second.renew()
    # The second acts between the first one's look and its request.
    first = operator(Client(server, before={2 if there else 1: second.renew}), "a/one", clock)
    first.renew()
    if there:
        clock.now += LEASE_SECONDS
        first.renew()

    assert (first.acts_in("ns"), second.acts_in("ns")) == (False, True)
    assert holder(server) == "b/two"


@pytest.mark.parametrize("error", [Away(0, "NoAnswer", "x"), Refused(403, "Forbidden", "x")])
def test_without_an_answer_it_stops_before_another_may_begin(clock: ManualClock, error: Exception) -> None:
    server = FakeCluster()
    fails = {"now": False}

    def fail() -> None:
        if fails["now"]:
            raise error

    one = operator(Client(server, before=dict.fromkeys(range(100), fail)), "a/one", clock)
    one.renew()
    fails["now"] = True
    clock.now += RENEW_WITHIN_SECONDS - 1
    one.renew()
    assert one.acts_in("ns")
    clock.now += 1

    assert not one.acts_in("ns")
    assert RENEW_WITHIN_SECONDS + RENEW_EVERY_SECONDS < LEASE_SECONDS


def test_an_operator_that_does_not_act_starts_no_run_and_writes_no_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    lake, key = SmallLake.make(tmp_path), Key("Dataset", "ns", "flights")
    lake.put("A")
    lake.create_table()
    first, second = (operator(lake.cluster, name, clock) for name in ("a/one", "b/two"))
    first.renew()
    second.renew()
    idle = Client(lake.cluster)

    def reconciler(kube: Any, leases: Leases) -> Reconciler:
        return Reconciler(kube, TableReader(), Settings(), acts_in=leases.acts_in)

    assert reconciler(idle, second)(key) is None
    assert idle.requests == []
    reconciler(lake.cluster, first)(key)

    assert lake.cluster.get(DATASETS, "ns", "flights")["status"]
