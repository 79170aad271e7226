"""Documents compared, and the patch between them."""

from typing import Any

import pytest
from lethe_operator.cluster.status import merge_patch


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
