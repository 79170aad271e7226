"""Catalogs: read from PyIceberg's own configuration file, opened for PyIceberg, translated for Spark.

I/O: reads `.pyiceberg.yaml` (in PYICEBERG_HOME, the home directory or the working directory, as PyIceberg does) and
connects. A property `spark.X` is for Spark only and wins there.
"""

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import yaml
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.utils.config import Config, merge_config

from lethe.base.errors import InputError
from lethe.hadoop import catalog as folder_catalog
from lethe.storage.vended import VendingCatalog
from lethe.uri import is_local as is_local_uri

CONFIG_FILE = ".pyiceberg.yaml"
# What Nessie's REST catalog answers when it is asked for its configuration.
_IS_NESSIE = "nessie.is-nessie-catalog"
_THIS_MACHINE = ("127.0.0.1", "localhost", "::1")
_STORES = ("s3.", "gcs.", "adls.")
# Both Iceberg libraries ask a REST catalog for credentials of the table's own. Iceberg's Java library asks only if it is said so.
_VENDED_CREDENTIALS = ("header.X-Iceberg-Access-Delegation", "vended-credentials")
_HEADER = "header."
# A catalog or store that is away must be noticed in seconds, not minutes. PyIceberg's own names; milliseconds or seconds
# as each documents.
_PATIENCE = {"s3.connect-timeout": "5", "s3.request-timeout": "20"}
# libpq's, seconds and milliseconds: without them a PostgreSQL whose address leads nowhere is waited for for minutes.
_POSTGRESQL_PATIENCE = {"connect_timeout": "5", "tcp_user_timeout": "20000"}


def config_files() -> tuple[Path, ...]:
    """Where the file is looked for, in order."""
    homes = (os.environ.get("PYICEBERG_HOME"), os.path.expanduser("~"), os.getcwd())
    return tuple(Path(h) / CONFIG_FILE for h in homes if h)


def properties(name: str, path: Path | None = None) -> dict[str, str]:
    """The properties of one catalog. Raises: InputError (`UnknownCatalog`), naming the known ones."""
    known = every(path)
    if name not in known:
        raise InputError(
            "UnknownCatalog",
            f"there is no catalog {name!r} in {CONFIG_FILE}; it names: {', '.join(sorted(known)) or 'none'}. "
            "Add it to the chart's value `catalogs`, or correct spec.table.catalog.",
        )
    return known[name]


def every(path: Path | None = None) -> dict[str, dict[str, str]]:
    """The properties of all catalogs, by their names; none where there is no file."""
    file = next((f for f in ((path,) if path else config_files()) if f.is_file()), None)
    known: dict[str, Any] = (yaml.safe_load(file.read_text()) or {}).get("catalog") or {} if file else {}
    return {name: {k: _text(v) for k, v in (own or {}).items()} for name, own in known.items()}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def load(name: str, path: Path | None = None) -> Catalog:
    """Open a catalog with PyIceberg. Raises: InputError (UnknownCatalog, UnsupportedCatalog); what it raises when away."""
    own = {k: v for k, v in properties(name, path).items() if not k.startswith("spark.")}
    if is_folder(own):
        return folder_catalog.FolderCatalog(name, **{**_PATIENCE, **own})
    if own.get("uri", "").startswith("postgresql"):
        own = {"pool_pre_ping": "true", **own, "uri": _patient(own["uri"])}
    if _kind(own) == "rest":
        conf = merge_config(Config().get_catalog_config(name) or {}, {**_PATIENCE, **own})
        catalog: Catalog = VendingCatalog(name, **cast(dict[str, str], conf))
    else:
        catalog = load_catalog(name, **{**_PATIENCE, "init_catalog_tables": "false", **own})
    _refuse_nessie(name, catalog.properties)
    return catalog


def require_history(name: str, catalog_properties: Mapping[str, str]) -> None:
    """Ask a REST catalog, once in a process, whether it is one that hides the history of tables.

    Raises: InputError (`UnsupportedCatalog`); whatever the catalog raises when away.
    """
    if _kind(catalog_properties) == "rest":
        _require_history(name, tuple(sorted(catalog_properties.items())))


@lru_cache(maxsize=100)
def _require_history(name: str, _: tuple[tuple[str, str], ...]) -> None:
    load(name)


def _refuse_nessie(name: str, config: Mapping[str, str]) -> None:
    """Args:
    config: The catalog's properties, with what the server has answered for them.
    """
    if config.get(_IS_NESSIE, "").lower() == "true":
        raise InputError(
            "UnsupportedCatalog",
            f"catalog {name} is Nessie's REST catalog ({_IS_NESSIE} in its configuration): it shows the newest snapshot of a "
            "table and none of those before, no tags and no staged snapshots, so that the ledger of a table cannot be found. Use "
            "a REST catalog that keeps the history of tables, or one of type sql, hive or glue.",
        )


def _kind(catalog_properties: Mapping[str, str]) -> str:
    """The type, as PyIceberg concludes it of the URI where it is not given."""
    return catalog_properties.get("type") or ("rest" if catalog_properties.get("uri", "").startswith("http") else "")


def is_folder(catalog_properties: Mapping[str, str]) -> bool:
    """Whether the catalog is of type hadoop: tables in folders, and no service that says which version is theirs."""
    return catalog_properties.get("type") == folder_catalog.TYPE


def is_local(catalog_properties: Mapping[str, str]) -> bool:
    """Whether the catalog is on this machine, so that a folder of it means the same to everybody who uses the catalog: SQLite, a
    folder, or a service of this machine that keeps its tables in local folders."""
    warehouse, service = catalog_properties.get("warehouse", ""), catalog_properties.get("uri", "")
    if service.startswith("sqlite"):
        return True
    if (warehouse and not is_local_uri(warehouse)) or any(k.startswith(_STORES) for k in catalog_properties):
        return False
    return is_folder(catalog_properties) or urlsplit(service).hostname in _THIS_MACHINE


def require_service(name: str, catalog_properties: Mapping[str, str]) -> None:
    """Raises: InputError (`UnsupportedCatalog`) for a catalog that only processes which go through Lethe can share."""
    if is_folder(catalog_properties):
        raise InputError(
            "UnsupportedCatalog",
            f"catalog {name} is of type {folder_catalog.TYPE}: a folder, with no service that lets one of two writers win. A "
            "Dataset's table has many: runs, the operator, any engine of its readers. Use a catalog of type sql, rest, hive "
            "or glue, or write the table from your own Spark jobs with lethe_spark.",
        )


def _patient(uri: str) -> str:
    """A PostgreSQL URI with limits of time, unless it sets its own."""
    parts = urlsplit(uri)
    query = dict(parse_qsl(parts.query))
    return parts._replace(query=urlencode({**_POSTGRESQL_PATIENCE, **query})).geturl()


def spark_properties(name: str, catalog_properties: Mapping[str, str]) -> dict[str, str]:
    """The Spark configuration (`spark.sql.catalog.<name>…`) of the same catalog.

    The name must be the same on both sides: SQL catalogs keep it in a column. One of type hadoop is not Spark's own of that
    type, which commits by a rename, but served to it (`lethe_spark.sql.folder_server`).
    Raises: InputError (`UnsupportedCatalog`) for a `type` that Spark has no counterpart of.
    """
    kind = _kind(catalog_properties)
    conf: dict[str, str] = {"cache-enabled": "false"}
    if kind == "sql" and "uri" not in catalog_properties:
        raise InputError("UnsupportedCatalog", f"catalog {name!r} is of type sql and has no uri.")
    if kind == "sql":
        conf.update(_jdbc(catalog_properties["uri"]))
    elif kind in ("rest", "hive", "glue"):
        conf["type"] = kind
        if "uri" in catalog_properties:
            conf["uri"] = catalog_properties["uri"]
        conf.update(
            {k: v for k, v in catalog_properties.items() if k in ("credential", "token", "oauth2-server-uri", "scope")}
        )
        if kind == "rest":
            asked = dict([_VENDED_CREDENTIALS])
            conf.update(asked | {k: v for k, v in catalog_properties.items() if k.startswith(_HEADER)})
    else:
        raise InputError("UnsupportedCatalog", f"catalog {name!r} has type {kind!r}; expected sql, rest, hive or glue.")
    warehouse = catalog_properties.get("warehouse")
    if warehouse:
        conf["warehouse"] = warehouse
    conf.update(_file_io(catalog_properties))
    conf.update({k.removeprefix("spark."): v for k, v in catalog_properties.items() if k.startswith("spark.")})
    prefix = f"spark.sql.catalog.{name}"
    return {prefix: "org.apache.iceberg.spark.SparkCatalog", **{f"{prefix}.{k}": v for k, v in conf.items()}}


def _jdbc(uri: str) -> dict[str, str]:
    """SQLAlchemy's URI as JDBC's: `postgresql+psycopg2://u:p@h/db`, `sqlite:////path`."""
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
    if not any(k.startswith("s3.") for k in catalog_properties):
        return {}
    conf = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}
    same = ("s3.endpoint", "s3.access-key-id", "s3.secret-access-key", "s3.session-token", "s3.path-style-access")
    conf.update({k: catalog_properties[k] for k in same if k in catalog_properties})
    if "s3.region" in catalog_properties:
        conf["client.region"] = catalog_properties["s3.region"]
    return conf
