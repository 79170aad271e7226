"""One mind per table: who starts, who waits, and what is written."""

from dataclasses import replace
from typing import Any

import pytest
from lethe.contract.result import Phase, Progress
from lethe.contract.run import RunKind
from lethe.ledger.ledger import BatchEntry, BatchState
from lethe_operator.actions import Actions
from lethe_operator.resources.observed import AttemptState, NoTable, NotListed, Observation, Unavailable

from tests.support.builders import NOW, a_batch, a_ledger, a_request_entry, ago
from tests.support.resources import (
    SETTINGS,
    a_buffered,
    a_consolidation,
    a_dataset,
    a_policy,
    a_replay,
    a_restatement,
    a_restatement_run,
    a_result,
    a_run,
    a_table,
    a_world,
    an_attempt,
    condition,
    message,
)
from tests.support.statuses import decide, without_dataset
from tests.unit.lethe_operator.deciding import DATASET, EAGER, A, decided, kinds


def phases(actions: Actions) -> dict[str, str]:
    return {name: status["phase"] for name, status in actions.restatement_statuses.items()}


def test_a_restatement_goes_before_consolidation_and_a_vacuum_beside_it() -> None:
    table = a_table(a_ledger("W", "X", "Y", "Z"))
    world = a_world(A, restatements=(a_restatement(),), policies=(a_policy(),), table=table)

    assert kinds(decided(world)) == [RunKind.RESTATEMENT, RunKind.VACUUM]


@pytest.mark.parametrize("rows", [1_000, None])
def test_the_status_shows_the_rows_of_the_table_if_its_head_says_them(rows: int | None) -> None:
    status = decided(a_world(table=a_table(a_ledger("W"), total_records=rows))).dataset_status

    assert status is not None
    assert status["table"].get("rows") == rows


def test_the_status_shows_the_decision_about_the_buffer_and_when_others_go_first() -> None:
    def told(world: Observation) -> Any:
        return decided(world).dataset_status["consolidation"]  # type: ignore[index]

    due = {"decision": "Due", "reason": "EnoughBatches", "message": "1 batches wait, minBatches is 1."}
    first = f"{due['message']} The run waits for a run of Restatements."
    assert told(a_world(A)) == due
    assert told(a_world(A, restatements=(a_restatement(),))) == {**due, "reason": "Queued", "message": first}
    waiting = decide(a_dataset(), a_world(A), NOW, SETTINGS).dataset_status["consolidation"]  # type: ignore[index]
    assert (waiting["decision"], waiting["nextTime"]) == ("Later", "2026-03-01T12:09:00Z")


def test_a_buffer_that_is_being_listed_is_no_trouble_and_what_was_seen_of_it_stays() -> None:
    """As it is after each start of the operator."""
    seen = {"buffer": {"batches": 3}, "batches": {"withheld": 2}}

    status = decided(a_world(buffer=NotListed()), a_dataset(status=seen, **EAGER)).dataset_status

    assert status is not None
    assert condition(status, "Ready") == ("True", "Available")
    assert (status["buffer"], status["batches"]["withheld"]) == ({"batches": 3}, 2)


@pytest.mark.parametrize(
    "spec", [a_consolidation(A), a_restatement_run(a_restatement("other"))], ids=["batches", "other"]
)
def test_runs_that_commit_never_overlap(spec: Any) -> None:
    world = a_world(A, restatements=(a_restatement(),), runs=(a_run(spec, an_attempt(spec)),))

    actions = decided(world)

    assert kinds(actions) == []
    assert phases(actions) == {"revert-a": "Queued"}


def test_all_restatements_that_wait_make_one_run_the_oldest_first() -> None:
    old = a_restatement("old", meta={"creationTimestamp": ago(hours=3).isoformat()})

    (launch,) = decided(a_world(restatements=(a_restatement("new"), old))).launches

    assert [r.name for r in launch.run.restatement.requests] == ["ns/old", "ns/new"]  # type: ignore[union-attr]


def test_what_restates_a_replacement_waits_for_it_even_while_that_one_pauses() -> None:
    first, second = a_replay("A", "B", "first"), a_replay("B", "C", "second")
    spec = a_restatement_run(first)
    paused = a_run(
        spec, an_attempt(spec, AttemptState.FAILED, exit_code=20, finished_seconds=1, for_uid=first.meta.uid)
    )

    actions = decided(a_world(restatements=(second, first), runs=(paused,)))

    assert kinds(actions) == []
    assert condition(actions.restatement_statuses["second"], "Ready") == ("False", "WaitingForRestatement")
    assert ago(seconds=-9) == actions.look_again


def test_an_unrelated_one_does_not_wait_for_a_pause() -> None:
    first, second = a_replay("A", "B", "first"), a_replay("X", "Y", "second")
    spec = a_restatement_run(first)
    paused = a_run(
        spec, an_attempt(spec, AttemptState.FAILED, exit_code=20, finished_seconds=6, for_uid=first.meta.uid)
    )

    (launch,) = decided(a_world(restatements=(second, first), runs=(paused,))).launches

    assert launch.run.restatement.requests[0].name == "ns/second"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("meta", "table"),
    [
        ({"annotations": {"lethe.dev/paused": "true"}}, a_table()),
        ({"deletionTimestamp": NOW.isoformat()}, a_table()),
        ({}, Unavailable("StorageUnavailable", "away")),
        ({}, a_table(claim="ns/other")),
    ],
    ids=["paused", "being deleted", "storage away", "claimed"],
)
def test_nothing_starts_and_nothing_is_swept(meta: dict[str, Any], table: Any) -> None:
    if not isinstance(table, Unavailable):
        swept = a_buffered("S")
        table = replace(
            table, ledger=a_ledger("X", batches=[a_batch("S", time=ago(days=9), objects=swept.data_objects)])
        )
    world = a_world(A, a_buffered("S"), restatements=(a_restatement(),), policies=(a_policy(),), table=table)

    actions = decided(world, a_dataset(meta=meta, **EAGER))

    assert (kinds(actions), actions.sweep) == ([], 0)


def test_a_sweep_begins_after_the_retention_and_additions_are_reported() -> None:
    promoted, added = a_buffered("S"), a_buffered("T")
    entries = [
        a_batch("S", time=ago(days=2), objects=promoted.data_objects),
        a_batch("T", time=ago(days=2), objects=a_buffered("T", etag="as promoted").data_objects),
    ]

    actions = decided(a_world(promoted, added, table=a_table(a_ledger(batches=entries))))

    assert actions.sweep == 1
    (folder,) = actions.dataset_status["buffer"]["invalidFolders"]  # type: ignore[index]
    assert added.data_objects[0].key == folder["folder"]


@pytest.mark.parametrize("mode", ["Register", "Rewrite"])
@pytest.mark.parametrize("state", [BatchState.PROMOTED, BatchState.REVERTED])
def test_registered_objects_are_never_swept_whatever_the_mode_is_today(mode: str, state: BatchState) -> None:
    """They are the table's files. Those of a batch that was rewritten are copies, before and after a switch."""
    registered, rewritten = a_buffered("S"), a_buffered("T")
    of_table = a_batch("S", state, time=ago(days=99), objects=registered.data_objects, registered=True)
    copied = a_batch("T", state, time=ago(days=99), objects=rewritten.data_objects)

    def sweeps(*entries: BatchEntry) -> int:
        world = a_world(registered, rewritten, table=a_table(a_ledger(batches=entries)))
        return decided(world, a_dataset(consolidation={"mode": mode})).sweep

    assert (sweeps(of_table), sweeps(of_table, copied)) == (0, 1)


def test_paused_is_a_condition_and_what_runs_goes_on() -> None:
    paused = a_dataset(meta={"annotations": {"lethe.dev/paused": "yes"}}, **EAGER)
    running = a_run(a_consolidation(A), an_attempt(a_consolidation(A)))

    actions = decided(a_world(A, restatements=(a_restatement(),), runs=(running,)), paused)

    assert condition(actions.dataset_status, "Paused") == ("True", "Paused")
    assert condition(actions.dataset_status, "Ready") == ("True", "Available")
    assert condition(actions.restatement_statuses["revert-a"], "Ready") == ("False", "Paused")
    assert actions.delete_jobs == ()


def test_unavailable_storage_is_shown_and_the_last_values_are_kept() -> None:
    seen = {"table": {"uuid": "u", "snapshotId": 1}, "buffer": {"batches": 3}, "batches": {"promoted": 9}}
    away = Unavailable("StorageUnavailable", "Buffer s3://lake: EndpointConnectionError")

    status = decided(a_world(table=away, buffer=away), a_dataset(status=seen)).dataset_status

    assert status is not None
    assert condition(status, "Ready") == ("False", "StorageUnavailable")
    assert condition(status, "Reconciling") == ("True", "StorageUnavailable")
    assert condition(status, "Stalled") == ("False", "StorageUnavailable")
    assert seen == {k: status[k] for k in seen}


def test_the_buffer_away_holds_consolidation_only() -> None:
    away = Unavailable("StorageUnavailable", "away")

    actions = decided(a_world(buffer=away, restatements=(a_restatement(),)))

    assert kinds(actions) == [RunKind.RESTATEMENT]
    assert condition(actions.dataset_status, "Ready") == ("False", "StorageUnavailable")


def test_the_status_counts_what_the_table_and_the_buffer_hold() -> None:
    entries = [
        a_batch("P"),
        a_batch("R", BatchState.REVERTED),
        a_batch("X", BatchState.REPLACED),
        a_batch("W", BatchState.REVERTED, rows=None),
        *(
            a_batch(f"F{i:02}", BatchState.REFUSED, refusal="SchemaMismatch: col x is int", time=ago(seconds=100 - i))
            for i in range(25)
        ),
        a_batch("H", BatchState.HELD, refusal="CheckFailed: check c"),
        a_batch("O", BatchState.HELD, refusal="CheckFailed: check c", restatement="ns/approve/1"),
    ]
    table = a_table(a_ledger("R", "X", batches=entries))
    buffered = [
        a_buffered("A", size=7, age_seconds=90),
        a_buffered("W"),
        a_buffered("I", complete=False),
        a_buffered("R"),
        *(a_buffered(f"F{i:02}") for i in range(25)),
    ]

    status = decided(a_world(*buffered, table=table)).dataset_status

    assert status is not None
    assert status["buffer"] == {
        "batches": 1,
        "bytes": 7,
        "waiting": 1,
        "invalid": 0,
        "oldestBatchTime": "2026-03-01T11:58:30Z",
    }
    counts = {k: v for k, v in status["batches"].items() if not k.endswith("Batches")}
    assert counts == {"promoted": 1, "reverted": 3, "withheld": 1, "refused": 25, "held": 2}
    assert status["batches"]["heldBatches"] == [{"batchId": "H", "reason": "CheckFailed", "message": "check c"}]
    assert len(status["batches"]["refusedBatches"]) == 20
    assert status["batches"]["refusedBatches"][0] == {
        "batchId": "F24",
        "reason": "SchemaMismatch",
        "message": "col x is int",
    }
    assert status["tombstones"] == {
        "active": 2,
        "nativeDeletes": "Complete",
        "rows": 6,
        "oldestTime": "2026-03-01T12:00:00Z",
    }
    assert (status["table"]["snapshotId"], status["table"]["sequenceNumber"]) == (7423456789012345678, 9)


@pytest.mark.parametrize(
    ("failures", "ready", "stalled"),
    [
        ([{"exit_code": 20}], ("True", "RunRetrying"), "False"),
        ([{"exit_code": 20}] * 3, ("False", "RunFailed"), "False"),
        ([{"exit_code": 137, "oom": True}], ("False", "OOMKilled"), "False"),
        ([{"exit_code": 137, "oom": True}] * 3, ("False", "OOMKilled"), "True"),
        ([{"exit_code": 10}], ("False", "RunFailed"), "True"),
    ],
    ids=["once", "three times", "killed", "killed three times", "for good"],
)
def test_failing_runs_show_on_the_dataset(failures: list[dict[str, Any]], ready: tuple[str, str], stalled: str) -> None:
    spec = a_consolidation(A)
    run = a_run(spec, *(an_attempt(spec, AttemptState.FAILED, number=n + 1, **f) for n, f in enumerate(failures)))

    status = decided(a_world(A, runs=(run,))).dataset_status

    assert ready == condition(status, "Ready")
    assert stalled == condition(status, "Stalled")[0]


def test_the_next_attempt_does_not_hide_why_it_is_one() -> None:
    spec = a_consolidation(A)
    killed = an_attempt(spec, AttemptState.FAILED, exit_code=137, oom=True)

    status = decided(a_world(A, runs=(a_run(spec, killed, an_attempt(spec, number=2)),))).dataset_status

    assert condition(status, "Ready") == ("False", "OOMKilled")
    assert "Attempt 2 is running" in message(status, "Ready")


def test_a_run_under_way_shows_its_progress() -> None:
    spec = a_consolidation(A)
    progress = Progress(
        run_id=spec.run_id, phase=Phase.WRITING, tasks_done=12, tasks_total=40, rows=5, updated_time=NOW
    )

    (run,) = decided(a_world(A, runs=(a_run(spec, an_attempt(spec, progress=progress)),))).dataset_status["runs"]  # type: ignore[index]

    assert (run["phase"], run["progress"], run["message"], run["attempt"]) == ("Writing", "12/40 tasks", "5 rows", 1)


def test_a_driver_with_a_result_has_not_ended_before_its_job_has() -> None:
    spec = a_consolidation(A)
    progress = Progress(run_id=spec.run_id, phase=Phase.FAILED, updated_time=NOW)

    actions = decided(a_world(A, runs=(a_run(spec, an_attempt(spec, progress=progress)),)))

    assert actions.dataset_status["runs"][0]["phase"] == "Ending"  # type: ignore[index]
    assert tuple(e for e in actions.events if e.verdict.reason == "RunFailed") == ()


def test_a_run_whose_pod_died_after_its_commit_has_succeeded() -> None:
    spec = a_consolidation(A)
    run = a_run(spec, an_attempt(spec, AttemptState.FAILED, exit_code=None))
    table = a_table(a_ledger(batches=[a_batch("A", run=spec.run_id)]), run_ids=frozenset({spec.run_id}))

    actions = decided(a_world(A, runs=(run,), table=table))

    assert (actions.dataset_status["runs"][0]["phase"], kinds(actions)) == ("Succeeded", [])  # type: ignore[index]
    assert condition(actions.dataset_status, "Ready") == ("True", "Available")


def test_an_end_is_an_event_once() -> None:
    spec = a_consolidation(A)
    done = a_run(
        spec, an_attempt(spec, AttemptState.SUCCEEDED, result=a_result(spec, batches_promoted=1, rows_added=100))
    )
    world = a_world(runs=(done,))

    first = decided(world)
    again = decided(world, a_dataset(status=first.dataset_status, **EAGER))

    assert [e.verdict.reason for e in first.events if e.verdict.reason.startswith("Run")] == ["RunSucceeded"]
    assert "1 batches promoted, 100 rows" in next(
        e.verdict.message for e in first.events if e.verdict.reason == "RunSucceeded"
    )
    assert again.events == ()


def test_a_second_look_changes_no_status() -> None:
    """Quiet when nothing changed: whatever was written comes out the same."""
    table = a_table(a_ledger("X", requests=[a_request_entry(a_restatement().key)]))
    world = a_world(A, restatements=(a_restatement(),), policies=(a_policy(),), table=table)
    first = decided(world)
    later = NOW.replace(minute=30)

    seen = a_dataset(status=first.dataset_status, **EAGER)
    r = a_restatement(status=first.restatement_statuses["revert-a"])
    second = decide(seen, replace(world, restatements=(r,)), later, SETTINGS)

    assert first.dataset_status == second.dataset_status
    assert list(first.restatement_statuses) == ["revert-a"]
    assert second.restatement_statuses == {}
    assert second.events == ()


def test_a_finished_restatement_is_deleted_when_its_time_is_over() -> None:
    table = a_table(a_ledger(requests=[a_request_entry(a_restatement().key)]))

    def after(ttl: int) -> Actions:
        fresh = a_restatement(ttlSecondsAfterFinished=ttl)
        at = ago(seconds=100)
        written = decide(DATASET, a_world(table=table, restatements=(fresh,)), at, SETTINGS)
        assert written.delete_restatements == ()
        seen = a_restatement(ttlSecondsAfterFinished=ttl, status=written.restatement_statuses["revert-a"])
        return decided(a_world(table=table, restatements=(seen,)))

    assert after(100).delete_restatements == ("revert-a",)
    assert ((), ago(seconds=-1)) == (after(101).delete_restatements, after(101).look_again)


def test_restatements_of_a_dataset_that_is_not_there_wait_for_it() -> None:
    actions = without_dataset("nobody", [a_restatement(), a_restatement("off", cancel=True)], NOW)

    assert condition(actions.restatement_statuses["revert-a"], "Ready") == ("False", "DatasetNotFound")
    assert condition(actions.restatement_statuses["revert-a"], "Reconciling") == ("True", "DatasetNotFound")
    assert actions.restatement_statuses["off"]["phase"] == "Cancelled"


def test_restatements_whose_dataset_was_deleted_under_them_and_created_again_are_carried_out_once() -> None:
    """One was committed when the Dataset went, and nobody had been told; the other waited. The Dataset that comes back has
    another UID and none of the runs: the table is asked."""
    done, waits = a_restatement("done"), a_restatement("waits")
    gone = without_dataset("flights", [done, waits], NOW).restatement_statuses
    told = [a_restatement(name, status=gone[name]) for name in ("done", "waits")]
    table = a_table(a_ledger(requests=[a_request_entry(done.key, snapshot_id=3)]))

    actions = decided(a_world(restatements=told, table=table), a_dataset(meta={"uid": "another"}))

    assert {condition(s, "Ready") for s in gone.values()} == {("False", "DatasetNotFound")}
    assert condition(actions.restatement_statuses["done"], "Succeeded") == ("True", "Succeeded")
    assert actions.restatement_statuses["done"]["result"]["snapshotId"] == 3
    (launch,) = actions.launches
    assert launch.run.restatement is not None
    assert [r.name for r in launch.run.restatement.requests] == ["ns/waits"]


def test_a_dataset_without_the_claim_tells_nothing_of_the_table() -> None:
    status = decided(a_world(A, table=a_table(a_ledger("X"), claim="ns/other"))).dataset_status

    assert status is not None
    assert condition(status, "Stalled") == ("True", "TableClaimed")
    assert not {"table", "tombstones", "batches", "buffer"} & set(status)


def test_a_table_that_the_first_batch_will_create_is_no_trouble() -> None:
    create = {"catalog": "main", "name": "air.flights", "create": {"schema": "id INT"}}

    actions = decided(a_world(A, table=NoTable()), a_dataset(table=create, **EAGER))

    assert condition(actions.dataset_status, "Ready") == ("True", "WaitingForFirstBatch")
    assert kinds(actions) == [RunKind.CONSOLIDATION]


def test_what_a_run_used_is_added_once_when_its_end_is_first_shown() -> None:
    spec = a_consolidation(A)
    first = a_result(spec, cpu_seconds=12.2, executor_cpu_seconds=40.1, files_read=30, files_added=2, bytes_added=500)
    failed = an_attempt(spec, AttemptState.FAILED, result=a_result(spec, "Failed", reason="X", cpu_seconds=3.5))
    done = an_attempt(spec, AttemptState.SUCCEEDED, number=2, result=first)
    world = a_world(table=a_table(a_ledger("A")), runs=(a_run(spec, failed, done),))

    new = decided(world).dataset_status
    old = a_dataset(
        status={"usage": {"since": "2026-01-01T00:00:00Z", "runs": 5, "cpuSeconds": 100, "files": 1, "bytes": 9}}
    )
    added = decided(world, old).dataset_status
    again = decided(world, a_dataset(status=added)).dataset_status

    counted = {"runs": 2, "cpuSeconds": 16, "executorCpuSeconds": 41, "filesRead": 30, "files": 2, "bytes": 500}
    assert new is not None
    assert added is not None
    assert again is not None
    assert {k: v for k, v in new["usage"].items() if k != "since"} == counted
    sums = {"runs": 7, "cpuSeconds": 116, "executorCpuSeconds": 41, "filesRead": 30, "files": 3, "bytes": 509}
    assert added["usage"] == {"since": "2026-01-01T00:00:00Z", **sums}
    assert again["usage"] == added["usage"]
