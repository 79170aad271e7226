"""The Job of a run. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lethe.contract.run import RunSpec

from lethe_operator.build import names, pod
from lethe_operator.build.sizing import Size
from lethe_operator.resources.common import (
    ANNOTATION_DATASET,
    ANNOTATION_FAILURES,
    ANNOTATION_FOR_UID,
    ANNOTATION_GENERATION,
)
from lethe_operator.resources.dataset import RunTemplate
from lethe_operator.resources.launcher import LABEL_QUEUE
from lethe_operator.resources.observed import NO_FAILURES, Failures
from lethe_operator.resources.restatement import SecretFile
from lethe_operator.settings import Settings


@dataclass(frozen=True)
class AttemptRecord:
    """What a Job records about its attempt, in annotations."""

    # Of the Dataset at the launch. A verdict on this attempt does not count for a later generation.
    generation: int
    # UID of the Restatement that the run serves; "" for other kinds.
    for_uid: str = ""
    # Of earlier attempts of the run.
    failures: Failures = NO_FAILURES


def job(
    run: RunSpec,
    size: Size,
    template: RunTemplate,
    record: AttemptRecord,
    settings: Settings,
    secrets: Sequence[SecretFile] = (),
) -> dict[str, Any]:
    """The Job of one attempt of a run.

    Args:
        template: The allowed additions of chart and Dataset, merged.
        secrets: Mounted into the pod.
    """
    assignment = pod.one_run(run, size, settings, secrets)
    made = _job(
        metadata_of(run, record, template.queue or ""),
        pod.driver(assignment, size, template.pod_template, settings),
        settings,
    )
    # Kueue resumes it. Without Kueue it does not start, so no run bypasses the quota.
    return {**made, "spec": {**made["spec"], "suspend": True}} if template.queue else made


def metadata_of(run: RunSpec, record: AttemptRecord, queue: str = "") -> dict[str, Any]:
    """The metadata of the object that launches an attempt, whatever its kind.

    Args:
        queue: The LocalQueue that admits it; "": it starts at once.
    """
    return {
        "name": run.attempt_name,
        "namespace": run.dataset.namespace,
        "labels": {**names.run_labels(run), **({LABEL_QUEUE: queue} if queue else {})},
        "annotations": {
            ANNOTATION_DATASET: run.dataset.name,
            ANNOTATION_GENERATION: str(record.generation),
            ANNOTATION_FOR_UID: record.for_uid,
            ANNOTATION_FAILURES: f"{record.failures.run}/{record.failures.infrastructure}",
        },
        "ownerReferences": names.owners(run.dataset),
    }


def _job(metadata: dict[str, Any], template: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """A Job that Kubernetes never retries; the operator does."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            # The Job fails only after its pod has terminated, so that two drivers of a run never overlap.
            "podReplacementPolicy": "Failed",
            "activeDeadlineSeconds": settings.max_run_seconds,
            "template": template,
        },
    }
