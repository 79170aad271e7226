"""What a run did, in the line of it that the status shows."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from lethe.contract.result import AnyRunResult, ErasureOutcome, ExecutorState, Phase, Progress, VacuumPlanned
from lethe.contract.settings import RunKind
from lethe_operator.conditions import timestamp
from lethe_operator.resources.observed import AttemptState, Engine, ObservedRun
from lethe_operator.runs.retry import SHOWN_AT_MOST, entries, entry, events, outcome

from tests.support.builders import NOW, a_run_result
from tests.support.resources import a_consolidation, a_result, a_vacuum, an_attempt
from tests.support.statuses import document

PURGED = "2 tombstones purged, 1 files rewritten, 0 files deleted, 3 snapshots expired"


def a_vacuums_result(outcome: str = "Committed", **changes: Any) -> AnyRunResult:
    return a_result(a_vacuum(), outcome, **changes)


def purged(**changes: Any) -> AnyRunResult:
    return a_vacuums_result(tombstones_purged=2, files_rewritten=1, snapshots_expired=3, **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"files_left": 4}, ", 4 files left"),
        ({"files_left": 4, "stopped": "WindowClosed"}, ", 4 files left (WindowClosed)"),
        ({"small_files_compacted": 5}, ", 5 small files compacted"),
        ({"manifests_rewritten": 12}, ", 12 manifests rewritten"),
        ({"orphan_files_found": 6, "orphan_files_removed": 6}, ", 6 orphan files removed"),
        ({"orphan_files_found": 6, "orphan_files_removed": 2}, ", 2 of 6 orphan files removed"),
        ({"erasures_open": 1}, ", 0 erasures verified, 1 open"),
        (
            {"small_files_compacted": 5, "manifests_rewritten": 12, "orphan_files_found": 6, "orphan_files_removed": 6},
            ", 5 small files compacted, 12 manifests rewritten, 6 orphan files removed",
        ),
    ],
)
def test_a_vacuum_tells_of_maintenance_what_there_was_to_do(changes: Any, said: str) -> None:
    assert outcome(purged(**changes)) == f"{PURGED}{said}."


def test_a_step_that_failed_is_told_behind_what_was_done() -> None:
    """Nobody would hear of it otherwise: the run itself has succeeded."""
    told = outcome(purged(message="manifests were not rewritten: S3 said no"))

    assert told == f"{PURGED}. manifests were not rewritten: S3 said no."


def test_a_vacuum_that_commits_nothing_tells_what_it_removed_all_the_same() -> None:
    swept = a_vacuums_result("NothingToDo", orphan_files_found=2, orphan_files_removed=2)
    looked = a_vacuums_result("NothingToDo", erasures=(an_outcome(),))

    assert outcome(a_vacuums_result("NothingToDo")) == "There was nothing to do."
    assert outcome(swept) == "There was nothing to purge: 0 snapshots expired, 2 orphan files removed."
    assert outcome(looked) == "There was nothing to purge: 0 snapshots expired, 1 erasures verified, 0 open."


def test_a_plan_tells_of_orphan_files_that_the_next_run_would_remove() -> None:
    planned = VacuumPlanned(digest="d", snapshot_id=1, files=2, bytes=10, tombstones=4)

    assert outcome(a_vacuums_result("Planned", plan=planned, orphan_files_found=3)) == (
        "Planned: 2 files to rewrite, 10 bytes, 3 orphan files to remove. Nothing was changed."
    )


def an_outcome() -> ErasureOutcome:
    return ErasureOutcome(restatement="ns/fix/1", verified_time=NOW, record="s3://l/r.json", record_sha256="0" * 64)


def test_an_erasure_check_tells_nothing_of_a_purge() -> None:
    checked = a_run_result(RunKind.ERASURE_CHECK, snapshots_expired=3, erasures=(an_outcome(),), erasures_open=1)

    assert outcome(checked) == "3 snapshots expired, 1 erasures verified, 1 open."


def test_a_reanchoring_tells_of_the_head() -> None:
    text = "The ledger is attached to the head, which another writer committed."

    assert outcome(a_run_result(RunKind.REANCHORING)) == text
    assert outcome(a_run_result(RunKind.REANCHORING, "NothingToDo")) == "There was nothing to do."


def an_entry(state: AttemptState = AttemptState.ACTIVE, executors: ExecutorState | None = None, **changes: Any) -> Any:
    run = a_vacuum()
    progress = Progress(
        run_id=run.run_id, phase=Phase.PURGE_DATA, message="step 1", executors=executors, updated_time=NOW
    )
    return entry(an_attempt(run, state, progress=progress, **changes), False, NOW)


def shown(*args: Any, **changes: Any) -> Any:
    return document(an_entry(*args, **changes))


def test_a_run_shows_how_many_of_its_executors_run() -> None:
    found = shown(executors=ExecutorState(planned=4, running=3))

    assert (found["executors"], found["message"], found.get("reason")) == ("3/4", "step 1", None)
    assert "executors" not in shown()


@pytest.mark.parametrize(
    ("state", "waiting", "said"),
    [
        (ExecutorState(planned=4, running=1, message="1 of 4 executors run"), "", "1 of 4 executors run."),
        (
            ExecutorState(planned=4, running=1, message="1 of 4 executors run"),
            "3 executor pods do not start: Unschedulable: no node.",
            "1 of 4 executors run. 3 executor pods do not start: Unschedulable: no node.",
        ),
        (None, "2 executor pods do not start: Unschedulable: no", "2 executor pods do not start: Unschedulable: no."),
    ],
)
def test_a_run_with_too_few_executors_says_why_and_an_event_too(
    state: ExecutorState | None, waiting: str, said: str
) -> None:
    found = an_entry(executors=state, executors_waiting=waiting)

    assert (found.reason, found.message, found.phase) == ("ExecutorsMissing", said, "PurgeData")
    (event,) = events("flights", [], [found])
    assert (event.verdict.reason, event.warning) == ("ExecutorsMissing", True)
    assert said in event.verdict.message
    assert events("flights", [found], [found]) == ()


def test_a_consolidation_shows_what_it_added() -> None:
    run = a_consolidation()
    ended = an_attempt(run, AttemptState.SUCCEEDED, result=a_result(run, batches_promoted=12, rows_added=3_400))

    assert (entry(ended, True, NOW).batches, entry(ended, True, NOW).rows) == (12, 3_400)
    assert (an_entry().batches, an_entry().rows) == (None, None)


def test_a_run_that_was_deleted_before_it_ended_is_an_event() -> None:
    active, ended = an_entry(), an_entry().model_copy(update={"name": "ended", "phase": "Succeeded"})

    (event,) = events("flights", [active, ended], [ended])

    assert (event.verdict.reason, event.warning) == ("RunDeleted", True)
    assert f"{active.name} was deleted before it ended" in event.verdict.message
    assert events("flights", [active, ended], [active, ended]) == ()
    assert events("flights", [ended], []) == ()
    others = [ended.model_copy(update={"name": f"other-{n}"}) for n in range(SHOWN_AT_MOST)]
    assert "RunDeleted" not in {e.verdict.reason for e in events("flights", [active], others)}, "it may have no room"


def test_a_run_whose_end_nobody_reported_ended_when_that_was_seen() -> None:
    """Otherwise it would count as active for as long as the status shows it."""
    lost = replace(an_attempt(a_vacuum(), AttemptState.FAILED), engine=Engine.WARM_DRIVER, finished=None)
    run = ObservedRun(lost.run_id, lost.kind, None, (lost,))

    seen = entries([run], None, [], NOW)
    later = entries([run], None, seen, NOW + timedelta(hours=1))

    assert [(e["phase"], e["reason"], e["finishTime"]) for e in map(document, later)] == [
        ("Failed", "WarmDriverAway", timestamp(NOW))
    ]


def test_executors_that_are_just_starting_are_not_missing() -> None:
    assert "reason" not in shown(executors_waiting="2 executor pods do not start: x", ago_seconds=5)


def test_a_finished_run_says_what_it_lacked() -> None:
    done = {"result": purged()}
    why = "No executor started within 300 seconds, so the driver works alone."

    alone = an_entry(AttemptState.SUCCEEDED, ExecutorState(planned=4, running=0, message=why, alone=True), **done)
    lost = an_entry(AttemptState.SUCCEEDED, ExecutorState(planned=4, running=4, message="m", lost=2), **done)
    whole = an_entry(AttemptState.SUCCEEDED, ExecutorState(planned=4, running=4), **done)

    assert [e.message for e in (alone, lost, whole)] == [
        f"{PURGED}. {why}",
        f"{PURGED}. 2 executors were lost.",
        f"{PURGED}.",
    ]
