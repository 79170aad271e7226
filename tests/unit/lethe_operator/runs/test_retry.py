"""What the attempts of a run say."""

from typing import Any

import pytest
from lethe_operator.resources.observed import Attempt, AttemptState, Failures
from lethe_operator.runs.retry import Exhausted, NotStarted, RetryAt, Running, Succeeded, back_off_seconds, retry_state

from tests.support.builders import ago
from tests.support.resources import SETTINGS, a_consolidation, a_result, a_run, an_attempt

SPEC = a_consolidation()


def failed(number: int = 1, **changes: Any) -> Attempt:
    return an_attempt(SPEC, AttemptState.FAILED, number=number, **{"exit_code": 20, **changes})


@pytest.mark.parametrize(("failures", "seconds"), [(0, 10), (1, 10), (2, 20), (3, 40), (6, 320), (7, 360), (5000, 360)])
def test_pauses_double_up_to_six_minutes(failures: int, seconds: float) -> None:
    assert seconds == back_off_seconds(failures, SETTINGS.retry)


def test_an_intent_without_a_job_is_fresh() -> None:
    assert NotStarted(1) == retry_state(a_run(SPEC), 1, SETTINGS)


def test_a_job_that_is_active_goes_on_whatever_failed_before() -> None:
    active = an_attempt(SPEC, number=2)

    verdict = retry_state(a_run(SPEC, failed(1), active), 1, SETTINGS)

    assert isinstance(verdict, Running)
    assert (active, Failures(run=1), "RunFailed") == (verdict.attempt, verdict.failures, verdict.failure.reason)


def test_a_transient_failure_is_tried_again_after_a_pause() -> None:
    verdict = retry_state(a_run(SPEC, failed(1), failed(2, finished_seconds=5)), 1, SETTINGS)

    assert isinstance(verdict, RetryAt)
    assert (3, Failures(run=2), ago(seconds=-15)) == (verdict.number, verdict.failures, verdict.at)


def test_exit_code_10_ends_it_until_the_dataset_changes() -> None:
    said = a_result(SPEC, "Failed", reason="BatchColumnType", message="it is int")
    run = a_run(SPEC, failed(exit_code=10, result=said))

    verdict = retry_state(run, 1, SETTINGS)

    assert isinstance(verdict, Exhausted)
    assert (verdict.failure.reason, verdict.failure.message, verdict.permanent) == (
        "BatchColumnType",
        "it is int",
        True,
    )
    assert isinstance(retry_state(run, 2, SETTINGS), RetryAt)


@pytest.mark.parametrize(("kills", "given_up"), [(1, False), (2, False), (3, True)])
def test_out_of_memory_is_tried_twice_more(kills: int, given_up: bool) -> None:
    run = a_run(SPEC, *(failed(n + 1, exit_code=137, oom=True) for n in range(kills)))

    verdict = retry_state(run, 1, SETTINGS)

    assert given_up is isinstance(verdict, Exhausted)
    assert verdict.failure.reason == "OOMKilled"  # type: ignore[union-attr]


def test_more_memory_is_tried_at_once() -> None:
    run = a_run(SPEC, *(failed(n, exit_code=137, oom=True) for n in (1, 2, 3)))

    verdict = retry_state(run, 2, SETTINGS)

    assert isinstance(verdict, RetryAt)
    assert (4, ago(seconds=30)) == (verdict.number, verdict.at)


def test_an_attempt_for_another_restatement_of_the_name_does_not_count_but_its_number_is_taken() -> None:
    run = a_run(SPEC, failed(1, exit_code=10, for_uid="old"))

    assert NotStarted(2) == retry_state(run, 1, SETTINGS, for_uid="new")


def test_exit_code_0_ends_it() -> None:
    done = an_attempt(SPEC, AttemptState.SUCCEEDED)

    assert Succeeded(done) == retry_state(a_run(SPEC, failed(1), done), 1, SETTINGS)
