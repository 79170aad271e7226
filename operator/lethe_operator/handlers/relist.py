"""Lists the metadata of everything rarely, to find what a watch has lost. I/O."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from lethe_operator.health import OperatorHealth
from lethe_operator.kube import Kube, KubeError, ResourceKind

log = logging.getLogger(__name__)

# Watches report each change. If one is lost, this is how long it remains unnoticed at most.
RELIST_SECONDS: Final = 1800.0
# The relists of several operators, and of one after the other, are spread by this fraction.
JITTER: Final = 0.1
# A watch that has lost its place lists everything again, in pages. This long after the last object, its kind is compared.
AFTER_LISTING_SECONDS: Final = 5.0


class ComparesObjects(Protocol):
    """Compares the known objects with those of the API server."""

    def is_synced(self, namespaces: Sequence[str]) -> bool:
        """Whether all objects of these namespaces have been listed."""

    def ensure(self, kube: Kube, namespace: str) -> None:
        """Return when the objects of a namespace are known."""

    def catch_up(
        self, kube: Kube, namespaces: Sequence[str], kinds: Sequence[ResourceKind] = (), unhurried: bool = False
    ) -> None:
        """Return when everything that the API server has now is known.

        Args:
            kinds: Empty: all that are watched.
            unhurried: Leave the API server time for others.
        """

    def listed_by_watches(self, before: float) -> list[tuple[ResourceKind, str]]:
        """Kinds and namespaces that a watch has listed again."""


@dataclass
class Relists:
    """The periodic relists of one operator."""

    objects: ComparesObjects
    kube: Kube
    namespaces: Sequence[str]
    health: OperatorHealth
    clock: Callable[[], float] = time.monotonic
    seconds: float = RELIST_SECONDS
    _due: float | None = field(default=None, init=False)  # when everything is listed next, by the clock

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            try:
                await asyncio.to_thread(self.step)
            except KubeError as e:
                log.warning("listing the metadata of all objects: %s", e)
            await asyncio.sleep(AFTER_LISTING_SECONDS)

    def step(self) -> None:
        """List what is due. Raises: KubeError; then the next call lists everything."""
        now = self.clock()
        due, self._due = self._due, None
        listed = self.objects.listed_by_watches(now - AFTER_LISTING_SECONDS)
        if due is None or now >= due:
            if self.objects.is_synced(self.namespaces):
                self.objects.catch_up(self.kube, self.namespaces, unhurried=True)
            else:
                for namespace in self.namespaces:
                    self.objects.ensure(self.kube, namespace)
            self.health.relisted()
            due = now + self.seconds * random.uniform(1 - JITTER, 1 + JITTER)
        else:
            for kind, namespace in listed:
                self.objects.catch_up(self.kube, [namespace], [kind])
        self._due = due
