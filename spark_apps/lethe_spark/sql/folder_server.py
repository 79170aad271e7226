"""Serve the tables of a catalog of type hadoop to this process's Spark, as a REST catalog on the loopback address. I/O.

Iceberg's own Hadoop catalog commits by a rename and relies on `version-hint.text`, and only a Java class could change that.
So Spark uses Iceberg's REST client. This server commits through `lethe.hadoop.metadata_folder`, and Iceberg's code in the
session's JVM makes the metadata.
"""

import json
import logging
from collections.abc import Mapping
from typing import Any, Final, Protocol
from urllib.parse import unquote_plus, urlsplit

from lethe.base.errors import ConflictError, InputError, LetheError, TransientError
from lethe.hadoop.catalog import FolderCatalog
from lethe.hadoop.metadata_folder import MetadataFolder, Version
from lethe.iceberg import catalogs
from lethe.uri import contains
from pyspark.sql import SparkSession

from lethe_spark.jvm.backoff import ATTEMPTS
from lethe_spark.jvm.gateway import gateway
from lethe_spark.jvm.metadata import JvmMetadata, escape_requests
from lethe_spark.sql.loopback import TOKEN, Answer, LoopbackServer, Request, error

log = logging.getLogger(__name__)

_TABLE: Final = "/v1/{prefix}/namespaces/{namespace}/tables"
ENDPOINTS: Final = (
    "GET /v1/{prefix}/namespaces/{namespace}",
    "POST /v1/{prefix}/namespaces",
    f"POST {_TABLE}",
    f"GET {_TABLE}/{{table}}",
    f"POST {_TABLE}/{{table}}",
)
_ELSEWHERE: Final = "write.metadata.path"
_NEW: Final = "assert-create"  # the requirement that the table does not exist


class Metadata(Protocol):
    """Makes the metadata that a request asks for; see `JvmMetadata`."""

    def created(self, location: str, request: str) -> str: ...

    def updated(self, location: str, metadata: str, request: str) -> str | None: ...

    def completed(self, location: str, request: str) -> str: ...


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

    def load(self, parts: tuple[str, ...]) -> Version:
        """Raises: CatalogError, if the table does not exist; the errors of `MetadataFolder.current`."""
        found = self._catalog.metadata_folder(parts).current()
        if found is None:
            location = self._catalog.location(parts)
            raise CatalogError(404, "NoSuchTableException", f"Table does not exist: {'.'.join(parts)} ({location})")
        return found

    def create(self, namespace: tuple[str, ...], request: str) -> Version | str:
        """Create a table. With `stage-create`, return the metadata it would have, and create nothing: the client writes its
        rows first, and creates the table by a change.

        Raises: CatalogError, if the table exists; InputError (NotSupported, InvalidTableDefinition).
        """
        wanted = json.loads(request)
        parts = (*namespace, str(wanted["name"]))
        folder = self._catalog.metadata_folder(parts)
        if wanted.get("location") and not _same_place(str(wanted["location"]), folder.location):
            raise InputError(
                "NotSupported",
                f"{'.'.join(parts)}: the name determines the location, {folder.location}. Omit LOCATION.",
            )
        if folder.current() is not None:
            name = ".".join(parts)
            raise CatalogError(409, "AlreadyExistsException", f"Table already exists: {name} ({folder.location})")
        text = self._metadata.created(folder.location, request)
        self._check(folder.location, json.loads(text))
        return text if wanted.get("stage-create") else folder.commit(None, text)

    def change(self, parts: tuple[str, ...], request: str) -> Version:
        """Change a table, or create the one that was staged.

        Raises: ConflictError, if a requirement of the request does not hold, or other writers committed first in every
            attempt; UnknownCommitState, InputError (NotSupported, InvalidChange).
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

    def _complete(self, folder: MetadataFolder, request: str) -> Version:
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
    """Serves the tables to this process, until it ends."""

    def __init__(self, tables: FolderTables) -> None:
        self.tables = tables
        self._server = LoopbackServer(self._answered, "lethe-folder-catalog")

    @property
    def token(self) -> str:
        return self._server.token

    @property
    def uri(self) -> str:
        return self._server.uri

    def close(self) -> None:
        self._server.close()

    def _answered(self, request: Request) -> Answer:
        try:
            return Answer(200, self.answer(request.method, request.path, request.body.decode()).encode())
        except Exception as e:
            status, kind = _status(e)
            text = _text(e)
            if status == 500:
                log.warning("%s %s: %s", request.method, request.path, text, exc_info=e)
            return error(status, kind, text)

    def answer(self, method: str, path: str, body: str) -> str:
        """The JSON text of the response. Raises: CatalogError, LetheError, and the errors of the storage."""
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


def _loaded(found: Version | str) -> str:
    if isinstance(found, str):  # of a staged table
        return f'{{"config": {{}}, "metadata": {found}}}'
    return f'{{"metadata-location": {json.dumps(found.location)}, "config": {{}}, "metadata": {found.text}}}'


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

    Raises: InputError: CatalogNotServed, if the session has another catalog of that name; UnsupportedCatalog,
        UnsupportedIceberg.
    """
    known = session.conf.get(f"spark.sql.catalog.{name}", None)
    if known is not None and not serves(session, name):
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

    Raises: InputError (CatalogNotServed, UnsupportedCatalog, InvalidName, UnsupportedStorage), TableError (MetadataUnreadable,
        MetadataAmbiguous), TransientError.
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
