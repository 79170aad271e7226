"""The table of batches on PostgreSQL with S3, and on a REST catalog, updated by many at once. Without Spark: the update
needs none."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from lethe import batches_table
from lethe.iceberg import catalogs
from lethe.ledger.ledger import BatchEntry, BatchState
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from tests.support.builders import a_batch
from tests.support.lake import Lake
from tests.support.servers import postgres, rest_catalog, s3
from tests.support.tables import SCHEMA, commit, named_files
from tests.support.tracked import BATCHES, NAME, Overtaken, rows, update, wanted

WRITERS = 4
TURNS = 2


@pytest.fixture
def store() -> Iterator[s3.S3]:
    with s3.running() as server:
        server.bucket("lake")
        yield server


@pytest.fixture
def table(lake: Lake, store: s3.S3) -> Iterator[Table]:
    with postgres.running() as server:
        properties = {"type": "sql", "uri": server.uri, "warehouse": "s3://lake/warehouse", **store.properties()}
        lake.add_catalog("s3pg", **properties)
        catalog = load_catalog("s3pg", **properties)  # its own tables are made by whoever comes first
        catalog.create_namespace("air")
        yield catalog.create_table(NAME, SCHEMA, properties={"format-version": "2"})


def test_after_many_concurrent_commits_and_updates_it_equals_the_ledger(table: Table, store: s3.S3) -> None:
    """Nothing is lost, nothing is there twice, and nobody's files are left behind."""
    one_commits = threading.Lock()  # the ledger's own races are tested elsewhere
    batches: list[BatchEntry] = [a_batch(f"{w}-{t}") for t in range(TURNS) for w in range(WRITERS)]

    def write(writer: int) -> None:
        catalog = catalogs.load("s3pg")
        for turn in range(TURNS):
            mine = batches[turn * WRITERS + writer]
            before = a_batch(f"{writer}-{turn - 1}", BatchState.REVERTED) if turn else None
            with one_commits:
                commit(catalog.load_table(NAME), mine, *([before] if before else []))
            update(catalog)

    with ThreadPoolExecutor(max_workers=WRITERS) as pool:
        list(pool.map(write, range(WRITERS)))

    catalog = catalogs.load("s3pg")
    mine = catalog.load_table(BATCHES)
    assert rows(catalog) == wanted(table)
    assert len(rows(catalog)) == WRITERS * TURNS
    shown = batches_table.shown(mine)
    assert shown is not None
    assert (shown.version, shown.totals["promoted"].batches) == (WRITERS * TURNS, WRITERS)
    stored = {f"s3://lake/{k}" for k in store.keys("lake") if "flights_batches/data/" in k and k.endswith(".parquet")}
    assert stored == named_files(mine)


def test_files_of_snapshots_that_went_are_gone_from_the_store(
    table: Table, store: s3.S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches_table, "MAX_SNAPSHOTS", 4)
    monkeypatch.setattr(batches_table, "KEPT_SNAPSHOTS", 2)
    catalog = catalogs.load("s3pg")
    for n in range(6):
        commit(table, a_batch(f"b{n}"))
        update(catalog)

    mine = catalog.load_table(BATCHES)
    stored = {f"s3://lake/{k}" for k in store.keys("lake") if "flights_batches/data/" in k and k.endswith(".parquet")}
    assert len(mine.snapshots()) <= 4
    assert rows(catalog) == wanted(table)
    assert stored == named_files(mine)


def test_a_rest_catalog_lets_one_of_two_win_as_well(lake: Lake, tmp_path: Path) -> None:
    with rest_catalog.running(tmp_path / "server") as server:
        lake.add_catalog("rest-tracking", type="rest", uri=server.uri)
        catalog = catalogs.load("rest-tracking")
        catalog.create_namespace("air")
        table = catalog.create_table(NAME, SCHEMA, properties={"format-version": "2"})
        commit(table, a_batch("A"))
        update(catalog)
        commit(table, a_batch("B"))

        def other() -> None:
            commit(catalog.load_table(NAME), a_batch("A", BatchState.REVERTED))
            update(catalogs.load("rest-tracking"))

        overtaken = Overtaken(other)

        done = update(catalog, step=overtaken)

        assert (done.snapshot_id, done.shown.version, overtaken.count) == (None, 3, 1)
        assert rows(catalog) == wanted(table)
