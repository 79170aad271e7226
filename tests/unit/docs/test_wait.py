"""Each `kubectl wait` of the documentation waits for a condition or a field that the kind has."""

import re
from pathlib import Path
from typing import Any

import pytest
from lethe_operator import conditions

from tests.support.documents import read_yaml

ROOT = Path(__file__).parents[3]
OWN = {"dataset", "restatement", "vacuumpolicy"}
COMMAND = re.compile(r"kubectl wait ([a-z]+)(?:/\S+)? (?:--all )?--for=(\S+)")
COMMON = {conditions.READY, conditions.RECONCILING, conditions.STALLED}
CONDITIONS = {
    "dataset": COMMON
    | {
        conditions.PAUSED,
        conditions.EVENTS_READY,
        conditions.EVICTION_ON_TIME,
        conditions.EVENTS_PUBLISHED,
        conditions.SOURCE_READ,
    },
    "restatement": COMMON | {conditions.SUCCEEDED, conditions.ERASED, conditions.VISIBLE_TO_ALL_ENGINES},
    "vacuumpolicy": COMMON,
}


def waits() -> list[tuple[str, str]]:
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    found = [(kind.removesuffix("s"), what) for p in pages for kind, what in COMMAND.findall(p.read_text())]
    return sorted({(kind, what) for kind, what in found if kind in OWN})


def schema_of(kind: str) -> dict[str, Any]:
    (version,) = read_yaml(ROOT / f"crds/{kind}.yaml")["spec"]["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return found


@pytest.mark.parametrize(("kind", "what"), waits())
def test_it_waits_for_something_that_can_come(kind: str, what: str) -> None:
    how, _, named = what.partition("=")
    if how == "condition":
        assert named.partition("=")[0] in CONDITIONS[kind]
        return
    assert how == "jsonpath"
    schema = schema_of(kind)
    for field in named.partition("=")[0].strip("'{}").removeprefix(".").split("."):
        schema = schema["properties"][field]


def test_the_conditions_are_those_that_the_schema_describes() -> None:
    for kind, names in CONDITIONS.items():
        described = schema_of(kind)["properties"]["status"]["properties"]["conditions"]["description"]
        assert [n for n in sorted(names) if n not in described] == []


def test_the_page_has_recipes_for_every_kind() -> None:
    assert {kind for kind, _ in waits()} == OWN
