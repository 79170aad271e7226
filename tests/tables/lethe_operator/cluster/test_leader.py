"""The leader of a release: it acts after it has caught up, and writes nothing once another process may act."""

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import pytest
from lethe.kube import LEASES, Away, NotLeading
from lethe_operator.cluster.leader import FORBIDDEN_AGAIN_SECONDS, Claims, Leadership, LeaseHolder
from lethe_operator.cluster.leadership import LEADER
from lethe_operator.dataset.objects import WatchedObjects
from lethe_operator.main import Runtime, without_namespaces
from lethe_operator.probes import OperatorHealth
from lethe_operator.reconcile import Reconciler
from lethe_operator.settings import Settings

from tests.support.clock import ManualClock, wait_until
from tests.support.fake_cluster import Client, FakeCluster, an_operator
from tests.support.small_lake import FLIGHTS, SmallLake


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


@dataclass
class Replica:
    """A process of a release, without its threads: `step` does what they do."""

    name: str
    server: Any
    clock: ManualClock
    with_claims: bool = False
    changes: list[Collection[str]] = field(default_factory=list)
    caught_up: int = 0

    def __post_init__(self) -> None:
        lease = LeaseHolder(self.server, "system", "leader", self.name, LEADER, self.clock)
        claims = Claims(self.server, ["ns"], "system/release", self.clock) if self.with_claims else None
        self.leadership = Leadership(["ns"], lease, claims, self._catch_up, self.changes.append)

    def _catch_up(self, _namespaces: Collection[str]) -> Collection[str]:
        self.caught_up += 1
        return ()

    def step(self) -> None:
        self.leadership.renew()
        self.leadership.follow()

    def acts(self) -> bool:
        return self.leadership.acts_in("ns")


def test_a_new_leader_acts_only_after_it_has_caught_up(clock: ManualClock) -> None:
    one = Replica("one", FakeCluster(), clock)
    one.leadership.renew()
    assert not one.acts()

    one.leadership.follow()

    assert one.acts()
    assert (one.caught_up, one.changes) == (1, [{"ns"}])


def test_a_leader_that_cannot_catch_up_does_not_act(clock: ManualClock) -> None:
    one = Replica("one", FakeCluster(), clock)

    def fail(_namespaces: Collection[str]) -> Collection[str]:
        raise Away(0, "NoAnswer", "x")

    one.leadership.catch_up = fail
    one.leadership.renew()
    with pytest.raises(Away):
        one.leadership.follow()
    assert not one.acts()

    one.leadership.catch_up = one._catch_up
    one.leadership.follow()

    assert one.acts()


def test_a_namespace_in_which_it_may_not_read_keeps_a_leader_from_acting_in_that_one_only(clock: ManualClock) -> None:
    lease = LeaseHolder(FakeCluster(), "system", "leader", "one", LEADER, clock)  # type: ignore[arg-type]
    changes, asked, forbidden = [], [], {"theirs"}

    def catch_up(namespaces: Collection[str]) -> Collection[str]:
        asked.append(set(namespaces))
        return forbidden & set(namespaces)

    leadership = Leadership(["ours", "theirs"], lease, None, catch_up, changes.append)

    def step(seconds: float) -> list[bool]:
        clock.now += seconds
        leadership.renew()
        leadership.follow()
        return [leadership.acts_in("ours"), leadership.acts_in("theirs")]

    assert step(0) == [True, False]
    assert step(1) == [True, False]
    assert asked == [{"ours", "theirs"}]  # it is not asked all the time
    assert step(FORBIDDEN_AGAIN_SECONDS) == [True, False]
    forbidden.clear()
    assert step(FORBIDDEN_AGAIN_SECONDS) == [True, True]

    step(FORBIDDEN_AGAIN_SECONDS)
    assert asked == [{"ours", "theirs"}, {"theirs"}, {"theirs"}]
    assert changes == [{"ours"}, {"theirs"}]


@pytest.mark.parametrize("with_claims", [False, True], ids=["", "claims"])
def test_a_standby_catches_up_before_it_acts_and_both_report_the_change(clock: ManualClock, with_claims: bool) -> None:
    server = FakeCluster()
    one, two = (Replica(name, server, clock, with_claims) for name in ("one", "two"))
    for _ in range(5):
        one.step()
        two.step()
        clock.now += LEADER.renew_every_seconds
    assert (one.acts(), two.acts(), two.caught_up, two.changes) == (True, False, 0, [])

    while not two.acts():  # the first is partitioned from the API server: only its second thread goes on
        one.leadership.follow()
        two.step()
        assert not (one.acts() and two.acts())
        clock.now += 1

    assert (one.changes, two.changes, two.caught_up) == ([{"ns"}, {"ns"}], [{"ns"}], 1)
    one.step()
    assert not one.acts()


def test_a_namespace_that_was_refused_meanwhile_is_reported_again(clock: ManualClock) -> None:
    """The pause was so short that neither thread saw it. The keys that were dropped in it come back."""
    one = Replica("one", FakeCluster(), clock)
    one.step()
    clock.now += LEADER.act_within_seconds
    assert not one.acts()
    one.changes.clear()

    one.step()

    assert one.acts()
    assert (one.changes, one.caught_up) == ([{"ns"}], 1), "no other process led, so nothing was missed"


def test_a_write_of_a_process_that_does_not_act_is_refused(clock: ManualClock) -> None:
    one = Replica("one", FakeCluster(), clock)
    one.step()
    with one.leadership.writing("ns"):
        pass
    clock.now += LEADER.act_within_seconds

    with pytest.raises(NotLeading, match="namespace ns"), one.leadership.writing("ns"):
        raise AssertionError("it was allowed")


def test_a_leader_that_stops_waits_for_its_writes_and_releases_the_lease(clock: ManualClock) -> None:
    server = FakeCluster()
    one, two = (Replica(name, server, clock) for name in ("one", "two"))
    one.step()
    two.step()
    stopping = threading.Thread(target=one.leadership.stop)
    with one.leadership.writing("ns"):
        stopping.start()
        wait_until(lambda: not one.acts(), 10)
        two.step()
        assert not two.acts(), "a write is under way"
        assert server.get(LEASES, "system", "leader")["spec"]["holderIdentity"] == "one"
    stopping.join(10)

    two.step()

    assert (one.acts(), two.acts()) == (False, True)


def test_the_threads_elect_a_leader_and_hand_over(clock: ManualClock) -> None:
    server = FakeCluster()
    replicas = [Replica(name, server, clock) for name in ("one", "two")]
    for replica in replicas:
        replica.leadership.start()
    wait_until(lambda: any(r.acts() for r in replicas), 10)
    (leader,) = [r for r in replicas if r.acts()]
    (standby,) = [r for r in replicas if r is not leader]

    leader.leadership.stop()
    clock.now += LEADER.renew_every_seconds

    wait_until(standby.acts, 10)
    assert not leader.acts()
    assert standby.leadership.alive()
    standby.leadership.stop()


# --- a reconcile that is paused ------------------------------------------------------------------------------------------


@dataclass
class PausedLake:
    """A lake with a batch, and two processes of one release."""

    lake: SmallLake
    clock: ManualClock

    def __post_init__(self) -> None:
        self.one, self.two = (Replica(name, self.lake.cluster, self.clock) for name in ("one", "two"))
        self.one.step()
        self.two.step()

    def operator(self, replica: Replica, **hooks: Any) -> tuple[Reconciler, Client]:
        client = Client(self.lake.cluster, writing=replica.leadership.writing, **hooks)
        return an_operator(client, acts_in=replica.leadership.acts_in), client

    def take_over(self) -> None:
        """One minute passes for the first process, and the second one becomes the leader and does its work."""
        for _ in range(60):
            self.clock.now += 1
            self.two.step()
        assert self.two.acts()
        self.operator(self.two)[0](FLIGHTS)


Begin = Callable[[], PausedLake]


@pytest.fixture
def paused(begin: Callable[[], SmallLake], clock: ManualClock) -> Begin:
    def make() -> PausedLake:
        lake = begin()
        lake.put("A", "B")
        return PausedLake(lake, clock)

    return make


def test_a_leader_that_is_paused_after_any_request_writes_nothing_afterwards(paused: Begin) -> None:
    """Its successor does the work, and there is one Job."""
    pauses: Counter[str] = Counter()
    for n in itertools.count():
        story = paused()
        stopped, client = story.operator(story.one, after={n: story.take_over})
        stopped(FLIGHTS)
        if len(client.requests) <= n:
            assert {"create ConfigMap", "patch ConfigMap", "create Job", "patch Dataset"} <= pauses.keys()
            return
        at = f"after {client.requests[n]}"
        pauses[client.requests[n]] += 1
        assert [r for r in client.requests[n + 1 :] if r.startswith(("create", "patch", "delete"))] == [], at
        assert len(story.lake.jobs()) == 1, at
        assert Counter(i for r in story.lake.runs() for i in r.consolidation.batch_ids) == Counter("AB"), at  # type: ignore[union-attr]


def test_a_job_whose_request_was_already_sent_when_the_leader_was_paused_is_not_created_twice(paused: Begin) -> None:
    """The request arrives a minute later, after the successor has created the same Job. Its name follows from the stored intent,
    so the API server refuses the second one."""
    story = paused()
    first, all_of_it = story.operator(story.one)
    first(FLIGHTS)
    at = all_of_it.requests.index("create Job")
    story = paused()
    outcomes: list[int] = []

    def take_over() -> None:
        story.take_over()
        outcomes.append(len(story.lake.jobs()))

    stopped, client = story.operator(story.one, before={at: take_over})
    stopped(FLIGHTS)

    assert outcomes == [1], "the successor has created it"
    assert client.requests[at : at + 2] == ["create Job", "get Job"]
    assert len(story.lake.jobs()) == 1
    assert len(story.lake.runs()) == 1


def test_a_shard_without_namespaces_is_ready_and_has_a_leader() -> None:
    """Otherwise `helm upgrade --wait` would wait for its pods in vain."""
    cluster: Any = FakeCluster()
    unused: Any = None
    leading: list[bool] = []
    lease = LeaseHolder(cluster, "system", "lethe-operator-2", "pod-1", LEADER)
    leadership = Leadership((), lease, Claims(cluster, (), "system/lethe-operator-2"), on_leader=leading.append)
    runtime = Runtime(
        Settings(watch_namespaces=(), probes_port=None),
        *(unused, OperatorHealth(time.monotonic, 600), unused, unused, WatchedObjects(), unused),
        *(leadership, unused, time.monotonic()),
    )

    async def run() -> None:
        shard = asyncio.create_task(without_namespaces(runtime))
        try:
            await asyncio.to_thread(wait_until, lambda: runtime.ready().ok and leading[-1:] == [True], 10)
        finally:
            shard.cancel()
            await asyncio.to_thread(leadership.stop)

    asyncio.run(run())

    assert not cluster.get(LEASES, "system", "lethe-operator-2")["spec"].get("holderIdentity")
