"""What an apply changes of resources."""

import json
from collections.abc import Callable
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


def of(**consolidation: Any) -> Document:
    return a_dataset(consolidation=consolidation)


def with_metadata(**metadata: Any) -> Document:
    return resource("Dataset", "flights", dataset_spec(), **metadata)


def selecting(key: str) -> list[dict[str, str]]:
    return [{"key": key, "operator": "Exists"}]


def a_policy(key: str) -> Document:
    spec = {"datasetSelector": {"matchExpressions": selecting(key)}, "triggers": {"activeTombstones": 1}}
    return resource("VacuumPolicy", "p", spec)


BY_KUBECTL = merged(a_dataset(), {"metadata": {"namespace": "default", "annotations": {}}})
BY_OTHERS = {"spec": {"consolidation": {"suspend": True}}, "metadata": {"annotations": {"a": "b"}}}
CHANGES: dict[str, tuple[Document, Callable[[], Document], dict[str, Any]]] = {
    # the manifest, the resource in the cluster, and the new values of the fields that change
    "the same manifest": (a_dataset(), lambda: stored(a_dataset(), status={"observedGeneration": 1}), {}),
    "a default that is written out": (of(minBatches=100), lambda: stored(a_dataset()), {}),
    "a field that left the manifest goes back to its default": (
        of(minBytes="1Mi"),
        lambda: stored(of(minBatches=5, minBytes="1Mi")),
        {"spec.consolidation.minBatches": 100},
    ),
    "a map that left the manifest goes with what others have set in it": (
        a_dataset(),
        lambda: merged(
            stored(a_dataset(runTemplate={"driver": {"cpu": 1}})),
            {"spec": {"runTemplate": {"driver": {"memory": "1Gi"}}}},
        ),
        {"spec.runTemplate": None},
    ),
    "a field that others have set, for example with kubectl patch": (
        a_dataset(),
        lambda: merged(stored(a_dataset()), BY_OTHERS),
        {},
    ),
    "a list is replaced": (
        a_policy("b"),
        lambda: stored(a_policy("a")),
        {"spec.datasetSelector.matchExpressions": selecting("b")},
    ),
    "labels and annotations, but kubectl's own": (
        with_metadata(labels={"team": "air"}, annotations={"lethe.dev/paused": "true"}),
        lambda: stored(a_dataset()),
        {"metadata.annotations.lethe.dev/paused": "true", "metadata.labels.team": "air"},
    ),
    "the namespace that kubectl adds to what was applied": (a_dataset(), lambda: stored(BY_KUBECTL), {}),
}


@pytest.mark.parametrize(("manifest", "current", "changed"), CHANGES.values(), ids=CHANGES)
def test_only_what_an_apply_changes_is_a_change(
    manifest: Document, current: Callable[[], Document], changed: dict[str, Any]
) -> None:
    """Each resource is made in its test: the first one compiles the rules, which takes seconds."""
    change = planned(manifest, current())

    assert {f.path: f.new for f in change.fields} == changed
    assert (change.action is Action.UNCHANGED) == (changed == {})
    assert change.after is not None
    assert change.after["metadata"]["namespace"] == "default"


def test_a_changed_field_is_shown_with_both_values() -> None:
    change = planned(a_dataset(consolidation={"minBatches": 7}), stored(a_dataset(consolidation={"minBatches": 5})))

    assert change.fields == (FieldChange("spec.consolidation.minBatches", 5, 7),)


OTHER_VERSION = "has the apiVersion lethe.dev/v1. This version of Lethe has lethe.dev/v1beta1."
TYPO = {"datasetRef": {"name": "flights"}, "operation": "Revert", "batchId": ["a"]}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"apiVersion": "lethe.dev/v1"}, OTHER_VERSION),
        ({"kind": "Restatment"}, 'unknown kind "Restatment" (did you mean "Restatement"?)'),
        ({"metadata": {"name": "a", "label": {}}}, 'unknown field "metadata.label" (did you mean "labels"?)'),
        ({"metadata": {"name": "a", "annotations": {"lethe.dev/paused": ""}}}, 'unknown annotation "lethe.dev/paused"'),
        ({"metadata": {}}, "metadata.name: Required value"),
        ({"metadata": {"name": "a", "labels": {"n": 1}}}, "metadata.labels.n: expected a string"),
        ({"metadata": {"name": "a", "labels": {"n": "a b"}}}, 'metadata.labels: Invalid value: "a b"'),
        ({"spec": ["x"]}, "spec: expected a map"),
        ({"spec": TYPO}, 'unknown field "spec.batchId" (did you mean "batchIds"?)'),
        ({"spec": a_revert("a", "b")["spec"]}, "immutable"),
    ],
)
def test_what_the_server_would_not_accept_is_refused(fields: Document, message: str) -> None:
    before = stored(a_revert("a")) if message == "immutable" else None
    change = planned({**a_revert("a"), **fields}, before)

    assert change.action is Action.REFUSED
    assert message in change.problem


@pytest.mark.parametrize("near", ["paused", "vacuum-now", "approve", "accept-head"])
def test_a_misspelt_annotation_of_lethe_is_refused_with_the_nearest_name(near: str) -> None:
    """The API server accepts it, and nothing reads it."""
    right, wrong = ({f"lethe.dev/{name}": "x", "example.org/lethe": "y"} for name in (near, f"{near[:-1]}-{near[-1]}"))

    assert planned(with_metadata(annotations=right)).action is Action.CREATE
    assert planned(with_metadata(annotations=wrong)).problem.endswith(
        f'unknown annotation "lethe.dev/{near[:-1]}-{near[-1]}" (did you mean "lethe.dev/{near}"?)'
    )


def found_in(*documents: Document, fixed: bool = False) -> Any:
    named = [(f"{name}.yaml", document) for name, document in zip("abc", documents, strict=False)]
    return manifests(named, DEFINITIONS, ApplyTarget("default", fixed=fixed))


def test_the_second_manifest_of_a_resource_is_refused() -> None:
    found = found_in(a_revert("a"), a_revert("b")).manifests

    assert [change_of(m, None).action for m in found] == [Action.CREATE, Action.REFUSED]
    assert "also in a.yaml" in found[1].problem


def test_documents_of_other_kinds_are_counted_and_items_of_lists_are_planned() -> None:
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ids"}, "data": {}}
    listed = {"apiVersion": "v1", "kind": "List", "items": [a_revert("a"), config_map]}

    found = found_in(listed, {"resources": ["a.yaml"]})

    assert ([m.name for m in found.manifests], found.others) == (["fix"], 2)
    assert found.config_maps.keys() == {("default", "ids")}


def test_another_namespace_than_that_of_the_command_is_refused() -> None:
    elsewhere = resource("Restatement", "fix", a_revert("a")["spec"], namespace="other")

    (manifest,), (free,) = found_in(elsewhere, fixed=True).manifests, found_in(elsewhere).manifests

    assert "metadata.namespace is other" in manifest.problem
    assert (free.namespace, free.problem) == ("other", "")


def test_the_patch_of_an_apply_is_empty_when_nothing_changed() -> None:
    assert patch_of(a_revert("a"), stored(a_revert("a"))) == {}


def test_an_object_without_the_annotation_keeps_what_the_manifest_lacks() -> None:
    """It was created by a program."""
    current = stored(a_revert("a", reason="wrong"))
    del current["metadata"]["annotations"]

    patch = patch_of(a_revert("a"), current)

    assert patch.keys() == {"metadata"}
    assert json.loads(patch["metadata"]["annotations"][LAST_APPLIED])["spec"]["batchIds"] == ["a"]


def test_a_plan_shows_which_holds_change_and_no_filter() -> None:
    """It becomes a comment of a pull request; a filter may name a person."""
    a, b = ({"name": name, "filter": f"person = '{name}-secret'"} for name in "ab")
    until = "2100-01-01T00:00:00Z"

    change = planned(
        a_dataset(holds=[{**a, "until": until}, {**b, "filter": "v = 'b-secret'"}, {"name": "c"}]),
        stored(a_dataset(holds=[a, b])),
    )

    (holds,) = change.fields
    assert (holds.path, holds.old) == (
        "spec.holds",
        [{"name": "a", "filter": "<not shown>"}, {"name": "b", "filter": "<not shown>"}],
    )
    assert holds.new == [
        {"name": "a", "filter": "<not shown>", "until": until},
        {"name": "b", "filter": "<changed, not shown>"},
        {"name": "c"},
    ]
