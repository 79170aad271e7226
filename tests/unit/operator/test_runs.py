"""Runs from Jobs, pods and the ConfigMap."""

import hashlib
from typing import Any

import pytest
from lethe.run import Phase, Progress, RunPointer
from lethe_operator.build.job import job
from lethe_operator.build.sizing import size
from lethe_operator.observe.runs import runs_of
from lethe_operator.resources.dataset import RunTemplate
from lethe_operator.resources.observed import Attempt, AttemptState, Run
from lethe_operator.settings import Settings

from tests.builders import NOW, ago
from tests.unit.operator.builders import a_consolidation, a_result

SPEC = a_consolidation()
PREFIX = SPEC.run_id[:12]
UID = SPEC.dataset.uid


def never(_: RunPointer) -> bytes:
    raise AssertionError("no pointer here")


def a_job(number: int = 1, **status: Any) -> dict[str, Any]:
    document = job(SPEC.model_copy(update={"attempt": number}), size(0, RunTemplate()), {}, 4, "uid-r", Settings())
    document["metadata"]["creationTimestamp"] = ago(minutes=5).isoformat()
    document["status"] = status
    return document


def complete() -> dict[str, Any]:
    return {"conditions": [{"type": "Complete", "status": "True"}], "completionTime": "2026-03-01T11:59:00Z"}


def failed(reason: str = "BackoffLimitExceeded") -> dict[str, Any]:
    at = "2026-03-01T11:58:00Z"
    return {"conditions": [{"type": "Failed", "status": "True", "reason": reason, "lastTransitionTime": at}]}


def a_pod(name: str, labels: dict[str, str] | None = None, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "labels": {"batch.kubernetes.io/job-name": name, **(labels or {})}},
        "status": status,
    }


def terminated(**state: Any) -> dict[str, Any]:
    return {"phase": "Failed", "containerStatuses": [{"name": "spark", "state": {"terminated": state}}]}


def only(jobs: list[Any], pods: list[Any], data: dict[str, str] | None = None) -> Attempt:
    (run,) = runs_of(UID, jobs, pods, data or {}, never)
    assert run.last is not None
    return run.last


def test_a_job_tells_whose_it_is_and_which_try() -> None:
    found = only([a_job(2)], [])

    assert (SPEC.run_id, 2, 4, "uid-r", AttemptState.ACTIVE) == (
        found.run_id,
        found.number,
        found.generation,
        found.for_uid,
        found.state,
    )


@pytest.mark.parametrize(
    ("status", "state", "reason"),
    [
        ({}, AttemptState.ACTIVE, ""),
        ({"conditions": [{"type": "FailureTarget", "status": "True"}]}, AttemptState.ACTIVE, ""),
        (complete(), AttemptState.SUCCEEDED, ""),
        (failed("DeadlineExceeded"), AttemptState.FAILED, "DeadlineExceeded"),
    ],
)
def test_a_job_has_ended_only_when_its_pods_are_gone(status: dict[str, Any], state: AttemptState, reason: str) -> None:
    """FailureTarget comes first, while the driver may still be running."""
    found = only([a_job(**status)], [])

    assert (state, reason) == (found.state, found.job_reason)
    assert (state is not AttemptState.ACTIVE) is (found.finished is not None)


def test_how_the_driver_ended_is_its_container_s_to_say() -> None:
    name = a_job()["metadata"]["name"]

    found = only([a_job(**failed())], [a_pod(name, **terminated(exitCode=20, reason="OOMKilled"))])

    assert (found.exit_code, found.oom) == (20, True)


def test_a_pod_that_is_gone_leaves_no_exit_code() -> None:
    assert None is only([a_job(**failed())], []).exit_code


def test_the_termination_message_stands_in_for_a_missing_result() -> None:
    name = a_job()["metadata"]["name"]
    said = a_result(SPEC, "Failed", reason="TooBig", message="m").compact()

    found = only([a_job(**failed())], [a_pod(name, **terminated(exitCode=10, message=said))])

    assert found.result.reason == "TooBig"  # type: ignore[union-attr]


def test_documents_of_another_attempt_or_unreadable_ones_are_passed_over() -> None:
    progress = Progress(run_id=SPEC.run_id, attempt=1, phase=Phase.WRITING, updated_time=NOW)
    data = {f"{PREFIX}.progress.json": progress.to_json(), f"{PREFIX}.result.json": "{"}

    assert Phase.WRITING is only([a_job(1)], [], data).progress.phase  # type: ignore[union-attr]
    assert (only([a_job(2)], [], data).progress, only([a_job(2)], [], data).result) == (None, None)


def test_attempts_are_in_order_and_keys_belong_to_their_run() -> None:
    data = {f"{PREFIX}.run.json": SPEC.to_json(), f"{PREFIX}.executor.yaml": "{}", "stranger": "x"}

    (run,) = runs_of(UID, [a_job(3), a_job(1), a_job(2)], [], data, never)

    assert [a.number for a in run.attempts] == [1, 2, 3]
    assert (SPEC, (f"{PREFIX}.executor.yaml", f"{PREFIX}.run.json")) == (run.intent, run.keys)


def test_an_intent_without_a_job_is_a_run() -> None:
    (run,) = runs_of(UID, [], [], {f"{PREFIX}.run.json": SPEC.to_json()}, never)

    assert Run(SPEC.run_id, SPEC.kind, SPEC, (), (f"{PREFIX}.run.json",)) == run


@pytest.mark.parametrize("honest", [True, False])
def test_a_pointer_is_followed_and_its_content_compared(honest: bool) -> None:
    content = SPEC.to_json().encode()
    pointer = RunPointer(catalog="main", uri="s3://lake/r.json", sha256=hashlib.sha256(content).hexdigest())
    data = {f"{PREFIX}.run.json": pointer.to_json()}

    (run,) = runs_of(UID, [a_job()], [], data, lambda _: content if honest else b"{}")

    assert (SPEC if honest else None) == run.intent


def test_jobs_of_others_are_not_ours() -> None:
    stranger = {"metadata": {"name": "x", "labels": {"lethe.dev/kind": "Dance", "lethe.dev/run-id": "1"}}}

    assert runs_of(UID, [stranger, {"metadata": {"name": "y"}}], [], {}, never) == ()


@pytest.mark.parametrize(
    ("pods", "said"),
    [
        ([], "Its pod is not there yet"),
        (
            [
                {
                    "phase": "Pending",
                    "conditions": [
                        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
                    ],
                }
            ],
            "Its pod waits: Unschedulable: 0/1 nodes",
        ),
        (
            [
                {
                    "phase": "Pending",
                    "containerStatuses": [
                        {"name": "spark", "state": {"waiting": {"reason": "ErrImagePull", "message": "no"}}}
                    ],
                }
            ],
            "Its pod waits: ErrImagePull: no",
        ),
        (
            [
                {
                    "phase": "Pending",
                    "containerStatuses": [{"name": "spark", "state": {"waiting": {"reason": "ContainerCreating"}}}],
                }
            ],
            "",
        ),
        ([{"phase": "Running"}], ""),
    ],
    ids=["no pod", "unschedulable", "image", "just starting", "running"],
)
def test_why_a_pod_waits_is_told(pods: list[dict[str, Any]], said: str) -> None:
    name = a_job()["metadata"]["name"]

    found = only([a_job()], [a_pod(name, **p) for p in pods])

    assert (said in found.waiting, bool(said)) == (True, bool(found.waiting))


def test_executors_that_wait_are_told_when_the_driver_runs() -> None:
    name = a_job()["metadata"]["name"]
    labels = {"spark-role": "executor", "lethe.dev/run-id": SPEC.run_id, "lethe.dev/attempt": "1"}
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    executor = a_pod("", labels, phase="Pending", conditions=[unschedulable])

    found = only([a_job()], [a_pod(name, phase="Running"), executor, executor])

    assert found.waiting == "2 executor pods wait: Unschedulable: 0/1 nodes"
