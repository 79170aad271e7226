"""What `lethe why` says: a pure function of resources."""

from typing import Any

import pytest
from lethe_kubectl.errors import ResourcePlace
from lethe_kubectl.why import Related, UserStep, command, step_of, subject_of, why
from lethe_operator.reasons import Reason

PLACE = ResourcePlace("context tests", "https://127.0.0.1:1", "air", "kubectl -n air", "lethe {} -n air")


def a_resource(name: str, *conditions: tuple[str, str, str, str], **status: Any) -> dict[str, Any]:
    every = [{"type": t, "status": s, "reason": r, "message": m} for t, s, r, m in conditions]
    return {
        "metadata": {"name": name, "generation": 1},
        "spec": {"datasetRef": {"name": "flights"}},
        "status": {"observedGeneration": 1, "conditions": every, **status},
    }


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_an_answer(reason: Reason) -> None:
    """Either there is nothing to do, or the answer names the reason and a command."""
    answer = why("restatement", a_resource("r", ("Ready", "False", reason.value, "")), Related(), PLACE)

    if step_of(reason) is UserStep.NOTHING:
        assert answer.command == ""
    else:
        assert f"Ready: {reason.value}. {reason.meaning}" in answer.lines[1]
        assert answer.command.startswith(("lethe ", "kubectl "))


@pytest.mark.parametrize("step", list(UserStep))
def test_every_step_but_nothing_has_a_command(step: UserStep) -> None:
    subject = subject_of("dataset", a_resource("flights"))

    assert bool(command(step, subject, PLACE)) == (step is not UserStep.NOTHING)


def test_a_paused_dataset_is_continued_by_removing_the_annotation() -> None:
    paused = a_resource("flights", ("Ready", "True", "Available", "ok"), ("Paused", "True", "Paused", "No run starts."))

    answer = why("dataset", paused, Related(), PLACE)

    assert answer.command == "kubectl -n air annotate dataset flights lethe.dev/paused-"


def test_what_needs_a_person_comes_before_what_goes_on_by_itself() -> None:
    dataset = a_resource(
        "flights",
        ("Ready", "True", "Available", "ok"),
        consolidation={"reason": "EnoughBatches", "message": "37 of 10 batches"},
        vacuum={"reason": "NeedsApproval", "message": "The plan applies 3 tombstones."},
    )

    answer = why("dataset", dataset, Related(), PLACE)

    assert answer.lines == [
        "dataset/flights",
        "  consolidation: EnoughBatches. 37 of 10 batches",
        "  vacuum: NeedsApproval. The plan applies 3 tombstones.",
    ]
    assert answer.command == "lethe approve flights -n air"


def test_topics_that_are_not_read_are_named_though_the_dataset_is_ready() -> None:
    lost = ("SourceRead", "False", "OffsetsLost", "7 offsets have expired.")

    answer = why("dataset", a_resource("flights", ("Ready", "True", "Available", "ok"), lost), Related(), PLACE)

    assert "SourceRead: OffsetsLost. 7 offsets have expired." in answer.lines[1]
    assert answer.command.startswith("kubectl -n air edit dataset flights")


def test_a_reason_of_a_run_leads_to_the_log_of_the_run_that_failed() -> None:
    runs = [{"name": "revert-1", "phase": "Running"}, {"name": "revert-0", "phase": "Failed"}]
    failed = a_resource("r", ("Stalled", "True", "ReplacementAlreadyPromoted", "The batch is in the table."))

    answer = why("restatement", failed, Related(a_resource("flights", runs=runs)), PLACE)

    assert answer.command == "lethe logs revert-0 -n air"


def test_a_healthy_resource_waits_for_nothing() -> None:
    answer = why("dataset", a_resource("flights", ("Ready", "True", "Available", "All is well.")), Related(), PLACE)

    assert (list(answer.lines), answer.command) == (["dataset/flights waits for nothing. All is well."], "")


def test_a_spec_that_the_operator_has_not_read_is_said_to_be_unread() -> None:
    edited = a_resource("flights", ("Ready", "True", "Available", "ok"))
    edited["metadata"]["generation"] = 2

    answer = why("dataset", edited, Related(), PLACE)

    assert "has not read this version" in answer.lines[1]
    assert answer.command == "kubectl -n air describe dataset flights"


def test_names_are_quoted_in_commands() -> None:
    subject = subject_of("dataset", {"metadata": {"name": "a; rm b"}})

    assert command(UserStep.APPROVE, subject, PLACE) == "lethe approve 'a; rm b' -n air"
