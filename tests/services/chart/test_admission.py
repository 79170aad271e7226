"""The admission policies that the chart renders: which requests they look at, and whom they let through."""

from typing import Any

from tests.services.chart.chart import refused, render

ALLOWED: dict[str, Any] = {
    "erase": {"groups": ["privacy"]},
    "approveVacuum": {"groups": ["storage"], "users": ["system:serviceaccount:flux-system:kustomize-controller"]},
    "acceptHead": {"users": ["ada"]},
}
POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"


def admission(**changes: Any) -> dict[str, Any]:
    return {"watchNamespaces": ["a", "b"], "admission": {"enabled": True, **ALLOWED, **changes}}


def test_each_policy_is_bound_to_the_watched_namespaces_and_denies() -> None:
    documents = render(admission())

    policies = {d["metadata"]["name"]: d["spec"] for d in documents if d["kind"] == POLICY}
    bindings = [d["spec"] for d in documents if d["kind"] == BINDING]
    actions = ["accept-head", "approval-mode", "approve-vacuum", "erase"]
    assert sorted(policies) == [f"lethe-system-lethe-{action}" for action in actions]
    assert sorted(b["policyName"] for b in bindings) == sorted(policies)
    for binding in bindings:
        (only,) = binding["matchResources"]["namespaceSelector"]["matchExpressions"]
        assert only == {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["a", "b"]}
        assert "Deny" in binding["validationActions"]
    assert {spec["failurePolicy"] for spec in policies.values()} == {"Fail"}


def test_an_action_that_names_no_one_is_refused_by_name() -> None:
    message = refused(admission(acceptHead={"groups": []}))

    assert "admission.acceptHead names no group and no user" in message
    assert "system:authenticated" in message


def test_a_name_that_would_end_the_expression_is_refused() -> None:
    assert "admission" in refused(admission(erase={"groups": ["x'] || true || ['"]}))
