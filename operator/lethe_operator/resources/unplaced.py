"""Pods of runs for which no node has room. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from lethe_operator.resources.common import ANNOTATION_DATASET, LABEL_DATASET_UID

# What the scheduler says of a node without room. Other obstacles, such as taints, stay when another pod ends.
_LACKS_ROOM: Final = ("Insufficient ", "Too many pods")


@dataclass(frozen=True)
class UnplacedPod:
    """A pod of a run for which no node has room."""

    namespace: str
    name: str
    dataset: str
    """Name of the Dataset of its run."""
    dataset_uid: str
    since: datetime
    message: str
    """Of the scheduler."""


def unplaced_pod(pod: Mapping[str, Any]) -> UnplacedPod | None:
    """The pod, if it is of a run and the scheduler finds no room for it; None: it does, or something else is missing."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    annotations = metadata.get("annotations") or {}
    # A warm driver with values is for runs of several Datasets. Annotations name the one that it was started for.
    uid = (metadata.get("labels") or {}).get(LABEL_DATASET_UID) or annotations.get(LABEL_DATASET_UID)
    if not uid or status.get("phase") != "Pending" or "deletionTimestamp" in metadata:
        return None
    for condition in status.get("conditions") or ():
        if (condition.get("type"), condition.get("status")) != ("PodScheduled", "False"):
            continue
        message, since = str(condition.get("message") or ""), condition.get("lastTransitionTime")
        if condition.get("reason") != "Unschedulable" or not since or not any(t in message for t in _LACKS_ROOM):
            continue
        return UnplacedPod(
            namespace=metadata["namespace"],
            name=metadata["name"],
            dataset=annotations.get(ANNOTATION_DATASET, ""),
            dataset_uid=uid,
            since=datetime.fromisoformat(str(since).replace("Z", "+00:00")),
            message=message,
        )
    return None
