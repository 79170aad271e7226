"""Observes the Jobs of a namespace that several Datasets share. I/O."""

from lethe_operator.kube import JOBS, Kube
from lethe_operator.observe.runs import state_of
from lethe_operator.resources.members import LABEL_SHARED, SharedJob, members_of, needed_by
from lethe_operator.resources.observed import AttemptState


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
