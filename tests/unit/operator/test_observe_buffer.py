"""The buffer beside a real table's ledger, on SQLite and local files, as a reconcile sees both."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from lethe.buffer import open_buffer
from lethe.ledger.ledger import BatchEntry, BatchState, Delta
from lethe.plan.batches import BufferedBatch
from lethe.plan.digest import BufferDigest
from lethe_operator.kube import DATASETS, Document, Kind, NotFound
from lethe_operator.observe.listing import Listings
from lethe_operator.observe.tables import Tables
from lethe_operator.observe.world import observe
from lethe_operator.resources.observed import NoTable, NotListed, Unavailable, World
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from tests.builders import RUN, a_batch
from tests.unit.lethe.table.lake import SCHEMA, summary_of
from tests.unit.operator.builders import a_dataset_body


class Cluster:
    """One Dataset and nothing else in a namespace."""

    def __init__(self, body: Document) -> None:
        self.body = body

    def get(self, kind: Kind, _: str, name: str) -> Document:
        if kind is not DATASETS:
            raise NotFound(404, "NotFound", name)
        return self.body

    def list(self, kind: Kind, *_: str) -> list[Document]:
        return [self.body] if kind is DATASETS else []


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    uri, warehouse = f"sqlite:///{tmp_path}/c.db", f"file://{tmp_path}/wh"
    (tmp_path / ".pyiceberg.yaml").write_text(
        f"catalog:\n  lite:\n    type: sql\n    uri: {uri}\n    warehouse: {warehouse}\n"
    )
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    made = load_catalog("lite", type="sql", uri=uri, warehouse=warehouse)
    made.create_namespace("air")
    return made


@pytest.fixture
def table(catalog: Catalog) -> Table:
    properties = {"write.metadata.metrics.column.batch_id": "full", "format-version": "2"}
    return catalog.create_table("air.flights", SCHEMA, properties=properties)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """Its Dataset's buffer holds the batches A and B."""
    for id in "AB":
        folder = tmp_path / "buffer" / f"batch_id={id}"
        folder.mkdir(parents=True)
        (folder / "p.parquet").write_text("rows")
        (folder / "_SUCCESS").touch()
    spec: Any = {
        "table": {"catalog": "lite", "name": "air.flights"},
        "buffer": {"uri": f"file://{tmp_path}/buffer"},
    }
    return Cluster(a_dataset_body(**spec))


def buffered(cluster: Cluster) -> dict[str, BufferedBatch]:
    uri = cluster.body["spec"]["buffer"]["uri"]
    return {b.id: b for b in open_buffer(uri, "batch_id", {}).list()}


def commit(table: Table, *entries: BatchEntry) -> None:
    """A ledger commit: a snapshot of a summary and no rows."""
    keys = summary_of(table.refresh(), Delta(RUN, set_batches=entries))
    table.append(SCHEMA.empty_table(), snapshot_properties=keys)


def promoted(cluster: Cluster, id: str) -> BatchEntry:
    long_ago = datetime.now(UTC) - timedelta(days=9)
    return a_batch(id, time=long_ago, objects=buffered(cluster)[id].data_objects)


def seen(cluster: Cluster, tables: Tables) -> World:
    return observe(cluster, tables, "ns", "flights").world  # type: ignore[arg-type]


def told(world: World) -> tuple[list[str], int, list[str]]:
    """The ids that wait, how many are promoted, and the ids whose objects may go."""
    buffer = world.buffer
    assert isinstance(buffer, BufferDigest)
    return [b.id for b in buffer.oldest], buffer.promoted, [b.id for b in buffer.expired]


def test_what_waits_and_what_may_go_follow_from_the_tables_ledger(cluster: Cluster, table: Table) -> None:
    commit(table, promoted(cluster, "A"))
    tables = Tables()

    first, second = seen(cluster, tables), seen(cluster, tables)

    assert told(first) == (["B"], 1, ["A"])
    assert set(first.table.ledger.batches) == {"A"}  # type: ignore[union-attr]
    assert told(second) == (["B"], 1, [])  # nothing is deleted twice on one listing


def test_a_commit_since_the_listing_is_heeded_without_another(cluster: Cluster, table: Table) -> None:
    """A batch is not proposed again while its buffer rests."""
    tables = Tables(listings=Listings(clock=lambda: 1000.0))  # no time passes, so that it is listed once
    commit(table, a_batch("X", BatchState.REVERTED))
    assert told(seen(cluster, tables))[0] == ["A", "B"]

    commit(table, promoted(cluster, "A"))

    after = seen(cluster, tables)
    assert told(after) == (["B"], 1, [])
    assert (after.buffer.batches, after.buffer.bytes) == (1, 4)  # type: ignore[union-attr]


@pytest.mark.usefixtures("catalog")
def test_before_there_is_a_table_everything_waits(cluster: Cluster) -> None:
    world = seen(cluster, Tables())

    assert isinstance(world.table, NoTable)
    assert told(world) == (["A", "B"], 0, [])


def test_nothing_is_listed_while_nobody_knows_what_is_promoted(cluster: Cluster, table: Table, tmp_path: Path) -> None:
    """Every batch would seem to wait. What was listed before is still told."""
    fresh, tables = Tables(), Tables()
    commit(table, promoted(cluster, "A"))
    seen(cluster, tables)
    (tmp_path / "c.db").rename(tmp_path / "away.db")

    first, later = seen(cluster, fresh), seen(cluster, tables)

    assert isinstance(first.table, Unavailable)
    assert isinstance(first.buffer, NotListed)
    assert told(later) == (["B"], 1, [])


def test_a_dataset_that_is_gone_is_forgotten_with_its_buffer(cluster: Cluster, table: Table) -> None:
    tables = Tables()
    commit(table, promoted(cluster, "A"))
    seen(cluster, tables)
    assert tables.listings.taken("ns/flights") is not None

    tables.forget("ns/flights")

    assert tables.listings.taken("ns/flights") is None
