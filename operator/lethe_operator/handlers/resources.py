"""Events of Lethe's own resources."""

from collections.abc import Mapping
from typing import Any, Protocol

from lethe_operator.health import RESTATEMENTS, Health
from lethe_operator.resources.restatement import dataset_name_of
from lethe_operator.work_queue import Key, WorkQueue


class Restatements(Protocol):
    """Whoever keeps what is told of them."""

    def heard(self, deleted: bool, body: Mapping[str, Any]) -> bool:
        """Whether it is news."""


def dataset(queue: WorkQueue, health: Health, body: Mapping[str, Any]) -> None:
    metadata = _heard(health, body)
    queue.add(Key("Dataset", metadata["namespace"], metadata["name"]))


def restatement(queue: WorkQueue, health: Health, known: Restatements, deleted: bool, body: Mapping[str, Any]) -> None:
    """A Restatement is part of the mind of its Dataset, there or not. What the operator wrote of thousands is no cause."""
    metadata = _heard(health, body, RESTATEMENTS)
    is_news = known.heard(deleted, body)
    name = dataset_name_of(body)
    if name and is_news:
        queue.add(Key("Dataset", metadata["namespace"], name))


def vacuum_policy(queue: WorkQueue, health: Health, body: Mapping[str, Any]) -> None:
    metadata = _heard(health, body)
    queue.add(Key("VacuumPolicy", metadata["namespace"], metadata["name"]))


def _heard(health: Health, body: Mapping[str, Any], of: str = "") -> Mapping[str, Any]:
    metadata: Mapping[str, Any] = body["metadata"]
    health.heard(str(metadata["uid"]), str(metadata.get("resourceVersion", "")), of)
    return metadata
