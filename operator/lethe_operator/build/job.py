"""The Job of a run. Pure."""

from collections.abc import Mapping
from typing import Any

from lethe.run import RunSpec

from lethe_operator.build import names, pod
from lethe_operator.build.sizing import Size
from lethe_operator.resources.common import ANNOTATION_DATASET, ANNOTATION_FOR_UID, ANNOTATION_GENERATION
from lethe_operator.settings import Settings


def job(
    run: RunSpec, size: Size, template: Mapping[str, Any], generation: int, for_uid: str, settings: Settings
) -> dict[str, Any]:
    """One attempt. Kubernetes never repeats it: retries are planned anew by the operator.

    Args:
        template: The allowed additions of chart and Dataset, merged.
        generation: The Dataset's now; with another one, a verdict on this attempt is void.
        for_uid: UID of the Restatement it serves, "" for other kinds.
    """
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": names.job(run),
            "namespace": run.dataset.namespace,
            "labels": names.run_labels(run),
            "annotations": {
                ANNOTATION_DATASET: run.dataset.name,
                ANNOTATION_GENERATION: str(generation),
                ANNOTATION_FOR_UID: for_uid,
            },
            "ownerReferences": names.owner(run.dataset.name, run.dataset.uid),
        },
        "spec": {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            # The Job counts as failed only when its pod is gone for good, so that no two drivers of a run overlap.
            "podReplacementPolicy": "Failed",
            "activeDeadlineSeconds": settings.max_run_seconds,
            "template": pod.driver(run, size, template, settings),
        },
    }
