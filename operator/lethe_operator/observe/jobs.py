"""Observes the Jobs of a namespace that concern several Datasets: vacuums, and Jobs that Datasets share. I/O."""

from lethe.contract.kind import RunFamily, RunKind

from lethe_operator.kube import JOBS, Kube
from lethe_operator.observe.runs import state_of, time_of
from lethe_operator.resources.common import (
    ANNOTATION_DATASET,
    ANNOTATION_FOR_UID,
    LABEL_DATASET_UID,
    LABEL_KIND,
)
from lethe_operator.resources.members import LABEL_SHARED, SharedJob, members_of, needed_by
from lethe_operator.resources.observed import AttemptState, VacuumJob, kind_of


def vacuum_jobs(kube: Kube, namespace: str) -> tuple[VacuumJob, ...]:
    """The Jobs of vacuums that purge. A run that only checks erasures needs no place. Raises: KubeError."""
    found = []
    for job in kube.list(JOBS, namespace, f"{LABEL_KIND}={RunFamily.VACUUM.value}"):
        metadata = job["metadata"]
        annotations = metadata.get("annotations") or {}
        if kind_of(RunFamily.VACUUM, annotations.get(ANNOTATION_FOR_UID, "")) is not RunKind.VACUUM:
            continue
        state, ended, _, _ = state_of(job.get("status") or {})
        found.append(
            VacuumJob(
                dataset=annotations.get(ANNOTATION_DATASET, ""),
                uid=metadata["labels"].get(LABEL_DATASET_UID, ""),
                active=state is AttemptState.ACTIVE,
                finished=time_of(ended) if ended else None,
            )
        )
    return tuple(found)


def shared_jobs(kube: Kube, namespace: str) -> tuple[SharedJob, ...]:
    """Raises: KubeError."""
    return tuple(
        SharedJob(
            name=job["metadata"]["name"],
            over=state_of(job.get("status") or {})[0] is not AttemptState.ACTIVE,
            members=members_of(job["metadata"]),
            needed_by=needed_by(job["metadata"]),
        )
        for job in kube.list(JOBS, namespace, f"{LABEL_SHARED}=true")
    )
