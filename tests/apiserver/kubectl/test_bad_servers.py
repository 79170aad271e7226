"""The commands on resources against a real API server: no cluster, no rights, no Lethe, an older or another one."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from lethe.kube import DATASETS

from tests.support.commands import definitions, lethe, one_line
from tests.support.documents import resource
from tests.support.servers.kubernetes import (
    TOKEN,
    TOKEN_WITHOUT_RIGHTS,
    ApiServerProcess,
    api_server,
    apply_definitions,
)

SPEC = {
    "table": {"catalog": "local", "name": "air.flights"},
    "batchColumn": "batch_id",
    "buffer": {"uri": "s3://lake/buffer"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServerProcess]:
    with api_server(tmp_path_factory.mktemp("server")) as running:
        yield running


def test_no_kubeconfig_and_no_server(tmp_path: Path) -> None:
    nothing = tmp_path / "none"
    away = tmp_path / "away"
    cluster = {"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    user = {"name": "u", "user": {"token": "x"}}
    away.write_text(
        yaml.safe_dump({"clusters": [cluster], "contexts": [context], "users": [user], "current-context": "c"})
    )

    one_line(lethe(nothing, "status"), 10, "NoCluster", "lethe local up")
    one_line(lethe(nothing, "put", "flights", str(tmp_path)), 10, "NoCluster")
    one_line(lethe(nothing, "batches", "flights"), 10, "NoCluster")
    one_line(lethe(away, "logs", "flights"), 20, "ClusterAway")
    one_line(lethe(away, "status"), 20, "ClusterAway", "context c (https://127.0.0.1:1) does not answer")
    one_line(lethe(away, "status", "--context", "d"), 10, "NoCluster", "d")


def test_the_stages_of_an_installation(server: ApiServerProcess, tmp_path: Path) -> None:
    """One server: first without Lethe, then with an older chart, then with this one and a user without rights."""
    config = server.kubeconfig
    one_line(lethe(config, "status"), 10, "NotInstalled", "context tests")

    def older(document: dict[str, Any]) -> None:
        spec = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        spec["properties"].pop("ticket", None)
        rules = spec.get("x-kubernetes-validations") or []
        spec["x-kubernetes-validations"] = [r for r in rules if "ticket" not in r["rule"]]

    apply_definitions(server, definitions(older))
    server.kube.create(DATASETS, "default", resource("Dataset", "flights", deepcopy(SPEC)))
    one_line(
        lethe(config, "revert", "flights", "a", "--ticket", "T-1"), 10, "OlderChart", "spec.ticket", "Upgrade the chart"
    )
    dry = lethe(config, "revert", "flights", "a", "--name", "r", "--dry-run")
    assert dry.stdout.splitlines()[1].split()[:2] == ["restatement/r", "create"], dry.stderr
    one_line(lethe(config, "why", "restatement/r"), 10, "UnknownName")
    one_line(lethe(config, "revert", "flihgts", "a"), 10, "Do you mean flights?")
    one_line(lethe(config, "why", "datset/flights"), 10, "UnknownKind", "dataset")

    made = lethe(config, "revert", "flights", "a", "--name", "flights")
    assert made.returncode == 0, made.stderr
    one_line(lethe(config, "why", "flights"), 10, "AmbiguousName", "dataset/flights or restatement/flights")

    one_line(lethe(config, "logs", "dataset/flights"), 10, "NoRun", "lethe why dataset/flights")
    one_line(lethe(config, "logs", "consolidation-1"), 10, "UnknownName", "no run consolidation-1")
    for command in (("batches", "flights"), ("erasures", "list", "flights"), ("put", "flights", str(tmp_path))):
        one_line(
            lethe(config, *command, HOME=str(tmp_path), PYICEBERG_HOME=str(tmp_path)), 10, "UnknownCatalog",
            "dataset/flights has its table in the catalog local",
            f"your own configuration and credentials: add the catalog local to {tmp_path}/.pyiceberg.yaml",
        )  # fmt: skip
    annotated = lethe(config, "vacuum-now", "flights", "-o", "yaml")
    assert yaml.safe_load(annotated.stdout)["metadata"]["name"] == "flights", annotated.stderr

    guest = tmp_path / "guest"
    guest.write_text(config.read_text().replace(TOKEN, TOKEN_WITHOUT_RIGHTS))
    one_line(
        lethe(guest, "status"), 10, "you may not list datasets.lethe.dev in namespace default",
        "kubectl create role lethe-list-datasets -n default --verb=list --resource=datasets.lethe.dev",
    )  # fmt: skip
    for command in (("put", "flights", str(tmp_path)), ("batches", "flights"), ("logs", "flights")):
        one_line(lethe(guest, *command), 10, "you may not get datasets.lethe.dev in namespace default")


def test_another_version_of_the_api(tmp_path: Path) -> None:
    def later(document: dict[str, Any]) -> None:
        document["spec"]["versions"][0]["name"] = "v1"

    with api_server(tmp_path / "server") as server:
        apply_definitions(server, definitions(later))

        one_line(lethe(server.kubeconfig, "status"), 10, "OtherVersion", "lethe.dev/v1", "needs v1beta1")
