"""The chart grants the operator, drivers and users no more rights than they need."""

from typing import Any

import pytest
from lethe_operator.runs.rights import SCALED_RUNS_ROLE

from tests.services.chart.chart import CHART, of_kind, render, watched


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


# What the operator's calls of `lethe.kube.Kube` and its watches need. It creates the Restatements of a subject's erasure, and
# deletes the Secret with the values when that is asked for.
USED = {
    "lethe.dev": {
        "datasets": "get list watch",
        "datasets/status": "patch",
        "restatements": "get list watch create patch delete",
        "restatements/status": "patch",
        "vacuumpolicies": "get list watch",
        "vacuumpolicies/status": "patch",
    },
    "batch": {"jobs": "get list watch create delete"},
    "": {
        "configmaps": "get list watch create patch",
        "pods": "get list watch",
        "secrets": "delete",
        "serviceaccounts": "get create patch",
    },
    "rbac.authorization.k8s.io": {"roles": "get create patch bind", "rolebindings": "get create patch"},
    "events.k8s.io": {"events": "create"},
    "coordination.k8s.io": {"leases": "get list watch create patch"},
}


def test_the_operator_has_the_rights_that_it_uses_and_no_others() -> None:
    """It reads no Secrets and writes no specs of Datasets and VacuumPolicies. Other tests look at names that limit rights."""
    used = {(g, resource, verb) for g, kinds in USED.items() for resource in kinds for verb in kinds[resource].split()}

    assert rights(the_role("lethe-operator")) == used


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

    assert [role["metadata"]["name"] for role in roles] == [
        "lethe-system-lethe-view",
        "lethe-system-lethe-edit",
    ]


def test_spark_applications_may_be_created_only_where_kubeflow_s_operator_is_installed() -> None:
    def of(values: dict[str, Any]) -> set[str]:
        roles = of_kind(render({"watchNamespaces": ["a"], **values}), "Role")
        return {verb for role in roles for group, _, verb in rights(role) if group == "sparkoperator.k8s.io"}

    assert of({}) == set()
    assert of({"sparkOperator": {"enabled": True}}) == {"get", "list", "watch", "create", "delete"}


@pytest.mark.parametrize(
    ("value", "roles"), [("rbac.aggregateToUserRoles", 2), ("rbac.readClusterId", 1), ("gateway.enabled", 1)]
)
def test_the_page_of_the_chart_names_each_value_that_creates_cluster_roles(value: str, roles: int) -> None:
    """So that its installer has the right to create them."""
    section, _, name = value.partition(".")
    created = [d for d in render({section: {name: True}}) if d["kind"] == "ClusterRole"]

    assert len(created) == roles
    assert f"`{value}`" in (CHART / "README.md").read_text()


def test_releases_of_one_name_in_two_namespaces_share_no_object_of_the_cluster() -> None:
    """Helm refuses to install a release with an object of another one."""
    someone = {"groups": ["admins"]}
    values = {
        "rbac": {"aggregateToUserRoles": True, "readClusterId": True},
        "gateway": {"enabled": True},
        "admission": {
            "enabled": True,
            "eraseRight": {"enabled": True},
            **dict.fromkeys(("erase", "approveVacuum", "acceptHead", "holds"), someone),
        },
    }

    def of_the_cluster(namespace: str) -> set[tuple[str, str]]:
        documents = render(values, "--namespace", namespace)
        return {(d["kind"], d["metadata"]["name"]) for d in documents if "namespace" not in d["metadata"]}

    assert len(of_the_cluster("one")) > 10
    assert of_the_cluster("one") & of_the_cluster("two") == set()
