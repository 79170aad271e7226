"""Events of what runs are made of: Jobs, driver pods, the ConfigMap into which drivers report."""

from collections.abc import Mapping
from typing import Any

from lethe_operator.resources.common import ANNOTATION_DATASET
from lethe_operator.work_queue import Key, WorkQueue


def part_of_a_run(queue: WorkQueue, body: Mapping[str, Any]) -> None:
    name = dataset_of(body)
    if name:
        queue.add(Key("Dataset", body["metadata"]["namespace"], name))


def dataset_of(body: Mapping[str, Any]) -> str:
    """The Dataset that an object belongs to, "" when it tells of none."""
    metadata = body["metadata"]
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("kind") == "Dataset":
            return str(owner["name"])
    return str((metadata.get("annotations") or {}).get(ANNOTATION_DATASET, ""))
