"""The chart renders what the operator reads, refuses what cannot work, and grants no more than is needed."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from lethe.erasure.signature import load_signer
from lethe_operator.decide.leadership import CLAIM_LEASE
from lethe_operator.resources.publishing import EventsSettings
from lethe_operator.settings import (
    BackOff,
    IdleChecks,
    PodTemplateAllowed,
    RunLimits,
    Settings,
    SharedRuns,
    from_environment,
)
from pyiceberg.utils.config import Config

from tests.unit.chart.chart import (
    CATALOGS,
    CHART,
    ROOT,
    container,
    environment,
    helm,
    needs_helm,
    of_kind,
    refused,
    render,
    secrets_called,
    watched,
)

pytestmark = needs_helm


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


def test_runs_are_shared_when_asked_for_and_no_account_waits_for_them() -> None:
    """Each shared Job has an account of its own, which the operator makes."""
    documents = render({"sharedRuns": {"enabled": True, "maxBytesPerDataset": 200_000_000}})

    settings = from_environment(environment(documents)).shared_runs
    assert (settings.enabled, settings.max_bytes_per_dataset, settings.max_datasets) == (True, 200_000_000, 20)
    (only,) = of_kind(documents, "ServiceAccount")
    assert only["metadata"]["namespace"] == "lethe-system"
    assert from_environment(environment(render())).shared_runs == SharedRuns()


def test_the_operators_idle_checks_are_those_of_the_values() -> None:
    settings = from_environment(environment(render({"idleChecks": {"pointerSeconds": 2.5}})))

    assert settings.idle_checks == IdleChecks(pointer_seconds=2.5)
    assert from_environment(environment(render())).idle_checks == IdleChecks()


def test_events_are_off_and_cost_nothing_unless_they_are_asked_for() -> None:
    documents = render()

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


def test_the_chart_has_the_operators_defaults_of_events() -> None:
    chart = yaml.safe_load((CHART / "values.yaml").read_text())["events"]

    assert chart.pop("secretName") == ""
    assert EventsSettings.model_validate(chart) == EventsSettings()
    assert chart.keys() == {f.alias for f in EventsSettings.model_fields.values()}


def test_metrics_have_a_port_unless_they_are_disabled() -> None:
    def ports(values: dict[str, Any]) -> list[Any]:
        return [port["name"] for port in container(render(values))["ports"]]

    assert ports({}) == ["health", "metrics"]
    assert environment(render())["LETHE_METRICS_PORT"] == "9090"
    assert ports({"metrics": {"enabled": False}}) == ["health"]
    assert "LETHE_METRICS_PORT" not in environment(render({"metrics": {"enabled": False}}))
    assert of_kind(render(), "PodMonitor") == []


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
        done = helm("template", release, str(CHART), "--namespace", f"{release}-system")
        documents = [d for d in yaml.safe_load_all(done.stdout) if d]
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


def test_the_operator_sees_every_mailbox_whatever_the_name_of_the_chart_is() -> None:
    """It watches ConfigMaps by this label."""
    documents = render({"nameOverride": "other", "warmDrivers": {"enabled": True}, "watchNamespaces": ["a"]})
    mailboxes = [m for c in ("committer", "warm-driver") for m in of_kind(documents, "ConfigMap", c)]

    assert [m["metadata"]["labels"]["app.kubernetes.io/name"] for m in mailboxes] == ["lethe", "lethe"]


def test_pyiceberg_can_read_the_file_of_a_namespace_without_catalogs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"watchNamespaces": ["a"], **CATALOGS, "boundaries": {"namespaces": {"a": {"catalogs": []}}}}
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))

    for secret in (secrets_called("lethe-catalogs", {})[0], secrets_called("lethe-catalogs", values)[1]):
        (tmp_path / ".pyiceberg.yaml").write_bytes(base64.b64decode(secret["data"][".pyiceberg.yaml"]))
        assert not Config().config.get("catalog")


def test_the_catalogs_are_in_every_namespace_that_reads_them() -> None:
    """Secrets are local to a namespace: the operator reads its own, a run that of its namespace."""
    secrets = secrets_called("lethe-catalogs", {"watchNamespaces": ["a", "b"], **CATALOGS})

    assert [secret["metadata"]["namespace"] for secret in secrets] == ["lethe-system", "a", "b"]
    assert len({secret["data"][".pyiceberg.yaml"] for secret in secrets}) == 1


def test_each_watched_namespace_has_a_key_for_digests_of_values_that_outlives_the_release() -> None:
    """Unless the user provides it, as is needed when a chart is rendered without the cluster."""
    values = {"watchNamespaces": ["a", "b"], **CATALOGS}
    secrets = secrets_called("lethe-digest-key", values)
    own = {**values, "erase": {"digestKey": {"create": False}}}

    assert [s["metadata"]["namespace"] for s in secrets] == ["a", "b"]
    assert {s["metadata"]["annotations"]["helm.sh/resource-policy"] for s in secrets} == {"keep"}
    assert all(len(base64.b64decode(s["data"]["key"])) >= 32 for s in secrets)
    assert secrets_called("lethe-digest-key", own) == []


def test_the_retention_of_erasure_records_reaches_the_operator_only_if_it_is_set() -> None:
    def given(**retention: Any) -> list[str]:
        (deployment,) = of_kind(render({"erase": {"record": {"retention": retention}}}), "Deployment")
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        return [e["value"] for e in container["env"] if e["name"] == "LETHE_ERASURE_RECORD_RETENTION"]

    assert (given(), given(days=0), given(mode="COMPLIANCE", days=3650)) == ([], [], ["COMPLIANCE:3650"])
    assert "mode" in refused({"erase": {"record": {"retention": {"mode": "FOREVER"}}}})


def test_the_key_that_signs_erasure_records_is_where_no_pod_of_a_watched_namespace_can_read_it() -> None:
    """The operator's namespace cannot be watched, and its own Deployment alone mounts the key."""
    values = {"watchNamespaces": ["a"], "erase": {"signing": {"enabled": True}}}
    (secret,) = secrets_called("lethe-signing-key", values)
    mounting = [
        (kind, d["metadata"]["namespace"])
        for kind in ("Deployment", "Job", "DaemonSet", "StatefulSet")
        for d in of_kind(render(values), kind)
        if "lethe-signing-key" in json.dumps(d)
    ]

    assert secret["metadata"]["namespace"] == "lethe-system"
    assert secret["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert load_signer(base64.b64decode(secret["data"]["key.pem"]), "key.pem").public.id
    assert mounting == [("Deployment", "lethe-system")]
    assert secrets_called("lethe-signing-key", {}) == []
    own = {"erase": {"signing": {"enabled": True, "create": False}}}
    assert secrets_called("lethe-signing-key", own) == []


def test_a_changed_catalog_restarts_the_operator() -> None:
    def checksum(values: dict[str, Any]) -> str:
        (deployment,) = of_kind(render(values), "Deployment")
        return str(deployment["spec"]["template"]["metadata"]["annotations"]["checksum/catalogs"])

    assert checksum({}) != checksum(CATALOGS)


def test_a_catalog_is_never_in_the_environment() -> None:
    """It holds passwords, and environments are shown by kubectl describe."""
    assert "u:p@db" not in json.dumps(of_kind(render(CATALOGS), "Deployment"))


def test_the_operators_namespace_cannot_be_watched() -> None:
    """Who may write a Dataset there could start pods beside the operator."""
    message = refused({"watchNamespaces": ["lake", "lethe-system"]})

    assert 'watchNamespaces contains "lethe-system", the namespace of this release' in message


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"watchNamespace": ["a"]}, "watchNamespace"),
        ({"watchNamespaces": []}, "watchNamespaces"),
        ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
        ({"catalogs": {"main": {}}}, "main"),
        ({"runTemplate": {"driver": {"memory": "much"}}}, "memory"),
        ({"runTemplate": {"executor": {}}}, "executor"),
        ({"resyncSeconds": 0}, "resyncSeconds"),
        ({"idleChecks": {"pointerSeconds": 0}}, "pointerSeconds"),
        ({"idleChecks": {"seconds": 5}}, "seconds"),
        ({"resyncMaxSeconds": 0}, "resyncMaxSeconds"),
        ({"idleChecks": {"listingCoreShare": 2}}, "listingCoreShare"),
        ({"sharedRuns": {"maxDatasets": 1}}, "maxDatasets"),
        ({"sharedRuns": {"maxBytes": "1Mi"}}, "maxBytes"),
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


def test_runs_can_go_without_a_limit_of_cpus() -> None:
    assert from_environment(environment(render({"runLimits": {"cpuFactor": 0}}))).run_limits.cpu_factor == 0


def test_definitions_outlive_the_release_by_default() -> None:
    def kept(values: dict[str, Any]) -> list[bool]:
        definitions = of_kind(render(values), "CustomResourceDefinition")
        return [
            "helm.sh/resource-policy" in definition["metadata"].get("annotations", {}) for definition in definitions
        ]

    assert kept({}) == [True] * 3
    assert kept({"crds": {"keep": False}}) == [False] * 3
    assert kept({"crds": {"install": False}}) == []


def test_a_rendered_definition_is_the_source_but_for_its_metadata() -> None:
    rendered = {d["metadata"]["name"]: d["spec"] for d in of_kind(render(), "CustomResourceDefinition")}
    sources = [yaml.safe_load(path.read_text()) for path in (ROOT / "crds").glob("*.yaml")]

    assert {source["metadata"]["name"]: source["spec"] for source in sources} == rendered


def test_the_run_template_has_the_datasets_shape() -> None:
    """What the chart sets as a default is what a Dataset's spec.runTemplate can override."""
    dataset = yaml.safe_load((ROOT / "crds/dataset.yaml").read_text())
    schema = dataset["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][
        "runTemplate"
    ]
    values = json.loads((CHART / "values.schema.json").read_text())["properties"]["runTemplate"]

    for part in ("driver", "executors"):
        assert schema["properties"][part]["properties"].keys() == values["properties"][part]["properties"].keys()


def test_the_launcher_and_the_queue_reach_the_operator() -> None:
    def settings_of(values: dict[str, Any]) -> Settings:
        environment = {e["name"]: e.get("value", "") for e in container(render(values))["env"]}
        return from_environment(environment)

    plain = settings_of({})
    chosen = {"runTemplate": {"launcher": "SparkApplication", "queue": "team-a"}, "sparkOperator": {"enabled": True}}
    found = settings_of(chosen)

    assert (plain.run_template.launcher, plain.run_template.queue, plain.spark_applications) == ("Job", None, False)
    assert (found.run_template.launcher, found.run_template.queue) == ("SparkApplication", "team-a")
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
