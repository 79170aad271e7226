"""The conditions of each resource in each of its stages."""

import pytest
from lethe_operator.reasons import Reason

from tests.support.stages import Stage, stages

STAGES = stages()


@pytest.mark.parametrize("stage", [s for s in STAGES if "conditions" in s.status], ids=str)
def test_conditions_never_contradict_one_another(stage: Stage) -> None:
    found = {c["type"]: c["status"] for c in stage.status["conditions"]}

    assert [found[t] for t in ("Reconciling", "Stalled")].count("True") <= 1
    if found["Stalled"] == "True":
        assert found["Ready"] == "False"
    if found["Ready"] == "False":
        assert "True" in (found["Reconciling"], found["Stalled"])
    if "Succeeded" in found:
        ended = found["Succeeded"] != "Unknown"
        assert not (ended and found["Reconciling"] == "True")
        assert ended or found["Ready"] == "False"


def test_every_way_to_end_is_among_the_stages() -> None:
    """By phase and the condition Succeeded, which is what scripts wait for."""
    ends = {
        (s.status["phase"], c["status"])
        for s in STAGES
        if s.kind == "Restatement"
        for c in s.status.get("conditions", ())
        if c["type"] == "Succeeded"
    }

    assert ends == {
        ("Pending", "Unknown"),
        ("Queued", "Unknown"),
        ("Running", "Unknown"),
        ("Suspended", "Unknown"),
        ("Succeeded", "True"),
        ("Failed", "False"),
        ("Cancelled", "False"),
        ("RolledBack", "False"),
    }


def test_reasons_are_words_of_the_list_or_a_runs_own() -> None:
    own = {"AlreadyReplaced", "ReplacementNotFound"}
    found = {c["reason"] for s in STAGES for c in s.status.get("conditions", ())}

    assert found <= {str(r) for r in Reason} | own
