"""Watch events: of Lethe's resources, and of the objects of runs (Jobs, driver pods, ConfigMaps)."""

from collections.abc import Mapping
from typing import Any, Protocol

from lethe_operator.health import RESTATEMENTS, OperatorHealth
from lethe_operator.resources.common import ANNOTATION_DATASET
from lethe_operator.resources.members import members_of
from lethe_operator.resources.restatement import dataset_name_of
from lethe_operator.work_queue import Key, WorkQueue


class RestatementEvents(Protocol):
    """Receives the watch events of Restatements."""

    def record_event(self, deleted: bool, body: Mapping[str, Any]) -> bool:
        """Record an event; return whether it shows a change that the operator did not write itself."""


def dataset(queue: WorkQueue, health: OperatorHealth, body: Mapping[str, Any]) -> None:
    metadata = _record(health, body)
    queue.add(Key("Dataset", metadata["namespace"], metadata["name"]))


def restatement(
    queue: WorkQueue, health: OperatorHealth, known: RestatementEvents, deleted: bool, body: Mapping[str, Any]
) -> None:
    """Queue the Dataset that a Restatement names, whether or not it exists. Writes of the operator itself queue nothing."""
    metadata = _record(health, body, RESTATEMENTS)
    is_news = known.record_event(deleted, body)
    name = dataset_name_of(body)
    if name and is_news:
        queue.add(Key("Dataset", metadata["namespace"], name))


def vacuum_policy(queue: WorkQueue, health: OperatorHealth, body: Mapping[str, Any]) -> None:
    metadata = _record(health, body)
    queue.add(Key("VacuumPolicy", metadata["namespace"], metadata["name"]))


def _record(health: OperatorHealth, body: Mapping[str, Any], of: str = "") -> Mapping[str, Any]:
    metadata: Mapping[str, Any] = body["metadata"]
    health.watched(str(metadata["uid"]), str(metadata.get("resourceVersion", "")), of)
    return metadata


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
