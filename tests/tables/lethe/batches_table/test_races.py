"""Several update the table of batches at once: it shows the newest ledger, and nobody tries for ever."""

import pytest
from lethe import batches_table
from lethe.ledger.ledger import BatchState
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from tests.support.builders import a_batch
from tests.support.tables import commit, named_files
from tests.support.tracked import BATCHES, NAME, Overtaken, rows, states, stored_files, update, wanted


def test_of_two_concurrent_updates_the_one_with_the_older_ledger_reads_again(catalog: Catalog, table: Table) -> None:
    """The older must not overwrite what the newer has written, nor be added to it."""
    commit(table, a_batch("A"))
    update(catalog)
    commit(table, a_batch("A", BatchState.REVERTED), a_batch("B"))

    def newer() -> None:
        commit(catalog.load_table(NAME), a_batch("A"), a_batch("C"))
        update(catalog)

    done = update(catalog, step=Overtaken(newer))

    assert (rows(catalog), done.snapshot_id) == (wanted(table), None)
    assert done.shown.version == 3


def test_an_update_that_loses_twice_is_done_because_the_second_winner_shows_its_changes(
    catalog: Catalog, table: Table
) -> None:
    """However many update at once, nobody tries for ever."""
    commit(table, a_batch("A"))
    update(catalog)
    commit(table, a_batch("B"))

    def other() -> None:
        """Others' commits keep coming, so that there is always something left to show."""
        commit(catalog.load_table(NAME), a_batch(f"C{overtaken.count}"))
        update(catalog)
        commit(catalog.load_table(NAME), a_batch(f"D{overtaken.count}"))

    overtaken = Overtaken(other, other)

    done = update(catalog, step=overtaken)

    assert (overtaken.count, done.snapshot_id) == (2, None)
    assert "B" in states(catalog)


def test_what_was_written_for_a_lost_race_is_deleted(catalog: Catalog, table: Table) -> None:
    commit(table, a_batch("A"))
    update(catalog)
    commit(table, a_batch("B"))

    update(catalog, step=Overtaken(lambda: update(catalog)))

    mine = catalog.load_table(BATCHES)
    assert stored_files(mine) == named_files(mine)


def test_two_that_make_the_table_at_once_make_one(
    catalog: Catalog, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(table, a_batch("A"))
    find = batches_table.find
    found: list[Table | None] = []

    def then_overtaken(catalog: Catalog, name: str) -> Table | None:
        found.append(find(catalog, name))
        if len(found) == 1:
            update(catalog)
        return found[-1]

    monkeypatch.setattr(batches_table, "find", then_overtaken)

    assert update(catalog).snapshot_id is None
    assert rows(catalog) == wanted(table)
