"""Leases: one holder at a time, whatever the clocks of other machines say, and few requests."""

import logging
from typing import Any

import pytest
from lethe.kube import DATASETS, LEASES, Away, RequestRefused
from lethe_operator.cluster.client import OF_LEASES
from lethe_operator.cluster.leader import Claims, LeaseHolder
from lethe_operator.cluster.leadership import CLAIM, CLAIM_READ_SECONDS, LEADER, SOON_SECONDS, LeaseTerms
from lethe_operator.cluster.schedule import Next
from lethe_operator.reconcile import Reconciler

from tests.support.clock import ManualClock
from tests.support.fake_cluster import Client, FakeCluster, an_operator
from tests.support.small_lake import FLIGHTS, SmallLake

FAILOVER_SECONDS = 15


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


def replica(server: Any, name: str, clock: ManualClock, terms: LeaseTerms = LEADER) -> LeaseHolder:
    return LeaseHolder(server, "system", "lethe-operator", name, terms, clock)


def release(server: Any, name: str, clock: ManualClock) -> Claims:
    return Claims(server, ["ns"], name, clock)


def lease(server: FakeCluster, namespace: str = "system") -> dict[str, Any]:
    return dict(server.get(LEASES, namespace, "lethe-operator")["spec"])


# --- the replicas of a release -------------------------------------------------------------------------------------------


def test_of_two_replicas_one_holds_the_lease_with_one_request_per_renewal(clock: ManualClock) -> None:
    server = FakeCluster()
    clients = [Client(server), Client(server)]
    first, second = (replica(c, name, clock) for c, name in zip(clients, ("one", "two"), strict=True))

    for _ in range(20):
        first.renew()
        second.renew()
        assert (first.held(), second.held(), second.holder) == (True, False, "one")
        clock.now += LEADER.renew_every_seconds

    assert clients[0].requests == ["get Lease", "create Lease", *["patch Lease"] * 19]
    assert clients[1].requests == ["get Lease"] * 20


@pytest.mark.parametrize("polled_later", [0.01, 1.5, 2.99], ids=lambda s: f"{s} s")
def test_a_standby_takes_the_lease_of_a_dead_leader_in_time_and_never_both_act(
    clock: ManualClock, polled_later: float
) -> None:
    server = FakeCluster()
    first, second = replica(server, "one", clock), replica(server, "two", clock)
    first.renew()
    second.renew()
    clock.now += LEADER.renew_every_seconds
    first.renew()  # and dies
    died = clock.now
    clock.now += polled_later

    second.renew()
    while not second.held():
        clock.now += max(second.due_in(LEADER.renew_every_seconds), 0.001)
        second.renew()
        assert not (first.held() and second.held())

    assert clock.now - died < FAILOVER_SECONDS - 2
    first.renew()
    assert (first.held(), second.held()) == (False, True)
    assert lease(server)["leaseTransitions"] == 2


@pytest.mark.parametrize("offset", [0.0, 0.7, 1.5, 2.99], ids=lambda s: f"{s} s")
def test_a_standby_learns_to_read_each_renewal_soon_after_it(clock: ManualClock, offset: float) -> None:
    """So it takes the Lease of a dead leader sooner, and sends few requests more."""
    server = FakeCluster()
    client = Client(server)
    first, second = replica(server, "one", clock), replica(client, "two", clock)
    first.renew()
    renewal, read = clock.now + LEADER.renew_every_seconds, clock.now + offset
    seen: list[float] = []  # for how long a renewal was there when it was read
    last = clock.now
    known = None
    while len(seen) < 100:
        clock.now = min(renewal, read)
        if clock.now == renewal:
            first.renew()
            last, renewal = renewal, renewal + LEADER.renew_every_seconds
        else:
            second.renew()
            version = second._lease["metadata"]["resourceVersion"]
            if version != known:
                seen.append(clock.now - last)
                known = version
            read = clock.now + second.due_in(LEADER.renew_every_seconds)

    assert max(seen[40:]) <= SOON_SECONDS + 0.001
    assert len(client.requests) < 1.5 * len(seen)
    died = last
    while not second.held():
        clock.now += max(second.due_in(LEADER.renew_every_seconds), 0.001)
        second.renew()
    assert clock.now - died <= LEADER.lease_seconds + SOON_SECONDS + 0.01


def test_a_standby_whose_wall_clock_is_off_by_an_hour_waits_as_long_as_any_other(clock: ManualClock) -> None:
    """It does not compare the times in the Lease with its own."""
    server = FakeCluster()
    first, second = replica(server, "one", clock), replica(server, "two", clock)
    first.renew()
    old = {"renewTime": "2001-01-01T00:00:00.000000Z", "acquireTime": "2001-01-01T00:00:00.000000Z"}
    server.patch(LEASES, "system", "lethe-operator", {"spec": old})
    second.renew()
    clock.now += LEADER.lease_seconds - 0.1
    second.renew()
    assert not second.held()

    clock.now += 0.1
    second.renew()

    assert second.held()


@pytest.mark.parametrize("there", [False, True], ids=["no Lease yet", "an expired Lease"])
def test_of_two_that_take_it_at_the_same_moment_one_gets_it(clock: ManualClock, there: bool) -> None:
    server = FakeCluster()
    second = replica(server, "two", clock)
    if there:
        replica(server, "gone", clock).renew()
        second.renew()
    # The second acts between the first one's read and its write.
    first = replica(Client(server, before={2 if there else 1: second.renew}), "one", clock)
    first.renew()
    if there:
        clock.now += LEADER.lease_seconds
        first.renew()

    assert (first.held(), second.held()) == (False, True)
    assert lease(server)["holderIdentity"] == "two"


@pytest.mark.parametrize("terms", [LEADER, CLAIM], ids=["leader", "claim"])
@pytest.mark.parametrize("error", [Away(0, "NoAnswer", "x"), RequestRefused(403, "Forbidden", "x")])
def test_without_an_answer_it_stops_before_another_may_begin(
    clock: ManualClock, error: Exception, terms: LeaseTerms
) -> None:
    server = FakeCluster()
    fails = {"now": False}

    def fail() -> None:
        if fails["now"]:
            raise error

    one = replica(Client(server, before=dict.fromkeys(range(100), fail)), "one", clock, terms)
    one.renew()
    fails["now"] = True
    clock.now += terms.act_within_seconds - 0.1
    with pytest.raises(type(error)):
        one.renew()
    assert one.held()
    clock.now += 0.1

    assert not one.held()
    assert terms.act_within_seconds + OF_LEASES.connect_to_write_seconds < terms.lease_seconds
    # A renewal that hangs is followed by another one before the holder stops.
    hanging = OF_LEASES.connect_to_write_seconds + OF_LEASES.read_seconds
    assert terms.renew_every_seconds + hanging + terms.retry_seconds <= terms.act_within_seconds


def test_a_renewal_whose_answer_was_lost_is_seen_by_the_next_one_and_the_term_goes_on(clock: ManualClock) -> None:
    server = FakeCluster()

    def lose() -> None:
        raise Away(0, "NoAnswer", "x")

    client = Client(server, after={2: lose})
    one = replica(client, "one", clock)
    one.renew()
    term = one.term
    clock.now += LEADER.renew_every_seconds
    with pytest.raises(Away):
        one.renew()
    clock.now += LEADER.retry_seconds

    one.renew()

    assert one.held()
    assert one.term == term
    assert client.requests[3:] == ["patch Lease", "get Lease", "patch Lease"]


def test_a_released_lease_is_taken_at_the_next_read(clock: ManualClock) -> None:
    server = FakeCluster()
    first, second = replica(server, "one", clock), replica(server, "two", clock)
    first.renew()
    second.renew()

    first.release()
    second.renew()

    assert (first.held(), second.held()) == (False, True)
    assert (first.term, second.term) == (None, 2)


def test_a_paused_holder_that_wakes_up_does_not_hold_the_lease_before_it_has_renewed_it(clock: ManualClock) -> None:
    server = FakeCluster()
    one = replica(server, "one", clock)
    one.renew()
    term = one.term

    clock.now += 60
    assert not one.held()
    one.renew()

    assert one.held(), "no other process took it"
    assert one.term == term


# --- the releases that watch a namespace ---------------------------------------------------------------------------------


def test_the_first_release_acts_and_the_second_waits_and_names_it(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    server = FakeCluster()
    first, second = release(server, "a/one", clock), release(server, "b/two", clock)
    caplog.set_level(logging.WARNING)

    for _ in range(200):
        first.renew()
        second.renew()
        clock.now += CLAIM_READ_SECONDS

    assert (first.acts_in("ns"), second.acts_in("ns")) == (True, False)
    (logged,) = [r.getMessage() for r in caplog.records]
    assert "namespace ns: the operator a/one acts here" in logged
    assert "watchNamespaces" in logged


def test_when_the_first_release_is_gone_the_second_acts_and_never_both(clock: ManualClock) -> None:
    server = FakeCluster()
    first, second = release(server, "a/one", clock), release(server, "b/two", clock)
    first.renew()
    second.renew()
    acted: list[tuple[bool, bool]] = []

    for _ in range(2 * CLAIM.lease_seconds):  # nothing renews the first one's Lease
        clock.now += 1
        second.renew()
        acted.append((first.acts_in("ns"), second.acts_in("ns")))

    assert (True, True) not in acted
    assert acted[int(CLAIM.act_within_seconds) - 2] == (True, False)
    assert acted.index((False, True)) + 1 == CLAIM.lease_seconds
    first.renew()
    assert (first.acts_in("ns"), second.acts_in("ns")) == (False, True)
    assert lease(server, "ns")["leaseTransitions"] == 2


def test_claims_cost_one_request_per_namespace_and_minute(clock: ManualClock) -> None:
    client = Client(FakeCluster())
    one = release(client, "a/one", clock)

    for _ in range(600):
        one.renew()
        clock.now += 1

    assert client.requests == ["get Lease", "create Lease", *["patch Lease"] * 9]


def test_the_next_leader_of_a_release_acts_at_once(clock: ManualClock) -> None:
    server = FakeCluster()
    release(server, "a/one", clock).renew()

    again = release(server, "a/one", clock)
    again.renew()

    assert again.acts_in("ns")


def test_a_release_that_does_not_act_starts_no_run_and_writes_no_status(lake: SmallLake, clock: ManualClock) -> None:
    lake.put("A")
    first, second = (release(lake.cluster, name, clock) for name in ("a/one", "b/two"))
    first.renew()
    second.renew()
    idle = Client(lake.cluster)

    def reconciler(kube: Any, claims: Claims) -> Reconciler:
        return an_operator(kube, acts_in=claims.acts_in)

    assert reconciler(idle, second)(FLIGHTS) == Next(idle=True)
    assert idle.requests == []
    reconciler(lake.cluster, first)(FLIGHTS)

    assert lake.cluster.get(DATASETS, "ns", "flights")["status"]
