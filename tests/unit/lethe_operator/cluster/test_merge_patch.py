"""Documents compared, and the patch between them."""

from typing import Any

import pytest
from lethe.contract.status import DatasetStatus, StoredStatus, TableStatus
from lethe_operator.cluster.status import merge_patch, patch_of

READY = {"type": "Ready", "status": "True", "reason": "Available", "message": ""}


@pytest.mark.parametrize(
    ("old", "new", "patch"),
    [
        ({}, {}, {}),
        ({"a": 1}, {"a": 1}, {}),
        ({"a": 1, "b": 2}, {"a": 1}, {"b": None}),
        ({"a": {"x": 1, "y": 2}}, {"a": {"x": 1}}, {"a": {"y": None}}),
        ({"a": [1, 2]}, {"a": [2]}, {"a": [2]}),
        ({"a": 1}, {"a": {"x": 1}}, {"a": {"x": 1}}),
        ({}, {"a": {}}, {"a": {}}),
        ({"a": 7423456789012345678}, {"a": 7423456789012345679}, {"a": 7423456789012345679}),
    ],
)
def test_a_patch_has_only_what_changed(old: dict[str, Any], new: dict[str, Any], patch: dict[str, Any]) -> None:
    assert patch == merge_patch(old, new)


@pytest.mark.parametrize(
    ("stored", "patch"),
    [
        ({"observedGeneration": 1, "table": {"uuid": "u"}}, {}),
        ({"observedGeneration": 1, "table": {"uuid": "u", "ledger": "l"}}, {"table": {"ledger": None}}),
        ({"observedGeneration": 1, "table": {"uuid": "u"}, "batches": {"promoted": 1}}, {"batches": None}),
        ({"observedGeneration": 1, "table": {"uuid": "u", "snapshotId": "x"}}, {"table": {"snapshotId": None}}),
        ({"observedGeneration": 1, "table": {"uuid": "u"}, "runs": ["x"]}, {"runs": None}),
        ({"table": {"uuid": "u", "newField": 1}}, {"observedGeneration": 1, "table": {"newField": None}}),
        ({"observedGeneration": "x", "table": []}, {"observedGeneration": 1, "table": {"uuid": "u"}}),
    ],
)
def test_what_a_status_no_longer_has_is_removed_even_if_it_does_not_fit(stored: Any, patch: dict[str, Any]) -> None:
    new = DatasetStatus(observed_generation=1, table=TableStatus(uuid="u"))

    assert patch == patch_of(StoredStatus(DatasetStatus, stored), new)


def test_what_a_newer_inlet_reports_is_not_changed() -> None:
    stored = StoredStatus(DatasetStatus, {"source": {"lag": 3, "newField": 1}, "conditions": [READY], "newField": 1})

    new = stored.parsed.model_copy(update={"observed_generation": 1})

    assert patch_of(stored, new) == {"observedGeneration": 1, "newField": None}
