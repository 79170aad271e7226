"""Each field of the CRDs that names something outside the resource is limited to its namespace, or by the boundary of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lethe_operator.guards import permissions
from lethe_operator.resources.boundaries import Boundary

from tests.support.documents import read_yaml
from tests.support.resources import a_dataset, a_restatement

CRDS = Path(__file__).parents[4] / "crds"
# Names of objects of the resource's own namespace. Nothing beside such a name can say another namespace.
LOCAL = {
    "restatement: datasetRef.name",
    "restatement: undoes.name",
    "restatement: batchIdsFrom.configMapKeyRef.name",  # with a label, see `id_list`
    "restatement: redact.hashKeyFrom.secretKeyRef.name",
    "restatement: rows.valuesFrom.secretKeyRef.name",  # and of the chart's list erase.allowedSecrets
    "restatement: rows.anyOf.[].valuesFrom.secretKeyRef.name",
    "restatement: rows.via.dataset",
    "restatement: rows.anyOf.[].via.dataset",
    "restatement: subject.valuesFrom.secretKeyRef.name",
    "restatement: subject.anyOf.[].valuesFrom.secretKeyRef.name",
    "dataset: identities.[].via.dataset",
    "dataset: derivedFrom.[].dataset",
    "dataset: runTemplate.queue",
}
# Of the boundary's entry, or of the chart's lists of what a podTemplate may name, which `pod_template` checks.
POD_TEMPLATE = "dataset: runTemplate.podTemplate."
# Where the boundary says what may be named, and a spec that names something else.
KAFKA = {"cluster": "main", "topics": ["orders"], "format": "JSON"}
EVENTS = {"uri": "s3://lake/buffer", "events": {"type": "SQS", "queueUrl": "https://sqs.example/1/q"}}
REPLAY = {"operation": "Replay", "replacement": {"batchId": "b", "uri": "s3://lake/changes"}}
LISTED = {"batchIds": [], "batchIdsFrom": {"uri": "s3://lake/ids"}}
IN_A_FILE = {"column": "email", "valuesFrom": {"uri": "s3://lake/values"}}


def erased(rows: Any) -> dict[str, Any]:
    return {"operation": "Erase", "batchIds": [], "rows": rows}


LIMITED: dict[str, tuple[str, dict[str, Any]]] = {
    "dataset: table.catalog": ("catalogs", {}),
    "dataset: table.name": ("tables", {}),
    "dataset: buffer.uri": ("uris", {}),
    "dataset: buffer.events.queueUrl": ("queues", {"buffer": EVENTS}),
    "dataset: source.kafka.cluster": ("topics", {"source": {"kafka": KAFKA}}),
    "dataset: source.kafka.topics.[]": ("topics", {"source": {"kafka": KAFKA}}),
    "restatement: replacement.uri": ("uris", REPLAY),
    "restatement: batchIdsFrom.uri": ("uris", LISTED),
    "restatement: rows.valuesFrom.uri": ("uris", erased({**IN_A_FILE})),
    "restatement: rows.anyOf.[].valuesFrom.uri": ("uris", erased({"anyOf": [IN_A_FILE]})),
}
# Texts that name nothing outside: values of enumerations, columns, ids, keys of an object that is named beside them, prose.
NOTHING = {
    "dataset: table.create.schema",
    "dataset: table.create.partitionBy.[]",
    "dataset: batchColumn",
    "dataset: buffer.csv.delimiter",
    "dataset: buffer.csv.quote",
    "dataset: buffer.csv.escape",
    "dataset: buffer.csv.nullText",
    "dataset: buffer.csv.ignoreColumns.[]",
    "dataset: source.kafka.schema",
    "dataset: checks.[].name",
    "dataset: checks.[].notNull.[]",
    "dataset: checks.[].unique.[]",
    "dataset: checks.[].range.column",
    "dataset: checks.[].values.column",
    "dataset: checks.[].pattern.column",
    "dataset: checks.[].pattern.matches",
    "dataset: checks.[].condition",
    "dataset: holds.[].name",
    "dataset: holds.[].filter",
    "dataset: holds.[].until",
    "dataset: holds.[].reason",
    "restatement: batchIds.[]",
    "restatement: selector.reference",
    "restatement: batchIdsFrom.configMapKeyRef.key",
    "restatement: replacement.batchId",
    "restatement: replacement.keyColumns.[]",
    "restatement: replacement.opColumn",
    "restatement: rows.column",
    "restatement: rows.valuesFrom.secretKeyRef.key",
    "restatement: rows.via.from",
    "restatement: rows.via.to",
    "restatement: rows.anyOf.[].column",
    "restatement: rows.anyOf.[].valuesFrom.secretKeyRef.key",
    "restatement: rows.anyOf.[].via.from",
    "restatement: rows.anyOf.[].via.to",
    "restatement: subject.identity",
    "restatement: subject.valuesFrom.secretKeyRef.key",
    "restatement: subject.valuesFrom.uri",  # the Restatements that the operator makes of it name it in their rows
    "restatement: subject.anyOf.[].identity",
    "restatement: subject.anyOf.[].valuesFrom.secretKeyRef.key",
    "restatement: subject.anyOf.[].valuesFrom.uri",
    "restatement: datasetSelector.matchExpressions.[].key",
    "restatement: datasetSelector.matchExpressions.[].values.[]",
    "dataset: identities.[].name",
    "dataset: identities.[].column",
    "dataset: identities.[].via.from",
    "dataset: identities.[].via.to",
    "dataset: derivedFrom.[].batchColumn",
    "restatement: redact.columns.[].column",
    "restatement: redact.columns.[].value",
    "restatement: redact.hashKeyFrom.secretKeyRef.key",
    "restatement: reason",
    "restatement: ticket",
    "vacuumpolicy: datasetSelector.matchExpressions.[].key",
    "vacuumpolicy: datasetSelector.matchExpressions.[].values.[]",
    "vacuumpolicy: retention.column",
    "vacuumpolicy: window.schedule",
    "vacuumpolicy: window.timeZone",
}


def texts(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, set[str]]]:
    """The fields that hold free text, and what is beside them."""
    for name, part in (schema.get("properties") or {}).items():
        if part.get("type") == "string" and "enum" not in part:
            yield path + name, set(schema["properties"])
        yield from texts(part, f"{path}{name}.")
    if isinstance(items := schema.get("items"), dict):
        if items.get("type") == "string" and "enum" not in items:
            yield f"{path}[]", set()
        yield from texts(items, f"{path}[].")


def all_texts() -> dict[str, set[str]]:
    found = {}
    for kind in ("dataset", "restatement", "vacuumpolicy"):
        (version,) = read_yaml(CRDS / f"{kind}.yaml")["spec"]["versions"]
        spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
        found |= {f"{kind}: {path}": beside for path, beside in texts(spec)}
    return found


def test_each_field_was_reviewed() -> None:
    """A new one belongs to one of the lists above. If it names something outside, `boundaries` has to check it."""
    found = {name for name in all_texts() if not name.startswith(POD_TEMPLATE)}

    assert found == LOCAL | LIMITED.keys() | NOTHING


@pytest.mark.parametrize("name", sorted(LOCAL))
def test_a_name_is_one_of_the_own_namespace(name: str) -> None:
    assert "namespace" not in all_texts()[name]


@pytest.mark.parametrize("name", sorted(LIMITED))
def test_what_is_outside_is_limited_by_the_boundary(name: str) -> None:
    limit, spec = LIMITED[name]
    boundary = Boundary.model_validate({limit: []})

    if name.startswith("dataset"):
        verdict = permissions.of_dataset(a_dataset(**spec), boundary)
    else:
        verdict = permissions.of_restatement(a_restatement(**spec), boundary)

    assert verdict is not None
    assert f"outside the boundary {limit} of namespace" in verdict.message


@pytest.mark.parametrize("field", LIMITED)
def test_the_page_about_boundaries_names_each_field_that_is_limited(field: str) -> None:
    path = field.partition(": ")[2]
    parts = ("valuesFrom.uri", "spec.source.kafka")
    named = next((p for p in parts if p.removeprefix("spec.") in path), f"spec.{path}")

    assert f"`{named}`" in (CRDS.parent / "docs/boundaries.md").read_text()
