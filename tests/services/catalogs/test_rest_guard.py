"""The server between Iceberg's Java client and a REST catalog: it forwards requests as they are, and filters answers."""

import hashlib
import hmac
import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

import pytest
import requests
from lethe.base.errors import InputError
from lethe.iceberg import catalogs
from lethe_spark.sql import rest_servers
from lethe_spark.sql.rest_servers import TOKEN, RestGuard

from tests.support.foreign_properties import canaries
from tests.support.servers.canary import Canary
from tests.support.servers.faulty_proxy import Fault, Proxy, before

NOWHERE = Canary(1)
OWN = {"type": "rest", "s3.endpoint": "https://s3.example", "gcs.service.host": "https://gcs.example", "token": "own"}
VENDED = {
    "s3.access-key-id": "k",
    "s3.secret-access-key": "s",
    "client.refresh-credentials-endpoint": "v1/t/credentials",
}


@dataclass
class Catalog:
    """What the catalog answers, and what it has heard: method, path, headers and body."""

    status: int = 200
    content: bytes = b"{}"
    headers: list[tuple[str, str]] = field(default_factory=list)
    heard: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    proxy: Proxy = field(default_factory=lambda: Proxy(""))

    def answers(self, **document: Any) -> None:
        self.content = json.dumps({k.replace("_", "-"): v for k, v in document.items()}).encode()


@pytest.fixture
def catalog() -> Iterator[Catalog]:
    made = Catalog()

    def answer(method: str, path: str, headers: Any, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        made.heard.append((method, path, {k.lower(): v for k, v in headers.items()}, body))
        return made.status, made.headers, made.content

    with before(answer) as made.proxy:
        yield made


@contextmanager
def guarding(catalog: Catalog, path: str = "/api", **own: str) -> Iterator[RestGuard]:
    guard = RestGuard("main", f"{catalog.proxy.endpoint}{path}", {**OWN, **own})
    try:
        yield guard
    finally:
        guard.close()


def ask(guard: RestGuard, path: str, method: str = "GET", **how: Any) -> requests.Response:
    how["headers"] = {TOKEN: guard.token, **how.get("headers", {})}
    return requests.request(method, f"{guard.uri}{path}", timeout=30, **how)


def test_a_request_arrives_as_it_is(catalog: Catalog) -> None:
    with guarding(catalog) as guard:
        headers = {"Authorization": "Bearer own", "X-Tenant": "a", "If-None-Match": '"v1"'}
        url = f"{guard.uri}/v1/a%2Fb/namespaces/x%1Fy/tables/%2E%2E?snapshots=refs"
        prepared = requests.Request("POST", url, headers={TOKEN: guard.token, **headers}, data=b'{"a": 1}').prepare()
        prepared.url = url  # the library would decode the dots
        requests.Session().send(prepared, timeout=30)

    ((method, path, heard, body),) = catalog.heard
    assert (method, path, body) == ("POST", "/api/v1/a%2Fb/namespaces/x%1Fy/tables/%2E%2E?snapshots=refs", b'{"a": 1}')
    assert {k.lower(): v for k, v in headers.items()}.items() <= heard.items()
    assert TOKEN.lower() not in heard


def test_only_this_process_is_served(catalog: Catalog) -> None:
    with guarding(catalog) as guard:
        assert requests.get(f"{guard.uri}/v1/config", timeout=30).status_code == 401
        assert ask(guard, "/v1/config", headers={TOKEN: "guessed"}).status_code == 401

    assert catalog.heard == []


@pytest.mark.parametrize(
    ("status", "body"), [(404, b'{"error": {}}'), (409, b"x"), (500, b"<html>"), (204, b""), (304, b"")]
)
def test_other_answers_arrive_as_they_are(catalog: Catalog, status: int, body: bytes) -> None:
    catalog.status, catalog.content, catalog.headers = status, body, [("ETag", '"v1"'), ("Retry-After", "3")]
    with guarding(catalog) as guard:
        found = ask(guard, "/v1/namespaces")

    assert (found.status_code, found.content) == (status, body)
    assert (found.headers["ETag"], found.headers["Retry-After"]) == ('"v1"', "3")


def test_a_catalog_that_gives_no_answer_leaves_the_client_without_one(catalog: Catalog) -> None:
    """It must not take a commit that may have landed for a failed one."""
    with guarding(catalog) as guard:
        catalog.proxy.arm(Fault.LOST_ANSWER, "POST")
        with pytest.raises(requests.exceptions.ConnectionError):
            ask(guard, "/v1/namespaces/a/tables/t", "POST", data=b"{}")

    assert len(catalog.heard) == 1


def test_a_redirection_is_not_followed(catalog: Catalog) -> None:
    catalog.status, catalog.headers = 307, [("Location", "http://evil.example/")]
    with guarding(catalog) as guard:
        found = ask(guard, "/v1/namespaces")  # follows what it can, as Iceberg's client does

    assert (found.status_code, found.headers.get("Location")) == (307, None)
    assert len(catalog.heard) == 1


@pytest.mark.parametrize("status", [200, 201, 202])
def test_every_answer_that_iceberg_reads_is_filtered(catalog: Catalog, status: int) -> None:
    """Iceberg's client also takes 202 for a success."""
    catalog.status = status
    catalog.answers(overrides={"prefix": "main", "io-impl": "evil.FileIO", "header.Authorization": "theirs"})
    with guarding(catalog) as guard:
        found = ask(guard, "/v1/config")

    assert (found.status_code, found.json()["overrides"]) == (status, {"prefix": "main"})


def test_the_configuration_has_what_is_allowed(catalog: Catalog) -> None:
    harmful = canaries(NOWHERE, "refused", "configuration")
    endpoints = ["GET /v1/{prefix}/namespaces"]
    catalog.answers(
        defaults=harmful, overrides={**harmful, "prefix": "main", "s3.region": "eu"}, endpoints=endpoints, x=1
    )
    with guarding(catalog) as guard:
        found = ask(guard, "/v1/config").json()

    assert found == {"defaults": {}, "overrides": {"prefix": "main", "s3.region": "eu"}, "endpoints": endpoints}


def test_an_address_on_the_same_host_is_taken_over(catalog: Catalog) -> None:
    catalog.answers(defaults={}, overrides={"uri": f"{catalog.proxy.endpoint}/moved/"})
    with guarding(catalog) as guard:
        assert ask(guard, "/v1/config").json()["overrides"] == {}
        ask(guard, "/v1/namespaces")

    assert [path for _, path, _, _ in catalog.heard] == ["/api/v1/config", "/moved/v1/namespaces"]


def test_a_table_has_its_metadata_and_vended_credentials(catalog: Catalog) -> None:
    harmful = canaries(NOWHERE, "refused", "configuration")
    metadata = {"properties": {"owner": "lethe", "n": 12345678901234567890, "text": "\ud800ü"}}
    catalog.answers(
        metadata=metadata,
        metadata_location="s3://lake/v1.json",
        config={**harmful, **VENDED},
        storage_credentials=[
            {"prefix": "s3://lake", "config": {**VENDED, **harmful}},
            {"prefix": "gs://", "config": harmful},
        ],
        remote_signing_config={"endpoint": "http://evil.example"},
    )
    with guarding(catalog) as guard:
        found = ask(guard, "/v1/namespaces/a/tables/t").json()

    own = {"uri": f"{catalog.proxy.endpoint}/api", f"header.{TOKEN}": ""}
    assert found == {
        "metadata": metadata,
        "metadata-location": "s3://lake/v1.json",
        "config": {**VENDED, **own},
        "storage-credentials": [{"prefix": "s3://lake", "config": VENDED}],
    }


def test_without_vended_credentials_a_table_is_opened_as_the_catalog_is(catalog: Catalog) -> None:
    catalog.answers(metadata={}, metadata_location="x", config=canaries(NOWHERE, "configuration"))
    with guarding(catalog) as guard:
        found = ask(guard, "/v1/namespaces/a/tables/t").json()

    assert (found["config"], found["storage-credentials"]) == ({}, [])


def test_what_another_parser_might_read_differently_is_written_anew(catalog: Catalog) -> None:
    catalog.content = b'{"metadata": {}, "config": {}, "c\\u006fnfig": {"io-impl": "x"}, "config": {"io-impl": "y"}}'
    with guarding(catalog) as guard:
        assert b"io-impl" not in ask(guard, "/v1/namespaces/a/tables/t").content
        catalog.content = '{"config": {"io-impl": "y"}}'.encode("utf-16")
        assert b"io-impl" not in ask(guard, "/v1/namespaces/a/tables/t").content
        catalog.content = b"not JSON"
        assert ask(guard, "/v1/namespaces").status_code == 502


def test_a_host_that_no_configuration_names_is_refused_by_name(catalog: Catalog) -> None:
    catalog.answers(metadata={}, config={**VENDED, "s3.endpoint": "http://evil.example"})
    with guarding(catalog, **{"s3.endpoint": ""}) as guard:
        found = ask(guard, "/v1/namespaces/a/tables/t")

    assert found.status_code == 400
    assert "UnsafeProperty: a table of the catalog main: " in found.json()["error"]["message"]
    assert "evil" not in found.text


def test_a_rest_catalog_has_one_guard_until_its_properties_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_servers, "_GUARDS", {})
    own = {"type": "rest", "uri": "https://catalog.example", "token": "t"}
    first = rest_servers.spark_properties("main", own)

    assert first["spark.sql.catalog.main.uri"].startswith("http://127.0.0.1:")
    assert first["spark.sql.catalog.main.token"] == "t"
    assert rest_servers.spark_properties("main", dict(own)) == first
    assert (
        rest_servers.spark_properties("main", {**own, "token": "u"})["spark.sql.catalog.main.uri"]
        != first["spark.sql.catalog.main.uri"]
    )


@pytest.mark.parametrize("own", [{"type": "sql", "uri": "sqlite:////c.db"}, {"type": "glue", "glue.region": "eu"}])
def test_other_catalogs_have_none(own: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_servers, "_GUARDS", {})

    assert rest_servers.spark_properties("main", own).get("spark.sql.catalog.main.uri", "") != "http://127.0.0.1"
    assert rest_servers._GUARDS == {}


def test_the_client_leaves_its_connection_to_the_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would sign for the address of the guard, or look for it behind the proxy."""
    monkeypatch.setattr(rest_servers, "_GUARDS", {})
    of_connection = {
        "rest.auth.type": "sigv4",
        "rest.auth.sigv4.delegate-auth-type": "oauth2",
        "rest.sigv4-enabled": "true",
        "spark.rest.client.proxy.hostname": "proxy.example",
        "spark.rest.client.tls.configurer-impl": "evil.Class",
    }
    own = {"type": "rest", "uri": "https://glue.eu.amazonaws.com/iceberg", "client.region": "eu", "token": "t"}

    own |= {"oauth2-server-uri": "https://login.example/token"}
    found = rest_servers.spark_properties("main", {**own, **of_connection})

    of_rest = {k.removeprefix("spark.sql.catalog.main."): v for k, v in found.items() if ".main.rest." in k}
    assert of_rest == {"rest.auth.type": "oauth2"}
    assert found["spark.sql.catalog.main.uri"].startswith("http://127.0.0.1:")
    tokens = found["spark.sql.catalog.main.oauth2-server-uri"]
    assert tokens == f"{found['spark.sql.catalog.main.uri']}{rest_servers.TOKENS_PATH}"


# --- the connection to the catalog ------------------------------------------------------------------------------------

SIGNING = {
    "rest.sigv4-enabled": "true",
    "rest.signing-region": "eu-central-1",
    "rest.signing-name": "glue",
    "client.access-key-id": "AKIDEXAMPLE",
    "client.secret-access-key": "of-the-signer",
}


def signature(method: str, path: str, headers: dict[str, str], body: bytes, secret: str) -> str:
    """That of Amazon's description of the algorithm, for the headers that the request says are signed."""
    names = headers["authorization"].split("SignedHeaders=")[1].split(",")[0]
    scope = headers["authorization"].split("Credential=")[1].split(",")[0].partition("/")[2]
    address, _, query = path.partition("?")
    pairs = sorted((quote(k, safe=""), quote(v, safe="")) for k, v in parse_qsl(query, keep_blank_values=True))
    canonical = "\n".join(
        [
            *(method, quote(address), "&".join(f"{k}={v}" for k, v in pairs)),
            *(f"{name}:{headers[name].strip()}" for name in names.split(";")),
            *("", names, hashlib.sha256(body).hexdigest()),
        ]
    )
    text = "\n".join(["AWS4-HMAC-SHA256", headers["x-amz-date"], scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{secret}".encode()
    for part in (*scope.split("/"), text):
        key = hmac.digest(key, part.encode(), "sha256")
    return key.hex()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/config?warehouse=arn%3Aaws%3As3tables%3Aeu%3A1%3Abucket%2Fb&empty=", b""),
        ("POST", "/v1/a%2Fb/namespaces/x%1Fy/tables/t", b'{"a": 1}'),
    ],
)
def test_a_request_is_signed_for_the_host_of_the_catalog(catalog: Catalog, method: str, path: str, body: bytes) -> None:
    with guarding(catalog, **SIGNING) as guard:
        headers = {"X-Tenant": "a", "Authorization": "Bearer own"}
        assert ask(guard, path, method, data=body, headers=headers).status_code == 200

    ((heard_method, heard_path, heard, heard_body),) = catalog.heard
    assert (heard_method, heard_path, heard_body) == (method, f"/api{path}", body)
    assert heard["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/")
    assert "/eu-central-1/glue/aws4_request" in heard["authorization"]
    assert heard["authorization"].endswith(f"Signature={signature(method, heard_path, heard, body, 'of-the-signer')}")
    assert {"host", "x-tenant"} <= set(heard["authorization"].split("SignedHeaders=")[1].split(",")[0].split(";"))
    assert heard["original-authorization"] == "Bearer own"


def test_answers_to_signed_requests_are_filtered_and_files_can_ask_for_new_credentials(catalog: Catalog) -> None:
    catalog.answers(metadata={}, config={**canaries(NOWHERE, "refused", "configuration"), **VENDED})
    with guarding(catalog, **SIGNING) as guard:
        found = ask(guard, "/v1/namespaces/a/tables/t").json()

    of_signer = {k: v for k, v in SIGNING.items() if k == "rest.sigv4-enabled"}
    assert found["config"] == {**VENDED, **of_signer, "uri": f"{catalog.proxy.endpoint}/api", f"header.{TOKEN}": ""}


def test_requests_without_a_region_to_sign_for_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    without = {k: v for k, v in SIGNING.items() if k != "rest.signing-region"}

    with pytest.raises(InputError, match="main: requests are signed, and no region is known"):
        RestGuard("main", "https://catalog.example", without)


def test_requests_go_through_the_proxy_of_the_configuration(catalog: Catalog) -> None:
    host, port = catalog.proxy.endpoint.removeprefix("http://").split(":")
    proxy = {"hostname": host, "port": port, "username": "u", "password": "p"}
    guard = RestGuard("main", "http://catalog.example/api", {f"rest.client.proxy.{k}": v for k, v in proxy.items()})
    try:
        assert ask(guard, "/v1/a%2Fb/namespaces").status_code == 200
    finally:
        guard.close()

    ((_, path, heard, _),) = catalog.heard
    assert path == "http://catalog.example/api/v1/a%2Fb/namespaces"
    assert (heard["host"], heard["proxy-authorization"]) == ("catalog.example", "Basic dTpw")


def test_tokens_of_another_service_come_through_the_guard_and_without_a_signature(catalog: Catalog) -> None:
    """The client does not know the proxy, and the service must not learn the token of the guard."""
    catalog.answers(access_token="t", token_type="bearer")
    tokens = f"{catalog.proxy.endpoint}/login/token?x=1"
    with guarding(catalog, **SIGNING, **{rest_servers.TOKENS: tokens}) as guard:
        found = ask(guard, rest_servers.TOKENS_PATH, "POST", data=b"grant_type=client_credentials").json()
        catalog.answers(metadata={}, config=VENDED)
        table = ask(guard, "/v1/namespaces/a/tables/t").json()

    (method, path, heard, body), _ = catalog.heard
    assert (method, path, body) == ("POST", "/login/token?x=1", b"grant_type=client_credentials")
    assert {"authorization", TOKEN.lower()}.isdisjoint(heard)
    assert found["access-token"] == "t"
    assert table["config"][rest_servers.TOKENS] == tokens


@pytest.mark.parametrize("excluded", [False, True])
def test_without_one_there_they_go_through_the_proxy_of_the_environment(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, excluded: bool
) -> None:
    host = catalog.proxy.endpoint.removeprefix("http://")
    with monkeypatch.context() as environment:  # not of the requests to the guard
        environment.setenv("http_proxy", f"http://u:p%40@{host}")
        environment.setenv("no_proxy", "catalog.invalid" if excluded else "")
        guard = RestGuard("main", "http://catalog.invalid/api", {})
    try:
        if excluded:
            with pytest.raises(requests.exceptions.ConnectionError):
                ask(guard, "/v1/namespaces")
        else:
            assert ask(guard, "/v1/namespaces").status_code == 200
    finally:
        guard.close()

    heard = [(path, headers["proxy-authorization"]) for _, path, headers, _ in catalog.heard]
    assert heard == ([] if excluded else [("http://catalog.invalid/api/v1/namespaces", "Basic dTpwQA==")])


@pytest.fixture
def https(tmp_path: Path) -> Iterator[tuple[str, str, str]]:
    """A catalog with a certificate of its own, which asks for the same certificate of its clients: URI, certificate, key."""
    certificate, key = str(tmp_path / "tls.crt"), str(tmp_path / "tls.key")
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate]
    subprocess.run([*made, *names], check=True, capture_output=True)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificate)
    tls.load_cert_chain(certificate, key)
    tls.verify_mode = ssl.CERT_REQUIRED
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield f"https://localhost:{server.server_port}", certificate, key
    server.shutdown()
    server.server_close()


def test_the_guard_has_the_certificates_of_the_configuration(https: tuple[str, str, str]) -> None:
    uri, certificate, key = https
    for own, is_trusted in (
        ({"ssl.cabundle": certificate, "ssl.client.cert": certificate, "ssl.client.key": key}, True),
        ({"ssl.cabundle": certificate}, False),
        ({"ssl.client.cert": certificate, "ssl.client.key": key}, False),
    ):
        guard = RestGuard("main", uri, own)
        try:
            if is_trusted:
                assert ask(guard, "/v1/config").json() == {}
            else:
                with pytest.raises(requests.exceptions.ConnectionError):
                    ask(guard, "/v1/config")
        finally:
            guard.close()


def test_a_proxy_tunnels_what_is_encrypted(https: tuple[str, str, str]) -> None:
    uri, certificate, key = https
    heard: list[tuple[str, str | None]] = []

    class Tunnel(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            heard.append((self.path, self.headers.get("Proxy-Authorization")))
            with socket.create_connection(("127.0.0.1", int(self.path.rpartition(":")[2]))) as there:
                self.send_response_only(200)
                self.end_headers()
                back = threading.Thread(target=pump, args=(there, self.connection), daemon=True)
                back.start()
                pump(self.connection, there)
                back.join(10)

        def log_message(self, *_: Any) -> None:
            pass

    def pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while content := source.recv(65536):
                target.sendall(content)
            target.shutdown(socket.SHUT_WR)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Tunnel)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    proxy = {"hostname": "127.0.0.1", "port": str(server.server_port), "username": "u"}
    own = {"ssl.cabundle": certificate, "ssl.client.cert": certificate, "ssl.client.key": key}
    guard = RestGuard("main", uri, {**own, **{f"rest.client.proxy.{k}": v for k, v in proxy.items()}})
    try:
        assert ask(guard, "/v1/config").json() == {}
    finally:
        guard.close()
        server.shutdown()
        server.server_close()

    assert heard == [(uri.removeprefix("https://"), "Basic dTo=")]


def test_properties_within_others_are_read_from_the_configuration_file(tmp_path: Path) -> None:
    """PyIceberg has its certificates there."""
    file = tmp_path / ".pyiceberg.yaml"
    file.write_text("catalog: {main: {uri: 'https://c', ssl: {cabundle: /ca.pem, client: {cert: /c, key: /k}}}}")

    assert catalogs.properties("main", file) == {
        "uri": "https://c",
        "ssl.cabundle": "/ca.pem",
        "ssl.client.cert": "/c",
        "ssl.client.key": "/k",
    }
