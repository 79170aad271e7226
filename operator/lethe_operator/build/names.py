"""Names, labels and owner references of all objects that Lethe creates. Pure: the same run always gets the same names."""

import hashlib
from collections.abc import Iterable
from typing import Any

from lethe.base.ids import kube_name
from lethe.contract.kind import RunFamily
from lethe.contract.run import DatasetRef, RunSpec

from lethe_operator.resources.common import (
    API_VERSION,
    KEY_PREFIX_LENGTH,
    LABEL_ATTEMPT,
    LABEL_DATASET,
    LABEL_DATASET_UID,
    LABEL_KIND,
    LABEL_RUN_ID,
    MANAGED_LABELS,
    RUN_LABELS,
)
from lethe_operator.resources.members import LABEL_SHARED, member_label

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


def shared_job(runs: Iterable[RunSpec]) -> str:
    """The Job of several Datasets' runs. The name depends only on the attempts, not on their order."""
    attempts = sorted(f"{r.run_id}/{r.attempt}" for r in runs)
    return kube_name("shared-consolidation", hashlib.sha256("\n".join(attempts).encode()).hexdigest()[:12])


def executor_prefix(run: RunSpec) -> str:
    return kube_name(run.dataset.name, run.run_id[:8], str(run.attempt), limit=EXECUTOR_PREFIX_AT_MOST)


def rpc_secret(run: RunSpec) -> str:
    """The Secret with which the driver and the executors of an attempt authenticate each other."""
    return f"{executor_prefix(run)}-rpc"


def key_prefix(run_id: str) -> str:
    """The prefix of a run's keys in the Dataset's ConfigMap."""
    return run_id[:KEY_PREFIX_LENGTH]


def dataset_labels(dataset: str, uid: str) -> dict[str, str]:
    return {**MANAGED_LABELS, LABEL_DATASET: kube_name(dataset), LABEL_DATASET_UID: uid}


def run_labels(run: RunSpec) -> dict[str, str]:
    return {
        **RUN_LABELS,
        **dataset_labels(run.dataset.name, run.dataset.uid),
        LABEL_KIND: run.family.value,
        LABEL_RUN_ID: run.run_id,
        LABEL_ATTEMPT: str(run.attempt),
    }


def shared_labels(runs: Iterable[RunSpec]) -> dict[str, str]:
    """One label for each of the Datasets."""
    members = {member_label(r.dataset.uid): r.run_id for r in runs}
    return {**RUN_LABELS, LABEL_SHARED: "true", LABEL_KIND: RunFamily.CONSOLIDATION.value, **members}


def owners(*datasets: DatasetRef) -> list[dict[str, Any]]:
    """Owner references, so that Kubernetes deletes an object together with the last of its Datasets. They never block the
    deletion of a Dataset. An object has at most one controller, so a shared object has none."""
    return [
        {
            "apiVersion": API_VERSION,
            "kind": "Dataset",
            "name": dataset.name,
            "uid": dataset.uid,
            "controller": len(datasets) == 1,
            "blockOwnerDeletion": False,
        }
        for dataset in datasets
    ]
