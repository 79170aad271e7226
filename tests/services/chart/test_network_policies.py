"""The chart's NetworkPolicies: who may connect to whom, as a network plugin would read them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from lethe.contract.dataset import RunTemplate
from lethe_operator.runs import job
from lethe_operator.runs.pod import BLOCK_MANAGER_PORT, DRIVER_PORT
from lethe_operator.settings import WarmDriverSettings

from tests.services.chart.chart import environment, of_kind, render
from tests.unit.lethe_operator.runs.test_build import ALONE, RUN, SETTINGS, WIDE, a_job, pod


@dataclass(frozen=True)
class Pod:
    namespace: str
    labels: Mapping[str, str]
    ports: Mapping[str, int]  # named ones


def labels_of(template: Mapping[str, Any]) -> Mapping[str, str]:
    return dict(template["metadata"]["labels"])


def deployed(component: str) -> Pod:
    (one,) = of_kind(render(WARM), "Deployment", component)
    ports = one["spec"]["template"]["spec"]["containers"][0].get("ports", ())
    return Pod(
        one["metadata"]["namespace"],
        labels_of(one["spec"]["template"]),
        {p["name"]: p["containerPort"] for p in ports},
    )


def warm_driver_pod() -> Pod:
    """As the operator starts it with the settings of the chart."""
    asked = WarmDriverSettings.model_validate_json(environment(render(WARM))["LETHE_WARM_DRIVERS"])
    template = job.warm_driver_job("lake", "uid", replace(SETTINGS, warm_drivers=asked))["spec"]["template"]
    ports = template["spec"]["containers"][0].get("ports", ())
    return Pod("lake", labels_of(template), {p["name"]: p["containerPort"] for p in ports})


WARM: Mapping[str, Any] = {
    "watchNamespaces": ["lake"],
    "warmDrivers": {"enabled": True},
    "inlet": {"enabled": True},
}
DRIVER = Pod("lake", labels_of(a_job(ALONE)["spec"]["template"]), {})
SCALED = Pod("lake", labels_of(a_job(WIDE)["spec"]["template"]), {})
EXECUTOR = Pod("lake", labels_of(pod.executor(RUN, WIDE, RunTemplate(), SETTINGS)), {})
ELSEWHERE = Pod("other", EXECUTOR.labels, {})
STRANGER = Pod("lake", {"app": "x", "app.kubernetes.io/component": "run"}, {})
DNS = Pod("kube-system", {"k8s-app": "kube-dns"}, {})


def policies(more: Mapping[str, Any] | None = None, **values: Any) -> list[dict[str, Any]]:
    rendered = render({"watchNamespaces": ["lake"], "networkPolicy": values, **(more or {})})
    return [d for d in rendered if d["kind"] == "NetworkPolicy"]


def may(found: list[dict[str, Any]], source: Pod, target: Pod, port: int) -> bool:
    """Whether a connection is let in by the target's policies, and out by the source's."""
    return _passes(found, "Ingress", target, source, port, target) and _passes(
        found, "Egress", source, target, port, target
    )


def _passes(found: list[dict[str, Any]], direction: str, own: Pod, peer: Pod, port: int, target: Pod) -> bool:
    selecting = [
        p["spec"]
        for p in found
        if p["metadata"]["namespace"] == own.namespace
        and direction in p["spec"]["policyTypes"]
        and _selects(p["spec"]["podSelector"], own.labels)
    ]
    if not selecting:
        return True
    side = "from" if direction == "Ingress" else "to"
    rules = [rule for spec in selecting for rule in spec.get(direction.lower()) or ()]
    return any(_lets(rule, side, own, peer) and _has_port(rule, port, target) for rule in rules)


def _lets(rule: Mapping[str, Any], side: str, own: Pod, peer: Pod) -> bool:
    peers = rule.get(side)
    return not peers or any(_is_peer(p, own, peer) for p in peers)


def _is_peer(wanted: Mapping[str, Any], own: Pod, peer: Pod) -> bool:
    if "ipBlock" in wanted:
        return False  # of another network
    namespace = wanted.get("namespaceSelector")
    here = peer.namespace == own.namespace
    if namespace is not None:
        here = _selects(namespace, {"kubernetes.io/metadata.name": peer.namespace})
    return here and _selects(wanted.get("podSelector", {}), peer.labels)


def _has_port(rule: Mapping[str, Any], port: int, target: Pod) -> bool:
    ports = rule.get("ports")
    return not ports or any(target.ports.get(p["port"], p["port"]) == port for p in ports)


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    for expression in selector.get("matchExpressions", ()):
        assert expression["operator"] == "In", "nothing else is read here"
        if labels.get(expression["key"]) not in expression["values"]:
            return False
    return all(labels.get(k) == v for k, v in selector.get("matchLabels", {}).items())


@pytest.mark.parametrize("restrict", [False, True], ids=["any way out", "few ways out"])
def test_only_a_driver_and_its_executors_reach_each_other(restrict: bool) -> None:
    found = policies(egress={"restrict": restrict})

    for port in (DRIVER_PORT, BLOCK_MANAGER_PORT):
        assert may(found, EXECUTOR, SCALED, port)
        assert may(found, SCALED, EXECUTOR, port)
        assert may(found, EXECUTOR, EXECUTOR, port)
        for stranger in (STRANGER, ELSEWHERE, DRIVER, deployed("committer"), deployed("operator")):
            assert not may(found, stranger, SCALED, port)
            assert not may(found, stranger, EXECUTOR, port)
    assert not may(found, EXECUTOR, SCALED, 4040)


@pytest.mark.parametrize("kind", ["driver", "committer"])
def test_no_pod_reaches_a_driver_without_executors_or_a_committer(kind: str) -> None:
    found, target = policies(), DRIVER if kind == "driver" else deployed("committer")

    for source in (STRANGER, ELSEWHERE, EXECUTOR, SCALED, DRIVER, DNS):
        for port in (DRIVER_PORT, BLOCK_MANAGER_PORT, 80):
            assert not may(found, source, target, port)


def test_the_operator_answers_the_kubelet_and_clients_that_may_read_metrics() -> None:
    operator = deployed("operator")
    prometheus, other = Pod("monitoring", {"app": "prometheus"}, {}), Pod("lake", {"app": "x"}, {})
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}

    limited = policies(metricsFrom=[peer])

    assert may(policies(), other, operator, 9090)
    assert (may(limited, prometheus, operator, 9090), may(limited, other, operator, 9090)) == (True, False)
    assert may(limited, other, operator, 8080)
    assert not may(limited, prometheus, operator, 22)


def test_clients_that_may_read_metrics_reach_those_of_other_pods_and_nothing_else() -> None:
    prometheus, other = Pod("monitoring", {"app": "prometheus"}, {}), Pod("lake", {"app": "x"}, {})
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    limited = policies(WARM, metricsFrom=[peer])

    for target in (deployed("committer"), deployed("inlet"), warm_driver_pod()):
        assert target.ports == {"metrics": 9090}
        assert may(policies(WARM), other, target, 9090)
        assert (may(limited, prometheus, target, 9090), may(limited, other, target, 9090)) == (True, False)
        assert not may(limited, prometheus, target, DRIVER_PORT)


def test_without_metrics_no_pod_reaches_a_committer_an_inlet_or_a_warm_driver() -> None:
    found = policies({**WARM, "metrics": {"enabled": False}})

    for target in (deployed("committer"), deployed("inlet"), warm_driver_pod()):
        assert not may(found, STRANGER, target, 9090)


def test_outgoing_connections_are_free_unless_they_are_restricted_to_a_list() -> None:
    """Then DNS is there for all, the API server for all but executors, and what the list has."""
    store, api = Pod("store", {"app": "s3"}, {}), Pod("kube-system", {"component": "kube-apiserver"}, {})
    rule = {
        "to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "store"}}}],
        "ports": [{"port": 7070}],
    }
    free, listed = policies(), policies(egress={"restrict": True, "rules": [rule]})
    everybody = (DRIVER, SCALED, EXECUTOR, deployed("operator"), deployed("committer"))

    for source in everybody:
        assert may(free, source, store, 80)
        assert not may(listed, source, store, 80)
        assert may(listed, source, store, 7070)
        assert may(listed, source, DNS, 53)
        assert may(listed, source, api, 6443) is (source is not EXECUTOR)


def test_policies_are_left_out_when_they_are_disabled() -> None:
    assert policies(enabled=False) == []
