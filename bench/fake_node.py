"""A node that starts no container: each pod on it succeeds at once, with a result that says that there was nothing to do. I/O.

The node of this cluster starts about one pod a second, so it would be measured instead of the operator. Jobs, pods and the
scheduler are real; only the kubelet of this node is this script. It empties the buffer that the run was for, so that the operator
has no reason to start another run.
"""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from lethe.contract.result import RunOutcome, RunResult
from lethe.contract.settings import RunFamily
from lethe.kube import PODS, Kube, KubeError, ResourceKind
from lethe_operator.resources.common import ANNOTATION_DATASET, CONTAINER, LABEL_ATTEMPT, LABEL_KIND, LABEL_RUN_ID

from bench.watching import watch

NAME: Final = "fake"
# Key of its taint, so that only pods that tolerate it come here. A Dataset's pod template must be allowed to do so.
TAINT: Final = "bench.lethe.dev/fake"
NODES: Final = ResourceKind("/api/v1", "nodes", "Node")
LEASES: Final = ResourceKind("/apis/coordination.k8s.io/v1", "leases", "Lease")
LEASE_NAMESPACE: Final = "kube-node-lease"
RENEW_SECONDS: Final = 5.0
WORKERS: Final = 8
POD_TEMPLATE: Final[Mapping[str, Any]] = {
    "spec": {
        "nodeSelector": {"kubernetes.io/hostname": NAME},
        "tolerations": [{"key": TAINT, "operator": "Exists", "effect": "NoSchedule"}],
    }
}


@dataclass
class FakeNode:
    """Use as a context. `ends` is called with the name of a run's Dataset before its pod succeeds."""

    kube: Kube
    namespace: str
    ends: Callable[[str], None]
    ended: int = 0
    _closed: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> "FakeNode":
        with suppress(KubeError):
            self.kube.create(NODES, "", node())
        self._beat()
        for work in (self._keep_alive, self._follow):
            self._threads.append(threading.Thread(target=work, name="fake node", daemon=True))
            self._threads[-1].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        for thread in self._threads:
            thread.join(30)
        self.kube.delete(NODES, "", NAME)

    def _keep_alive(self) -> None:
        while not self._closed.wait(RENEW_SECONDS):
            with suppress(KubeError):
                self._beat()

    def _beat(self) -> None:
        """Renew the node's Lease and conditions, as a kubelet does."""
        now = datetime.now(UTC)
        spec = {"holderIdentity": NAME, "leaseDurationSeconds": 40, "renewTime": f"{now:%Y-%m-%dT%H:%M:%S.%fZ}"}
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": NAME}, "spec": spec}
        try:
            self.kube.create(LEASES, LEASE_NAMESPACE, lease)
        except KubeError:
            self.kube.patch(LEASES, LEASE_NAMESPACE, NAME, {"spec": spec})
        self.kube.patch(NODES, "", NAME, {"status": node_status(now)}, "status")

    def _follow(self) -> None:
        with ThreadPoolExecutor(WORKERS, thread_name_prefix="fake pod") as pool:
            started: set[str] = set()
            for kind, pod in watch(PODS, self.namespace, self._closed, fields=f"spec.nodeName={NAME}"):
                uid = pod["metadata"]["uid"]
                if kind != "DELETED" and pod["status"].get("phase") == "Pending" and uid not in started:
                    started.add(uid)
                    pool.submit(self._end, pod)

    def _end(self, pod: Mapping[str, Any]) -> None:
        metadata = pod["metadata"]
        self.ends((metadata.get("annotations") or {}).get(ANNOTATION_DATASET, ""))
        status = {"status": succeeded(pod, datetime.now(UTC))}
        for _ in range(3):
            try:
                self.kube.patch(PODS, metadata["namespace"], metadata["name"], status, "status")
                self.ended += 1
                return
            except KubeError:
                time.sleep(1)


def node() -> dict[str, Any]:
    """The node as it is created. Pure."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": NAME, "labels": {"kubernetes.io/hostname": NAME, "kubernetes.io/os": "linux"}},
        "spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}]},
    }


def node_status(now: datetime) -> dict[str, Any]:
    """A ready node without limits. Pure."""
    plenty = {"cpu": "10000", "memory": "100Ti", "pods": "100000", "ephemeral-storage": "1000Ti"}
    beat = f"{now:%Y-%m-%dT%H:%M:%SZ}"
    ready = {"type": "Ready", "status": "True", "reason": "Fake", "lastHeartbeatTime": beat, "lastTransitionTime": beat}
    return {"capacity": plenty, "allocatable": plenty, "conditions": [ready]}


def succeeded(pod: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """The status of a pod whose container has ended with a result. Pure."""
    at = f"{now:%Y-%m-%dT%H:%M:%SZ}"
    ended = {"exitCode": 0, "reason": "Completed", "startedAt": at, "finishedAt": at, "message": result(pod, now)}
    container = {
        "name": CONTAINER,
        "state": {"terminated": ended},
        "ready": False,
        "restartCount": 0,
        "image": "none",
        "imageID": "",
    }
    conditions = [{"type": "Ready", "status": "False", "reason": "PodCompleted", "lastTransitionTime": at}]
    return {"phase": "Succeeded", "startTime": at, "conditions": conditions, "containerStatuses": [container]}


def result(pod: Mapping[str, Any], now: datetime) -> str:
    """The termination message: the result of a run that had nothing to do. Pure."""
    labels = pod["metadata"]["labels"]
    return RunResult(
        run_id=labels[LABEL_RUN_ID],
        family=RunFamily(labels[LABEL_KIND]),
        attempt=int(labels[LABEL_ATTEMPT]),
        outcome=RunOutcome.NOTHING_TO_DO,
        finished_time=now,
    ).to_json()
