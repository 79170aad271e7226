"""The console's sessions, protection against forged forms, and where a request comes from. Pure, apart from Starlette.

The caller's token is in a cookie, or in a header of an authenticating proxy. The cookie contains the token itself, so no replica
remembers anything. Scripts cannot read it, and browsers send it only with requests that come from the console's own pages. The
API under /v1 does not accept it.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from fastapi import Request, Response
from starlette.datastructures import Headers
from starlette.types import Scope

from lethe_gateway.problems import Kind, Problem, unauthenticated
from lethe_gateway.settings import GatewaySettings, Network


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


PREFIX: Final = "/console"
FORM_FIELD: Final = "form_key"
# A browser stores cookies of up to 4,096 bytes, and tokens of identity providers may be longer.
PART_LENGTH: Final = 3_500
PARTS: Final = 4
MAX_TOKEN_LENGTH: Final = PART_LENGTH * PARTS
_TOKEN_CHARACTERS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/=")


def is_page(path: str) -> bool:
    """Whether a path belongs to the console."""
    return path == PREFIX or path.startswith(f"{PREFIX}/")


def is_open(path: str) -> bool:
    """Whether a page needs no caller: the login, and what pages are made with."""
    return path == f"{PREFIX}/-/login" or path.startswith(f"{PREFIX}/-/static/")


def token_of(scope: Scope, settings: GatewaySettings) -> str:
    """The token that a request to the console carries.

    Raises:
        Problem: `unauthenticated`.
    """
    request = Request(scope)
    header = settings.console.token_header
    if header:
        header_value = request.headers.get(header, "") if is_from_proxy(scope, settings.proxies) else ""
        token = header_value[7:].strip() if header_value[:7].lower() == "bearer " else header_value.strip()
    else:
        token = "".join(request.cookies.get(name, "") for name in _names(_is_tls(scope, settings.proxies)))
    if not token:
        raise unauthenticated()
    return token


def log_in(response: Response, scope: Scope, settings: GatewaySettings, token: str) -> None:
    """Set the cookie.

    Raises:
        Problem: `forbidden`, over a connection that others may read. (`unauthenticated`), for a text that cannot be a token.
    """
    if not may_log_in(scope, settings):
        raise Problem(
            Kind.FORBIDDEN,
            "This page was loaded without TLS, so others could read your token. Use https://, or a port-forward to this machine.",
        )
    if not token or len(token) > MAX_TOKEN_LENGTH or not _TOKEN_CHARACTERS.issuperset(token):
        raise unauthenticated()
    _set(response, scope, settings, [token[n : n + PART_LENGTH] for n in range(0, len(token), PART_LENGTH)])


def log_out(response: Response, scope: Scope, settings: GatewaySettings) -> None:
    """Delete all cookies of the session. The token in them stays valid."""
    _set(response, scope, settings, ())


def may_log_in(scope: Scope, settings: GatewaySettings) -> bool:
    """Whether others cannot read the connection."""
    return _is_tls(scope, settings.proxies) or _is_loopback(Request(scope).url.hostname or "")


def form_key(token: str) -> str:
    """A value that only pages of this session contain. Other sites cannot know it."""
    return hmac.new(token.encode("utf-8", "surrogateescape"), b"lethe console form", hashlib.sha256).hexdigest()


def require_own_form(scope: Scope, form: Mapping[str, Sequence[str]], token: str | None) -> None:
    """Require that a form was sent by a page of this console.

    Raises:
        Problem: `forbidden`, for a form that no page of the console has sent.

    Args:
        token: Of the session; None: there is none yet, and only the origin counts.
    """
    headers = Request(scope).headers
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    is_own = urlsplit(origin).netloc == headers.get("host") if origin is not None else site == "same-origin"
    given = (form.get(FORM_FIELD) or ("",))[0]
    if not is_own or (token is not None and not hmac.compare_digest(given.encode(), form_key(token).encode())):
        raise Problem(
            Kind.FORBIDDEN,
            "The form does not come from this console, or your session has changed. Load the page again.",
        )


def _is_tls(scope: Scope, proxies: Sequence[Network]) -> bool:
    if scope.get("scheme") == "https":
        return True
    return is_from_proxy(scope, proxies) and Request(scope).headers.get("x-forwarded-proto") == "https"


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _names(is_tls: bool) -> list[str]:
    """A browser accepts a cookie with the prefix __Host- only over TLS, and sends it only to this host."""
    prefix = "__Host-" if is_tls else ""
    return [f"{prefix}lethe-session-{n}" for n in range(PARTS)]


def _set(response: Response, scope: Scope, settings: GatewaySettings, parts: Sequence[str]) -> None:
    is_tls = _is_tls(scope, settings.proxies)
    for n, name in enumerate(_names(is_tls)):
        if n < len(parts):
            response.set_cookie(name, parts[n], path="/", secure=is_tls, httponly=True, samesite="strict")
        else:
            response.delete_cookie(name, path="/", secure=is_tls, httponly=True, samesite="strict")
