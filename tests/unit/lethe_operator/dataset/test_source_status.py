"""What the status says about a source, whatever the inlet reports or does not."""

from datetime import timedelta
from typing import Any

import pytest
from lethe_operator import conditions
from lethe_operator.conditions import timestamp
from lethe_operator.dataset.status import SILENT_AFTER, condition, kept, look_again
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset, parse_dataset

from tests.support.builders import NOW
from tests.support.resources import a_dataset_body
from tests.support.statuses import document as as_shown

SOURCE = {"kafka": {"cluster": "main", "topics": ["flights"], "format": "JSON"}}


def a_dataset(source: Any = None, reported: Any = None) -> Dataset:
    body = a_dataset_body("flights", **({"source": source} if source else {}))
    return parse_dataset({**body, "status": {"source": reported} if reported else {}})


def reported(reason: str, ago: timedelta = timedelta(), message: str = "") -> dict[str, Any]:
    return {"observedTime": timestamp(NOW - ago), "reason": reason, "message": message, "lag": 3}


def test_without_a_source_there_is_nothing_to_say() -> None:
    dataset = a_dataset(reported=reported(Reason.SOURCE_READ))

    assert (condition(dataset, NOW), kept(dataset), look_again(dataset, NOW)) == ((), None, None)


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (Reason.SOURCE_READ, conditions.TRUE),
        (Reason.SOURCE_STARTING, conditions.UNKNOWN),
        (Reason.TABLE_NOT_READY, conditions.UNKNOWN),
        (Reason.OFFSETS_LOST, conditions.FALSE),
        ("AnythingElse", conditions.FALSE),
    ],
)
def test_the_condition_repeats_the_report(reason: str, status: str) -> None:
    (found,) = condition(a_dataset(SOURCE, reported(reason, message="Text.")), NOW)

    assert (found.type, found.status, found.reason, found.message) == (conditions.SOURCE_READ, status, reason, "Text.")


def test_an_inlet_that_says_nothing_is_unknown_and_that_is_noticed_without_a_change() -> None:
    dataset = a_dataset(SOURCE, reported(Reason.SOURCE_READ))
    later = look_again(dataset, NOW)
    assert later is not None
    assert SILENT_AFTER < later - NOW < SILENT_AFTER + timedelta(seconds=5)

    (found,) = condition(dataset, later)

    assert (found.status, found.reason) == (conditions.UNKNOWN, Reason.INLET_SILENT)
    assert look_again(dataset, later) is None
    (never,) = condition(a_dataset(SOURCE), NOW)
    assert (never.reason, never.message) == (Reason.INLET_SILENT, "The inlet has never reported.")


def test_the_operator_leaves_the_report_as_it_is() -> None:
    document = {**reported(Reason.BROKER_AWAY), "fieldOfANewerInlet": 1}

    assert as_shown(kept(a_dataset(SOURCE, document))) == document
