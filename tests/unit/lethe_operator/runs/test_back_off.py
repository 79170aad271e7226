"""Failures of a run itself and of what lies outside of it are counted, and paused after, each by itself."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from lethe.contract.result import Phase, Progress
from lethe_operator.actions import Launch
from lethe_operator.resources.observed import Attempt, AttemptState, Failures, ObservedRun
from lethe_operator.resources.restatement import Restatement
from lethe_operator.runs import job as build
from lethe_operator.runs.observe import Documents, attempt_of, of_job
from lethe_operator.runs.pod import size
from lethe_operator.runs.retry import FailureCause, cause, counted, failure, less_might_help, pause_seconds

from tests.support.builders import NOW, a_ledger, a_request_entry, ago
from tests.support.resources import (
    SETTINGS,
    a_group,
    a_restatement,
    a_result,
    a_run,
    a_table,
    an_attempt,
    condition,
    message,
)
from tests.unit.lethe_operator.queueing import R, decided, members, seen

SPEC = a_group(R[0])
BEGUN = Progress(run_id="x", phase=Phase.PLANNING, updated_time=NOW)
RUN: dict[str, Any] = {"exit_code": 134}
AWAY: dict[str, Any] = {"exit_code": None}


def said(reason: str, **changes: Any) -> Any:
    return a_result(SPEC, "Failed", reason=reason, message=reason, **changes)


def failed(number: int = 1, **changes: Any) -> Attempt:
    return an_attempt(SPEC, AttemptState.FAILED, number=number, for_uid="uid-r0", **{**RUN, **changes})


@pytest.mark.parametrize(
    ("changes", "found", "reason"),
    [
        (RUN, FailureCause.RUN, "RunFailed"),
        ({"exit_code": 20}, FailureCause.RUN, "RunFailed"),
        ({"exit_code": 20, "result": said("UnexpectedError")}, FailureCause.RUN, "UnexpectedError"),
        ({"exit_code": 20, "result": said("SparkFailed")}, FailureCause.RUN, "SparkFailed"),
        (
            {"exit_code": 10, "result": said("BatchColumnMissing", permanent=True)},
            FailureCause.RUN,
            "BatchColumnMissing",
        ),
        (
            {"exit_code": None, "job_reason": "DeadlineExceeded", "progress": BEGUN},
            FailureCause.RUN,
            "DeadlineExceeded",
        ),
        ({"exit_code": None, "job_reason": "DeadlineExceeded"}, FailureCause.INFRASTRUCTURE, "PodWaiting"),
        (AWAY, FailureCause.INFRASTRUCTURE, "DriverLost"),
        ({"exit_code": 137}, FailureCause.INFRASTRUCTURE, "RunFailed"),
        ({"exit_code": 143}, FailureCause.INFRASTRUCTURE, "RunFailed"),
        ({"exit_code": 137, "oom": True}, FailureCause.INFRASTRUCTURE, "OOMKilled"),
        (
            {"exit_code": 20, "result": said("CatalogOrStorageAway")},
            FailureCause.INFRASTRUCTURE,
            "CatalogOrStorageAway",
        ),
        ({"exit_code": 20, "result": said("Cancelled")}, FailureCause.INFRASTRUCTURE, "Cancelled"),
        ({"exit_code": 20, "result": said("LedgerMoved")}, FailureCause.INFRASTRUCTURE, "LedgerMoved"),
        ({"exit_code": 20, "result": said("ReplacementNotFound")}, FailureCause.INFRASTRUCTURE, "ReplacementNotFound"),
    ],
)
def test_why_an_attempt_failed(changes: dict[str, Any], found: FailureCause, reason: str) -> None:
    attempt = failed(**changes)

    assert (cause(attempt), failure(attempt).reason) == (found, reason)
    assert less_might_help(attempt) is (found is FailureCause.RUN or attempt.oom)


def test_each_cause_has_a_pause_of_its_own_that_the_other_does_not_make_longer() -> None:
    ended_with = {
        (failed(), Failures(run=1, infrastructure=9)): 10,
        (failed(), Failures(run=3, infrastructure=9)): 40,
        (failed(), Failures(run=50)): 360,
        (failed(**AWAY), Failures(run=9, infrastructure=1)): 5,
        (failed(**AWAY), Failures(run=9, infrastructure=3)): 20,
        (failed(**AWAY), Failures(infrastructure=50)): 120,
    }

    for (last, failures), seconds in ended_with.items():
        assert pause_seconds(last, failures, SETTINGS) == seconds


def test_attempts_whose_jobs_are_gone_are_counted_by_those_that_came_after_them() -> None:
    left = [failed(7, failures_before=Failures(4, 2)), failed(8, **AWAY, failures_before=Failures(5, 2)), failed(9)]

    assert counted(left, 1, "uid-r0") == Failures(6, 3)
    assert counted(left, 2, "uid-r0") == Failures()  # the Dataset was edited
    assert counted(left, 1, "another") == Failures()


def test_a_job_remembers_how_often_its_run_had_failed() -> None:
    document = build.run_object(
        Launch(SPEC, 0, 1, "a test", "uid-r0", failures=Failures(3, 12)),
        size(0, SETTINGS.run_template),
        SETTINGS.run_template,
        SETTINGS,
    )
    document["metadata"]["creationTimestamp"] = NOW.isoformat()

    def read(annotations: Any) -> Failures:
        job = {**document, "metadata": {**document["metadata"], "annotations": annotations}}
        return attempt_of(of_job(job), None, (), {}, Documents(lambda _: None)).failures_before

    assert read(document["metadata"]["annotations"]) == Failures(3, 12)
    assert read({}) == read({"lethe.dev/failures-before": "many/some"}) == Failures()


def tried(*attempts: Attempt, of: Restatement = R[0]) -> ObservedRun:
    return a_run(a_group(of), *attempts)


def test_the_next_attempt_is_told_of_those_before_it() -> None:
    (launch,) = decided(R[0], runs=(tried(failed(1), failed(2, **AWAY), failed(3)),)).launches

    assert (launch.run.attempt, launch.failures) == (4, Failures(2, 1))


# --- alone, and failing by itself ----------------------------------------------------------------------------------------


def five(**changes: Any) -> ObservedRun:
    """Attempts, of which the last three are left."""
    last = {"finished_seconds": 1000, "ago_seconds": 2000, **changes}
    return tried(*(failed(n, failures_before=Failures(n - 1, 0), **last) for n in (3, 4, 5)))


def test_one_that_fails_five_times_by_itself_stalls_until_somebody_acts() -> None:
    """Each try costs the others of the queue the time of a run."""
    actions = decided(R[0], runs=(five(),))

    status = actions.restatement_statuses["r0"]
    assert (actions.launches, status["phase"]) == ((), "Pending")
    assert condition(status, "Stalled") == ("True", "RunFailed")
    assert condition(status, "Succeeded")[0] == "Unknown"
    assert "It failed 5 times in a run of its own." in message(status, "Ready")
    assert status["attempts"] == {"run": 5, "infrastructure": 0}


def test_it_is_tried_again_with_an_edited_dataset_or_when_it_is_created_anew() -> None:
    anew = a_restatement("r0", batchIds=["b0"], meta={"uid": "another"})

    edited = decided(R[0], runs=(five(),), meta={"generation": 2})
    created = decided(anew, runs=(five(),))

    assert [members(edited), members(created)] == [["r0"], ["r0"]]
    assert [actions.launches[0].failures for actions in (edited, created)] == [Failures(), Failures()]


def test_what_lies_outside_of_it_is_repeated_for_ever() -> None:
    last = {"finished_seconds": 1000, "ago_seconds": 2000, "failures_before": Failures(4, 500), **AWAY}

    (launch,) = decided(R[0], runs=(tried(failed(506, **last)),)).launches

    assert launch.failures == Failures(4, 501)


def test_four_times_are_no_end_and_neither_is_a_group() -> None:
    four = tried(*(failed(n, finished_seconds=1000, ago_seconds=2000) for n in (1, 2, 3, 4)))
    spec = a_group(R[0], R[1])
    attempts = [an_attempt(spec, AttemptState.FAILED, number=n, **RUN, finished_seconds=1000) for n in range(1, 6)]

    assert members(decided(R[0], runs=(four,))) == ["r0"]
    assert members(decided(R[0], R[1], runs=(a_run(spec, *attempts),))) == ["r0"]  # half of the group


def test_it_holds_back_nobody_meanwhile() -> None:
    assert members(decided(R[0], R[1], runs=(five(),))) == ["r1"]


# --- what is told of it --------------------------------------------------------------------------------------------------


def test_failures_are_told_at_the_end_and_not_before() -> None:
    """At each failure the statuses of a whole group would have to be written."""
    run = tried(failed(1, finished_seconds=4), failed(2, **AWAY, finished_seconds=2, failures_before=Failures(1, 0)))
    done = {"table": a_table(a_ledger(requests=[a_request_entry(R[0].key)]))}

    waits = decided(R[0], runs=(run,)).restatement_statuses["r0"]
    ended = decided(R[0], runs=(run,), world=done).restatement_statuses["r0"]
    cancelled = decided(a_restatement("r0", batchIds=["b0"], cancel=True), runs=(run,)).restatement_statuses["r0"]

    assert condition(waits, "Succeeded")[0] == "Unknown"
    assert "attempts" not in waits
    assert ended["attempts"] == cancelled["attempts"] == {"run": 1, "infrastructure": 1}


def test_failures_of_all_groups_that_it_was_in_are_told() -> None:
    group = a_group(R[0], R[1])
    large = a_run(group, an_attempt(group, AttemptState.FAILED, **RUN, ago_seconds=500, finished_seconds=400))
    table = {"table": a_table(a_ledger(requests=[a_request_entry(R[0].key)]))}

    status = decided(R[0], runs=(large, tried(failed(1, **AWAY))), world=table).restatement_statuses["r0"]

    assert status["attempts"] == {"run": 1, "infrastructure": 1}


def test_once_told_they_stay_though_the_runs_are_forgotten() -> None:
    table = {"table": a_table(a_ledger(requests=[a_request_entry(R[0].key)]))}
    told = seen(decided(R[0], runs=(tried(failed()),), world=dict(table)), [R[0]])[0]
    edited = replace(told, meta=told.meta.model_copy(update={"generation": 2}))

    again = decided(edited, world=dict(table)).restatement_statuses["r0"]

    assert (again["observedGeneration"], again["attempts"]) == (2, {"run": 1, "infrastructure": 0})


def test_one_that_never_failed_says_nothing_of_it() -> None:
    table = {"table": a_table(a_ledger(requests=[a_request_entry(R[0].key)]))}

    assert "attempts" not in decided(R[0], world=table).restatement_statuses["r0"]


def test_a_stalled_one_that_goes_on_tells_it_again_at_its_end_only() -> None:
    stalled = seen(decided(R[0], runs=(five(),)), [R[0]])[0]

    status = decided(stalled, runs=(five(),), meta={"generation": 2}).restatement_statuses["r0"]

    assert "attempts" not in status


def test_the_pause_of_one_counts_from_its_end() -> None:
    actions = decided(R[0], runs=(tried(failed(1, **AWAY, finished_seconds=1)),))

    assert actions.look_again == ago(seconds=1) + timedelta(seconds=5)
