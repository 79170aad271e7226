"""`lethe vacuum-now` and `lethe approve`: what they print and change, and when a wait ends."""

import json
from typing import Any

import pytest
import yaml
from lethe.contract.kubernetes import APPROVE, VACUUM_NOW
from lethe.contract.status import DatasetStatus
from lethe.kube import DATASETS
from lethe_kubectl.status import WaitOutcome, vacuum_ended

from tests.services.kubectl.conftest import LocalApi
from tests.support.statuses import a_dataset_status

NOW = "2026-03-01T12:00:00Z"
PLANNED = {"decision": "NeedsApproval", "plan": {"digest": "abc"}, "message": "The plan applies 3. To approve it: x"}


def a_status(runs: tuple[dict[str, Any], ...] = (), **vacuum: Any) -> DatasetStatus:
    return a_dataset_status(vacuum=vacuum, runs=runs)


def requested(outcome: str, value: str = NOW) -> DatasetStatus:
    return a_status(decision="Later", requested={"value": value, "outcome": outcome, "message": "m"})


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (DatasetStatus(), None),
        (requested("Running"), None),
        (requested("Succeeded"), WaitOutcome(True, False, "m")),
        (requested("Failed"), WaitOutcome(False, True, "m")),
        (requested("Succeeded", "of an earlier request"), None),
        (a_status(decision="NeedsApproval", message="plan"), WaitOutcome(False, False, "plan")),
        (a_status(decision="Later", reason="InvalidVacuumNow", message="bad"), WaitOutcome(False, False, "bad")),
        (a_status(decision="Later", reason="WaitsForOtherVacuums", message="busy"), None),
    ],
)
def test_a_requested_vacuum_ends_with_the_outcome_of_this_request(
    status: DatasetStatus, expected: WaitOutcome | None
) -> None:
    assert vacuum_ended(status, DatasetStatus(), NOW) == expected


def test_an_approved_vacuum_ends_with_a_run_that_was_not_known_before() -> None:
    old = {"name": "v-1", "kind": "Vacuum", "phase": "Failed", "message": "old"}
    before = a_status((old,), decision="NeedsApproval", lastRun={"runId": "r0"})
    failed = {"name": "v-2", "kind": "Vacuum", "phase": "Failed", "message": "no memory"}

    assert vacuum_ended(before, before, "") is None
    assert vacuum_ended(a_status((failed, old), lastRun={"runId": "r0"}), before, "") == WaitOutcome(
        False, True, "no memory"
    )
    assert vacuum_ended(a_status((old,), lastRun={"runId": "r1", "message": "done"}), before, "") == WaitOutcome(
        True, False, "done"
    )


def annotations(local: LocalApi) -> dict[str, str]:
    return dict(local.kube.get(DATASETS, "default", "flights")["metadata"].get("annotations") or {})


def test_the_annotated_dataset_is_printed_for_git_and_not_changed(local: LocalApi) -> None:
    local.dataset("flights", {"vacuum": PLANNED})

    vacuum = local.lethe("vacuum-now", "flights", "--batch", "a,b", "-o", "yaml")
    approved = local.lethe("approve", "flights", "-o", "json")

    printed = yaml.safe_load(vacuum.stdout)
    assert (printed["kind"], printed["metadata"]["name"]) == ("Dataset", "flights")
    assert printed["metadata"]["annotations"][VACUUM_NOW].endswith(" batches=a%2Cb")
    assert json.loads(approved.stdout)["metadata"]["annotations"] == {APPROVE: "abc"}
    assert approved.stderr == "The plan applies 3.\n"
    assert annotations(local) == {}


def test_the_name_is_the_only_output_with_o_name(local: LocalApi) -> None:
    local.dataset("flights", {"vacuum": PLANNED})

    assert local.lethe("vacuum-now", "flights", "-o", "name").stdout == "dataset/flights\n"
    assert local.lethe("approve", "flights", "--plan", "abc", "-o", "name").stdout == "dataset/flights\n"
    assert annotations(local)[APPROVE] == "abc"


def test_a_wait_that_ends_without_a_vacuum_says_why_and_the_next_command(local: LocalApi) -> None:
    local.dataset("flights", {"vacuum": PLANNED})

    waited = local.lethe("vacuum-now", "flights", "--wait")
    late = local.lethe("approve", "flights", "--plan", "abc", "--wait", "--timeout", "0")

    assert (waited.exit_code, late.exit_code) == (1, 1)
    assert waited.stdout == "dataset/flights vacuum requested\n"
    assert "lethe: dataset/flights: The plan applies 3." in waited.stderr
    assert f"next: lethe why dataset/flights --dir {local.folder.path}" in waited.stderr
    assert "the vacuum has not ended after 0 s" in late.stderr


def test_batches_are_approved_by_a_restatement_and_not_together_with_a_plan(local: LocalApi) -> None:
    local.dataset("flights", {"vacuum": PLANNED})

    approved = local.lethe("approve", "flights", "B7", "--reason", "known", "--ticket", "OPS-1", "-o", "json")
    both = local.lethe("approve", "flights", "B7", "--plan", "abc")

    spec = {"datasetRef": {"name": "flights"}, "operation": "Approve", "batchIds": ["B7"]}
    assert json.loads(approved.stdout)["spec"] == {**spec, "reason": "known", "ticket": "OPS-1"}
    assert (both.exit_code, "Name batches or a --plan, not both." in both.stderr) == (2, True)
    assert annotations(local) == {}


def test_another_plan_than_the_one_that_was_read_is_not_approved(local: LocalApi) -> None:
    local.dataset("flights", {"vacuum": PLANNED})

    refused = local.lethe("approve", "flights", "--plan", "abd")

    assert (refused.exit_code, "the plan is now abc, not abd" in refused.stderr) == (10, True)
    assert annotations(local) == {}
