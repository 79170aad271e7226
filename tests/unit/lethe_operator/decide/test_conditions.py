"""Conditions in the sense of kstatus."""

from lethe_operator import conditions
from lethe_operator.conditions import Condition, timestamp

from tests.support.builders import NOW, ago


def test_the_transition_time_moves_only_with_the_status() -> None:
    old = [
        {"type": "Ready", "status": "False", "reason": "A", "lastTransitionTime": timestamp(ago(hours=1))},
        {"type": "Stalled", "status": "False", "reason": "A", "lastTransitionTime": timestamp(ago(hours=1))},
    ]

    new = conditions.as_status(old, [Condition("Ready", "False", "B", "b"), Condition("Stalled", "True", "B")], 3, NOW)

    assert [timestamp(ago(hours=1)), timestamp(NOW)] == [c["lastTransitionTime"] for c in new]
    assert [c["reason"] for c in new] == ["B", "B"]
    assert {3} == {c["observedGeneration"] for c in new}


def test_a_message_is_cut_to_what_people_read() -> None:
    (found,) = conditions.as_status((), [Condition("Ready", "True", "R", "x" * 5000)], 1, NOW)

    assert len(found["message"]) == conditions.MESSAGE_AT_MOST
