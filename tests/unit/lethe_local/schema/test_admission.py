"""The definitions' defaults, validation and rules, without an API server.

The cluster tests apply the same manifests to a real API server, so both must agree.
"""

import copy
from typing import Any

import pytest
from lethe_local.admission import Definition, NotAdmitted, Undecodable, admitted
from lethe_local.api.objects import kinds
from lethe_local.api.patches import merged

from tests.support.crd_rules import ACCEPTED, FIXED, FREE, FROM_A_MAP, REFUSED
from tests.support.manifests import dataset_manifest, named, restatement_manifest

Document = dict[str, Any]
DEFINITIONS = {k.definition.kind: k.definition for k in kinds() if k.definition is not None}


def definition_of(document: Document) -> Definition:
    return DEFINITIONS[document["kind"]]


@pytest.mark.parametrize("body", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_what_obeys_the_rules_is_accepted(body: Document) -> None:
    admitted(definition_of(body), body)


@pytest.mark.parametrize(("body", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_breaks_a_rule_is_refused_with_the_message_of_the_api_server(body: Document, message: str) -> None:
    with pytest.raises((NotAdmitted, Undecodable)) as refusal:
        admitted(definition_of(body), body)

    assert message.lower() in str(refusal.value).lower()


@pytest.fixture(scope="module")
def stored() -> dict[str, Document]:
    bodies = {
        "revert": restatement_manifest("Revert", evictBySeconds=60),
        "by reference": restatement_manifest("Revert", batchIds=None, batchIdsFrom=FROM_A_MAP),
        "replay": restatement_manifest("Replay"),
        "undo": restatement_manifest("Undo"),
        "erase": restatement_manifest("Erase"),
        "dataset": dataset_manifest(table={"catalog": "nowhere", "name": "crds.table"}),
    }
    return {key: admitted(definition_of(body), named(key.replace(" ", "-"), body)) for key, body in bodies.items()}


@pytest.mark.parametrize(("key", "change", "message"), FIXED.values(), ids=FIXED.keys())
def test_what_is_fixed_at_creation_cannot_be_edited(
    stored: dict[str, Document], key: str, change: Document, message: str
) -> None:
    old = stored[key]

    with pytest.raises(NotAdmitted) as refusal:
        admitted(definition_of(old), merged(old, {"spec": change}), old)

    assert message in str(refusal.value)


@pytest.mark.parametrize(("key", "change"), FREE.values(), ids=FREE.keys())
def test_what_steers_a_request_can_be_edited(stored: dict[str, Document], key: str, change: Document) -> None:
    old = stored[key]

    admitted(definition_of(old), merged(old, {"spec": change}), old)


def test_cancelling_cannot_be_taken_back(stored: dict[str, Document]) -> None:
    old = merged(stored["replay"], {"spec": {"cancel": True}})

    with pytest.raises(NotAdmitted, match="cancel cannot be taken back"):
        admitted(definition_of(old), merged(old, {"spec": {"cancel": False}}), old)


def test_defaults_are_in_the_admitted_resource() -> None:
    dataset = admitted(DEFINITIONS["Dataset"], named("a", dataset_manifest()))

    assert dataset["spec"]["snapshots"] == {"maxAgeSeconds": 432000, "minToKeep": 5, "maxCount": 500}
    assert dataset["spec"]["consolidation"]["minBytes"] == "128Mi"
    assert dataset["spec"]["buffer"]["layout"] == "Directory"
    assert "runTemplate" not in dataset["spec"]


def test_a_null_becomes_the_default() -> None:
    restatement = admitted(DEFINITIONS["Restatement"], named("a", restatement_manifest(suspend=None)))

    assert restatement["spec"]["suspend"] is False


def test_the_given_document_is_not_changed() -> None:
    body = named("a", dataset_manifest())
    before = copy.deepcopy(body)

    admitted(DEFINITIONS["Dataset"], body)

    assert body == before


def test_a_field_with_a_typo_is_named_with_the_right_one() -> None:
    body = named("a", dataset_manifest(consolidation={"minBatchs": 1}))

    with pytest.raises(
        Undecodable, match=r'unknown field "spec\.consolidation\.minBatchs" \(did you mean "minBatches"\?\)'
    ):
        admitted(DEFINITIONS["Dataset"], body)


def test_all_problems_are_listed_and_the_rules_wait() -> None:
    body = named("a", dataset_manifest(batchColumn="a.b", deletes="Never", snapshots={"minToKeep": 4, "maxCount": 3}))

    with pytest.raises(NotAdmitted) as refusal:
        admitted(DEFINITIONS["Dataset"], body)

    text = str(refusal.value)
    assert "spec.batchColumn" in text
    assert "spec.deletes" in text
    assert "some validation rules were not checked" in text
    assert "minToKeep cannot be greater" not in text


@pytest.mark.parametrize("name", ["Upper", "a_b", "-a", "", "a" * 254])
def test_names_are_those_of_kubernetes(name: str) -> None:
    with pytest.raises(NotAdmitted, match=r"metadata\.name"):
        admitted(DEFINITIONS["Restatement"], named(name, restatement_manifest()))
