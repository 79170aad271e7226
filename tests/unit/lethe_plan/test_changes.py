"""What an apply changes of resources."""

import json
from typing import Any

import pytest
from lethe_local.admission import admitted
from lethe_local.api.objects import kinds
from lethe_local.api.patches import LAST_APPLIED, applied, merged, patch_of
from lethe_plan.changes import Action, ApplyTarget, Change, FieldChange, change_of, manifests

from tests.support.documents import Document, dataset_spec, resource

DEFINITIONS = {k.definition.kind: k.definition for k in kinds() if k.definition is not None}


def a_dataset(**spec: Any) -> Document:
    return resource("Dataset", "flights", dataset_spec(**spec))


def a_revert(*batches: str, **spec: Any) -> Document:
    spec = {"datasetRef": {"name": "flights"}, "operation": "Revert", "batchIds": list(batches), **spec}
    return resource("Restatement", "fix", spec)


def stored(document: Document, **extra: Any) -> Document:
    """The resource in the cluster after an apply."""
    found = admitted(DEFINITIONS[document["kind"]], applied(document))
    return merged(found, {"metadata": {"uid": "u", "namespace": "default"}, **extra})


def planned(document: Document, current: Document | None = None) -> Change:
    (manifest,) = manifests([("a.yaml", document)], DEFINITIONS, ApplyTarget("default")).manifests
    return change_of(manifest, current)


def test_a_new_resource_is_created_with_defaults() -> None:
    change = planned(a_dataset())

    assert change.action is Action.CREATE
    assert change.after is not None
    assert change.after["spec"]["consolidation"]["minBatches"] == 100
    assert change.after["metadata"]["namespace"] == "default"


def test_the_same_manifest_changes_nothing_whatever_the_server_has_set() -> None:
    current = stored(a_dataset(), status={"observedGeneration": 1})

    assert planned(a_dataset(), current).action is Action.UNCHANGED


def test_a_default_that_is_written_out_changes_nothing() -> None:
    change = planned(a_dataset(consolidation={"minBatches": 100}), stored(a_dataset()))

    assert (change.action, change.fields) == (Action.UNCHANGED, ())


def test_a_changed_field_is_shown_with_both_values() -> None:
    change = planned(a_dataset(consolidation={"minBatches": 7}), stored(a_dataset(consolidation={"minBatches": 5})))

    assert change.fields == (FieldChange("spec.consolidation.minBatches", 5, 7),)


def test_a_field_that_left_the_manifest_goes_back_to_its_default() -> None:
    change = planned(
        a_dataset(consolidation={"minBytes": "1Mi"}),
        stored(a_dataset(consolidation={"minBatches": 5, "minBytes": "1Mi"})),
    )

    assert change.fields == (FieldChange("spec.consolidation.minBatches", 5, 100),)


def test_a_map_that_left_the_manifest_is_removed_as_a_whole() -> None:
    """Also what others have set in it."""
    template = {"driver": {"cpu": 1}}
    current = merged(stored(a_dataset(runTemplate=template)), {"spec": {"runTemplate": {"driver": {"memory": "1Gi"}}}})

    change = planned(a_dataset(), current)

    assert [(f.path, f.new) for f in change.fields] == [("spec.runTemplate", None)]


def test_a_field_that_was_never_applied_stays() -> None:
    """Another one set it, for example with kubectl patch."""
    current = merged(
        stored(a_dataset()), {"spec": {"consolidation": {"suspend": True}}, "metadata": {"annotations": {"a": "b"}}}
    )

    assert planned(a_dataset(), current).action is Action.UNCHANGED


def test_a_list_is_replaced() -> None:
    def a_policy(key: str) -> Document:
        selector = {"matchExpressions": [{"key": key, "operator": "Exists"}]}
        return resource("VacuumPolicy", "p", {"datasetSelector": selector, "triggers": {"activeTombstones": 1}})

    change = planned(a_policy("b"), stored(a_policy("a")))

    path = "spec.datasetSelector.matchExpressions"
    assert change.fields == (
        FieldChange(path, [{"key": "a", "operator": "Exists"}], [{"key": "b", "operator": "Exists"}]),
    )


def test_labels_and_annotations_are_part_of_a_change_but_kubectls_own_is_not() -> None:
    wanted = resource(
        "Dataset", "flights", dataset_spec(), labels={"team": "air"}, annotations={"lethe.dev/paused": "true"}
    )

    change = planned(wanted, stored(a_dataset()))

    assert [(f.path, f.new) for f in change.fields] == [
        ("metadata.annotations.lethe.dev/paused", "true"),
        ("metadata.labels.team", "air"),
    ]


def test_a_fixed_field_is_refused_with_the_message_of_the_server() -> None:
    change = planned(a_revert("a", "b"), stored(a_revert("a")))

    assert change.action is Action.REFUSED
    assert "immutable" in change.problem


def test_a_typo_names_the_right_field() -> None:
    typo = a_revert("a") | {"spec": {"datasetRef": {"name": "flights"}, "operation": "Revert", "batchId": ["a"]}}

    change = planned(typo)

    assert change.action is Action.REFUSED
    assert 'unknown field "spec.batchId" (did you mean "batchIds"?)' in change.problem


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"apiVersion": "lethe.dev/v1"},
            "has the apiVersion lethe.dev/v1. This version of Lethe has lethe.dev/v1alpha1.",
        ),
        ({"kind": "Restatment"}, "Lethe has no kind Restatment. Use one of Dataset, Restatement, VacuumPolicy."),
        ({"metadata": {}}, "metadata.name: Required value"),
        ({"metadata": {"name": "a", "labels": {"n": 1}}}, "metadata.labels.n: expected a string"),
        ({"spec": ["x"]}, "spec: expected a map"),
    ],
)
def test_what_the_server_would_not_accept_is_refused(fields: Document, message: str) -> None:
    change = planned({**a_revert("a"), **fields})

    assert change.action is Action.REFUSED
    assert message in change.problem


def test_the_second_manifest_of_a_resource_is_refused() -> None:
    found = manifests(
        [("a.yaml", a_revert("a")), ("b.yaml", a_revert("b"))], DEFINITIONS, ApplyTarget("default")
    ).manifests

    assert [change_of(m, None).action for m in found] == [Action.CREATE, Action.REFUSED]
    assert "also in a.yaml" in found[1].problem


def test_documents_of_other_kinds_are_counted_and_items_of_lists_are_planned() -> None:
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ids"}, "data": {}}
    listed = {"apiVersion": "v1", "kind": "List", "items": [a_revert("a"), config_map]}

    found = manifests(
        [("a.yaml", listed), ("kustomization.yaml", {"resources": ["a.yaml"]})], DEFINITIONS, ApplyTarget("default")
    )

    assert ([m.name for m in found.manifests], found.others) == (["fix"], 2)
    assert found.config_maps.keys() == {("default", "ids")}


def test_another_namespace_than_that_of_the_command_is_refused() -> None:
    elsewhere = resource("Restatement", "fix", a_revert("a")["spec"], namespace="other")

    (manifest,) = manifests([("a.yaml", elsewhere)], DEFINITIONS, ApplyTarget("default", fixed=True)).manifests
    (free,) = manifests([("a.yaml", elsewhere)], DEFINITIONS, ApplyTarget("default")).manifests

    assert "metadata.namespace is other" in manifest.problem
    assert (free.namespace, free.problem) == ("other", "")


def test_the_patch_of_an_apply_is_empty_when_nothing_changed() -> None:
    assert patch_of(a_revert("a"), stored(a_revert("a"))) == {}


def test_the_namespace_that_kubectl_adds_to_what_was_applied_is_no_change() -> None:
    applied_by_kubectl = a_dataset()
    applied_by_kubectl["metadata"] |= {"namespace": "default", "annotations": {}}

    change = planned(a_dataset(), stored(applied_by_kubectl))

    assert change.action is Action.UNCHANGED
    assert change.after is not None
    assert change.after["metadata"]["namespace"] == "default"


def test_an_object_without_the_annotation_keeps_what_the_manifest_lacks() -> None:
    """It was created by a program."""
    current = stored(a_revert("a", reason="wrong"))
    del current["metadata"]["annotations"]

    patch = patch_of(a_revert("a"), current)

    assert patch.keys() == {"metadata"}
    assert json.loads(patch["metadata"]["annotations"][LAST_APPLIED])["spec"]["batchIds"] == ["a"]
