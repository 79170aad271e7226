"""Lists and reconciles everything periodically, whatever the watches reported. I/O."""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from lethe_operator.health import RESTATEMENTS, OperatorHealth
from lethe_operator.kube import DATASETS, VACUUM_POLICIES, Kube, KubeError
from lethe_operator.work_queue import SHARED_RUNS, Key, WorkQueue

log = logging.getLogger(__name__)

# There may be tens of thousands of Restatements. The watch reports each change; a listing finds what the watch missed.
RESTATEMENTS_LISTED_EVERY_SECONDS: Final = 300.0


class RestatementLister(Protocol):
    """Lists the Restatements of a namespace and keeps them."""

    def list(self, kube: Kube, namespace: str) -> Mapping[str, str]:
        """List all; return their versions by UID."""

    def datasets(self, namespace: str) -> Iterable[str]:
        """Names of the Datasets that the Restatements of a namespace refer to."""


@dataclass(frozen=True)
class ResyncListing:
    keys: tuple[Key, ...]  # to reconcile
    objects: tuple[tuple[str, str], ...]  # UID and version


def list_everything(kube: Kube, known: RestatementLister, namespaces: Sequence[str]) -> ResyncListing:
    """List everything except Restatements, which `known` holds. Raises: KubeError."""
    keys: dict[Key, None] = {}
    objects: list[tuple[str, str]] = []
    for namespace in namespaces:
        keys[Key(SHARED_RUNS, namespace, "")] = None
        for kind in (DATASETS, VACUUM_POLICIES):
            for body in kube.list(kind, namespace):
                metadata = body["metadata"]
                objects.append((metadata["uid"], metadata["resourceVersion"]))
                keys[Key(kind.name, namespace, metadata["name"])] = None
        for name in known.datasets(namespace):
            keys[Key("Dataset", namespace, name)] = None
    return ResyncListing(tuple(keys), tuple(objects))


async def resync(
    queue: WorkQueue,
    health: OperatorHealth,
    kube: Kube,
    known: RestatementLister,
    namespaces: Sequence[str],
    seconds: float,
) -> None:
    """Run until cancelled."""
    listed: float | None = None
    while True:
        try:
            if listed is None or time.monotonic() - listed >= RESTATEMENTS_LISTED_EVERY_SECONDS:
                versions = await asyncio.to_thread(_list_restatements, kube, known, namespaces)
                health.listed(versions.items(), RESTATEMENTS)
                listed = time.monotonic()
            found = await asyncio.to_thread(list_everything, kube, known, namespaces)
        except KubeError as e:
            log.warning("resync: %s", e)
        else:
            health.listed(found.objects)
            for key in found.keys:
                queue.add(key)
        await asyncio.sleep(seconds)


def _list_restatements(kube: Kube, known: RestatementLister, namespaces: Sequence[str]) -> dict[str, str]:
    return {uid: version for n in namespaces for uid, version in known.list(kube, n).items()}
