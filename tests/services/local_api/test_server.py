"""The operator's own client and kopf's requests work against the server, over TLS with a token."""

import json
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from lethe.kube import CONFIG_MAPS, DATASETS, AlreadyExists, Conflict, Kube, NotFound, RequestRefused
from lethe_local import cli
from lethe_local.folder import NAMESPACE, Folder

from tests.support import api_server
from tests.support.manifests import dataset_manifest, named

JSON = {"Content-Type": "application/json"}


@dataclass
class Running:
    folder: Folder
    port: int
    kube: Kube

    def request(
        self, path: str, token: str = "", method: str = "GET", body: Any = None, headers: Mapping[str, str] = {}
    ) -> Any:
        tls = ssl.create_default_context(cafile=str(self.folder.certificate[0]))
        headers = {"Authorization": f"Bearer {token or self.folder.token}", **headers}
        content = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(f"https://127.0.0.1:{self.port}{path}", content, headers, method=method)
        return urllib.request.urlopen(asked, context=tls, timeout=60)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with api_server.running(tmp_path) as server:
        yield Running(server.folder, server.port, server.kube)


def config_map(name: str, **labels: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}, "data": {}}


def test_the_operators_client_reads_writes_and_gets_its_errors(running: Running) -> None:
    kube = running.kube
    created = kube.create(CONFIG_MAPS, NAMESPACE, config_map("a"))

    assert kube.get(CONFIG_MAPS, NAMESPACE, "a") == created
    with pytest.raises(AlreadyExists):
        kube.create(CONFIG_MAPS, NAMESPACE, config_map("a"))
    tried = kube.patch(CONFIG_MAPS, NAMESPACE, "a", {"data": {"k": "u"}}, dry_run=True)
    assert (tried["data"], kube.get(CONFIG_MAPS, NAMESPACE, "a")) == ({"k": "u"}, created)
    kube.patch(CONFIG_MAPS, NAMESPACE, "a", {"data": {"k": "v"}})
    outdated = {"resourceVersion": created["metadata"]["resourceVersion"]}
    with pytest.raises(Conflict):
        kube.patch(CONFIG_MAPS, NAMESPACE, "a", {"metadata": outdated, "data": {"k": "w"}})
    with pytest.raises(RequestRefused):
        kube.create(DATASETS, NAMESPACE, named("d", dataset_manifest(batchColumn="a.b")))
    kube.delete(CONFIG_MAPS, NAMESPACE, "a")
    with pytest.raises(NotFound):
        kube.get(CONFIG_MAPS, NAMESPACE, "a")


def test_lists_come_in_pages_and_as_metadata_alone(running: Running) -> None:
    for n in range(7):
        running.kube.create(CONFIG_MAPS, NAMESPACE, config_map(f"m{n}", app="x"))

    first = json.load(running.request(f"/api/v1/namespaces/{NAMESPACE}/configmaps?limit=3&labelSelector=app%3Dx"))
    second = json.load(running.request(f"/api/v1/configmaps?limit=9&continue={first['metadata']['continue']}"))
    page = running.kube.page(CONFIG_MAPS, NAMESPACE, metadata_only=True)

    assert [i["metadata"]["name"] for i in first["items"]] == ["m0", "m1", "m2"]
    assert [i["metadata"]["name"] for i in second["items"]] == ["m3", "m4", "m5", "m6"]
    assert [set(i) for i in page.items] == [{"apiVersion", "kind", "metadata"}] * 7


def test_pages_leave_out_no_object_when_others_go_or_come_between_them(running: Running) -> None:
    for n in range(1, 7):
        running.kube.create(CONFIG_MAPS, NAMESPACE, config_map(f"m{n}"))
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps"

    first = json.load(running.request(f"{path}?limit=3"))["metadata"]
    running.kube.delete(CONFIG_MAPS, NAMESPACE, "m1")
    second = json.load(running.request(f"{path}?limit=2&continue={first['continue']}"))
    running.kube.create(CONFIG_MAPS, NAMESPACE, config_map("m0"))
    third = json.load(running.request(f"{path}?limit=2&continue={second['metadata']['continue']}"))

    assert [[i["metadata"]["name"] for i in page["items"]] for page in (second, third)] == [["m4", "m5"], ["m6"]]
    # A watch from the version of any page reports the object that went.
    assert {page["metadata"]["resourceVersion"] for page in (second, third)} == {first["resourceVersion"]}
    with pytest.raises(urllib.error.HTTPError, match="400"):
        running.request(f"{path}?continue=3")


def test_what_the_server_does_not_have_is_not_answered_as_the_object(running: Running) -> None:
    running.kube.create(CONFIG_MAPS, NAMESPACE, config_map("a"))
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/a"

    def refused(method: str, subresource: str, body: Any = None) -> int:
        with pytest.raises(urllib.error.HTTPError) as caught:
            running.request(f"{path}/{subresource}", method=method, body=body, headers=JSON)
        return caught.value.code

    assert [refused("GET", "log"), refused("PUT", "scale", config_map("a", lost="x"))] == [404, 404]
    assert refused("DELETE", "status") == 405
    assert running.kube.get(CONFIG_MAPS, NAMESPACE, "a")["metadata"]["labels"] == {}


def test_only_objects_of_namespaces_are_in_one(running: Running, tmp_path: Path) -> None:
    manifest = tmp_path / "namespace.yaml"
    manifest.write_text("{apiVersion: v1, kind: Namespace, metadata: {name: team-a}}")

    def lethe_local(*command: str) -> str:
        done = CliRunner().invoke(cli.local, [*command, "--dir", str(running.folder.path)], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    lethe_local("apply", "-f", str(manifest))

    assert lethe_local("get", "namespaces", "-o", "name").split() == ["namespace/team-a"]
    assert json.load(running.request("/api/v1/namespaces/team-a"))["metadata"]["name"] == "team-a"
    assert "team-a" in lethe_local("describe", "namespace", "team-a")
    lethe_local("delete", "namespace", "team-a")
    assert json.load(running.request("/api/v1/namespaces"))["items"] == []
    for method, path in (
        ("POST", "/api/v1/namespaces/default/namespaces"),
        ("POST", "/api/v1/configmaps"),
        ("GET", "/api/v1/configmaps/a"),
    ):
        with pytest.raises(urllib.error.HTTPError, match=r"404|405"):
            running.request(path, method=method, body={"metadata": {"name": "a"}}, headers=JSON)


def test_a_watch_reports_changes_of_the_objects_that_it_selects(running: Running) -> None:
    kube = running.kube
    kube.create(CONFIG_MAPS, NAMESPACE, config_map("a", app="x"))
    kube.create(CONFIG_MAPS, NAMESPACE, config_map("c", app="x"))
    version = json.load(running.request("/api/v1/configmaps"))["metadata"]["resourceVersion"]
    query = f"watch=true&labelSelector=app%3Dx&resourceVersion={version}&timeoutSeconds=30"
    stream = running.request(f"/api/v1/namespaces/{NAMESPACE}/configmaps?{query}")

    def change() -> None:
        kube.create(CONFIG_MAPS, NAMESPACE, config_map("other"))
        kube.create(CONFIG_MAPS, NAMESPACE, config_map("b", app="x"))
        kube.patch(CONFIG_MAPS, NAMESPACE, "b", {"metadata": {"labels": {"app": "y"}}})
        kube.patch(CONFIG_MAPS, NAMESPACE, "other", {"data": {"k": "v"}})
        kube.patch(CONFIG_MAPS, NAMESPACE, "c", {"metadata": {"labels": {"app": "y"}}})
        kube.patch(CONFIG_MAPS, NAMESPACE, "c", {"data": {"k": "v"}})
        kube.delete(CONFIG_MAPS, NAMESPACE, "a")

    threading.Thread(target=change).start()
    events = [json.loads(next(stream)) for _ in range(4)]

    seen = [(e["type"], e["object"]["metadata"]["name"]) for e in events]
    assert seen == [("ADDED", "b"), ("DELETED", "b"), ("DELETED", "c"), ("DELETED", "a")]
    stream.close()


def test_a_watch_that_is_too_old_is_told_so(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lethe_local.api.store.KEPT_CHANGES", 1)
    for n in range(4):
        running.kube.create(CONFIG_MAPS, NAMESPACE, config_map(f"m{n}"))

    (line,) = running.request("/api/v1/configmaps?watch=true&resourceVersion=1&timeoutSeconds=5").read().splitlines()

    assert json.loads(line)["object"]["code"] == 410


@pytest.mark.parametrize(
    "path",
    [
        "/api",
        "/apis",
        "/api/v1",
        "/apis/lethe.dev/v1beta1",
        "/version",
        "/openapi/v3",
        "/openapi/v3/apis/lethe.dev/v1beta1",
    ],
)
def test_the_api_can_be_discovered(running: Running, path: str) -> None:
    assert json.load(running.request(path))


def test_kubectl_gets_the_columns_of_the_definition(running: Running) -> None:
    running.kube.create(DATASETS, NAMESPACE, named("flights", dataset_manifest()))
    wanted = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
    path = f"{DATASETS.api}/namespaces/{NAMESPACE}/{DATASETS.plural}"

    table = json.load(running.request(path, headers=wanted))
    single = json.load(running.request(f"{path}/flights", headers=wanted))

    names = [c["name"] for c in table["columnDefinitions"]]
    assert (table["kind"], names[:3]) == ("Table", ["Name", "Table", "Ready"])
    assert [row["cells"][0] for row in table["rows"]] == ["flights"]
    assert single["rows"][0]["object"]["metadata"]["name"] == "flights"


def test_an_object_that_is_not_json_is_refused_with_what_to_do(running: Running) -> None:
    """As kubectl sends new Secrets."""
    with pytest.raises(urllib.error.HTTPError) as refusal:
        running.request(
            f"/api/v1/namespaces/{NAMESPACE}/secrets",
            method="POST",
            body={},
            headers={"Content-Type": "application/vnd.kubernetes.protobuf"},
        )

    assert refusal.value.code == 415
    assert "--dry-run=client -o yaml" in json.load(refusal.value)["message"]


def test_a_dry_run_changes_nothing(running: Running) -> None:
    """`kubectl delete --dry-run=server` names it in the body, `kubectl replace --dry-run=server` in the query."""
    created = running.kube.create(CONFIG_MAPS, NAMESPACE, config_map("a"))
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/a"

    replaced = json.load(
        running.request(f"{path}?dryRun=All", method="PUT", body={**created, "data": {"k": "v"}}, headers=JSON)
    )
    running.request(path, method="DELETE", body={"kind": "DeleteOptions", "dryRun": ["All"]}, headers=JSON)

    assert replaced["data"] == {"k": "v"}
    assert running.kube.get(CONFIG_MAPS, NAMESPACE, "a") == created


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "?limit=ten", None),
        ("GET", "?watch=true&resourceVersion=1&timeoutSeconds=x", None),
        ("GET", "?watch=true&resourceVersion=1&fieldSelector=data.k%3Dv", None),
        ("POST", "", [config_map("b")]),
        ("POST", "", {"metadata": "b"}),
        ("POST", "", {"metadata": {"name": 7}}),
        ("POST", "", {"metadata": {"name": "b", "labels": {"rank": 7}}}),
        ("PUT", "/a", {"metadata": {"name": "a", "annotations": {"is": True}}}),
        ("PATCH", "/a", {"metadata": {"labels": {"rank": [1]}}}),
    ],
)
def test_a_request_that_kubernetes_cannot_read_is_answered_so(
    running: Running, method: str, path: str, body: Any
) -> None:
    running.kube.create(CONFIG_MAPS, NAMESPACE, config_map("a"))
    media = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else JSON

    with pytest.raises(urllib.error.HTTPError) as refusal:
        running.request(
            f"/api/v1/namespaces/{NAMESPACE}/configmaps{path}", method=method, body=body, headers=media
        ).read()

    assert (refusal.value.code, json.load(refusal.value)["reason"]) == (400, "BadRequest")


def test_an_object_without_a_name_is_refused(running: Running) -> None:
    with pytest.raises(RequestRefused, match=r"metadata\.name: Required value"):
        running.kube.create(CONFIG_MAPS, NAMESPACE, {"data": {"k": "v"}, "metadata": {}})


def test_without_the_token_nothing_is_answered(running: Running) -> None:
    with pytest.raises(urllib.error.HTTPError) as refusal:
        running.request("/api/v1/configmaps", token="guessed")

    assert refusal.value.code == 401


@pytest.mark.parametrize(("method", "path"), [("GET", "/api/v1/gateways"), ("POST", "/api/v1"), ("GET", "/")])
def test_what_does_not_exist_is_not_found(running: Running, method: str, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refusal:
        running.request(path, method=method, body={})

    assert refusal.value.code == 404


def test_the_credentials_are_readable_by_their_owner_alone(running: Running) -> None:
    secret = [running.folder.kubeconfig, running.folder.account / "token", running.folder.certificate[1]]
    assert [oct(p.stat().st_mode & 0o777) for p in secret] == ["0o600"] * 3
