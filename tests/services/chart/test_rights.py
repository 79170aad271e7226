"""The chart grants the operator, drivers and users no more rights than they need."""

from typing import Any

import pytest
from lethe_operator.runs.rights import SCALED_RUNS_ROLE

from tests.services.chart.chart import of_kind, render, watched


def test_rights_end_at_the_watched_namespaces() -> None:
    documents = render({"watchNamespaces": ["a", "b"]})

    assert [role["metadata"]["namespace"] for role in watched(documents, "Role")] == ["a", "a", "b", "b"]
    assert of_kind(documents, "ClusterRole") + of_kind(documents, "ClusterRoleBinding") == []


@pytest.mark.parametrize("shards", [1, 2])
def test_beside_itself_the_operator_may_only_renew_its_leases(shards: int) -> None:
    """It may not create any: the chart does."""
    documents = render({"shards": shards})

    (role,) = [r for r in of_kind(documents, "Role") if r["metadata"]["namespace"] == "lethe-system"]
    leases = [d for d in of_kind(documents, "Lease") if d["metadata"]["namespace"] == "lethe-system"]
    assert role["rules"] == [
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": [lease["metadata"]["name"] for lease in leases],
            "verbs": ["get", "patch"],
        }
    ]
    assert len(leases) == shards


def rights(role: dict[str, Any]) -> set[tuple[str, str, str]]:
    """Group, resource and verb."""
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def the_role(name: str) -> dict[str, Any]:
    (found,) = [r for r in of_kind(render({"watchNamespaces": ["a"]}), "Role") if r["metadata"]["name"] == name]
    return found


def test_the_operator_reads_no_secrets_and_writes_no_specs_of_datasets_and_policies() -> None:
    """It creates the Restatements of a subject's erasure, and deletes the Secret with the values when that is asked for."""
    held = rights(the_role("lethe-operator"))

    assert not [right for right in held if "*" in right]
    assert {verb for _, resource, verb in held if resource == "secrets"} == {"delete"}
    written = {right for right in held if right[0] == "lethe.dev" and right[2] in ("create", "update", "patch")}
    statuses = {"datasets/status", "restatements/status", "vacuumpolicies/status"}
    assert {resource for _, resource, _ in written} == {*statuses, "datasets/finalizers", "restatements"}
    assert {verb for _, resource, verb in written if resource == "restatements"} == {"create", "patch"}


def test_the_operator_holds_what_it_grants_to_drivers_and_starts_no_pods() -> None:
    """The API server refuses a Role with rights that its creator does not have. The Role of drivers with executors is made by
    the chart, so the operator binds it and holds none of it."""
    role = the_role("lethe-operator")

    held = rights(role)
    assert {("", "configmaps", "get"), ("", "configmaps", "patch")} <= held
    assert {verb for _, resource, verb in held if resource == "pods"} == {"get", "list", "watch"}
    (bind,) = [rule for rule in role["rules"] if "bind" in rule["verbs"]]
    assert (bind["resources"], bind["resourceNames"], bind["verbs"]) == (["roles"], [SCALED_RUNS_ROLE], ["bind"])


def test_a_driver_with_executors_has_what_spark_needs() -> None:
    """It may make a Secret and read none."""
    pods = {("", "pods", verb) for verb in ("get", "list", "watch", "create", "delete", "deletecollection")}

    assert rights(the_role(SCALED_RUNS_ROLE)) == {*pods, ("", "secrets", "create")}


def test_tokens_are_mounted_only_where_they_are_used() -> None:
    documents = render()

    for component in ("operator", "committer"):
        (account,) = of_kind(documents, "ServiceAccount", component)
        (deployment,) = of_kind(documents, "Deployment", component)
        assert account["automountServiceAccountToken"] is False
        assert deployment["spec"]["template"]["spec"]["automountServiceAccountToken"] is True


def test_user_roles_are_aggregated_only_when_asked_for() -> None:
    roles = of_kind(render({"rbac": {"aggregateToUserRoles": True}}), "ClusterRole")

    assert [role["metadata"]["name"] for role in roles] == ["lethe-view", "lethe-edit"]


def test_spark_applications_may_be_created_only_where_kubeflow_s_operator_is_installed() -> None:
    def of(values: dict[str, Any]) -> set[str]:
        roles = of_kind(render({"watchNamespaces": ["a"], **values}), "Role")
        return {verb for role in roles for group, _, verb in rights(role) if group == "sparkoperator.k8s.io"}

    assert of({}) == set()
    assert of({"sparkOperator": {"enabled": True}}) == {"get", "list", "watch", "create", "delete"}
