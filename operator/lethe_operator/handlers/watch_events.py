"""Turns watch events into keys of the queue: of Lethe's resources, and of the objects of runs (Jobs, pods, ConfigMaps)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from lethe_operator.health import OperatorHealth
from lethe_operator.kube import DATASETS, LEASES, RESTATEMENTS, VACUUM_POLICIES, ResourceKind
from lethe_operator.resources.common import ANNOTATION_DATASET
from lethe_operator.resources.restatement import dataset_name_of
from lethe_operator.schedule import Key, Priority
from lethe_operator.work_queue import WorkQueue

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
        """Record an event. The operator's own writes queue nothing. A VacuumPolicy that is deleted concerns all of its namespace;
        of one that changed, its reconcile says so.

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
    """What is reconciled because an object has changed. A Restatement concerns the Dataset that it names, whether or not that
    exists. A Lease concerns nothing: the reconciles of its namespace read it."""
    metadata = body["metadata"]
    if kind in (DATASETS, VACUUM_POLICIES):
        names = frozenset([metadata["name"]])
    elif kind is LEASES:
        names = frozenset()
    elif kind is RESTATEMENTS:
        names = frozenset(filter(None, [dataset_name_of(body)]))
    else:
        names = datasets_of(body)
    of = kind.name if kind is VACUUM_POLICIES else DATASETS.name
    return [Key(of, metadata["namespace"], name) for name in sorted(names)]


def datasets_of(body: Body) -> frozenset[str]:
    """The names of the Datasets that an object belongs to; empty if it names none."""
    metadata = body["metadata"]
    owners = [o for o in metadata.get("ownerReferences") or () if o.get("kind") == "Dataset"]
    if owners:
        return frozenset(str(o["name"]) for o in owners)
    name = (metadata.get("annotations") or {}).get(ANNOTATION_DATASET)
    return frozenset([name] if name else ())
