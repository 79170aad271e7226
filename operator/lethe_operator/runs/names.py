"""Names, labels and owner references of all objects that Lethe creates. Pure: the same run always gets the same names."""

from typing import Any

from lethe.base.names import kube_name
from lethe.contract.kubernetes import API_VERSION
from lethe.contract.run import DatasetRef, RunSpec

from lethe_operator.resources.common import (
    KEY_PREFIX_LENGTH,
    LABEL_ATTEMPT,
    LABEL_DATASET,
    LABEL_DATASET_UID,
    LABEL_KIND,
    LABEL_RUN_ID,
    MANAGED_LABELS,
    RUN_LABELS,
)

# Spark appends `-exec-<n>` to this and refuses prefixes over 47 characters.
EXECUTOR_PREFIX_AT_MOST = 45


def shared(dataset: str) -> str:
    """The name of a Dataset's ConfigMap, and of the ServiceAccount, Role and RoleBinding of its drivers without executors."""
    return kube_name(dataset, "runs")


def scaled(dataset: str) -> str:
    """The ServiceAccount of a Dataset's drivers with executors, and the RoleBinding that lets them report."""
    return kube_name(dataset, "scaled-runs")


def executor_pods(dataset: str) -> str:
    """The RoleBinding that lets a Dataset's drivers start executors."""
    return kube_name(dataset, "executor-pods")


def executors(dataset: str) -> str:
    """The ServiceAccount of a Dataset's executors, which get no token."""
    return kube_name(dataset, "executors")


def reports(dataset: str) -> str:
    """The Role and RoleBinding that let the committer and the warm driver report into a Dataset's ConfigMap."""
    return kube_name(dataset, "reports")


def executor_prefix(run: RunSpec) -> str:
    """The start of the names of an attempt's executor pods, short enough for what Spark adds."""
    return kube_name(run.dataset.name, run.run_id[:8], str(run.attempt), limit=EXECUTOR_PREFIX_AT_MOST)


def rpc_secret(run: RunSpec) -> str:
    """The Secret with which the driver and the executors of an attempt authenticate each other."""
    return f"{executor_prefix(run)}-rpc"


def key_prefix(run_id: str) -> str:
    """The prefix of a run's keys in the Dataset's ConfigMap."""
    return run_id[:KEY_PREFIX_LENGTH]


def dataset_labels(dataset: str, uid: str) -> dict[str, str]:
    """The labels of objects that belong to a Dataset. The name may be shortened, so the UID decides."""
    return {**MANAGED_LABELS, LABEL_DATASET: kube_name(dataset), LABEL_DATASET_UID: uid}


def run_labels(run: RunSpec) -> dict[str, str]:
    """The labels of the objects of an attempt: those of its Dataset, its kind, its run and its number."""
    return {
        **RUN_LABELS,
        **dataset_labels(run.dataset.name, run.dataset.uid),
        LABEL_KIND: run.family.value,
        LABEL_RUN_ID: run.run_id,
        LABEL_ATTEMPT: str(run.attempt),
    }


def owners(dataset: DatasetRef) -> list[dict[str, Any]]:
    """The owner reference with which Kubernetes deletes an object together with its Dataset.

    It never blocks the deletion of the Dataset.
    """
    return [
        {
            "apiVersion": API_VERSION,
            "kind": "Dataset",
            "name": dataset.name,
            "uid": dataset.uid,
            "controller": True,
            "blockOwnerDeletion": False,
        }
    ]
