"""The Secrets of catalogs and keys are where they are read, and nowhere else."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from lethe.erasure.record import load_signer
from lethe.iceberg import catalogs
from pyiceberg.utils.config import Config

from tests.services.chart.chart import CATALOGS, container, environment, of_kind, refused, render, secrets_called


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


def test_certificates_for_a_catalog_reach_the_file_as_pyiceberg_has_them(tmp_path: Path) -> None:
    ssl = {"cabundle": "/ca.pem", "client": {"cert": "/tls.crt", "key": "/tls.key"}}
    secret, *_ = secrets_called("lethe-catalogs", {"catalogs": {"main": {"uri": "https://c", "ssl": ssl}}})
    file = tmp_path / ".pyiceberg.yaml"
    file.write_bytes(base64.b64decode(secret["data"][".pyiceberg.yaml"]))

    assert yaml.safe_load(file.read_text())["catalog"]["main"]["ssl"] == ssl
    assert catalogs.properties("main", file)["ssl.client.key"] == "/tls.key"
    assert "ssl" in refused({"catalogs": {"main": {"ssl": {"verify": False}}}})


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


def test_the_operator_gets_every_key_that_ever_signed() -> None:
    """It finds them beside the key that signs, under any names."""
    documents = render({"erase": {"signing": {"enabled": True}}})
    (deployment,) = of_kind(documents, "Deployment")
    volumes = {v["name"]: v for v in deployment["spec"]["template"]["spec"]["volumes"]}
    mounts = {m["mountPath"]: m for m in container(documents)["volumeMounts"]}

    mount = mounts[str(Path(environment(documents)["LETHE_SIGNING_KEY_FILE"]).parent)]
    assert "subPath" not in mount
    secret = volumes[mount["name"]]["secret"]
    assert secret["secretName"] == "lethe-signing-key"
    assert "items" not in secret  # which would leave out all others


def test_a_changed_catalog_restarts_the_operator() -> None:
    def checksum(values: dict[str, Any]) -> str:
        (deployment,) = of_kind(render(values), "Deployment")
        return str(deployment["spec"]["template"]["metadata"]["annotations"]["checksum/catalogs"])

    assert checksum({}) != checksum(CATALOGS)


def test_a_catalog_is_never_in_the_environment() -> None:
    """It holds passwords, and environments are shown by kubectl describe."""
    assert "u:p@db" not in json.dumps(of_kind(render(CATALOGS), "Deployment"))
