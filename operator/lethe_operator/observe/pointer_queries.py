"""Asks catalogs for the current metadata locations of tables. I/O.

- SQL: one query for up to a thousand tables.
- REST: a request for each table, with If-None-Match if the server gave an ETag. An unchanged table is answered by 304.
- Others: each table is loaded.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import Endpoints, RestCatalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from sqlalchemy import select, tuple_

# By table name; None: there is no such table.
Locations = Mapping[str, str | None]

# Tables of one SQL query. Databases limit the parameters of a query; each table needs two.
TABLES_PER_QUERY: Final = 1000
# Seconds to connect, and until the server sends something.
_TIMEOUTS: Final = (5.0, 20.0)


class PointerSource(Protocol):
    """One catalog."""

    # How many tables one query covers.
    tables_per_query: int

    def ask(self, tables: Sequence[str]) -> Locations:
        """The metadata locations of at most `tables_per_query` tables, by one query. Raises: what the catalog raises."""


def source_of(catalog: Catalog) -> PointerSource:
    if isinstance(catalog, SqlCatalog):
        return SqlPointers(catalog)
    if isinstance(catalog, RestCatalog):
        return RestPointers(catalog)
    return LoadedPointers(catalog)


class SqlPointers:
    def __init__(self, catalog: SqlCatalog) -> None:
        self.tables_per_query = TABLES_PER_QUERY
        self._catalog = catalog
        self._keys: dict[str, tuple[str, str]] = {}  # namespace and name of a table in the database

    def ask(self, tables: Sequence[str]) -> Locations:
        names = {self._key(t): t for t in tables}
        namespace, table = IcebergTables.table_namespace, IcebergTables.table_name
        query = select(namespace, table, IcebergTables.metadata_location).where(
            IcebergTables.catalog_name == self._catalog.name, tuple_(namespace, table).in_(list(names))
        )
        if (of_tables := self._catalog._iceberg_type_filter()) is not None:  # without views
            query = query.where(of_tables)
        with self._catalog.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            rows = connection.execute(query).all()
        found: dict[str, str | None] = dict.fromkeys(tables)
        for of_namespace, of_table, location in rows:
            found[names[of_namespace, of_table]] = location
        return found

    def _key(self, table: str) -> tuple[str, str]:
        if table not in self._keys:
            namespace = Catalog.namespace_to_string(Catalog.namespace_from(table))
            self._keys[table] = (namespace, Catalog.table_name_from(table))
        return self._keys[table]


class RestPointers:
    def __init__(self, catalog: RestCatalog) -> None:
        self.tables_per_query = 1
        self._catalog = catalog
        self._known: dict[str, tuple[str, str]] = {}  # the ETag and the metadata location of a table
        self._has_etags = True  # False: an answer had none

    def ask(self, tables: Sequence[str]) -> Locations:
        (table,) = tables
        known = self._known.get(table)
        # Credentials for the files are not needed, so the header that asks for them is removed. A compressed answer has another
        # ETag; the gzip handler of Jetty adds a suffix that If-None-Match does not match later.
        headers = {
            "If-None-Match": known[0] if known else None,
            "X-Iceberg-Access-Delegation": None,
            **({"Accept-Encoding": "identity"} if self._has_etags else {}),
        }
        parts = self._catalog._split_identifier_for_path(table)
        response = self._catalog._session.get(
            self._catalog.url(Endpoints.load_table, prefixed=True, **parts),
            params={"snapshots": "refs"},  # snapshots without a name would only make the answer longer
            headers=headers,
            timeout=_TIMEOUTS,
        )
        if response.status_code == 304 and known is not None:
            return {table: known[1]}
        self._known.pop(table, None)
        if response.status_code == 404:
            return {table: None}
        location = response.json().get("metadata-location") if response.status_code == 200 else None
        if not location:  # loading it renews an expired token, and raises PyIceberg's errors
            return _loaded(self._catalog, table)
        etag = response.headers.get("ETag")
        self._has_etags = etag is not None
        if etag is not None:
            self._known[table] = (etag, location)
        return {table: location}


class LoadedPointers:
    def __init__(self, catalog: Catalog) -> None:
        self.tables_per_query = 1
        self._catalog = catalog

    def ask(self, tables: Sequence[str]) -> Locations:
        (table,) = tables
        return _loaded(self._catalog, table)


def _loaded(catalog: Catalog, table: str) -> Locations:
    try:
        return {table: catalog.load_table(table).metadata_location}
    except (NoSuchTableError, NoSuchNamespaceError):
        return {table: None}
