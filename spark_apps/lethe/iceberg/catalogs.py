"""Reads catalogs from PyIceberg's configuration file, opens them for PyIceberg, and translates them for Spark. I/O.

The file is `.pyiceberg.yaml` in PYICEBERG_HOME, the home directory or the working directory, as for PyIceberg. A property
`spark.X` is for Spark only, and overrides X there.
"""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeAlias, cast
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import yaml
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import (
    NoSuchNamespaceError,
    NoSuchTableError,
    RESTError,
    ServiceUnavailableError,
    TooManyRequestsError,
)
from pyiceberg.io import PY_IO_IMPL, FileIO
from pyiceberg.table import Table
from pyiceberg.typedef import EMPTY_DICT, Properties
from pyiceberg.utils.config import Config, merge_config
from sqlalchemy import select

from lethe import hadoop
from lethe.base.errors import InputError
from lethe.iceberg import metadata_file
from lethe.storage import azure
from lethe.storage.file_io import SHARED, file_io
from lethe.storage.vended import VendingCatalog
from lethe.uri import Backend, backend_of
from lethe.uri import is_local as is_local_uri

_OF_VIEWS: Final = "VIEW"
Name: TypeAlias = str | Sequence[str]

CONFIG_FILE = ".pyiceberg.yaml"
_IS_NESSIE = "nessie.is-nessie-catalog"
"""A property in the configuration that Nessie's REST catalog returns."""
_THIS_MACHINE = ("127.0.0.1", "localhost", "::1")
_STORES = ("s3.", "gcs.", "adls.")
_VENDED_CREDENTIALS = ("header.X-Iceberg-Access-Delegation", "vended-credentials")
"""Requests credentials for each table from a REST catalog. Iceberg's Java library needs this header to be set."""
# Properties of a REST catalog that have the same name in both libraries: those of OAuth2, and by prefix the headers of requests,
# the way of authentication and the signature (SigV4).
_OF_REST = ("credential", "token", "oauth2-server-uri", "scope", "audience", "resource", "prefix")
_OF_REST_BY_PREFIX = ("header.", "rest.")
_NESTED = ("ssl.", "auth.")
"""Properties that are maps in PyIceberg's configuration, which reads them from the file itself."""
_OF_SIGNER = {
    "client.access-key-id": "rest.access-key-id",
    "client.secret-access-key": "rest.secret-access-key",
    "client.session-token": "rest.session-token",
    "client.region": "client.region",
}
"""The credentials that sign requests to a REST catalog (SigV4): PyIceberg's names, and those of Iceberg's Java library."""
_BY_SCHEME = "org.apache.iceberg.io.ResolvingFileIO"
"""The class of Iceberg's Java library that chooses the FileIO of each file by the scheme of its URI."""
_TIMEOUTS = {"s3.connect-timeout": "5", "s3.request-timeout": "20"}
"""Detect an unavailable catalog or store in seconds, not minutes. PyIceberg's property names and units."""
_POSTGRESQL_TIMEOUTS = {"connect_timeout": "5", "tcp_user_timeout": "20000"}
"""Timeouts of libpq, in seconds and milliseconds: without them, an unreachable PostgreSQL blocks for minutes."""


class TableIsView(InputError):
    """A view was named where a table is needed."""

    def __init__(self, name: str, catalog: str) -> None:
        super().__init__(
            "TableIsView",
            f"{name} is a view in the catalog {catalog}. Lethe reads and writes tables: name the table that the view reads.",
        )


def refuse_views(catalog: Catalog) -> Catalog:
    """Let `load_table` of this catalog raise TableIsView for a view, and not that there is no such table.

    A view has no rows of its own: it can neither be written nor have a ledger, and its SQL is another engine's.
    """
    load = catalog.load_table

    def load_table(identifier: Any) -> Table:
        try:
            return load(identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            require_no_view(catalog, identifier)
            raise

    catalog.load_table = load_table  # type: ignore[method-assign]
    return catalog


def require_no_view(catalog: Catalog, name: Name) -> None:
    """Refuse a view in the place of a table.

    Raises:
        TableIsView: A view was named where a table is needed.
        Exception: What the catalog raises if unavailable.

    Args:
        name: Without a table of this name.
    """
    if _is_view(catalog, name):
        raise TableIsView(name if isinstance(name, str) else ".".join(name), catalog.name)


def _is_view(catalog: Catalog, name: Name) -> bool:
    identifier: Any = name
    if isinstance(catalog, SqlCatalog):
        # The column is missing in the tables of catalogs that have no views.
        if catalog._iceberg_type_filter() is None:
            return False
        namespace = Catalog.namespace_to_string(Catalog.namespace_from(identifier))
        query = select(IcebergTables.iceberg_type).where(
            IcebergTables.catalog_name == catalog.name,
            IcebergTables.table_namespace == namespace,
            IcebergTables.table_name == Catalog.table_name_from(identifier),
        )
        with catalog.engine.connect() as connection:
            return connection.execute(query).scalar() == _OF_VIEWS
    if isinstance(catalog, RestCatalog):
        try:
            return catalog.view_exists(identifier)
        except (ServiceUnavailableError, TooManyRequestsError):
            raise
        except (RESTError, NotImplementedError):  # it does not know views
            return False
    return False


def config_files() -> tuple[Path, ...]:
    """The paths of the configuration file, in the order of the search."""
    return _files_in(os.environ.get("PYICEBERG_HOME"), os.path.expanduser("~"), os.getcwd())


@lru_cache(maxsize=16)
def _files_in(*homes: str | None) -> tuple[Path, ...]:
    return tuple(Path(h) / CONFIG_FILE for h in homes if h)


def properties(name: str, path: Path | None = None) -> dict[str, str]:
    """The properties of one catalog.

    Raises:
        InputError: `UnknownCatalog`, naming the known ones.
    """
    configured = _configured(path)
    if name not in configured:
        raise InputError(
            "UnknownCatalog",
            f"there is no catalog {name!r} in {CONFIG_FILE}; it contains: {', '.join(sorted(configured)) or 'none'}. "
            "Add it to the chart's value `catalogs`, or correct spec.table.catalog.",
        )
    return dict(configured[name])


def every(path: Path | None = None) -> dict[str, dict[str, str]]:
    """The properties of all catalogs, by name; empty if there is no configuration file."""
    return {name: dict(own) for name, own in _configured(path).items()}


def _configured(path: Path | None) -> Mapping[str, Mapping[str, str]]:
    """The operator asks for each listing and each reconcile, so this costs one system call."""
    for file in (path,) if path else config_files():
        try:
            status = os.stat(file)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            return _parsed(file, (status.st_ino, status.st_mtime_ns, status.st_size))
    return {}


@lru_cache(maxsize=4)
def _parsed(file: Path, _version: tuple[int, int, int]) -> dict[str, dict[str, str]]:
    """The catalogs of a file. It is parsed again only after it was replaced or written.

    Args:
        _version: The inode, the time of the last change in nanoseconds, and the size of the file.
    """
    return flat_by_name((yaml.safe_load(file.read_text()) or {}).get("catalog") or {})


def flat_by_name(catalogs_by_name: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """The properties of catalogs, with the names of those within others joined by dots."""
    return {name: dict(_flat(own or {})) for name, own in catalogs_by_name.items()}


def _flat(own: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """The properties, with the names of those within others joined by dots: `ssl.client.cert`."""
    for name, value in own.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", _text(value)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def load(name: str, path: Path | None = None) -> Catalog:
    """Open a catalog with PyIceberg. Its `load_table` refuses views by name (`lethe.iceberg.catalogs`).

    Raises:
        InputError: UnknownCatalog, UnsupportedCatalog.
        Exception: What the catalog raises if unavailable.
    """
    return opened(name, properties(name, path))


def opened(name: str, every_property: Mapping[str, str]) -> Catalog:
    """Open a catalog as `load` does, with these properties.

    Raises:
        InputError: `UnsupportedCatalog`.
        Exception: What the catalog raises if unavailable.
    """
    metadata_file.install()
    own = {k: v for k, v in every_property.items() if not k.startswith(("spark.", *_NESTED))}
    _refuse_s3_tables(name, own)
    if is_folder(own):
        return hadoop.FolderCatalog(name, **{**_TIMEOUTS, **own})
    if own.get("uri", "").startswith("postgresql"):
        own = {"pool_pre_ping": "true", **own, "uri": _with_timeouts(own["uri"])}
    if _kind(own) == "rest":
        conf = merge_config(Config().get_catalog_config(name) or {}, {**_TIMEOUTS, **own})
        catalog: Catalog = VendingCatalog(name, **cast(dict[str, str], conf))
    else:
        # PyIceberg's SQL catalog reads a table's metadata with these properties, and not through _load_file_io.
        defaults = {**_TIMEOUTS, PY_IO_IMPL: SHARED, "init_catalog_tables": "false"}
        catalog = _without_tables_properties(load_catalog(name, **{**defaults, **own}))
    _refuse_nessie(name, catalog.properties)
    return refuse_views(catalog)


def _without_tables_properties(catalog: Catalog) -> Catalog:
    """Let the catalog open files with its own properties alone.

    PyIceberg would add those of the table, which could name classes to load and hosts to send the credentials of the catalog to.
    """

    def own_file_io(properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        del properties
        return file_io(catalog.properties, location or "")

    catalog._load_file_io = own_file_io  # type: ignore[method-assign]
    return catalog


def _with_timeouts(uri: str) -> str:
    """A PostgreSQL URI with timeouts, unless it sets its own."""
    parts = urlsplit(uri)
    query = dict(parse_qsl(parts.query))
    return parts._replace(query=urlencode({**_POSTGRESQL_TIMEOUTS, **query})).geturl()


def require_history(name: str, catalog_properties: Mapping[str, str]) -> None:
    """Check, once per process, that a REST catalog does not hide the history of tables.

    Raises:
        InputError: `UnsupportedCatalog`.
        Exception: What the catalog raises if unavailable.
    """
    if _kind(catalog_properties) == "rest":
        _require_history(name, tuple(sorted(catalog_properties.items())))


@lru_cache(maxsize=100)
def _require_history(name: str, _: tuple[tuple[str, str], ...]) -> None:
    load(name)


def _refuse_s3_tables(name: str, own: Mapping[str, str]) -> None:
    """Refuse a catalog of Amazon S3 Tables, without asking it.

    Its REST endpoint has a name of its own for signatures, and that of Glue names it in the warehouse.
    """
    warehouse, host = own.get("warehouse", ""), urlsplit(own.get("uri", "")).hostname or ""
    is_signed_for_it = own.get("rest.signing-name") == "s3tables" or host.startswith("s3tables.")
    if is_signed_for_it or ":s3tables:" in warehouse or "s3tablescatalog" in warehouse:
        raise InputError(
            "UnsupportedCatalog",
            f"catalog {name} is Amazon S3 Tables: the files of its tables cannot be listed or deleted, so Lethe can neither "
            "purge rows nor prove that they are gone. Keep the tables in an S3 bucket of your own, with a catalog of type rest, "
            "glue or sql.",
        )


def _refuse_nessie(name: str, config: Mapping[str, str]) -> None:
    """Refuse a REST catalog that says it is Nessie.

    Args:
        config: The catalog's properties, including those that the server returned.
    """
    if config.get(_IS_NESSIE, "").lower() == "true":
        raise InputError(
            "UnsupportedCatalog",
            f"catalog {name} is Nessie's REST catalog ({_IS_NESSIE} in its configuration): it shows only the newest snapshot "
            "of a table, without older snapshots, tags and staged snapshots, so Lethe cannot find the ledger of a table. Use a "
            "REST catalog that keeps the history of tables, or a catalog of type sql or glue.",
        )


def _kind(catalog_properties: Mapping[str, str]) -> str:
    """The type of the catalog; if it is not set, by its URI, as in PyIceberg."""
    return catalog_properties.get("type") or ("rest" if catalog_properties.get("uri", "").startswith("http") else "")


def is_folder(catalog_properties: Mapping[str, str]) -> bool:
    """Whether the catalog is of type hadoop: tables in folders, without a service that knows their current version."""
    return catalog_properties.get("type") == hadoop.TYPE


def is_local(catalog_properties: Mapping[str, str]) -> bool:
    """Whether the catalog is on this machine, so that a local path means the same to all its users.

    It is SQLite, a folder, or a local service with tables in local folders.
    """
    warehouse, service = catalog_properties.get("warehouse", ""), catalog_properties.get("uri", "")
    if service.startswith("sqlite"):
        return True
    if (warehouse and not is_local_uri(warehouse)) or any(k.startswith(_STORES) for k in catalog_properties):
        return False
    return is_folder(catalog_properties) or urlsplit(service).hostname in _THIS_MACHINE


def require_service(name: str, catalog_properties: Mapping[str, str]) -> None:
    """Require a catalog service, not a folder.

    Raises:
        InputError: `UnsupportedCatalog`, for a catalog that only writers that use Lethe can share.
    """
    if is_folder(catalog_properties):
        raise InputError(
            "UnsupportedCatalog",
            f"catalog {name} is of type {hadoop.TYPE}: a folder without a service that decides between two writers. A "
            "Dataset's table has several writers: runs, the operator, and other engines. Use a catalog of type sql, rest or "
            "glue, or write the table from your own Spark jobs with lethe_spark.",
        )


def spark_properties(name: str, catalog_properties: Mapping[str, str]) -> dict[str, str]:
    """The Spark configuration (`spark.sql.catalog.<name>…`) of the same catalog.

    The name must be the same on both sides, because SQL catalogs store it. A catalog of type hadoop does not use Spark's own
    type, which commits by a rename: `lethe_spark.sql.rest_servers` serves it to Spark.

    Raises:
        InputError: `UnsupportedCatalog`, for a `type` that Spark does not have.
    """
    kind = _kind(catalog_properties)
    conf: dict[str, str] = {"cache-enabled": "false"}
    if kind == "sql" and "uri" not in catalog_properties:
        raise InputError("UnsupportedCatalog", f"catalog {name!r} is of type sql and has no uri.")
    if kind == "sql":
        conf.update(_jdbc(catalog_properties["uri"]))
    elif kind in ("rest", "glue"):
        conf["type"] = kind
        if "uri" in catalog_properties:
            conf["uri"] = catalog_properties["uri"]
        conf.update(_of_rest(catalog_properties) if kind == "rest" else _of_glue(catalog_properties))
    else:
        raise InputError("UnsupportedCatalog", f"catalog {name!r} has type {kind!r}; expected sql, rest or glue.")
    warehouse = catalog_properties.get("warehouse")
    if warehouse:
        conf["warehouse"] = warehouse
    conf.update(_file_io(catalog_properties))
    conf.update({k.removeprefix("spark."): v for k, v in catalog_properties.items() if k.startswith("spark.")})
    prefix = f"spark.sql.catalog.{name}"
    return {prefix: "org.apache.iceberg.spark.SparkCatalog", **{f"{prefix}.{k}": v for k, v in conf.items()}}


def _of_rest(catalog_properties: Mapping[str, str]) -> dict[str, str]:
    same = {k: v for k, v in catalog_properties.items() if k in _OF_REST or k.startswith(_OF_REST_BY_PREFIX)}
    signer = {java: catalog_properties[name] for name, java in _OF_SIGNER.items() if name in catalog_properties}
    return {**dict([_VENDED_CREDENTIALS]), **(signer if "rest.sigv4-enabled" in same else {}), **same}


def _of_glue(catalog_properties: Mapping[str, str]) -> dict[str, str]:
    """Credentials are not among them: Iceberg's Java library takes those of its process, as the AWS SDK finds them."""
    conf = {k: v for k, v in catalog_properties.items() if k in ("glue.endpoint", "glue.id", "glue.skip-archive")}
    if "glue.region" in catalog_properties:
        conf["client.region"] = catalog_properties["glue.region"]
    return conf


def _jdbc(uri: str) -> dict[str, str]:
    """Convert a SQLAlchemy URI to JDBC properties: `postgresql+psycopg2://u:p@h/db`, `sqlite:////path`."""
    parts = urlsplit(uri)
    dialect = parts.scheme.partition("+")[0]
    conf = {"type": "jdbc", "jdbc.schema-version": "V1"}
    if dialect == "sqlite":
        conf["uri"] = "jdbc:sqlite:" + uri.partition("://")[2].removeprefix("/")
        return conf
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    port = f":{parts.port}" if parts.port else ""
    query = f"?{parts.query}" if parts.query else ""
    conf["uri"] = f"jdbc:{dialect}://{host}{port}{parts.path}{query}"
    if parts.username:
        conf["jdbc.user"] = unquote(parts.username)
    if parts.password:
        conf["jdbc.password"] = unquote(parts.password)
    return conf


def _file_io(catalog_properties: Mapping[str, str]) -> dict[str, str]:
    """Iceberg's FileIO for Spark, and its properties. Empty: Spark uses the default of the catalog's type."""
    of_gcs = {k: v for k, v in catalog_properties.items() if k.startswith("gcs.")}
    others = {**of_gcs, **azure.java_properties(catalog_properties)}
    is_elsewhere = backend_of(catalog_properties.get("warehouse", "")) in (Backend.GCS, Backend.AZURE)
    is_s3 = any(k.startswith("s3.") for k in catalog_properties)
    if others or is_elsewhere:
        return {"io-impl": _BY_SCHEME, **others, **(_of_s3(catalog_properties) if is_s3 else {})}
    return {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", **_of_s3(catalog_properties)} if is_s3 else {}


def _of_s3(catalog_properties: Mapping[str, str]) -> dict[str, str]:
    same = ("s3.endpoint", "s3.access-key-id", "s3.secret-access-key", "s3.session-token", "s3.path-style-access")
    conf = {k: catalog_properties[k] for k in same if k in catalog_properties}
    if "s3.region" in catalog_properties:
        conf["client.region"] = catalog_properties["s3.region"]
    return conf
