"""The generated reference says what the code says."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

REFERENCE = Path(__file__).parents[3] / "docs/reference"


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", REFERENCE / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["resources.md", "reasons.md", "gateway.openapi.json"])
def test_a_page_is_current(page: str) -> None:
    """When this fails: python docs/reference/generate.py"""
    assert generator().pages()[page] == (REFERENCE / page).read_text()


def test_a_field_far_down_and_a_rule_are_on_the_page() -> None:
    """The renderer goes through lists and objects to the last field."""
    page = generator().pages()["resources.md"]

    for told in (
        "`runTemplate.podTemplate.spec.containers[].env[].valueFrom.secretKeyRef.name`",
        "cancel cannot be taken back",
    ):
        assert told in page


def test_the_schema_of_each_type_of_status_events_is_current() -> None:
    """When this fails: python docs/reference/generate.py"""
    made = generator().schemas()

    assert {f"events/{f.name}": f.read_text() for f in (REFERENCE / "events").iterdir()} == made
