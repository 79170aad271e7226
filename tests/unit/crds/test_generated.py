"""Resource definitions come from the models of specs and statuses, and the files in Git are current."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from lethe.contract.definitions import RESOURCES, definition, model_schema
from lethe.contract.kubernetes import Bytes, above_zero
from lethe.contract.schema import (
    ApiModel,
    Int32,
    Required,
    Rule,
    SameAs,
    Shape,
    StoredDefault,
    between,
    entries,
    items,
    keyed_by,
    length,
)
from pydantic import Field

from tests.support.scripts import load_script

ROOT = Path(__file__).parents[3]


@cache
def generated() -> dict[str, str]:
    return load_script("dev/generate.py").files()


class Port(ApiModel):
    """One port."""

    number: Annotated[Int32, between(1, 65_535)]
    """Its number."""


class Limits(ApiModel):
    """Limits of a run."""

    cel_rules = (Rule("has(self.size)", "size is required", ".size"),)

    size: Annotated[Bytes, above_zero("1Mi")] = 64 * 1024 * 1024
    """Bytes of a run,
    at most.
    """


class MoreLimits(Limits):
    """Limits of a run, and of the number of runs."""

    runs: int | None = None
    """How many runs."""


class Example(ApiModel):
    """An example."""

    name: Annotated[str, length(1, 63, pattern="^[a-z]+$")]
    """Its name."""
    ports: Annotated[tuple[Port, ...], keyed_by("number", maximum=8)] = ()
    """Its ports."""
    tags: Annotated[tuple[Annotated[str, length(maximum=16)], ...], items(1, 3, kind="set")] = ()
    """Its tags."""
    labels: Annotated[Mapping[str, str], entries(64)] = Field(default_factory=dict)
    """Its labels."""
    limits: Limits = Limits()
    stored: Annotated[MoreLimits, StoredDefault()] = MoreLimits()
    chosen: Port = Port(number=80)
    needed: Annotated[Limits, Required()] = Limits()
    """Limits that every object names."""
    separator: Annotated[str, StoredDefault()] = ""
    """Between two values; it may be empty."""
    note: str = ""
    """Free text."""
    odd: Annotated[Bytes, above_zero("1Mi")] = 65_537
    """No round number."""
    enabled: bool = False
    """Whether it is on."""
    passed_on: Annotated[Mapping[str, Any], Shape(Port)] = Field(default_factory=dict)


SIZE = {
    "x-kubernetes-int-or-string": True,
    "maxLength": 32,
    "default": "64Mi",
    "description": "Bytes of a run, at most.",
    "x-kubernetes-validations": [{"rule": above_zero("1Mi").rule, "message": above_zero("1Mi").message}],
}
LIMITS = {
    "type": "object",
    "description": "Limits of a run.",
    "x-kubernetes-validations": [{"rule": "has(self.size)", "message": "size is required", "fieldPath": ".size"}],
    "properties": {"size": SIZE},
}
PORT = {
    "type": "object",
    "description": "One port.",
    "required": ["number"],
    "properties": {
        "number": {
            "type": "integer",
            "format": "int32",
            "minimum": 1,
            "maximum": 65_535,
            "description": "Its number.",
        }
    },
}


def test_a_generated_file_is_current() -> None:
    """When this fails: make generate"""
    assert [file for file, content in generated().items() if content != (ROOT / file).read_text()] == []


def test_every_definition_is_generated() -> None:
    """A definition by hand would be another source."""
    assert sorted(f"crds/{path.name}" for path in (ROOT / "crds").iterdir()) == sorted(
        file for file in generated() if file.startswith("crds/")
    )


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.kind)
def test_a_file_is_the_definition_and_nothing_else(resource: Any) -> None:
    """YAML reads some texts as other values, such as a time or a boolean."""
    text = generated()[f"crds/{resource.kind.lower()}.yaml"]
    assert yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) == definition(resource)


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (
            "name",
            {
                "type": "string",
                "minLength": 1,
                "maxLength": 63,
                "pattern": "^[a-z]+$",
                "description": "Its name.",
            },
        ),
        (
            "ports",
            {
                "type": "array",
                "maxItems": 8,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["number"],
                "description": "Its ports.",
                "items": PORT,
            },
        ),
        (
            "tags",
            {
                "type": "array",
                "minItems": 1,
                "maxItems": 3,
                "x-kubernetes-list-type": "set",
                "description": "Its tags.",
                "items": {"type": "string", "maxLength": 16},
            },
        ),
        (
            "labels",
            {
                "type": "object",
                "maxProperties": 64,
                "description": "Its labels.",
                "additionalProperties": {"type": "string"},
            },
        ),
        ("limits", LIMITS),
        (
            "stored",
            {
                **LIMITS,
                "default": {},
                "description": "Limits of a run, and of the number of runs.",
                "properties": {
                    "size": SIZE,
                    "runs": {"type": "integer", "format": "int64", "description": "How many runs."},
                },
            },
        ),
        ("chosen", {**PORT, "default": {"number": 80}}),
        ("needed", {**LIMITS, "description": "Limits that every object names."}),
        ("separator", {"type": "string", "default": "", "description": "Between two values; it may be empty."}),
        ("odd", {**SIZE, "default": 65_537, "description": "No round number."}),
        ("note", {"type": "string", "description": "Free text."}),
        ("enabled", {"type": "boolean", "default": False, "description": "Whether it is on."}),
        ("passedOn", PORT),
    ],
)
def test_a_field_has_its_type_limits_default_rules_and_docstring(field: str, expected: dict[str, Any]) -> None:
    assert model_schema(Example)["properties"][field] == expected


def test_a_field_without_a_default_is_required_and_one_that_says_so() -> None:
    """Parsing has a default for the second, for objects from before it was required."""
    assert model_schema(Example)["required"] == ["name", "needed"]
    assert Example(name="a").needed == Limits()


def test_a_field_that_is_the_same_as_another_has_its_docstring_in_both_schemas() -> None:
    """An answer that shows a field does not describe it again."""

    class Shown(ApiModel):
        """What an answer shows of Example."""

        name: Annotated[str | None, SameAs(Example)] = None
        key: Annotated[str | None, SameAs(Example, "name")] = None

    schema = Shown.model_json_schema()["properties"]

    assert {name: field["description"] for name, field in schema.items()} == {"name": "Its name.", "key": "Its name."}
    assert model_schema(Shown)["properties"]["key"] == {"type": "string", "description": "Its name."}


def test_limits_are_the_api_servers_alone() -> None:
    """An object that is older than a limit is still read."""
    assert Example.model_validate({"name": "NOT A NAME", "ports": [{"number": 0}]}).ports[0].number == 0


def test_a_type_that_a_definition_cannot_have_is_refused() -> None:
    class Wrong(ApiModel):
        """It has a type of Python alone."""

        names: frozenset[str]

    with pytest.raises(TypeError, match="frozenset"):
        model_schema(Wrong)
