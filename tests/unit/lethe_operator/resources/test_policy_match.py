"""Which VacuumPolicy decides for a Dataset."""

from typing import Any

import pytest
from lethe.contract.vacuum_policy import Selector
from lethe_operator.resources.vacuum_policy import match, selects

from tests.support.builders import ago
from tests.support.resources import a_policy

LABELS = {"team": "air", "tier": "gold"}


def selecting(name: str, age_hours: float = 1, **labels: str) -> Any:
    created = {"creationTimestamp": ago(hours=age_hours).isoformat()}
    return a_policy(name, meta=created, datasetSelector={"matchLabels": labels})


def test_the_most_specific_policy_applies_whatever_its_age() -> None:
    everything, team, both = selecting("all", 9), selecting("team", 5, team="air"), selecting("both", 1, **LABELS)

    found = match([everything, team, both], LABELS)

    assert both is found.decides
    assert {"all", "team"} == {p.meta.name for p in found.outranked}


def test_of_equals_the_oldest_decides_then_the_name() -> None:
    young, old = selecting("a", 1, team="air"), selecting("z", 5, tier="gold")

    found = match([young, old], LABELS)

    assert (old, (young,)) == (found.decides, found.tied)
    assert match([selecting("b"), selecting("a")], LABELS).decides.meta.name == "a"  # type: ignore[union-attr]


def test_a_policy_that_is_being_deleted_or_selects_others_does_not_apply() -> None:
    gone = a_policy("gone", meta={"deletionTimestamp": ago(seconds=1).isoformat()})

    assert None is match([gone, selecting("sea", team="sea")], LABELS).decides


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        ({"key": "team", "operator": "In", "values": ["air", "sea"]}, True),
        ({"key": "team", "operator": "NotIn", "values": ["air"]}, False),
        ({"key": "absent", "operator": "NotIn", "values": ["air"]}, True),
        ({"key": "tier", "operator": "Exists"}, True),
        ({"key": "tier", "operator": "DoesNotExist"}, False),
    ],
)
def test_expressions_mean_what_they_mean_in_kubernetes(requirement: dict[str, Any], expected: bool) -> None:
    assert expected is selects(Selector.model_validate({"matchExpressions": [requirement]}), LABELS)
