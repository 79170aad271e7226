"""The pods of runs, and their logs. I/O, through the given client.

Each attempt of a run is an object with a name of its own, and a pod. A warm driver carries out runs without pods of their own.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from lethe.contract.result import lines_of_run
from lethe.contract.settings import Launcher
from lethe.kube import PODS, Kube, NotFound

from lethe_operator.resources.common import CONTAINER, SPARK_CONTAINER

Document = Mapping[str, Any]
POD_LABELS: Final[Mapping[Launcher, str]] = {
    Launcher.JOB: "batch.kubernetes.io/job-name",
    Launcher.SPARK_APPLICATION: "sparkoperator.k8s.io/app-name",
}
"""The label of a pod with the name of the object that launched its run. Executors of Jobs have none."""
WARM_DRIVER: Final = "app.kubernetes.io/component=warm-driver"


def launched_by(pod: Document) -> str:
    """The name of the object that launched this driver's pod; "": it is not a driver's."""
    labels = pod["metadata"].get("labels") or {}
    if labels.get("spark-role") == "executor":
        return ""
    return next((str(labels[key]) for key in (*POD_LABELS.values(), "job-name") if labels.get(key)), "")


def container_of(pod: Document) -> str:
    """The name of the driver's container. Others are sidecars."""
    names = [str(c["name"]) for c in pod["spec"]["containers"]]
    return next((n for n in names if n in (CONTAINER, SPARK_CONTAINER)), names[0])


def newest(pods: Sequence[Document]) -> Document | None:
    """The pod that was created last; None: there are no pods."""
    return max(pods, key=_created, default=None)


def pod_of(kube: Kube, namespace: str, run: str) -> Document | None:
    """The newest pod of a run's driver; None: it has none, or not any more.

    Raises:
        KubeError: The API server rejected a request, or did not answer.
    """
    found = [pod for label in POD_LABELS.values() for pod in kube.list(PODS, namespace, f"{label}={run}")]
    return newest([pod for pod in found if launched_by(pod) == run])


def warm_lines(kube: Kube, namespace: str, run: str) -> list[str]:
    """The log of a run without a pod, from the newest warm driver that has carried it out. Empty: none has.

    Raises:
        KubeError: The API server rejected a request, or did not answer.
    """
    for pod in sorted(kube.list(PODS, namespace, WARM_DRIVER), key=_created, reverse=True):
        with suppress(NotFound):  # it has ended meanwhile
            log = kube.log(namespace, str(pod["metadata"]["name"]), container_of(pod))
            if lines := list(lines_of_run(log, run)):
                return lines
    return []


def last_lines(kube: Kube, namespace: str, run: str, last: int) -> list[str]:
    """The last lines of a run's log. Empty: its pod is gone, or a process without a log of its own has carried it out.

    Raises:
        KubeError: The API server rejected a request, or did not answer.
    """
    pod = pod_of(kube, namespace, run)
    if pod is None:
        return warm_lines(kube, namespace, run)[-last:]
    try:
        return list(kube.log(namespace, str(pod["metadata"]["name"]), container_of(pod), last))
    except NotFound:
        return []


def _created(pod: Document) -> str:
    return str(pod["metadata"].get("creationTimestamp"))
