"""What each Dataset gets before its first run: ConfigMap, ServiceAccount, Role, RoleBinding. Pure."""

from typing import Any

from lethe.run import DatasetRef

from lethe_operator.build import names
from lethe_operator.settings import SharedRuns

_RBAC = "rbac.authorization.k8s.io"


def dataset_objects(dataset: DatasetRef, shared_runs: SharedRuns) -> tuple[dict[str, Any], ...]:
    """In the order in which they are needed. Where runs are shared, their drivers may do here what the Dataset's own may."""
    name = names.shared(dataset.name)
    accounts = [name, shared_runs.service_account] if shared_runs.enabled else [name]

    def document(api_version: str, kind: str, **fields: Any) -> dict[str, Any]:
        return {
            "apiVersion": api_version,
            "kind": kind,
            "metadata": {
                "name": name,
                "namespace": dataset.namespace,
                "labels": names.dataset_labels(dataset.name, dataset.uid),
                "ownerReferences": names.owners(dataset),
            },
            **fields,
        }

    return (
        document("v1", "ConfigMap", data={}),
        document("v1", "ServiceAccount"),
        document(f"{_RBAC}/v1", "Role", rules=rules(name)),
        document(
            f"{_RBAC}/v1",
            "RoleBinding",
            roleRef={"apiGroup": _RBAC, "kind": "Role", "name": name},
            subjects=[{"kind": "ServiceAccount", "name": a, "namespace": dataset.namespace} for a in accounts],
        ),
    )


def rules(config_map: str) -> list[dict[str, Any]]:
    """A driver handles its executors' pods and reports into one ConfigMap. Nothing else."""
    return [
        {
            "apiGroups": [""],
            "resources": ["pods"],
            "verbs": ["get", "list", "watch", "create", "delete", "deletecollection"],
        },
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [config_map], "verbs": ["get", "patch"]},
    ]
