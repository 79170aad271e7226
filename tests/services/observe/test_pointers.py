"""Pointers of tables in real catalogs: how many queries they need, and how soon a commit of another writer is noticed."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from lethe.iceberg import catalogs
from lethe_operator.cluster.time_limit import Limiter
from lethe_operator.dataset.pointers import (
    TABLES_PER_QUERY,
    OpenCatalogs,
    Pointers,
    RestPointers,
    SqlPointers,
    source_of,
)
from lethe_operator.dataset.tables import TableReader
from lethe_operator.resources.observed import TableView, Unavailable
from lethe_operator.settings import IdleChecks
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog

from tests.support.builders import a_batch
from tests.support.clock import wait_until
from tests.support.lake import Lake
from tests.support.resources import a_dataset
from tests.support.servers import faulty_proxy, postgres, rest_catalog
from tests.support.tables import SCHEMA, commit

LIMIT_SECONDS = 30
INTERVAL_SECONDS = 1.0
OFTEN = IdleChecks(pointer_seconds=INTERVAL_SECONDS)


@pytest.fixture
def database(lake: Lake, tmp_path: Path) -> Iterator[SqlCatalog]:
    with postgres.running() as server:
        properties = {"type": "sql", "uri": server.uri, "warehouse": f"file://{tmp_path}/warehouse"}
        lake.add_catalog("pg", **properties)
        catalog = load_catalog("pg", **properties)  # creates the catalog's own tables
        catalog.create_namespace("air")
        assert isinstance(catalog, SqlCatalog)
        yield catalog


@contextmanager
def counted() -> Iterator[list[str]]:
    """The statements that databases receive."""
    found: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        found.append(statement)

    sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", note)
    yield found
    sqlalchemy.event.remove(sqlalchemy.Engine, "before_cursor_execute", note)


def a_dataset_on(catalog: str, name: str) -> Any:
    return a_dataset(name, table={"catalog": catalog, "name": f"air.{name}"})


def with_rows(catalog: SqlCatalog, count: int) -> None:
    """Tables that are only rows of the catalog: nothing reads their files."""
    with catalog.engine.begin() as connection:
        rows = [
            {"catalog_name": "pg", "table_namespace": "air", "table_name": f"t{n}", "metadata_location": f"m{n}"}
            for n in range(count)
        ]
        connection.execute(sqlalchemy.insert(IcebergTables), rows)


@pytest.mark.parametrize("count", [1000, pytest.param(2500, marks=pytest.mark.long)])
def test_a_round_over_many_tables_is_one_query_for_a_thousand(database: SqlCatalog, count: int) -> None:
    with_rows(database, count)
    pointers = Pointers(Limiter(), OpenCatalogs(), OFTEN)
    for n in range(count):
        pointers.register(a_dataset_on("pg", f"t{n}"))
    rounds = 4
    asked: list[str] = []
    pointers.on_query = asked.append
    per_round = -(-count // TABLES_PER_QUERY)

    with counted() as statements:
        pointers.start()
        wait_until(lambda: len(asked) > rounds * per_round, LIMIT_SECONDS)
        pointers.stop()
        of_pointers = [s for s in statements if "metadata_location" in s]

    assert rounds * per_round <= len(of_pointers) <= len(asked)
    found = [pointers.known(a_dataset_on("pg", f"t{n}")) for n in range(count)]
    assert [p.location for p in found if p is not None] == [f"m{n}" for n in range(count)]


def test_views_and_missing_tables_are_no_tables(database: SqlCatalog) -> None:
    with_rows(database, 2)
    with database.engine.begin() as connection:
        connection.execute(sqlalchemy.text("UPDATE iceberg_tables SET iceberg_type = 'VIEW' WHERE table_name = 't1'"))
    source = source_of(database)
    assert isinstance(source, SqlPointers)

    found = source.ask(["air.t0", "air.t1", "air.none", "sea.t0"])

    assert found == {"air.t0": "m0", "air.t1": None, "air.none": None, "sea.t0": None}


def is_noticed(catalog: Catalog, name: str) -> float:
    """Reconcile a table's Dataset, let another writer commit, and return the seconds until the change is reported."""
    table = catalog.create_table("air.flights", SCHEMA, properties={"format-version": "2"})
    tables, dataset = TableReader(checks=OFTEN), a_dataset_on(name, "flights")
    changed: list[str] = []
    tables.pointers.on_change = lambda meta: changed.append(meta.full_name)
    tables.start()
    try:
        before = tables.view(dataset)
        assert isinstance(before, TableView)
        wait_until(lambda: tables.view(dataset) is before and bool(tables._as_polled), LIMIT_SECONDS)
        assert changed == []
        commit(table, a_batch("A"))
        began = time.monotonic()
        wait_until(lambda: bool(changed), LIMIT_SECONDS)
        took = time.monotonic() - began
        after = tables.view(dataset)
        assert isinstance(after, TableView)
        assert (changed, after.ledger.version) == (["ns/flights"], before.ledger.version + 1)
        return took
    finally:
        tables.stop()


def test_a_commit_of_another_writer_is_noticed_within_the_interval(database: SqlCatalog) -> None:
    assert is_noticed(database, "pg") < INTERVAL_SECONDS + 2  # and what a busy machine adds


def test_a_database_that_goes_away_and_returns_is_shown_within_seconds(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lethe_operator.dataset.pointers.TROUBLE_SECONDS", 0.5)
    tables, dataset = TableReader(checks=OFTEN), a_dataset_on("gone", "flights")
    with postgres.running() as server:
        properties = {"type": "sql", "uri": server.uri, "warehouse": f"file://{tmp_path}/warehouse"}
        lake.add_catalog("gone", **properties)
        catalog = load_catalog("gone", **properties)
        catalog.create_namespace("air")
        catalog.create_table("air.flights", SCHEMA, properties={"format-version": "2"})
        tables.start()
        assert isinstance(tables.view(dataset), TableView)
        changed: list[str] = []
        tables.pointers.on_trouble = lambda meta: changed.append(meta.full_name)

    wait_until(lambda: bool(changed), LIMIT_SECONDS)
    found = tables.view(dataset)
    tables.stop()

    assert isinstance(found, Unavailable)
    assert (found.reason, found.transient) == ("CatalogUnavailable", True)


@contextmanager
def rest_server(folder: Path, etags: bool) -> Iterator[tuple[str, list[tuple[str, int, int]]]]:
    """A REST catalog, and the requests for tables that it received: the query, the status and the length of the answer.

    Args:
        etags: Whether answers have ETags, as the server makes them. Other servers have none.
    """
    requests: list[tuple[str, int, int]] = []
    with rest_catalog.running(folder) as server:
        forward = faulty_proxy.forward_to(server.uri)

        def noted(method: str, path: str, headers: Any, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            if not etags:
                del headers["If-None-Match"]
            status, answered, content = forward(method, path, headers, body)
            if method == "GET" and "/tables/" in path:
                requests.append((path.partition("?")[2], status, len(content)))
            return status, [(k, v) for k, v in answered if etags or k.lower() != "etag"], content

        with faulty_proxy.before(noted) as proxy:
            yield proxy.endpoint, requests


@pytest.mark.parametrize("etags", [True, pytest.param(False, marks=pytest.mark.long)])
def test_an_unchanged_table_of_a_rest_catalog_is_not_sent_again(lake: Lake, tmp_path: Path, etags: bool) -> None:
    with rest_server(tmp_path / "server", etags) as (uri, requests):
        lake.add_catalog("rest", type="rest", uri=uri)
        catalog = catalogs.load("rest")
        catalog.create_namespace("air")
        table = catalog.create_table("air.flights", SCHEMA, properties={"format-version": "2"})
        source = source_of(catalog)
        assert isinstance(source, RestPointers)
        requests.clear()

        first, second = source.ask(["air.flights"]), source.ask(["air.flights"])
        commit(table, a_batch("A"))
        requests_before = len(requests)
        third = source.ask(["air.flights"])

        assert first == second != third
        assert [status for _, status, _ in requests[:2]] == ([200, 304] if etags else [200, 200])
        assert requests[requests_before][1] == 200
        assert third == {"air.flights": catalog.load_table("air.flights").metadata_location}
        assert source.ask(["air.none"]) == {"air.none": None}
        assert source.ask(["none.none"]) == {"none.none": None}


def test_a_commit_through_a_rest_catalog_is_noticed_within_the_interval(lake: Lake, tmp_path: Path) -> None:
    with rest_server(tmp_path / "server", etags=True) as (uri, _):
        lake.add_catalog("rest", type="rest", uri=uri)
        catalog = catalogs.load("rest")
        catalog.create_namespace("air")

        assert is_noticed(catalog, "rest") < INTERVAL_SECONDS + 2
