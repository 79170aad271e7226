"""The gateway in the chart: its settings are those that the process reads, and its rights are two."""

from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from lethe_gateway.settings import (
    CallerLimits,
    ConsoleSettings,
    GatewaySettings,
    IndexSettings,
    UploadSettings,
    from_environment,
)

from tests.services.chart.chart import CHART, container, of_kind, refused, render

ON = {"enabled": True}


def gateway(**values: Any) -> list[dict[str, Any]]:
    return render({"watchNamespaces": ["a", "b"], "gateway": {**ON, **values}})


def settings_of(documents: list[dict[str, Any]]) -> GatewaySettings:
    env = container(documents, "gateway")["env"]
    return from_environment({v["name"]: v["value"] for v in env if "value" in v})


def fields(model: Any) -> set[str]:
    return {f.alias or name for name, f in model.model_fields.items()}


def test_its_settings_reach_the_process() -> None:
    found = settings_of(
        gateway(
            audiences=["x", "y"],
            limits={"requestsPerSecond": 7, "bodyBytes": "2Mi"},
            index={"freshSeconds": 9, "maxBytes": "1Gi"},
            uploads={
                "throughBytes": "1Mi",
                "rememberedSeconds": 2_000_000,
                "endpoints": {"main": "https://s3.example.org"},
            },
            console={"tokenHeader": "X-Forwarded-Access-Token"},
        )
    )

    assert (found.namespaces, found.audiences, found.port, found.tls) == (("a", "b"), ("x", "y"), 8443, None)
    assert (found.limits.requests_per_second, found.limits.body_bytes) == (7, 2 << 20)
    assert (found.index.fresh_seconds, found.index.max_bytes) == (9, 1 << 30)
    assert (found.uploads.through_bytes, found.uploads.remembered_seconds) == (1 << 20, 2_000_000)
    assert found.uploads.endpoints == {"main": "https://s3.example.org"}
    assert found.console == ConsoleSettings(token_header="X-Forwarded-Access-Token")


def test_without_values_the_defaults_of_the_process_apply() -> None:
    found = settings_of(gateway())

    assert (found.limits, found.index, found.uploads) == (CallerLimits(), IndexSettings(), UploadSettings())
    assert found.console == ConsoleSettings()


@pytest.mark.parametrize(
    ("key", "model"),
    [("limits", CallerLimits), ("index", IndexSettings), ("uploads", UploadSettings), ("console", ConsoleSettings)],
)
def test_the_schema_knows_every_setting_and_no_other(key: str, model: Any) -> None:
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())["properties"]["gateway"]["properties"]

    assert set(schema[key]["properties"]) == fields(model)
    assert "unknown" in refused({"gateway": {**ON, key: {"unknown": 1}}})


def test_it_may_ask_about_tokens_and_rights_and_nothing_else() -> None:
    (role,) = of_kind(gateway(), "ClusterRole", "gateway")

    assert [(r["resources"], r["verbs"]) for r in role["rules"]] == [
        (["tokenreviews"], ["create"]),
        (["subjectaccessreviews"], ["create"]),
    ]
    assert of_kind(gateway(), "Role", "gateway") == []
    (account,) = of_kind(gateway(), "ServiceAccount", "gateway")
    bound = [b for b in gateway() if b["kind"].endswith("Binding") and _names(b, account["metadata"]["name"])]
    assert [b["roleRef"]["name"] for b in bound] == [role["metadata"]["name"]]


def _names(binding: Mapping[str, Any], account: str) -> bool:
    return any(s["name"] == account for s in binding["subjects"])


def test_two_releases_share_no_cluster_wide_name() -> None:
    (one,) = of_kind(gateway(), "ClusterRole", "gateway")
    other = render({"watchNamespaces": ["c"], "gateway": ON}, "--namespace", "other-system")

    assert one["metadata"]["name"] not in {d["metadata"]["name"] for d in other if d["kind"] == "ClusterRole"}


def test_with_a_certificate_everything_speaks_tls() -> None:
    documents = gateway(tlsSecret="gateway-tls")

    found = settings_of(documents)
    assert found.tls is not None
    mounts = {m["mountPath"] for m in container(documents, "gateway")["volumeMounts"]}
    assert {str(path.parent) for path in found.tls} <= mounts
    probes = [
        container(documents, "gateway")[p]["httpGet"]["scheme"]
        for p in ("startupProbe", "readinessProbe", "livenessProbe")
    ]
    assert probes == ["HTTPS"] * 3
    (service,) = of_kind(documents, "Service", "gateway")
    assert service["spec"]["ports"][0]["appProtocol"] == "https"


def test_the_pod_is_confined_and_the_image_has_the_code() -> None:
    only = container(gateway(), "gateway")

    assert only["command"] == ["python", "-m", "lethe_gateway"]
    assert only["securityContext"]["readOnlyRootFilesystem"] is True
    assert (
        "COPY operator/lethe_gateway /opt/lethe/app/lethe_gateway"
        in (CHART.parents[1] / "operator/Dockerfile").read_text()
    )


def test_an_ingress_and_a_route_lead_to_the_service() -> None:
    documents = gateway(
        ingress={"enabled": True, "host": "lethe.example.org", "tlsSecret": "t", "className": "nginx"},
        httpRoute={"enabled": True, "parentRefs": [{"name": "edge"}], "hostnames": ["lethe.example.org"]},
    )
    (service,) = of_kind(documents, "Service", "gateway")
    (ingress,) = of_kind(documents, "Ingress", "gateway")
    (route,) = of_kind(documents, "HTTPRoute", "gateway")

    (rule,) = ingress["spec"]["rules"]
    assert rule["http"]["paths"][0]["backend"]["service"] == {
        "name": service["metadata"]["name"],
        "port": {"name": "api"},
    }
    assert ingress["spec"]["tls"] == [{"secretName": "t", "hosts": ["lethe.example.org"]}]
    assert route["spec"]["rules"][0]["backendRefs"] == [{"name": service["metadata"]["name"], "port": 443}]


def test_only_named_clients_connect_where_policies_are_enforced() -> None:
    peers = [{"namespaceSelector": {"matchLabels": {"team": "data"}}}]
    documents = gateway(clients=peers)

    (policy,) = of_kind(documents, "NetworkPolicy", "gateway")
    (deployment,) = of_kind(documents, "Deployment", "gateway")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["spec"]["ingress"] == [{"ports": [{"port": "api"}], "from": peers}, {"ports": [{"port": "metrics"}]}]


def test_replicas_leave_one_by_one() -> None:
    assert len(of_kind(gateway(), "PodDisruptionBudget", "gateway")) == 1
    assert of_kind(gateway(replicas=1), "PodDisruptionBudget", "gateway") == []
