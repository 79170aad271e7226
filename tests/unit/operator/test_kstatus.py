"""What kstatus, and with it Argo CD and Flux, make of a Restatement in each of its states."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from lethe_operator.decide.table import decide, without_dataset
from lethe_operator.resources.observed import AttemptState
from lethe_operator.resources.restatement import Restatement

from tests.builders import NOW, a_ledger, a_request_entry
from tests.unit.operator.builders import (
    SETTINGS,
    a_dataset,
    a_restatement,
    a_restatement_run,
    a_run,
    a_table,
    a_world,
    an_attempt,
)

CRD = Path(__file__).parents[3] / "crds" / "restatement.yaml"


def kstatus(generation: int, status: Mapping[str, Any]) -> str:
    """The rules of sigs.k8s.io/cli-utils/pkg/kstatus for a resource of a kind that it does not know."""
    if status.get("observedGeneration", generation) != generation:
        return "InProgress"
    conditions = {c["type"]: c["status"] for c in status.get("conditions") or ()}
    if conditions.get("Reconciling") == "True":
        return "InProgress"
    if conditions.get("Stalled") == "True":
        return "Failed"
    if "Ready" in conditions:
        return "Current" if conditions["Ready"] == "True" else "InProgress"
    return "Current"


def told(r: Restatement, *attempts: Any, committed: bool = False, paused: bool = False) -> Mapping[str, Any]:
    ledger = a_ledger(requests=[a_request_entry(r.key)] if committed else [])
    runs = (a_run(a_restatement_run(r), *attempts),) if attempts else ()
    dataset = a_dataset(meta={"annotations": {"lethe.dev/paused": "true"}} if paused else None)
    actions = decide(dataset, a_world(restatements=(r,), runs=runs, table=a_table(ledger)), NOW, SETTINGS)
    return actions.restatement_statuses[r.meta.name]


def tried(state: AttemptState, **changes: Any) -> Any:
    return an_attempt(a_restatement_run(a_restatement()), state, for_uid="uid-revert-a", **changes)


def test_one_that_nobody_has_looked_at_yet_is_in_progress() -> None:
    """With no status at all it would be taken for a good end, and there may be thousands before it."""
    (version,) = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    before = version["schema"]["openAPIV3Schema"]["properties"]["status"]["default"]

    assert kstatus(1, {}) == "Current"
    assert kstatus(1, before) == "InProgress"
    assert kstatus(1, told(a_restatement(status=before))) == "InProgress"


@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        (told(a_restatement()), "InProgress"),
        (told(a_restatement(suspend=True)), "InProgress"),
        (told(a_restatement(), paused=True), "InProgress"),
        (told(a_restatement(), tried(AttemptState.ACTIVE)), "InProgress"),
        (told(a_restatement(cancel=True), tried(AttemptState.ACTIVE)), "InProgress"),
        (told(a_restatement(), tried(AttemptState.FAILED, exit_code=20)), "InProgress"),
        (told(a_restatement(), tried(AttemptState.FAILED, exit_code=10)), "Failed"),
        (told(a_restatement(deadlineSeconds=60), tried(AttemptState.ACTIVE)), "InProgress"),
        (told(a_restatement(deadlineSeconds=60)), "Failed"),
        (told(a_restatement(operation="Erase")), "Failed"),
        (told(a_restatement(), committed=True), "Current"),
        (told(a_restatement(cancel=True)), "Current"),
        (told(a_restatement(cancel=True), committed=True), "Current"),
        (without_dataset("flights", [a_restatement()], NOW).restatement_statuses["revert-a"], "InProgress"),
        (without_dataset("flights", [a_restatement(cancel=True)], NOW).restatement_statuses["revert-a"], "Current"),
    ],
    ids=[
        "waits",
        "suspended",
        "Dataset paused",
        "runs",
        "is being cancelled",
        "is tried again",
        "failed for good",
        "over its deadline, runs",
        "over its deadline",
        "not supported",
        "succeeded",
        "cancelled",
        "cancelled too late",
        "no Dataset",
        "cancelled without a Dataset",
    ],
)
def test_each_state_is_what_whoever_waits_takes_it_for(status: Mapping[str, Any], wanted: str) -> None:
    assert kstatus(1, status) == wanted
