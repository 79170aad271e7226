"""The vacuums of a namespace, which concern all its Datasets. Pure."""

from lethe.contract.kind import RunFamily, RunKind

from lethe_operator.observe.objects import Objects
from lethe_operator.observe.run_objects import time_of
from lethe_operator.resources.common import (
    ANNOTATION_DATASET,
    ANNOTATION_FOR_UID,
    LABEL_DATASET_UID,
)
from lethe_operator.resources.observed import AttemptState, VacuumJob, kind_of


def vacuum_jobs(objects: Objects, namespace: str) -> tuple[VacuumJob, ...]:
    """The vacuums that purge, whatever launched them. A run that only checks erasures needs no place."""
    found = []
    for one in objects.vacuum_jobs(namespace):
        metadata = one.metadata
        annotations = metadata.get("annotations") or {}
        if kind_of(RunFamily.VACUUM, annotations.get(ANNOTATION_FOR_UID, "")) is not RunKind.VACUUM:
            continue
        found.append(
            VacuumJob(
                dataset=annotations.get(ANNOTATION_DATASET, ""),
                uid=metadata["labels"].get(LABEL_DATASET_UID, ""),
                active=one.state is AttemptState.ACTIVE,
                finished=time_of(one.ended) if one.ended else None,
            )
        )
    return tuple(found)
