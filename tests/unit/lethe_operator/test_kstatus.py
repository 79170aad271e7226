"""What kstatus, and with it Flux, makes of each resource in each of its stages."""

from collections.abc import Mapping
from typing import Any

import pytest
from lethe_operator.reasons import Reason

from tests.unit.lethe_operator.stages import Stage, stages

STAGES = stages()


def kstatus(resource: Mapping[str, Any]) -> str:
    """The rules of sigs.k8s.io/cli-utils/pkg/kstatus for a resource of a kind that it does not know, in their order."""
    metadata, status = resource["metadata"], resource.get("status") or {}
    if metadata.get("deletionTimestamp"):
        return "Terminating"
    if "observedGeneration" in status and status["observedGeneration"] != metadata["generation"]:
        return "InProgress"
    conditions = status.get("conditions") or ()
    for condition in conditions:
        if condition["status"] == "True" and condition["type"] in ("Reconciling", "Stalled"):
            return "InProgress" if condition["type"] == "Reconciling" else "Failed"
    ready = next((c["status"] for c in conditions if c["type"] == "Ready"), None)
    return "Current" if ready in (None, "True") else "InProgress"


@pytest.mark.parametrize("stage", STAGES, ids=str)
def test_each_stage_has_the_kstatus_that_tools_expect(stage: Stage) -> None:
    assert kstatus(stage.body) == stage.kstatus


def test_without_the_default_status_a_new_resource_would_count_as_current() -> None:
    """There may be thousands before it."""
    assert kstatus({"metadata": {"generation": 1}}) == "Current"
    assert all(kstatus(s.body) == "InProgress" for s in STAGES if "nobody" in s.name)


def test_an_edit_that_was_not_observed_yet_is_in_progress() -> None:
    for stage in STAGES:
        assert kstatus({"metadata": {"generation": 2}, "status": stage.status}) == "InProgress"


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
