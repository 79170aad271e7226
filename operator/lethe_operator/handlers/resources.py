"""Watch events of Lethe's own resources."""

from collections.abc import Mapping
from typing import Any, Protocol

from lethe_operator.health import RESTATEMENTS, OperatorHealth
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
