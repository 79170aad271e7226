"""An Undo takes back one Restatement, by the key under which the table remembers it."""

from typing import Any

import pytest
from lethe.ledger.ledger import Ledger
from lethe_operator.actions import Actions
from lethe_operator.resources.observed import AttemptState, ObservedRun
from lethe_operator.resources.restatement import Restatement
from lethe_operator.runs import spec as run_specs

from tests.support.builders import NOW, a_ledger, a_request_entry, ago
from tests.support.resources import (
    SETTINGS,
    a_dataset,
    a_restatement,
    a_run,
    a_table,
    a_world,
    an_attempt,
    condition,
    message,
)
from tests.support.statuses import a_condition, a_restatement_status, decide

REVERT = a_restatement("revert-a")


def an_undo(of: str = "revert-a", name: str = "undo", **changes: Any) -> Restatement:
    return a_restatement(name, **{"operation": "Undo", "batchIds": (), "undoes": {"name": of}, **changes})


def decided(*restatements: Restatement, ledger: Ledger | None = None, runs: tuple[ObservedRun, ...] = ()) -> Actions:
    table = a_table(a_ledger(requests=[a_request_entry(REVERT.key)]) if ledger is None else ledger)
    return decide(a_dataset(), a_world(restatements=restatements, table=table, runs=runs), NOW, SETTINGS)


def told(actions: Actions, name: str = "undo") -> tuple[str, str, str]:
    """Phase, reason, and whether somebody has to act."""
    status = actions.restatement_statuses[name]
    return status["phase"], condition(status, "Ready")[1], condition(status, "Stalled")[0]


def test_its_run_is_told_the_key_of_what_it_takes_back() -> None:
    actions = decided(an_undo(), REVERT)

    (launch,) = actions.launches
    (request,) = launch.run.restatement.requests  # type: ignore[union-attr]
    assert (request.operation, request.undoes, request.batch_ids) == ("Undo", REVERT.key, ())
    assert "Undo of revert-a" in launch.why
    assert actions.restatement_statuses["undo"]["undoesKey"] == REVERT.key


def test_it_waits_for_what_it_takes_back_even_when_it_is_older() -> None:
    undo = an_undo(meta={"creationTimestamp": ago(hours=2).isoformat()})

    actions = decided(undo, REVERT, ledger=a_ledger())

    assert [x.run.restatement.requests[0].name for x in actions.launches] == ["ns/revert-a"]  # type: ignore[union-attr]
    assert told(actions) == ("Queued", "WaitingForRestatement", "False")


def test_without_the_restatement_that_it_names_it_says_so_and_waits() -> None:
    actions = decided(an_undo("nobody"), REVERT)

    assert actions.launches == ()
    assert told(actions) == ("Pending", "UndoneRestatementNotFound", "True")
    assert "names nobody, but Dataset flights has no Restatement" in message(
        actions.restatement_statuses["undo"], "Ready"
    )


def test_it_cannot_name_itself() -> None:
    assert told(decided(an_undo("undo")))[1] == "UndoneRestatementNotFound"


def test_what_it_met_before_may_be_deleted() -> None:
    """By its time to live, say, while the Undo waits for its turn or for its next attempt."""
    spec = run_specs.restatements(a_dataset(), [(an_undo(), REVERT.key)])
    failed = an_attempt(spec, AttemptState.FAILED, exit_code=20, for_uid="uid-undo")

    by_status = decided(an_undo(status={"undoesKey": REVERT.key}))
    by_intent = decided(an_undo(), runs=(a_run(spec, failed),))

    for actions in (by_status, by_intent):
        (launch,) = actions.launches
        assert launch.run.restatement.requests[0].undoes == REVERT.key  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("status", "reason"), [("False", "Cancelled"), ("True", "Succeeded")], ids=["ended", "forgotten"]
)
def test_there_is_nothing_to_take_back_of_one_that_is_not_in_the_table(status: str, reason: str) -> None:
    shown = a_restatement_status(a_condition(status=status, reason=reason), phase="P")
    ended = a_restatement("revert-a", status=shown)

    actions = decided(an_undo(), ended, ledger=a_ledger())

    assert actions.launches == ()
    assert told(actions) == ("Failed", "UndoneRestatementNotCommitted", "True")


def test_its_result_counts_what_came_back() -> None:
    undo = an_undo()
    result = a_request_entry(undo.key, operation="Undo", rows_restored=5, tombstones_removed=2, undoes=REVERT.key)
    undone = a_request_entry(REVERT.key, rows_deleted=5, undone_by=undo.key)

    actions = decided(undo, REVERT, ledger=a_ledger(requests=[result, undone]))

    status = actions.restatement_statuses["undo"]
    assert (status["result"]["rowsRestored"], status["result"]["tombstonesRemoved"]) == (5, 2)
    assert "5 rows restored" in message(status, "Ready")
    assert "Restatement ns/undo undid it later" in message(actions.restatement_statuses["revert-a"], "Ready")
