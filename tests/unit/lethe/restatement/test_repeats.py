"""When a failed Restatement was repeated with success, so that it is not called failed for ever."""

from datetime import timedelta
from typing import Any

import pytest
from lethe.restatement.repeats import repetitions, request_of

from tests.support.builders import NOW
from tests.support.resources import a_restatement_body

ROWS = {"column": "tail", "valuesFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}


def a_restatement(name: str, phase: str, minutes: int, **spec: Any) -> dict[str, Any]:
    created = f"{NOW + timedelta(minutes=minutes):%Y-%m-%dT%H:%M:%SZ}"
    return a_restatement_body(name, status={"phase": phase}, meta={"creationTimestamp": created}, **spec)


def redact(*columns: str, **how: str) -> dict[str, Any]:
    return {"operation": "Redact", "rows": ROWS, "redact": {"columns": [{"column": c, **how} for c in columns]}}


@pytest.mark.parametrize(
    ("failed", "later", "is_repeated"),
    [
        ({"batchIds": ["A", "B"]}, {"batchIds": ["B", "A"], "reason": "again", "unknownBatches": "Allow"}, True),
        ({"batchIds": ["A", "B"]}, {"batchIds": ["A"]}, False),
        ({"batchIds": ["A"]}, {"batchIds": ["A"], "operation": "Erase"}, False),
        ({"batchIds": ["A"]}, {"batchIds": ["A"], "datasetRef": {"name": "cargo"}}, False),
        ({"operation": "Erase", "rows": ROWS}, {"operation": "Erase", "rows": ROWS, "ticket": "T-2"}, True),
        ({"operation": "Erase", "rows": ROWS}, {"operation": "Erase", "rows": {**ROWS, "column": "id"}}, False),
        (
            {"operation": "Replay", "replacement": {"batchId": "A2", "uri": "s3://b/broken"}},
            {"operation": "Replay", "replacement": {"batchId": "A2", "uri": "s3://b/mended"}},
            True,
        ),
        (redact("a", "b", method="Constant", value="x"), redact("b", "a", method="SetNull"), True),
        (redact("a"), redact("b"), False),
        ({"dryRun": True}, {}, True),
        ({}, {"dryRun": True}, False),
    ],
    ids=[
        "ids",
        "fewer ids",
        "operation",
        "Dataset",
        "rows",
        "column",
        "replacement",
        "redacted",
        "other columns",
        "after a dry run",
        "dry run",
    ],
)
def test_a_later_success_with_the_same_selection_repeats_it(
    failed: dict[str, Any], later: dict[str, Any], is_repeated: bool
) -> None:
    documents = [a_restatement("first", "Failed", 0, **failed), a_restatement("second", "Succeeded", 5, **later)]

    assert repetitions(map(request_of, documents)) == ({"first": "second"} if is_repeated else {})


@pytest.mark.parametrize(("phase", "minutes"), [("Succeeded", -1), ("Failed", 5), ("Running", 5), ("Cancelled", 5)])
def test_an_earlier_success_and_what_did_not_succeed_repeat_nothing(phase: str, minutes: int) -> None:
    documents = [a_restatement("first", "Failed", 0), a_restatement("second", phase, minutes)]

    assert repetitions(map(request_of, documents)) == {}


def test_after_several_tries_the_latest_success_is_named() -> None:
    tries = ["Failed", "RolledBack", "Succeeded", "Failed", "Succeeded"]
    documents = [a_restatement(f"try-{n}", phase, n) for n, phase in enumerate(tries)]

    assert repetitions(map(request_of, documents)) == dict.fromkeys(("try-0", "try-1", "try-3"), "try-4")
