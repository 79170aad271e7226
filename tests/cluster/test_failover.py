"""The leader is killed, paused or cut off while it starts runs: another process acts within 15 seconds, and no run starts twice.

The operators are processes on this machine, and the API server is real. The namespace allows no pods, so that no run ends.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lethe_operator.resources.common import Shard

from tests.cluster.install import apply_definitions
from tests.cluster.kube import Cluster
from tests.cluster.operators import LocalOperator
from tests.cluster.replicas import START_SECONDS, Replicas, a_release
from tests.support.clock import wait_until

pytestmark = pytest.mark.cluster

FAILOVER_SECONDS = 15


@pytest.fixture
def replicas(bare_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Replicas]:
    apply_definitions(bare_cluster)
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    with a_release(bare_cluster, tmp_path) as made:
        made.start("one")
        made.start("two")
        yield made


def fail_over(replicas: Replicas, fail: Callable[[LocalOperator], None], at_most_seconds: float) -> LocalOperator:
    """Let the leader fail while it starts runs, and return its successor, after that has started all of them, each once."""
    leader, standby = replicas.leader_and_standby()
    replicas.add_datasets(6)
    wait_until(lambda: sum(replicas.jobs().values()) >= 2, START_SECONDS)
    failed = time.monotonic()
    fail(leader)
    (late,) = replicas.add_datasets(1)

    replicas.cluster.wait_for(
        f"datasets.lethe.dev/{late}",
        lambda body: bool(body.get("status", {}).get("conditions")),
        within_seconds=60,
        why="a status by the new leader",
    )

    took = time.monotonic() - failed
    wait_until(lambda: len(replicas.jobs()) == 7, START_SECONDS)
    assert took < at_most_seconds
    assert replicas.holder() == standby.name
    assert set(replicas.jobs().values()) == {1}
    return standby


def test_a_killed_leader_is_replaced_and_no_run_starts_twice(replicas: Replicas) -> None:
    successor = fail_over(replicas, LocalOperator.kill, FAILOVER_SECONDS)

    wait_until(lambda: replicas.started_by()[successor.name] >= 1, START_SECONDS)  # an event follows its Job
    assert sum(replicas.started_by().values()) <= 7
    assert "leads" in successor.ready()


@pytest.mark.long
@pytest.mark.parametrize("fault", ["paused", "cut off"])
def test_a_leader_that_is_paused_or_cut_off_is_replaced_and_writes_nothing_when_it_is_back(
    replicas: Replicas, fault: str
) -> None:
    old, _ = replicas.leader_and_standby()
    fail, heal = {
        "paused": (LocalOperator.pause, LocalOperator.resume),
        "cut off": (lambda o: o.gate.block(), lambda o: o.gate.unblock()),
    }[fault]
    successor = fail_over(replicas, fail, FAILOVER_SECONDS)
    heal(old)

    # Requests that it had sent before arrive now; each was checked before it was sent.
    wait_until(lambda: "standby" in old.ready(), START_SECONDS)
    before, reconciled = old.writes(), successor.metric("lethe_reconciles_total")
    replicas.add_datasets(3)
    wait_until(lambda: len(replicas.jobs()) == 10, START_SECONDS)

    assert old.writes() == before
    assert successor.metric("lethe_reconciles_total") > reconciled
    assert (old.metric("lethe_leader"), successor.metric("lethe_leader")) == (0, 1)
    assert set(replicas.jobs().values()) == {1}
    assert replicas.holder() == successor.name


@pytest.mark.long
def test_a_leader_that_is_ended_hands_over_within_seconds(replicas: Replicas) -> None:
    def end(operator: LocalOperator) -> None:
        operator.process.terminate()

    fail_over(replicas, end, 8)

    (ended,) = (o for o in replicas.operators.values() if o.process.poll() is not None)
    assert ended.process.returncode == 0


@pytest.mark.long
def test_two_replicas_beside_idle_datasets_make_less_than_one_request_per_second(replicas: Replicas) -> None:
    """Both keep the Lease in view, and the leader looks at each Dataset every three seconds."""
    leader, _ = replicas.leader_and_standby()
    idle = replicas.add_datasets(20, are_due=False)
    for name in idle:
        replicas.cluster.wait_for_condition(f"datasets.lethe.dev/{name}", "Ready", within_seconds=START_SECONDS)
    before, reconciles = requests(replicas), leader.metric("lethe_reconciles_total")
    began = time.monotonic()

    wait_until(lambda: leader.metric("lethe_reconciles_total") > reconciles + 3 * len(idle), START_SECONDS)

    assert requests(replicas) - before < time.monotonic() - began


def requests(replicas: Replicas) -> float:
    """All requests to the API server so far."""
    return sum(operator.metric("lethe_api_requests_total") for operator in replicas.operators.values())


@pytest.mark.long
def test_a_shard_without_namespaces_is_ready_and_idle(replicas: Replicas) -> None:
    (other,) = (n for n in range(2) if not Shard(n, 2).of([replicas.cluster.namespace]))
    idle = replicas.start("idle", LETHE_SHARD=f"{other}/2", LETHE_LEADER_LEASE="")

    wait_until(lambda: bool(idle.ready()), START_SECONDS)
    idle.process.terminate()

    assert idle.process.wait(30) == 0
    assert "has none of the watched namespaces" in idle.log.read_text()
