"""The resource definitions are complete, small enough to apply, and the same in the chart."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lethe_operator.conditions import MESSAGE_AT_MOST

from tests.support.documents import read_yaml

ROOT = Path(__file__).parents[3]
SOURCES = sorted((ROOT / "crds").glob("*.yaml"))
# `kubectl apply` keeps the whole object in an annotation of at most 262,144 bytes.
MAX_BYTES = 100_000

every_definition = pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)


def version_of(path: Path) -> dict[str, Any]:
    (version,) = read_yaml(path)["spec"]["versions"]
    assert isinstance(version, dict)
    return version


def schema_of(path: Path) -> dict[str, Any]:
    schema: dict[str, Any] = version_of(path)["schema"]["openAPIV3Schema"]
    return schema


def fields(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every named field below a schema, as `spec.buffer.uri` or `spec.batchIds[].…`, with its own schema."""
    for name, field in schema.get("properties", {}).items():
        here = f"{path}.{name}".lstrip(".")
        if here != "metadata":  # the API server's own
            yield here, field
            yield from fields(field, here)
    if isinstance(schema.get("items"), dict):
        if schema["items"].get("type") == "object":
            yield f"{path}[]", schema["items"]
        yield from fields(schema["items"], f"{path}[]")


@every_definition
def test_every_field_has_a_text_for_kubectl_explain(path: Path) -> None:
    """A field without a description is shown as <no description>."""
    schema = schema_of(path)

    silent = [name for name, field in [("", schema), *fields(schema)] if not field.get("description", "").strip()]

    assert silent == []


@every_definition
def test_a_text_is_whole_sentences(path: Path) -> None:
    """Descriptions end up in the reference, one below the other."""
    wrong = [name for name, field in fields(schema_of(path)) if not field.get("description", ".").endswith(".")]

    assert wrong == []


@every_definition
def test_a_definition_is_small(path: Path) -> None:
    """It must fit the annotation of `kubectl apply` with room to grow."""
    assert len(path.read_bytes()) < MAX_BYTES


@every_definition
def test_everything_in_a_spec_is_bounded(path: Path) -> None:
    """Without bounds the API server cannot limit what a CEL rule costs, and etcd not what an object weighs."""
    unbounded = []
    for name, field in fields(schema_of(path)["properties"]["spec"], "spec"):
        kind = "quantity" if field.get("x-kubernetes-int-or-string") else field.get("type")
        if kind in ("string", "quantity") and "maxLength" not in field and "enum" not in field:
            unbounded.append(name)
        if kind == "array" and "maxItems" not in field:
            unbounded.append(name)
        if kind == "object" and "additionalProperties" in field and "maxProperties" not in field:
            unbounded.append(name)
        if kind == "integer" and not {"minimum", "enum"} & field.keys() and not name.endswith("tolerationSeconds"):
            unbounded.append(name)

    assert unbounded == []


MERGED_AS_ONE = {
    "spec.runTemplate.podTemplate.spec.tolerations",  # as in a pod: no field identifies one
    "spec.datasetSelector.matchExpressions",  # as in every selector
    "spec.rows.anyOf",  # immutable
    "spec.subject.anyOf",  # immutable
}


@every_definition
def test_two_appliers_can_own_items_of_one_list(path: Path) -> None:
    """Server-side apply merges the lists of objects by a key, except those that have none."""
    wrong = []
    for name, field in fields(schema_of(path)["properties"]["spec"], "spec"):
        if field.get("type") != "array":
            continue
        is_map = field.get("x-kubernetes-list-type") == "map"
        of_objects = field["items"].get("type") == "object"
        if "x-kubernetes-list-type" not in field or (of_objects and is_map == (name in MERGED_AS_ONE)):
            wrong.append(name)
        if is_map and not set(field["x-kubernetes-list-map-keys"]) <= set(field["items"]["required"]):
            wrong.append(name)

    assert wrong == []


@every_definition
def test_a_status_does_not_grow_with_the_number_of_batches_or_files(path: Path) -> None:
    """etcd takes objects of at most 1.5 MiB, and watches send a whole status for each change.

    Conditions are bounded by their types. This holds even if each text were as long as the longest, the message of a condition.
    """
    status = schema_of(path)["properties"]["status"]
    unbounded = [
        name
        for name, field in fields(status, "status")
        if (field.get("type") == "array" and "maxItems" not in field and name != "status.conditions")
        or ("additionalProperties" in field and "maxProperties" not in field)
    ]

    assert unbounded == []
    assert _texts_in(status) * MESSAGE_AT_MOST < 1_500_000


def _texts_in(schema: dict[str, Any]) -> int:
    """The most texts that a value can have."""
    count = int(schema.get("type") == "string" and "enum" not in schema and schema.get("format") != "date-time")
    count += sum(_texts_in(field) for field in schema.get("properties", {}).values())
    return count + (
        schema.get("maxItems", 10) * _texts_in(schema["items"]) if isinstance(schema.get("items"), dict) else 0
    )


@every_definition
def test_only_the_status_subresource_writes_statuses(path: Path) -> None:
    """Otherwise a user's apply and the operator's status would overwrite each other."""
    assert version_of(path)["subresources"] == {"status": {}}


@every_definition
def test_every_status_is_understood_by_kstatus(path: Path) -> None:
    """kubectl wait, Argo CD and Flux look at observedGeneration and conditions."""
    status = schema_of(path)["properties"]["status"]["properties"]

    assert "observedGeneration" in status
    assert status["conditions"]["x-kubernetes-list-map-keys"] == ["type"]


@every_definition
def test_a_printed_column_points_at_a_field_of_the_schema(path: Path) -> None:
    """A column whose path is wrong stays empty without any error."""
    known = {name for name, _ in fields(schema_of(path))}

    for column in version_of(path)["additionalPrinterColumns"]:
        target = re.sub(r'\[(\?\(@\.type=="\w+"\)|\d+)\]', "[]", column["jsonPath"].lstrip("."))
        assert target in known | {"metadata.creationTimestamp"}, column["name"]


def test_snapshot_ids_keep_all_their_digits() -> None:
    """Iceberg's snapshot ids need 63 bits."""
    for path in SOURCES:
        for name, field in fields(schema_of(path)):
            if name.lower().endswith("snapshotid"):
                assert (field["type"], field["format"]) == ("integer", "int64"), name


def test_inline_batch_ids_fit_an_apply() -> None:
    """Twenty thousand ids were refused by the API server; longer lists come by reference."""
    ids = dict(fields(schema_of(ROOT / "crds/restatement.yaml")))["spec.batchIds"]

    assert (ids["maxItems"], ids["items"]["maxLength"], ids["x-kubernetes-list-type"]) == (1000, 256, "set")


def test_the_chart_has_the_definitions_by_a_link() -> None:
    """`helm` follows it: a package contains the files, and none of them can be stale."""
    link = ROOT / "helm/lethe/files/crds"

    assert (link.is_symlink(), link.resolve()) == (True, (ROOT / "crds").resolve())
