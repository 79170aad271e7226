"""The gateway's HTTP server and clients that keep to no rules."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from typing import Any

import pytest
from lethe_gateway.app import create_app
from lethe_gateway.main import server
from lethe_gateway.services import Services
from lethe_gateway.settings import CallerLimits, GatewaySettings

from tests.support.gateway_lake import DATASET_STATUS
from tests.support.gateway_parts import TOKEN, OneTable, Resources, Rights, Writer
from tests.support.raw_http import RawClient
from tests.support.resources import a_dataset_body

UPLOADS = "POST /v1/namespaces/ns/datasets/flights/uploads HTTP/1.1"
FILE = f"PUT /v1/namespaces/ns/datasets/flights/uploads/{'0' * 32}/files/0 HTTP/1.1"


class Gateway:
    """A server in a thread, with a cluster in memory."""

    def __init__(self, table: OneTable | None = None, host: str = "127.0.0.1", **limits: Any) -> None:
        settings = GatewaySettings(host=host, port=0, namespaces=("ns",), limits=CallerLimits(**limits))
        self.rights = Rights()
        resources = Resources({"datasets": [a_dataset_body(status=DATASET_STATUS)]})
        services = Services(settings, self.rights, resources, table or OneTable(), Writer(resources))
        self.server = server(create_app(services), settings)
        self._thread = threading.Thread(target=lambda: asyncio.run(self.server.serve()))
        self._thread.start()

    def addresses(self) -> dict[str, int]:
        """The ports, by address."""
        while not self.server.started:
            pass
        return dict(listening.getsockname()[:2] for listening in self.server.servers[0].sockets)

    @property
    def client(self) -> RawClient:
        (port,) = self.addresses().values()
        return RawClient(port, headers={"Authorization": f"Bearer {TOKEN}"})

    def stop(self) -> None:
        self.server.should_exit = True
        self._thread.join()


@pytest.fixture
def gateway() -> Iterator[Callable[..., Gateway]]:
    made: list[Gateway] = []

    def started(table: OneTable | None = None, **settings: Any) -> Gateway:
        made.append(Gateway(table, **settings))
        return made[-1]

    yield started
    for one in made:
        one.stop()


def test_it_listens_on_addresses_of_both_families(gateway: Callable[..., Gateway]) -> None:
    """A cluster may have either."""
    ports = gateway(host=GatewaySettings().host).addresses()

    for host, every in (("127.0.0.1", "0.0.0.0"), ("::1", "::")):
        connection = HTTPConnection(host, ports[every], timeout=20)
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200
        connection.close()


@pytest.mark.parametrize(
    ("headers", "statuses"),
    [
        (("Content-Length: -1",), (400,)),
        (("Content-Length: abc",), (400,)),
        (("Content-Length: 5", "Content-Length: 6"), (400,)),
        (("Content-Length: 5", "Transfer-Encoding: chunked"), (400,)),
        (("Content-Length: 99999999999999999999999999",), (400, 413)),
        (("Content-Length: 1048577",), (413,)),
        (("X-A: " + "b" * 40_000,), (400, 431)),
        (("X-A: b",) * 101, (431,)),
    ],
)
def test_a_request_of_no_acceptable_size_asks_nobody_who_sent_it(
    gateway: Callable[..., Gateway], headers: tuple[str, ...], statuses: tuple[int, ...]
) -> None:
    """Nothing of the body is sent, so the answer cannot wait for it."""
    made = gateway(header_seconds=1)
    client = made.client

    answer = client.send(client.request(UPLOADS, *headers), until_closed=False)

    assert answer.status in statuses, answer.content[:300]
    assert made.rights.asked == []


@pytest.mark.parametrize("line", [UPLOADS, FILE])
def test_the_token_is_checked_before_the_body_is_read(gateway: Callable[..., Gateway], line: str) -> None:
    client = gateway(header_seconds=1).client

    missing, wrong = (
        client.send(client.request(line, "Content-Length: 1000", *token, with_own=False), until_closed=False)
        for token in ((), ("Authorization: Bearer x",))
    )

    assert (missing.status, wrong.status) == (401, 401)


def test_a_body_without_a_length_is_counted(gateway: Callable[..., Gateway]) -> None:
    client = gateway(bodyBytes=1000, header_seconds=1).client
    chunk = b"190\r\n" + b" " * 0x190 + b"\r\n"

    answer = client.send(client.request(UPLOADS, "Transfer-Encoding: chunked"), *([chunk] * 10), until_closed=False)

    assert (answer.status, b"body-too-large" in answer.content) == (413, True)


def test_a_body_that_stops_is_refused_and_its_connection_ends(
    gateway: Callable[..., Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lethe_gateway.main.KEEP_ALIVE_SECONDS", 1)
    client = gateway(bodyIdleSeconds=0.3, header_seconds=1).client

    answer = client.send(client.request(UPLOADS, "Content-Length: 1000", body=b"{"))

    assert (answer.status, b"body-too-slow" in answer.content) == (408, True)


def test_headers_that_come_byte_by_byte_end_the_connection(gateway: Callable[..., Gateway]) -> None:
    client = gateway(header_seconds=0.3).client
    slow = [bytes([b]) for b in client.request("GET /v1/namespaces HTTP/1.1", "X-A: " + "b" * 200)]

    assert client.send(*slow, pause=0.02).content == b""
