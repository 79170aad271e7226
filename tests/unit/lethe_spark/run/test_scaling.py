"""Which Spark session a run gets. Only the session and the view of its executors are replaced: both need a cluster."""

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lethe.contract.dataset import RunTemplate
from lethe.contract.result import Phase, Progress
from lethe.contract.settings import TASK_BYTES
from lethe_operator.runs import pod
from lethe_operator.runs.pod import size
from lethe_operator.settings import Settings
from lethe_spark.apps import session as scaling
from lethe_spark.run import context as arguments
from lethe_spark.run import executors
from lethe_spark.run.executors import SeenExecutor
from lethe_spark.run.progress import Reporter

from tests.support.resources import a_buffered, a_consolidation, a_vacuum

CONSOLIDATION = a_consolidation(a_buffered("A"))


@dataclass
class Sessions:
    """Stands for Spark: the sessions that were started, and whether their executors start."""

    planned: int = 0  # bytes of the run's plan
    start: bool = True  # whether executors start
    masters: list[str] = field(default_factory=list)
    confs: list[Mapping[str, str]] = field(default_factory=list)
    stopped: int = 0

    def make(self, _catalog: str, confs: Mapping[str, str], _fresh: bool = False) -> Any:
        assert self.stopped == len(self.masters), "a session was started beside another one"
        self.masters.append(confs["spark.master"])
        self.confs.append(confs)
        context = SimpleNamespace(master=confs["spark.master"], cancelAllJobs=lambda: None)
        return SimpleNamespace(sparkContext=context, stop=self.stop)

    def stop(self) -> None:
        self.stopped += 1

    def seen(self, _context: Any) -> list[SeenExecutor]:
        return [SeenExecutor("1", True)] if self.start else []


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> Sessions:
    found = Sessions()
    monkeypatch.setattr(scaling, "make_session", found.make)
    monkeypatch.setattr(executors, "seen", found.seen)
    monkeypatch.setattr(executors, "running_tasks", lambda _: (0, 0))
    read = scaling.bytes_by_plan
    monkeypatch.setattr(scaling, "bytes_by_plan", lambda kind: (lambda _: found.planned) if read(kind) else None)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    return found


def opened(run: Any, run_bytes: int, tmp_path: Path, wait: float = 60, **template: Any) -> tuple[Any, list[Progress]]:
    """Open the session of a run of the operator's size; what the driver reported."""
    chosen = size(run_bytes, RunTemplate.model_validate({"executors": template}))
    settings = Settings()
    words = pod.arguments(pod.confs(run, chosen, settings), pod.scaling(run, chosen))
    _, given = arguments.parse([w.replace("$(POD_IP)", "10.0.0.1") for w in words[1:]], {})
    if given.scaling is not None:
        given = arguments.Arguments(
            given.confs, arguments.Scaling(given.scaling.alone_cores, wait, given.scaling.by_plan)
        )
    (tmp_path / "executor.yaml").write_text(json.dumps(pod.executor(run, chosen, RunTemplate(), settings)))
    reported: list[Progress] = []
    reporter = Reporter(run, reported.append)
    session = scaling.RunSession(run, given, reporter, {}, threading.Event())
    session.open()
    session.close()
    reporter.close(Phase.SUCCEEDED)
    return session, reported


def test_a_small_run_has_one_session_without_executors(sessions: Sessions, tmp_path: Path) -> None:
    opened(CONSOLIDATION, TASK_BYTES, tmp_path)

    assert sessions.masters == ["local[2]"]


def test_a_large_run_gets_all_executors_for_its_bytes_at_once(sessions: Sessions, tmp_path: Path) -> None:
    opened(CONSOLIDATION, 20 * TASK_BYTES, tmp_path)

    assert [m.partition(":")[0] for m in sessions.masters] == ["k8s"]
    confs = sessions.confs[0]
    of = {k.rpartition(".")[2]: v for k, v in confs.items() if k.startswith("spark.dynamicAllocation.")}
    assert (of["minExecutors"], of["initialExecutors"], of["maxExecutors"]) == ("0", "5", "5")
    assert "spark.executor.instances" not in confs


@pytest.mark.parametrize(
    ("planned", "masters", "executors"),
    [
        (0, ["local[2]"], None),
        (8 * TASK_BYTES, ["local[2]"], None),
        (9 * TASK_BYTES, ["local[2]", "k8s"], "3"),
        (1000 * TASK_BYTES, ["local[2]", "k8s"], "8"),
    ],
)
def test_a_vacuum_of_a_large_table_is_sized_by_its_plan(
    planned: int, masters: list[str], executors: str | None, sessions: Sessions, tmp_path: Path
) -> None:
    """The table has 1,000 tasks' worth of bytes each time."""
    sessions.planned = planned

    opened(a_vacuum(), 1000 * TASK_BYTES, tmp_path)

    assert [m.partition(":")[0] for m in sessions.masters] == masters
    assert sessions.confs[-1].get("spark.dynamicAllocation.maxExecutors") == executors


def test_a_vacuum_of_a_small_table_needs_no_plan_first(sessions: Sessions, tmp_path: Path) -> None:
    session, _ = opened(a_vacuum(), TASK_BYTES, tmp_path)

    assert (session.settings.scaling, sessions.masters) == (None, ["local[2]"])


def test_a_driver_that_gets_no_executor_works_alone_and_says_so(sessions: Sessions, tmp_path: Path) -> None:
    sessions.start = False

    _, reported = opened(CONSOLIDATION, 20 * TASK_BYTES, tmp_path, wait=0)

    assert [m.partition(":")[0] for m in sessions.masters] == ["k8s", "local[2]"]
    state = reported[-1].executors
    assert state is not None
    assert (state.alone, state.planned, state.running) == (True, 5, 0)
    assert state.message == (
        "No executor started within 0 seconds, so the driver works alone. See the events of their pods."
    )


@pytest.mark.usefixtures("sessions")
def test_a_run_that_lost_all_executors_is_repeated(tmp_path: Path) -> None:
    session, _ = opened(CONSOLIDATION, 20 * TASK_BYTES, tmp_path, min=2)
    assert session.monitor is not None
    cause = RuntimeError("job cancelled")

    assert session.error(cause) is cause
    session.monitor.starved = True
    error = session.error(cause)
    assert (error.reason, error.exit_code) == ("NoExecutors", 20)
    assert "no executor for 60 seconds" in error.message
