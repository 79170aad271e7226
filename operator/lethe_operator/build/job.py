"""The Job of a run, and the one Job of several Datasets' runs. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from lethe.contract.run import RunSpec

from lethe_operator.build import names, pod
from lethe_operator.build.sizing import Size
from lethe_operator.resources import members
from lethe_operator.resources.common import (
    ANNOTATION_DATASET,
    ANNOTATION_FAILURES,
    ANNOTATION_FOR_UID,
    ANNOTATION_GENERATION,
)
from lethe_operator.resources.observed import NO_FAILURES, Failures
from lethe_operator.resources.restatement import SecretFile
from lethe_operator.settings import Settings


def job(
    run: RunSpec,
    size: Size,
    template: Mapping[str, Any],
    generation: int,
    for_uid: str,
    settings: Settings,
    failures: Failures = NO_FAILURES,
    secrets: Sequence[SecretFile] = (),
) -> dict[str, Any]:
    """One attempt.

    Args:
        template: The allowed additions of chart and Dataset, merged.
        generation: The Dataset's now; with another one, a verdict on this attempt is void.
        for_uid: UID of the Restatement it serves, "" for other kinds.
        failures: Of earlier attempts.
        secrets: What the pod is to find.
    """
    metadata = {
        "name": names.job(run),
        "namespace": run.dataset.namespace,
        "labels": names.run_labels(run),
        "annotations": {
            ANNOTATION_DATASET: run.dataset.name,
            ANNOTATION_GENERATION: str(generation),
            ANNOTATION_FOR_UID: for_uid,
            ANNOTATION_FAILURES: f"{failures.run}/{failures.infrastructure}",
        },
        "ownerReferences": names.owners(run.dataset),
    }
    return _job(metadata, pod.driver(pod.one_run(run, size, settings, secrets), size, template, settings), settings)


def shared_job(
    runs: Sequence[tuple[RunSpec, int]], size: Size, template: Mapping[str, Any], settings: Settings
) -> dict[str, Any]:
    """One attempt of each of several consolidations of one namespace, carried out in this order.

    Args:
        runs: Each with its Dataset's generation now.
        size: Of a driver that works alone.
        template: The allowed additions of chart and Datasets, merged: the same for all of them.
    """
    specs = [run for run, _ in runs]
    named = members.written(
        [
            members.Member(
                dataset=r.dataset.name, uid=r.dataset.uid, run_id=r.run_id, attempt=r.attempt, generation=generation
            )
            for r, generation in runs
        ]
    )
    metadata = {
        "name": names.shared_job(specs),
        "namespace": specs[0].dataset.namespace,
        "labels": names.shared_labels(specs),
        "annotations": {members.ANNOTATION_MEMBERS: named},
        "ownerReferences": names.owners(*(r.dataset for r in specs)),
    }
    return _job(metadata, pod.driver(pod.shared_runs(specs, named, size), size, template, settings), settings)


def _job(metadata: dict[str, Any], template: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Kubernetes never repeats it: retries are planned anew by the operator."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            # The Job counts as failed only when its pod is gone for good, so that no two drivers of a run overlap.
            "podReplacementPolicy": "Failed",
            "activeDeadlineSeconds": settings.max_run_seconds,
            "template": template,
        },
    }
