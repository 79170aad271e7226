"""The objects with the rights of a Dataset's runs. Pure.

A driver may read and write the ConfigMap of its Dataset. Only a driver with executors may start pods.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lethe.contract.run import DatasetRef

from lethe_operator.resources.boundaries import AccountMarks, ServiceAccountMarks
from lethe_operator.resources.common import ANNOTATION_MARKS
from lethe_operator.runs import names

_RBAC = "rbac.authorization.k8s.io"
# The chart creates this Role in each watched namespace. It allows executor pods, and the Secret with which they and their driver
# authenticate each other. The operator may bind it to a ServiceAccount, but has none of its rights.
SCALED_RUNS_ROLE: Final = "lethe-scaled-runs"
NO_MARKS: Final = ServiceAccountMarks()


def dataset_objects(
    dataset: DatasetRef, reporters: Sequence[str], with_executors: bool, marks: ServiceAccountMarks = NO_MARKS
) -> tuple[dict[str, Any], ...]:
    """The objects of a Dataset, in the order in which they are needed.

    Args:
        reporters: ServiceAccounts of the namespace's processes that carry out runs: the committer, the warm driver.
        with_executors: The next run has executors; only then is there a ServiceAccount that may start pods.
        marks: Annotations and labels of the ServiceAccounts, from the boundary of the namespace.
    """
    name, reports, scaled = names.shared(dataset.name), names.reports(dataset.name), names.scaled(dataset.name)
    of = _Maker(dataset, names.dataset_labels(dataset.name, dataset.uid))
    return (
        of.object("v1", "ConfigMap", name, data={}),
        of.account(name, marks.driver),
        of.role(name, name),
        of.binding(name, name, name),
        *((of.role(reports, name), of.binding(reports, reports, *reporters)) if reporters else ()),
        *(
            (
                of.account(scaled, marks.driver),
                of.account(names.executors(dataset.name), marks.executor),
                of.binding(scaled, name, scaled),
                of.binding(names.executor_pods(dataset.name), SCALED_RUNS_ROLE, scaled),
            )
            if with_executors
            else ()
        ),
    )


def marks_to_set(existing: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The patch of an existing ServiceAccount's metadata. Empty: there is nothing to change.

    It gets the marks of the current boundary and loses those of an earlier one. Marks that others set stay.
    """
    has, wants = existing.get("metadata") or {}, wanted["metadata"]
    try:
        before = json.loads((has.get("annotations") or {}).get(ANNOTATION_MARKS) or "[[], []]")
        earlier = {"annotations": [str(k) for k in before[0]], "labels": [str(k) for k in before[1]]}
    except (ValueError, IndexError, TypeError):  # changed by hand
        earlier = {"annotations": [], "labels": []}
    patch: dict[str, Any] = {}
    for field, keys in earlier.items():
        there, asked = has.get(field) or {}, wants.get(field) or {}
        changed = {k: v for k, v in asked.items() if there.get(k) != v}
        changed |= {k: None for k in keys if k in there and k not in asked}
        if changed:
            patch[field] = changed
    return patch


class _Maker:
    """Makes objects that Kubernetes deletes together with their Dataset."""

    def __init__(self, dataset: DatasetRef, labels: dict[str, str]) -> None:
        self.namespace = dataset.namespace
        self._metadata = {
            "namespace": self.namespace,
            "labels": labels,
            "ownerReferences": names.owners(dataset),
        }

    def object(self, api_version: str, kind: str, name: str, **fields: Any) -> dict[str, Any]:
        return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, **self._metadata}, **fields}

    def account(self, name: str, marks: AccountMarks) -> dict[str, Any]:
        """A ServiceAccount whose token only those pods get that request it."""
        made = self.object("v1", "ServiceAccount", name, automountServiceAccountToken=False)
        keys = json.dumps([sorted(marks.annotations), sorted(marks.labels)])
        made["metadata"]["labels"] = {**marks.labels, **made["metadata"]["labels"]}
        made["metadata"]["annotations"] = {**marks.annotations, ANNOTATION_MARKS: keys}
        return made

    def role(self, name: str, config_map: str) -> dict[str, Any]:
        """The right to report into this ConfigMap, and no other."""
        rule = {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": [config_map],
            "verbs": ["get", "patch"],
        }
        return self.object(f"{_RBAC}/v1", "Role", name, rules=[rule])

    def binding(self, name: str, role: str, *accounts: str) -> dict[str, Any]:
        subjects = [{"kind": "ServiceAccount", "name": a, "namespace": self.namespace} for a in accounts]
        reference = {"apiGroup": _RBAC, "kind": "Role", "name": role}
        return self.object(f"{_RBAC}/v1", "RoleBinding", name, roleRef=reference, subjects=subjects)
