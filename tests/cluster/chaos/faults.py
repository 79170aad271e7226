"""Carries out faults on the tests' cluster. I/O only."""

import json
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, assert_never

from tests.cluster.chaos import clock
from tests.cluster.chaos.plan import Fault, FaultKind
from tests.cluster.chaos.player import through_outages
from tests.cluster.chaos.report import Injected
from tests.cluster.install import OPERATOR_PODS, SYSTEM
from tests.cluster.kube import Cluster, Object, Refused
from tests.cluster.operators import ROOT
from tests.cluster.servers.outage import away
from tests.cluster.story import ClusterStory

NODE: Final = str(ROOT / "dev/no-docker/cluster.sh")
LEASE: Final = "lease/lethe-operator"
COMMITTER, COMMITTER_CONTAINER = "deployment/lethe-committer", "committer"
COMMITTER_PODS: Final = "app.kubernetes.io/component=committer"
DRIVERS: Final = "app.kubernetes.io/component=run,job-name"
EXECUTORS: Final = "spark-role=executor"
WARM_DRIVER: Final = "app.kubernetes.io/component=warm-driver"
COMMITS: Final = frozenset({"Writing", "Staging", "PurgeData", "Committing", "Expiring"})
# How long a fault waits for its target: a driver, or a run that commits.
TARGET_SECONDS: Final = 25
LOOK_AGAIN_SECONDS: Final = 0.3
# A shifted clock is right again after this many further faults.
SHIFTED_FAULTS: Final = 3
# More than the scratch volumes have room for.
FILL: Final = "head -c 320000000 /dev/zero > /scratch/fill"


@dataclass
class Faults:
    """`cluster` has the namespace of the runs."""

    cluster: Cluster
    stories: Sequence[ClusterStory]
    has_clocks: bool  # the ConfigMap of shifted clocks is there
    started: float = field(default_factory=time.monotonic)
    injected: list[Injected] = field(default_factory=list)
    # What makes a clock right again, each with the number of faults before it does.
    _heal: list[tuple[int, Callable[[], None]]] = field(default_factory=list)

    def inject(self, fault: Fault) -> Injected:
        began = time.monotonic()
        due = len(self.injected)
        for at, heal in [entry for entry in self._heal if entry[0] <= due]:
            self._heal.remove((at, heal))
            through_outages(heal)
        target, error = "", ""
        try:
            target = self._inject(fault)
        except (Refused, subprocess.TimeoutExpired) as e:  # the cluster still suffers from the faults before
            error = str(e)
        self.injected.append(Injected(fault.kind, began - self.started, time.monotonic() - began, target, error))
        return self.injected[-1]

    def heal(self) -> None:
        """End what lasts."""
        while self._heal:
            through_outages(self._heal.pop()[1])

    def _inject(self, fault: Fault) -> str:
        kind = fault.kind
        match kind:
            case FaultKind.KILL_LEADER:
                return self._kill_leader()
            case FaultKind.KILL_COMMITTER:
                return self._kill(fault, COMMITTER_PODS)
            case FaultKind.KILL_DRIVER:
                return self._kill(fault, DRIVERS)
            case FaultKind.KILL_EXECUTOR:
                return self._kill(fault, EXECUTORS)
            case FaultKind.KILL_WARM_DRIVER:
                return self._kill(fault, WARM_DRIVER)
            case FaultKind.EVICT:
                return self._evict(fault)
            case FaultKind.PAUSE_API_SERVER:
                return self._pause_api_server(fault.lasts_seconds)
            case FaultKind.RESTART_S3:
                return self._restart("s3", fault.lasts_seconds)
            case FaultKind.RESTART_POSTGRES:
                return self._restart("postgres", fault.lasts_seconds)
            case FaultKind.SHIFT_COMMITTER_CLOCK:
                return self._shift_committer()
            case FaultKind.SHIFT_RUN_CLOCK:
                return self._shift_runs(fault)
            case FaultKind.FILL_DISK:
                return self._fill_disk(fault)
            case _:
                assert_never(kind)

    # --- pods ---

    def _running(self, selector: str) -> list[str]:
        pods = self.cluster.list("pods", selector)
        live = [p for p in pods if p["status"].get("phase") == "Running" and "deletionTimestamp" not in p["metadata"]]
        return sorted(p["metadata"]["name"] for p in live)

    def _a_pod(self, fault: Fault, *selectors: str) -> str:
        """A running pod, or "" if none comes in time."""
        found: list[str] = []

        def some() -> bool:
            found[:] = [name for selector in selectors for name in self._running(selector)]
            return bool(found)

        return found[fault.choice % len(found)] if comes(some, TARGET_SECONDS) else ""

    def _kill(self, fault: Fault, selector: str) -> str:
        pod = self._a_pod(fault, selector)
        if pod:
            kill(self.cluster, pod)
        return pod

    def _kill_leader(self) -> str:
        system = self.cluster.in_namespace(SYSTEM)
        leader = str((system.get(LEASE) or {}).get("spec", {}).get("holderIdentity", ""))
        if leader:
            kill(system, leader)
        return leader

    def _evict(self, fault: Fault) -> str:
        system = self.cluster.in_namespace(SYSTEM)
        of_runs = [
            (self.cluster, n) for s in (COMMITTER_PODS, WARM_DRIVER, DRIVERS, EXECUTORS) for n in self._running(s)
        ]
        of_operator = [
            (system, p["metadata"]["name"])
            for p in system.list("pods", OPERATOR_PODS)
            if p["status"].get("phase") == "Running"
        ]
        candidates = [*of_runs, *of_operator]
        where, pod = candidates[fault.choice % len(candidates)]
        named = {"name": pod, "namespace": where.namespace}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": named}
        path = f"/api/v1/namespaces/{where.namespace}/pods/{pod}/eviction"
        try:
            where.run("create", "--raw", path, "-f", "-", stdin=json.dumps(body))
        except Refused as e:
            if "disruption budget" not in str(e):
                raise
            return f"{pod}, which its disruption budget protects"
        return pod

    def _fill_disk(self, fault: Fault) -> str:
        pod = self._a_pod(fault, DRIVERS, WARM_DRIVER)
        if not pod:
            return ""
        try:
            self.cluster.run("exec", pod, "--", "sh", "-c", FILL)
        except Refused as e:  # the pod ended meanwhile, or no byte more fits
            return f"{pod}, with {str(e).splitlines()[-1]}"
        return pod

    # --- services ---

    def _pause_api_server(self, seconds: float) -> str:
        """Only on a local node: elsewhere the process is out of reach."""
        asked = subprocess.run([NODE, "kubeconfig"], capture_output=True, text=True, check=True, timeout=60)
        if asked.stdout.strip() != str(self.cluster.kubeconfig):
            return ""
        found = subprocess.run(
            [NODE, "enter", "pgrep", "-x", "kube-apiserver"], capture_output=True, text=True, timeout=60
        )
        process = found.stdout.strip()
        if not process:
            return ""
        subprocess.run([NODE, "enter", "kill", "-STOP", process], check=True, timeout=60)
        try:
            threading.Event().wait(seconds)
        finally:
            subprocess.run([NODE, "enter", "kill", "-CONT", process], check=True, timeout=60)
        return f"kube-apiserver for {seconds:.0f} s"

    def _restart(self, app: str, seconds: float) -> str:
        """During a commit if one comes in time, else between commits."""
        during = "during a commit" if comes(self._commits, TARGET_SECONDS) else "between commits"
        with away(self.cluster, app):
            threading.Event().wait(seconds)
        return f"{app} for {seconds:.0f} s, {during}"

    def _commits(self) -> bool:
        bodies = [body for story in self.stories if (body := self.cluster.get(story.dataset)) is not None]
        return any(run.get("phase") in COMMITS for body in bodies for run in body.get("status", {}).get("runs", ()))

    # --- clocks ---

    def _shift_committer(self) -> str:
        if not self.has_clocks:
            return ""
        self._patch_committer(clock.pod_spec(COMMITTER_CONTAINER, "ahead"))
        self._heal_later(lambda: self._patch_committer(clock.without_clock(COMMITTER_CONTAINER)))
        return COMMITTER

    def _patch_committer(self, spec: Object) -> None:
        body = {"spec": {"template": {"spec": spec}}}
        self.cluster.run("patch", COMMITTER, "--type=strategic", "-p", json.dumps(body))

    def _shift_runs(self, fault: Fault) -> str:
        if not self.has_clocks:
            return ""
        dataset = self.stories[fault.choice % len(self.stories)].dataset
        before = (self.cluster.get(dataset) or {})["spec"].get("runTemplate", {}).get("podTemplate")
        self._patch_template(dataset, {"metadata": None, "spec": clock.pod_spec("spark", "behind")})
        self._heal_later(lambda: self._patch_template(dataset, before))
        return dataset

    def _patch_template(self, dataset: str, template: Object | None) -> None:
        self.cluster.patch(dataset, {"spec": {"runTemplate": {"podTemplate": None}}})
        if template is not None:
            self.cluster.patch(dataset, {"spec": {"runTemplate": {"podTemplate": template}}})

    def _heal_later(self, heal: Callable[[], None]) -> None:
        self._heal.append((len(self.injected) + SHIFTED_FAULTS, heal))


def kill(cluster: Cluster, pod: str) -> None:
    cluster.run("delete", "pod", pod, "--ignore-not-found", "--grace-period=0", "--force", "--wait=false")


def comes(holds: Callable[[], bool], within_seconds: float) -> bool:
    """Whether a condition comes to hold within a time."""
    until, pause = time.monotonic() + within_seconds, threading.Event()
    while not holds():
        if time.monotonic() >= until:
            return False
        pause.wait(LOOK_AGAIN_SECONDS)
    return True
