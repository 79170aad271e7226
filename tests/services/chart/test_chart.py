"""The chart renders what the operator reads, refuses what cannot work, and grants no more than is needed."""

import json
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from lethe_operator.resources.common import POD_FIELDS
from lethe_operator.resources.observed import EventsSettings
from lethe_operator.settings import (
    BackOff,
    PodTemplateAllowed,
    RunLimits,
    Settings,
    from_environment,
)

from tests.services.chart.chart import (
    CATALOGS,
    CHART,
    HELM,
    ROOT,
    container,
    environment,
    helm,
    of_kind,
    refused,
    render,
)


def test_lint_is_clean_even_when_strict() -> None:
    done = helm("lint", "--strict", str(CHART), values=CATALOGS)

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_environment_of_the_operator_has_all_settings() -> None:
    """These names are the contract with the operator's settings."""
    told = environment(render({"watchNamespaces": ["a", "b"], "podTemplate": {"allowedSecrets": ["x", "y"]}}))

    assert told["LETHE_WATCH_NAMESPACES"] == "a,b"
    assert told["LETHE_POD_TEMPLATE_ALLOWED_SECRETS"] == "x,y"
    assert told["LETHE_CATALOGS_SECRET"] == "lethe-catalogs"
    assert told["PYICEBERG_HOME"] == "/etc/lethe/catalogs"
    assert json.loads(told["LETHE_RUN_TEMPLATE"])["driver"] == {"cpu": "500m", "memory": "2Gi"}
    assert {"LETHE_SPARK_IMAGE", "LETHE_IMAGE_PULL_POLICY", "LETHE_RESYNC_SECONDS"} <= told.keys()
    settings = from_environment(told)
    assert settings.pod_template == PodTemplateAllowed()
    assert settings.run_limits == RunLimits()
    assert (settings.retry, settings.infrastructure_retry) == (Settings().retry, Settings().infrastructure_retry)


def test_what_a_pod_template_may_name_reaches_the_operator() -> None:
    """Each list of the chart is one of the operator's, and one that is left out keeps its default."""
    lists = {field.alias: [f"a-{field.alias}"] for field in PodTemplateAllowed.model_fields.values()}
    chart = yaml.safe_load((CHART / "values.yaml").read_text())["podTemplate"]["allowed"]
    allowed = {**lists, "env": ["A_*"], "mountPaths": ["/a"]}

    settings = from_environment(environment(render({"podTemplate": {"allowed": allowed}})))

    assert chart.keys() == lists.keys()
    assert settings.pod_template.model_dump(mode="json", by_alias=True) == allowed


def test_the_schema_has_the_fields_of_pods_that_the_operator_copies() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]["runTemplate"]["properties"]

    pod = schema["podTemplate"]["properties"]["spec"]["properties"]
    assert pod.keys() == {*POD_FIELDS, "volumes", "containers"}


def test_numbers_reach_the_operator_as_numbers() -> None:
    """Helm turns large numbers into 1e+06 when a template prints them plainly."""
    values = {
        "resyncSeconds": 1_000_000,
        "resyncMaxSeconds": 4_000_000,
        "retry": {"baseSeconds": 0.5, "maxSeconds": 3_000_000},
        "infrastructureRetry": {"baseSeconds": 0.25, "maxSeconds": 2_000_000},
    }

    settings = from_environment(environment(render(values)))

    assert (settings.resync_seconds, settings.resync_max_seconds) == (1_000_000, 4_000_000)
    assert settings.retry == BackOff(0.5, 3_000_000)
    assert settings.infrastructure_retry == BackOff(0.25, 2_000_000)


def test_what_is_not_asked_for_is_not_installed() -> None:
    documents = render()

    names = {d["metadata"]["name"] for d in documents}
    assert [n for n in names if any(part in n for part in ("gateway", "inlet", "dashboard"))] == []
    assert not {d["kind"] for d in documents} & {
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "PodMonitor",
        "PrometheusRule",
    }
    assert not {"LETHE_EVENTS", "LETHE_EVENTS_SECRET"} & environment(documents).keys()
    assert from_environment(environment(documents)).events == EventsSettings()
    assert "events" not in [m["name"] for m in container(documents)["volumeMounts"]]


def test_the_settings_of_events_and_their_secret_reach_the_operator() -> None:
    kafka = {"bootstrapServers": "b:9093", "topic": "lethe", "securityProtocol": "SASL_SSL", "mode": "Structured"}
    lineage = {"url": "https://marquez/api/v1/lineage"}
    values = {
        "enabled": True,
        "kafka": kafka,
        "openLineage": lineage,
        "secretName": "kafka",
        "maxEventBytes": 1_000_000,
    }
    documents = render({"events": values})

    settings = from_environment(environment(documents))

    assert settings.events == EventsSettings.model_validate({k: v for k, v in values.items() if k != "secretName"})
    assert str(settings.events_secret) == "/etc/lethe/events"
    (deployment,) = of_kind(documents, "Deployment")
    (volume,) = [v for v in deployment["spec"]["template"]["spec"]["volumes"] if v["name"] == "events"]
    assert volume["secret"]["secretName"] == "kafka"
    (mount,) = [m for m in container(documents)["volumeMounts"] if m["name"] == "events"]
    assert mount == {"name": "events", "mountPath": "/etc/lethe/events", "readOnly": True}


def test_metrics_have_a_port_unless_they_are_disabled() -> None:
    def ports(values: dict[str, Any]) -> list[Any]:
        return [port["name"] for port in container(render(values))["ports"]]

    assert ports({}) == ["health", "metrics"]
    assert environment(render())["LETHE_METRICS_PORT"] == "9090"
    assert ports({"metrics": {"enabled": False}}) == ["health"]
    assert "LETHE_METRICS_PORT" not in environment(render({"metrics": {"enabled": False}}))


def test_the_operator_sees_every_mailbox_whatever_the_name_of_the_chart_is() -> None:
    """It watches ConfigMaps by this label."""
    documents = render({"nameOverride": "other", "warmDrivers": {"enabled": True}, "watchNamespaces": ["a"]})
    mailboxes = [m for c in ("committer", "warm-driver") for m in of_kind(documents, "ConfigMap", c)]

    assert [m["metadata"]["labels"]["app.kubernetes.io/name"] for m in mailboxes] == ["lethe"] * 3


KAFKA = {"bootstrap.servers": "kafka:9092"}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        # Who may write a Dataset there could start pods beside the operator.
        ({"watchNamespaces": ["lake", "lethe-system"]}, 'watchNamespaces contains "lethe-system"'),
        ({"inlet": {"enabled": True, "clusters": {"a b": {"properties": KAFKA}}}}, "a b"),
        ({"inlet": {"enabled": True, "clusters": {"main": {}}}}, "properties"),
        ({"inlet": {"enabled": True, "clusters": {"main": {"properties": {}}}}}, "bootstrap.servers"),
        ({"inlet": {"enabled": True, "clusters": {"main": {"properties": KAFKA, "topics": []}}}}, "topics"),
        ({"gateway": {"enabled": True, "ingress": {"enabled": True}}}, "host is required"),
        ({"gateway": {"enabled": True, "httpRoute": {"enabled": True}}}, "parentRefs is required"),
        ({"metrics": {"enabled": False}, "monitoring": {"alerts": {"create": True}}}, "metrics.enabled is false"),
        ({"metrics": {"enabled": False}, "monitoring": {"dashboard": {"create": True}}}, "metrics.enabled is false"),
        ({"monitoring": {"alerts": {"create": True, "disabled": ["X"]}}}, 'names "X", which is not an alert'),
        ({"watchNamespace": ["a"]}, "watchNamespace"),
        ({"watchNamespaces": []}, "watchNamespaces"),
        ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
        ({"catalogs": {"main": {}}}, "main"),
        ({"runTemplate": {"driver": {"memory": "much"}}}, "memory"),
        ({"runTemplate": {"executor": {}}}, "executor"),
        ({"runTemplate": {"podTemplate": {"nodeSelector": {"a": "b"}}}}, "nodeSelector"),
        ({"runTemplate": {"podTemplate": {"spec": {"toleration": []}}}}, "toleration"),
        ({"runTemplate": {"podTemplate": {"spec": {"runtimeClassName": "gvisor"}}}}, "runtimeClassName"),
        ({"runTemplate": {"podTemplate": {"spec": {"containers": [{"name": "spark", "envFrom": []}]}}}}, "envFrom"),
        ({"runTemplate": {"podTemplate": {"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}}}, "containers"),
        ({"resyncSeconds": 0}, "resyncSeconds"),
        ({"idleChecks": {"pointerSeconds": 0}}, "pointerSeconds"),
        ({"idleChecks": {"seconds": 5}}, "seconds"),
        ({"resyncMaxSeconds": 0}, "resyncMaxSeconds"),
        ({"maxRunSeconds": 72_001}, "maxRunSeconds"),
        ({"warmDrivers": {"maxRunSeconds": 72_001}}, "maxRunSeconds"),
        ({"idleChecks": {"listingCoreShare": 2}}, "listingCoreShare"),
        ({"sharedRuns": {"enabled": True}}, "Set warmDrivers.enabled=true"),
        ({"events": {"enabled": True}}, "nothing to publish to"),
        ({"events": {"http": {"url": "http://a"}, "kafka": {"bootstrapServers": "b:1", "topic": "t"}}}, "both set"),
        ({"events": {"http": {"url": "ftp://a"}}}, "url"),
        ({"events": {"kafka": {"topic": "t"}}}, "bootstrapServers"),
        ({"events": {"sink": {}}}, "sink"),
        ({"podTemplate": {"allowed": {"env": ["*"]}}}, "env"),
        ({"podTemplate": {"allowed": {"env": ["J*"]}}}, "env"),
        ({"podTemplate": {"allowed": {"mountPaths": ["/"]}}}, "mountPaths"),
        ({"podTemplate": {"allowed": {"variables": []}}}, "variables"),
        ({"runLimits": {"cpuFactor": 0.5}}, "cpuFactor"),
        ({"committer": {"replicas": 2}}, "replicas"),
        ({"metrics": {"podMonitor": {"intervalSeconds": 0}}}, "intervalSeconds"),
        ({"catalogsSecret": {"create": False}, **CATALOGS}, "catalogsSecret.create is false"),
        ({"serviceAccount": {"create": False}}, "serviceAccount.name is required"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_value_is_refused_by_name(values: dict[str, Any], named: str) -> None:
    assert named in refused(values)


def test_every_container_has_requests_and_limits() -> None:
    for component in ("operator", "committer"):
        resources = container(render(), component)["resources"]
        for part in ("requests", "limits"):
            assert resources[part].keys() == {"cpu", "memory", "ephemeral-storage"}


def test_all_pods_have_user_namespaces_if_wanted() -> None:
    watched = {"watchNamespaces": ["a"]}
    rendered = render({"userNamespaces": True, **watched})

    pods = {d["metadata"]["name"]: d["spec"]["template"]["spec"] for d in rendered if d["kind"] == "Deployment"}
    assert {name: p.get("hostUsers") for name, p in pods.items()} == {"lethe-operator": False, "lethe-committer": False}
    assert from_environment(environment(rendered)).user_namespaces
    assert "hostUsers" not in str(render(watched))


def test_runs_can_go_without_a_limit_of_cpus() -> None:
    assert from_environment(environment(render({"runLimits": {"cpuFactor": 0}}))).run_limits.cpu_factor == 0


def test_definitions_outlive_the_release_by_default() -> None:
    def kept(values: dict[str, Any]) -> list[bool]:
        definitions = of_kind(render(values, definitions=True), "CustomResourceDefinition")
        return [
            "helm.sh/resource-policy" in definition["metadata"].get("annotations", {}) for definition in definitions
        ]

    assert kept({}) == [True] * 3
    assert kept({"crds": {"keep": False}}) == [False] * 3
    assert kept({"crds": {"install": False}}) == []


def test_a_rendered_definition_is_the_source_but_for_its_metadata() -> None:
    rendered = {d["metadata"]["name"]: d["spec"] for d in of_kind(render(definitions=True), "CustomResourceDefinition")}
    sources = [yaml.safe_load(path.read_text()) for path in (ROOT / "crds").glob("*.yaml")]

    assert {source["metadata"]["name"]: source["spec"] for source in sources} == rendered


def test_a_package_of_the_chart_contains_the_definitions(tmp_path: Path) -> None:
    """In the checkout they are behind a link, which a package replaces by files."""
    assert HELM is not None
    subprocess.run([HELM, "package", CHART, "--destination", tmp_path], check=True, capture_output=True, timeout=60)
    (archive,) = tmp_path.glob("*.tgz")
    with tarfile.open(archive) as files:
        found = {m.name: m.isfile() for m in files if m.name.startswith("lethe/files/crds/")}

    assert found == {f"lethe/files/crds/{path.name}": True for path in (ROOT / "crds").glob("*.yaml")}


def test_a_copy_of_the_chart_without_the_definitions_is_refused(tmp_path: Path) -> None:
    """As Git makes one on a file system without links: then the link is a text file."""
    chart = tmp_path / "lethe"
    shutil.copytree(CHART, chart, symlinks=True)
    (chart / "files/crds").unlink()
    (chart / "files/crds").write_text("../../../crds")

    done = helm("template", "lethe", str(chart), "--namespace", "lethe-system")

    assert "this copy of the chart has no definitions" in done.stderr


def test_the_launcher_and_the_queue_reach_the_operator() -> None:
    def settings_of(values: dict[str, Any]) -> Settings:
        environment = {e["name"]: e.get("value", "") for e in container(render(values))["env"]}
        return from_environment(environment)

    plain = settings_of({})
    chosen = {
        "runTemplate": {"launcher": "SparkApplication", "queue": "team-a"},
        "sparkOperator": {"enabled": True},
        "kueue": {"pods": True},
    }
    found = settings_of(chosen)

    assert (plain.run_template.launcher, plain.run_template.queue, plain.spark_applications) == ("Job", None, False)
    assert (found.run_template.launcher, found.run_template.queue) == ("SparkApplication", "team-a")
    assert (plain.kueue_pods, found.kueue_pods) == (False, True)
    assert (found.spark_applications, found.run_template.executors.wait_seconds) == (True, 300)
    assert "sparkOperator.enabled=true" in refused({"runTemplate": {"launcher": "SparkApplication"}})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("registry:5000/lethe-operator", "registry:5000/lethe-operator:{}"),
        ("registry:5000/lethe-operator:2", "registry:5000/lethe-operator:2"),
        ("lethe-operator@sha256:" + "0" * 64, "lethe-operator@sha256:" + "0" * 64),
    ],
)
def test_an_image_without_a_tag_gets_the_version_of_the_chart(given: str, expected: str) -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    documents = render({"image": {"operator": given}})

    (operator,) = [d for d in documents if d["kind"] == "Deployment" and d["metadata"]["name"] == "lethe-operator"]
    assert operator["spec"]["template"]["spec"]["containers"][0]["image"] == expected.format(version)


@pytest.mark.parametrize("name", ["no", "2024"])
def test_names_that_yaml_reads_as_another_type_stay_names(name: str) -> None:
    """A namespace may be called so: the code of Norway, or a year. The API server refuses anything but texts."""
    every = {"enabled": True}
    parts = {"warmDrivers": every, "gateway": every, "networkPolicy": every, "inlet": every, "metrics": every}
    objects = render({**CATALOGS, **parts, "erase": {"signing": every}, "watchNamespaces": [name]}, release=f"{name}-x")
    objects += render({"watchNamespaces": [name]}, release="2025")

    found = [(d["metadata"].get("namespace", ""), *d["metadata"].get("labels", {}).values()) for d in objects]
    found += [tuple(s["namespace"] for s in d["subjects"] if "namespace" in s) for d in objects if "subjects" in d]
    assert {type(text) for texts in found for text in texts} == {str}
    assert name in {namespace for namespace, *_ in found}
