"""HTTP servers on the loopback address between Iceberg's REST client in this JVM and a catalog: guards, and folder tables. I/O.

Iceberg's client merges what a catalog answers over the properties of the configuration: it loads classes that an answer names,
and sends the credentials of the configuration to hosts in it. Only a Java class could prevent that in the JVM. So the client
talks to a server of this process.
"""

import hashlib
import json
import logging
import os
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, unquote_plus, urlsplit

import boto3
import certifi
import urllib3
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError
from lethe.base.errors import ConflictError, InputError, LetheError, TransientError
from lethe.hadoop import FolderCatalog, MetadataFolder, MetadataVersion
from lethe.http_server import BoundedHandler, BoundedServer, ClientLimits, Rejected, is_same_secret, start
from lethe.iceberg import catalogs
from lethe.storage import properties as allowed_properties
from lethe.uri import contains
from pyspark.sql import SparkSession
from requests.utils import (
    get_auth_from_url,
    get_environ_proxies,
    prepend_scheme_if_needed,
    select_proxy,
    urldefragauth,
)
from urllib3.exceptions import HTTPError

from lethe_spark.jvm.errors import ATTEMPTS
from lethe_spark.jvm.gateway import gateway
from lethe_spark.jvm.metadata import JvmMetadata, escape_requests

log = logging.getLogger(__name__)

AUTH_TYPE: Final = "rest.auth.type"
SIGV4: Final = "sigv4"
SIGNED: Final = "rest.sigv4-enabled"
_PROXY: Final = "rest.client.proxy."
OF_CONNECTION: Final = (SIGNED, AUTH_TYPE, "rest.auth.sigv4.", _PROXY, "rest.client.tls.")
"""Beginnings of properties of Iceberg's Java library that concern the connection to a catalog."""
_TIMEOUTS: Final = urllib3.Timeout(connect=5.0, read=300.0)
"""Seconds to connect, and until the catalog sends something. The client has limits of its own."""
_CONNECTIONS: Final = 16
"""How many connections are kept."""

TOKEN: Final = "X-Lethe-Token"
LIMITS: Final = ClientLimits(body_bytes=256 * 1024 * 1024, body_seconds=120.0)
"""A commit of Iceberg's client may contain the whole metadata of a table with thousands of snapshots."""
_METHODS: Final = frozenset({"GET", "POST", "HEAD", "DELETE", "PUT"})

_HOP_BY_HOP: Final = frozenset(
    {
        *("connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "proxy-authorization"),
        *("host", "content-length", "content-encoding", "accept-encoding", "expect", TOKEN.lower()),
    }
)
"""The headers that concern one connection only, and those that both ends set themselves."""
_SUCCESSES: Final = range(200, 300)
"""Iceberg's client reads what answers with some of these say, not only with 200."""
_OF_TABLES: Final = ("metadata-location", "metadata")
"""What Iceberg reads of the answers that hold metadata or credentials, besides `config` and `storage-credentials`."""
_OF_CONFIG: Final = ("endpoints", "idempotency-key-lifetime")

TOKENS: Final = "oauth2-server-uri"
TOKENS_PATH: Final = "/_lethe/tokens"
"""The path of tokens on the guard."""

_LOCK: Final = threading.Lock()

_TABLE: Final = "/v1/{prefix}/namespaces/{namespace}/tables"
ENDPOINTS: Final = (
    "GET /v1/{prefix}/namespaces/{namespace}",
    "POST /v1/{prefix}/namespaces",
    f"POST {_TABLE}",
    f"GET {_TABLE}/{{table}}",
    f"POST {_TABLE}/{{table}}",
)
_ELSEWHERE: Final = "write.metadata.path"
_NEW: Final = "assert-create"
"""The requirement that the table does not exist."""


class Upstream:
    """The connections to the host of a catalog.

    PyIceberg has the same properties, apart from those of the proxy, whose names are those of Iceberg's Java library. Without
    these, the proxy is that of the environment, as for PyIceberg.
    """

    def __init__(self, name: str, uri: str, properties: Mapping[str, str]) -> None:
        """Create `Upstream`.

        Args:
            name: Of the catalog.
            properties: Of the catalog, in the configuration.

        Raises:
            InputError: `UnsupportedCatalog`.
        """
        self._name, self._properties = name, properties
        self._session = _session(name, properties) if is_signed(properties) else None
        settings: dict[str, Any] = {"maxsize": _CONNECTIONS, "timeout": _TIMEOUTS}
        if urlsplit(uri).scheme == "https":
            settings |= _certificates(properties)
        self._through_proxy: dict[str, str] | None = None  # headers, if the proxy reads the requests
        address, login = _proxy(uri, properties)
        if not address:
            self._pool: Any = urllib3.PoolManager(**settings).connection_from_url(uri)
            return
        headers = urllib3.make_headers(proxy_basic_auth=login)
        self._pool = urllib3.ProxyManager(address, proxy_headers=headers, **settings).connection_from_url(uri)
        if urlsplit(uri).scheme != "https":
            self._through_proxy = dict(headers)

    def send(self, method: str, uri: str, body: bytes, headers: Mapping[str, str]) -> Any:
        """Send a request to the same host. Does not change its path, which may have encoded dots and slashes.

        Raises:
            urllib3.exceptions.HTTPError: The catalog does not respond.
            InputError: `UnsupportedCatalog`.
        """
        sent = self._signed(method, uri, body, headers) if self._session is not None else dict(headers)
        parts = urlsplit(uri)
        target = uri if self._through_proxy is not None else uri.removeprefix(f"{parts.scheme}://{parts.netloc}")
        sent |= self._through_proxy or {}
        how: dict[str, Any] = {"body": body or None, "headers": sent, "retries": False, "redirect": False}
        return self._pool.urlopen(method, target, assert_same_host=False, **how)

    def _signed(self, method: str, uri: str, body: bytes, headers: Mapping[str, str]) -> dict[str, str]:
        """The headers of a request, with its signature (SigV4)."""
        assert self._session is not None
        # The token is for a catalog behind the service that checks the signature.
        token = {f"Original-{k}": v for k, v in headers.items() if k.lower() == "authorization"}
        others = {k: v for k, v in headers.items() if k.lower() != "authorization"}
        others["x-amz-content-sha256"] = hashlib.sha256(body).hexdigest()
        try:
            credentials = self._session.get_credentials()
            if credentials is None:
                raise InputError("UnsupportedCatalog", f"{self._name}: there are no credentials to sign requests with.")
            frozen = credentials.get_frozen_credentials()
        except BotoCoreError as e:
            raise _unsigned(self._name, e) from e
        address, _, query = uri.partition("?")
        params: Any = parse_qsl(query, keep_blank_values=True)
        request = AWSRequest(method, address, others, body, params)
        service = self._properties.get("rest.signing-name", "execute-api")
        SigV4Auth(frozen, service, self._session.region_name).add_auth(request)
        return {**token, **dict(request.headers.items())}


def is_signed(properties: Mapping[str, str]) -> bool:
    """Whether requests to a catalog are signed (SigV4)."""
    return properties.get(SIGNED, "").lower() == "true" or properties.get(AUTH_TYPE) == SIGV4


def _proxy(uri: str, properties: Mapping[str, str]) -> tuple[str, str | None]:
    """The proxy for a URI, and the login for it. "": there is none.

    That of the catalog's properties, else that of the process's environment, which PyIceberg uses.
    """
    own = {k.removeprefix(_PROXY): v for k, v in properties.items() if k.startswith(_PROXY)}
    if own.get("hostname"):
        login = f"{own['username']}:{own.get('password', '')}" if "username" in own else None
        return f"http://{own['hostname']}:{own.get('port', '80')}", login
    proxy = select_proxy(uri, get_environ_proxies(uri))
    if not proxy:
        return "", None
    address = prepend_scheme_if_needed(proxy, "http")
    user, password = get_auth_from_url(address)
    return urldefragauth(address), f"{user}:{password}" if user else None


def _certificates(properties: Mapping[str, str]) -> dict[str, Any]:
    trusted = properties.get("ssl.cabundle") or os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
    return {
        "ca_certs": trusted or certifi.where(),
        "cert_file": properties.get("ssl.client.cert"),
        "key_file": properties.get("ssl.client.key"),
    }


def _session(name: str, properties: Mapping[str, str]) -> boto3.Session:
    """The credentials and the region of signatures. Without keys of its own, those of the process."""

    def own(key: str) -> str | None:
        return properties.get(f"rest.{key}") or properties.get(f"client.{key}")

    try:
        session = boto3.Session(
            profile_name=properties.get("client.profile-name"),
            region_name=properties.get("rest.signing-region") or properties.get("client.region"),
            aws_access_key_id=own("access-key-id"),
            aws_secret_access_key=own("secret-access-key"),
            aws_session_token=own("session-token"),
        )
    except BotoCoreError as e:
        raise _unsigned(name, e) from e
    if not session.region_name:
        raise InputError(
            "UnsupportedCatalog", f"{name}: requests are signed, and no region is known. Set rest.signing-region."
        )
    return session


def _unsigned(name: str, error: BotoCoreError) -> InputError:
    return InputError("UnsupportedCatalog", f"{name}: requests cannot be signed ({type(error).__name__}).")


@dataclass(frozen=True)
class RestRequest:
    """A request to a loopback server. Its `repr` omits headers and body, which may contain credentials."""

    method: str
    path: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


@dataclass(frozen=True)
class RestAnswer:
    """An answer with its whole body, which is JSON unless the headers say otherwise. Its `repr` shows only the status."""

    status: int
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"}, repr=False)


class NoAnswer(Exception):
    """The connection ends without an answer, as it would between a client and a server that has died."""


class LoopbackServer:
    """For the lifetime of the process. Each request must contain the token."""

    def __init__(self, answer: Callable[[RestRequest], RestAnswer], name: str) -> None:
        """Create `LoopbackServer`.

        Args:
            answer: May raise NoAnswer. Called by several threads.
            name: Of the thread.
        """
        self.token = secrets.token_urlsafe(24)
        self._server = BoundedServer(("127.0.0.1", 0), _handler_of(answer, self.token))
        start(self._server, name)

    @property
    def uri(self) -> str:
        """`http://127.0.0.1:<port>`, with any free port."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Stop accepting connections, and free the port."""
        self._server.shutdown()
        self._server.server_close()


def error(status: int, kind: str, message: str) -> RestAnswer:
    """An error of Iceberg's REST protocol."""
    return RestAnswer(status, json.dumps({"error": {"message": message, "type": kind, "code": status}}).encode())


def _handler_of(answer: Callable[[RestRequest], RestAnswer], token: str) -> type[BoundedHandler]:
    class Handler(BoundedHandler):
        limits = LIMITS

        def authorize(self) -> None:
            if not is_same_secret(self.headers.get(TOKEN, ""), token):
                raise Rejected(401, "NotAuthorizedException", "this catalog serves the process that started it only")

        def reject(self, rejected: Rejected) -> None:
            self._send(error(rejected.status, rejected.reason, rejected.message))

        def answer(self, body: bytes) -> None:
            if self.command not in _METHODS:
                raise Rejected(405, "BadRequestException", f"this catalog does not support {self.command}")
            try:
                found = answer(RestRequest(self.command, self.path, dict(self.headers.items()), body))
            except NoAnswer:
                self.close_connection = True
                return
            self._send(found)

        def _send(self, response: RestAnswer) -> None:
            self.send_response(response.status)
            for name, value in response.headers.items():
                self.send_header(name, value)
            if response.status not in (204, 304):
                self.send_header("Content-Length", str(len(response.body)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(response.body)

    return Handler


class RestGuard:
    """A server before one REST catalog. Its requests come from several threads.

    It sends on each request as it is, signed (SigV4), through the proxy and with the certificates of the configuration, and
    leaves in the answer only what `lethe.storage.properties` allows.
    """

    def __init__(self, name: str, uri: str, properties: Mapping[str, str]) -> None:
        """Create `RestGuard`.

        Args:
            uri: Of the catalog.
            properties: As the configuration file has them.

        Raises:
            InputError: `UnsupportedCatalog`.
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
        """Where Iceberg's client sends its requests instead of to the catalog: on the loopback address."""
        return self._server.uri

    @property
    def token(self) -> str:
        """The secret that each request must have in the header `X-Lethe-Token`."""
        return self._server.token

    def close(self) -> None:
        """Stop the server, and free its port. Iceberg's client cannot reach the catalog any more."""
        self._server.close()

    def _answered(self, request: RestRequest) -> RestAnswer:
        """The answer to a request.

        Raises:
            NoAnswer: The catalog gave none.
        """
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
        # Without its target, Iceberg's client does not follow a redirection, whose answer would not be filtered.
        headers = {k: v for k, v in _end_to_end(answer.headers).items() if k.lower() != "location"}
        if answer.status not in _SUCCESSES or not answer.data:
            return RestAnswer(answer.status, answer.data, headers)
        try:
            return RestAnswer(answer.status, self._filtered(answer.data), headers)
        except ValueError:
            return error(502, "ServiceFailureException", f"the answer of the catalog {self.name} is not JSON")
        except InputError as e:
            return error(400, "BadRequestException", str(e))

    def _filtered(self, content: bytes) -> bytes:
        """An answer with nothing that configures a client. It is written again, so that no two parsers read it differently.

        Raises:
            ValueError: It is not JSON.
            InputError: `UnsafeProperty`.
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
        configuration = allowed_properties.configuration(answered, self._own, f"the catalog {self.name}")
        self._uri = configuration.pop("uri").rstrip("/")
        return {
            "defaults": {},
            "overrides": {k: v for k, v in configuration.items() if self._own.get(k) != v},
            **{k: document[k] for k in _OF_CONFIG if document.get(k) is not None},
        }

    def _table(self, document: Mapping[str, Any]) -> dict[str, Any]:
        what = f"a table of the catalog {self.name}"
        config = allowed_properties.vended(document.get("config") or {}, self._own, what)
        credentials = [
            {"prefix": str(credential["prefix"]), "config": vended}
            for credential in document.get("storage-credentials") or ()
            if (vended := allowed_properties.vended(credential.get("config") or {}, self._own, what))
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


def spark_properties(name: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Spark's properties of a catalog (`catalogs.spark_properties`). A REST catalog is asked through its guard.

    The guard lives as long as this process.

    Raises:
        InputError: `UnsupportedCatalog`.
    """
    conf = catalogs.spark_properties(name, properties)
    prefix = f"spark.sql.catalog.{name}."
    own = {k.removeprefix(prefix): v for k, v in conf.items() if k.startswith(prefix)}
    if own.get("type") != "rest":
        return conf
    with _LOCK:
        guarded = _GUARDS.get(name)
        if guarded is None or guarded[0] != properties:
            # The guard of the old properties goes on: a run of another thread may be using it.
            guarded = _GUARDS[name] = (dict(properties), RestGuard(name, own["uri"], {**properties, **own}))
    to_guard = {"uri": guarded[1].uri, f"header.{TOKEN}": guarded[1].token, **_authentication(own)}
    if tokens_elsewhere(own):
        to_guard[TOKENS] = f"{guarded[1].uri}{TOKENS_PATH}"
    kept = {k: v for k, v in own.items() if not k.startswith(OF_CONNECTION)}
    others = {k: v for k, v in conf.items() if not k.startswith(prefix)}
    return {**others, **{f"{prefix}{k}": v for k, v in {**kept, **to_guard}.items()}}


def tokens_elsewhere(own: Mapping[str, str]) -> str:
    """The URI of the service that gives tokens for the catalog; "": the catalog does, or none are needed."""
    uri = own.get(TOKENS, "")
    return uri if urlsplit(uri).scheme in ("http", "https") else ""


def _authentication(own: Mapping[str, str]) -> dict[str, str]:
    """How the client authenticates besides the signature. Empty: as its other properties say."""
    kind = own.get(AUTH_TYPE)
    if kind == SIGV4:
        kind = own.get("rest.auth.sigv4.delegate-auth-type")
    return {AUTH_TYPE: kind} if kind else {}


class Metadata(Protocol):
    """Makes the metadata that a request asks for; see `JvmMetadata`."""

    def created(self, location: str, request: str) -> str:
        """The metadata of a new table at this location, as JSON text, for a CreateTableRequest.

        Raises:
            InputError: InvalidTableDefinition.
        """

    def updated(self, location: str, metadata: str, request: str) -> str | None:
        """The metadata after an UpdateTableRequest. None: it changes nothing. `location` is the file with `metadata`.

        Raises:
            ConflictError: CommitFailed, if a requirement of the request does not hold.
            InputError: InvalidChange.
        """

    def completed(self, location: str, request: str) -> str:
        """The first metadata of a staged table, for an UpdateTableRequest whose updates make up the whole table.

        Raises:
            ConflictError: CommitFailed, if the request requires an existing table.
            InputError: InvalidTableDefinition.
        """


class CatalogError(Exception):
    """An error of Iceberg's protocol: `kind` is Iceberg's name of it, and the message begins as other catalogs begin it."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


class FolderTables:
    """The catalog's operations on the tables of one folder."""

    def __init__(self, catalog: FolderCatalog, metadata: Metadata) -> None:
        self._catalog = catalog
        self._metadata = metadata

    def load(self, parts: tuple[str, ...]) -> MetadataVersion:
        """Load the newest version of a table.

        Raises:
            CatalogError: The table does not exist.
            Exception: The errors of `MetadataFolder.current`.
        """
        metadata = self._catalog.metadata_folder(parts).current()
        if metadata is None:
            location = self._catalog.location(parts)
            raise CatalogError(404, "NoSuchTableException", f"Table does not exist: {'.'.join(parts)} ({location})")
        return metadata

    def create(self, namespace: tuple[str, ...], request: str) -> MetadataVersion | str:
        """Create a table.

        With `stage-create`, return the metadata it would have, and create nothing: the client writes its rows first, and creates
        the table by a change.

        Raises:
            CatalogError: The table exists.
            InputError: NotSupported, InvalidTableDefinition.
        """
        document = json.loads(request)
        parts = (*namespace, str(document["name"]))
        folder = self._catalog.metadata_folder(parts)
        if document.get("location") and not _same_place(str(document["location"]), folder.location):
            raise InputError(
                "NotSupported",
                f"{'.'.join(parts)}: the name determines the location, {folder.location}. Omit LOCATION.",
            )
        if folder.current() is not None:
            name = ".".join(parts)
            raise CatalogError(409, "AlreadyExistsException", f"Table already exists: {name} ({folder.location})")
        text = self._metadata.created(folder.location, request)
        self._check(folder.location, json.loads(text))
        return text if document.get("stage-create") else folder.commit(None, text)

    def change(self, parts: tuple[str, ...], request: str) -> MetadataVersion:
        """Change a table, or create the one that was staged.

        Raises:
            ConflictError: A requirement of the request does not hold, or other writers committed first in every attempt.
            UnknownCommitState: It is unknown whether the commit succeeded.
            InputError: NotSupported, InvalidChange.
        """
        folder = self._catalog.metadata_folder(parts)
        if any(required.get("type") == _NEW for required in json.loads(request).get("requirements", ())):
            return self._complete(folder, request)
        for _ in range(ATTEMPTS):
            base = self.load(parts)
            text = self._metadata.updated(base.location, base.text, request)
            if text is None:
                return base
            self._check(str(base.document["location"]), json.loads(text))
            try:
                return folder.commit(base, text)
            except ConflictError as e:
                # The request may be valid for the new version too: the next attempt checks its requirements again.
                log.info("%s: a commit lost its race: %s", folder.location, e.reason)
        raise ConflictError("CommitFailed", f"{folder.location}: other writers committed first in {ATTEMPTS} attempts")

    def _complete(self, folder: MetadataFolder, request: str) -> MetadataVersion:
        """Create a staged table, unless another writer has created one."""
        if folder.current() is None:
            text = self._metadata.completed(folder.location, request)
            self._check(folder.location, json.loads(text))
            try:
                return folder.commit(None, text)
            except ConflictError as e:
                log.info("%s: a creation lost its race: %s", folder.location, e.reason)
        raise ConflictError("CommitFailed", f"Requirement failed: table already exists ({folder.location})")

    def _check(self, location: str, made: Mapping[str, Any]) -> None:
        if not _same_place(str(made["location"]), location) or _ELSEWHERE in (made.get("properties") or {}):
            raise InputError(
                "NotSupported",
                f"{location}: a catalog of type hadoop finds a table by its folder. Neither the table nor its metadata "
                f"({_ELSEWHERE}) can be moved.",
            )


class FolderServer:
    """Serves the tables to this process, until it ends.

    Iceberg's own Hadoop catalog commits by a rename and relies on `version-hint.text`, and only a Java class could change that.
    So Spark uses Iceberg's REST client. This server commits through `lethe.hadoop`, and Iceberg's code in the session's JVM makes
    the metadata.
    """

    def __init__(self, tables: FolderTables) -> None:
        self.tables = tables
        self._server = LoopbackServer(self._answered, "lethe-folder-catalog")

    @property
    def token(self) -> str:
        """The secret that each request must have in the header `X-Lethe-Token`."""
        return self._server.token

    @property
    def uri(self) -> str:
        """Where Spark's Iceberg client finds the REST catalog: on the loopback address."""
        return self._server.uri

    def close(self) -> None:
        """Stop the server, and free its port. Spark cannot reach the tables any more."""
        self._server.close()

    def _answered(self, request: RestRequest) -> RestAnswer:
        try:
            return RestAnswer(200, self.answer(request.method, request.path, request.body.decode()).encode())
        except Exception as e:
            status, kind = _status(e)
            text = _text(e)
            if status == 500:
                log.warning("%s %s: %s", request.method, request.path, text, exc_info=e)
            return error(status, kind, text)

    def answer(self, method: str, path: str, body: str) -> str:
        """The JSON text of the response.

        Raises:
            CatalogError: An error of Iceberg's protocol: `kind` is Iceberg's name of it, and the message begins as other
                catalogs begin it.
            LetheError: Another error of Lethe; its reason says which.
            Exception: The errors of the storage.
        """
        steps = [unquote_plus(step) for step in urlsplit(path).path.strip("/").split("/")]
        match method, steps[1:]:
            case "GET", ["config"]:
                return json.dumps({"defaults": {}, "overrides": {}, "endpoints": ENDPOINTS})
            case "POST", ["namespaces"]:
                return json.dumps({"namespace": json.loads(body)["namespace"], "properties": {}})
            case "GET", ["namespaces", namespace]:  # a namespace is a folder, which the first table creates
                return json.dumps({"namespace": _levels(namespace), "properties": {}})
            case "POST", ["namespaces", namespace, "tables"]:
                return _loaded(self.tables.create(_levels(namespace), body))
            case "GET", ["namespaces", namespace, "tables", name]:
                return _loaded(self.tables.load((*_levels(namespace), name)))
            case "POST", ["namespaces", namespace, "tables", name]:
                return _loaded(self.tables.change((*_levels(namespace), name), body))
        raise CatalogError(404, "NotFoundException", f"a catalog of type hadoop does not support {method} {path}")


def _levels(namespace: str) -> tuple[str, ...]:
    return tuple(namespace.split("\x1f"))


def _same_place(a: str, b: str) -> bool:
    return contains(a, b) and contains(b, a)


def _loaded(version: MetadataVersion | str) -> str:
    if isinstance(version, str):  # of a staged table
        return f'{{"config": {{}}, "metadata": {version}}}'
    return f'{{"metadata-location": {json.dumps(version.location)}, "config": {{}}, "metadata": {version.text}}}'


def _status(error: Exception) -> tuple[int, str]:
    """The HTTP status of an error, and Iceberg's name of it. Iceberg's client takes 500 as an unknown commit state."""
    match error:
        case CatalogError():
            return error.status, error.kind
        case ConflictError():
            return 409, "CommitFailedException"
        case InputError() | UnicodeDecodeError():
            return 400, "BadRequestException"
    return 500, type(error).__name__


def _text(error: Exception) -> str:
    """The message of the response. That of a conflict is Iceberg's own: its client takes it to its users."""
    match error:
        case ConflictError():
            return error.message
        case LetheError() | CatalogError():
            return str(error)
    return f"{type(error).__name__}, see the driver's log"


_SERVERS: Final[dict[str, FolderServer]] = {}


def serve(session: SparkSession, name: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Serve a catalog of type hadoop to this process. Returns the Spark settings of the catalog.

    Raises:
        InputError: CatalogNotServed, if the session has another catalog of that name. UnsupportedCatalog, UnsupportedIceberg.
    """
    configured = session.conf.get(f"spark.sql.catalog.{name}", None)
    if configured is not None and not serves(session, name):
        raise _not_served(name)
    catalog = catalogs.load(name)
    assert isinstance(catalog, FolderCatalog)
    java = gateway(session)
    escape_requests(java)
    tables = FolderTables(catalog, JvmMetadata(java))
    if name not in _SERVERS:
        _SERVERS[name] = FolderServer(tables)
    server = _SERVERS[name]
    server.tables = tables  # of this session: an earlier session may have been stopped
    as_rest = {**properties, "type": "rest", "uri": server.uri, f"spark.header.{TOKEN}": server.token}
    return catalogs.spark_properties(name, as_rest)


def serves(session: SparkSession, name: str) -> bool:
    """Whether this process serves the session's catalog of that name."""
    return name in _SERVERS and session.conf.get(f"spark.sql.catalog.{name}.uri", None) == _SERVERS[name].uri


def require_served(session: SparkSession, catalog: str, table: str, properties: Mapping[str, str]) -> None:
    """Check that the session can use a catalog safely.

    Type hadoop: this process must serve Spark's catalog, and the table must be readable if it exists. Spark would hide the
    reason why it is not. Type rest: the catalog must show the history of its tables.

    Raises:
        InputError: CatalogNotServed, UnsupportedCatalog, InvalidName, UnsupportedStorage.
        TableError: MetadataUnreadable, MetadataAmbiguous.
        TransientError: A dependency is temporarily unavailable.
    """
    is_folder = catalogs.is_folder(properties)
    if is_folder and not serves(session, catalog):
        raise _not_served(catalog)
    try:
        if is_folder:
            catalogs.load(catalog).table_exists(table)
        else:
            catalogs.require_history(catalog, properties)
    except LetheError:
        raise
    except Exception as e:
        raise TransientError(
            "CatalogOrStorageAway",
            f"{type(e).__name__} while looking for {table} in the catalog {catalog}. Nothing was changed. Try again later.",
        ) from e


def _not_served(name: str) -> InputError:
    return InputError(
        "CatalogNotServed",
        f"the session has no catalog {name}, or Spark's own catalog of type hadoop, which commits by a rename that may replace "
        f"another writer's commit. Remove spark.sql.catalog.{name} from Spark's settings, and make the session with "
        f"lethe_spark.make_session({name!r}) before the catalog is first used.",
    )
