"""The objects that launch runs: a Job, a SparkApplication of Kubeflow's Spark operator, or an entry of a mailbox. Pure.

Only the object that launches the driver differs between a Job and a SparkApplication. The driver has the same image, arguments,
mounts and rights, and starts its executors itself, in the same way. Kubeflow's operator never repeats the run, because Lethe
does.

The Job of a namespace's warm driver restarts its container after a crash, and completes when the warm driver has been idle. It
belongs to the mailbox, so it is deleted when the chart removes the mailbox.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, assert_never

from lethe.contract.dataset import RunTemplate
from lethe.contract.kubernetes import MIB
from lethe.contract.run import DatasetRef, MailboxEntry
from lethe.contract.settings import Launcher, RunFamily

from lethe_operator.actions import Launch
from lethe_operator.resources.common import (
    ANNOTATION_DATASET,
    ANNOTATION_FAILURES,
    ANNOTATION_FOR_UID,
    ANNOTATION_GENERATION,
    ERASE_PATH,
    LABEL_DATASET_UID,
    LABEL_QUEUE,
    RUN_LABELS,
    SPARK_CONTAINER,
)
from lethe_operator.resources.observed import Dispatch, Engine, WarmEngine
from lethe_operator.resources.restatement import SecretFile
from lethe_operator.runs import names, pod
from lethe_operator.runs.pod import Size, merged, size, within
from lethe_operator.settings import Settings


def run_object(launch: Launch, size: Size, template: RunTemplate, settings: Settings) -> dict[str, Any]:
    """The Job or the SparkApplication of one attempt of a run. Its name is the same for both kinds.

    Args:
        template: The allowed additions of chart and Dataset, merged.
    """
    match launcher_of(template):
        case Launcher.JOB:
            return _job_of(launch, size, template, settings)
        case Launcher.SPARK_APPLICATION:
            return _spark_application(launch, size, template, settings)
        case launcher:
            assert_never(launcher)


def _job_of(launch: Launch, size: Size, template: RunTemplate, settings: Settings) -> dict[str, Any]:
    assignment = pod.one_run(launch.run, size, settings, launch.secrets)
    made = _job(
        metadata_of(launch, template.queue or ""),
        pod.driver(assignment, size, template.pod_template, settings),
        settings,
    )
    # Kueue resumes it. Without Kueue it does not start, so no run bypasses the quota.
    return {**made, "spec": {**made["spec"], "suspend": True}} if template.queue else made


def metadata_of(launch: Launch, queue: str = "") -> dict[str, Any]:
    """The metadata of the object that launches an attempt, whatever its kind.

    Args:
        queue: The LocalQueue that admits it; "": it starts at once.
    """
    run, failures = launch.run, launch.failures
    return {
        "name": run.attempt_name,
        "namespace": run.dataset.namespace,
        "labels": {**names.run_labels(run), **({LABEL_QUEUE: queue} if queue else {})},
        "annotations": {
            ANNOTATION_DATASET: run.dataset.name,
            ANNOTATION_GENERATION: str(launch.generation),
            ANNOTATION_FOR_UID: launch.for_uid,
            ANNOTATION_FAILURES: f"{failures.run}/{failures.infrastructure}",
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


API_VERSION: Final = "sparkoperator.k8s.io/v1beta2"
# Of the image (dev/requirements/spark.txt). Kubeflow's operator uses it only to decide whether it may use pod templates.
SPARK_VERSION: Final = "4.1.4"
# The image's entry point starts the same application for it as for a Job (lethe_spark.apps.entrypoint).
MAIN_FILE: Final = "local:///opt/lethe/app/lethe_spark/apps/app.py"
# Spark uses a volume of such a name as its local directory, instead of one that it adds.
SCRATCH_VOLUME: Final = "spark-local-dir-1"
# Milliseconds. The 10 seconds of spark-submit are too short on a busy node, where its JVM is slow to load classes.
SUBMISSION_TIMEOUT: Final = "60000"
LABEL_APP: Final = "sparkoperator.k8s.io/app-name"
LABEL_LAUNCHED: Final = "sparkoperator.k8s.io/launched-by-spark-operator"
LABEL_SUBMISSION: Final = "sparkoperator.k8s.io/submission-id"
SUBMISSION_ENV: Final = "LETHE_SUBMISSION_ID"


def _spark_application(launch: Launch, size: Size, template: RunTemplate, settings: Settings) -> dict[str, Any]:
    assignment = pod.one_run(launch.run, size, settings, launch.secrets)
    confs = {**assignment.confs, **(_tracked(launch.run.attempt_name) if size.executors else {})}
    most = pod.cpu_limit(size.driver, settings.run_limits)
    driver = {
        "coreRequest": f"{round(size.driver.cpu * 1000)}m",
        **({"coreLimit": most} if most else {}),
        "memory": f"{size.driver.heap // MIB}m",
        "memoryOverhead": f"{size.driver.memory // MIB - size.driver.heap // MIB}m",
        "serviceAccount": assignment.account,
        "template": _driver_template(pod.driver(assignment, size, template.pod_template, settings), settings),
    }
    return {
        "apiVersion": API_VERSION,
        "kind": "SparkApplication",
        "metadata": metadata_of(launch, template.queue or ""),
        "spec": {
            "type": "Python",
            "mode": "cluster",
            "sparkVersion": SPARK_VERSION,
            "image": settings.spark_image,
            "imagePullPolicy": settings.image_pull_policy,
            "mainApplicationFile": MAIN_FILE,
            "sparkConf": {
                "spark.kubernetes.submission.connectionTimeout": SUBMISSION_TIMEOUT,
                "spark.kubernetes.submission.requestTimeout": SUBMISSION_TIMEOUT,
            },
            "arguments": pod.arguments(confs, assignment.options)[1:],
            "restartPolicy": {"type": "Never"},
            # Kueue resumes it.
            **({"suspend": True} if template.queue else {}),
            "driver": driver,
            "executor": _executor(size, settings),
        },
    }


def _driver_template(made: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """The pod template of the Job's driver, without what Spark itself sets, and with the names that Spark expects."""
    spec = dict(made["spec"])
    (container,) = spec["containers"]
    template = {key: value for key, value in container.items() if key not in ("args", "image", "imagePullPolicy")}
    template["name"] = SPARK_CONTAINER
    template["env"] = [
        *(e for e in container["env"] if e["name"] != "SPARK_LOCAL_DIRS"),
        {"name": SUBMISSION_ENV, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{LABEL_SUBMISSION}']"}}},
    ]
    template["volumeMounts"] = [_renamed(m) for m in container["volumeMounts"]]
    # Spark adds CPU and memory from the fields of the driver.
    resources = container["resources"]
    template["resources"] = {
        kind: {k: v for k, v in resources[kind].items() if k not in ("cpu", "memory")} for kind in resources
    }
    spec["containers"] = [template]
    spec["volumes"] = [_renamed(v) for v in spec["volumes"]]
    # A SparkApplication has no time limit.
    spec["activeDeadlineSeconds"] = settings.max_run_seconds
    return {"metadata": made["metadata"], "spec": spec}


def _renamed(named: Mapping[str, Any]) -> dict[str, Any]:
    return {**named, "name": SCRATCH_VOLUME if named["name"] == "scratch" else named["name"]}


def _tracked(name: str) -> dict[str, str]:
    """The labels by which Kubeflow's operator counts executors."""
    prefix = "spark.kubernetes.executor.label."
    return {
        f"{prefix}{LABEL_APP}": name,
        f"{prefix}{LABEL_LAUNCHED}": "true",
        f"{prefix}{LABEL_SUBMISSION}": f"$({SUBMISSION_ENV})",
    }


def _executor(size: Size, settings: Settings) -> dict[str, Any]:
    """What Kueue and Kubeflow's operator read about executors. The driver creates them from its own arguments."""
    if size.executors == 0:
        return {}
    executor = size.executor
    most = pod.cpu_limit(executor, settings.run_limits)
    return {
        "instances": size.executors,
        "cores": executor.cores,
        "coreRequest": f"{round(executor.cpu * 1000)}m",
        **({"coreLimit": most} if most else {}),
        "memory": f"{executor.heap // MIB}m",
        "memoryOverhead": f"{executor.memory // MIB - executor.heap // MIB}m",
    }


def launcher_of(template: RunTemplate) -> Launcher:
    """The kind of object that launches the runs with this template."""
    return template.launcher or Launcher.JOB


# On the Job: a digest of everything that it was made from. An outdated Job is replaced.
ANNOTATION_DIGEST: Final = "lethe.dev/template-digest"
# Restarts of the container and lost pods; after these, the operator makes a new Job.
RESTARTS_AT_MOST: Final = 20
KEPT_SECONDS: Final = 300
WARM_DRIVER_LABELS: Final = {**RUN_LABELS, "app.kubernetes.io/component": "warm-driver"}
"""The labels of both warm drivers."""
# The supervisor ends a session before the kernel kills the whole container.
MEMORY_SHARE: Final = 0.92


def warm_driver_job(
    namespace: str,
    mailbox_uid: str,
    settings: Settings,
    engine: WarmEngine = Engine.WARM_DRIVER,
    secrets: Sequence[SecretFile] = (),
    dataset: DatasetRef | None = None,
) -> dict[str, Any]:
    """The Job.

    Args:
        mailbox_uid: UID of the mailbox's ConfigMap, which has the name of the Job.
        engine: Which of the warm drivers.
        secrets: Mounted into its pod. They do not make the Job outdated.
        dataset: Whose run has to wait if no node has room for the pod of the one with values. Another warm driver then makes way.
    """
    name = settings.warm_drivers.name_of(engine)
    unmounted = _warm_driver_spec(namespace, settings, engine, ())
    digest = hashlib.sha256(json.dumps(unmounted, sort_keys=True).encode()).hexdigest()[:16]
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": mailbox_uid}
    spec = _warm_driver_spec(namespace, settings, engine, secrets)
    if dataset is not None and engine is Engine.VALUES_DRIVER:
        marks = {ANNOTATION_DATASET: dataset.name, LABEL_DATASET_UID: dataset.uid}
        spec["template"]["metadata"]["annotations"] |= marks
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": WARM_DRIVER_LABELS,
            "annotations": {ANNOTATION_DIGEST: digest},
            "ownerReferences": [owner],
        },
        "spec": spec,
    }


def _warm_driver_spec(
    namespace: str, settings: Settings, engine: WarmEngine, secrets: Sequence[SecretFile]
) -> dict[str, Any]:
    wanted = settings.warm_drivers
    name, has_values = wanted.name_of(engine), engine is Engine.VALUES_DRIVER
    chosen = _size(namespace, settings)
    scratch = chosen.driver.scratch or settings.run_limits.scratch
    assignment = pod.Assignment(
        namespace=namespace,
        account=wanted.name,
        labels=WARM_DRIVER_LABELS,
        annotations={},
        confs=pod.alone(name, chosen),
        env=[
            {"name": "LETHE_WARM_DRIVER", "value": name},
            {
                "name": "LETHE_WARM_IDLE_SECONDS",
                "value": str(wanted.values_idle_seconds if has_values else wanted.idle_seconds),
            },
            {"name": "LETHE_WARM_FILES", "value": ",".join(s.file for s in secrets)},
            {"name": "LETHE_VALUES_FOLDER", "value": ERASE_PATH},
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
        secrets=secrets,
        digests=True,
    )
    template = pod.driver(assignment, chosen, settings.run_template.pod_template, settings)
    container = template["spec"]["containers"][0]
    container["args"] = ["warm-driver", *container["args"][1:]]
    if wanted.metrics_port is not None:
        # The chart's PodMonitor and NetworkPolicy name this port.
        container["ports"] = [{"name": "metrics", "containerPort": wanted.metrics_port}]
    template["spec"]["restartPolicy"] = "OnFailure"
    return {
        "backoffLimit": RESTARTS_AT_MOST,
        "completions": 1,
        "parallelism": 1,
        "ttlSecondsAfterFinished": KEPT_SECONDS,
        "template": template,
    }


def _size(namespace: str, settings: Settings) -> Size:
    """The size of its pod, within the boundary of the namespace."""
    own = RunTemplate(driver=settings.warm_drivers.driver)
    asked = merged(settings.run_template, own).model_copy(update={"executors": own.executors})
    template = within(asked, settings.boundaries.of(namespace))
    return size(0, template.model_copy(update={"executors": own.executors.model_copy(update={"min": 0, "max": 0})}))


def dispatch(launch: Launch, now: datetime) -> Dispatch:
    """The note about an attempt that a process of the namespace gets now."""
    run = launch.run
    return Dispatch(
        name=run.attempt_name,
        run_id=run.run_id,
        family=run.family,
        attempt=run.attempt,
        generation=launch.generation,
        for_uid=launch.for_uid,
        created_time=now,
        engine=launch.engine,
        secrets=launch.secrets,
    )


def entry(
    dataset: DatasetRef,
    run_id: str,
    family: RunFamily,
    attempt: int,
    created: datetime,
    cancelled: bool = False,
    files: tuple[str, ...] = (),
) -> MailboxEntry:
    """The mailbox entry that asks a process to carry out an attempt or, if it is cancelled, to end it.

    Args:
        files: As in the entry.
    """
    return MailboxEntry(
        dataset_uid=dataset.uid,
        run_id=run_id,
        family=family,
        attempt=attempt,
        config_map=names.shared(dataset.name),
        prefix=names.key_prefix(run_id),
        created_time=created,
        cancelled=cancelled or None,
        files=files,
    )
