"""When `--wait` of a Restatement ends: at its commit, when no reader sees the rows, or when their bytes are gone."""

from typing import Any

import pytest
from lethe.kube import RESTATEMENTS
from lethe_kubectl.status import WaitGoal, restatement_ended
from lethe_operator.reasons import Reason

from tests.services.kubectl.conftest import LocalApi
from tests.support.statuses import a_condition, a_restatement_status

SUCCEEDED = a_condition("Succeeded", message="hidden")
ERASED = a_condition("Erased", reason="Erased", message="bytes are gone")
IN_TABLE = a_condition("Erased", "False", "RowsInTable", "a vacuum is due")
UNDONE = a_condition("Erased", "False", "ErasureUndone", "undone")
OTHERS_SEE = a_condition("VisibleToAllEngines", "False", "NativeDeletesFollow")
NONE_SEES = a_condition("VisibleToAllEngines", "True", "NativeDeletesWritten")
STALLED = a_condition("Stalled", "True", "TableNotFound")
FAILED = a_condition("Ready", "False", "RunFailed", "no memory")
END, HIDDEN, GONE = WaitGoal


@pytest.mark.parametrize(
    ("phase", "conditions", "ended"),
    [
        ("Running", (), {}),
        ("Succeeded", (SUCCEEDED, IN_TABLE), {END: "hidden", HIDDEN: "hidden"}),
        ("Succeeded", (SUCCEEDED, OTHERS_SEE, IN_TABLE), {END: "hidden"}),
        ("Succeeded", (SUCCEEDED, NONE_SEES, IN_TABLE), {END: "hidden", HIDDEN: "hidden"}),
        ("Succeeded", (SUCCEEDED, ERASED), {END: "hidden", HIDDEN: "hidden", GONE: "bytes are gone"}),
        ("Succeeded", (), {END: "Succeeded", HIDDEN: "Succeeded"}),
    ],
)
def test_a_wait_succeeds_when_its_goal_is_reached(phase: str, conditions: Any, ended: dict[WaitGoal, str]) -> None:
    status = a_restatement_status(*conditions, phase=phase, observedGeneration=1)

    outcomes = {goal: restatement_ended(status, 1, goal) for goal in WaitGoal}

    assert {goal: o.message for goal, o in outcomes.items() if o is not None and o.succeeded} == ended
    assert {o.succeeded for o in outcomes.values() if o is not None} <= {True}


@pytest.mark.parametrize(
    ("phase", "conditions", "goals"),
    [
        ("Failed", (FAILED,), set(WaitGoal)),
        ("Cancelled", (), set(WaitGoal)),
        ("RolledBack", (SUCCEEDED,), set(WaitGoal)),
        ("Pending", (STALLED,), set(WaitGoal)),
        ("Succeeded", (SUCCEEDED, UNDONE), {GONE}),
        ("Succeeded", (SUCCEEDED, a_condition("Erased", "False", Reason.ERASURE_NOT_WATCHED.value)), {GONE}),
    ],
)
def test_a_wait_ends_where_its_goal_cannot_be_reached(phase: str, conditions: Any, goals: set[WaitGoal]) -> None:
    status = a_restatement_status(*conditions, phase=phase, observedGeneration=1)

    outcomes = {goal: restatement_ended(status, 1, goal) for goal in WaitGoal}

    assert {goal for goal, o in outcomes.items() if o is not None and not o.succeeded} == goals


def test_the_status_of_an_earlier_spec_ends_no_wait() -> None:
    status = a_restatement_status(SUCCEEDED, ERASED, phase="Succeeded", observedGeneration=1)

    assert [restatement_ended(status, 2, goal) for goal in WaitGoal] == [None] * 3


@pytest.mark.parametrize(
    ("wait", "condition", "code", "said"),
    [
        ("--wait", IN_TABLE, 1, "after 0 s: RowsInTable a vacuum is due"),
        ("--wait=gone", ERASED, 0, "bytes are gone"),
        ("--wait=hidden", IN_TABLE, 0, "hidden"),
    ],
)
def test_erase_waits_for_the_bytes_unless_it_is_told_otherwise(
    local: LocalApi, wait: str, condition: Any, code: int, said: str
) -> None:
    """A batch after --wait is no value of the option."""
    local.dataset("flights")
    local.lethe("erase", "flights", "A", "--name", "erase-a")
    shown = {"phase": "Succeeded", "observedGeneration": 1, "conditions": [_document(SUCCEEDED), _document(condition)]}
    local.kube.patch(RESTATEMENTS, "default", "erase-a", {"status": shown}, "status")

    ended = local.lethe("erase", "flights", wait, "A", "--name", "erase-a", "--timeout", "0")

    assert (ended.exit_code, said in ended.output) == (code, True), ended.output
    assert ("next: lethe why restatement/erase-a" in ended.stderr) == (code == 1)


def _document(condition: Any) -> dict[str, Any]:
    document: dict[str, Any] = condition.to_document()
    return document
