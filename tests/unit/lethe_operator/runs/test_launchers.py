"""A run as a Job or as a SparkApplication, with and without a queue: what differs, and that nothing else does."""

from collections.abc import Mapping
from typing import Any

import pytest
from lethe.contract.dataset import RunTemplate
from lethe.contract.kubernetes import GIB
from lethe.contract.settings import Launcher
from lethe_operator.actions import Launch
from lethe_operator.resources.boundaries import Boundary
from lethe_operator.resources.restatement import SecretFile
from lethe_operator.runs.job import SPARK_VERSION, SUBMISSION_ENV, run_object
from lethe_operator.runs.pod import Size, executor, merged, size, within
from lethe_operator.settings import Settings
from lethe_spark.apps import entrypoint

from tests.support.resources import a_buffered, a_consolidation

RUN = a_consolidation(a_buffered("A"))
SETTINGS = Settings(spark_image="lethe-spark:1")
POD_TEMPLATE = {
    "metadata": {"labels": {"team": "air"}},
    "spec": {
        "nodeSelector": {"pool": "batch"},
        "containers": [{"name": "spark", "env": [{"name": "APP_X", "value": "1"}]}],
    },
}


def a_template(launcher: Launcher | None = None, queue: str | None = None, **executors: Any) -> RunTemplate:
    return RunTemplate.model_validate(
        {"launcher": launcher, "queue": queue, "podTemplate": POD_TEMPLATE, "executors": executors}
    )


def made(launcher: Launcher, chosen: Size | None = None, queue: str | None = None, **executors: Any) -> dict[str, Any]:
    template = a_template(launcher, queue, **executors)
    return run_object(
        Launch(RUN, 0, 3, "a test", "uid-r", secrets=(SecretFile("erase-1", "ids", "uid-r"),)),
        chosen or size(0, template),
        template,
        SETTINGS,
    )


def driver_of(document: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod's spec and its container."""
    spec = document["spec"]
    pod = (spec["template"] if document["kind"] == "Job" else spec["driver"]["template"])["spec"]
    (container,) = pod["containers"]
    return pod, container


def arguments_of(document: Mapping[str, Any]) -> list[str]:
    """What the application gets, however its pod is made."""
    if document["kind"] == "Job":
        given = driver_of(document)[1]["args"]
    else:  # as spark-submit writes it into the driver's pod
        spec = document["spec"]
        python = "org.apache.spark.deploy.PythonRunner"
        given = ["driver", "--properties-file", "/opt/spark/conf/spark.properties", "--class", python]
        given += [spec["mainApplicationFile"], *spec["arguments"]]
    return entrypoint.command(given, {}, [])


@pytest.mark.parametrize("executors", [{}, {"min": 2}], ids=["alone", "with executors"])
def test_both_kinds_start_the_same_application_with_the_same_arguments(executors: dict[str, Any]) -> None:
    job, application = (arguments_of(made(kind, **executors)) for kind in Launcher)
    labels = [a for a in application if a.startswith("spark.kubernetes.executor.label.sparkoperator")]
    added = {*labels, "--conf"} if labels else set()

    assert job[:3] == application[:3] == ["/opt/lethe/bin/python", "-m", "lethe_spark.apps.app"]
    assert set(application) - added == set(job) - added
    assert bool(labels) is bool(executors)


@pytest.mark.parametrize("executors", [{}, {"min": 2}], ids=["alone", "with executors"])
def test_both_kinds_have_the_same_names_marks_and_rights(executors: dict[str, Any]) -> None:
    job, application = (made(kind, **executors) for kind in Launcher)
    (pod, container), (other, its) = driver_of(job), driver_of(application)

    assert job["metadata"] == application["metadata"]
    assert job["spec"]["template"]["metadata"] == application["spec"]["driver"]["template"]["metadata"]
    assert application["spec"]["driver"]["serviceAccount"] == pod["serviceAccountName"] == other["serviceAccountName"]
    for field in ("securityContext", "nodeSelector", "restartPolicy", "terminationGracePeriodSeconds"):
        assert pod[field] == other[field]
    for field in ("securityContext", "terminationMessagePolicy"):
        assert container[field] == its[field]
    mounts = {m["mountPath"]: m["name"] for m in container["volumeMounts"]}
    assert {**mounts, "/scratch": "spark-local-dir-1"} == {m["mountPath"]: m["name"] for m in its["volumeMounts"]}
    assert {v["name"] for v in other["volumes"]} == set({**mounts, "/scratch": "spark-local-dir-1"}.values())
    environment = {e["name"]: e for e in container["env"] if e["name"] != "SPARK_LOCAL_DIRS"}
    assert environment == {e["name"]: e for e in its["env"] if e["name"] != SUBMISSION_ENV}


def test_a_spark_application_is_one_attempt_that_kubeflow_never_repeats() -> None:
    application = made(Launcher.SPARK_APPLICATION)
    spec, (pod, container) = application["spec"], driver_of(application)

    assert (application["apiVersion"], application["kind"]) == ("sparkoperator.k8s.io/v1beta2", "SparkApplication")
    assert (spec["type"], spec["mode"], spec["sparkVersion"]) == ("Python", "cluster", SPARK_VERSION)
    assert spec["restartPolicy"] == {"type": "Never"}
    assert "timeToLiveSeconds" not in spec
    assert pod["activeDeadlineSeconds"] == SETTINGS.max_run_seconds
    assert container["name"] == "spark-kubernetes-driver"
    assert "args" not in container
    assert "image" not in container


def test_the_driver_of_a_spark_application_is_as_large_as_that_of_a_job() -> None:
    chosen = size(0, RunTemplate.model_validate({"driver": {"cpu": "500m", "memory": "2Gi"}}))
    driver = made(Launcher.SPARK_APPLICATION, chosen)["spec"]["driver"]

    heap, overhead = (int(driver[f].removesuffix("m")) for f in ("memory", "memoryOverhead"))
    assert (heap + overhead) * 1024 * 1024 == 2 * GIB
    assert (driver["coreRequest"], driver["coreLimit"]) == ("500m", "2000m")
    resources = driver["template"]["spec"]["containers"][0]["resources"]
    assert {kind: set(found) for kind, found in resources.items()} == {
        "requests": {"ephemeral-storage"},
        "limits": {"ephemeral-storage"},
    }


def test_kueue_and_kubeflow_see_the_largest_number_of_executors() -> None:
    executor = made(Launcher.SPARK_APPLICATION, min=2, cpu="500m", memory="2Gi")["spec"]["executor"]

    assert executor == {
        "instances": 2,
        "cores": 1,
        "coreRequest": "500m",
        "coreLimit": "2000m",
        "memory": "1462m",
        "memoryOverhead": "586m",
    }
    assert made(Launcher.SPARK_APPLICATION)["spec"]["executor"] == {}
    assert "dynamicAllocation" not in made(Launcher.SPARK_APPLICATION, min=2)["spec"]


@pytest.mark.parametrize("kind", list(Launcher))
def test_a_run_with_a_queue_is_created_suspended_with_kueue_s_label(kind: Launcher) -> None:
    queued, plain = made(kind, queue="team-a"), made(kind)

    assert queued["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert queued["spec"]["suspend"] is True
    assert "suspend" not in plain["spec"]
    assert "kueue.x-k8s.io/queue-name" not in plain["metadata"]["labels"]
    assert RUN.attempt_name == queued["metadata"]["name"] == plain["metadata"]["name"]


@pytest.mark.parametrize(("kind", "executors"), [(None, 0), (Launcher.JOB, 0), (Launcher.SPARK_APPLICATION, 8)])
def test_a_run_never_exceeds_what_kueue_has_admitted(kind: Launcher | None, executors: int) -> None:
    """Of a Job, Kueue counts the driver only, unless it looks at plain pods."""
    assert size(10**13, a_template(kind, "team-a")).executors == executors
    assert size(10**13, a_template(kind, "team-a", min=2)).executors == executors
    assert size(10**13, a_template(kind, "team-a"), queued_pods=True).executors == 8
    assert size(10**13, a_template(kind)).executors == 8


@pytest.mark.parametrize("kind", [None, *Launcher])
def test_executors_of_a_queued_job_are_workloads_of_their_own(kind: Launcher | None) -> None:
    """Those of a SparkApplication are admitted together with it."""
    metadata = executor(RUN, size(GIB, a_template(kind)), a_template(kind, "team-a"), SETTINGS)["metadata"]
    plain = executor(RUN, size(GIB, a_template(kind)), a_template(kind), SETTINGS)["metadata"]
    label, annotation = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/pod-suspending-parent"

    by_itself = kind is not Launcher.SPARK_APPLICATION
    assert metadata["labels"].get(label) == ("team-a" if by_itself else None)
    assert metadata["labels"].get("kueue.x-k8s.io/managed") == ("true" if by_itself else None)
    assert metadata["annotations"].get(annotation) == ("pod" if by_itself else None)
    assert label not in plain["labels"]
    assert annotation not in plain["annotations"]


def test_a_dataset_chooses_its_launcher_and_the_boundary_its_queue() -> None:
    chart = a_template(Launcher.SPARK_APPLICATION, "shared")

    unset = merged(chart, a_template())
    own = merged(chart, a_template(Launcher.JOB, "mine"))

    assert (unset.launcher, unset.queue) == (Launcher.SPARK_APPLICATION, "shared")
    assert (own.launcher, own.queue) == (Launcher.JOB, "mine")
    assert within(own, Boundary()).queue == "mine"
    assert within(own, Boundary(queue="team-a")).queue == "team-a"
