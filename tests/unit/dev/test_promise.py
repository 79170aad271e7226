"""The API of resources stays as it was promised (docs/api-versions.md)."""

from collections.abc import Mapping
from typing import Any

import pytest

from dev.promise import broken, fields_of, promised_next
from tests.support.scripts import load_script

URI = {"type": "string", "maxLength": 100, "default": "", "enum": ["", "a"]}
BEFORE = {
    "Dataset.spec": {"type": "object"},
    "Dataset.spec.uri": URI,
    "Dataset.spec.old": {"type": "string", "deprecated": "0.1"},
    "Dataset.status.rows": {"type": "integer", "enum": [1, 2], "maximum": 5},
}


def changed(path: str, **changes: Any) -> Mapping[str, Any]:
    field = {**BEFORE.get(path, {}), **changes}
    return {**BEFORE, path: {k: v for k, v in field.items() if v is not None}}


def without(path: str) -> Mapping[str, Any]:
    return {k: v for k, v in BEFORE.items() if k != path}


def test_this_code_keeps_what_was_promised() -> None:
    """When this fails: keep the field as it was, or deprecate it first."""
    assert load_script("dev/generate.py").broken_promises() == {}


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (without("Dataset.spec.uri"), "is gone"),
        (without("Dataset.status.rows"), "is gone"),
        (without("Dataset.spec.old"), "is gone"),  # deprecated, and not for two releases yet
        (changed("Dataset.spec.uri", type="integer"), "had type string, and has integer"),
        (changed("Dataset.spec.uri", default="a"), "had the default , and has a"),
        (changed("Dataset.spec.uri", default=None), "had the default , and has None"),
        (changed("Dataset.spec.uri", required=True), "is required now"),
        (changed("Dataset.spec.uri", enum=["", "b"]), "does not allow a any more"),
        (changed("Dataset.spec.uri", pattern="a"), "has another pattern"),
        (changed("Dataset.spec.uri", maxLength=99), "had maxLength 100, and has 99"),
        (changed("Dataset.spec.uri", minLength=1), "had minLength None, and has 1"),
        (changed("Dataset.spec", enum=[1]), "allows only some values now"),
        (changed("Dataset.spec.new", type="string", required=True), "is new and required"),
        (changed("Dataset.status.rows", **{"x-kubernetes-list-type": "map"}), "had x-kubernetes-list-type None"),
    ],
)
def test_a_change_that_breaks_a_manifest_or_a_reader_is_found(now: Mapping[str, Any], reason: str) -> None:
    ((_, why),) = broken(BEFORE, now, "0.2.0").items()

    assert why.startswith(reason)
    assert broken(promised_next(BEFORE, now, "0.2.0"), now, "0.2.0") == broken(BEFORE, now, "0.2.0")


@pytest.mark.parametrize(
    ("now", "version"),
    [
        (without("Dataset.spec.old"), "0.3.0"),  # two releases after the one that deprecated it
        (without("Dataset.spec.old"), "1.0.0"),
        (changed("Dataset.spec.new", type="string"), "0.2.0"),
        (changed("Dataset.spec.new", type="object") | {"Dataset.spec.new.name": {"required": True}}, "0.2.0"),
        (changed("Dataset.spec.uri", enum=["", "a", "b"], maxLength=200), "0.2.0"),
        (changed("Dataset.spec.uri", enum=None, maxLength=None), "0.2.0"),
        (changed("Dataset.status.rows", enum=None, maximum=4), "0.2.0"),  # only the operator writes it
    ],
)
def test_a_change_that_breaks_nothing_is_promised_from_then_on(now: Mapping[str, Any], version: str) -> None:
    assert broken(BEFORE, now, version) == {}
    assert promised_next(BEFORE, now, version) == now


def test_the_fields_of_a_definition() -> None:
    schema = {
        "required": ["spec"],
        "properties": {
            "kind": {"type": "string"},
            "spec": {
                "type": "object",
                "required": ["names"],
                "properties": {
                    "names": {"type": "array", "items": {"type": "string", "pattern": "a"}},
                    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                    "path": {"type": "string", "description": "Deprecated since 0.2: use names. Where it is."},
                },
            },
        },
    }

    assert fields_of("Dataset", schema) == {
        "Dataset.spec": {"type": "object", "required": True},
        "Dataset.spec.names": {"type": "array", "required": True},
        "Dataset.spec.names[]": {"type": "string", "pattern": "a"},
        "Dataset.spec.labels": {"type": "object"},
        "Dataset.spec.labels{}": {"type": "string"},
        "Dataset.spec.path": {"type": "string", "deprecated": "0.2"},
    }
