"""Runs Jobs as processes, as the Job controller and the kubelet do with pods. I/O: processes, files, the store.

The process of a pod starts in a group of its own, and is stopped by SIGTERM and then SIGKILL. It may start others in groups of
their own, as the warm driver does with its Spark session. On Linux they are found by a variable that each process inherits.

The volumes of a pod are files in a folder, and paths in its environment are changed to these.
"""

import base64
import contextlib
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from lethe.kube import JOBS, PODS

from lethe_local.api.objects import ApiKind, LocalObjects, StatusError

PID_FILE: Final = "pid"
LOG_FILE: Final = "log"
GRACE_SECONDS: Final = 30.0
# Names the folder of the pod in the environment of its processes.
FOLDER_VARIABLE: Final = "LETHE_POD_FOLDER"
PROC: Final = Path("/proc")


@dataclass
class PodProcess:
    """A running process and what it has started."""

    process: "subprocess.Popen[bytes]"
    folder: Path
    terminated: float | None = None
    """When SIGTERM was sent, by time.monotonic; None: it was not."""

    @property
    def exit_code(self) -> int | None:
        """As a container has it: 128 + n after signal n; None: the process runs."""
        code = self.process.poll()
        return None if code is None else code if code >= 0 else 128 - code

    def stop(self) -> None:
        """Ask the process to end, and after its grace period kill it. Call it until the process has ended."""
        now = time.monotonic()
        if self.terminated is None:
            self.terminated = now
            _signal(self.process.pid, signal.SIGTERM)
        elif now - self.terminated > GRACE_SECONDS:
            self.kill()

    def kill(self) -> None:
        """Kill the process, if it runs, and what it has left behind."""
        _signal(self.process.pid, signal.SIGKILL)
        _kill_groups(self.folder)

    def wait(self, seconds: float) -> None:
        """Wait until the process has ended; kill it after a time."""
        try:
            self.process.wait(max(seconds, 0.1))
        except subprocess.TimeoutExpired:
            self.kill()
            self.process.wait()


def start(command: Sequence[str], environ: Mapping[str, str], folder: Path) -> PodProcess:
    """Start a process whose output goes to `log` in its folder.

    Raises:
        OSError: The system refused it.
    """
    with (folder / LOG_FILE).open("ab") as log:
        process = subprocess.Popen(
            command,
            env={**environ, FOLDER_VARIABLE: str(folder)},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    (folder / PID_FILE).write_text(f"{process.pid} {_started(process.pid)}")
    return PodProcess(process, folder)


def kill_leftover(folder: Path) -> None:
    """Kill the process of a pod that an earlier life of `lethe local up` started, if it still runs, and what it has started."""
    pid = _running(folder)
    if pid is not None:
        _signal(pid, signal.SIGKILL)
    _kill_groups(folder)


def wait_for_leftover(folder: Path, seconds: float) -> None:
    """Wait until the processes that `kill_leftover` has killed are gone, so that they write no more files."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends and (is_running(folder) or any(processes_of(folder))):
        time.sleep(0.02)


def is_running(folder: Path) -> bool:
    """Whether the process that was started in a folder has not ended."""
    return _running(folder) is not None


def _running(folder: Path) -> int | None:
    """The process that was started in a folder; None: it has ended."""
    try:
        pid, _, started = (folder / PID_FILE).read_text().partition(" ")
    except OSError:
        return None
    return int(pid) if pid.isdecimal() and started and _started(int(pid)) == started else None


def _kill_groups(folder: Path) -> None:
    """Kill the processes of a pod that are in other groups than its first process."""
    for pid in processes_of(folder):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def processes_of(folder: Path) -> Iterator[int]:
    """The processes of a pod. Empty, if the system has no /proc."""
    wanted = f"{FOLDER_VARIABLE}={folder}".encode()
    for entry in PROC.glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if wanted in entry.read_bytes().split(b"\0"):
                yield int(entry.parent.name)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _started(pid: int) -> str:
    """When a process started, which tells it from a later one with the same number; "": it does not exist."""
    process = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return process.stdout.strip()


Volume = Mapping[str, Any]
# Finds an object of the namespace by kind and name; None: it does not exist.
Find = Callable[[str, str], Volume | None]


class VolumeMissing(Exception):
    """An object that a volume names does not exist."""


def mounted(pod: Volume, folder: Path, find: Find) -> dict[str, str]:
    """Write the volumes of a pod's container below a folder.

    Returns:
        The folder of each mount path.

    Raises:
        VolumeMissing: An object that a volume names does not exist.
        OSError: The system refused it.
    """
    spec = pod["spec"]
    by_name = {v["name"]: v for v in spec.get("volumes") or ()}
    places = {m["mountPath"]: str(folder / m["name"]) for m in spec["containers"][0].get("volumeMounts") or ()}
    for mount in spec["containers"][0].get("volumeMounts") or ():
        place = Path(places[mount["mountPath"]])
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        for kind, name, content in _files(by_name[mount["name"]], find):
            path = place / name
            path.touch(mode=0o600)
            # Secrets hold keys, and values of rows, which may look like paths.
            path.write_bytes(content if kind == "Secret" else _in_folder(content, places))
    return places


def translated(text: str, places: Mapping[str, str]) -> str:
    """A text in which paths below mount paths are those of the folders. `/tmp` stays: the process gets TMPDIR."""
    mounts = sorted((m for m in places if m != "/tmp"), key=len, reverse=True)
    pattern = rf"(?<![\w/.-])({'|'.join(map(re.escape, mounts))})(?=/|$)"
    return re.sub(pattern, lambda found: places[found[1]], text) if mounts else text


def _in_folder(content: bytes, places: Mapping[str, str]) -> bytes:
    try:
        return translated(content.decode(), places).encode()
    except UnicodeDecodeError:
        return content


def _files(volume: Volume, find: Find) -> Iterator[tuple[str, str, bytes]]:
    """The kind of the object that each file of a volume comes from, its name, and its content."""
    for source in (volume.get("projected") or {}).get("sources") or (volume,):
        for source_field, kind, name_field in (("configMap", "ConfigMap", "name"), ("secret", "Secret", "secretName")):
            of = source.get(source_field)
            if of is None:
                continue
            name = of.get(name_field) or of["name"]
            found = find(kind, name)
            if found is None:
                if of.get("optional"):
                    continue
                raise VolumeMissing(f'{kind.lower()} "{name}" not found')
            for path, content in _keys(of, found, f"{kind} {name}"):
                yield kind, path, content


def _keys(source: Volume, document: Volume, where: str) -> Iterator[tuple[str, bytes]]:
    if document["kind"] == "Secret":
        data = {k: base64.b64decode(v) for k, v in (document.get("data") or {}).items()}
        # Of a Secret that an earlier version stored. The API server now adds these texts to the data.
        data |= {k: v.encode() for k, v in (document.get("stringData") or {}).items()}
    else:
        data = {k: v.encode() for k, v in (document.get("data") or {}).items()}
        data |= {k: base64.b64decode(v) for k, v in (document.get("binaryData") or {}).items()}
    items = source.get("items")
    for key, path in [(i["key"], i["path"]) for i in items] if items else [(k, k) for k in data]:
        if key in data:
            yield path, data[key]
        elif not source.get("optional"):
            raise VolumeMissing(f"{where} has no key {key}")


log = logging.getLogger(__name__)

Json = dict[str, Any]
LOOK_SECONDS: Final = 0.5
COLLECT_SECONDS: Final = 30.0
KILLED_SECONDS: Final = 10.0  # a killed process is gone after milliseconds, unless its disk hangs
KEPT: Final = frozenset({LOG_FILE, PID_FILE})  # of the folder of a pod that has ended
_PACKAGES: Final = Path(__file__).resolve().parents[1]
_MODULES: Final[Mapping[str, str]] = {"driver": "lethe_spark.apps.app", "warm-driver": "lethe_spark.warm_driver"}


@dataclass
class Node:
    """One per folder. Jobs start in the order of their creation."""

    objects: LocalObjects
    runs: Path
    """Folder of the pods' folders."""
    environ: Mapping[str, str]
    """Of each process: where the API is, and its credentials."""
    max_pods: int
    """Processes of Jobs at once."""
    _processes: dict[str, PodProcess] = field(default_factory=dict)
    """By UID of the pod."""
    _leaving: threading.Event = field(default_factory=threading.Event)
    _collects: float = 0.0
    """When to look for objects without owners again, by time.monotonic."""

    def __post_init__(self) -> None:
        kinds = {k.resource: k for k in self.objects.kinds.values()}
        self._jobs: ApiKind = kinds[JOBS]
        self._pods: ApiKind = kinds[PODS]
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
        ends = time.monotonic() + GRACE_SECONDS
        for running in self._processes.values():
            running.wait(ends - time.monotonic())
            running.kill()
            remove_inputs(running.folder)

    def leave(self) -> None:
        """Let `run` end all processes and return. It does not wait for that."""
        self._leaving.set()

    def look(self) -> None:
        """Do what has to be done now."""
        if time.monotonic() >= self._collects:
            self._collects = time.monotonic() + COLLECT_SECONDS
            self.objects.collect()
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
        return start(command, environ, folder)

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
        except StatusError:
            return None

    def _set_status(self, kind: ApiKind, of: Json, status: Json) -> Json:
        metadata = of["metadata"]
        try:
            return self.objects.patch(kind, (metadata["namespace"], metadata["name"], "status"), {"status": status})
        except StatusError:
            return of

    def _remove(self, kind: ApiKind, of: Json) -> None:
        metadata = of["metadata"]
        self.objects.remove(kind, metadata["namespace"], metadata["name"], metadata["uid"])
        if kind is self._pods:
            shutil.rmtree(self._folder(of), ignore_errors=True)

    def _folder(self, pod: Json) -> Path:
        return self.runs / pod["metadata"]["name"]


def _end_leftover(folder: Path) -> None:
    kill_leftover(folder)
    wait_for_leftover(folder, KILLED_SECONDS)


def remove_inputs(folder: Path) -> None:
    """Remove what a pod got and left, when it has ended: volumes with values of an Erase, keys and credentials, temporary files.

    The log stays.
    """
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
