"""The inlet in the chart: each namespace gets the Kafka clusters that it may read, in the file that the process reads."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml
from lethe_inlet import settings
from lethe_inlet.settings import from_environment

from tests.services.chart.chart import CHART, of_kind, render

PROPERTIES = {"bootstrap.servers": "kafka:9092", "sasl.password": "secret"}
CLUSTERS = {
    "main": {"properties": PROPERTIES, "schemaRegistry": {"url": "https://registry", "username": "u", "password": "p"}},
    "of-a": {"properties": PROPERTIES, "namespaces": ["a"]},
}


def inlet(**values: Any) -> list[dict[str, Any]]:
    return render({"watchNamespaces": ["a", "b"], "inlet": {"enabled": True, "clusters": CLUSTERS, **values}})


def of(documents: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    """The objects of the inlet by namespace."""
    return {d["metadata"]["namespace"]: d for d in of_kind(documents, kind, "inlet")}


def test_each_namespace_has_an_inlet_with_its_clusters(tmp_path: Path) -> None:
    found = inlet()

    assert of(found, "Deployment").keys() == {"a", "b"}
    secrets = {n: base64.b64decode(s["data"]["kafka.yaml"]) for n, s in of(found, "Secret").items()}
    known = {}
    for namespace, content in secrets.items():
        (tmp_path / namespace).write_bytes(content)
        known[namespace] = settings.read_clusters(tmp_path / namespace)
    assert {n: sorted(c) for n, c in known.items()} == {"a": ["main", "of-a"], "b": ["main"]}
    registry = known["b"]["main"].schema_registry
    assert registry is not None
    assert (known["b"]["main"].properties, registry.username) == (PROPERTIES, "u")


def test_an_inlet_knows_the_topics_that_the_boundary_of_its_namespace_allows(tmp_path: Path) -> None:
    boundaries = {"default": {"topics": []}, "namespaces": {"a": {"topics": ["main/a.*"]}}}
    found = render(
        {"watchNamespaces": ["a", "b"], "inlet": {"enabled": True, "clusters": CLUSTERS}, "boundaries": boundaries}
    )

    allowed = {}
    for namespace, secret in of(found, "Secret").items():
        (tmp_path / namespace).write_bytes(base64.b64decode(secret["data"]["kafka.yaml"]))
        allowed[namespace] = settings.read_clusters(tmp_path / namespace)["main"].topics
    assert allowed == {"a": ("main/a.*",), "b": ()}
    assert "topics" not in base64.b64decode(of(inlet(), "Secret")["a"]["data"]["kafka.yaml"]).decode()


def test_it_may_read_datasets_and_write_their_statuses() -> None:
    (role,) = [d for d in of_kind(inlet(), "Role", "inlet") if d["metadata"]["namespace"] == "a"]

    assert [(r["resources"], r["verbs"]) for r in role["rules"]] == [
        (["datasets"], ["list"]),
        (["datasets/status"], ["patch"]),
    ]


def test_its_settings_reach_the_process() -> None:
    pod = of(inlet(), "Deployment")["a"]["spec"]["template"]["spec"]
    (only,) = pod["containers"]

    environ = {v["name"]: v.get("value", "a") for v in only["env"]}
    assert from_environment(environ).clusters_file == Path("/etc/lethe/kafka/kafka.yaml")
    assert only["command"] == ["python", "-m", "lethe_inlet"]
    assert (
        "COPY operator/lethe_inlet /opt/lethe/app/lethe_inlet" in (CHART.parents[1] / "operator/Dockerfile").read_text()
    )


def test_a_secret_of_the_user_takes_the_place_of_the_charts() -> None:
    found = inlet(existingSecret="kafka-of-vault")

    assert not of_kind(found, "Secret", "inlet")
    volumes = of(found, "Deployment")["a"]["spec"]["template"]["spec"]["volumes"]
    assert [v["secret"]["secretName"] for v in volumes if v["name"] == "kafka"] == ["kafka-of-vault"]


def test_a_boundary_marks_its_service_account() -> None:
    marks = {"annotations": {"role": "arn"}}
    found = render(
        {
            "watchNamespaces": ["a"],
            "inlet": {"enabled": True},
            "boundaries": {"namespaces": {"a": {"serviceAccounts": {"inlet": marks}}}},
        }
    )

    assert of(found, "ServiceAccount")["a"]["metadata"]["annotations"] == {"role": "arn"}


def test_the_file_is_checked_and_its_values_are_not_quoted(tmp_path: Path) -> None:
    file = tmp_path / "kafka.yaml"
    file.write_text(yaml.safe_dump({"clusters": {"main": {"properties": {"sasl.password": ["secret"]}}}}))

    with pytest.raises(Exception, match=r"clusters\.main\.properties") as refusal:
        settings.read_clusters(file)
    assert "secret" not in str(refusal.value).replace("Secret", "")
