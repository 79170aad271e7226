"""Pods as processes: what they get, which process is which, and what is removed with them. The log of it all."""

import base64
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from lethe.base.errors import InputError
from lethe.contract.result import BEGINNING
from lethe.kube import PODS
from lethe_local import node
from lethe_local import node as nodes
from lethe_local.api.objects import LocalObjects, kinds
from lethe_local.api.store import LocalApiStore
from lethe_local.folder import WARM_DRIVER, Folder, lines_of, log_lines
from lethe_local.node import Node, VolumeMissing, mounted, translated

from tests.support.clock import wait_until

NS, VALUE = "default", b"passenger <7>"
LIMIT_SECONDS = 30
# The process of a run: it copies its values into other places, as a shuffle or a crash of Java does, and ends or waits.
RUN = """
import os, sys, time
value = open(os.path.join("erase", "values")).read()
for place in (os.path.join(os.environ["TMPDIR"], "spill"), os.path.join("scratch", "block"), "hs_err_pid1.log"):
    open(place, "w").write(value)
print("started", flush=True)
if sys.argv[1] == "wait":
    time.sleep(600)
sys.exit(int(sys.argv[1]))
"""


def a_job(name: str, missing: bool = False, **spec: Any) -> dict[str, Any]:
    volumes = [
        {"name": "erase", "projected": {"sources": [{"secret": {"name": "erase-x"}}]}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "scratch", "emptyDir": {}},
    ]
    volumes += [{"name": "run", "configMap": {"name": "absent"}}] if missing else []
    paths = {"erase": "/etc/lethe/erase", "tmp": "/tmp", "scratch": "/scratch", "run": "/etc/lethe/run"}
    mounts = [{"name": v["name"], "mountPath": paths[v["name"]]} for v in volumes]
    container = {"name": "spark", "args": ["driver"], "volumeMounts": mounts}
    template = {"metadata": {}, "spec": {"containers": [container], "volumes": volumes}}
    metadata = {"name": name, "namespace": NS}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template, **spec}}


class Machine:
    def __init__(self, home: Path) -> None:
        self.home, self.runs = home, home / "runs"
        self.runs.mkdir()
        self.objects = LocalObjects(LocalApiStore(home / "state.db"))
        data = {"values": base64.b64encode(VALUE).decode()}
        self.create("Secret", {"kind": "Secret", "metadata": {"name": "erase-x"}, "data": data})

    def create(self, kind: str, document: dict[str, Any]) -> None:
        self.objects.create(next(k for k in kinds() if k.resource.name == kind), NS, document)

    def node(self) -> Node:
        return Node(self.objects, self.runs, dict(os.environ), 2)

    def phases(self) -> list[str]:
        pods = next(k for k in kinds() if k.resource == PODS)
        return [p["status"]["phase"] for p in self.objects.list(pods, "")[0] if p.get("status")]

    def reasons(self) -> list[str]:
        """Why each Job has ended."""
        jobs = next(k for k in kinds() if k.resource.name == "Job")
        return [c["reason"] for j in self.objects.list(jobs, "")[0] for c in j.get("status", {}).get("conditions", ())]

    def copies(self) -> set[str]:
        """The files with the value, below the folder of runs."""
        return {p.name for p in self.runs.rglob("*") if p.is_file() and VALUE in p.read_bytes()}

    def logs(self) -> list[str]:
        return [p.read_text() for p in self.runs.glob("*/log")]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def carry_out(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    real = nodes.start

    def start(_: list[str], environ: dict[str, str], folder: Path) -> nodes.PodProcess:
        return real([sys.executable, "-c", RUN, how], environ, folder)

    monkeypatch.setattr(nodes, "start", start)


def start(machine: Machine, monkeypatch: pytest.MonkeyPatch, how: str, **spec: Any) -> Node:
    carry_out(monkeypatch, how)
    machine.create("Job", a_job("run", **spec))
    node = machine.node()
    node.look()
    wait_until(lambda: any("started" in log for log in machine.logs()), LIMIT_SECONDS)
    return node


@pytest.mark.parametrize(
    ("how", "limit", "phase", "reason"),
    [
        ("0", 600, "Succeeded", "CompletionsReached"),
        ("20", 600, "Failed", "BackoffLimitExceeded"),
        ("wait", 1, "Failed", "DeadlineExceeded"),
    ],
    ids=["success", "failure", "deadline"],
)
def test_after_a_success_a_failure_and_a_deadline(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, how: str, limit: int, phase: str, reason: str
) -> None:
    node = start(machine, monkeypatch, how, activeDeadlineSeconds=limit)

    def has_ended() -> bool:
        node.look()
        return machine.reasons() == [reason]

    wait_until(has_ended, LIMIT_SECONDS)

    assert (machine.phases(), machine.copies()) == ([phase], set())
    assert machine.logs() == ["started\n"]


def test_after_it_was_told_to_stop(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    node = start(machine, monkeypatch, "wait")
    assert machine.copies() == {"values", "spill", "block", "hs_err_pid1.log"}

    node.leave()
    node.run()

    assert machine.copies() == set()


def test_after_a_restart_that_follows_a_kill(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of the run outlived the node. Another folder is of a pod that is no object any more."""
    start(machine, monkeypatch, "wait")
    lost = machine.runs / "lost" / "erase"
    lost.mkdir(parents=True)
    (lost / "values").write_bytes(VALUE)

    machine.node().recover()

    assert (machine.copies(), machine.phases(), lost.parent.exists()) == (set(), ["Failed"], False)


def test_what_was_created_for_an_owner_that_is_gone_is_deleted(machine: Machine) -> None:
    """Such as the Secret of a Restatement that was deleted at the same time."""
    owners = [{"apiVersion": "lethe.dev/v1beta1", "kind": "Restatement", "name": "erase-1", "uid": "gone"}]
    metadata = {"name": "erase-1", "ownerReferences": owners}
    machine.create("Secret", {"kind": "Secret", "metadata": metadata, "data": {"k": "djE="}})

    machine.node().look()

    secrets = next(k for k in kinds() if k.resource.name == "Secret")
    assert [s["metadata"]["name"] for s in machine.objects.list(secrets, "")[0]] == ["erase-x"]


def test_of_a_pod_that_cannot_start(machine: Machine) -> None:
    machine.create("Job", a_job("run", missing=True))

    machine.node().look()

    assert (machine.copies(), machine.phases()) == (set(), ["Failed"])


# Starts a process in a group of its own, as the warm driver does with its Spark session, writes its number, and waits.
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open("child.new", "w").write(str(child.pid))
import os
os.rename("child.new", "child")
time.sleep(600)
"""
pytestmark = pytest.mark.skipif(not node.PROC.is_dir(), reason="the kernel has no /proc, so there is no warm driver")


def started(folder: Path) -> tuple[node.PodProcess, int]:
    """A process and the number of the one that it has started."""
    folder.mkdir()
    running = node.start([sys.executable, "-c", PARENT], dict(os.environ), folder)
    wait_until((folder / "child").exists, LIMIT_SECONDS)
    return running, int((folder / "child").read_text())


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_process_is_killed_with_those_that_it_has_put_into_other_groups(tmp_path: Path) -> None:
    running, child = started(tmp_path / "one")
    _, other = started(tmp_path / "other")

    running.kill()
    running.wait(LIMIT_SECONDS)

    wait_until(lambda: not is_alive(child), LIMIT_SECONDS)
    assert is_alive(other)
    node.kill_leftover(tmp_path / "other")
    wait_until(lambda: not is_alive(other), LIMIT_SECONDS)


def test_what_a_process_of_an_earlier_life_has_left_is_killed_though_the_process_itself_is_gone(tmp_path: Path) -> None:
    running, child = started(tmp_path / "one")
    running.process.kill()
    running.process.wait()
    assert is_alive(child)

    node.kill_leftover(tmp_path / "one")

    wait_until(lambda: not is_alive(child), LIMIT_SECONDS)


PLACES = {"/etc/lethe/run": "/home/me/runs/a/run", "/scratch": "/home/me/runs/a/scratch", "/tmp": "/home/me/runs/a/tmp"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/etc/lethe/run/run.json", "/home/me/runs/a/run/run.json"),
        ("/scratch", "/home/me/runs/a/scratch"),
        ("spark.local.dir=/scratch", "spark.local.dir=/home/me/runs/a/scratch"),
        ('["/etc/lethe/run/0.run.json"]', '["/home/me/runs/a/run/0.run.json"]'),
        ("file:///data/scratch/x", "file:///data/scratch/x"),
        ("s3://lake/scratch", "s3://lake/scratch"),
        ("/scratchy", "/scratchy"),
        ("/tmp/buffer", "/tmp/buffer"),
    ],
)
def test_only_mounted_paths_are_translated(text: str, expected: str) -> None:
    assert translated(text, PLACES) == expected


def pod(volume: dict[str, Any], mount: str = "/etc/v") -> dict[str, Any]:
    container = {"volumeMounts": [{"name": "v", "mountPath": mount}]}
    return {"spec": {"containers": [container], "volumes": [{"name": "v", **volume}]}}


def find(kind: str, name: str) -> dict[str, Any] | None:
    return {
        ("ConfigMap", "c"): {"kind": "ConfigMap", "data": {"a": '{"file": "/etc/v/x"}', "b": "2"}},
        ("Secret", "s"): {
            "kind": "Secret",
            "data": {"k": base64.b64encode(b"\xff").decode()},
            "stringData": {"t": "text"},
        },
    }.get((kind, name))


def test_a_config_map_gives_the_keys_that_are_asked_for(tmp_path: Path) -> None:
    items = [{"key": "a", "path": "run.json"}]

    places = mounted(pod({"configMap": {"name": "c", "items": items}}), tmp_path, find)

    assert places == {"/etc/v": str(tmp_path / "v")}
    assert {p.name: p.read_text() for p in (tmp_path / "v").iterdir()} == {"run.json": f'{{"file": "{tmp_path}/v/x"}}'}


def test_a_secret_is_decoded_and_readable_by_its_owner_alone(tmp_path: Path) -> None:
    mounted(pod({"secret": {"secretName": "s"}}), tmp_path, find)

    assert (tmp_path / "v/k").read_bytes() == b"\xff"
    assert (tmp_path / "v/t").read_text() == "text"
    assert oct((tmp_path / "v/k").stat().st_mode & 0o777) == "0o600"


def test_values_that_look_like_mounted_paths_stay_as_they_are(tmp_path: Path) -> None:
    """An Erase would look for other values, and find none of its rows."""
    values = b"/etc/v/ana\n/etc/v\n"
    secret = {"kind": "Secret", "data": {"ids": base64.b64encode(values).decode()}}

    mounted(pod({"projected": {"sources": [{"secret": {"name": "s"}}]}}), tmp_path, lambda *_: secret)

    assert (tmp_path / "v/ids").read_bytes() == values


def test_sources_can_be_optional(tmp_path: Path) -> None:
    sources = [{"secret": {"name": "absent", "optional": True}}, {"configMap": {"name": "c"}}]

    mounted(pod({"projected": {"sources": sources}}), tmp_path, find)

    assert sorted(p.name for p in (tmp_path / "v").iterdir()) == ["a", "b"]


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        ({"secret": {"secretName": "absent"}}, 'secret "absent" not found'),
        ({"configMap": {"name": "c", "items": [{"key": "z", "path": "z"}]}}, "ConfigMap c has no key z"),
    ],
)
def test_a_missing_object_is_named(tmp_path: Path, volume: dict[str, Any], message: str) -> None:
    with pytest.raises(VolumeMissing, match=message):
        mounted(pod(volume), tmp_path, find)


def test_a_log_is_found_by_the_name_of_a_run_or_of_a_part(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for name in ("parts/operator", "runs/revert-1-x", "runs/revert-1-y"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "log").write_text(name)
    os.utime(tmp_path / "runs/revert-1-x/log", (1, 1))

    assert list(lines_of(folder, "operator", 0, follow=False)) == ["parts/operator"]
    assert list(lines_of(folder, "revert-1", 0, follow=False)) == ["runs/revert-1-y"]
    with pytest.raises(InputError, match="has no log of revert-2"):
        list(lines_of(folder, "revert-2", 0, follow=False))


def test_a_run_without_a_process_of_its_own_is_found_in_the_logs_of_warm_drivers(tmp_path: Path) -> None:
    for name, line in (("older", "revert-2"), ("newer", "revert-1")):
        (tmp_path / "runs" / f"{WARM_DRIVER}-{name}").mkdir(parents=True)
        text = f"starting\nx: {BEGINNING}{line}\nit reads\nit commits\nx: {BEGINNING}other\n"
        (tmp_path / "runs" / f"{WARM_DRIVER}-{name}" / "log").write_text(text)

    assert list(lines_of(Folder(tmp_path), "revert-2", 0, follow=False))[1:] == ["it reads", "it commits"]
    assert list(lines_of(Folder(tmp_path), "revert-1", 1, follow=False)) == ["it commits"]


def test_only_the_last_lines_are_shown(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("".join(f"{n}\n" for n in range(5)))

    assert list(log_lines(tmp_path / "log", 2, follow=False)) == ["3", "4"]
    assert list(log_lines(tmp_path / "log", 0, follow=False)) == ["0", "1", "2", "3", "4"]


def test_following_ends_with_the_process_and_shows_its_last_line(tmp_path: Path) -> None:
    """The process writes its lines when it is asked to, half a line at a time."""
    os.mkfifo(tmp_path / "go")
    code = "print('begun', flush=True); open('go').read(); print('half', end='', flush=True); print(' and half')"
    running = node.start([sys.executable, "-c", code], dict(os.environ), tmp_path)
    lines = log_lines(tmp_path / "log", 10, follow=True)

    first = next(lines)
    (tmp_path / "go").write_text("")
    ended = running.process.wait(timeout=60)

    assert (first, ended, list(lines)) == ("begun", 0, ["half and half"])


def test_a_line_that_is_half_written_when_following_begins_stays_one(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("first\nhalf")
    lines = log_lines(tmp_path / "log", 10, follow=True)

    begun = next(lines)
    with (tmp_path / "log").open("a") as log:
        log.write(" and half\n")

    assert [begun, *lines] == ["first", "half and half"]
