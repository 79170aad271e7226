"""Where a request comes from. Pure."""

from collections.abc import Sequence
from ipaddress import ip_address

from starlette.datastructures import Headers
from starlette.types import Scope

from lethe_gateway.settings import Network


def client_address(scope: Scope, proxies: Sequence[Network]) -> str:
    """Where a request comes from: the last address on its way that is not of a trusted proxy."""
    passed = [a.strip() for a in Headers(scope=scope).get("x-forwarded-for", "").split(",") if a.strip()]
    way = [*passed, scope["client"][0] if scope.get("client") else ""]
    while len(way) > 1 and _is_in(way[-1], proxies):
        way.pop()
    return way[-1]


def is_from_proxy(scope: Scope, proxies: Sequence[Network]) -> bool:
    """Whether a trusted proxy sent the request."""
    return bool(scope.get("client")) and _is_in(scope["client"][0], proxies)


def _is_in(address: str, networks: Sequence[Network]) -> bool:
    try:
        return any(ip_address(address) in network for network in networks)
    except ValueError:
        return False
