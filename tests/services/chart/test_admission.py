"""The admission policies that the chart renders: which requests they look at, and whom they let through."""

from typing import Any

from lethe.contract.kubernetes import REQUESTED_BY, REQUESTED_BY_GROUPS
from lethe_operator.settings import from_environment

from tests.services.chart.chart import environment, of_kind, refused, render

ALLOWED: dict[str, Any] = {
    "erase": {"groups": ["privacy"]},
    "approveVacuum": {"groups": ["storage"], "users": ["system:serviceaccount:flux-system:kustomize-controller"]},
    "acceptHead": {"users": ["ada"]},
    "holds": {"groups": ["legal"]},
}
POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"


def admission(**changes: Any) -> dict[str, Any]:
    return {"watchNamespaces": ["a", "b"], "admission": {"enabled": True, **ALLOWED, **changes}}


def test_each_policy_is_bound_to_the_watched_namespaces_and_denies() -> None:
    documents = render(admission())

    policies = {d["metadata"]["name"]: d["spec"] for d in documents if d["kind"] == POLICY}
    bindings = [d["spec"] for d in documents if d["kind"] == BINDING]
    actions = ["accept-head", "approval-mode", "approve-vacuum", "erase", "holds", "holds-delete"]
    assert sorted(policies) == [f"lethe-system-lethe-{action}" for action in actions]
    assert sorted(b["policyName"] for b in bindings) == sorted(policies)
    for binding in bindings:
        (only,) = binding["matchResources"]["namespaceSelector"]["matchExpressions"]
        assert only == {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["a", "b"]}
        assert "Deny" in binding["validationActions"]
    assert {spec["failurePolicy"] for spec in policies.values()} == {"Fail"}


def test_holds_are_protected_also_from_the_deletion_of_their_dataset() -> None:
    policies = {d["metadata"]["name"]: d["spec"] for d in render(admission()) if d["kind"] == POLICY}
    of_holds = {name.removeprefix("lethe-system-lethe-"): spec for name, spec in policies.items() if "-holds" in name}

    rules = {name: spec["matchConstraints"]["resourceRules"][0] for name, spec in of_holds.items()}
    assert {name: (rule["operations"], rule["resources"]) for name, rule in rules.items()} == {
        "holds": (["CREATE", "UPDATE"], ["datasets"]),
        "holds-delete": (["DELETE"], ["datasets"]),
    }
    (deleted,) = of_holds["holds-delete"]["validations"]
    assert "oldObject.metadata.name" in deleted["messageExpression"]  # a deletion has no other object
    assert "the group legal" in deleted["messageExpression"]
    assert {spec["matchConditions"][0]["expression"] for spec in of_holds.values()} == {
        "object.spec.?holds.orValue([]) != (oldObject == null ? [] : oldObject.spec.?holds.orValue([]))",
        "size(oldObject.spec.?holds.orValue([])) > 0",
    }


def test_an_action_that_names_no_one_is_refused_by_name() -> None:
    message = refused(admission(acceptHead={"groups": []}))

    assert "admission.acceptHead names no group and no user" in message
    assert "system:authenticated" in message


def test_a_name_that_would_end_the_expression_is_refused() -> None:
    assert "admission" in refused(admission(erase={"groups": ["x'] || true || ['"]}))


ERASE_RIGHT = {"watchNamespaces": ["a", "b"], "admission": {"eraseRight": {"enabled": True}}}


def reviews(documents: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """Where the operator may ask about rights, and with which verbs."""
    roles = of_kind(documents, "ClusterRole") + of_kind(documents, "Role")
    return [
        (role["metadata"]["namespace"], rule["verbs"])
        for role in roles
        for rule in role["rules"]
        if "localsubjectaccessreviews" in rule["resources"]
    ]


def test_the_operator_asks_about_rights_only_where_policies_say_who_the_requester_is() -> None:
    """The annotations prove nothing without the policies, and a review of them would look like a proof."""
    without, with_right = render({"watchNamespaces": ["a", "b"]}), render(ERASE_RIGHT)

    assert not from_environment(environment(without)).erase_right
    assert reviews(without) == []
    assert from_environment(environment(with_right)).erase_right
    assert reviews(with_right) == [("a", ["create"]), ("b", ["create"])]
    assert of_kind(with_right, "ClusterRole") == [], "a review of one namespace needs a Role there"
    policies = {d["metadata"]["name"]: d["spec"] for d in with_right if d["kind"] == POLICY}
    assert sorted(policies) == [f"lethe-system-lethe-{p}" for p in ("erase-right", "request-parts", "requester")]
    assert {d["spec"]["policyName"] for d in with_right if d["kind"] == BINDING} == set(policies)
    assert {spec["failurePolicy"] for spec in policies.values()} == {"Fail"}
    for annotation in (REQUESTED_BY, REQUESTED_BY_GROUPS):
        assert annotation in str(policies["lethe-system-lethe-requester"])


def test_only_the_operator_itself_is_exempt_from_the_policies_of_erases() -> None:
    values = {**ERASE_RIGHT, "admission": {**ERASE_RIGHT["admission"], "enabled": True, **ALLOWED}}  # type: ignore[dict-item]
    documents = render({**values, "serviceAccount": {"name": "other"}})

    policies = {d["metadata"]["name"]: d["spec"] for d in documents if d["kind"] == POLICY}
    for name in ("erase", "erase-right", "request-parts"):
        conditions = [c["expression"] for c in policies[f"lethe-system-lethe-{name}"]["matchConditions"]]
        assert "request.userInfo.username != 'system:serviceaccount:lethe-system:other'" in " ".join(conditions)
    for name in ("erase", "erase-right"):
        conditions = " ".join(c["expression"] for c in policies[f"lethe-system-lethe-{name}"]["matchConditions"])
        assert "object.spec.operation in ['Erase', 'Redact']" in conditions
    assert "serviceaccount" not in str(policies["lethe-system-lethe-requester"])
