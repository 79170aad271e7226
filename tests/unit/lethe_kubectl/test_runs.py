"""The rows of `lethe runs`: a pure function of Datasets."""

from datetime import UTC, datetime
from typing import Any

from lethe_kubectl.status import RUN_HEADERS, WIDE_RUN_HEADERS, run_rows, runs_of

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

    assert [(run["dataset"], run["name"]) for run in found] == [("flights", "flights-c-2"), ("ships", "ships-v-1")]
    assert [run["name"] for run in runs_of([a_dataset("ships", FAILED, RUNNING)], active=True)] == ["flights-c-2"]


def test_a_run_that_has_not_started_is_before_all_others() -> None:
    found = runs_of([a_dataset("flights", RUNNING, {"name": "flights-c-3", "phase": "Pending"})])

    assert [run["name"] for run in found] == ["flights-c-3", "flights-c-2"]


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
