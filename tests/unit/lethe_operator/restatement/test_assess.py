"""How a Restatement stands, and in which order those of a Dataset go."""

from typing import Any

import pytest
from lethe.base.errors import Verdict
from lethe.contract.result import Phase, Progress, RequestResult
from lethe.contract.settings import Operation
from lethe.contract.status import RestatementStatus
from lethe_operator.actions import Launch
from lethe_operator.resources.observed import AttemptState, NoTable, ObservedRun, TableView, Unavailable
from lethe_operator.resources.restatement import Restatement
from lethe_operator.restatement import status as restatement_status
from lethe_operator.restatement.assess import RestatementContext, assess
from lethe_operator.restatement.outcome import Assessment, RunHistories, succeeded
from lethe_operator.restatement.queue import in_order

from tests.support.builders import NOW, a_batch, a_ledger, a_request_entry, ago
from tests.support.resources import (
    SETTINGS,
    a_dataset,
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
from tests.support.statuses import a_condition, a_restatement_status, decide, document

REVERT = a_restatement()


def standing(
    r: Restatement = REVERT,
    run: ObservedRun | None = None,
    table: TableView | NoTable | Unavailable | None = None,
    blocker: Verdict | None = None,
) -> Assessment:
    world = a_world(table=table or a_table(), restatements=(r,))
    run_histories = RunHistories(a_dataset(), [run] if run else [], SETTINGS)
    return assess(RestatementContext(r, a_dataset(), world, blocker, run_histories.of(r), NOW, SETTINGS))


def started(r: Restatement = REVERT, run: ObservedRun | None = None, table: TableView | None = None) -> Launch:
    world = a_world(table=table or a_table(), restatements=(r,), runs=(run,) if run else ())
    (launch,) = decide(a_dataset(), world, NOW, SETTINGS).launches
    return launch


def of(r: Restatement, state: AttemptState = AttemptState.FAILED, **changes: Any) -> ObservedRun:
    spec = a_restatement_run(r)
    defaults = {"exit_code": 20} if state is AttemptState.FAILED else {}
    return a_run(spec, an_attempt(spec, state, for_uid=r.meta.uid, **{**defaults, **changes}))


def committed(r: Restatement, **result: Any) -> TableView:
    return a_table(a_ledger(requests=[a_request_entry(r.key, **result)]))


def test_one_that_is_new_waits_for_its_turn_with_a_run_of_its_own() -> None:
    found, launch = standing(), started()

    assert (found.phase, found.succeeded, found.verdict.reason) == ("Queued", "Unknown", "Queued")
    assert found.ready is not None
    assert launch.run.restatement is not None
    (request,) = launch.run.restatement.requests
    assert (REVERT.meta.uid, 1, ("A",)) == (launch.for_uid, launch.run.attempt, request.batch_ids)


@pytest.mark.parametrize(
    "run",
    [
        None,
        of(REVERT, exit_code=10),
        of(REVERT, exit_code=137, oom=True),
        of(REVERT, AttemptState.ACTIVE),
        of(REVERT, AttemptState.SUCCEEDED),
    ],
    ids=["no run", "failed for good", "killed", "still running", "ended"],
)
def test_what_the_ledger_holds_has_succeeded_whatever_the_pod_said(run: ObservedRun | None) -> None:
    found = standing(run=run, table=committed(REVERT, snapshot_id=8642949070972100074, rows_deleted=3, group_size=1))

    assert (found.phase, found.succeeded, found.ready) == ("Succeeded", "True", None)
    assert (found.result.snapshot_id, found.result.rows_deleted) == (8642949070972100074, 3)  # type: ignore[index]


def test_an_erase_by_records_reports_the_rows_that_it_removed_and_none_that_it_hid() -> None:
    """It hides none: a 0 in the column ROWS DELETED would look as if nothing had happened."""
    result = RequestResult(key="ns/erase/0", name="ns/erase", succeeded=True, operation=Operation.ERASE, rows_erased=3)

    by_records, by_batches = (succeeded(result, batches, NOW, by_keys=False).result for batches in (0, 1))

    assert by_records is not None
    assert by_records.rows_erased == 3
    assert (by_records.rows_deleted, by_records.rows_added) == (None, None)
    assert by_batches is not None
    assert by_batches.rows_deleted == 0


@pytest.mark.parametrize("rows", [0, 3])
def test_a_replay_by_keys_reports_the_rows_that_it_removed(rows: int) -> None:
    """Its tombstones hide none, so `rowsDeleted` is 0."""
    keyed = {"batchId": "A2", "uri": "s3://lake/a2/", "keyColumns": ["id"]}
    fix = a_restatement("fix", operation="Replay", batchIds=[], replacement=keyed)

    found = standing(fix, table=committed(fix, operation="Replay", rows_added=3, rows_erased=rows))

    assert found.result is not None
    assert (found.result.rows_erased, found.result.rows_added, found.result.rows_deleted) == (rows, 3, 0)
    assert f"{rows} rows with the keys of its replacement were removed" in found.verdict.message


def test_one_created_again_with_the_same_spec_reports_the_old_result_without_a_run() -> None:
    again = a_restatement(meta={"uid": "another"}, suspend=True, ttlSecondsAfterFinished=60)

    assert REVERT.key == again.key
    assert standing(again, table=committed(REVERT)).phase == "Succeeded"


def test_unknown_batch_ids_are_reported() -> None:
    found = standing(table=committed(REVERT, unknown_batch_ids_count=1, unknown_batch_ids=("A",)))

    assert document(found.plan) == {"batches": 1, "unknownBatchIdsCount": 1, "unknownBatchIds": ["A"]}
    assert "1 batch ids were unknown" in found.verdict.message


def test_what_had_been_taken_back_before_is_said_and_counted() -> None:
    """Whoever restates the same ids twice has not made a mistake, and learns why no rows went."""
    twice = standing(table=committed(REVERT, already_deleted_batch_ids_count=2))
    once = standing(table=committed(REVERT))

    assert (twice.phase, twice.succeeded) == ("Succeeded", "True")
    assert twice.result is not None
    assert twice.result.already_deleted_batch_ids_count == 2
    assert "2 of its batches were already deleted" in twice.verdict.message
    assert once.result is not None
    assert once.result.already_deleted_batch_ids_count is None
    assert "before" not in once.verdict.message


def test_a_replay_whose_replacement_stays_out_says_why_and_what_to_do() -> None:
    replay = a_replay("A", "A2")

    found = standing(replay, table=committed(replay, operation="Replay", replacement_withheld=True))

    assert (found.phase, found.succeeded) == ("Succeeded", "True")
    assert "deleted the batch id spec.replacement.batchId" in found.verdict.message
    assert "Replay that batch id with a replacement that has a new batch id" in found.verdict.message


def test_a_replacement_in_the_buffer_is_refused_for_good() -> None:
    inside = a_restatement(
        operation="Replay", replacement={"batchId": "A2", "uri": "s3://lake/buffer/flights/batch_id=A2/"}
    )

    found = standing(inside)

    assert (found.phase, found.succeeded, found.verdict.reason, found.ready) == (
        "Failed",
        "False",
        "ReplacementInBuffer",
        None,
    )


def test_it_waits_for_a_dataset_that_cannot_run_now() -> None:
    away = Verdict("StorageUnavailable", "S3 is away.", transient=True)
    stuck = Verdict("TableClaimed", "It belongs to ns/other.")

    assert _told(standing(blocker=away)) == ("Pending", "StorageUnavailable", False)
    assert _told(standing(blocker=stuck)) == ("Pending", "TableClaimed", True)


def _told(found: Assessment) -> tuple[str, str, bool]:
    return found.phase, found.verdict.reason, found.stalled


def test_it_waits_for_the_table_to_be_created() -> None:
    found = standing(table=NoTable())

    assert _told(found) == ("Pending", "TableNotFound", False)
    assert None is found.ready


def test_suspend_holds_it_and_a_run_under_way_goes_on() -> None:
    suspended = a_restatement(suspend=True)

    assert (standing(suspended).phase, standing(suspended).ready) == ("Suspended", None)
    assert standing(suspended, of(suspended, AttemptState.ACTIVE)).phase == "Running"


def test_a_cancelled_one_is_as_its_author_wants_it_and_stalls_nobody_now_or_at_the_next_look() -> None:
    """Whoever deploys it waits for Ready, and would wait for ever; a warning would ask somebody to act."""
    cancelled = a_restatement(cancel=True)

    first = restatement_status.status(cancelled, standing(cancelled), NOW)
    seen = a_restatement(cancel=True, status=first)
    again = restatement_status.status(seen, standing(seen), NOW)

    types = ("Ready", "Reconciling", "Stalled", "Succeeded")
    assert [condition(first, t)[0] for t in types] == ["True", "False", "False", "False"]
    assert first == again
    assert [
        (e.verdict.reason, e.warning) for e in restatement_status.events("revert-a", RestatementStatus(), first)
    ] == [("Cancelled", False)]


@pytest.mark.parametrize(
    ("changes", "phase", "reason", "starts"),
    [
        ({"finished_seconds": 5}, "Queued", "RunFailed", False),
        ({"finished_seconds": 10}, "Queued", "RunFailed", True),
        ({"exit_code": None}, "Queued", "DriverLost", True),
        ({"exit_code": 137, "oom": True}, "Queued", "OOMKilled", True),
        ({"exit_code": 10}, "Failed", "RunFailed", False),
    ],
)
def test_a_failed_run_is_repeated_unless_it_failed_for_good(
    changes: dict[str, Any], phase: str, reason: str, starts: bool
) -> None:
    found = standing(run=of(REVERT, **changes))

    assert (phase, reason, starts) == (found.phase, found.verdict.reason, found.ready is not None)


def test_out_of_memory_three_times_stalls_but_does_not_fail_it() -> None:
    spec = a_restatement_run(REVERT)
    kills = [
        an_attempt(spec, AttemptState.FAILED, number=n, exit_code=137, oom=True, for_uid=REVERT.meta.uid)
        for n in (1, 2, 3)
    ]

    found = standing(run=a_run(spec, *kills))

    assert (found.phase, found.succeeded, found.verdict.reason, found.stalled) == (
        "Pending",
        "Unknown",
        "OOMKilled",
        True,
    )


def test_the_failure_of_an_earlier_object_of_the_name_is_not_held_against_it() -> None:
    again = a_restatement(meta={"uid": "another"})

    failed = of(REVERT, exit_code=10)

    assert standing(again, failed).ready is not None
    assert started(again, failed).run.attempt == 2


def test_a_request_that_the_run_refused_fails_with_its_reason() -> None:
    spec = a_restatement_run(REVERT)
    refused = RequestResult(
        key=REVERT.key, name="ns/revert-a", succeeded=False, reason="AlreadyReplaced", message="by B"
    )
    result = a_result(spec, requests=[refused])

    found = standing(run=of(REVERT, AttemptState.SUCCEEDED, result=result))

    assert (found.phase, found.verdict.reason, found.verdict.message) == ("Failed", "AlreadyReplaced", "by B")


def test_an_end_that_the_table_does_not_know_of_is_repeated_with_a_pause() -> None:
    early = standing(run=of(REVERT, AttemptState.SUCCEEDED, finished_seconds=5))

    late = started(run=of(REVERT, AttemptState.SUCCEEDED, finished_seconds=30))

    assert ("CommitNotSeen", None, ago(seconds=-5)) == (early.verdict.reason, early.ready, early.look_again)
    assert late.run.attempt == 2


@pytest.mark.parametrize(
    ("status", "written", "phase", "table"),
    [
        ("False", "Cancelled", "Cancelled", a_table()),
        ("True", "RolledBack", "RolledBack", NoTable()),
        ("True", "Succeeded", "Succeeded", Unavailable("CatalogUnavailable", "away")),
        ("False", "unknown", "Failed", a_table()),
        ("True", None, "Succeeded", a_table()),
    ],
)
def test_what_has_ended_stays_ended(status: str, written: str | None, phase: str, table: Any) -> None:
    """A request ends once, also if its table is gone or cannot be read. For an unknown phase the condition Succeeded decides."""
    succeeded = a_condition(status=status, message="m")
    ended = a_restatement(status=a_restatement_status(succeeded, phase=written, result={"rowsDeleted": 1}))

    found = standing(ended, table=table)

    assert (phase, status, "R", None, {"rowsDeleted": 1}) == (
        found.phase,
        found.succeeded,
        found.verdict.reason,
        found.ready,
        document(found.result),
    )


def test_a_replay_is_about_as_large_as_what_it_replaces() -> None:
    table = a_table(a_ledger(batches=[a_batch("A", bytes=500)]))

    assert started(a_replay("A", "A2"), table=table).bytes == 500
    redact = {"columns": [{"column": "v", "method": "SetNull"}]}
    assert started(a_restatement(operation="Redact", batchIds=["A"], redact=redact), table=table).bytes == 500
    assert started(table=table).bytes == 0


def named(*restatements: Restatement) -> list[str]:
    return [r.meta.name for r in in_order(restatements)]


def test_a_circle_ends() -> None:
    assert named(a_replay("B", "A", "y"), a_replay("A", "B", "x")) == ["x", "y"]


def test_the_status_says_it_in_the_words_of_kstatus() -> None:
    done = restatement_status.status(REVERT, standing(table=committed(REVERT)), NOW)
    waits = restatement_status.status(REVERT, standing(), NOW)
    failed = restatement_status.status(REVERT, standing(run=of(REVERT, exit_code=10)), NOW)

    def summary(status: Any) -> list[str]:
        return [condition(status, t)[0] for t in ("Ready", "Reconciling", "Stalled", "Succeeded")]

    assert summary(done) == ["True", "False", "False", "True"]
    assert summary(waits) == ["False", "True", "False", "Unknown"]
    assert summary(failed) == ["False", "False", "True", "False"]


def test_an_evict_by_that_left_no_obligation_says_that_nobody_watches_over_it() -> None:
    due = a_restatement(evictBySeconds=60)

    status = restatement_status.status(due, standing(due, table=committed(due)), NOW)

    assert condition(status, "Erased") == ("Unknown", "ErasureNotWatched")


def test_a_run_under_way_shows_its_phase_and_tasks() -> None:
    progress = Progress(run_id="x", phase=Phase.WRITING, tasks_done=3, tasks_total=8, updated_time=NOW)

    found = standing(run=of(REVERT, AttemptState.ACTIVE, progress=progress))

    assert (found.phase, found.progress) == ("Running", "Writing 3/8 tasks")


def test_a_pod_that_does_not_start_is_told() -> None:
    found = standing(run=of(REVERT, AttemptState.ACTIVE, waiting="Its pod waits: Unschedulable: no node"))

    assert "Unschedulable" in message(restatement_status.status(REVERT, found, NOW), "Ready")
