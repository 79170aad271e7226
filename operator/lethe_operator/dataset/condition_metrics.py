"""The conditions Ready and Stalled of resources as Prometheus metrics, made from the known objects when they are scraped. No I/O.

A Restatement that has succeeded has no metrics: there may be tens of thousands of them, and nothing about them changes.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from lethe.contract.status import Status
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from lethe_operator.conditions import FALSE, READY, STALLED, TRUE
from lethe_operator.dataset.objects import WatchedObjects

# The labels of each kind, besides `reason`.
OF_KIND: Final[Mapping[str, tuple[str, ...]]] = {
    "dataset": ("namespace", "dataset"),
    "restatement": ("namespace", "dataset", "restatement"),
    "vacuum_policy": ("namespace", "vacuum_policy"),
}
_NAMES: Final[Mapping[str, str]] = {
    "dataset": "a Dataset",
    "restatement": "a Restatement that has not succeeded",
    "vacuum_policy": "a VacuumPolicy",
}
_VALUES: Final[Mapping[object, int]] = {TRUE: 1, FALSE: 0}


class ConditionMetrics(Collector):
    """One per operator.

    Args:
        acting: Returns the namespaces in which this process acts. It reports on no others.
    """

    def __init__(self, objects: WatchedObjects, acting: Callable[[], Collection[str]]) -> None:
        self._objects = objects
        self._acting = acting

    def collect(self) -> Iterator[Metric]:
        """Yield a gauge for each kind and condition; a condition that is neither True nor False has no value."""
        namespaces = sorted(self._acting())
        for kind, labels in OF_KIND.items():
            families = {
                condition: GaugeMetricFamily(
                    f"lethe_{kind}_{condition.lower()}",
                    f"1 while {_NAMES[kind]} is {condition}, 0 while it is not; the label reason says why.",
                    labels=(*labels, "reason"),
                )
                for condition in (READY, STALLED)
            }
            for namespace in namespaces:
                for values, status in self._statuses(kind, namespace):
                    for condition, family in families.items():
                        value = status.condition(condition)
                        if value is not None and value.status in _VALUES:
                            family.add_metric((namespace, *values, value.reason), _VALUES[value.status])
            yield from families.values()

    def describe(self) -> Iterator[Metric]:
        """What `collect` returns, without reading the objects."""
        for kind, labels in OF_KIND.items():
            for condition in (READY, STALLED):
                yield GaugeMetricFamily(f"lethe_{kind}_{condition.lower()}", "", labels=(*labels, "reason"))

    def _statuses(self, kind: str, namespace: str) -> Iterator[tuple[tuple[str, ...], Status]]:
        """The labels after the namespace, and the status, of each resource."""
        match kind:
            case "dataset":
                for dataset in self._objects.all_datasets(namespace):
                    yield (dataset.meta.name,), dataset.stored.parts("conditions")
            case "restatement":
                for name, restatement in self._objects.restatements.unfinished(namespace):
                    yield (name, restatement.meta.name), restatement.stored.parts("conditions")
            case "vacuum_policy":
                for policy in self._objects.policies(namespace):
                    yield (policy.meta.name,), policy.stored.parts("conditions")
