"""What a driver reports about its executors, and when it gives up waiting for one."""

import json
from pathlib import Path
from typing import Any

import pytest
from lethe.contract.dataset import RunTemplate
from lethe_operator.runs import pod
from lethe_operator.runs.pod import size
from lethe_operator.settings import Settings
from lethe_spark.run.executors import ExecutorTracker, SeenExecutor, probe_pod, refusal_of

from tests.support import api_server
from tests.support.resources import a_buffered, a_consolidation

RUN = a_consolidation(a_buffered("A"))
WIDE = size(0, RunTemplate.model_validate({"executors": {"min": 2, "cpu": "500m", "memory": "2Gi"}}))
QUOTA = 'pods "probe" is forbidden: exceeded quota: small, requested: memory=2Gi, used: memory=3Gi, limited: memory=4Gi'
DELETED = "The executor with id 1 was deleted by a user or the framework.\nmore lines"


class Clock:
    """A clock that only moves when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def running(*ids: str) -> list[SeenExecutor]:
    return [SeenExecutor(i, True) for i in ids]


def a_tracker(clock: Clock, refusals: list[str] | None = None, planned: int = 4) -> ExecutorTracker:
    answers = refusals if refusals is not None else []
    return ExecutorTracker(planned, 2, 100, lambda: answers[0] if answers else "", clock)


def test_nothing_is_reported_while_executors_start_or_are_not_needed() -> None:
    clock = Clock()
    tracker = a_tracker(clock, [QUOTA])

    assert tracker.update(running("1"), 8).message == ""  # four are needed, and the others may be starting
    clock.now += 3600
    state = tracker.update(running("1"), 2)  # two tasks fit one executor

    assert (state.message, state.running, state.planned) == ("", 1, 4)
    assert not tracker.starved


def test_missing_executors_are_reported_with_the_refusal_of_the_api_server() -> None:
    clock = Clock()
    refusals = [QUOTA]
    tracker = a_tracker(clock, refusals)
    tracker.update(running("1"), 8)
    clock.now += 30

    assert tracker.update(running("1"), 8).message == (f"1 of 4 executors run; no further one can be created: {QUOTA}")
    refusals.clear()
    clock.now += 61
    assert tracker.update(running("1"), 8).message == "1 of 4 executors run"
    assert tracker.update(running("1", "2", "3", "4"), 8).message == ""


def test_the_api_server_is_asked_at_most_once_a_minute() -> None:
    clock, asked = Clock(), []
    tracker = ExecutorTracker(4, 2, 100, lambda: asked.append(clock.now) or "", clock)  # type: ignore[func-returns-value]
    for _ in range(130):
        tracker.update([], 8)
        clock.now += 1

    assert asked == [1020, 1080]


def test_the_cores_of_executors_count_for_as_long_as_these_were_there() -> None:
    tracker = a_tracker(Clock())  # of two cores

    tracker.update([SeenExecutor("1", True, seconds=10), SeenExecutor("2", True, seconds=4)], 0)
    tracker.update([SeenExecutor("2", False, DELETED, seconds=6), SeenExecutor("3", True, seconds=1)], 0)

    assert tracker.core_seconds == 2 * (10 + 6 + 1)


def test_lost_executors_are_reported_and_released_ones_are_not() -> None:
    tracker = a_tracker(Clock())
    gone = [SeenExecutor("1", False, DELETED), SeenExecutor("2", False, "Executor killed by driver.")]

    state = tracker.update([*gone, *running("3")], 0)

    assert (state.lost, state.running) == (1, 1)
    assert state.message == (
        "1 executors were lost, the last one: The executor with id 1 was deleted by a user or the framework"
    )


def test_a_run_starves_when_tasks_have_no_executor_for_the_time_to_wait() -> None:
    clock = Clock()
    tracker = a_tracker(clock)
    starved = []
    for executors, tasks in [([], 8), ([], 8), (running("1"), 8), ([], 8), ([], 0), ([], 8), ([], 8)]:
        tracker.update(executors, tasks)
        starved.append(tracker.starved)
        clock.now += 100

    assert starved == [False, True, False, False, False, False, True]


@pytest.fixture
def template(tmp_path: Path) -> Path:
    file = tmp_path / "executor.yaml"
    file.write_text(json.dumps(pod.executor(RUN, WIDE, RunTemplate(), Settings())))
    return file


def test_the_probe_is_a_pod_with_the_size_and_the_security_of_an_executor(template: Path) -> None:
    confs = pod.confs(RUN, WIDE, Settings(spark_image="lethe-spark:1"))

    made = probe_pod(json.loads(template.read_text()), confs)

    (container,) = made["spec"]["containers"]
    assert (container["image"], container["name"]) == ("lethe-spark:1", "spark")
    assert container["resources"]["requests"]["memory"] == container["resources"]["limits"]["memory"] == "2047Mi"
    assert container["resources"]["requests"]["cpu"] == "500m"
    assert container["resources"]["limits"].keys() == {"memory", "cpu", "ephemeral-storage"}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert made["metadata"]["generateName"].startswith(confs["spark.kubernetes.executor.podNamePrefix"])
    assert "name" not in made["metadata"]


@pytest.mark.parametrize(("status", "expected"), [(None, ""), (403, "403"), (500, ""), (0, "")])
def test_only_a_refusal_counts(status: int | None, expected: str, template: Path, tmp_path: Path) -> None:
    """An API server that is unavailable says nothing about quotas."""
    confs: dict[str, Any] = dict(pod.confs(RUN, WIDE, Settings()))
    with api_server.running(tmp_path) as server:
        if status is not None:
            server.refusals.append(("POST", "/pods", status))

        refused = refusal_of(server.api, template, confs)

        assert expected in refused
        assert bool(expected) is bool(refused)
    assert refusal_of(None, template, confs) == ""
