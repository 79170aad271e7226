"""Queues everything at the start, and what the queue does not know later, whatever the watches reported."""

import asyncio
import logging
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Final, Protocol

from lethe_operator.kube import Kube, KubeError
from lethe_operator.schedule import Key
from lethe_operator.work_queue import WARM_DRIVER, WorkQueue

log = logging.getLogger(__name__)

LISTED_WITHIN_SECONDS: Final = 60.0


class KnownNames(Protocol):
    """The names of the resources of each namespace."""

    def ensure(self, kube: Kube, namespace: str) -> None:
        """Return when the resources of a namespace are known."""

    def dataset_names(self, namespace: str) -> Collection[str]: ...

    def policy_names(self, namespace: str) -> Collection[str]: ...


def all_keys(known: KnownNames, namespaces: Sequence[str]) -> list[Key]:
    """Everything that is reconciled."""
    found: list[Key] = []
    for namespace in namespaces:
        found.append(Key(WARM_DRIVER, namespace, ""))
        found += (Key("Dataset", namespace, name) for name in known.dataset_names(namespace))
        found += (Key("VacuumPolicy", namespace, name) for name in known.policy_names(namespace))
    return found


async def resync(queue: WorkQueue, known: KnownNames, kube: Kube, namespaces: Sequence[str], seconds: float) -> None:
    """Run until cancelled."""
    while True:
        try:
            for namespace in namespaces:
                await asyncio.to_thread(known.ensure, kube, namespace)
        except KubeError as e:
            log.warning("resync: %s", e)
        else:
            for key in all_keys(known, namespaces):
                queue.ensure(key)
        await asyncio.sleep(seconds)


async def wait_until_listed(known: KnownNames, kube: Kube, namespaces: Sequence[str]) -> None:
    """Wait until everything is known, or an error, or for some time: `resync` goes on."""

    def ensure() -> None:
        for namespace in namespaces:
            known.ensure(kube, namespace)

    with suppress(KubeError, TimeoutError):
        await asyncio.wait_for(asyncio.to_thread(ensure), LISTED_WITHIN_SECONDS)
