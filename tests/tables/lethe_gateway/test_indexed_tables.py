"""When tables are looked at again, what is shown meanwhile, and which indexes are kept."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lethe import batches_table
from lethe.ledger.ledger import BatchState
from lethe_gateway.problems import Kind, Problem
from lethe_gateway.settings import IndexSettings
from lethe_gateway.tables import indexed
from lethe_gateway.tables.indexed import IndexedTables
from lethe_gateway.tables.looking import look
from lethe_gateway.tables.records import BatchQuery, TableTarget
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from tests.support.builders import a_batch
from tests.support.clock import ManualClock
from tests.support.gateway_lake import STATES, fill, flights_table
from tests.support.tables import commit
from tests.support.tracked import update

TARGET = TableTarget("lite", "air.flights", "default/flights", "batch_id")
SETTINGS = IndexSettings(fresh_seconds=3, stale_seconds=60, wait_seconds=60, idle_seconds=100)


class Looks:
    """Counts looks, and fails when it is told to."""

    def __init__(self) -> None:
        self.count = 0
        self.error: Exception | None = None

    def __call__(self, target: TableTarget) -> Any:
        self.count += 1
        if self.error is not None:
            raise self.error
        return look(target)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    found = Looks()
    monkeypatch.setattr(indexed, "look", found)
    return found


@pytest.fixture
def table(catalog: Catalog) -> Table:
    table = flights_table(catalog)
    fill(catalog, table)
    return table


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def tables(tmp_path: Path, clock: ManualClock) -> Iterator[IndexedTables]:
    tables = IndexedTables(tmp_path / "indexes", SETTINGS, clock)
    yield tables
    tables.close()


def ids(tables: IndexedTables, target: TableTarget = TARGET) -> set[str]:
    with tables.view(target) as view:
        return {b.batch_id for b in view.batches(BatchQuery(), 100)}


def kind_of(act: Callable[[], object]) -> Kind:
    with pytest.raises(Problem) as e:
        act()
    return e.value.kind


def test_a_fresh_index_is_shown_without_a_look(
    catalog: Catalog, table: Table, tables: IndexedTables, looks: Looks, clock: ManualClock
) -> None:
    assert ids(tables) == STATES.keys()
    commit(table, a_batch("new"))
    update(catalog)
    clock.now = 3

    assert (ids(tables), looks.count) == (STATES.keys(), 1)
    clock.now = 3.1
    assert (ids(tables), looks.count) == (STATES.keys() | {"new"}, 2)


def test_batches_with_the_longest_ids_are_told_apart(catalog: Catalog, table: Table, tables: IndexedTables) -> None:
    """They have 1,024 bytes, and differ in the last character."""
    start = "\U0001f600" * 255
    longest = [start + end for end in ("\U0001f600", "\U0001f601")]
    commit(table, a_batch(longest[0]), a_batch(longest[1], BatchState.REVERTED))
    update(catalog)

    with tables.view(TARGET) as view:
        assert {b.batch_id for b in view.batches(BatchQuery(id_prefix=start), 100)} == set(longest)
        found = [view.batch(i) for i in longest]

    assert [f and (f.row.batch_id, f.row.state) for f in found] == list(
        zip(longest, ("promoted", "reverted"), strict=True)
    )


@pytest.mark.usefixtures("table")
def test_while_the_catalog_is_away_the_last_state_is_shown_for_a_while(
    tables: IndexedTables, looks: Looks, clock: ManualClock
) -> None:
    ids(tables)
    looks.error = OSError("no route to host")
    clock.now = 60
    assert ids(tables) == STATES.keys()
    clock.now = 60.1

    assert kind_of(lambda: ids(tables)) is Kind.CATALOG_AWAY
    looks.error = None
    clock.now = 62
    assert ids(tables) == STATES.keys()


@pytest.mark.usefixtures("table")
def test_a_look_that_failed_is_not_repeated_at_once(tables: IndexedTables, looks: Looks, clock: ManualClock) -> None:
    looks.error = OSError("no route to host")

    for _ in range(5):
        assert kind_of(lambda: ids(tables)) is Kind.CATALOG_AWAY
    assert looks.count == 1
    clock.now = 1.1
    kind_of(lambda: ids(tables))
    assert looks.count == 2


def test_a_table_that_was_given_to_another_dataset_is_not_shown_from_the_index(
    table: Table, tables: IndexedTables, clock: ManualClock
) -> None:
    ids(tables)
    table.refresh()
    with table.transaction() as transaction:
        transaction.set_properties({"lethe.dataset": "other/flights"})
    clock.now = 4

    assert kind_of(lambda: ids(tables)) is Kind.NO_TABLE


@pytest.mark.usefixtures("table")
def test_an_index_that_nobody_asks_for_is_removed_and_built_again_when_somebody_does(
    tmp_path: Path, tables: IndexedTables, clock: ManualClock
) -> None:
    ids(tables)
    clock.now = 100
    tables.housekeeping()
    assert list((tmp_path / "indexes").glob("*.db"))
    clock.now = 100.1
    tables.housekeeping()

    assert not list((tmp_path / "indexes").glob("*.db*"))
    assert ids(tables) == STATES.keys()


@pytest.mark.usefixtures("table")
def test_with_too_many_indexes_those_used_longest_ago_are_removed(
    catalog: Catalog, tmp_path: Path, clock: ManualClock
) -> None:
    other = replace(TARGET, name="air.other", claim="default/other")
    second = flights_table(catalog, "default/other", "air.other")
    commit(second, a_batch("A"))
    batches_table.bring_up_to_date(catalog, "air.other", "batch_id", batches_table.TrackingUpdate(create=True))
    tables = IndexedTables(tmp_path / "small", SETTINGS.model_copy(update={"max_bytes": 1}), clock)
    try:
        ids(tables)
        clock.now = 1
        ids(tables, other)
        tables.housekeeping()

        assert {e.target for e in tables._entries.values()} == {other}
        assert len(list((tmp_path / "small").glob("*.db"))) == 1
        assert ids(tables, other) == {"A"}
    finally:
        tables.close()


@pytest.mark.usefixtures("table")
def test_an_index_stays_while_a_request_uses_it(tmp_path: Path, tables: IndexedTables, clock: ManualClock) -> None:
    with tables.view(TARGET) as view:
        clock.now = 1000
        tables.housekeeping()

        assert list((tmp_path / "indexes").glob("*.db"))
        assert {b.batch_id for b in view.batches(BatchQuery(), 100)} == STATES.keys()
    clock.now = 1101
    tables.housekeeping()
    assert not list((tmp_path / "indexes").glob("*.db*"))


@pytest.mark.usefixtures("table")
def test_an_index_stays_while_a_request_waits_for_its_refresh(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look took longer than an index may be idle."""
    tables = IndexedTables(tmp_path / "waiting", SETTINGS.model_copy(update={"idle_seconds": 1}), clock)

    def slow(target: TableTarget) -> Any:
        seen = look(target)
        clock.now += 2
        tables.housekeeping()
        return seen

    monkeypatch.setattr(indexed, "look", slow)
    try:
        assert ids(tables) == STATES.keys()
    finally:
        tables.close()


@pytest.mark.usefixtures("table")
def test_what_an_earlier_process_did_not_finish_is_removed(tmp_path: Path, clock: ManualClock) -> None:
    folder = tmp_path / "left"
    folder.mkdir()
    (folder / "abc.new").write_bytes(b"half")

    IndexedTables(folder, SETTINGS, clock).close()

    assert not (folder / "abc.new").exists()


@pytest.mark.usefixtures("table")
def test_the_first_index_is_waited_for_only_so_long(
    tmp_path: Path, looks: Looks, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = threading.Event()
    original = indexed.bring_up_to_date

    def slow(*given: Any) -> Path:
        given[-1](1234)  # rows so far
        may_go_on.wait(60)
        return original(*given)

    monkeypatch.setattr(indexed, "bring_up_to_date", slow)
    tables = IndexedTables(tmp_path / "waiting", SETTINGS.model_copy(update={"wait_seconds": 0.3}), clock)
    try:
        with pytest.raises(Problem, match="1,234 are in it so far") as e:
            ids(tables)
        assert (e.value.kind, e.value.retry_after_seconds) == (Kind.INDEX_BUILDING, 5)
        kind_of(lambda: ids(tables))
        assert looks.count == 1  # both wait for the same one
    finally:
        may_go_on.set()
        tables.close()


@pytest.mark.usefixtures("table")
def test_an_index_that_was_removed_during_its_refresh_leaves_nothing_on_the_disk(
    tmp_path: Path, tables: IndexedTables, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refresh has looked at the table, and then nobody asked for so long that the index went."""
    ids(tables)
    looked, go_on = threading.Event(), threading.Event()

    def slow(target: TableTarget) -> Any:
        seen = look(target)
        looked.set()
        assert go_on.wait(30)
        return seen

    monkeypatch.setattr(indexed, "look", slow)
    clock.now = 4
    (entry,) = tables._entries.values()
    refresh = tables._refresh(entry)
    assert looked.wait(30)

    clock.now = 1000
    tables.housekeeping()
    go_on.set()
    refresh.result(30)

    assert not list((tmp_path / "indexes").glob("*.db*"))
