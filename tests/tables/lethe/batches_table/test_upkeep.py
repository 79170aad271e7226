"""The table of batches costs what changed: old snapshots go, files stay as they are, and there are never many."""

import pytest
from lethe import batches_table
from lethe.buffer.batch_rows import Sizes
from lethe.ledger.ledger import BatchState
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from tests.support.builders import a_batch
from tests.support.tables import commit, named_files
from tests.support.tracked import BATCHES, folder, paths, rows, stored_files, update, wanted


def test_old_snapshots_and_their_files_go(catalog: Catalog, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_table, "MAX_SNAPSHOTS", 4)
    monkeypatch.setattr(batches_table, "KEPT_SNAPSHOTS", 2)
    for n in range(7):
        commit(table, a_batch(f"b{n}"))
        update(catalog)

    mine = catalog.load_table(BATCHES)
    assert len(mine.snapshots()) <= 4
    assert rows(catalog) == wanted(table)
    assert stored_files(mine) == named_files(mine)
    for snapshot in mine.snapshots():
        assert mine.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows > 0
    assert len(list(folder(mine, "metadata").glob("snap-*.avro"))) == len(mine.snapshots())
    assert len(list(folder(mine, "metadata").glob("*.metadata.json"))) <= 12


def test_a_tagged_snapshot_stays(catalog: Catalog, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_table, "MAX_SNAPSHOTS", 4)
    monkeypatch.setattr(batches_table, "KEPT_SNAPSHOTS", 2)
    commit(table, a_batch("b0"))
    update(catalog)
    mine = catalog.load_table(BATCHES)
    first = mine.snapshots()[0].snapshot_id
    mine.manage_snapshots().create_tag(first, "keep").commit()
    for n in range(1, 8):
        commit(table, a_batch(f"b{n}"))
        update(catalog)

    assert catalog.load_table(BATCHES).scan(snapshot_id=first).to_arrow().num_rows == 1


def test_a_file_that_holds_no_changed_batch_stays_as_it_is(
    catalog: Catalog, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copying on write would else cost as much as the table is large."""
    monkeypatch.setattr(batches_table, "SIZES", Sizes(floor=2, cap=10))
    commit(table, *(a_batch(f"b{n:03d}") for n in range(100)))
    update(catalog)
    before = paths(catalog)
    commit(table, a_batch("b055", BatchState.REVERTED), a_batch("b0551"))

    update(catalog)

    assert rows(catalog) == wanted(table)
    assert len(before - paths(catalog)) == 1
    assert len(paths(catalog) - before) == 3  # the rest of that file, a promoted one, a reverted one


def test_small_files_are_merged_so_that_there_are_never_many(
    catalog: Catalog, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches_table, "SIZES", Sizes(floor=2, cap=6))
    most = 0
    for n in range(10):
        commit(table, a_batch(f"{(n * 37) % 100:02d}-{n}"))
        update(catalog)
        most = max(most, len(paths(catalog)))

    assert rows(catalog) == wanted(table)
    assert most <= 6
