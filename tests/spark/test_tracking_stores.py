"""The table of batches on PostgreSQL and S3, updated by many at once. Without Spark: the update needs none."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from lethe.ledger.ledger import BatchEntry, BatchState
from lethe.plan.tracking import row_of
from lethe.table import catalogs, ledger_store, tracking, tracking_files, tracking_upkeep
from lethe.table.facts import observe
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from tests.builders import a_batch
from tests.spark import postgres, s3
from tests.spark.lake import Lake
from tests.unit.lethe.table.lake import SCHEMA
from tests.unit.lethe.table.test_tracking import commit

NAME = "air.flights"
WRITERS = 4
TURNS = 5


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


def update(catalog: Catalog) -> tracking.Tracked:
    """As a run does, and as the next one makes up for it when the others were faster again and again."""
    done = tracking.bring_up_to_date(catalog, NAME, "batch_id", create=True)
    assert done is not None
    return done


def rows(table: Table) -> list[dict[str, Any]]:
    return sorted(table.scan().to_arrow().to_pylist(), key=lambda r: r["batch_id"])


def wanted(table: Table) -> list[dict[str, Any]]:
    table.refresh()
    ledger = ledger_store.load(table.io, observe(table, "batch_id")).ledger
    found = tracking_files.as_arrow(row_of(b) for b in ledger.batches.values()).to_pylist()
    return sorted(found, key=lambda r: r["batch_id"])


def test_many_that_commit_and_update_at_once_leave_it_as_the_ledger_says(table: Table, store: s3.S3) -> None:
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

    mine = catalogs.load("s3pg").load_table("air.flights_batches")
    assert rows(mine) == wanted(table)
    assert len(rows(mine)) == WRITERS * TURNS
    shown = tracking.shown(mine)
    assert shown is not None
    assert (shown.version, shown.totals["promoted"].batches) == (WRITERS * TURNS, WRITERS)
    named = {e.file.file_path for s in mine.snapshots() for e in tracking_files.files_of(as_of(mine, s.snapshot_id))}
    stored = {f"s3://lake/{k}" for k in store.keys("lake") if "flights_batches/data/" in k and k.endswith(".parquet")}
    assert stored == named


def test_files_of_snapshots_that_went_are_gone_from_the_store(
    table: Table, store: s3.S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking_upkeep, "SNAPSHOTS_AT_MOST", 4)
    monkeypatch.setattr(tracking_upkeep, "SNAPSHOTS_KEPT", 2)
    catalog = catalogs.load("s3pg")
    for n in range(6):
        commit(table, a_batch(f"b{n}"))
        update(catalog)

    mine = catalog.load_table("air.flights_batches")
    named = {e.file.file_path for s in mine.snapshots() for e in tracking_files.files_of(as_of(mine, s.snapshot_id))}
    stored = {f"s3://lake/{k}" for k in store.keys("lake") if "flights_batches/data/" in k and k.endswith(".parquet")}
    assert (len(mine.snapshots()) <= 4, rows(mine) == wanted(table), stored == named) == (True, True, True)


def as_of(table: Table, snapshot_id: int) -> Any:
    """The table as if that snapshot were its head."""

    class Then:
        io = table.io

        @staticmethod
        def current_snapshot() -> Any:
            return table.snapshot_by_id(snapshot_id)

    return Then()
