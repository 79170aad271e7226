"""The rows, the totals and the attention of a namespace, and the health of its operator."""

from datetime import timedelta
from typing import Any

import pytest
from lethe_gateway.console import rows
from lethe_gateway.console.attention import health_of
from lethe_gateway.console.rows import EndedConsolidation, per_hour

from tests.support.builders import NOW
from tests.support.gateway_lake import run
from tests.support.resources import a_dataset_body, a_restatement_body

STOPPED = {"type": "Succeeded", "status": "False", "reason": "UnknownBatches", "message": "ask the producer"}


def promoted(minutes_ago: float, batches: int, took: float = 1) -> EndedConsolidation:
    finished = NOW - timedelta(minutes=minutes_ago)
    return EndedConsolidation(finished - timedelta(minutes=took), finished, batches)


@pytest.mark.parametrize(
    ("promotions", "batches"),
    [
        ([], 0),
        ([promoted(61, 500)], 0),
        ([promoted(10, 5)], 5),
        ([promoted(1, 4), promoted(20, 4), promoted(70, 4)], 8),
        ([promoted(0, 10), promoted(2, 10), promoted(5, 10, took=1)], 300),
        ([promoted(0, 10, took=0)] * 3, 1800),
    ],
    ids=["none", "long ago", "one", "two of three", "three in six minutes", "three at once count for a minute"],
)
def test_batches_per_hour_follow_from_the_runs_that_a_status_remembers(
    promotions: list[EndedConsolidation], batches: int
) -> None:
    assert per_hour(promotions, NOW) == batches


def a_dataset(name: str, waiting: int, oldest: str, **status: Any) -> rows.DatasetRow:
    ended = {"phase": "Succeeded", "batches": 6, "startTime": "2026-03-01T11:50:00Z"}
    full = {
        "buffer": {"batches": waiting, "bytes": 100 * waiting, "oldestBatchTime": oldest},
        "table": {"rows": 1_000},
        "runs": [run(f"{name}-2"), {**run(f"{name}-1"), **ended, "finishTime": "2026-03-01T11:55:00Z"}],
        **status,
    }
    return rows.dataset_row(a_dataset_body(name, status=full))


def test_the_totals_are_sums_and_the_oldest_batch_names_its_dataset() -> None:
    ready = [{"type": "Ready", "status": "True", "reason": "Available"}]
    datasets = [
        a_dataset("flights", 3, "2026-03-01T11:00:00Z", conditions=ready, erasures={"open": 2}),
        a_dataset("cargo", 4, "2026-03-01T10:00:00Z"),
        rows.dataset_row(a_dataset_body("new")),
    ]

    total = rows.totals(datasets, NOW)

    assert (total.datasets, total.not_ready, total.active_runs, total.open_erasures) == (3, 2, 2, 2)
    assert (total.batches_per_hour, total.rows, total.waiting, total.waiting_bytes) == (12, 2_000, 7, 700)
    assert (total.oldest_of, f"{total.oldest:%H:%M}") == ("cargo", "10:00")


def test_a_failure_needs_attention_until_it_was_repeated_with_success() -> None:
    failed = a_restatement_body("first", status={"phase": "Failed", "conditions": [STOPPED]})
    cancelled = a_restatement_body("other", status={"phase": "Cancelled", "conditions": [STOPPED]}, batchIds=["Z"])
    again = a_restatement_body("second", status={"phase": "Succeeded"})
    before, after = ([rows.restatement_row(r) for r in found] for found in ([failed, cancelled], [failed, again]))

    assert [(a.restatement, a.detail) for a in rows.needs([], before)] == [("first", "ask the producer")]
    assert rows.needs([], after) == []
    assert rows.repeated_by(after) == {"first": "second"}


def test_a_restatement_is_found_by_who_asked_why_and_its_ticket() -> None:
    meta = {"annotations": {"lethe.dev/requested-by": "ana@example.org"}}
    row = rows.restatement_row(a_restatement_body("erase-7", meta=meta, ticket="DSAR-12", reason="Moved away"))
    found = [text for text in ("ERASE", "dsar-12", "moved", "ana@", "DSAR-13") if rows.matches(row, text)]

    assert found == ["ERASE", "dsar-12", "moved", "ana@"]


@pytest.mark.parametrize(
    ("spec", "state"),
    [
        ({"holderIdentity": "lethe", "renewTime": "2026-03-01T11:59:00.000000Z", "leaseDurationSeconds": 180}, "acts"),
        (
            {"holderIdentity": "lethe", "renewTime": "2026-03-01T11:56:59.000000Z", "leaseDurationSeconds": 180},
            "silent",
        ),
        ({"holderIdentity": "lethe"}, "silent"),
        ({"holderIdentity": "", "renewTime": "2026-03-01T11:59:00.000000Z"}, "absent"),
        ({}, "absent"),
    ],
)
def test_an_operator_that_does_not_renew_its_lease_needs_attention(spec: dict[str, Any], state: str) -> None:
    health = health_of({"spec": spec}, NOW)

    assert health.state == state
    assert [a.what for a in health.attention] == ([] if state == "acts" else ["No operator acts here"])
