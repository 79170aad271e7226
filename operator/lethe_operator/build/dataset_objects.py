"""The rights of runs: what each Dataset gets before its first run, and what a driver gets that several Datasets share. Pure.

A driver may read and write the ConfigMaps of its own Datasets. One with executors may start their pods, too; no other can.
"""

from collections.abc import Sequence
from typing import Any, Final

from lethe.run import DatasetRef, RunSpec

from lethe_operator.build import names
from lethe_operator.settings import Committer

_RBAC = "rbac.authorization.k8s.io"
# The chart makes it in each watched namespace: pods of executors, and the Secret by which they and their driver know each other.
# The operator may bind it to a ServiceAccount, and holds none of its rights.
SCALED_RUNS_ROLE: Final = "lethe-scaled-runs"


def dataset_objects(dataset: DatasetRef, committer: Committer, with_executors: bool) -> tuple[dict[str, Any], ...]:
    """In the order in which they are needed.

    Args:
        with_executors: Whether the run that is about to start has executors; only then is there an account that may start pods.
    """
    name, reports, scaled = names.shared(dataset.name), names.reports(dataset.name), names.scaled(dataset.name)
    of = _Maker((dataset,), names.dataset_labels(dataset.name, dataset.uid))
    return (
        of.object("v1", "ConfigMap", name, data={}),
        of.account(name),
        of.role(name, [name]),
        of.binding(name, name, name),
        *((of.role(reports, [name]), of.binding(reports, reports, committer.name)) if committer.enabled else ()),
        *(
            (
                of.account(scaled),
                of.binding(scaled, name, scaled),
                of.binding(names.executor_pods(dataset.name), SCALED_RUNS_ROLE, scaled),
            )
            if with_executors
            else ()
        ),
    )


def shared_job_objects(runs: Sequence[RunSpec]) -> tuple[dict[str, Any], ...]:
    """Of one Job that several Datasets share, under its name: its driver may report into their ConfigMaps and no others."""
    name = names.shared_job(runs)
    of = _Maker([r.dataset for r in runs], names.shared_labels(runs))
    return (
        of.account(name),
        of.role(name, [names.shared(r.dataset.name) for r in runs]),
        of.binding(name, name, name),
    )


class _Maker:
    """Makes objects that go with the last of their Datasets."""

    def __init__(self, datasets: Sequence[DatasetRef], labels: dict[str, str]) -> None:
        self.namespace = datasets[0].namespace
        self._metadata = {
            "namespace": self.namespace,
            "labels": labels,
            "ownerReferences": names.owners(*datasets),
        }

    def object(self, api_version: str, kind: str, name: str, **fields: Any) -> dict[str, Any]:
        return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, **self._metadata}, **fields}

    def account(self, name: str) -> dict[str, Any]:
        """Only a pod that asks for a token of it gets one."""
        return self.object("v1", "ServiceAccount", name, automountServiceAccountToken=False)

    def role(self, name: str, config_maps: Sequence[str]) -> dict[str, Any]:
        """Of whoever reports into these ConfigMaps, and does nothing else."""
        rule = {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": [*config_maps],
            "verbs": ["get", "patch"],
        }
        return self.object(f"{_RBAC}/v1", "Role", name, rules=[rule])

    def binding(self, name: str, role: str, account: str) -> dict[str, Any]:
        subject = {"kind": "ServiceAccount", "name": account, "namespace": self.namespace}
        reference = {"apiGroup": _RBAC, "kind": "Role", "name": role}
        return self.object(f"{_RBAC}/v1", "RoleBinding", name, roleRef=reference, subjects=[subject])
