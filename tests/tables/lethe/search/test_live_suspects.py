"""Looking at a head again costs what came since, and says the same as looking at all of it."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from lethe.iceberg.column_path import BatchColumn
from lethe.iceberg.facts import data_files, observe
from lethe.ledger.tombstone import META_PARTITIONS, Tombstone
from lethe.search.candidates import Head, LiveSuspects
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from tests.support.tables import SCHEMA, head, in_days, new_table, partitioned, rows, tombstone, vacuum


@dataclass
class Counting:
    """PyIceberg's FileIO; remembers what was opened."""

    io: Any
    opened: list[str] = field(default_factory=list)

    def new_input(self, location: str) -> Any:
        self.opened.append(location)
        return self.io.new_input(location)


def a_head(table: Table, io: Any = None, foreign: Collection[int] | None = ()) -> Head:
    table.refresh()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    field_id = observe(table, "batch_id").batch_field_id
    assert field_id is not None
    unknown = None if foreign is None else frozenset(foreign)
    column = BatchColumn.of(table.specs(), field_id)
    return Head(io or table.io, snapshot.snapshot_id, snapshot.manifests(table.io), column, unknown)


def observed(table: Table, *tombstones: Tombstone, foreign: Collection[int] | None = ()) -> LiveSuspects:
    live = LiveSuspects(tombstones)
    live.observe(a_head(table, foreign=foreign))
    return live


def held(live: LiveSuspects) -> list[tuple[str | None, str | None, bool]]:
    return sorted((s.bounds.lower, s.bounds.upper, s.all_rows_deleted) for s in live.found.values())  # type: ignore[type-var]


@pytest.fixture
def table(catalog: Catalog) -> Table:
    made = new_table(catalog)
    for batches in (("A", "B"), ("C", "C"), ("D", "E")):
        made.append(rows(*batches))
    return made


def test_files_that_might_hold_tombstoned_rows_are_distinguished_from_files_that_hold_only_such_rows(
    table: Table,
) -> None:
    live = observed(table, *(tombstone(table, i) for i in "BC"))

    assert held(live) == [("A", "B", False), ("C", "C", True)]
    assert live.sort_drift == 1.0


def test_a_second_observation_reads_only_the_new_manifests(table: Table) -> None:
    live = observed(table, tombstone(table, "B"))
    table.append(rows("A", "C"))
    io = Counting(table.io)

    live.observe(a_head(table, io))

    assert len(io.opened) == 1
    assert held(live) == [("A", "B", False), ("A", "C", False)]
    io.opened.clear()
    live.observe(a_head(table, io))
    assert not io.opened


def test_files_that_were_rewritten_under_it_are_gone_and_those_that_stand_for_them_are_found(table: Table) -> None:
    live = observed(table, *(tombstone(table, i) for i in "BD"))
    before = set(live.found)
    vacuum(table, "B")

    live.observe(a_head(table))

    assert held(live) == [("D", "E", False)]
    assert held(live) == held(observed(table, *(tombstone(table, i) for i in "BD")))
    assert set(live.found) < before


def test_a_tombstone_that_was_taken_back_no_longer_has_files_dropped_for_it(table: Table) -> None:
    live = observed(table, *(tombstone(table, i) for i in "BC"))

    live.use([tombstone(table, "B")])

    assert held(live) == [("A", "B", False)]


@pytest.fixture
def days(catalog: Catalog) -> Table:
    made = partitioned(catalog)
    for day in (1, 2):
        made.append(in_days("A", "C", day=day))
    return made


def in_partition(table: Table, *partitions: str) -> Tombstone:
    return tombstone(table, "B", {META_PARTITIONS: "\n".join(partitions)})


def of_days(live: LiveSuspects) -> list[str | None]:
    return sorted(s.bounds.partition or "" for s in live.found.values())


def test_files_of_partitions_in_which_a_batch_has_no_rows_are_none_of_its_business(days: Table) -> None:
    assert of_days(observed(days, in_partition(days, "1/[1]"))) == ["1/[1]"]


def test_files_that_no_ledger_has_taken_note_of_prove_nothing_by_their_partition(days: Table) -> None:
    """Another writer may have put rows of an old batch anywhere."""
    live = observed(days, in_partition(days, "1/[1]"), foreign={head(days)})

    assert of_days(live) == ["", "1/[1]"]
    assert of_days(observed(days, in_partition(days, "1/[1]"), foreign=None)) == ["", ""]


def test_if_a_batch_is_recorded_in_more_partitions_all_files_are_observed_again(days: Table) -> None:
    """Else a file that was passed over before could keep rows of which the last tombstone ends."""
    live = observed(days, in_partition(days, "1/[1]"))

    live.use([in_partition(days, "1/[1]", "1/[2]")])
    live.observe(a_head(days))

    assert of_days(live) == ["1/[1]", "1/[2]"]


def test_small_files_that_hold_nothing_are_kept_apart(table: Table) -> None:
    live = LiveSuspects([tombstone(table, "B")], small_bytes=10**6)

    live.observe(a_head(table))

    assert sorted(s.bounds.lower or "" for s in live.small.values()) == ["C", "D"]


@pytest.mark.parametrize("kinds", [(pa.float64(), pa.int32()), (pa.int32(), pa.float64())])
def test_a_number_of_one_table_is_no_equal_number_of_another_type_in_another_table(
    catalog: Catalog, kinds: tuple[pa.DataType, pa.DataType]
) -> None:
    """One process reads both. A partition of doubles has no text, so any partition may have its rows."""
    number = 4711 + kinds.index(pa.int32())  # no other test has this partition
    texts: list[str | None] = []
    for n, kind in enumerate(kinds):
        value = number if kind == pa.int32() else float(number)
        made = new_table(catalog, f"air.of_{n}", SCHEMA.append(pa.field("day", kind)))
        with made.update_spec() as change:
            change.add_identity("day")
        made.append(rows("A").append_column("day", pa.array([value], kind)))
        (file,) = data_files(made, head(made), 2)
        texts.append(file.partition)

    assert texts == [f"1/[{number}]" if kind == pa.int32() else None for kind in kinds]
