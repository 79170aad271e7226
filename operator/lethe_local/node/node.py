"""Runs Jobs as processes, as the Job controller and the kubelet do with pods. I/O: processes, files, the store."""

import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from lethe_operator.kube import JOBS, PODS

from lethe_local.api import errors
from lethe_local.api.kinds import Kind
from lethe_local.api.objects import Objects
from lethe_local.node import process
from lethe_local.node.process import PodProcess
from lethe_local.node.volumes import VolumeMissing, mounted, translated

log = logging.getLogger(__name__)

Json = dict[str, Any]
LOOK_SECONDS: Final = 0.5
KILLED_SECONDS: Final = 10.0  # a killed process is gone after milliseconds, unless its disk hangs
KEPT: Final = frozenset({process.LOG_FILE, process.PID_FILE})  # of the folder of a pod that has ended
_PACKAGES: Final = Path(__file__).resolve().parents[2]
_MODULES: Final[Mapping[str, str]] = {"driver": "lethe_spark.apps.app", "warm-driver": "lethe_spark.warm_driver"}


@dataclass
class Node:
    """One per folder. Jobs start in the order of their creation."""

    objects: Objects
    runs: Path  # folder of the pods' folders
    environ: Mapping[str, str]  # of each process: where the API is, and its credentials
    max_pods: int  # processes of Jobs at once
    _processes: dict[str, PodProcess] = field(default_factory=dict)  # by UID of the pod
    _leaving: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        kinds = {k.resource: k for k in self.objects.kinds.values()}
        self._jobs: Kind = kinds[JOBS]
        self._pods: Kind = kinds[PODS]
        self._by_name = {k.resource.name: k for k in kinds.values()}

    def recover(self) -> None:
        """End what an earlier life has left, and remove what its pods got. Its pods have failed."""
        pods = self.objects.list(self._pods, "")[0]
        known = {self._folder(pod) for pod in pods}
        for folder in self.runs.iterdir() if self.runs.exists() else ():
            if folder not in known:  # its pod was removed, and its folder was not
                _end_leftover(folder)
                shutil.rmtree(folder, ignore_errors=True)
        for pod in pods:
            _end_leftover(self._folder(pod))
            remove_inputs(self._folder(pod))
            if (pod.get("status") or {}).get("phase") in ("Pending", "Running"):
                self._set_status(self._pods, pod, _ended(pod, 137, "The machine or `lethe local` was stopped."))

    def run(self) -> None:
        """Run until `leave`; then end all processes."""
        last = ""
        while not self._leaving.is_set():
            try:
                self.look()
                last = ""
            except Exception as e:
                if repr(e) != last:  # a full disk, for example, lasts for many looks
                    log.exception("the node failed, and goes on")
                last = repr(e)
            self._leaving.wait(LOOK_SECONDS)
        for running in self._processes.values():
            running.stop()
        ends = time.monotonic() + process.GRACE_SECONDS
        for running in self._processes.values():
            running.wait(ends - time.monotonic())
            running.kill()
            remove_inputs(running.folder)

    def leave(self) -> None:
        self._leaving.set()

    def look(self) -> None:
        """Do what has to be done now."""
        jobs = sorted(
            self.objects.list(self._jobs, "")[0],
            key=lambda j: (j["metadata"]["creationTimestamp"], j["metadata"]["name"]),
        )
        pods = {_job_of(p): p for p in self.objects.list(self._pods, "")[0]}
        for job in jobs:
            pod = pods.get(job["metadata"]["uid"])
            if pod is not None:
                pod = self._look_at(pod, "deletionTimestamp" in job["metadata"] or _is_late(job))
            if "deletionTimestamp" in job["metadata"]:
                if pod is None or pod["metadata"]["uid"] not in self._processes:
                    self._remove(self._jobs, job)
                    if pod is not None:
                        self._remove(self._pods, pod)
            elif pod is None and not _is_over(job) and not (job.get("spec") or {}).get("suspend"):
                if len(self._processes) < self.max_pods:
                    self._start(job)
            elif pod is not None and not _is_over(job):
                self._follow(job, pod)

    def _start(self, job: Json) -> None:
        metadata, template = job["metadata"], job["spec"]["template"]
        labels = {**(template["metadata"].get("labels") or {}), "batch.kubernetes.io/job-name": metadata["name"]}
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
        }
        document = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "generateName": f"{metadata['name']}-",
                "labels": labels,
                "annotations": template["metadata"].get("annotations") or {},
                "ownerReferences": [owner],
            },
            "spec": template["spec"],
        }
        pod = self.objects.create(self._pods, metadata["namespace"], document)
        try:
            self._processes[pod["metadata"]["uid"]] = self._process(pod)
        except (VolumeMissing, OSError) as e:
            remove_inputs(self._folder(pod))
            self._set_status(self._pods, pod, _ended(pod, 128, f"The process cannot be started: {e}"))
            return
        state = {
            "name": pod["spec"]["containers"][0]["name"],
            "state": {"running": {"startedAt": _now()}},
            "ready": True,
        }
        self._set_status(self._pods, pod, {"phase": "Running", "startTime": _now(), "containerStatuses": [state]})
        self._set_status(self._jobs, job, {"active": 1, "startTime": _now()})

    def _process(self, pod: Json) -> PodProcess:
        folder, namespace = self._folder(pod), pod["metadata"]["namespace"]
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        places = mounted(pod, folder, lambda kind, name: self._find(kind, namespace, name))
        container = pod["spec"]["containers"][0]
        environ = {**self.environ, "TMPDIR": places.get("/tmp", str(folder)), "PYTHONUNBUFFERED": "1"}
        for variable in container.get("env") or ():
            value = variable.get("value")
            environ[variable["name"]] = translated(value, places) if value is not None else _of_pod(variable, pod)
        first, *rest = container["args"]
        command = [sys.executable, "-m", _MODULES[first], *(translated(a, places) for a in rest)]
        return process.start(command, environ, folder)

    def _look_at(self, pod: Json, stop: bool) -> Json | None:
        """The pod as it is now; None: it is gone.

        Args:
            stop: Whether its process must end.
        """
        uid = pod["metadata"]["uid"]
        running = self._processes.get(uid)
        if running is None:
            if "deletionTimestamp" in pod["metadata"]:
                self._remove(self._pods, pod)
                return None
            if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
                return pod
            remove_inputs(self._folder(pod))
            return self._set_status(self._pods, pod, _ended(pod, 128, "The process was not started."))
        code = running.exit_code
        if code is None:
            if stop or "deletionTimestamp" in pod["metadata"]:
                running.stop()
            return pod
        running.kill()  # what the process has started and left
        remove_inputs(running.folder)
        ended = self._set_status(self._pods, pod, _ended(pod, code))
        del self._processes[uid]  # not earlier: if the status cannot be written, the next look does it
        return ended

    def _follow(self, job: Json, pod: Json) -> None:
        """Give a Job the outcome of its pod."""
        match (pod.get("status") or {}).get("phase"):
            case "Succeeded":
                done = {
                    "type": "Complete",
                    "status": "True",
                    "lastTransitionTime": _now(),
                    "reason": "CompletionsReached",
                }
                self._set_status(self._jobs, job, {"succeeded": 1, "completionTime": _now(), "conditions": [done]})
            case "Failed":
                reason = "DeadlineExceeded" if _is_late(job) else "BackoffLimitExceeded"
                text = (
                    "Job was active longer than specified deadline"
                    if _is_late(job)
                    else "The process of the run failed."
                )
                failed = {
                    "type": "Failed",
                    "status": "True",
                    "lastTransitionTime": _now(),
                    "reason": reason,
                    "message": text,
                }
                self._set_status(self._jobs, job, {"failed": 1, "conditions": [failed]})

    def _find(self, kind: str, namespace: str, name: str) -> Json | None:
        try:
            return self.objects.get(self._by_name[kind], namespace, name)
        except errors.ApiError:
            return None

    def _set_status(self, kind: Kind, of: Json, status: Json) -> Json:
        metadata = of["metadata"]
        try:
            return self.objects.patch(kind, (metadata["namespace"], metadata["name"], "status"), {"status": status})
        except errors.ApiError:
            return of

    def _remove(self, kind: Kind, of: Json) -> None:
        metadata = of["metadata"]
        self.objects.remove(kind, metadata["namespace"], metadata["name"], metadata["uid"])
        if kind is self._pods:
            shutil.rmtree(self._folder(of), ignore_errors=True)

    def _folder(self, pod: Json) -> Path:
        return self.runs / pod["metadata"]["name"]


def _end_leftover(folder: Path) -> None:
    process.kill_leftover(folder)
    process.wait_for_leftover(folder, KILLED_SECONDS)


def remove_inputs(folder: Path) -> None:
    """Remove what a pod got and left, when it has ended: volumes with values of an Erase, keys and credentials, temporary files.
    The log stays."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name in KEPT:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def node_environment(account: Path, port: int) -> dict[str, str]:
    """The variables of every process: those of this one, and where the API is."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("KUBERNETES_", "POD_", "KUBECONFIG"))}
    known = [p for p in kept.get("PYTHONPATH", "").split(os.pathsep) if p]
    own = [str(_PACKAGES), str(_PACKAGES.parent / "spark_apps")]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join([*(p for p in own if p not in known), *known]),
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(port),
        "LETHE_SERVICE_ACCOUNT": str(account),
    }


def _of_pod(variable: Json, pod: Json) -> str:
    match (variable.get("valueFrom") or {}).get("fieldRef", {}).get("fieldPath"):
        case "metadata.name":
            return str(pod["metadata"]["name"])
        case "metadata.namespace":
            return str(pod["metadata"]["namespace"])
        case "metadata.uid":
            return str(pod["metadata"]["uid"])
        case "status.podIP":
            return "127.0.0.1"
        case _:
            return ""


def _ended(pod: Json, code: int, message: str = "") -> Json:
    terminated = {
        "exitCode": code,
        "reason": "Completed" if code == 0 else "Error",
        "finishedAt": _now(),
        "message": message,
    }
    state = {"name": pod["spec"]["containers"][0]["name"], "state": {"terminated": terminated}, "ready": False}
    return {"phase": "Succeeded" if code == 0 else "Failed", "containerStatuses": [state]}


def _job_of(pod: Json) -> str:
    return next((o["uid"] for o in pod["metadata"].get("ownerReferences") or () if o["kind"] == "Job"), "")


def _is_over(job: Json) -> bool:
    return any(c["type"] in ("Complete", "Failed") for c in (job.get("status") or {}).get("conditions") or ())


def _is_late(job: Json) -> bool:
    limit, began = job["spec"].get("activeDeadlineSeconds"), (job.get("status") or {}).get("startTime")
    if limit is None or began is None:
        return False
    return (datetime.now(UTC) - datetime.fromisoformat(began)).total_seconds() > limit


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
