"""A head that another writer left gets a ledger of its own, once everything else is done."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from lethe.contract.run import RunKind, RunSpec
from lethe_operator.actions import Actions
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import (
    AttemptState,
    Engine,
    Observation,
    ObservedRun,
    TableView,
    Unavailable,
    WorkerView,
)
from lethe_operator.runs import spec as run_specs

from tests.support.builders import NOW, a_ledger, ago
from tests.support.resources import (
    SETTINGS,
    a_buffered,
    a_consolidation,
    a_dataset,
    a_policy,
    a_restatement,
    a_result,
    a_run,
    a_table,
    a_vacuum,
    a_world,
    an_attempt,
    condition,
)
from tests.support.statuses import decide

HEAD = 7423456789012345678
PATIENT = a_dataset(consolidation={"minBatches": 100, "maxAgeSeconds": 86400})
REANCHORING = run_specs.reanchoring(PATIENT, HEAD)


def bare(*, head_seconds: float = 31, since_seconds: float | None = None, **changes: Any) -> TableView:
    since = ago(seconds=head_seconds if since_seconds is None else since_seconds)
    return a_table(head_time=ago(seconds=head_seconds), bare_since=since, **changes)


def decided(table: TableView | None = None, dataset: Dataset = PATIENT, *buffered: Any, **world: Any) -> Actions:
    return decide(dataset, a_world(*buffered, **{"table": table or bare(), **world}), NOW, SETTINGS)


def a_try(state: AttemptState, spec: RunSpec = REANCHORING, **changes: Any) -> ObservedRun:
    return a_run(spec, an_attempt(spec, state, for_uid="head", **changes))


def started(actions: Actions) -> list[RunSpec]:
    return [launch.run for launch in actions.launches]


def test_the_committer_does_it_where_there_is_one_and_a_job_where_it_has_failed() -> None:
    there = WorkerView(alive=True)
    failed = a_try(AttemptState.FAILED, engine=Engine.COMMITTER, exit_code=20)

    (asked,), (again,) = decided(committer=there).launches, decided(committer=there, runs=(failed,)).launches

    assert (asked.engine, again.engine, again.run.attempt) == (Engine.COMMITTER, Engine.JOB, 2)


def test_a_run_over_no_batches_starts_half_a_minute_after_the_other_writer() -> None:
    (launch,) = decided().launches

    assert launch.run.kind is RunKind.REANCHORING
    assert launch.run.consolidation.batch_ids == ()  # type: ignore[union-attr]
    assert (launch.for_uid, launch.run.attempt, launch.run.seen_snapshot_id) == ("head", 1, HEAD)
    assert "another writer's commit" in launch.why


@pytest.mark.parametrize(
    ("table", "deletes", "starts"),
    [
        pytest.param(
            a_table(head_time=NOW, is_masked=False), "Auto", True, id="too much for the commit of a Restatement"
        ),
        pytest.param(bare(head_seconds=2, is_masked=False), "Auto", True, id="another writer may have added rows"),
        pytest.param(bare(head_seconds=1, is_masked=False), "Auto", False, id="a writer that may go on"),
        pytest.param(
            bare(head_seconds=1, since_seconds=20, is_masked=False), "Auto", True, id="a writer that never stops"
        ),
        pytest.param(a_table(head_time=NOW, is_masked=False), "Ledger", False, id="the Dataset writes none"),
        pytest.param(a_table(head_time=NOW), "Auto", False, id="all are written"),
    ],
)
def test_tombstones_without_native_deletes_get_them_at_once(table: TableView, deletes: str, starts: bool) -> None:
    dataset = a_dataset(consolidation={"minBatches": 100, "maxAgeSeconds": 86400}, deletes=deletes)
    spec = a_consolidation(dataset=dataset)
    ended = a_run(spec, an_attempt(spec, AttemptState.SUCCEEDED, finished_seconds=0, result=a_result(spec)))

    launches = decided(table, dataset, runs=(ended,)).launches

    assert [x.run.consolidation.deletes for x in launches if x.run.consolidation] == ([deletes] if starts else [])


def test_what_native_deletes_cannot_hide_is_not_tried_again_at_the_same_head() -> None:
    table = a_table(head_time=NOW, is_masked=False)
    spec = run_specs.reanchoring(PATIENT, table.head_id or 0)
    result = a_result(spec, outcome="NothingToDo")

    assert decided(table, runs=(a_try(AttemptState.SUCCEEDED, spec, result=result),)).launches == ()


def test_it_also_starts_while_the_buffer_is_away() -> None:
    assert started(decided(buffer=Unavailable("StorageUnavailable", "away")))


def test_a_writer_that_may_go_on_is_waited_for() -> None:
    actions = decided(bare(head_seconds=10))

    assert started(actions) == []
    assert NOW + timedelta(seconds=20) == actions.look_again


def test_a_writer_that_never_stops_is_not_waited_for_longer_than_five_minutes() -> None:
    assert started(decided(bare(head_seconds=10, since_seconds=299))) == []
    assert started(decided(bare(head_seconds=10, since_seconds=301)))


@pytest.mark.parametrize(
    ("dataset", "world"),
    [
        pytest.param(a_dataset(meta={"annotations": {"lethe.dev/paused": "true"}}), {}, id="paused"),
        pytest.param(a_dataset(consolidation={"suspend": True}), {}, id="suspended"),
        pytest.param(a_dataset(meta={"deletionTimestamp": NOW.isoformat()}), {}, id="being deleted"),
        pytest.param(PATIENT, {"table": bare(claim="ns/other")}, id="claimed by another"),
        pytest.param(PATIENT, {"table": a_table()}, id="not bare"),
        pytest.param(PATIENT, {"runs": (a_try(AttemptState.ACTIVE),)}, id="one is under way"),
        pytest.param(
            PATIENT,
            {"runs": (a_run(a_vacuum(), an_attempt(a_vacuum())),)},
            id="a vacuum is under way, which does it too",
        ),
    ],
)
def test_it_does_not_start(dataset: Dataset, world: dict[str, Any]) -> None:
    assert started(decided(world.pop("table", None), dataset, **world)) == []


def test_whatever_else_is_due_goes_first_and_serves_as_well() -> None:
    eager = a_dataset(consolidation={"minBatches": 1})
    full = bare(ledger=a_table().ledger)

    (batches,) = started(decided(full, eager, a_buffered("A")))
    (revert,) = started(decided(full, PATIENT, restatements=(a_restatement(),)))
    asked = a_dataset(meta={"annotations": {"lethe.dev/vacuum-now": "1"}})
    (vacuum,) = started(decided(_with_tombstones(full), asked, policies=(a_policy(),)))

    assert batches.consolidation.batch_ids == ("A",)  # type: ignore[union-attr]
    assert (revert.kind, vacuum.kind) == (RunKind.RESTATEMENT, RunKind.VACUUM)


def _with_tombstones(table: TableView) -> TableView:
    return replace(table, ledger=a_ledger(*"WXYZ"))


def test_one_that_failed_is_tried_again_after_a_pause() -> None:
    early = decided(runs=(a_try(AttemptState.FAILED, exit_code=20, finished_seconds=1),))
    (late,) = decided(runs=(a_try(AttemptState.FAILED, exit_code=20, finished_seconds=30),)).launches

    assert (started(early), early.look_again) == ([], ago(seconds=-9))
    assert (late.run.run_id, late.run.attempt) == (REANCHORING.run_id, 2)


def test_a_permanently_failed_run_is_not_repeated_and_is_shown() -> None:
    result = a_result(REANCHORING, "Failed", reason="LedgerMissing", message="A file is gone.")

    actions = decided(runs=(a_try(AttemptState.FAILED, exit_code=10, result=result),))

    assert started(actions) == []
    assert condition(actions.dataset_status, "Stalled") == ("True", "LedgerMissing")


def test_one_that_ended_without_effect_is_repeated_with_a_pause_only() -> None:
    assert started(decided(runs=(a_try(AttemptState.SUCCEEDED, finished_seconds=1),))) == []
    assert started(decided(runs=(a_try(AttemptState.SUCCEEDED, finished_seconds=11),)))


def test_a_later_head_is_another_intent_and_the_pause_holds_for_it_too() -> None:
    older = run_specs.reanchoring(PATIENT, 1)
    failed = a_try(AttemptState.FAILED, older, exit_code=20, finished_seconds=1)
    ended = a_try(AttemptState.SUCCEEDED, older, finished_seconds=6)

    paused, fresh = decided(runs=(failed,)), decided(runs=(ended,))

    assert started(paused) == []
    assert failed.keys[0] in paused.drop_keys
    assert [r.run_id for r in started(fresh)] == [REANCHORING.run_id]


def test_a_failure_is_settled_by_any_commit_that_carries_a_ledger() -> None:
    """A Restatement that committed meanwhile did what this run was to do."""
    result = a_result(REANCHORING, "Failed", reason="LedgerMissing", message="A file is gone.")
    failed = a_try(AttemptState.FAILED, exit_code=10, result=result)

    actions = decided(a_table(head_id=8), runs=(failed,))

    assert condition(actions.dataset_status, "Ready")[0] == "True"


def test_it_shows_no_decision_about_consolidation() -> None:
    """Its success does not hide that a consolidation failed for good, nor have that one repeated."""
    eager = a_dataset(consolidation={"minBatches": 1})
    batches = a_consolidation(a_buffered("A"), dataset=eager)
    result = a_result(batches, "Failed", reason="BatchColumnMissing", message="No column.")
    given_up = a_run(batches, an_attempt(batches, AttemptState.FAILED, exit_code=10, ago_seconds=300, result=result))
    world = Observation(
        runs=(given_up, a_try(AttemptState.SUCCEEDED)), table=a_table(), buffer=a_world(a_buffered("A")).buffer
    )

    actions = decide(eager, world, NOW, SETTINGS)

    assert started(actions) == []
    assert condition(actions.dataset_status, "Stalled") == ("True", "BatchColumnMissing")


def test_its_end_has_its_own_event() -> None:
    done = a_try(AttemptState.SUCCEEDED, result=a_result(REANCHORING))

    actions = decided(a_table(), runs=(done,))

    (told,) = [e for e in actions.events if "ledger" in e.verdict.message]
    assert (told.verdict.reason, told.warning) == ("HeadReanchored", False)
    assert actions.dataset_status["runs"][0]["reason"] == "HeadReanchored"  # type: ignore[index]
