"""The chart's PodMonitors: the Prometheus operator finds every pod that serves metrics, and each of them once."""

from collections.abc import Mapping
from typing import Any

import pytest
from lethe_operator.runs import job as warm_driver
from lethe_operator.settings import from_environment

from tests.services.chart.chart import environment, render

EVERYTHING: Mapping[str, Any] = {
    "watchNamespaces": ["a", "b"],
    "metrics": {"podMonitor": {"create": True}},
    "gateway": {"enabled": True},
    "inlet": {"enabled": True},
    "warmDrivers": {"enabled": True},
}


def pods(documents: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The pod templates of the chart's Deployments, and the warm drivers' as the operator makes them, by namespace and name."""
    found = {
        f"{d['metadata']['namespace']}/{d['metadata']['name']}": d["spec"]["template"]
        for d in documents
        if d["kind"] == "Deployment"
    }
    settings = from_environment(environment(documents))
    asked = settings.warm_drivers
    jobs = {f"{n}/{asked.name}": warm_driver.warm_driver_job(n, "uid", settings) for n in EVERYTHING["watchNamespaces"]}
    return found | {name: job["spec"]["template"] for name, job in jobs.items()}


def monitored(documents: list[dict[str, Any]]) -> dict[str, list[str]]:
    """The names of the PodMonitors that find each pod, by namespace and name of what makes the pod."""
    monitors = [d for d in documents if d["kind"] == "PodMonitor"]
    return {
        name: [m["metadata"]["name"] for m in monitors if _finds(m, name.partition("/")[0], template)]
        for name, template in pods(documents).items()
    }


def _finds(monitor: Mapping[str, Any], namespace: str, template: Mapping[str, Any]) -> bool:
    spec = monitor["spec"]
    namespaces = spec.get("namespaceSelector", {}).get("matchNames", [monitor["metadata"]["namespace"]])
    labels = template["metadata"]["labels"]
    ports = {p["name"] for c in template["spec"]["containers"] for p in c.get("ports", ())}
    return (
        namespace in namespaces
        and spec["selector"]["matchLabels"].items() <= labels.items()
        and {e["port"] for e in spec["podMetricsEndpoints"]} <= ports
    )


@pytest.mark.parametrize("name_override", ["", "lake"])
def test_every_pod_is_found_by_exactly_one_monitor(name_override: str) -> None:
    found = monitored(render({**EVERYTHING, "nameOverride": name_override}))

    assert {pod: len(monitors) for pod, monitors in found.items()} == dict.fromkeys(found, 1)
    processes = {pod.partition("/")[2].rpartition("lethe-")[2] for pod in found}
    assert {"committer", "inlet", "warm-driver"} <= processes
    assert len(found) == 2 + 2 * 3  # the operator and the gateway, and three processes of each namespace


def test_what_is_not_installed_has_no_monitor() -> None:
    documents = render({"metrics": {"podMonitor": {"create": True}}, "committer": {"enabled": False}})

    assert [d["metadata"]["name"] for d in documents if d["kind"] == "PodMonitor"] == ["lethe-operator"]


def test_without_metrics_no_process_gets_a_port_for_them() -> None:
    documents = render({**EVERYTHING, "metrics": {"enabled": False}})

    for template in pods(documents).values():
        (container,) = template["spec"]["containers"]
        assert "metrics" not in {p["name"] for p in container.get("ports", ())}
        assert "LETHE_METRICS_PORT" not in {v["name"] for v in container["env"]}
    assert [d for d in documents if d["kind"] == "PodMonitor"] == []


def test_every_monitor_has_the_labels_by_which_a_prometheus_selects_it() -> None:
    monitor = {"create": True, "labels": {"release": "prometheus"}, "intervalSeconds": 60}
    documents = render({**EVERYTHING, "metrics": {"podMonitor": monitor}})

    found = [d for d in documents if d["kind"] == "PodMonitor"]

    assert {d["metadata"]["labels"]["release"] for d in found} == {"prometheus"}
    assert {e["interval"] for d in found for e in d["spec"]["podMetricsEndpoints"]} == {"60s"}


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_every_process_writes_its_log_in_the_chosen_format(log_format: str) -> None:
    found = pods(render({**EVERYTHING, "logFormat": log_format}))

    for name, template in found.items():
        (container,) = template["spec"]["containers"]
        formats = [v["value"] for v in container["env"] if v["name"] == "LETHE_LOG_FORMAT"]
        assert formats == ([log_format] if log_format == "json" else []), name


def test_the_operator_committers_and_runs_send_their_traces_to_the_collector_if_there_is_one() -> None:
    endpoint = "http://collector:4318"

    def variables(**values: Any) -> dict[str, dict[str, str]]:
        found = pods(render({**EVERYTHING, **values}))
        return {
            name: {v["name"]: v["value"] for v in template["spec"]["containers"][0]["env"] if "OTEL" in v["name"]}
            for name, template in found.items()
        }

    traced = {n for n, v in variables(tracing={"endpoint": endpoint, "ratio": 0.1}).items() if v}
    some = variables(tracing={"endpoint": endpoint, "ratio": 0.1})["a/lethe-warm-driver"]

    assert some == {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0.1",
    }
    assert {n.partition("/")[2] for n in traced} == {"lethe-operator", "lethe-committer", "lethe-warm-driver"}
    assert not any(variables().values())
