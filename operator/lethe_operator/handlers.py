"""Turns watch events into keys of the queue: of Lethe's resources, and of the objects of runs (Jobs, pods, ConfigMaps).

Queues everything at the start, and what the queue does not know later, whatever the watches reported.

Lists the metadata of everything rarely, to find what a watch has lost. I/O.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from lethe.kube import DATASETS, LEASES, PODS, RESTATEMENTS, VACUUM_POLICIES, Kube, KubeError, ResourceKind

from lethe_operator.cluster.queue import WARM_DRIVER, WorkQueue
from lethe_operator.cluster.schedule import Key, Priority
from lethe_operator.probes import OperatorHealth
from lethe_operator.resources.common import ANNOTATION_DATASET
from lethe_operator.resources.observed import unplaced_pod
from lethe_operator.resources.restatement import dataset_name_of, lookup_names_of, owner_of

Body = Mapping[str, Any]


class RecordsEvents(Protocol):
    """Keeps what watches report."""

    def record_event(self, kind: ResourceKind, type: str | None, body: Body) -> bool:
        """Record an event; return whether it shows a change that the operator has not written or seen."""


@dataclass(frozen=True)
class WatchEvents:
    """Records the events of all watches, and queues what they concern."""

    queue: WorkQueue
    health: OperatorHealth
    objects: RecordsEvents

    def record(self, kind: ResourceKind, type: str | None, body: Body) -> None:
        """Record an event.

        The operator's own writes queue nothing. A VacuumPolicy that is deleted concerns all of its namespace; of one that
        changed, its reconcile says so.

        Args:
            type: ADDED, MODIFIED or DELETED; None: the watch has listed the object.
        """
        metadata = body["metadata"]
        self.health.watched(str(metadata["uid"]), str(metadata.get("resourceVersion", "")))
        if self.objects.record_event(kind, type, body):
            # At the start a watch lists everything: single changes go before that.
            priority = Priority.DUE if type is None else Priority.CHANGED
            for key in keys_of(kind, body):
                self.queue.add(key, priority=priority)
            if kind is VACUUM_POLICIES and type == "DELETED":
                self.queue.look_at_all([metadata["namespace"]])


def keys_of(kind: ResourceKind, body: Body) -> Iterable[Key]:
    """What is reconciled because an object has changed.

    A Restatement concerns the Dataset that it names, and those in which it looks up values, whether or not they exist, and the
    subject request that made it. One that names no Dataset is a subject request. A Lease concerns nothing: the reconciles of its
    namespace read it. A pod for which no node has room also concerns the warm driver, which may make way.
    """
    metadata = body["metadata"]
    if kind in (DATASETS, VACUUM_POLICIES):
        names = frozenset([metadata["name"]])
    elif kind is LEASES:
        names = frozenset()
    elif kind is RESTATEMENTS:
        names = frozenset(filter(None, [dataset_name_of(body)])) | lookup_names_of(body)
    else:
        names = datasets_of(body)
    of = kind.name if kind is VACUUM_POLICIES else DATASETS.name
    keys = [Key(of, metadata["namespace"], name) for name in sorted(names)]
    if kind is RESTATEMENTS:
        request = owner_of(body)[0] or ("" if names else metadata["name"])
        keys += [Key(RESTATEMENTS.name, metadata["namespace"], request)] if request else []
    if kind is PODS and unplaced_pod(body) is not None:
        keys.append(Key(WARM_DRIVER, metadata["namespace"], ""))
    return keys


def datasets_of(body: Body) -> frozenset[str]:
    """The names of the Datasets that an object belongs to; empty if it names none."""
    metadata = body["metadata"]
    owners = [o for o in metadata.get("ownerReferences") or () if o.get("kind") == "Dataset"]
    if owners:
        return frozenset(str(o["name"]) for o in owners)
    name = (metadata.get("annotations") or {}).get(ANNOTATION_DATASET)
    return frozenset([name] if name else ())


log = logging.getLogger(__name__)

LISTED_WITHIN_SECONDS: Final = 60.0


class KnownNames(Protocol):
    """The names of the resources of each namespace."""

    def ensure_each(self, kube: Kube, namespaces: Iterable[str]) -> None:
        """Return when the resources of each namespace are known in which the operator may read."""

    def dataset_names(self, namespace: str) -> Collection[str]:
        """The Datasets of a namespace, and those that only Restatements name."""

    def policy_names(self, namespace: str) -> Collection[str]:
        """The VacuumPolicies of a namespace, also those with an invalid spec."""

    def request_names(self, namespace: str) -> Collection[str]:
        """The subject requests of a namespace, also those with an invalid spec."""


def all_keys(known: KnownNames, namespaces: Sequence[str]) -> Iterator[Key]:
    """Everything that is reconciled, one after the other: thousands of new objects at a time start garbage collections."""
    for namespace in namespaces:
        yield Key(WARM_DRIVER, namespace, "")
        yield from (Key("Dataset", namespace, name) for name in known.dataset_names(namespace))
        yield from (Key("VacuumPolicy", namespace, name) for name in known.policy_names(namespace))
        yield from (Key("Restatement", namespace, name) for name in known.request_names(namespace))


async def resync(queue: WorkQueue, known: KnownNames, kube: Kube, namespaces: Sequence[str], seconds: float) -> None:
    """Run until cancelled."""
    while True:
        try:
            await asyncio.to_thread(known.ensure_each, kube, namespaces)
        except KubeError as e:
            log.warning("resync: %s", e)
        else:
            for key in all_keys(known, namespaces):
                queue.ensure(key)
        await asyncio.sleep(seconds)


async def wait_until_listed(known: KnownNames, kube: Kube, namespaces: Sequence[str]) -> None:
    """Wait until everything is known, or an error, or for some time: `resync` goes on."""
    with suppress(KubeError, TimeoutError):
        await asyncio.wait_for(asyncio.to_thread(known.ensure_each, kube, namespaces), LISTED_WITHIN_SECONDS)


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

    def permitted(self, namespaces: Iterable[str]) -> Sequence[str]:
        """Those of the namespaces in which the operator was not forbidden to read when it was last asked to."""

    def ensure_each(self, kube: Kube, namespaces: Iterable[str]) -> None:
        """Return when the objects of each namespace are known in which the operator may read.

        That includes the effect of each write without an answer. The first call lists them.
        """

    def relist(self, kube: Kube, namespaces: Iterable[str]) -> None:
        """Return when everything is known that the API server has now in the namespaces in which the operator may read."""

    def catch_up(self, kube: Kube, namespaces: Sequence[str], kinds: Sequence[ResourceKind] = ()) -> None:
        """Return when everything that the API server has now is known.

        Args:
            kinds: Empty: all that are watched.
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
    _due: float | None = field(default=None, init=False)
    """When everything is listed next, by the clock."""

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            try:
                await asyncio.to_thread(self.step)
            except KubeError as e:
                log.warning("listing the metadata of all objects: %s", e)
            await asyncio.sleep(AFTER_LISTING_SECONDS)

    def step(self) -> None:
        """List what is due.

        Raises:
            KubeError: Then the next call lists everything.
        """
        now = self.clock()
        due, self._due = self._due, None
        listed = self.objects.listed_by_watches(now - AFTER_LISTING_SECONDS)
        if due is None or now >= due:
            if self.objects.is_synced(self.objects.permitted(self.namespaces)):
                self.objects.relist(self.kube, self.namespaces)
            else:
                self.objects.ensure_each(self.kube, self.namespaces)
            self.health.relisted()
            due = now + self.seconds * random.uniform(1 - JITTER, 1 + JITTER)
        else:
            for kind, namespace in listed:
                self.objects.catch_up(self.kube, [namespace], [kind])
        self._due = due
