"""The Deployments of the operator and the committer, their leases, shards and upgrades."""

import re
from typing import Any

import pytest
from lethe_operator.cluster.leadership import CLAIM_LEASE
from lethe_operator.settings import from_environment

from tests.services.chart.chart import (
    CATALOGS,
    CHART,
    container,
    environment,
    of_kind,
    render,
    watched,
)

COMPONENT = "app.kubernetes.io/component"


def test_an_upgrade_replaces_pods_one_by_one_and_a_drain_evicts_one_at_a_time() -> None:
    documents = render()
    (deployment,) = of_kind(documents, "Deployment")
    (budget,) = of_kind(documents, "PodDisruptionBudget")
    spec = deployment["spec"]

    assert spec["replicas"] == 2
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    assert budget["spec"] == {"maxUnavailable": 1, "selector": spec["selector"]}
    assert {c["whenUnsatisfiable"] for c in spec["template"]["spec"]["topologySpreadConstraints"]} == {"ScheduleAnyway"}
    assert of_kind(render({"replicas": 1}), "PodDisruptionBudget") == [], "it would forbid every drain, or nothing"


def test_the_pods_of_a_shard_choose_a_leader_by_a_lease_of_the_chart() -> None:
    """Helm leaves alone what no version of the chart has ever set: an upgrade does not take the Lease from its holder."""
    documents = render({"watchNamespaces": ["a"]})
    (lease,) = [d for d in of_kind(documents, "Lease") if d["metadata"]["namespace"] == "lethe-system"]
    variables = container(documents)["env"]

    assert "spec" not in lease
    settings = from_environment({**environment(documents), "POD_NAME": "pod-1"})
    assert settings.leader_lease == f"lethe-system/{lease['metadata']['name']}"
    assert settings.identity == "pod-1"
    assert {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}} in variables


def test_each_shard_has_its_own_deployment_and_leader_and_every_namespace_one_shard() -> None:
    namespaces = [f"team-{n}" for n in range(12)]
    documents = render({"watchNamespaces": namespaces, "shards": 3, "metrics": {"podMonitor": {"create": True}}})
    deployments = of_kind(documents, "Deployment")
    names = [d["metadata"]["name"] for d in deployments]
    settings = [from_environment(environment([d])) for d in deployments]

    assert names == ["lethe-operator-0", "lethe-operator-1", "lethe-operator-2"]
    assert sorted(n for s in settings for n in s.watch_namespaces) == sorted(namespaces)
    assert all(s.watch_namespaces for s in settings)
    for attribute in ("leader_lease", "operator"):
        assert [getattr(s, attribute) for s in settings] == [f"lethe-system/{name}" for name in names]
    selectors = [d["spec"]["selector"]["matchLabels"] for d in deployments]
    assert [s["lethe.dev/shard"] for s in selectors] == ["0", "1", "2"]
    assert [b["spec"]["selector"]["matchLabels"] for b in of_kind(documents, "PodDisruptionBudget")] == selectors
    for deployment, selector in zip(deployments, selectors, strict=True):
        assert selector.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    (monitor,) = of_kind(documents, "PodMonitor")
    assert monitor["spec"]["podTargetLabels"] == ["lethe.dev/shard"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= selectors[0].items()


def test_one_shard_has_the_names_and_the_selector_of_earlier_versions() -> None:
    """A Deployment's selector cannot change, so an upgrade would fail."""
    (deployment,) = of_kind(render(), "Deployment")

    assert deployment["metadata"]["name"] == "lethe-operator"
    assert deployment["spec"]["selector"]["matchLabels"] == {
        "app.kubernetes.io/name": "lethe",
        "app.kubernetes.io/instance": "lethe",
        "app.kubernetes.io/component": "operator",
    }


def test_the_operator_meets_the_restricted_level() -> None:
    (deployment,) = of_kind(render(), "Deployment")
    pod = deployment["spec"]["template"]["spec"]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container([deployment])["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_each_watched_namespace_has_its_own_committer() -> None:
    """The operator knows its name; it may write its own mailbox and Lease, and read no Secret by itself."""
    documents = render({"watchNamespaces": ["a", "b"]})

    told = from_environment(environment(documents)).committer
    assert told.enabled
    for kind in ("Deployment", "ServiceAccount", "ConfigMap", "Lease", "Role", "RoleBinding"):
        found = [(d["metadata"]["namespace"], d["metadata"]["name"]) for d in of_kind(documents, kind, "committer")]
        assert found == [("a", told.name), ("b", told.name)], kind
    rules = [rule for role in of_kind(documents, "Role", "committer") for rule in role["rules"]]
    assert all(rule["resourceNames"] == [told.name] for rule in rules)
    assert {resource for rule in rules for resource in rule["resources"]} == {"configmaps", "leases"}
    pod = of_kind(documents, "Deployment", "committer")[0]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["containers"][0]["args"] == ["committer"]


def test_annotations_of_pods_are_those_of_the_component_that_the_value_belongs_to() -> None:
    """Such as those by which Prometheus finds the operator's pods: the others have no metrics on its port."""
    documents = render(
        {
            **CATALOGS,
            "podAnnotations": {"of": "operator"},
            "committer": {"podAnnotations": {"of": "committer"}},
            "inlet": {"enabled": True, "podAnnotations": {"of": "inlet"}},
            "gateway": {"enabled": True, "podAnnotations": {"of": "gateway"}},
        }
    )

    for component in ("operator", "committer", "inlet", "gateway"):
        (deployment,) = of_kind(documents, "Deployment", component)
        assert deployment["spec"]["template"]["metadata"]["annotations"]["of"] == component


def test_without_a_committer_nothing_of_it_is_there_and_the_operator_knows() -> None:
    documents = render({"committer": {"enabled": False}})

    assert not from_environment(environment(documents)).committer.enabled
    assert "committer" not in {d["metadata"].get("labels", {}).get("app.kubernetes.io/component") for d in documents}
    (role, *_) = watched(documents, "Role")
    assert "lethe-committer" not in {name for rule in role["rules"] for name in rule.get("resourceNames", ())}


def test_two_releases_have_different_names_and_may_hold_the_same_lease() -> None:
    def operator_of(release: str) -> tuple[str, list[Any]]:
        documents = render(release=release)
        role = next(r for r in of_kind(documents, "Role") if "-system" not in r["metadata"]["namespace"])
        named = [r for r in role["rules"] if CLAIM_LEASE in r.get("resourceNames", ())]
        return from_environment(environment(documents)).operator, named

    (one, its), (other, others) = operator_of("lethe"), operator_of("second")
    assert (one, other) == ("lethe-system/lethe-operator", "second-system/second-lethe-operator")
    assert (
        its
        == others
        == [
            {
                "apiGroups": ["coordination.k8s.io"],
                "resources": ["leases"],
                "resourceNames": [CLAIM_LEASE],
                "verbs": ["get", "patch"],
            }
        ]
    )


def test_the_mailbox_keeps_its_data_when_the_chart_is_upgraded() -> None:
    """Helm leaves alone what no version of the chart has ever set."""
    assert all("data" not in d for d in of_kind(render(), "ConfigMap", "committer"))
    assert all("spec" not in d for d in of_kind(render(), "Lease", "committer"))


# A value of the chart, what it is set to, and what the specs of the pods or their templates then contain.
FOR_PODS: dict[str, tuple[Any, str]] = {
    "  pullSecrets": ([{"name": "a-registry"}], "a-registry"),
    "logLevel": ("ERROR", "ERROR"),
    "podAnnotations": ({"an/annotation": "x"}, "an/annotation"),
    "podLabels": ({"a/label": "x"}, "a/label"),
    "nodeSelector": ({"a-node": "x"}, "a-node"),
    "tolerations": ([{"key": "a-taint", "operator": "Exists"}], "a-taint"),
    "affinity": ({"nodeAffinity": {"a-term": []}}, "a-term"),
    "priorityClassName": ("a-priority", "a-priority"),
    "env": ([{"name": "A_PROXY", "value": "x"}], "A_PROXY"),
}


@pytest.mark.parametrize("value", FOR_PODS)
def test_the_comment_of_a_value_names_the_pods_that_get_it(value: str) -> None:
    """It is all that says so."""
    asked, mark = FOR_PODS[value]
    text = (CHART / "values.yaml").read_text()
    comment = re.search(rf"((?:^ *#.*\n)+)^{value}:", text, re.MULTILINE)
    assert comment is not None
    values = {"image": {"pullSecrets": asked}} if value.startswith(" ") else {value: asked}
    enabled = {"gateway": {"enabled": True}, "inlet": {"enabled": True}, "watchNamespaces": ["a"]}

    pods = {
        d["metadata"]["labels"][COMPONENT]: str(d) for d in render({**values, **enabled}) if d["kind"] == "Deployment"
    }

    named = {name for name in pods if re.search(rf"\b{name}s?\b", comment[1])}
    assert len(pods) == 4
    assert named == {name for name, document in pods.items() if mark in document}
