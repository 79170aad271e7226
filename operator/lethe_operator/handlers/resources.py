"""Events of Lethe's own resources."""

from collections.abc import Mapping
from typing import Any

from lethe_operator.health import Health
from lethe_operator.resources.restatement import dataset_name_of
from lethe_operator.work_queue import Key, WorkQueue


def dataset(queue: WorkQueue, health: Health, body: Mapping[str, Any]) -> None:
    metadata = _heard(health, body)
    queue.add(Key("Dataset", metadata["namespace"], metadata["name"]))


def restatement(queue: WorkQueue, health: Health, body: Mapping[str, Any]) -> None:
    """A Restatement is part of the mind of its Dataset, there or not."""
    metadata = _heard(health, body)
    name = dataset_name_of(body)
    if name:
        queue.add(Key("Dataset", metadata["namespace"], name))


def vacuum_policy(queue: WorkQueue, health: Health, body: Mapping[str, Any]) -> None:
    metadata = _heard(health, body)
    queue.add(Key("VacuumPolicy", metadata["namespace"], metadata["name"]))


def _heard(health: Health, body: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata: Mapping[str, Any] = body["metadata"]
    health.heard(str(metadata["uid"]), str(metadata.get("resourceVersion", "")))
    return metadata
