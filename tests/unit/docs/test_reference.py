"""The generated reference says what the code says."""

from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.scripts import load_script

REFERENCE = Path(__file__).parents[3] / "docs/reference"


@cache
def generator() -> ModuleType:
    return load_script("docs/reference/generate.py")


@cache
def pages() -> dict[str, str]:
    made: dict[str, str] = generator().pages()
    return made


@pytest.mark.parametrize("page", ["resources.md", "reasons.md", "gateway.openapi.json"])
def test_a_page_is_current(page: str) -> None:
    """When this fails: python docs/reference/generate.py"""
    assert pages()[page] == (REFERENCE / page).read_text()


def test_a_field_far_down_and_a_rule_are_on_the_page() -> None:
    """The renderer goes through lists and objects to the last field."""
    for text in (
        "`runTemplate.podTemplate.spec.containers[].env[].valueFrom.secretKeyRef.name`",
        "cancel cannot be taken back",
    ):
        assert text in pages()["resources.md"]


def test_the_schema_of_each_type_of_status_events_is_current() -> None:
    """When this fails: python docs/reference/generate.py"""
    made = generator().schemas()

    assert {f"events/{f.name}": f.read_text() for f in (REFERENCE / "events").iterdir()} == made
