"""A run that crashes, hangs, fills the disk or the memory, or leaks affects only itself. Sessions here have no Spark."""

import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from lethe.contract.result import RunOutcome, RunResult
from lethe.contract.run import RunSpec
from lethe.kube import CONFIG_MAPS
from prometheus_client.parser import text_string_to_metric_families

from tests.support import api_server, fake_session
from tests.support.api_server import NAMESPACE, ApiServer
from tests.support.builders import a_run
from tests.support.mailbox import WARM_DRIVER, Namespace

SOURCES = Path(__file__).parents[3] / "spark_apps"
MIB = 1024**2
SERVE = """
import os, sys
from lethe_spark.run.redact import log_to_stderr
from lethe_spark.warm_driver import serve

serve.FINISH_SECONDS = 1.0
log_to_stderr()
serve.end(serve.WarmDriver(serve.WarmSettings.of(os.environ), (), (sys.executable, sys.argv[1])).run())
"""


@pytest.fixture
def namespace(tmp_path: Path) -> Iterator[Namespace]:
    with api_server.running(tmp_path / "api") as running:
        yield Namespace.make(running, WARM_DRIVER)


class Supervisor:
    """The supervisor's process."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self.folder = folder
        self.log_file = folder / "log"
        self.server = server
        self.process: subprocess.Popen[str] | None = None

    def start(self, **variables: str) -> "Supervisor":
        with self.log_file.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVE, fake_session.__file__],
                env={
                    **os.environ,
                    **self.server.environment,
                    "PYTHONPATH": str(SOURCES),
                    "POD_NAME": "warm-1",
                    "SPARK_LOCAL_DIRS": str(self.folder / "scratch"),
                    "TEST_SIGNS": str(self.folder),
                    "LETHE_WARM_DISK_BYTES": str(30 * MIB),
                    **variables,
                },
                stderr=log,
                text=True,
            )
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def wait(self, seconds: float = 30) -> int:
        assert self.process is not None
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still there after {seconds} s:\n{self.log_file.read_text()[-3000:]}") from None

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)


@pytest.fixture
def supervisor(namespace: Namespace, tmp_path: Path) -> Iterator[Supervisor]:
    made = Supervisor(namespace.server, tmp_path)
    yield made
    made.end()
    for pid in _children_of(tmp_path):
        os.kill(pid, 9)


def _children_of(folder: Path) -> list[int]:
    """The processes whose environment names this test's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if f"SPARK_LOCAL_DIRS={folder}/".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


_numbers = iter(range(1, 10**6))


def a_spec(act: str, **changes: object) -> RunSpec:
    number = next(_numbers)
    spec = a_run(run_id=f"{number:032x}"[::-1], **changes)
    return spec.model_copy(update={"table": spec.table.model_copy(update={"name": f"air.{act}"})})


def session_of(result: RunResult) -> int:
    assert result.outcome is RunOutcome.COMMITTED, result
    return int(json.loads(result.message)["session"])


LIMITS = {
    "exits": ("WarmDriverEnded", "exit code 7", {}),
    "forgets": ("WarmDriverEnded", "could not be reported", {}),
    "hangs": ("WarmDriverLimitExceeded", "longer than 1 seconds", {"LETHE_WARM_RUN_SECONDS": "1"}),
    "writes": ("WarmDriverLimitExceeded", "MiB to the local disk, and may write 30 MiB", {}),
    "allocates": (
        "WarmDriverLimitExceeded",
        "MiB of memory, and may use 150 MiB",
        {"LETHE_WARM_MEMORY_BYTES": str(150 * MIB)},
    ),
}


@pytest.mark.parametrize("act", LIMITS)
def test_a_run_that_breaks_the_session_fails_alone_and_the_next_ones_get_a_new_session(
    namespace: Namespace, supervisor: Supervisor, act: str
) -> None:
    reason, text, variables = LIMITS[act]
    supervisor.start(**variables)
    before = namespace.carried_out(a_spec("ok"))
    bad, after = a_spec(act), a_spec("ok")
    namespace.ask(bad)
    namespace.ask(after)

    failed, fine = namespace.result(bad), namespace.result(after)

    assert (failed.outcome, failed.reason, failed.permanent) == (RunOutcome.FAILED, reason, False)
    assert text in failed.message
    assert (session_of(before) != session_of(fine)) == (act != "forgets")
    left = [p for p in (supervisor.folder / "scratch").rglob("*") if p.name in ("large", "run.json")]
    assert all(p.name == "run.json" for p in left)
    assert not [pid for pid in _children_of(supervisor.folder) if Path(f"/proc/{pid}/comm").read_text() == "sleep\n"]


def test_prometheus_sees_the_runs_and_the_sessions_of_a_warm_driver(
    namespace: Namespace, supervisor: Supervisor
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    supervisor.start(LETHE_METRICS_PORT=str(port))
    for act in ("ok", "exits", "ok"):
        bad = a_spec(act)
        namespace.ask(bad)
        namespace.result(bad)

    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()

    samples = {
        (s.name, s.labels.get("outcome"), s.labels.get("reason")): s.value
        for m in text_string_to_metric_families(page)
        for s in m.samples
    }
    runs = {key[1:]: n for key, n in samples.items() if key[0] == "lethe_warm_driver_runs_total"}
    assert runs == {("Delivered", ""): 2, ("Stopped", "WarmDriverEnded"): 1}
    assert samples["lethe_warm_driver_sessions_total", None, None] == 2
    assert samples["lethe_warm_driver_session_up", None, None] == 1
    assert samples["lethe_warm_driver_session_memory_bytes", None, None] > 0
    assert samples["lethe_warm_driver_runs_waiting", None, None] == 0


def test_a_session_that_keeps_memory_is_replaced_before_the_next_run(
    namespace: Namespace, supervisor: Supervisor
) -> None:
    """It ends by itself, because it may have traces to send."""
    supervisor.start()

    first, leaked, after = (session_of(namespace.carried_out(a_spec(act))) for act in ("ok", "leaks", "ok"))

    assert first == leaked != after
    assert (supervisor.folder / f"{leaked}.ended").exists()


def test_runs_go_one_at_a_time_in_their_order_and_each_in_its_own_folder(
    namespace: Namespace, supervisor: Supervisor
) -> None:
    specs = [a_spec("ok") for _ in range(5)]
    for spec in specs:
        namespace.ask(spec)
    supervisor.start()

    results = [namespace.result(spec) for spec in specs]

    assert len({session_of(r) for r in results}) == 1
    assert len({json.loads(r.message)["folder"] for r in results}) == len(specs)
    times = [r.finished_time for r in results]
    assert times == sorted(times)


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["wanted", "cancelled"])
def test_a_run_that_had_begun_when_the_supervisor_was_killed_is_not_repeated_and_the_others_go_on(
    namespace: Namespace, supervisor: Supervisor, is_cancelled: bool
) -> None:
    """It is unknown whether it goes on: the supervisor may be on a node that is cut off."""
    begun, other = a_spec("waits"), a_spec("ok")
    namespace.ask(begun)
    namespace.ask(other)
    supervisor.start()
    namespace.server.wait_for((supervisor.folder / begun.run_id).exists, 30, "the run has begun")
    os.kill(supervisor.pid, 9)
    supervisor.wait()
    assert not namespace.is_done(begun)
    if is_cancelled:
        namespace.cancel(begun)

    supervisor.start()

    failed = namespace.result(begun)
    assert (failed.reason, failed.permanent) == ("WarmDriverAway", False)
    assert namespace.result(other).outcome is RunOutcome.COMMITTED


def test_a_result_that_was_delivered_before_the_supervisor_died_stays(
    namespace: Namespace, supervisor: Supervisor
) -> None:
    spec = a_spec("ok")
    supervisor.start()
    first = namespace.carried_out(spec)
    supervisor.end()
    key = f"{spec.run_id[:12]}.result.json"
    kept = namespace.server.data(namespace.config_map(spec))[key]
    namespace.ask(spec)
    namespace.server.put(namespace.config_map(spec), **{key: kept})

    supervisor.start()

    assert namespace.result(spec) == first


@pytest.mark.parametrize("has_begun", [True, False], ids=["while it runs", "while it waits"])
def test_a_cancelled_run_is_answered_and_never_begins_later(
    namespace: Namespace, supervisor: Supervisor, has_begun: bool
) -> None:
    first, second, last = a_spec("waits"), a_spec("waits"), a_spec("ok")
    for spec in (first, second, last):
        namespace.ask(spec)
    supervisor.start()
    namespace.server.wait_for((supervisor.folder / first.run_id).exists, 30, "the run has begun")
    order = (first, second) if has_begun else (second, first)

    for spec in order:
        namespace.cancel(spec)
        assert (namespace.result(spec).reason, namespace.is_done(spec)) == ("Cancelled", True)

    assert namespace.result(last).outcome is RunOutcome.COMMITTED
    assert not (supervisor.folder / second.run_id).exists()


def test_a_run_of_a_deleted_dataset_or_one_that_was_replaced_is_dropped(
    namespace: Namespace, supervisor: Supervisor
) -> None:
    gone, other = a_spec("ok"), a_spec("ok")
    namespace.ask(gone)
    namespace.server.put(namespace.config_map(gone), **{f"{gone.run_id[:12]}.run.json": None})
    supervisor.start()

    assert session_of(namespace.carried_out(other))
    namespace.wait_until_done(gone)
    assert namespace.document(gone, "result.json") is None


def test_it_ends_when_it_was_idle(namespace: Namespace, supervisor: Supervisor) -> None:
    supervisor.start(LETHE_WARM_IDLE_SECONDS="2")
    assert session_of(namespace.carried_out(a_spec("ok")))

    assert supervisor.wait() == 0


def test_it_takes_the_runs_whose_files_it_has_and_ends_when_only_others_wait(
    namespace: Namespace, supervisor: Supervisor
) -> None:
    """The operator starts the next one, whose pod has the files of the others."""
    other, both, own, none = (a_spec("ok") for _ in range(4))
    namespace.ask(other, files=("b",))
    namespace.ask(both, files=("a", "b"))
    namespace.ask(own, files=("a",))
    namespace.ask(none)

    supervisor.start(LETHE_WARM_FILES="a,c")

    assert namespace.result(own).outcome is RunOutcome.COMMITTED
    assert namespace.result(none).outcome is RunOutcome.COMMITTED
    assert supervisor.wait() == 0  # although it would stay for ten minutes without other runs
    assert not namespace.is_done(other)
    assert not namespace.is_done(both)
    supervisor.start(LETHE_WARM_FILES="a,b")
    assert {namespace.result(spec).outcome for spec in (other, both)} == {RunOutcome.COMMITTED}


def test_a_run_that_comes_while_it_ends_makes_kubernetes_start_it_again(
    namespace: Namespace, supervisor: Supervisor
) -> None:
    """It reads the mailbox once more before it ends, because an event may be on the way."""
    spec = a_spec("ok")
    supervisor.start(LETHE_WARM_IDLE_SECONDS="3")
    assert session_of(namespace.carried_out(a_spec("ok")))
    namespace.server.stall()  # no watch reports the entry
    namespace.server.before["GET", CONFIG_MAPS.path(NAMESPACE, WARM_DRIVER)] = lambda: namespace.ask(spec)

    assert supervisor.wait() == 1
    assert not namespace.is_done(spec)


def test_sigterm_lets_a_run_stop_and_leaves_the_others_in_the_mailbox(
    namespace: Namespace, supervisor: Supervisor
) -> None:
    running, waiting = a_spec("waits"), a_spec("ok")
    namespace.ask(running)
    namespace.ask(waiting)
    supervisor.start()
    namespace.server.wait_for((supervisor.folder / running.run_id).exists, 30, "the run has begun")

    os.kill(supervisor.pid, 15)

    assert supervisor.wait() == 1
    assert namespace.result(running).reason == "Cancelled"
    assert not namespace.is_done(waiting)
    assert _children_of(supervisor.folder) == []


def test_a_session_that_never_gets_ready_ends_the_process(namespace: Namespace, tmp_path: Path) -> None:
    """Kubernetes restarts it, and in the end the operator starts Jobs."""
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit(3)")
    environ = {**os.environ, **namespace.server.environment, "PYTHONPATH": str(SOURCES)}
    environ["SPARK_LOCAL_DIRS"] = str(tmp_path / "scratch")

    ended = subprocess.run([sys.executable, "-c", SERVE, str(broken)], env=environ, timeout=60, capture_output=True)

    assert ended.returncode == 1
    assert b"ended 3 times before it was ready" in ended.stderr
