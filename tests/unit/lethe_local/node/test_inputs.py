"""Whatever a pod got is removed with it, in every end. Its log stays."""

import base64
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from lethe.kube import PODS
from lethe_local import node as nodes
from lethe_local.api.objects import LocalObjects, kinds
from lethe_local.api.store import LocalApiStore
from lethe_local.node import Node

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


def a_job(name: str, missing: bool = False) -> dict[str, Any]:
    volumes = [
        {"name": "erase", "projected": {"sources": [{"secret": {"name": "erase-x"}}]}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "scratch", "emptyDir": {}},
    ]
    volumes += [{"name": "run", "configMap": {"name": "absent"}}] if missing else []
    paths = {"erase": "/etc/lethe/erase", "tmp": "/tmp", "scratch": "/scratch", "run": "/etc/lethe/run"}
    mounts = [{"name": v["name"], "mountPath": paths[v["name"]]} for v in volumes]
    container = {"name": "spark", "args": ["driver"], "volumeMounts": mounts}
    spec = {"template": {"metadata": {}, "spec": {"containers": [container], "volumes": volumes}}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": NS}, "spec": spec}


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


def start(machine: Machine, monkeypatch: pytest.MonkeyPatch, how: str) -> Node:
    carry_out(monkeypatch, how)
    machine.create("Job", a_job("run"))
    node = machine.node()
    node.look()
    wait_until(lambda: any("started" in log for log in machine.logs()), LIMIT_SECONDS)
    return node


@pytest.mark.parametrize(("code", "phase"), [("0", "Succeeded"), ("20", "Failed")])
def test_after_a_success_and_after_a_failure(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, code: str, phase: str
) -> None:
    node = start(machine, monkeypatch, code)

    def has_ended() -> bool:
        node.look()
        return machine.phases() == [phase]

    wait_until(has_ended, LIMIT_SECONDS)

    assert machine.copies() == set()
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


def test_of_a_pod_that_cannot_start(machine: Machine) -> None:
    machine.create("Job", a_job("run", missing=True))

    machine.node().look()

    assert (machine.copies(), machine.phases()) == (set(), ["Failed"])
