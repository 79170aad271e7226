"""What Jobs and SparkApplications say, in one form."""

from typing import Any

import pytest
from lethe.base.errors import Verdict
from lethe.contract.dataset import RunTemplate
from lethe.contract.settings import Launcher
from lethe_operator.actions import Launch
from lethe_operator.cluster.client import KIND_OF
from lethe_operator.resources.observed import Attempt, AttemptState
from lethe_operator.runs.job import run_object
from lethe_operator.runs.observe import Documents, of_job, of_spark_application, runs_of
from lethe_operator.runs.pod import size
from lethe_operator.runs.retry import FailureCause, cause, entry, failure
from lethe_operator.settings import Settings

from tests.support.builders import NOW, ago
from tests.support.resources import a_consolidation, a_result
from tests.support.statuses import document

SPEC = a_consolidation()
never = Documents(lambda _: b"")
ENDED = "2026-03-01T11:59:00Z"


def a_body(kind: Launcher, queue: str | None = None, **status: Any) -> dict[str, Any]:
    template = RunTemplate(launcher=kind, queue=queue)
    body = run_object(Launch(SPEC, 0, 4, "a test", "uid-r"), size(0, template), template, Settings())
    body["metadata"]["creationTimestamp"] = ago(minutes=5).isoformat()
    return {**body, "status": status}


READERS = {Launcher.JOB: of_job, Launcher.SPARK_APPLICATION: of_spark_application}


def a_driver(name: str, **status: Any) -> dict[str, Any]:
    labels = {"sparkoperator.k8s.io/app-name": name, "spark-role": "driver"}
    return {"metadata": {"name": f"{name}-driver", "labels": labels}, "status": status}


def attempt_of(kind: Launcher, body: dict[str, Any], *pods: dict[str, Any]) -> Attempt:
    (run,) = runs_of([READERS[kind](body)], pods, {}, never)
    assert run.last is not None
    return run.last


def application(state: str, **status: Any) -> dict[str, Any]:
    return a_body(Launcher.SPARK_APPLICATION, applicationState={"state": state}, executionAttempts=1, **status)


def test_every_kind_can_be_read_and_written() -> None:
    assert {kind.value for kind in Launcher} == {KIND_OF[kind].name for kind in Launcher}
    for kind in Launcher:
        assert READERS[kind](a_body(kind)).launcher is kind


@pytest.mark.parametrize("kind", list(Launcher))
def test_an_attempt_is_the_same_whatever_launched_it(kind: Launcher) -> None:
    found = attempt_of(kind, a_body(kind))

    assert (found.run_id, found.number, found.generation, found.for_uid) == (SPEC.run_id, 1, 4, "uid-r")
    assert (found.state, found.launcher) == (AttemptState.ACTIVE, kind)


def test_what_is_missing_is_reported_until_a_driver_exists() -> None:
    """Kubeflow's operator writes no event while it is away, so the message names it."""
    of_job = attempt_of(Launcher.JOB, a_body(Launcher.JOB))
    new = attempt_of(Launcher.SPARK_APPLICATION, a_body(Launcher.SPARK_APPLICATION))
    submitted = attempt_of(Launcher.SPARK_APPLICATION, application("SUBMITTED", lastSubmissionAttemptTime=ENDED))

    assert of_job.waiting == "Its pod does not exist yet. If this persists, see the events of the Job."
    assert new.waiting.startswith("Kubeflow's operator has not submitted it yet.")
    assert submitted.waiting == "Its pod does not exist yet. If this persists, see the events of the SparkApplication."


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("", AttemptState.ACTIVE),
        ("SUBMITTED", AttemptState.ACTIVE),
        ("RUNNING", AttemptState.ACTIVE),
        ("SUCCEEDING", AttemptState.ACTIVE),
        ("FAILING", AttemptState.ACTIVE),
        ("SUBMISSION_FAILED", AttemptState.ACTIVE),
        ("SUSPENDED", AttemptState.ACTIVE),
        ("UNKNOWN", AttemptState.ACTIVE),
        ("COMPLETED", AttemptState.SUCCEEDED),
        ("FAILED", AttemptState.FAILED),
    ],
)
def test_a_spark_application_has_ended_only_in_its_last_states(state: str, expected: AttemptState) -> None:
    found = attempt_of(Launcher.SPARK_APPLICATION, application(state, terminationTime=ENDED))

    assert found.state is expected
    assert (found.finished is not None) is (expected is not AttemptState.ACTIVE)


def test_the_driver_of_a_spark_application_says_how_it_ended() -> None:
    body = application("FAILED", terminationTime=ENDED)
    message = a_result(SPEC, "Failed", reason="TooBig", message="m").compact()
    state = {"terminated": {"exitCode": 20, "reason": "OOMKilled", "message": message}}
    containers = [{"name": "spark-kubernetes-driver", "state": state}]

    found = attempt_of(
        Launcher.SPARK_APPLICATION,
        body,
        a_driver(body["metadata"]["name"], phase="Failed", containerStatuses=containers),
    )

    assert (found.exit_code, found.oom) == (20, True)
    assert found.result is not None
    assert found.result.reason == "TooBig"


def test_a_driver_that_exceeds_the_time_limit_is_stopped_by_its_pod() -> None:
    body = application("FAILED", terminationTime=ENDED)

    found = attempt_of(
        Launcher.SPARK_APPLICATION,
        body,
        a_driver(body["metadata"]["name"], phase="Failed", reason="DeadlineExceeded"),
    )

    assert found.job_reason == "DeadlineExceeded"


def test_a_submission_that_failed_says_why_and_is_repeated() -> None:
    error = (
        "failed to submit spark application: failed to run spark-submit: 26/03/01 WARN Utils: x\n"
        'Exception in thread "main" io.fabric8.kubernetes.client.KubernetesClientException: Failure executing: POST. '
        'Message: pods "flights-driver" is forbidden: exceeded quota: small.\n'
        "\tat io.fabric8.kubernetes.client.KubernetesClientException.copyAsCause(KubernetesClientException.java:205)"
    )
    state = {"state": "FAILED", "errorMessage": error}
    body = a_body(Launcher.SPARK_APPLICATION, applicationState=state, terminationTime=ENDED, submissionAttempts=1)

    found = attempt_of(Launcher.SPARK_APPLICATION, body)

    assert failure(found) == Verdict(
        "SubmissionFailed",
        f"Kubeflow's operator could not submit {found.job}: "
        'pods "flights-driver" is forbidden: exceeded quota: small.',
    )
    assert cause(found) is FailureCause.INFRASTRUCTURE


@pytest.mark.parametrize("kind", list(Launcher))
def test_a_suspended_run_waits_and_neither_runs_nor_fails(kind: Launcher) -> None:
    queued = attempt_of(kind, a_body(kind, "team-a"))
    by_hand = a_body(kind)
    by_hand["spec"]["suspend"] = True

    assert queued.suspended == ("It waits until Kueue admits it to the queue team-a. Its Workload shows why it waits.")
    assert attempt_of(kind, by_hand).suspended == "It is suspended (spec.suspend), so it starts no pod."
    shown = document(entry(queued, False, NOW))
    assert (queued.state, queued.waiting) == (AttemptState.ACTIVE, "")
    assert (shown["phase"], shown["reason"], shown["message"]) == ("Pending", "RunSuspended", queued.suspended)


def test_the_time_in_which_a_run_is_suspended_does_not_count() -> None:
    """Its pod may take as long as any other to start, however long the run had waited before."""
    resumed = a_body(Launcher.JOB, startTime=ago(seconds=5).isoformat())
    late = a_body(Launcher.JOB, startTime=ago(seconds=45).isoformat())

    assert "reason" not in document(entry(attempt_of(Launcher.JOB, resumed), False, NOW))
    assert entry(attempt_of(Launcher.JOB, late), False, NOW).reason == "PodWaiting"
