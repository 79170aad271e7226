"""Asks the catalogs periodically for the metadata pointers of all tables that the operator observes. I/O: a thread per catalog.

A pointer is the location of a table's current metadata file. While it is unchanged, so is the table. A changed pointer, which is
a commit of any writer, is reported, so an idle Dataset needs no request of its own. A catalog that hangs does not delay the
others.

- SQL: one query for up to a thousand tables.
- REST: a request for each table, with If-None-Match if the server gave an ETag. An unchanged table is answered by 304.
- Others: each table is loaded.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from lethe.iceberg import catalogs
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import Endpoints, RestCatalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from sqlalchemy import select, tuple_

from lethe_operator.cluster.time_limit import Limiter
from lethe_operator.resources.common import Meta
from lethe_operator.resources.dataset import Dataset
from lethe_operator.settings import IdleChecks


class OpenCatalogs:
    """Opens each catalog once, and again after its properties have changed. One per operator, shared by its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, tuple[dict[str, str], Catalog]] = {}

    def get(self, name: str, properties: Mapping[str, str]) -> Catalog:
        """The catalog with these properties, as just read from the configuration.

        Raises:
            Exception: What the catalog raises.
        """
        with self._lock:
            kept = self._open.get(name)
        if kept is not None and kept[0] == properties:
            return kept[1]
        opened = catalogs.load(name)
        with self._lock:
            self._open[name] = (dict(properties), opened)
        return opened

    def drop(self, name: str) -> None:
        """Open the catalog again before its next use: its connection pool may have connections to a server that is gone."""
        with self._lock:
            self._open.pop(name, None)


# By table name; None: there is no such table.
Locations = Mapping[str, str | None]

# Tables of one SQL query. Databases limit the parameters of a query; each table needs two.
TABLES_PER_QUERY: Final = 1000
# Seconds to connect, and until the server sends something.
_TIMEOUTS: Final = (5.0, 20.0)


class PointerSource(Protocol):
    """One catalog."""

    tables_per_query: int
    """How many tables one query covers."""

    def ask(self, tables: Sequence[str]) -> Locations:
        """The metadata locations of at most `tables_per_query` tables, by one query.

        Raises:
            Exception: What the catalog raises.
        """


def source_of(catalog: Catalog) -> PointerSource:
    """The cheapest way to ask a catalog: one query of its database, requests with ETags, or a load of each table."""
    if isinstance(catalog, SqlCatalog):
        return SqlPointers(catalog)
    if isinstance(catalog, RestCatalog):
        return RestPointers(catalog)
    return LoadedPointers(catalog)


class SqlPointers:
    """Asks the database of a SQL catalog: a single query covers up to `TABLES_PER_QUERY` tables."""

    def __init__(self, catalog: SqlCatalog) -> None:
        self.tables_per_query = TABLES_PER_QUERY
        self._catalog = catalog
        self._keys: dict[str, tuple[str, str]] = {}  # namespace and name of a table in the database

    def ask(self, tables: Sequence[str]) -> Locations:
        """Run one query about all of these tables. A view counts as no table.

        Raises:
            Exception: What the database raises.
        """
        names = {self._key(t): t for t in tables}
        namespace, table = IcebergTables.table_namespace, IcebergTables.table_name
        query = select(namespace, table, IcebergTables.metadata_location).where(
            IcebergTables.catalog_name == self._catalog.name, tuple_(namespace, table).in_(list(names))
        )
        if (of_tables := self._catalog._iceberg_type_filter()) is not None:  # without views
            query = query.where(of_tables)
        with self._catalog.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            rows = connection.execute(query).all()
        pointers: dict[str, str | None] = dict.fromkeys(tables)
        for of_namespace, of_table, location in rows:
            pointers[names[of_namespace, of_table]] = location
        return pointers

    def _key(self, table: str) -> tuple[str, str]:
        if table not in self._keys:
            namespace = Catalog.namespace_to_string(Catalog.namespace_from(table))
            self._keys[table] = (namespace, Catalog.table_name_from(table))
        return self._keys[table]


class RestPointers:
    """Asks a REST catalog for one table at a time, and with its ETag, if the catalog sends ETags."""

    def __init__(self, catalog: RestCatalog) -> None:
        self.tables_per_query = 1
        self._catalog = catalog
        self._known: dict[str, tuple[str, str]] = {}  # the ETag and the metadata location of a table
        self._has_etags = True  # False: an answer had none

    def ask(self, tables: Sequence[str]) -> Locations:
        """Ask for the only table. While its ETag is unchanged, the answer has no content.

        Raises:
            Exception: What the catalog raises.
        """
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
    """Loads one table at a time, from a catalog that has no cheaper way."""

    def __init__(self, catalog: Catalog) -> None:
        self.tables_per_query = 1
        self._catalog = catalog

    def ask(self, tables: Sequence[str]) -> Locations:
        """Load the only table with all its metadata.

        Raises:
            Exception: What the catalog raises.
        """
        (table,) = tables
        return _loaded(self._catalog, table)


def _loaded(catalog: Catalog, table: str) -> Locations:
    try:
        return {table: catalog.load_table(table).metadata_location}
    except (NoSuchTableError, NoSuchNamespaceError):
        return {table: None}


log = logging.getLogger(__name__)

QUERY_SECONDS: Final = 25.0
# Limit for a catalog that answers for a thousand tables at once. Such a query takes 20 ms of the operator's processor.
LARGE_QUERIES_PER_SECOND: Final = 1.0
# A catalog that does not answer is reported after this time and this number of queries, so not after one lost connection.
TROUBLE_SECONDS: Final = 10.0
TROUBLE_QUERIES: Final = 2


@dataclass(frozen=True)
class Pointer:
    """What a catalog has answered about a table."""

    location: str | None
    """Of the current metadata file; None: there is no table."""
    asked: float
    """When the query began, by the clock, in seconds."""


@dataclass
class _PolledTable:
    datasets: dict[str, Meta] = field(default_factory=dict)
    """By `namespace/name`."""
    pointer: Pointer | None = None
    """None: unknown."""


@dataclass
class _PolledCatalog:
    tables: OrderedDict[str, _PolledTable] = field(default_factory=OrderedDict)
    """By name; the next to ask first."""
    source: tuple[Catalog, PointerSource] | None = None
    """None: not opened yet."""
    failing_since: float | None = None
    """By the clock, in seconds; None: the last query was answered."""
    failures: int = 0
    """In a row."""
    trouble: Exception | None = None
    """Why it does not answer; None: it does, or it is too early to say."""

    @property
    def queries(self) -> int:
        """Of one round."""
        return -(-len(self.tables) // self.source[1].tables_per_query) if self.source is not None else 1

    @property
    def one_by_one(self) -> bool:
        """Whether each table needs its own query."""
        return self.source is not None and self.source[1].tables_per_query == 1


def round_seconds(checks: IdleChecks, queries: int, one_by_one: bool) -> float:
    """How long a catalog's round of queries takes; they are spread evenly over it. Pure.

    Args:
        queries: Of one round: if each table needs a query, of all such catalogs; otherwise of this catalog.
        one_by_one: Whether each table needs a query.
    """
    per_second = checks.catalog_queries_per_second if one_by_one else LARGE_QUERIES_PER_SECOND
    return max(checks.pointer_seconds, queries / per_second)


class Pointers:
    """The pointers of all tables. One per operator, shared by its threads. `clock` returns seconds.

    Before `start`, only `ask` asks a catalog, and no pointer is known.
    """

    def __init__(
        self,
        limiter: Limiter,
        opened: OpenCatalogs,
        checks: IdleChecks,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limiter = limiter
        self._opened = opened
        self._checks = checks
        self._clock = clock
        # Called with each Dataset whose table has another pointer.
        self.on_change: Callable[[Meta], None] = lambda _: None
        # Called with each Dataset of a catalog that begins or ceases to answer. There may be thousands.
        self.on_trouble: Callable[[Meta], None] = lambda _: None
        # Called with the name of a catalog before each query.
        self.on_query: Callable[[str], None] = lambda _: None
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._started = False
        self._catalogs: dict[str, _PolledCatalog] = {}
        self._places: dict[str, tuple[str, str]] = {}  # the catalog and the table of a Dataset, by `namespace/name`

    def start(self) -> None:
        """Ask all catalogs periodically, from now on."""
        with self._lock:
            self._started = True
            for name in self._catalogs:
                self._poll(name)

    def stop(self) -> None:
        """Let the threads end after the query that they are in. It does not wait for that."""
        self._stopped.set()

    def register(self, dataset: Dataset) -> None:
        """Ask for the pointer of the Dataset's table from now on."""
        full_name, place = dataset.meta.full_name, (dataset.spec.table.catalog, dataset.spec.table.name)
        with self._lock:
            if self._places.get(full_name) == place:
                return
            self._leave(full_name)
            self._places[full_name] = place
            is_new = place[0] not in self._catalogs
            catalog = self._catalogs.setdefault(place[0], _PolledCatalog())
            catalog.tables.setdefault(place[1], _PolledTable()).datasets[full_name] = dataset.meta
            if is_new and self._started:
                self._poll(place[0])

    def forget(self, dataset: str) -> None:
        """Do not ask for a Dataset, as `namespace/name`, any more."""
        with self._lock:
            self._leave(dataset)

    def known(self, dataset: Dataset) -> Pointer | None:
        """The pointer of the last round; None: it is unknown or too old."""
        with self._lock:
            catalog = self._catalogs.get(dataset.spec.table.catalog)
            table = catalog.tables.get(dataset.spec.table.name) if catalog is not None else None
            if catalog is None or table is None or table.pointer is None or not self._started:
                return None
            oldest = self._clock() - 2 * self._round(catalog) - TROUBLE_SECONDS
            return table.pointer if table.pointer.asked >= oldest else None

    def trouble(self, catalog: str) -> Exception | None:
        """Why a catalog has not answered for some time; None: it answers, or it is too early to say."""
        with self._lock:
            known = self._catalogs.get(catalog)
            return known.trouble if known is not None else None

    def ask(self, dataset: Dataset, properties: Mapping[str, str]) -> Pointer:
        """Ask the catalog now.

        Raises:
            Exception: What the catalog raises.

        Args:
            properties: Of the catalog.
        """
        spec, asked = dataset.spec.table, self._clock()
        source = self._source(spec.catalog, properties)
        self.on_query(spec.catalog)
        pointer = Pointer(source.ask([spec.name])[spec.name], asked)
        self.record(dataset, pointer)
        return pointer

    def record(self, dataset: Dataset, pointer: Pointer) -> None:
        """Keep the pointer that was found for this Dataset. Other Datasets of its table are reported if it has changed."""
        with self._lock:
            catalog = self._catalogs.get(dataset.spec.table.catalog)
            table = catalog.tables.get(dataset.spec.table.name) if catalog is not None else None
            changed = _update(table, pointer) if table is not None else ()
        _report((m for m in changed if m.full_name != dataset.meta.full_name), self.on_change)

    def _leave(self, full_name: str) -> None:
        place = self._places.pop(full_name, None)
        catalog = self._catalogs.get(place[0]) if place is not None else None
        if place is None or catalog is None or place[1] not in catalog.tables:
            return
        table = catalog.tables[place[1]]
        table.datasets.pop(full_name, None)
        if not table.datasets:
            del catalog.tables[place[1]]

    def _poll(self, name: str) -> None:
        threading.Thread(target=self._run, args=(name,), name=f"pointers {name}", daemon=True).start()

    def _run(self, name: str) -> None:
        while True:
            with self._lock:
                catalog = self._catalogs[name]
                if not catalog.tables:
                    del self._catalogs[name]
                    return
                failing = catalog.trouble is not None
                pause = self._checks.pointer_seconds if failing else self._round(catalog) / catalog.queries
            if self._stopped.wait(pause):
                return
            self._query(name, catalog)

    def _round(self, catalog: _PolledCatalog) -> float:
        of_all = sum(c.queries for c in self._catalogs.values() if c.one_by_one)
        return round_seconds(self._checks, of_all if catalog.one_by_one else catalog.queries, catalog.one_by_one)

    def _query(self, name: str, catalog: _PolledCatalog) -> None:
        tables: list[str] = []
        asked = self._clock()

        def ask() -> Mapping[str, str | None]:
            source = self._source(name, catalogs.properties(name))
            with self._lock:
                tables.extend(list(catalog.tables)[: source.tables_per_query])
            self.on_query(name)
            return source.ask(tables) if tables else {}

        try:
            pointers = self._limiter.call(f"pointers of {name}", QUERY_SECONDS, ask, service_of(name))
        except Exception as e:
            self._failed(name, catalog, list(tables), e)
        else:
            self._answered(name, catalog, {t: Pointer(location, asked) for t, location in pointers.items()})

    def _answered(self, name: str, catalog: _PolledCatalog, pointers: Mapping[str, Pointer]) -> None:
        with self._lock:
            changed: list[Meta] = []
            concerned: list[Meta] = []
            for of, pointer in pointers.items():
                if of in catalog.tables:
                    catalog.tables.move_to_end(of)
                    changed += _update(catalog.tables[of], pointer)
            if catalog.trouble is not None:
                log.info("catalog %s answers again", name)
                concerned = _all_of(catalog)
            catalog.trouble, catalog.failing_since, catalog.failures = None, None, 0
        _report(changed, self.on_change)
        _report(concerned, self.on_trouble)

    def _failed(self, name: str, catalog: _PolledCatalog, tables: Collection[str], error: Exception) -> None:
        now = self._clock()
        with self._lock:
            concerned: list[Meta] = []
            for of in tables if catalog.one_by_one else ():  # the reason may be this table
                if of in catalog.tables:
                    catalog.tables.move_to_end(of)
                    catalog.tables[of].pointer = None
            catalog.failures += 1
            if catalog.failing_since is None:
                catalog.failing_since = now
            lasts = now - catalog.failing_since >= TROUBLE_SECONDS and catalog.failures >= TROUBLE_QUERIES
            if lasts and catalog.trouble is None:
                log.warning("catalog %s does not answer: %s", name, type(error).__name__)
                concerned = _all_of(catalog)
            catalog.trouble = error if lasts else None
            again = catalog.failures >= TROUBLE_QUERIES
        if again:
            self._opened.drop(name)
        _report(concerned, self.on_trouble)

    def _source(self, name: str, properties: Mapping[str, str]) -> PointerSource:
        opened = self._opened.get(name, properties)
        with self._lock:
            catalog = self._catalogs.get(name)
            if catalog is None:
                return source_of(opened)
            if catalog.source is None or catalog.source[0] is not opened:
                catalog.source = (opened, source_of(opened))
            return catalog.source[1]


def _report(datasets: Iterable[Meta], to: Callable[[Meta], None]) -> None:
    for meta in datasets:
        to(meta)


def service_of(catalog: str) -> str:
    """The name of a catalog's service for a Limiter."""
    return f"catalog {catalog}"


def _update(table: _PolledTable, pointer: Pointer) -> list[Meta]:
    """Keep a pointer, unless a later query found another.

    Returns:
        The Datasets for which it has changed.
    """
    before = table.pointer
    if before is not None and pointer.asked < before.asked:
        return []
    table.pointer = pointer
    return list(table.datasets.values()) if before is None or before.location != pointer.location else []


def _all_of(catalog: _PolledCatalog) -> list[Meta]:
    return [meta for table in catalog.tables.values() for meta in table.datasets.values()]
