"""Requests in the name of callers, and watches."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import kubernetes.client
import pytest
import yaml
from lethe.kube import DATASETS, Away, Kube, RequestRefused
from lethe_operator.cluster.client import connect_for_callers, of_configuration

EVENTS = [{"type": "ADDED", "object": {"metadata": {"name": n}}} for n in ("a", "b")]


class Server(ThreadingHTTPServer):
    """Remembers tokens and queries. Watches end after their events, or stay open for the name `open`."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.queries: list[dict[str, str]] = []
        self.closing = threading.Event()
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        query = dict(parse_qsl(urlsplit(self.path).query))
        self.server.tokens.append(self.headers.get("Authorization", ""))
        self.server.queries.append(query)
        if query.get("resourceVersion") == "forbidden":
            self._whole(403, {"reason": "Forbidden"})
        elif "watch" in query:
            self._watch(query)
        else:
            self._whole(200, {"metadata": {"resourceVersion": "12", "continue": "next"}, "items": [{}]})

    def _whole(self, status: int, document: object) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _watch(self, query: dict[str, str]) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in EVENTS:
            for part in (json.dumps(event).encode(), b"\n"):  # a line may come in pieces
                self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        if query.get("fieldSelector") == "metadata.name=open":
            self.server.closing.wait(30)
            return
        self.wfile.write(b"0\r\n\r\n")


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield server
    server.closing.set()
    server.shutdown()
    server.server_close()


def client(server: Server) -> Kube:
    configuration = kubernetes.client.Configuration()
    configuration.host = server.address
    return Kube(of_configuration(configuration))


def test_each_request_has_the_token_of_its_caller(server: Server) -> None:
    kube = client(server)

    for token in ("one", "two"):
        kube.with_token(token).page(DATASETS, "ns")
    kube.page(DATASETS, "ns")

    assert server.tokens == ["Bearer one", "Bearer two", ""]


def test_a_client_for_callers_has_no_credentials_of_its_own(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server would prefer a client certificate to a caller's token."""
    (tmp_path / "c.pem").write_text("a certificate")
    user = {"client-certificate": str(tmp_path / "c.pem"), "client-key": str(tmp_path / "c.pem"), "token": "own"}
    document = {
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server.address}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(document))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))

    kube = connect_for_callers()

    kube.page(DATASETS, "ns")
    assert server.tokens == [""]
    assert kube.server.cert_file is None
    assert kube.server.key_file is None


def test_a_page_has_a_size_and_the_version_of_its_list(server: Server) -> None:
    found = client(server).page(DATASETS, "ns", limit=3, after="here")

    assert (found.version, found.after, len(found.items)) == ("12", "next", 1)
    assert server.queries == [{"limit": "3", "continue": "here"}]


def test_a_watch_gives_its_events_and_ends(server: Server) -> None:
    found = list(client(server).watch(DATASETS, "ns", "12", "flights", seconds=5))

    assert found == EVENTS
    assert server.queries == [
        {
            "watch": "true",
            "resourceVersion": "12",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": "5",
            "fieldSelector": "metadata.name=flights",
        }
    ]


def test_a_watch_can_be_ended_from_another_thread(server: Server) -> None:
    found = client(server).watch(
        DATASETS, "ns", "12", "open", seconds=60, on_open=lambda end: threading.Timer(0.2, end).start()
    )
    started = time.monotonic()

    with suppress(Away):  # it looks like a connection that was cut off
        list(found)

    assert time.monotonic() - started < 20


def test_a_watch_that_is_forbidden_says_so(server: Server) -> None:
    with pytest.raises(RequestRefused):
        list(client(server).watch(DATASETS, "ns", "forbidden"))
