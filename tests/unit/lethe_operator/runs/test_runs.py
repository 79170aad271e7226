"""Runs from Jobs, pods and the ConfigMap."""

import hashlib
import json
from typing import Any

import pytest
from lethe.contract.dataset import RunTemplate
from lethe.contract.result import Phase, Progress
from lethe.contract.run import ResultPointer, RunPointer
from lethe_operator.actions import Launch
from lethe_operator.reasons import Reason
from lethe_operator.resources.observed import Attempt, AttemptState, Engine, ObservedRun
from lethe_operator.runs.job import dispatch, run_object
from lethe_operator.runs.observe import Documents, of_job, runs_of
from lethe_operator.runs.pod import size
from lethe_operator.settings import Settings

from tests.support.builders import NOW, ago
from tests.support.resources import a_consolidation, a_result

SPEC = a_consolidation()
PREFIX = SPEC.run_id[:12]
UID = SPEC.dataset.uid


def no_pointer(_: RunPointer) -> bytes:
    raise AssertionError("no pointer here")


never = Documents(no_pointer)


def a_job(number: int = 1, **status: Any) -> dict[str, Any]:
    document = run_object(
        Launch(SPEC.model_copy(update={"attempt": number}), 0, 4, "a test", "uid-r"),
        size(0, RunTemplate()),
        RunTemplate(),
        Settings(),
    )
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
    (run,) = runs_of(map(of_job, jobs), pods, data or {}, never)
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


def test_only_a_reported_end_proves_that_an_attempt_writes_no_more() -> None:
    """Only the first pod is still there. The third attempt has reported its result, and another one is known from before."""
    first = a_job(1, **failed())["metadata"]["name"]
    jobs = [a_job(n, **failed()) for n in (1, 2, 3)]
    written = a_result(SPEC, "Failed", attempt=3, reason="TooBig", message="m").to_json()
    known = SPEC.model_copy(update={"ended_attempts": (0,)})

    (run,) = runs_of(
        map(of_job, jobs),
        [a_pod(first, **terminated(exitCode=137))],
        {f"{PREFIX}.run.json": known.to_json(), f"{PREFIX}.result.json": written},
        never,
    )

    assert run.ended_attempts == (0, 1, 3)


@pytest.mark.parametrize(("reason", "ended"), [("WarmDriverEnded", (1,)), (Reason.WARM_DRIVER_AWAY, ())])
def test_a_result_that_another_process_wrote_proves_no_end(reason: str, ended: tuple[int, ...]) -> None:
    """A warm driver finds a run that another one has begun, whose node may be cut off."""
    wanted = Launch(SPEC, 0, 1, "a test", engine=Engine.WARM_DRIVER)
    written = a_result(SPEC, "Failed", reason=reason, message="m").to_json()
    documents = {"dispatch.json": dispatch(wanted, NOW).model_dump_json(by_alias=True), "result.json": written}

    (run,) = runs_of([], [], {f"{PREFIX}.{name}": text for name, text in documents.items()}, never)

    assert ([a.state for a in run.attempts], run.ended_attempts) == ([AttemptState.FAILED], ended)


def test_the_termination_message_replaces_a_missing_result() -> None:
    name = a_job()["metadata"]["name"]
    said = a_result(SPEC, "Failed", reason="TooBig", message="m").compact()

    found = only([a_job(**failed())], [a_pod(name, **terminated(exitCode=10, message=said))])

    assert found.result.reason == "TooBig"  # type: ignore[union-attr]


@pytest.mark.parametrize("unreadable", ["{", "[" * 100_000])
def test_documents_of_another_attempt_or_unreadable_ones_are_passed_over(unreadable: str) -> None:
    progress = Progress(run_id=SPEC.run_id, attempt=1, phase=Phase.WRITING, updated_time=NOW)
    data = {f"{PREFIX}.progress.json": progress.to_json(), f"{PREFIX}.result.json": unreadable}

    assert Phase.WRITING is only([a_job(1)], [], data).progress.phase  # type: ignore[union-attr]
    assert (only([a_job(2)], [], data).progress, only([a_job(2)], [], data).result) == (None, None)


def test_attempts_are_in_order_and_keys_belong_to_their_run() -> None:
    data = {f"{PREFIX}.run.json": SPEC.to_json(), f"{PREFIX}.executor.yaml": "{}", "stranger": "x"}

    (run,) = runs_of(map(of_job, [a_job(3), a_job(1), a_job(2)]), [], data, never)

    assert [a.number for a in run.attempts] == [1, 2, 3]
    assert (SPEC, (f"{PREFIX}.executor.yaml", f"{PREFIX}.run.json")) == (run.intent, run.keys)


def test_an_intent_without_a_job_is_a_run() -> None:
    (run,) = runs_of([], [], {f"{PREFIX}.run.json": SPEC.to_json()}, never)

    assert ObservedRun(SPEC.run_id, SPEC.kind, SPEC, (), (f"{PREFIX}.run.json",)) == run


def a_pointer(text: str, **changes: Any) -> Any:
    kind = ResultPointer if changes else RunPointer
    digest = hashlib.sha256(text.encode()).hexdigest()
    return kind(catalog="main", uri="s3://lake/r.json", sha256=digest, **changes)


def test_an_intent_of_a_newer_operator_is_a_run() -> None:
    """After a rollback, the operator continues what the newer one started, and starts no second run for the same batches."""
    document = {**json.loads(SPEC.to_json()), "newer": {"a": 1}}
    document["consolidation"]["newer"] = True

    (run,) = runs_of([], [], {f"{PREFIX}.run.json": json.dumps(document)}, never)

    assert run.intent == SPEC


def test_a_pointer_is_followed_once() -> None:
    """Whatever lies there later: it names what it was made for."""
    asked: list[RunPointer] = []

    def read(pointer: RunPointer) -> bytes:
        asked.append(pointer)
        return SPEC.to_json().encode()

    documents, data = Documents(read), {f"{PREFIX}.run.json": a_pointer(SPEC.to_json()).to_json()}
    for _ in range(3):
        (run,) = runs_of(map(of_job, [a_job()]), [], data, documents)
        assert run.intent == SPEC

    assert asked == [a_pointer(SPEC.to_json())]


@pytest.mark.parametrize("content", [None, b"{}", b"["], ids=["gone", "another document", "no document"])
def test_what_a_pointer_does_not_lead_to_is_not_known_and_stops_nothing(content: bytes | None) -> None:
    data = {f"{PREFIX}.run.json": a_pointer(SPEC.to_json()).to_json()}

    (run,) = runs_of(map(of_job, [a_job()]), [], data, Documents(lambda _: content))

    assert (run.intent, len(run.attempts)) == (None, 1)


def test_a_storage_that_is_away_is_no_missing_document() -> None:
    def away(_: RunPointer) -> bytes:
        raise ConnectionError("S3")

    with pytest.raises(ConnectionError):
        runs_of([], [], {f"{PREFIX}.run.json": a_pointer(SPEC.to_json()).to_json()}, Documents(away))


def test_a_large_result_is_read_from_its_pointer_but_not_that_of_another_attempt() -> None:
    result = a_result(SPEC, attempt=2)
    pointer = a_pointer(result.to_json(), run_id=SPEC.run_id, attempt=2)
    data = {f"{PREFIX}.result.json": pointer.to_json()}
    documents = Documents(lambda _: result.to_json().encode())

    (second,) = runs_of(map(of_job, [a_job(2, **complete())]), [], data, documents)
    (third,) = runs_of(map(of_job, [a_job(3, **complete())]), [], data, never)

    assert second.attempts[0].result == result
    assert third.attempts[0].result is None


def test_jobs_of_others_are_not_ours() -> None:
    stranger = {"metadata": {"name": "x", "labels": {"lethe.dev/kind": "Dance", "lethe.dev/run-id": "1"}}}

    assert runs_of(map(of_job, [stranger, {"metadata": {"name": "y"}}]), [], {}, never) == ()


@pytest.mark.parametrize(
    ("pods", "said"),
    [
        ([], "Its pod does not exist yet"),
        (
            [
                {
                    "phase": "Pending",
                    "conditions": [
                        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
                    ],
                }
            ],
            "Its pod does not start: Unschedulable: 0/1 nodes",
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
            "Its pod does not start: ErrImagePull: no",
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
def test_the_reason_why_a_pod_does_not_start_is_shown(pods: list[dict[str, Any]], said: str) -> None:
    name = a_job()["metadata"]["name"]

    found = only([a_job()], [a_pod(name, **p) for p in pods])

    assert (said in found.waiting, bool(said)) == (True, bool(found.waiting))


def test_executors_that_do_not_start_are_shown_when_the_driver_runs() -> None:
    name = a_job()["metadata"]["name"]
    labels = {"spark-role": "executor", "lethe.dev/run-id": SPEC.run_id, "lethe.dev/attempt": "1"}
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    executor = a_pod("", labels, phase="Pending", conditions=[unschedulable])

    found = only([a_job()], [a_pod(name, phase="Running"), executor, executor])

    assert (found.waiting, found.executors_waiting) == (
        "",
        "2 executor pods do not start: Unschedulable: 0/1 nodes",
    )
