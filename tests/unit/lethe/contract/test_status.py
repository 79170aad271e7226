"""Statuses as models: what is written, and what is read of a status that does not fit."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from lethe.contract.status import (
    PARSED_AT_MOST,
    DatasetStatus,
    RestatementStatus,
    RunEntry,
    StoredStatus,
    TableStatus,
    parse_status,
)

TIME = "2026-01-02T03:04:05Z"
READY = {
    "type": "Ready",
    "status": "True",
    "observedGeneration": 3,
    "lastTransitionTime": TIME,
    "reason": "Available",
    "message": "",
}
RUN = {"name": "run-1", "kind": "Vacuum", "phase": "Succeeded", "attempt": 1, "startTime": TIME}
STATUS = {
    "observedGeneration": 3,
    "conditions": [READY],
    "table": {"uuid": "u", "snapshotId": 9223372036854775807, "snapshotTime": TIME},
    "vacuum": {"decision": "Later", "evictBy": {"time": TIME}},
    "batches": {"promoted": 0, "refusedBatches": [{"batchId": "a"}]},
    "runs": [RUN],
}


def test_what_is_read_is_written_again_as_it_was() -> None:
    assert parse_status(DatasetStatus, STATUS).to_document() == STATUS
    assert parse_status(DatasetStatus, {"runs": [], "table": {}}).to_document() == {"runs": [], "table": {}}


def test_times_are_written_as_kubernetes_writes_them() -> None:
    paris = timezone(timedelta(hours=1))

    entry = RunEntry(name="n", kind="Vacuum", start_time=datetime(2026, 1, 2, 4, 4, 5, 999_999, paris))

    assert DatasetStatus(runs=(entry,)).to_document()["runs"][0]["startTime"] == TIME
    assert entry.start_time == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    with pytest.raises(ValueError, match="no time zone"):
        TableStatus.model_validate({"snapshotTime": "2026-01-02T03:04:05"})


@pytest.mark.parametrize(
    ("wrong", "kept"),
    [
        (None, {}),
        ("text", {}),
        ([], {}),
        ({"observedGeneration": "many", "newField": 1}, {}),
        ({"conditions": "none"}, {}),
        (
            {"conditions": [READY, {**READY, "type": 1}, "text", {"type": "Stalled"}, {"status": "True"}]},
            {"conditions": [READY]},
        ),
        ({"conditions": [{**READY, "status": "Perhaps"}, READY]}, {"conditions": [READY]}),
        (
            {"conditions": [{**READY, "lastTransitionTime": "2026-01-02T03:04:05"}]},
            {"conditions": [{k: READY[k] for k in READY if k != "lastTransitionTime"}]},
        ),
        ({"table": {"snapshotTime": "0001-01-01T00:00:00+05:00", "uuid": "u"}}, {"table": {"uuid": "u"}}),
        ({"table": 3, "vacuum": {"plan": [], "lastRun": {"finishTime": {}}}}, {"vacuum": {"lastRun": {}}}),
        ({"runs": [{"name": "a"}, RUN, {"attempt": "x"}]}, {"runs": [RUN]}),
        ({"runs": [{"name": "a", "kind": "b", "attempt": "x"}]}, {"runs": [{"name": "a", "kind": "b"}]}),
    ],
)
def test_values_that_do_not_fit_are_left_out_and_the_rest_is_read(wrong: Any, kept: dict[str, Any]) -> None:
    assert parse_status(DatasetStatus, wrong).to_document() == kept


def test_a_condition_is_found_by_its_type() -> None:
    status = parse_status(
        RestatementStatus, {"conditions": [{**READY, "status": "False"}, {**READY, "type": "Erased"}]}
    )

    assert (status.is_true("Ready"), status.is_true("Erased"), status.is_true("Stalled")) == (False, True, False)
    assert (status.value_of("Ready"), status.value_of("Stalled")) == ("False", None)


def test_a_status_is_parsed_once_while_it_is_one_of_the_last_that_were_asked_for() -> None:
    stored = StoredStatus(DatasetStatus, STATUS)
    parsed = stored.recent().parsed

    assert stored.recent().parsed is parsed
    for _ in range(PARSED_AT_MOST):
        StoredStatus(DatasetStatus).recent()
    assert stored.recent().parsed is not parsed
    assert stored.recent().parsed == parsed
