"""The SparkApplication of a run, for the Kubeflow Spark operator. Pure.

Only the object that launches the driver differs from a Job. The driver has the same image, arguments, mounts and rights, and
starts its executors itself, in the same way. Kubeflow's operator never repeats the run, because Lethe does.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lethe.contract.run import RunSpec

from lethe_operator.build import pod, spark_conf
from lethe_operator.build.job import AttemptRecord, metadata_of
from lethe_operator.build.sizing import Size
from lethe_operator.resources.common import SPARK_CONTAINER
from lethe_operator.resources.dataset import MIB, RunTemplate
from lethe_operator.resources.restatement import SecretFile
from lethe_operator.settings import Settings

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


def spark_application(
    run: RunSpec,
    size: Size,
    template: RunTemplate,
    record: AttemptRecord,
    settings: Settings,
    secrets: Sequence[SecretFile] = (),
) -> dict[str, Any]:
    """The SparkApplication of one attempt of a run; the arguments are those of `build.job.job`."""
    assignment = pod.one_run(run, size, settings, secrets)
    confs = {**assignment.confs, **(_tracked(run.attempt_name) if size.executors else {})}
    most = spark_conf.cpu_limit(size.driver, settings.run_limits)
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
        "metadata": metadata_of(run, record, template.queue or ""),
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
            "arguments": spark_conf.arguments(confs, assignment.options)[1:],
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
    found = {key: value for key, value in container.items() if key not in ("args", "image", "imagePullPolicy")}
    found["name"] = SPARK_CONTAINER
    found["env"] = [
        *(e for e in container["env"] if e["name"] != "SPARK_LOCAL_DIRS"),
        {"name": SUBMISSION_ENV, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{LABEL_SUBMISSION}']"}}},
    ]
    found["volumeMounts"] = [_renamed(m) for m in container["volumeMounts"]]
    # Spark adds CPU and memory from the fields of the driver.
    resources = container["resources"]
    found["resources"] = {
        kind: {k: v for k, v in resources[kind].items() if k not in ("cpu", "memory")} for kind in resources
    }
    spec["containers"] = [found]
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
    most = spark_conf.cpu_limit(executor, settings.run_limits)
    return {
        "instances": size.executors,
        "cores": executor.cores,
        "coreRequest": f"{round(executor.cpu * 1000)}m",
        **({"coreLimit": most} if most else {}),
        "memory": f"{executor.heap // MIB}m",
        "memoryOverhead": f"{executor.memory // MIB - executor.heap // MIB}m",
    }
