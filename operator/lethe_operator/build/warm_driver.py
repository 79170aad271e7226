"""The Job of the warm driver of a namespace. Pure.

The Job restarts its container after a crash, and completes when the warm driver has been idle. It belongs to the mailbox, so it
is deleted when the chart removes the mailbox.
"""

import hashlib
import json
from typing import Any, Final

from lethe_operator.build import pod, spark_conf
from lethe_operator.build.sizing import Size, merged, size, within
from lethe_operator.resources.common import RUN_LABELS
from lethe_operator.resources.dataset import RunTemplate
from lethe_operator.settings import Settings

# On the Job: a digest of everything that it was made from. An outdated Job is replaced.
ANNOTATION_DIGEST: Final = "lethe.dev/template-digest"
# Restarts of the container and lost pods; after these, the operator makes a new Job.
RESTARTS_AT_MOST: Final = 20
KEPT_SECONDS: Final = 300
# The supervisor ends a session before the kernel kills the whole container.
MEMORY_SHARE: Final = 0.92


def job(namespace: str, mailbox_uid: str, settings: Settings) -> dict[str, Any]:
    """The Job.

    Args:
        mailbox_uid: UID of the mailbox's ConfigMap, which has the name of the Job.
    """
    wanted = settings.warm_drivers
    chosen = _size(namespace, settings)
    scratch = chosen.driver.scratch or settings.run_limits.scratch
    assignment = pod.Assignment(
        namespace=namespace,
        account=wanted.name,
        labels={**RUN_LABELS, "app.kubernetes.io/component": "warm-driver"},
        annotations={},
        confs=spark_conf.alone(wanted.name, chosen),
        env=[
            {"name": "LETHE_WARM_DRIVER", "value": wanted.name},
            {"name": "LETHE_WARM_IDLE_SECONDS", "value": str(wanted.idle_seconds)},
            {"name": "LETHE_WARM_RUN_SECONDS", "value": str(wanted.max_run_seconds)},
            {"name": "LETHE_WARM_MEMORY_BYTES", "value": str(int(chosen.driver.memory * MEMORY_SHARE))},
            # Below the size of the volume: the kubelet evicts a pod whose volume is larger, with all its runs.
            {"name": "LETHE_WARM_DISK_BYTES", "value": str(scratch * 3 // 4)},
            *(
                []
                if wanted.metrics_port is None
                else [{"name": "LETHE_METRICS_PORT", "value": str(wanted.metrics_port)}]
            ),
        ],
        runs={"emptyDir": {}},
        digests=True,
    )
    template = pod.driver(assignment, chosen, settings.run_template.pod_template, settings)
    container = template["spec"]["containers"][0]
    container["args"] = ["warm-driver", *container["args"][1:]]
    if wanted.metrics_port is not None:
        # The chart's PodMonitor and NetworkPolicy name this port.
        container["ports"] = [{"name": "metrics", "containerPort": wanted.metrics_port}]
    template["spec"]["restartPolicy"] = "OnFailure"
    spec = {
        "backoffLimit": RESTARTS_AT_MOST,
        "completions": 1,
        "parallelism": 1,
        "ttlSecondsAfterFinished": KEPT_SECONDS,
        "template": template,
    }
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": wanted.name, "uid": mailbox_uid}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": wanted.name,
            "namespace": namespace,
            "labels": assignment.labels,
            "annotations": {ANNOTATION_DIGEST: digest},
            "ownerReferences": [owner],
        },
        "spec": spec,
    }


def _size(namespace: str, settings: Settings) -> Size:
    """The size of its pod, within the boundary of the namespace."""
    own = RunTemplate(driver=settings.warm_drivers.driver)
    asked = merged(settings.run_template, own).model_copy(update={"executors": own.executors})
    template = within(asked, settings.boundaries.of(namespace))
    return size(0, template.model_copy(update={"executors": own.executors.model_copy(update={"min": 0, "max": 0})}))
