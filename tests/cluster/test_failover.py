"""The leader is killed, paused or cut off while it starts runs: another process acts within 15 seconds, and no run starts twice.

The operators are processes on this machine, and the API server is real. The namespace allows no pods, so that no run ends.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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
