"""Watch events of a run's objects: Jobs, driver pods, and the ConfigMap into which drivers report."""

from collections.abc import Mapping
from typing import Any

from lethe_operator.resources.common import ANNOTATION_DATASET
from lethe_operator.resources.members import members_of
from lethe_operator.work_queue import Key, WorkQueue


def run_object(queue: WorkQueue, body: Mapping[str, Any]) -> None:
    for name in datasets_of(body):
        queue.add(Key("Dataset", body["metadata"]["namespace"], name))


def datasets_of(body: Mapping[str, Any]) -> frozenset[str]:
    """The names of the Datasets that an object belongs to; empty if it names none."""
    metadata = body["metadata"]
    owners = [o for o in metadata.get("ownerReferences") or () if o.get("kind") == "Dataset"]
    if owners:
        return frozenset(str(o["name"]) for o in owners)
    name = (metadata.get("annotations") or {}).get(ANNOTATION_DATASET)
    return frozenset([name] if name else (m.dataset for m in members_of(metadata)))
