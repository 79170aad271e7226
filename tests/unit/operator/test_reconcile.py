"""A reconcile of a Dataset whose table and buffer are real, on SQLite and local files."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from lethe import names
from lethe.buffer import open_buffer
from lethe.ledger.ledger import BatchEntry, BatchState
from lethe.plan.batches import BufferedBatch
from lethe.plan.digest import BufferDigest
from lethe.run import RunSpec, parse_run
from lethe.table import tracking
from lethe_operator.kube import CONFIG_MAPS, DATASETS, JOBS, Away, Document
from lethe_operator.observe.listing import Listings
from lethe_operator.observe.tables import Tables
from lethe_operator.observe.world import observe
from lethe_operator.reconcile import Reconciler
from lethe_operator.resources.common import RUN_KEY
from lethe_operator.resources.observed import NoTable, NotListed, Unavailable, World
from lethe_operator.settings import Settings
from lethe_operator.work_queue import Key
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from tests.builders import a_batch
from tests.unit.lethe.table.lake import SCHEMA, commit
from tests.unit.operator.builders import a_dataset_body
from tests.unit.operator.cluster import Cluster


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
    properties = {
        "write.metadata.metrics.column.batch_id": "full",
        "format-version": "2",
        names.CLAIM: "ns/flights",
    }
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
    return Cluster((DATASETS, a_dataset_body(consolidation={"minBatches": 1}, **spec)))


def buffered(cluster: Cluster) -> dict[str, BufferedBatch]:
    uri = cluster.get(DATASETS, "ns", "flights")["spec"]["buffer"]["uri"]
    return {b.id: b for b in open_buffer(uri, "batch_id", {}).list().batches}


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


def reconciler(cluster: Cluster) -> Reconciler:
    return Reconciler(cluster, Tables(), Settings())  # type: ignore[arg-type]


def status(cluster: Cluster) -> Document:
    found: Document = cluster.get(DATASETS, "ns", "flights")["status"]
    return found


def the_run(cluster: Cluster) -> RunSpec:
    (config_map,) = cluster.list(CONFIG_MAPS, "ns")
    (text,) = [v for k, v in config_map["data"].items() if k.endswith(RUN_KEY)]
    return parse_run(text)


FLIGHTS = Key("Dataset", "ns", "flights")
LABELS = {"namespace": "ns", "dataset": "flights"}


def test_what_was_promoted_long_ago_goes_and_what_waits_is_promoted(
    cluster: Cluster, table: Table, tmp_path: Path
) -> None:
    commit(table, promoted(cluster, "A"))
    reconcile = reconciler(cluster)

    reconcile(FLIGHTS)

    assert sorted(p.name for p in (tmp_path / "buffer").iterdir()) == ["batch_id=B"]
    assert len(cluster.list(JOBS, "ns")) == 1
    assert the_run(cluster).consolidation.batch_ids == ("B",)  # type: ignore[union-attr]
    assert status(cluster)["consolidation"] == {
        "decision": "Due",
        "reason": "EnoughBatches",
        "message": "1 batches wait, minBatches is 1.",
    }
    value = reconcile.metrics.registry.get_sample_value
    assert (value("lethe_buffer_batches", LABELS), value("lethe_promoted_batches", LABELS)) == (1, 1)
    assert value("lethe_listing_objects", LABELS) == 4

    reconcile(FLIGHTS)

    assert status(cluster)["consolidation"]["decision"] == "Running"
    assert len(cluster.list(JOBS, "ns")) == 1


def test_a_promoted_object_that_was_written_over_stays_and_is_told(
    cluster: Cluster, table: Table, tmp_path: Path
) -> None:
    commit(table, promoted(cluster, "A"))
    part = tmp_path / "buffer" / "batch_id=A" / "p.parquet"
    part.write_text("other rows")

    reconciler(cluster)(FLIGHTS)

    assert part.read_text() == "other rows"
    assert status(cluster)["buffer"]["invalidFolders"][0]["folder"].endswith("batch_id=A/p.parquet")


def test_a_key_that_is_written_again_after_its_deletion_is_not_deleted_again(
    cluster: Cluster, table: Table, tmp_path: Path
) -> None:
    """The last listing still tells of the object that was there before; its rows were promoted, these were not."""
    commit(table, promoted(cluster, "A"))
    reconcile = reconciler(cluster)
    reconcile(FLIGHTS)
    part = tmp_path / "buffer" / "batch_id=A" / "p.parquet"
    part.parent.mkdir()
    part.write_text("rows")

    reconcile(FLIGHTS)

    assert part.read_text() == "rows"


def test_runs_and_failures_are_counted_and_a_dataset_that_is_gone_is_forgotten(cluster: Cluster, table: Table) -> None:
    commit(table, promoted(cluster, "A"))
    reconcile = reconciler(cluster)
    reconcile(FLIGHTS)
    (job,) = cluster.list(JOBS, "ns")
    ended = {"conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": "2026-03-01T12:00:09Z"}]}
    cluster.patch(JOBS, "ns", job["metadata"]["name"], {"status": {"succeeded": 1, **ended}})

    reconcile(FLIGHTS)
    reconcile(FLIGHTS)

    value = reconcile.metrics.registry.get_sample_value
    kind = {"kind": "Consolidation", "outcome": "Succeeded"}
    assert value("lethe_runs_total", {**LABELS, **kind}) == 1
    cluster.delete(DATASETS, "ns", "flights")
    reconcile(FLIGHTS)
    assert value("lethe_buffer_batches", LABELS) is None
    assert reconcile.tables.listings.taken("ns/flights") is None

    def away(*_: str) -> None:
        raise Away(0, "NoAnswer", "gone")

    cluster.list = away  # type: ignore[assignment, method-assign]
    with pytest.raises(Away):
        reconcile(FLIGHTS)
    assert value("lethe_reconciles_total", {"kind": "Dataset"}) == 5
    assert value("lethe_reconcile_failures_total", {"kind": "Dataset"}) == 1


def test_the_table_of_batches_is_told_by_its_totals_and_not_looked_at_again_once_it_is_up_to_date(
    catalog: Catalog, cluster: Cluster, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reconcile of an idle table costs nothing more for it."""
    reconcile = reconciler(cluster)
    count = reconcile.metrics.registry.get_sample_value
    flights = {"namespace": "ns", "dataset": "flights"}
    promoted = {**flights, "state": "promoted"}
    looked: list[str] = []
    find = tracking.find
    monkeypatch.setattr(tracking, "find", lambda c, name: looked.append(name) or find(c, name))
    commit(table, a_batch("P", rows=7))

    reconcile(Key("Dataset", "ns", "flights"))
    assert (count("lethe_batches_behind", flights), count("lethe_batches", promoted)) == (1, None)

    tracking.bring_up_to_date(catalog, "air.flights", "batch_id", create=True)
    looked.clear()
    for _ in range(3):
        reconcile(Key("Dataset", "ns", "flights"))

    assert (count("lethe_batches_behind", flights), count("lethe_batches_rows", promoted)) == (0, 7)
    assert len(looked) == 1

    commit(table, a_batch("Q", rows=5))
    reconcile(Key("Dataset", "ns", "flights"))
    assert (count("lethe_batches_behind", flights), count("lethe_batches_rows", promoted)) == (1, 7)
