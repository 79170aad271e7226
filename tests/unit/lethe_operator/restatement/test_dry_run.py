"""A dry run says what would be done: by a run of its own kind, and nobody takes its word for a deed."""

from typing import Any

import pytest
from lethe.contract.result import AffectedFiles, RequestResult
from lethe_operator.resources.observed import AttemptState, ObservedRun
from lethe_operator.resources.restatement import Restatement

from tests.support.builders import NOW, a_batch, a_ledger, a_request_entry
from tests.support.resources import (
    SETTINGS,
    a_dataset,
    a_group,
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
from tests.support.statuses import a_condition, a_restatement_status, decide
from tests.unit.lethe_operator.queueing import R, came, decided, ended, members, seen

DRY = a_restatement("dry", dryRun=True, batchIds=["A", "X"])


def planned(r: Restatement = DRY, **changes: Any) -> RequestResult:
    wanted: dict[str, Any] = {
        "succeeded": True,
        "operation": r.spec.operation,
        "rows_deleted": 3,
        "tombstones_added": 2,
        "unknown_batch_ids_count": 1,
        "unknown_batch_ids": ("X",),
        "group_size": 0,
        "plan": AffectedFiles(files=5, bytes=123, whole_files=2),
    }
    return RequestResult(key=r.key, name=r.meta.full_name, **{**wanted, **changes})


def done(r: Restatement = DRY, *answers: RequestResult, **changes: Any) -> ObservedRun:
    spec = a_restatement_run(r)
    result = a_result(spec, "Planned", requests=answers or (planned(r),))
    return a_run(spec, an_attempt(spec, AttemptState.SUCCEEDED, for_uid=r.meta.uid, result=result, **changes))


def test_dry_runs_share_a_run_and_never_one_with_those_that_change_something() -> None:
    dry = [a_restatement(f"d{n}", dryRun=True, batchIds=[f"b{n}"]) for n in range(2)]

    actions = decided(dry[0], *R[:2], dry[1])

    (launch,) = actions.launches
    assert launch.run.restatement is not None
    assert (members(actions), launch.run.restatement.dry_run) == (["d0", "d1"], True)
    assert members(decided(came("older", 9000), *dry, R[0])) == ["older", "r0"]


def test_what_the_run_told_is_its_status_and_it_has_succeeded_as_planned() -> None:
    actions = decided(DRY, runs=(done(),))

    status = actions.restatement_statuses["dry"]
    assert (status["phase"], condition(status, "Succeeded")) == ("Succeeded", ("True", "Planned"))
    assert condition(status, "Ready") == ("True", "Planned")
    assert status["plan"] == {
        "batches": 2,
        "files": 5,
        "bytes": 123,
        "wholeFiles": 2,
        "unknownBatchIdsCount": 1,
        "unknownBatchIds": ["X"],
    }
    assert "result" not in status
    assert message(status, "Ready").startswith(
        "Nothing was changed. The Restatement would hide 3 rows with 2 tombstones. 5 data files"
    )
    assert actions.launches == ()


def test_once_told_it_stays_so_though_the_table_does_not_know_it_whoever_rolls_it_back() -> None:
    """Of a Restatement that was carried out the table's not knowing would mean that it was rolled back."""
    status = a_restatement_status(a_condition(reason="Planned"), phase="Succeeded", plan={"files": 5})
    told = a_restatement("dry", dryRun=True, status=status)
    real = a_restatement("real", status=status)
    before = {"table": {"uuid": "table-uuid", "snapshotId": 1, "sequenceNumber": 5}}
    world = a_world(restatements=(told, real), table=a_table())

    statuses = decide(a_dataset(status=before), world, NOW, SETTINGS).restatement_statuses

    phases = {name: s["phase"] for name, s in statuses.items()}
    assert phases == {"dry": "Succeeded", "real": "RolledBack"}
    assert statuses["dry"]["plan"] == {"files": 5}


def test_one_that_would_be_refused_fails_with_that_reason() -> None:
    refused = planned(succeeded=False, reason="AlreadyReplaced", message="by B", plan=None)

    status = decided(DRY, runs=(done(DRY, refused),)).restatement_statuses["dry"]

    assert (status["phase"], condition(status, "Succeeded")) == ("Failed", ("False", "AlreadyReplaced"))


def test_of_records_it_tells_what_would_be_searched_and_of_keys_that_nobody_looked() -> None:
    values = {"column": "tailnum", "valuesFrom": {"secretKeyRef": {"name": "erase-1", "key": "values"}}}
    erase = a_restatement("erase", operation="Erase", dryRun=True, batchIds=(), rows=values)
    keys = {"batchId": "C1", "uri": "s3://lake/c1/", "keyColumns": ["tailnum"]}
    changes = a_restatement("changes", operation="Replay", dryRun=True, batchIds=["A"], replacement=keys)

    of_erase, of_changes = (
        message(decided(r, runs=(done(r),)).restatement_statuses[r.meta.name], "Ready") for r in (erase, changes)
    )

    assert of_erase.startswith(
        "Nothing was changed. The Erase would search 5 data files of 123 bytes, which may contain such rows"
    )
    assert "Rows with the keys of its replacement are not counted" in of_changes


def test_one_that_was_made_anew_is_planned_anew() -> None:
    again = a_restatement("dry", dryRun=True, batchIds=["A", "X"], meta={"uid": "another"})

    assert members(decided(again, runs=(done(),))) == ["dry"]


def test_a_dry_run_of_a_replay_brings_nothing_that_others_would_have_to_wait_for() -> None:
    dry = a_replay("A", "B", "a-dry", dryRun=True)
    spec = a_restatement_run(dry)
    under_way = a_run(spec, an_attempt(spec, for_uid=dry.meta.uid))
    table = {"table": a_table(a_ledger(batches=[a_batch("A", bytes=500)]))}

    waiting = decided(dry, a_replay("B", "C", "b"), runs=(under_way,), world=dict(table)).restatement_statuses["b"]
    (launch,) = decided(dry, world=dict(table)).launches

    assert condition(waiting, "Ready")[1] == "Queued"
    assert launch.bytes == 0


def test_an_undo_of_a_dry_run_has_nothing_to_take_back() -> None:
    known = seen(decided(DRY, runs=(done(),)), [DRY])
    undo = a_restatement("undo", operation="Undo", batchIds=[], undoes={"name": "dry"})

    status = decided(*known, undo).restatement_statuses["undo"]

    assert condition(status, "Succeeded") == ("False", "UndoneRestatementNotCommitted")


def test_other_writers_need_no_turn_after_a_dry_run() -> None:
    """Nothing was committed that another writer could have lost to."""
    ended_now = done(finished_seconds=0)

    assert members(decided(*seen(decided(DRY, runs=(ended_now,)), [DRY]), came("new", 0), runs=(ended_now,))) == ["new"]
    assert members(decided(came("new", 0), runs=(ended(0),))) == []


@pytest.mark.parametrize("dry", [True, False])
def test_when_its_bytes_must_be_gone_is_said_of_what_was_done_only(dry: bool) -> None:
    r = a_restatement("dry", dryRun=dry, evictBySeconds=60)
    table = {"table": a_table(a_ledger(requests=[] if dry else [a_request_entry(r.key)]))}

    status = decided(r, runs=(done(r),) if dry else (), world=table).restatement_statuses["dry"]

    assert condition(status, "Succeeded")[0] == "True"
    assert dry is not any(c["type"] == "Erased" for c in status["conditions"])


def test_what_a_dry_run_did_is_told_of_its_run() -> None:
    spec = a_group(DRY)
    run = a_run(spec, an_attempt(spec, AttemptState.SUCCEEDED, result=a_result(spec, "Planned", requests=(planned(),))))

    (entry,) = decided(DRY, runs=(run,)).dataset_status["runs"]  # type: ignore[index]

    assert entry["message"] == "Restatements planned: 1, refused: 0. Nothing was changed."
