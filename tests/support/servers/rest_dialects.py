"""How REST catalogs differ from Iceberg's own server, by what their documentation says: a proxy before that server.

The catalogs themselves are not started: Polaris, Lakekeeper, Unity Catalog and Gravitino are in no registry of packages that the
tests use.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from tests.support.servers.faulty_proxy import Forward, before, forward_to

TOKEN: Final = "issued"
_JSON: Final = [("Content-Type", "application/json")]


@dataclass(frozen=True)
class Dialect:
    """What a client sees of one catalog."""

    name: str
    base: str
    """The path before `/v1`."""
    prefix: str = ""
    """The catalog gives it in its configuration, and each later path has it."""
    scope: str = ""
    """Of OAuth2: clients ask this server for a token; "": they need none."""
    of_conflict: int = 409
    """The status of a commit that another one has overtaken."""
    page_size: int = 0
    """Entries in a page of a listing; 0: all."""
    tables_only: bool = False
    """Namespaces are made elsewhere, and there are no views."""

    @property
    def properties(self) -> dict[str, str]:
        """Of a client, besides `uri`."""
        found = {"type": "rest", "warehouse": "lake"}
        return {**found, "credential": "lethe:secret", "scope": self.scope} if self.scope else found


DIALECTS: Final = (
    Dialect("polaris", "/api/catalog", "lake", "PRINCIPAL_ROLE:ALL", of_conflict=400),
    Dialect("lakekeeper", "/catalog", "0198c5f2-7d7e-7c3a-9d54-3f8a8d1f0e11", "lakekeeper", page_size=1),
    Dialect("unity", "/api/2.1/unity-catalog/iceberg-rest", "catalogs/lake", "all-apis", tables_only=True),
    Dialect("gravitino", "/iceberg"),
)


@contextmanager
def speaking(dialect: Dialect, server: str) -> Iterator[str]:
    """The URI of a catalog that speaks a dialect, on Iceberg's own server."""
    with before(_translating(dialect, forward_to(server))) as proxy:
        yield proxy.endpoint + dialect.base


def _translating(dialect: Dialect, forward: Forward) -> Forward:
    def translated(method: str, path: str, headers: Any, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        plain = {k: v for k, v in headers.items() if k.lower() != "accept-encoding"}  # answers are read here
        parts = urlsplit(path)
        below = parts.path.removeprefix(f"{dialect.base}/v1/")
        if below == parts.path:
            return _refused(404, "NotFoundException", f"no such path: {parts.path}")
        if below == "oauth/tokens":
            return _token(dialect, body)
        if dialect.scope and headers.get("Authorization") != f"Bearer {TOKEN}":
            return _refused(401, "NotAuthorizedException", "no token")
        if below == "config":
            status, _, content = forward(method, "/v1/config", plain, body)
            return status, _JSON, _configuration(dialect, content)
        prefix = f"{dialect.prefix}/" if dialect.prefix else ""
        if not below.startswith(prefix):
            return _refused(404, "NotFoundException", f"the prefix {dialect.prefix} is missing in {below}")
        own = below.removeprefix(prefix)
        if dialect.tables_only and (method, own) == ("POST", "namespaces"):
            return _refused(403, "ForbiddenException", "namespaces are made elsewhere")
        query = f"?{parts.query}" if parts.query else ""
        status, answered, content = forward(method, f"/v1/{own}{query}", plain, body)
        if status == 409 and "/tables/" in own:
            return _refused(dialect.of_conflict, "BadRequestException", "the table has changed")
        if dialect.page_size and method == "GET" and own.endswith("/tables") and status == 200:
            content = _page(content, dialect.page_size, parse_qs(parts.query))
        return status, answered, content

    return translated


def _token(dialect: Dialect, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
    asked = parse_qs(body.decode())
    if asked.get("scope") != [dialect.scope]:
        return _refused(400, "invalid_scope", f"expected the scope {dialect.scope}")
    issued = {"access_token": TOKEN, "token_type": "bearer", "expires_in": 3600}
    return 200, _JSON, json.dumps(issued).encode()


def _configuration(dialect: Dialect, content: bytes) -> bytes:
    known = json.loads(content)
    if dialect.prefix:
        known["overrides"]["prefix"] = dialect.prefix
    if dialect.tables_only:
        known["endpoints"] = [
            e for e in known["endpoints"] if "/views" not in e and e != "POST /v1/{prefix}/namespaces"
        ]
    return json.dumps(known).encode()


def _page(content: bytes, size: int, query: dict[str, list[str]]) -> bytes:
    """A page of the tables of a namespace. Its token is the place of the next one."""
    known = json.loads(content)
    start = int((query.get("pageToken") or [""])[0] or 0)
    tables = known["identifiers"][start : start + size]
    following = str(start + size) if start + size < len(known["identifiers"]) else None
    return json.dumps({"identifiers": tables, "next-page-token": following}).encode()


def _refused(status: int, kind: str, message: str) -> tuple[int, list[tuple[str, str]], bytes]:
    return status, _JSON, json.dumps({"error": {"message": message, "type": kind, "code": status}}).encode()
