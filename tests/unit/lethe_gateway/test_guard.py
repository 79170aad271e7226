"""Where a request comes from, and what it may use."""

from ipaddress import ip_network
from typing import Any

import pytest
from lethe_gateway.addresses import client_address
from lethe_gateway.guard import Guard
from lethe_gateway.services import Services
from lethe_gateway.settings import GatewaySettings, InvalidSettings, from_environment

from tests.support.gateway_parts import OneTable, Resources, Rights, Writer

PROXIES = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))


def scope(
    client: str = "10.1.1.1", forwarded: str = "", path: str = "/v1/namespaces", method: str = "GET"
) -> dict[str, Any]:
    headers = [(b"x-forwarded-for", forwarded.encode())] if forwarded else []
    return {"type": "http", "client": (client, 1234), "headers": headers, "path": path, "method": method}


@pytest.mark.parametrize(
    ("client", "forwarded", "expected"),
    [
        ("203.0.113.5", "", "203.0.113.5"),
        ("203.0.113.5", "198.51.100.1", "203.0.113.5"),  # not a proxy: its header is a claim
        ("10.1.1.1", "198.51.100.1", "198.51.100.1"),
        ("10.1.1.1", "1.2.3.4, 198.51.100.1, 10.2.2.2", "198.51.100.1"),  # the first one was sent by the client
        ("fd00::1", "2001:db8::1", "2001:db8::1"),
        ("10.1.1.1", "10.2.2.2", "10.2.2.2"),
        ("10.1.1.1", "not an address", "not an address"),
        ("10.1.1.1", "", "10.1.1.1"),
    ],
)
def test_the_address_is_the_last_one_that_is_not_a_proxy(client: str, forwarded: str, expected: str) -> None:
    assert client_address(scope(client, forwarded), PROXIES) == expected


def test_proxies_are_networks() -> None:
    assert from_environment({"LETHE_GATEWAY_PROXIES": "10.0.0.0/8, fd00::/8"}).proxies == PROXIES
    with pytest.raises(InvalidSettings, match="LETHE_GATEWAY_PROXIES must be networks such as"):
        from_environment({"LETHE_GATEWAY_PROXIES": "10.0.0.1/8"})


@pytest.mark.parametrize(
    ("method", "path", "seconds"),
    [
        ("GET", "/v1/namespaces/ns/changes", None),
        ("GET", "/v1/namespaces/ns/datasets/changes", 30),
        ("GET", "/v1/namespaces/ns/datasets/flights/batches/2026/changes", 30),
        ("PUT", f"/v1/namespaces/ns/datasets/flights/uploads/{'0' * 32}/files/0", 300),
        ("POST", f"/v1/namespaces/ns/datasets/flights/uploads/{'0' * 32}/files/0", 30),
        ("GET", f"/v1/namespaces/ns/datasets/flights/uploads/{'0' * 32}:complete", 30),
    ],
)
def test_only_streams_last_for_ever_and_only_files_are_large(method: str, path: str, seconds: float | None) -> None:
    services = Services(GatewaySettings(namespaces=("ns",)), Rights(), Resources(), OneTable(), Writer(Resources()))

    bounds = Guard(lambda *_: None, services)._bounds(scope(path=path, method=method))  # type: ignore[arg-type, return-value]

    assert bounds.seconds == seconds
    assert (bounds.body_bytes == 16 << 20) == (seconds == 300)
