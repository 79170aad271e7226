"""The real Kubeflow operator and the real spark-submit take Lethe's SparkApplications, on a real API server. No pod runs: the
test says how the driver's pod ends."""

import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyspark
import pytest
import yaml
from kubernetes.utils.quantity import parse_quantity
from lethe.contract.dataset import RunTemplate
from lethe.contract.run import RunSpec
from lethe.contract.settings import Launcher
from lethe.kube import PODS, SPARK_APPLICATIONS, NotFound
from lethe_operator.actions import Launch
from lethe_operator.resources.observed import Attempt, AttemptState
from lethe_operator.runs.job import run_object
from lethe_operator.runs.observe import Documents, of_spark_application, runs_of
from lethe_operator.runs.pod import size
from lethe_operator.runs.retry import failure
from lethe_operator.settings import Settings
from lethe_spark.apps import entrypoint

from tests.support.resources import a_buffered, a_consolidation
from tests.support.servers.kubernetes import CACHE, ApiServerProcess, api_server, apply_definitions, tool
from tests.support.servers.postgres import free_port
from tests.support.servers.process import running

pytestmark = pytest.mark.long

SETTINGS = Settings(spark_image="lethe-spark:1")
NAMESPACE = "default"
SUBMITTED_SECONDS = 180
DRIVER = "spark-kubernetes-driver"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServerProcess]:
    """An API server with Kubeflow's operator, as its image starts it."""
    operator, folder = tool("spark-operator"), tmp_path_factory.mktemp("kubeflow")
    with api_server(folder) as found:
        charts = (CACHE / "bin/spark-operator-chart/crds").glob("*.yaml")
        apply_definitions(found, [d for c in charts for d in yaml.safe_load_all(c.read_text()) if d])
        health = free_port()
        command = [operator, "controller", "start", f"--namespaces={NAMESPACE}", "--controller-threads=2"]
        command += ["--leader-election=false", f"--health-probe-bind-address=127.0.0.1:{health}"]
        home = {"SPARK_HOME": str(Path(pyspark.__file__).parent)}
        (folder / "operator").mkdir()

        def ask() -> object:
            return urllib.request.urlopen(f"http://127.0.0.1:{health}/readyz", timeout=2).read()

        with running("spark-operator", command, folder / "operator", ask, {**found.environment, **home}):
            yield found


def a_run(batch: str) -> RunSpec:
    run = a_consolidation(a_buffered(batch))
    return run.model_copy(update={"dataset": run.dataset.model_copy(update={"namespace": NAMESPACE})})


def submitted(server: ApiServerProcess, run: RunSpec, queue: str | None = None, **executors: Any) -> dict[str, Any]:
    """Create the run's SparkApplication, and the Job that it stands for."""
    template = RunTemplate.model_validate(
        {
            "launcher": "SparkApplication",
            "queue": queue,
            "driver": {"cpu": "500m", "memory": "2Gi"},
            "executors": executors,
        }
    )
    chosen = size(0, template)
    server.kube.create(
        SPARK_APPLICATIONS, NAMESPACE, run_object(Launch(run, 0, 1, "a test"), chosen, template, SETTINGS)
    )
    return run_object(
        Launch(run, 0, 1, "a test"), chosen, template.model_copy(update={"launcher": Launcher.JOB}), SETTINGS
    )


def attempt(server: ApiServerProcess, name: str) -> Attempt:
    """The attempt as Lethe's operator sees it."""
    body = server.kube.get(SPARK_APPLICATIONS, NAMESPACE, name)
    uid = body["metadata"]["labels"]["lethe.dev/dataset-uid"]
    pods = server.kube.list(PODS, NAMESPACE, f"lethe.dev/dataset-uid={uid}")
    (found,) = runs_of([of_spark_application(body)], pods, {}, Documents(lambda _: b""))
    assert found.last is not None
    return found.last


def wait_for(holds: Callable[[], Any], what: Callable[[], object]) -> Any:
    until = time.monotonic() + SUBMITTED_SECONDS
    while True:
        found = holds()
        if found:
            return found
        assert time.monotonic() < until, what()
        time.sleep(0.2)


def the_driver(server: ApiServerProcess, name: str) -> dict[str, Any]:
    """Its pod, once spark-submit has created it."""

    def pod() -> dict[str, Any] | None:
        try:
            return server.kube.get(PODS, NAMESPACE, f"{name}-driver")
        except NotFound:
            return None

    found: dict[str, Any] = wait_for(pod, lambda: server.kube.get(SPARK_APPLICATIONS, NAMESPACE, name).get("status"))
    return found


def container_of(pod: Mapping[str, Any]) -> dict[str, Any]:
    (found,) = pod["spec"]["containers"]
    return dict(found)


@pytest.mark.parametrize("executors", [{}, {"min": 1, "max": 2}], ids=["alone", "with executors"])
def test_the_driver_s_pod_is_that_of_a_job(server: ApiServerProcess, executors: dict[str, Any]) -> None:
    """Whatever spark-submit adds: the program, its arguments, rights, limits and marks are the same."""
    run = a_run(f"pod-{len(executors)}")
    job = submitted(server, run, **executors)
    name, template = job["metadata"]["name"], job["spec"]["template"]

    pod = the_driver(server, name)

    its, own = container_of(template), container_of(pod)
    started, expected = (entrypoint.command(c["args"], {}, []) for c in (own, its))
    labels = [a for a in started if a.startswith("spark.kubernetes.executor.label.sparkoperator.k8s.io/")]
    assert [a for a in started if a not in labels and a != "--conf"] == [a for a in expected if a != "--conf"]
    assert len(labels) == (3 if executors else 0)
    assert (own["name"], own["image"], own["imagePullPolicy"]) == (DRIVER, its["image"], its["imagePullPolicy"])
    assert own["securityContext"] == its["securityContext"]
    assert own["terminationMessagePolicy"] == "File"
    for field in ("serviceAccountName", "securityContext", "restartPolicy", "terminationGracePeriodSeconds"):
        assert pod["spec"][field] == template["spec"][field]
    assert pod["spec"]["activeDeadlineSeconds"] == job["spec"]["activeDeadlineSeconds"]
    assert template["metadata"]["labels"].items() <= pod["metadata"]["labels"].items()
    assert template["metadata"]["annotations"].items() <= pod["metadata"]["annotations"].items()
    for kind in ("requests", "limits"):
        ours, theirs = its["resources"][kind], own["resources"][kind]
        assert {k: parse_quantity(v) for k, v in ours.items()} == {k: parse_quantity(v) for k, v in theirs.items()}
    mounts = {m["mountPath"] for m in own["volumeMounts"]}
    assert {m["mountPath"] for m in its["volumeMounts"]} <= mounts
    environment = {e["name"]: e.get("value") for e in own["env"]}
    assert {e["name"] for e in its["env"]} <= set(environment)
    assert environment["SPARK_LOCAL_DIRS"] == "/scratch"
    (owner,) = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("SparkApplication", name, True)


def test_a_driver_that_cannot_be_created_fails_the_attempt_with_the_reason(server: ApiServerProcess) -> None:
    """Here the name of its pod is taken."""
    run = a_run("refused")
    job = run_object(Launch(run, 0, 1, "a test"), size(0, RunTemplate()), RunTemplate(), SETTINGS)
    name = job["metadata"]["name"]
    taken = {"containers": [{"name": "other", "image": "i"}]}
    server.kube.create(PODS, NAMESPACE, {"metadata": {"name": f"{name}-driver"}, "spec": taken})
    submitted(server, run)

    found = wait_for(
        lambda: (a := attempt(server, name)).state is AttemptState.FAILED and a,
        lambda: server.kube.get(SPARK_APPLICATIONS, NAMESPACE, name).get("status"),
    )

    why = failure(found)
    assert why.reason == "SubmissionFailed"
    assert "already exist" in why.message


def test_a_suspended_spark_application_is_not_submitted_until_it_is_resumed(server: ApiServerProcess) -> None:
    """Kueue resumes it when it admits it."""
    name = submitted(server, a_run("queued"), queue="team-a")["metadata"]["name"]
    wait_for(
        lambda: (
            server.kube.get(SPARK_APPLICATIONS, NAMESPACE, name)
            .get("status", {})
            .get("applicationState", {})
            .get("state")
            == "SUSPENDED"
        ),
        lambda: server.kube.get(SPARK_APPLICATIONS, NAMESPACE, name).get("status"),
    )
    waiting = attempt(server, name)
    assert (waiting.state, bool(waiting.suspended), waiting.waiting) == (AttemptState.ACTIVE, True, "")
    with pytest.raises(NotFound):
        server.kube.get(PODS, NAMESPACE, f"{name}-driver")

    server.kube.patch(SPARK_APPLICATIONS, NAMESPACE, name, {"spec": {"suspend": False}})

    assert the_driver(server, name)["metadata"]["labels"]["lethe.dev/run-id"] == waiting.run_id
    assert attempt(server, name).suspended == ""
