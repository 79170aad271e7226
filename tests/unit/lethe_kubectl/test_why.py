"""What `lethe why` and `lethe runs` say of resources, and what errors of the API server become: pure functions."""

from datetime import UTC, datetime
from typing import Any

import pytest
from lethe.base.errors import InputError, TransientError
from lethe.kube import Away, KubeError, error_of
from lethe_kubectl.errors import ResourcePlace, explained
from lethe_kubectl.status import RUN_HEADERS, WIDE_RUN_HEADERS, run_rows, runs_of
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


@pytest.mark.parametrize("step", list(UserStep))
@pytest.mark.parametrize("kind", ["dataset", "restatement", "vacuumpolicy"])
def test_a_command_of_kubectl_names_the_group_of_the_kind(kind: str, step: UserStep) -> None:
    """In a cluster with another operator that has a kind Dataset, kubectl would take that one."""
    subject = subject_of(kind, a_resource("flights"))
    suggested = command(step, subject, PLACE, "lethe.dev/accept-head=none").split()

    if suggested[:1] == ["kubectl"]:
        assert suggested[4].endswith(".lethe.dev"), suggested


def test_a_paused_dataset_is_continued_by_removing_the_annotation() -> None:
    paused = a_resource("flights", ("Ready", "True", "Available", "ok"), ("Paused", "True", "Paused", "No run starts."))

    answer = why("dataset", paused, Related(), PLACE)

    assert answer.command == "kubectl -n air annotate dataset.lethe.dev flights lethe.dev/paused-"


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
    assert answer.command.startswith("kubectl -n air edit dataset.lethe.dev flights")


def test_a_reason_of_a_run_leads_to_the_log_of_the_run_that_failed() -> None:
    phases = {"revert-1": "Running", "revert-0": "Failed"}
    runs = [{"name": name, "kind": "Restatement", "phase": phase} for name, phase in phases.items()]
    failed = a_resource("r", ("Stalled", "True", "ReplacementAlreadyPromoted", "The batch is in the table."))

    answer = why("restatement", failed, Related(a_resource("flights", runs=runs)), PLACE)

    assert answer.command == "lethe logs revert-0 -n air"


def test_what_becomes_no_batch_is_named_although_the_dataset_is_ready() -> None:
    """The first that a producer forgets is _SUCCESS."""
    refused = {"batchId": "B", "reason": "SchemaMismatch", "message": "a.csv: column price is missing"}
    dataset = a_resource(
        "flights",
        ("Ready", "True", "Available", "ok"),
        consolidation={"reason": "NothingWaits", "message": "No batch waits."},
        buffer={"batches": 0, "waiting": 2, "invalid": 1, "invalidFolders": [{"folder": "x", "message": "no id"}]},
        batches={"refused": 1, "refusedBatches": [refused]},
    )

    incomplete, invalid, of_refused = (line.strip() for line in why("dataset", dataset, Related(), PLACE).lines[1:])

    assert incomplete.startswith("buffer: IncompleteBatches. 2 of its folders have no _SUCCESS yet")
    assert invalid == "buffer: InvalidEntries. 1 of its entries are no batches: x: no id"
    assert of_refused.endswith("1 were refused, such as B: SchemaMismatch a.csv: column price is missing")


@pytest.mark.parametrize(
    ("status", "next_command"),
    [
        ({"buffer": {"waiting": 1}}, "lethe why dataset/flights -n air"),
        ({"batches": {"refused": 3}}, "lethe batches flights --state refused -n air"),
        ({"buffer": {"batches": 3}, "batches": {"promoted": 3, "refused": 0}}, ""),
    ],
)
def test_where_to_look_at_what_becomes_no_batch(status: dict[str, Any], next_command: str) -> None:
    dataset = a_resource("flights", ("Ready", "True", "Available", "ok"), **status)

    assert why("dataset", dataset, Related(), PLACE).command == next_command


def test_a_healthy_resource_waits_for_nothing() -> None:
    answer = why("dataset", a_resource("flights", ("Ready", "True", "Available", "All is well.")), Related(), PLACE)

    assert (list(answer.lines), answer.command) == (["dataset/flights waits for nothing. All is well."], "")


def test_a_spec_that_the_operator_has_not_read_is_said_to_be_unread() -> None:
    edited = a_resource("flights", ("Ready", "True", "Available", "ok"))
    edited["metadata"]["generation"] = 2

    answer = why("dataset", edited, Related(), PLACE)

    assert "has not read this version" in answer.lines[1]
    assert answer.command == "kubectl -n air describe dataset.lethe.dev flights"


def test_names_are_quoted_in_commands() -> None:
    subject = subject_of("dataset", {"metadata": {"name": "a; rm b"}})

    assert command(UserStep.APPROVE, subject, PLACE) == "lethe approve 'a; rm b' -n air"


NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def a_dataset(name: str, *runs: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"runs": list(runs)}}


RUNNING = {
    "name": "flights-c-2", "kind": "Consolidation", "phase": "Writing", "progress": "12/40 tasks", "executors": "2/4",
    "attempt": 2, "startTime": "2026-03-01T11:58:30Z",
}  # fmt: skip
FAILED = {
    "name": "ships-v-1", "kind": "Vacuum", "phase": "Failed", "reason": "OOMKilled", "message": "Killed.", "attempt": 1,
    "startTime": "2026-03-01T10:00:00Z", "finishTime": "2026-03-01T10:05:00Z",
}  # fmt: skip


def test_the_newest_run_of_all_datasets_is_first() -> None:
    found = runs_of([a_dataset("ships", FAILED), a_dataset("flights", RUNNING), {"metadata": {"name": "new"}}])

    assert [(run.dataset, run.name) for run in found] == [("flights", "flights-c-2"), ("ships", "ships-v-1")]
    assert [run.name for run in runs_of([a_dataset("ships", FAILED, RUNNING)], active=True)] == ["flights-c-2"]


def test_a_run_that_has_not_started_is_before_all_others() -> None:
    found = runs_of([a_dataset("flights", RUNNING, {**RUNNING, "name": "flights-c-3", "startTime": None})])

    assert [run.name for run in found] == ["flights-c-3", "flights-c-2"]


def test_a_row_has_the_time_since_the_start_and_the_time_it_took() -> None:
    active, ended = run_rows(runs_of([a_dataset("ships", FAILED), a_dataset("flights", RUNNING)]), NOW, wide=False)

    assert active == ["flights-c-2", "flights", "Consolidation", "Writing", "12/40 tasks", "2", "90s", "90s", ""]
    assert ended == ["ships-v-1", "ships", "Vacuum", "Failed", "", "1", "2h", "5m", "OOMKilled"]
    assert len(active) == len(RUN_HEADERS)


def test_a_wide_row_has_executors_and_the_message() -> None:
    (active,) = run_rows(runs_of([a_dataset("flights", RUNNING)]), NOW, wide=True)
    (ended,) = run_rows(runs_of([a_dataset("ships", FAILED)]), NOW, wide=True)

    assert (active[-2:], ended[-2:]) == (["2/4", ""], ["", "Killed."])
    assert len(active) == len(RUN_HEADERS + WIDE_RUN_HEADERS)


WHERE = ResourcePlace("context tests", "https://127.0.0.1:1", "air", "kubectl", "lethe {}")


def answer(reason: str, message: str) -> bytes:
    return f'{{"kind": "Status", "reason": "{reason}", "message": {message!r}}}'.replace("'", '"').encode()


def test_a_server_that_does_not_answer_is_named() -> None:
    error = explained(Away(0, "NoAnswer", "GET /x: MaxRetryError"), WHERE)

    assert isinstance(error, TransientError)
    assert "context tests (https://127.0.0.1:1) does not answer" in str(error)


MISSING = error_of(404, b"404 page not found", "GET /apis/lethe.dev/v1beta1/datasets")
EXPIRED = error_of(401, answer("Unauthorized", "Unauthorized"), "GET /x")


@pytest.mark.parametrize(
    ("error", "served", "reason"),
    [
        (MISSING, (), "NotInstalled"),
        (MISSING, ("v1",), "OtherVersion"),
        (MISSING, ("v1beta1",), "OlderChart"),
        (EXPIRED, (), "NotLoggedIn"),
    ],
)
def test_what_the_api_server_refuses_has_a_reason(error: KubeError, served: tuple[str, ...], reason: str) -> None:
    assert explained(error, WHERE, served).reason == reason


def test_a_refused_right_without_a_pattern_keeps_its_message() -> None:
    error = explained(error_of(403, answer("Forbidden", "admission refused it"), "POST /x"), WHERE)

    assert isinstance(error, InputError)
    assert error.message == "admission refused it"
