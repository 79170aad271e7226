"""What each Dataset gets before its first run: ConfigMap, ServiceAccount, Roles, RoleBindings. Pure."""

from collections.abc import Sequence
from typing import Any

from lethe.run import DatasetRef

from lethe_operator.build import names
from lethe_operator.settings import Committer, SharedRuns

_RBAC = "rbac.authorization.k8s.io"


def dataset_objects(dataset: DatasetRef, shared_runs: SharedRuns, committer: Committer) -> tuple[dict[str, Any], ...]:
    """In the order in which they are needed. Where runs are shared, their drivers may do here what the Dataset's own may; the
    committer may only report."""
    name, reports = names.shared(dataset.name), names.reports(dataset.name)
    drivers = [name, shared_runs.service_account] if shared_runs.enabled else [name]

    def document(api_version: str, kind: str, called: str = name, **fields: Any) -> dict[str, Any]:
        return {
            "apiVersion": api_version,
            "kind": kind,
            "metadata": {
                "name": called,
                "namespace": dataset.namespace,
                "labels": names.dataset_labels(dataset.name, dataset.uid),
                "ownerReferences": names.owners(dataset),
            },
            **fields,
        }

    def rights(role: str, rules: list[dict[str, Any]], accounts: Sequence[str]) -> tuple[dict[str, Any], ...]:
        subjects = [{"kind": "ServiceAccount", "name": a, "namespace": dataset.namespace} for a in accounts]
        reference = {"apiGroup": _RBAC, "kind": "Role", "name": role}
        return (
            document(f"{_RBAC}/v1", "Role", role, rules=rules),
            document(f"{_RBAC}/v1", "RoleBinding", role, roleRef=reference, subjects=subjects),
        )

    return (
        document("v1", "ConfigMap", data={}),
        document("v1", "ServiceAccount"),
        *rights(name, [_executors(), _reports(name)], drivers),
        *(rights(reports, [_reports(name)], [committer.name]) if committer.enabled else ()),
    )


def _executors() -> dict[str, Any]:
    """A driver handles its executors' pods."""
    verbs = ["get", "list", "watch", "create", "delete", "deletecollection"]
    return {"apiGroups": [""], "resources": ["pods"], "verbs": verbs}


def _reports(config_map: str) -> dict[str, Any]:
    """And it reports into one ConfigMap. Nothing else."""
    verbs = ["get", "patch"]
    return {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [config_map], "verbs": verbs}
