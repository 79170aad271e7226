"""Conditions in the sense of kstatus."""

from dataclasses import replace

from lethe.base.errors import Verdict
from lethe.contract.status import Condition
from lethe_operator import conditions
from lethe_operator.conditions import timestamp

from tests.support.builders import NOW, ago
from tests.support.statuses import document


def test_the_transition_time_moves_only_with_the_status() -> None:
    before = {"status": "False", "reason": "A", "message": "", "last_transition_time": ago(hours=1)}
    old = [Condition(type=type, **before) for type in ("Ready", "Stalled")]
    decided = [Condition.of("Ready", "False", "B", "b"), Condition.of("Stalled", "True", "B")]

    new = [document(c) for c in conditions.written(old, decided, 3, NOW)]

    assert [timestamp(ago(hours=1)), timestamp(NOW)] == [c["lastTransitionTime"] for c in new]
    assert [c["reason"] for c in new] == ["B", "B"]
    assert {3} == {c["observedGeneration"] for c in new}


def test_a_message_is_cut_to_what_people_read() -> None:
    (found,) = conditions.written((), [Condition.of("Ready", "True", "R", "x" * 5000)], 1, NOW)

    assert len(found.message) == conditions.MESSAGE_AT_MOST


def test_what_may_pass_by_itself_is_waited_for_and_the_rest_needs_a_user() -> None:
    away = Verdict("StorageUnavailable", "S3 is away.", transient=True)

    def shown(verdict: Verdict) -> dict[str, tuple[str, str]]:
        return {c.type: (c.status, c.message) for c in conditions.not_ready(verdict)}

    text, no = away.message, ("False", "")
    assert shown(away) == {"Ready": ("False", text), "Reconciling": ("True", text), "Stalled": no}
    assert shown(replace(away, transient=False)) == {
        "Ready": ("False", text),
        "Reconciling": no,
        "Stalled": ("True", text),
    }
