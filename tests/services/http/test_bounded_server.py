"""Lethe's own HTTP servers and clients that keep to no rules: sizes, tokens and times are checked before a body is read."""

import json
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from lethe import http_server
from lethe.http_server import BoundedHandler, BoundedServer, ClientLimits, Rejected, start
from lethe.metrics_server import serve_metrics
from lethe_local.api.server import MAX_BODY_BYTES
from lethe_local.folder import NAMESPACE
from lethe_spark.sql.rest_servers import LIMITS as FOLDER_LIMITS
from lethe_spark.sql.rest_servers import TOKEN, FolderServer
from prometheus_client import CollectorRegistry, Gauge

from tests.support import api_server
from tests.support.raw_http import RawClient

CLOSE = "Connection: close"
CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"


class Served:
    """A server, a client of it, and a request that it accepts."""

    def __init__(self, client: RawClient, line: str, most: int) -> None:
        self.client, self.line, self.most = client, line, most


@pytest.fixture(scope="module")
def local_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with api_server.running(tmp_path_factory.mktemp("api")) as server:
        headers = {"Authorization": f"Bearer {server.folder.token}"}
        client = RawClient(server.port, server.folder.certificate[0], headers)
        yield Served(client, f"POST {CONFIG_MAPS} HTTP/1.1", MAX_BODY_BYTES)


@pytest.fixture(scope="module")
def folder_server() -> Iterator[Served]:
    server = FolderServer(None)  # type: ignore[arg-type]
    client = RawClient(int(server.uri.rpartition(":")[2]), headers={TOKEN: server.token})
    yield Served(client, "POST /v1/namespaces HTTP/1.1", FOLDER_LIMITS.body_bytes)
    server.close()


@pytest.fixture(scope="module")
def metrics() -> Iterator[Served]:
    registry = CollectorRegistry()
    Gauge("lethe_answer", "Of all.", registry=registry).set(42)
    server = serve_metrics(0, registry, "127.0.0.1")
    yield Served(RawClient(server.server_port), "GET /metrics HTTP/1.1", 0)
    server.shutdown()
    server.server_close()


@pytest.fixture(params=["local_api", "folder_server", "metrics"])
def served(request: pytest.FixtureRequest) -> Served:
    return request.getfixturevalue(str(request.param))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (("Content-Length: -1",), 400),
        (("Content-Length: abc",), 400),
        (("Content-Length: +5",), 400),
        (("Content-Length: 5, 6",), 400),
        (("Content-Length: ",), 400),
        (("Content-Length: \u00b2",), 400),
        (("Content-Length: 5", "Content-Length: 6"), 400),
        (("Content-Length: 5", "Transfer-Encoding: chunked"), 400),
        (("Transfer-Encoding: chunked",), 411),
        (("Transfer-Encoding: gzip, chunked",), 411),
        ((f"Content-Length: {10**6 * '9'}",), 431),
        (("Content-Length: 99999999999999999999999999",), 413),
        (("Content-Length: {more}",), 413),
    ],
)
def test_a_body_of_no_acceptable_length_is_refused_before_it_is_read(
    served: Served, headers: tuple[str, ...], status: int
) -> None:
    """Also without the token. Nothing of the body is sent, so the answer cannot wait for it."""
    wanted = [h.format(more=served.most + 1) for h in headers]

    for with_token in (True, False):
        answer = served.client.send(served.client.request(served.line, *wanted, with_own=with_token))
        assert answer.status == status, answer.content[:300]


@pytest.mark.parametrize("token", ["", "guessed", "gu\u00e9ssed"])
@pytest.mark.parametrize("with_token", ["local_api", "folder_server"])
def test_the_token_is_checked_before_the_body_is_read(
    request: pytest.FixtureRequest, with_token: str, token: str
) -> None:
    served: Served = request.getfixturevalue(with_token)
    (name, value), *_ = served.client.headers.items()
    headers = [f"{name}: {'Bearer ' if value.startswith('Bearer') else ''}{token}"] if token else []

    asked = served.client.request(served.line, *headers, "Content-Length: 1000000", with_own=False)
    answer = served.client.send(asked)  # and no body

    assert answer.status == 401


def test_a_client_that_asks_before_it_sends_the_body_gets_the_answer_at_once(local_api: Served) -> None:
    """curl and Go send `Expect: 100-continue`, and the body only after that was answered."""
    client, body = local_api.client, json.dumps(a_config_map("asked")).encode()
    headers = ("Expect: 100-continue", CLOSE)

    refused = client.send(client.request(local_api.line, *headers, f"Content-Length: {len(body)}", with_own=False))
    too_large = client.send(client.request(local_api.line, *headers, f"Content-Length: {MAX_BODY_BYTES + 1}"))
    created = client.send(client.request(local_api.line, *headers, f"Content-Length: {len(body)}"), body)

    assert (refused.status, too_large.status) == (401, 413)
    assert created.content.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 ")


def test_a_client_that_sends_too_much_reads_why(local_api: Served) -> None:
    """It is not only reset, although it goes on sending."""
    client = local_api.client
    request = client.request(local_api.line, f"Content-Length: {MAX_BODY_BYTES + 1}")

    answer = client.send(request, b"x" * 1_000_000)

    assert json.loads(answer.content.partition(b"\r\n\r\n")[2])["reason"] == "RequestEntityTooLarge"


def test_what_follows_a_refused_request_is_not_read_as_another_one(local_api: Served) -> None:
    client = local_api.client
    body = json.dumps(a_config_map("smuggled")).encode()
    hidden = client.request(local_api.line, f"Content-Length: {len(body)}", body=body)

    answer = client.send(client.request(local_api.line, "Transfer-Encoding: chunked", body=hidden))
    listed = client.send(client.request(f"GET {CONFIG_MAPS} HTTP/1.1", CLOSE))

    assert answer.content.count(b"HTTP/1.1 ") == 1
    assert b"smuggled" not in listed.content


def test_requests_of_one_connection_are_answered_one_after_the_other(local_api: Served) -> None:
    client = local_api.client
    bodies = [json.dumps(a_config_map(name)).encode() for name in ("first", "second")]
    requests = [client.request(local_api.line, f"Content-Length: {len(b)}", body=b) for b in bodies]

    answer = client.send(b"".join([*requests, client.request(f"GET {CONFIG_MAPS}/first HTTP/1.1", CLOSE)]))

    assert [answer.content.count(f"HTTP/1.1 {status}".encode()) for status in (201, 200)] == [2, 1]


@pytest.mark.parametrize(
    "line", ["GET", "GET / HTTP/9.9", "GET / HTTP/x", "GET / /", "\x16\x03\x01", "", f"GET /{'x' * 70_000} HTTP/1.1"]
)
def test_what_is_no_request_gets_an_error_that_repeats_nothing(served: Served, line: str) -> None:
    answer = served.client.send(served.client.request(line, "X-Secret: s3cret", with_own=False))

    assert answer.status in (400, 414, 431, 505, 0), answer.content[:200]
    assert b"s3cret" not in answer.content
    assert b"Traceback" not in answer.content


@pytest.mark.parametrize("flood", [["X-A: b"] * 101, ["X-A: " + "b" * 30_000] * 3, ["X-A: " + "b" * 70_000]])
def test_a_flood_of_headers_ends_the_connection(served: Served, flood: list[str]) -> None:
    assert served.client.send(served.client.request(served.line, *flood)).status == 431


def test_bodies_that_are_no_json_are_refused_and_the_server_goes_on(local_api: Served) -> None:
    client = local_api.client

    def sent(body: bytes) -> int:
        return client.send(client.request(local_api.line, CLOSE, f"Content-Length: {len(body)}", body=body)).status

    assert [sent(b) for b in (b"{", b"\xff", b"[" * 100_000)] == [400, 400, 400]
    assert sent(json.dumps(a_config_map("after")).encode()) == 201


# --- time and numbers ---


class Plain(BoundedHandler):
    """Answers with the body."""

    def authorize(self) -> None:
        if self.path == "/closed":
            raise Rejected(401, "Unauthorized", "no")

    def answer(self, body: bytes) -> None:
        if self.path == "/large":
            self.send(200, "text/plain", b"x" * 100_000_000)
            return
        self.send(200, "text/plain", body)

    def reject(self, rejected: Rejected) -> None:
        self.send(rejected.status, "text/plain", rejected.message.encode())


@pytest.fixture
def plain() -> Iterator[Callable[..., RawClient]]:
    """Starts servers with limits of their own."""
    servers: list[BoundedServer] = []

    def started(**limits: Any) -> RawClient:
        handler = type("Handler", (Plain,), {"limits": ClientLimits(**{"body_bytes": 1000, **limits})})
        servers.append(BoundedServer(("127.0.0.1", 0), handler))
        start(servers[-1], "plain")
        return RawClient(servers[-1].server_port)

    yield started
    for server in servers:
        server.shutdown()
        server.server_close()


def test_headers_that_come_byte_by_byte_end_the_connection(plain: Callable[..., RawClient]) -> None:
    client = plain(header_seconds=0.3)
    slow = [bytes([b]) for b in client.request("GET / HTTP/1.1", "X-A: " + "b" * 200)]

    answer = client.send(*slow, pause=0.02)

    assert (answer.content, answer.seconds < 15) == (b"", True)


def test_a_body_that_comes_byte_by_byte_is_refused(plain: Callable[..., RawClient]) -> None:
    client = plain(body_seconds=0.3)

    answer = client.send(client.request("POST / HTTP/1.1", "Content-Length: 1000"), *([b"x"] * 200), pause=0.02)

    assert answer.status == 408


def test_a_connection_without_a_request_ends(plain: Callable[..., RawClient]) -> None:
    client = plain(idle_seconds=0.2)

    assert client.send().content == b""
    assert client.send(client.request("GET / HTTP/1.1")).status == 200


def test_a_client_that_does_not_read_does_not_keep_its_place(plain: Callable[..., RawClient]) -> None:
    client = plain(send_seconds=0.3, connections=1, idle_seconds=0.2)
    with client._connected(20) as idle:
        idle.sendall(client.request("GET /large HTTP/1.1"))
        done = threading.Event()

        def ask() -> None:
            while client.send(client.request("GET / HTTP/1.1", CLOSE)).status != 200:
                pass
            done.set()

        threading.Thread(target=ask, daemon=True).start()
        assert done.wait(15)


def test_connections_above_the_limit_are_closed(plain: Callable[..., RawClient]) -> None:
    client = plain(connections=2)
    with client._connected(20) as one, client._connected(20) as two:
        for held in (one, two):  # they are accepted in order, so both have their places when the second one is answered
            held.sendall(client.request("GET / HTTP/1.1"))
            assert held.recv(100)

        assert client.send(client.request("GET / HTTP/1.1", CLOSE)).content == b""


def test_a_client_that_leaves_within_its_body_is_not_answered(plain: Callable[..., RawClient]) -> None:
    client = plain()
    with client._connected(20) as leaving:
        leaving.sendall(client.request("POST / HTTP/1.1", "Content-Length: 10", body=b"x"))

    assert client.send(client.request("POST / HTTP/1.1", CLOSE, "Content-Length: 2", body=b"ok")).content.endswith(
        b"ok"
    )


def test_metrics_are_read_as_prometheus_reads_them(metrics: Served) -> None:
    client = metrics.client

    text = client.send(client.request("GET /metrics HTTP/1.1", CLOSE)).content
    other = client.send(client.request("GET /metrics?name[]=none HTTP/1.1", CLOSE)).content
    written = client.send(client.request("POST /metrics HTTP/1.1", CLOSE))

    assert b"lethe_answer 42.0" in text
    assert b"lethe_answer" not in other
    assert written.status == 405


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_metrics_are_served_on_addresses_of_both_families(host: str) -> None:
    """A cluster may have either."""
    server = serve_metrics(0, CollectorRegistry())
    connection = HTTPConnection(host, server.server_port, timeout=20)

    connection.request("GET", "/metrics")

    assert connection.getresponse().status == 200
    connection.close()
    server.shutdown()
    server.server_close()


def test_the_module_is_the_only_server_of_its_kind() -> None:
    """Another one would need the same limits."""
    root = Path(http_server.__file__).parents[2]
    own = Path(http_server.__file__)
    found = [
        p.relative_to(root).as_posix()
        for folder in ("spark_apps", "operator")
        for p in (root / folder).rglob("*.py")
        if p != own and any(word in p.read_text() for word in ("http.server", "start_http_server", "socketserver"))
    ]

    assert found == []


def a_config_map(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {}}
