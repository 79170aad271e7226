"""Closed sets that are also written where mypy does not look: rules and descriptions of resources, admission policies, pages."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from lethe.contract.result import RequestResult
from lethe.contract.run import AllowedOperation, parse_run
from lethe.contract.settings import (
    Deletes,
    NativeDeletes,
    Operation,
    RunFamily,
    RunKind,
)
from lethe_operator.resources.observed import kind_of
from lethe_operator.restatement.outcome import RestatementPhase

from tests.support.builders import a_run
from tests.support.documents import read_yaml

ROOT = Path(__file__).parents[2]


def restatement() -> dict[str, Any]:
    (version,) = read_yaml(ROOT / "crds/restatement.yaml")["spec"]["versions"]
    properties: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]
    return properties


def test_the_description_of_the_operations_names_each() -> None:
    described = restatement()["spec"]["properties"]["operation"]["description"]

    assert [o.value for o in Operation if o.value not in described] == []


def test_the_definition_of_restatements_names_every_phase() -> None:
    described = restatement()["status"]["properties"]["phase"]["description"]

    named = re.findall(r"[A-Z]\w+", described.partition("One of ")[2].partition(". ")[0])
    assert named == [p.value for p in RestatementPhase]


def test_each_kind_of_native_deletes_can_be_asked_for() -> None:
    assert [d.named for d in Deletes if d.named is not None] == list(NativeDeletes)


def test_the_rules_of_the_definition_name_no_other_operation_and_speak_about_each() -> None:
    rules = " ".join(v["rule"] for v in restatement()["spec"]["x-kubernetes-validations"])

    named = set(re.findall(r"'([A-Z][a-z]+)'", rules))

    assert named == {o.value for o in Operation}


def test_a_boundary_may_allow_every_operation() -> None:
    assert {AllowedOperation.of(o).value for o in Operation} == {o.value for o in Operation}


def test_the_page_about_boundaries_names_every_operation_that_one_may_allow() -> None:
    page = (ROOT / "docs/boundaries.md").read_text()

    assert [o.value for o in AllowedOperation if f"`{o.value}`" not in page] == []


def test_the_admission_policies_name_operations_that_exist() -> None:
    template = (ROOT / "helm/lethe/templates/admission.yaml").read_text()

    lists = re.findall(r"spec\.operation in \[([^]]*)\]", template)
    named = {o for text in lists for o in re.findall(r"'(\w+)'", text)}

    assert named == {o.value for o in Operation if o.always_evicts}


@pytest.mark.parametrize("kept", ["", "Transmute", None], ids=["not kept", "of a later version", "left out"])
def test_a_ledger_may_hold_a_result_without_an_operation_that_this_version_knows(kept: str | None) -> None:
    """Earlier versions kept an empty text, or nothing."""
    document = {"key": "ns/a/0", "name": "ns/a", "succeeded": True, **({} if kept is None else {"operation": kept})}

    assert RequestResult.model_validate(document).operation is None
    assert RequestResult.model_validate({**document, "operation": "Erase"}).operation is Operation.ERASE


@pytest.mark.parametrize("kind", RunKind, ids=lambda kind: kind.name)
def test_a_kind_survives_its_way_through_a_run_document(kind: RunKind) -> None:
    ids = ("A",) if kind is RunKind.CONSOLIDATION else ()

    text = a_run(kind, batch_ids=ids).to_json()

    assert parse_run(text).kind is kind
    assert json.loads(text)["kind"] == kind.family.value


@pytest.mark.parametrize("kind", RunKind, ids=lambda kind: kind.name)
def test_a_kind_survives_its_way_through_the_labels_and_annotations_of_a_job(kind: RunKind) -> None:
    """As runs in flight of earlier versions have them."""
    for_uid = {RunKind.REANCHORING: "head", RunKind.ERASURE_CHECK: "erasures"}.get(kind, "")

    assert kind_of(RunFamily(kind.family.value), for_uid) is kind


def test_the_names_of_families_are_those_of_earlier_versions() -> None:
    assert [f.value for f in RunFamily] == ["Consolidation", "Restatement", "Vacuum"]
