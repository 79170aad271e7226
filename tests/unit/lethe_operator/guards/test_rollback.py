"""A table that was rolled back stops everything until somebody says how to go on."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from lethe.contract.run import RunKind
from lethe.ledger.ledger import Ledger
from lethe_operator.actions import Actions
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import AttemptState, Engine, NoTable, Observation, TableView
from lethe_operator.resources.restatement import Restatement

from tests.support.builders import NOW, a_batch, a_history, a_ledger, a_request_entry, a_snapshot, ago
from tests.support.resources import (
    SETTINGS,
    a_buffered,
    a_consolidation,
    a_dataset,
    a_group,
    a_policy,
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

EAGER = {"consolidation": {"minBatches": 1}}
A, OLD = a_buffered("A"), a_buffered("OLD")
#   1 - 2 - 3 (seen)
#        \- 4 (a commit after the rollback to 2)
HISTORY = a_history(a_snapshot(1), a_snapshot(2, 1), a_snapshot(3, 2), a_snapshot(4, 2))


def at(head: int | None, ledger: Ledger | None = None, **changes: Any) -> TableView:
    line, current = {}, head
    while current is not None:
        line[current] = HISTORY[current]
        current = HISTORY[current].parent_id
    return a_table(
        ledger,
        **{"head_id": head, "head_sequence_number": head or 0, "ancestry": line, "uuid": "table-uuid", **changes},
    )


def saw(snapshot: int = 3, accept: str | None = None, heard: str | None = None, **table: Any) -> Dataset:
    """A Dataset whose operator saw this head last."""
    seen = {"uuid": "table-uuid", "snapshotId": snapshot, "sequenceNumber": snapshot, "location": "as it was", **table}
    seen |= {"acceptedHead": heard} if heard else {}
    annotations = {"lethe.dev/accept-head": accept} if accept else {}
    return a_dataset(status={"table": seen}, meta={"annotations": annotations}, **EAGER)


def decided(dataset: Dataset, table: Any, *restatements: Restatement, **changes: Any) -> Actions:
    """With a batch to promote, a Restatement, a vacuum and a clean-up of the buffer that are all due."""
    if isinstance(table, TableView):
        promoted = a_batch("OLD", time=ago(days=9), objects=OLD.data_objects)
        grown = {**table.ledger.batches, "OLD": promoted}
        table = replace(table, ledger=replace(table.ledger, batches=grown, tombstones=a_ledger(*"WXYZ").tombstones))
    asked = (a_restatement("new"), *restatements)
    world = a_world(A, OLD, restatements=asked, policies=(a_policy(),), table=table, **changes)
    return decide(dataset, world, NOW, SETTINGS)


def kinds(actions: Actions) -> list[RunKind]:
    return [launch.run.kind for launch in actions.launches]


def reasons(actions: Actions) -> Sequence[str]:
    return [e.verdict.reason for e in actions.events if e.kind == "Dataset"]


def test_everything_stops_and_asks_with_both_snapshots_and_the_command() -> None:
    actions = decided(saw(), at(2))

    status = actions.dataset_status
    assert status is not None
    assert (kinds(actions), actions.sweep, actions.delete_jobs) == ([], 0, ())
    assert condition(status, "Ready") == ("False", "TableRolledBack")
    assert condition(status, "Stalled") == ("True", "TableRolledBack")
    for told in (
        "is snapshot 2,",
        "from snapshot 3,",
        "kubectl annotate datasets.lethe.dev flights -n ns --overwrite lethe.dev/accept-head=2",
    ):
        assert told in message(status, "Ready")
    assert condition(actions.restatement_statuses["new"], "Stalled") == ("True", "TableRolledBack")


def test_the_head_that_was_seen_stays_in_the_status_so_that_the_next_look_stops_too() -> None:
    dataset = saw()

    actions = decided(dataset, at(4))

    assert actions.dataset_status["table"] == document(dataset.status.table)  # type: ignore[index]


@pytest.mark.parametrize(
    ("dataset", "table"),
    [
        pytest.param(saw(3), at(3), id="the head is the one that was seen"),
        pytest.param(saw(2), at(4), id="it grew"),
        pytest.param(a_dataset(**EAGER), at(2), id="nothing was seen yet"),
        pytest.param(saw(2, sequenceNumber=None), at(4), id="seen by a version that noted no number"),
    ],
)
def test_what_is_no_rollback_goes_on_and_is_noted(dataset: Dataset, table: TableView) -> None:
    actions = decided(dataset, table)

    assert kinds(actions) == [RunKind.RESTATEMENT, RunKind.VACUUM]
    assert actions.sweep
    seen = actions.dataset_status["table"]  # type: ignore[index]
    assert (seen["snapshotId"], seen["sequenceNumber"]) == (table.head_id, table.head_id)


def test_a_table_without_snapshots_can_be_accepted_too() -> None:
    stopped = decided(saw(3), at(None))
    accepted = decided(saw(3, accept="none"), at(None))

    assert "lethe.dev/accept-head=none" in message(stopped.dataset_status, "Ready")
    assert kinds(accepted) == [RunKind.RESTATEMENT, RunKind.VACUUM]
    assert "snapshotId" not in accepted.dataset_status["table"]  # type: ignore[index]


def test_once_the_head_is_accepted_work_goes_on_from_it() -> None:
    actions = decided(saw(accept="2"), at(2))

    assert kinds(actions) == [RunKind.RESTATEMENT, RunKind.VACUUM]
    assert condition(actions.dataset_status, "Ready")[0] == "True"
    seen = actions.dataset_status["table"]  # type: ignore[index]
    assert (seen["snapshotId"], seen["sequenceNumber"], seen["acceptedHead"]) == (2, 2, "2")
    assert "HeadAccepted" in reasons(actions)
    again = decided(
        a_dataset(status=actions.dataset_status, meta={"annotations": {"lethe.dev/accept-head": "2"}}), at(2)
    )
    assert again.dataset_status["table"] == seen  # type: ignore[index]
    assert "HeadAccepted" not in reasons(again)


def test_another_head_than_the_one_that_was_accepted_is_asked_for_again() -> None:
    """Another writer committed between the observation and the annotation."""
    actions = decided(saw(accept="2"), at(4))

    assert kinds(actions) == []
    assert "lethe.dev/accept-head=4" in message(actions.dataset_status, "Ready")


def test_an_accepted_value_does_not_cover_a_second_rollback_to_the_same_head() -> None:
    """The message then asks for another word, so that one command is enough."""
    first = decided(saw(3, accept="2", heard="2"), at(2))
    second = decided(saw(3, accept="2/3", heard="2"), at(2))
    third = decided(saw(3, accept="2/3", heard="2/3"), at(2))

    assert (kinds(first), kinds(third)) == ([], [])
    assert "lethe.dev/accept-head=2/3 (" in message(first.dataset_status, "Ready")
    assert "lethe.dev/accept-head=2 (" in message(third.dataset_status, "Ready")
    assert kinds(second) == [RunKind.RESTATEMENT, RunKind.VACUUM]
    assert second.dataset_status["table"]["acceptedHead"] == "2/3"  # type: ignore[index]


def test_a_table_that_is_brought_back_goes_on_by_itself() -> None:
    stopped = decided(saw(3), at(2))

    actions = decided(a_dataset(status=stopped.dataset_status), at(3))

    assert kinds(actions) == [RunKind.RESTATEMENT, RunKind.VACUUM]
    assert condition(actions.dataset_status, "Ready")[0] == "True"


def test_a_table_that_was_dropped_is_compared_when_it_is_registered_again() -> None:
    gone = decided(saw(3), NoTable())

    actions = decided(a_dataset(status=gone.dataset_status, **EAGER), at(2))

    assert condition(actions.dataset_status, "Ready") == ("False", "TableRolledBack")


def test_a_run_gets_the_head_on_which_it_was_decided() -> None:
    """What happens between this look and its start is the run's to notice."""
    batches = a_consolidation(A)
    failed = a_run(
        batches.model_copy(update={"seen_snapshot_id": 1}), an_attempt(batches, AttemptState.FAILED, exit_code=20)
    )
    world = Observation(runs=(failed,), table=at(3), buffer=a_world(A).buffer)

    (launch,) = decide(saw(), world, NOW, SETTINGS).launches

    assert (launch.run.seen_snapshot_id, launch.run.seen_sequence_number, launch.run.attempt) == (3, 3, 2)


@pytest.mark.parametrize("engine", list(Engine), ids=lambda e: f"by {e}")
def test_a_group_that_found_the_table_rolled_back_waits_as_a_whole_and_goes_on_once_that_is_settled(
    engine: Engine,
) -> None:
    """None of them caused it: none is refused, and each status says what to do."""
    members = a_restatement("new"), a_restatement("other", batchIds=["B"])
    spec = a_group(*members)
    result = a_result(spec, "Failed", reason="TableRolledBack", message="It was rolled back.", permanent=True)
    failed = an_attempt(spec, AttemptState.FAILED, exit_code=10, result=result, engine=engine)
    world = Observation(restatements=members, runs=(a_run(spec, failed),), table=at(2), buffer=a_world(A).buffer)

    stopped, accepted = decide(saw(3), world, NOW, SETTINGS), decide(saw(3, accept="2"), world, NOW, SETTINGS)

    assert kinds(stopped) == []
    for status in stopped.restatement_statuses.values():
        assert condition(status, "Succeeded") == ("Unknown", "TableRolledBack")
        assert "lethe.dev/accept-head=2" in message(status, "Ready")
    assert len(stopped.restatement_statuses) == 2
    (launch,) = accepted.launches
    assert launch.run.restatement is not None
    assert [r.name for r in launch.run.restatement.requests] == ["ns/new", "ns/other"]


@pytest.mark.parametrize("kind", [RunKind.CONSOLIDATION, RunKind.RESTATEMENT])
def test_a_run_that_found_the_table_rolled_back_is_tried_again_once_that_is_settled(kind: RunKind) -> None:
    """Exit code 10 means that the user must act; here the user did, and the Dataset shows it."""
    revert = a_restatement("new")
    spec = a_consolidation(A) if kind is RunKind.CONSOLIDATION else a_restatement_run(revert)
    result = a_result(spec, "Failed", reason="TableRolledBack", message="It was rolled back.")
    served = "" if kind is RunKind.CONSOLIDATION else revert.meta.uid
    refused = a_run(spec, an_attempt(spec, AttemptState.FAILED, exit_code=10, result=result, for_uid=served))
    asked = () if kind is RunKind.CONSOLIDATION else (revert,)
    world = Observation(restatements=asked, runs=(refused,), table=at(2), buffer=a_world(A).buffer)

    stopped, accepted = decide(saw(3), world, NOW, SETTINGS), decide(saw(3, accept="2"), world, NOW, SETTINGS)

    assert (kinds(stopped), kinds(accepted)) == ([], [kind])


def _succeeded(name: str = "done") -> Restatement:
    result = {"snapshotId": 3, "rowsDeleted": 5}
    return a_restatement(name, status=a_restatement_status(a_condition(), phase="Succeeded", result=result))


@pytest.mark.parametrize("dataset", [saw(), saw(accept="2")], ids=["asked", "accepted"])
def test_a_restatement_that_the_table_no_longer_knows_shows_it(dataset: Dataset) -> None:
    actions = decided(dataset, at(2), _succeeded())

    status = actions.restatement_statuses["done"]
    assert status["phase"] == "RolledBack"
    assert condition(status, "Succeeded") == ("False", "RolledBack")
    assert condition(status, "Stalled") == ("True", "RolledBack")
    assert "committed in snapshot 3" in message(status, "Ready")
    assert status["result"] == {"snapshotId": 3, "rowsDeleted": 5}
    assert [e.verdict.reason for e in actions.events if e.name == "done"] == ["RolledBack"]


def test_without_a_rollback_an_end_is_an_end() -> None:
    actions = decided(saw(2), at(2), _succeeded())

    assert condition(actions.restatement_statuses["done"], "Succeeded")[0] == "True"


def test_one_that_the_table_still_knows_stays_succeeded() -> None:
    done = _succeeded()

    actions = decided(saw(), at(2, a_ledger(requests=[a_request_entry(done.key)])), done)

    assert condition(actions.restatement_statuses["done"], "Succeeded")[0] == "True"


def test_it_has_succeeded_again_when_the_table_is_brought_back() -> None:
    forgotten = decided(saw(), at(2), _succeeded()).restatement_statuses["done"]
    done = a_restatement("done", status=forgotten)

    actions = decided(saw(), at(3, a_ledger(requests=[a_request_entry(done.key)])), done)

    assert condition(actions.restatement_statuses["done"], "Succeeded")[0] == "True"


def test_a_forgotten_restatement_is_not_carried_out_again_unasked() -> None:
    forgotten = decided(saw(), at(2), _succeeded()).restatement_statuses["done"]

    actions = decided(saw(2), at(2), a_restatement("done", status=forgotten))

    assert [x.run.restatement.requests[0].name for x in actions.launches if x.run.restatement] == ["ns/new"]
    assert "done" not in actions.restatement_statuses  # it says what it said
