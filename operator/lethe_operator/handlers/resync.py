"""The queue's own pulse: everything is listed and reconciled from time to time, whatever the watches told. I/O."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from lethe_operator.health import Health
from lethe_operator.kube import DATASETS, RESTATEMENTS, VACUUM_POLICIES, ApiError, Kube
from lethe_operator.resources.restatement import dataset_name_of
from lethe_operator.work_queue import SHARED_RUNS, Key, WorkQueue

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Listing:
    keys: tuple[Key, ...]
    objects: tuple[tuple[str, str], ...]  # UID and version


def list_everything(kube: Kube, namespaces: Sequence[str]) -> Listing:
    """Raises: ApiError."""
    keys: dict[Key, None] = {}
    objects: list[tuple[str, str]] = []
    for namespace in namespaces:
        keys[Key(SHARED_RUNS, namespace, "")] = None
        for kind in (DATASETS, RESTATEMENTS, VACUUM_POLICIES):
            for body in kube.list(kind, namespace):
                metadata = body["metadata"]
                objects.append((metadata["uid"], metadata["resourceVersion"]))
                if kind is not RESTATEMENTS:
                    keys[Key(kind.name, namespace, metadata["name"])] = None
                elif name := dataset_name_of(body):
                    keys[Key("Dataset", namespace, name)] = None
    return Listing(tuple(keys), tuple(objects))


async def resync(queue: WorkQueue, health: Health, kube: Kube, namespaces: Sequence[str], seconds: float) -> None:
    """Until cancelled."""
    while True:
        try:
            found = await asyncio.to_thread(list_everything, kube, namespaces)
        except ApiError as e:
            log.warning("resync: %s", e)
        else:
            health.listed(found.objects)
            for key in found.keys:
                queue.add(key)
        await asyncio.sleep(seconds)
