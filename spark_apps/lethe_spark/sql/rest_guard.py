"""Stands between Iceberg's REST client in this process's JVM and a REST catalog: its answers configure nothing in the JVM. I/O.

Iceberg's client merges what the catalog answers over the properties of the configuration: it loads classes that an answer names,
and sends the credentials of the configuration to hosts in it. Only a Java class could prevent that in the JVM. So the client
talks to a server of this process, which sends on each request as it is, and leaves in the answer only what
`lethe.guards.properties` allows.

This server also signs requests (SigV4), and uses the proxy and the certificates of the configuration (`rest_upstream`).
"""

import json
import logging
import threading
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from lethe.base.errors import InputError
from lethe.guards import properties as allowed
from lethe.iceberg import catalogs
from urllib3.exceptions import HTTPError

from lethe_spark.sql.loopback import TOKEN, Answer, LoopbackServer, NoAnswer, Request, error
from lethe_spark.sql.rest_upstream import AUTH_TYPE, OF_CONNECTION, SIGNED, SIGV4, Upstream

log = logging.getLogger(__name__)

# Of one connection, and what both ends set themselves.
_HOP_BY_HOP: Final = frozenset(
    {
        *("connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "proxy-authorization"),
        *("host", "content-length", "content-encoding", "accept-encoding", "expect", TOKEN.lower()),
    }
)
# What Iceberg reads of the answers that hold metadata or credentials, besides `config` and `storage-credentials`.
_OF_TABLES: Final = ("metadata-location", "metadata")
_OF_CONFIG: Final = ("endpoints", "idempotency-key-lifetime")


TOKENS: Final = "oauth2-server-uri"
TOKENS_PATH: Final = "/_lethe/tokens"  # on the guard


class RestGuard:
    """A server before one REST catalog. Its requests come from several threads."""

    def __init__(self, name: str, uri: str, properties: Mapping[str, str]) -> None:
        """Args:
            uri: Of the catalog.
            properties: As the configuration file has them.
        Raises: InputError (`UnsupportedCatalog`).
        """
        self.name = name
        self._uri = uri.rstrip("/")
        self._own = {**properties, "uri": uri}
        self._upstream = Upstream(name, uri, self._own)
        # Tokens may come from another host, which the proxy and the certificates of the configuration are for, too.
        self._tokens = tokens_elsewhere(self._own)
        without_signature = {k: v for k, v in self._own.items() if k not in (SIGNED, AUTH_TYPE)}
        self._of_tokens = Upstream(name, self._tokens, without_signature) if self._tokens else None
        self._server = LoopbackServer(self._answered, f"lethe-rest-guard-{name}")

    @property
    def uri(self) -> str:
        return self._server.uri

    @property
    def token(self) -> str:
        return self._server.token

    def close(self) -> None:
        self._server.close()

    def _answered(self, request: Request) -> Answer:
        """Raises: NoAnswer, if the catalog gave none."""
        headers = {**_end_to_end(request.headers), "Accept-Encoding": "gzip"}
        try:
            if self._of_tokens is not None and request.path == TOKENS_PATH:
                answer = self._of_tokens.send(request.method, self._tokens, request.body, headers)
            else:
                answer = self._upstream.send(request.method, f"{self._uri}{request.path}", request.body, headers)
        except InputError as e:
            return error(400, "BadRequestException", str(e))
        except HTTPError as e:
            log.warning("catalog %s: %s after %s", self.name, type(e).__name__, request.method)
            raise NoAnswer from e
        headers = _end_to_end(answer.headers)
        if answer.status != 200 or not answer.data:
            return Answer(answer.status, answer.data, headers)
        try:
            return Answer(200, self._filtered(answer.data), headers)
        except ValueError:
            return error(502, "ServiceFailureException", f"the answer of the catalog {self.name} is not JSON")
        except InputError as e:
            return error(400, "BadRequestException", str(e))

    def _filtered(self, content: bytes) -> bytes:
        """An answer with nothing that configures a client. It is written again, so that no two parsers read it differently.

        Raises: ValueError, if it is not JSON; InputError (`UnsafeProperty`).
        """
        document = json.loads(content)
        if isinstance(document, dict):
            if "defaults" in document or "overrides" in document:
                document = self._configuration(document)
            elif "metadata" in document or "storage-credentials" in document or "config" in document:
                document = self._table(document)
        return json.dumps(document).encode()

    def _configuration(self, document: Mapping[str, Any]) -> dict[str, Any]:
        answered = {**(document.get("defaults") or {}), **self._own, **(document.get("overrides") or {})}
        found = allowed.configuration(answered, self._own, f"the catalog {self.name}")
        self._uri = found.pop("uri").rstrip("/")
        return {
            "defaults": {},
            "overrides": {k: v for k, v in found.items() if self._own.get(k) != v},
            **{k: document[k] for k in _OF_CONFIG if document.get(k) is not None},
        }

    def _table(self, document: Mapping[str, Any]) -> dict[str, Any]:
        what = f"a table of the catalog {self.name}"
        config = allowed.vended(document.get("config") or {}, self._own, what)
        credentials = [
            {"prefix": str(given["prefix"]), "config": vended}
            for given in document.get("storage-credentials") or ()
            if (vended := allowed.vended(given.get("config") or {}, self._own, what))
        ]
        if config or credentials:
            # Of the FileIO, which asks for new credentials in executors too, where this server is not.
            config |= {k: v for k, v in self._own.items() if k.startswith(OF_CONNECTION)}
            config |= {"uri": self._uri, f"header.{TOKEN}": ""}
            config |= {TOKENS: self._tokens} if self._tokens else {}
        kept = {k: document[k] for k in _OF_TABLES if k in document}
        return {**kept, "config": config, "storage-credentials": credentials}


def _end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in headers.items() if k.lower() not in _HOP_BY_HOP}


_GUARDS: Final[dict[str, tuple[Mapping[str, str], RestGuard]]] = {}
_LOCK: Final = threading.Lock()


def spark_properties(name: str, properties: Mapping[str, str]) -> dict[str, str]:
    """As `catalogs.spark_properties`. A REST catalog is asked through its guard, which lives as long as this process.

    Raises: InputError (`UnsupportedCatalog`).
    """
    conf = catalogs.spark_properties(name, properties)
    prefix = f"spark.sql.catalog.{name}."
    own = {k.removeprefix(prefix): v for k, v in conf.items() if k.startswith(prefix)}
    if own.get("type") != "rest":
        return conf
    with _LOCK:
        known = _GUARDS.get(name)
        if known is None or known[0] != properties:
            # The guard of the old properties goes on: a run of another thread may be using it.
            known = _GUARDS[name] = (dict(properties), RestGuard(name, own["uri"], {**properties, **own}))
    to_guard = {"uri": known[1].uri, f"header.{TOKEN}": known[1].token, **_authentication(own)}
    if tokens_elsewhere(own):
        to_guard[TOKENS] = f"{known[1].uri}{TOKENS_PATH}"
    kept = {k: v for k, v in own.items() if not k.startswith(OF_CONNECTION)}
    others = {k: v for k, v in conf.items() if not k.startswith(prefix)}
    return {**others, **{f"{prefix}{k}": v for k, v in {**kept, **to_guard}.items()}}


def tokens_elsewhere(own: Mapping[str, str]) -> str:
    """The URI of the service that gives tokens for the catalog; "": the catalog does, or none are needed."""
    found = own.get(TOKENS, "")
    return found if urlsplit(found).scheme in ("http", "https") else ""


def _authentication(own: Mapping[str, str]) -> dict[str, str]:
    """How the client authenticates besides the signature. Empty: as its other properties say."""
    kind = own.get(AUTH_TYPE)
    if kind == SIGV4:
        kind = own.get("rest.auth.sigv4.delegate-auth-type")
    return {AUTH_TYPE: kind} if kind else {}
