"""`lethe.scan` returns the rows that a plain filter would, at the head, a snapshot or a time."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lethe
import pyarrow as pa
import pytest
from lethe import ledger_store
from lethe.base.errors import InputError
from lethe.files.increment import SnapshotFiles
from lethe.iceberg.facts import data_files, observe
from lethe.iceberg.snapshot_files import SnapshotView
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table import Table

from tests.support.tables import delete_by_equality, head, in_days, kinds, partitioned, revert, rows, values


def test_tombstoned_rows_are_left_out_of_files_that_hold_none_some_or_nothing_else(table: Table) -> None:
    table.append(rows("A", "A", start=0))
    table.append(rows("A", "B", "C", start=10))
    table.append(rows("D", start=20))
    revert(table, "A", "C")

    assert values(lethe.scan("lite.air.flights")) == [11, 20]


def test_a_row_without_a_batch_id_is_always_there(table: Table) -> None:
    table.append(rows("A", None, "A"))
    table.append(rows(None, start=5))
    revert(table, "A")

    assert values(lethe.scan(table)) == [1, 5]


@pytest.mark.parametrize(
    ("arguments", "is_read"),
    [
        ({}, False),
        ({"columns": ["v"]}, False),
        ({"filter": "v = 20"}, False),
        ({"filter": "v = 20", "columns": ["v"]}, False),
        ({"filter": "batch_id = 'A'"}, False),
        ({"filter": "batch_id = 'B'"}, True),
        ({"filter": "batch_id = 'B' or v = 20"}, False),
        ({"filter": "batch_id = 'A' and v = 20"}, False),
        ({"filter": "batch_id is null"}, True),
    ],
)
def test_a_read_is_refused_if_deletes_by_values_may_hide_rows_of_it(
    table: Table, arguments: dict[str, Any], is_read: bool
) -> None:
    """The deletes hide the rows of batch A. Their file has another column, whose value says nothing of the deleted rows."""
    table.append(rows("A", "A", "B", start=19))
    delete_by_equality(table, rows("A", start=7), "batch_id")

    if is_read:
        assert values(lethe.scan(table, **arguments)) == ([21] if "B" in arguments["filter"] else [])
        return
    with pytest.raises(InputError) as refused:
        lethe.scan(table, **arguments).to_arrow()
    assert refused.value.reason == "EqualityDeletes"


def test_a_file_of_only_tombstoned_rows_is_not_even_opened(table: Table) -> None:
    table.append(rows("A", "A"))
    table.append(rows("B", start=5))
    facts = observe(table, "batch_id")
    (whole,) = [f for f in data_files(table, facts.head_id, facts.batch_field_id or 0) if f.upper == "A"]
    revert(table, "A")
    Path(whole.path.removeprefix("file://")).unlink()

    assert values(lethe.scan(table)) == [5]


def test_bounds_that_are_cut_within_a_character_prove_nothing(table: Table) -> None:
    for n, id in enumerate(("ä", "é")):
        (file,) = _dataframe_to_data_files(table.metadata, rows(id, start=n), table.io)
        field_id = table.schema().find_field("batch_id").field_id
        file.lower_bounds[field_id], file.upper_bounds[field_id] = "ä".encode()[:1], "ä".encode()[:1] + b"\xff"
        with table.transaction() as change, change.update_snapshot().fast_append() as append:
            append.append_data_file(file)
    assert values(lethe.scan(table)) == [0, 1]

    revert(table, "ä")

    assert values(lethe.scan(table)) == [1]
    assert values(lethe.scan(table, filter="batch_id = 'é'")) == [1]
    assert lethe.scan(table, filter="batch_id = 'ä'").count() == 0


def test_the_past_is_read_with_the_ledger_of_its_own_time(table: Table) -> None:
    """At a snapshot, or a time: the reverted rows were there then, and stay there for whoever looks back."""
    table.append(rows("A", "B"))
    before = table.current_snapshot()
    revert(table, "A")
    reverted = table.current_snapshot()
    table.append(rows("A", start=5))  # a writer that knows no ledger: the tombstone holds for what comes later, too
    assert before is not None
    assert reverted is not None

    assert values(lethe.scan(table, snapshot_id=before.snapshot_id)) == [0, 1]
    assert values(lethe.scan(table, snapshot_id=reverted.snapshot_id)) == [1]
    assert values(lethe.scan(table)) == [1]
    assert values(lethe.scan(table, as_of=datetime.fromtimestamp(before.timestamp_ms / 1000, UTC))) == [0, 1]
    assert values(lethe.scan(table, as_of=datetime.now(UTC))) == [1]


@pytest.mark.parametrize(
    ("columns", "filter", "wanted"),
    [
        (["v"], None, [{"v": 1}, {"v": 2}]),
        (["batch_id"], "v >= 2", [{"batch_id": "C"}]),
        (["v"], "batch_id = 'A'", []),
        (None, "batch_id = 'B'", [{"v": 1, "batch_id": "B"}]),
        (["batch_id", "v"], "v < 2", [{"batch_id": "B", "v": 1}]),
    ],
)
def test_columns_and_rows_may_be_chosen(
    table: Table, columns: Sequence[str] | None, filter: str | None, wanted: list[dict[str, Any]]
) -> None:
    """The batch column is needed for the tombstones and returned only when asked for."""
    table.append(rows("A", "B", "C"))
    revert(table, "A")

    found = lethe.scan(table, columns=columns, filter=filter).to_arrow()

    assert found.to_pylist() == wanted
    assert found.column_names == (list(columns) if columns else ["v", "batch_id"])


def test_an_empty_table_has_its_columns_and_no_rows(table: Table) -> None:
    assert lethe.scan(table).to_arrow().column_names == ["v", "batch_id"]
    assert lethe.scan(table, columns=["v"]).to_arrow().column_names == ["v"]
    assert values(lethe.scan(table)) == []


def test_a_table_that_lethe_never_saw_is_read_as_it_is(catalog: Catalog) -> None:
    other = catalog.create_table("air.other", pa.schema([("v", pa.int64())]))
    other.append(pa.table({"v": [1, 2]}))
    first = head(other)
    other.append(pa.table({"v": [3]}))

    assert values(lethe.scan("air.other", catalog=catalog)) == [1, 2, 3]
    assert values(lethe.scan(other, since=first)) == [3]
    assert values(lethe.scan(other, since=first, rows="deleted")) == []


def test_a_renamed_batch_column_still_hides_its_rows(table: Table) -> None:
    table.append(rows("A", "B"))
    field = table.schema().find_field("batch_id").field_id
    with table.transaction() as transaction:
        transaction.set_properties({"lethe.batch-column-id": str(field)})
    revert(table, "A")
    with table.update_schema() as update:
        update.rename_column("batch_id", "load")

    assert lethe.scan(table).to_arrow().to_pylist() == [{"v": 1, "load": "B"}]


def test_a_scan_does_not_change_when_the_table_does(table: Table, catalog: Catalog) -> None:
    table.append(rows("A", "B"))
    scan = lethe.scan(table)
    revert(catalog.load_table("air.flights"), "A")

    assert values(scan) == [0, 1]
    assert values(lethe.scan("air.flights", catalog=catalog)) == [1]


NOW = datetime.now(UTC)
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown snapshot": ({"snapshot_id": 5}, "SnapshotNotFound"),
    "a snapshot and a time": ({"snapshot_id": 5, "as_of": NOW}, "InvalidRead"),
    "a time without a zone": ({"as_of": NOW.replace(tzinfo=None)}, "InvalidRead"),
    "a time before the table": ({"as_of": NOW - timedelta(days=9)}, "SnapshotNotFound"),
    "a whole table and an increment": ({"since": 1, "snapshot_id": 1}, "InvalidRead"),
    "a time and an increment": ({"since": 1, "as_of": NOW}, "InvalidRead"),
    "an end without a beginning": ({"until": 1}, "InvalidRead"),
    "rows without a beginning": ({"rows": "deleted"}, "InvalidRead"),
    "an unknown kind of rows": ({"since": NOW + timedelta(days=1), "rows": "changed"}, "InvalidRead"),
    "an increment since an unknown snapshot": ({"since": 5}, "SnapshotNotFound"),
    "an increment since a time without a zone": ({"since": NOW.replace(tzinfo=None)}, "InvalidRead"),
    "an increment since a time before the table": ({"since": NOW - timedelta(days=9)}, "SnapshotNotFound"),
}


@pytest.mark.parametrize(("how", "reason"), WRONG.values(), ids=WRONG)
def test_a_read_that_means_nothing_is_refused(table: Table, how: dict[str, Any], reason: str) -> None:
    table.append(rows("A"))

    with pytest.raises(InputError) as refused:
        lethe.scan(table, **how)

    assert refused.value.reason == reason


def test_the_past_has_the_columns_of_then_and_the_head_those_of_now(table: Table) -> None:
    table.append(rows("A", "B"))
    before = table.current_snapshot()
    with table.update_schema() as update:
        update.rename_column("v", "w")
    assert before is not None

    assert lethe.scan(table).to_arrow().column_names == ["w", "batch_id"]
    assert lethe.scan(table, snapshot_id=before.snapshot_id).to_arrow().column_names == ["v", "batch_id"]


# --- what is opened ---------------------------------------------------------------------------------------------------


def test_a_filter_that_leaves_no_file_with_a_tombstone_loads_no_tombstone(table: Table, opened: list[str]) -> None:
    table.append(rows("A", "B"))
    table.append(rows("K", "L", start=10))
    revert(table, "A")
    opened.clear()

    assert values(lethe.scan(table, filter="v >= 10")) == [10, 11]
    assert kinds(opened) == {"roots": 1, "chunks": 0, "data": 2}  # the rows are read once, and counted once

    opened.clear()
    assert lethe.scan(table, filter="v < 10").to_arrow()["v"].to_pylist() == [1]
    assert kinds(opened) == {"roots": 1, "chunks": 1, "data": 1}


def test_counting_opens_only_files_that_may_hold_a_tombstone(table: Table, opened: list[str]) -> None:
    table.append(rows("A", "B"))
    table.append(rows("K", "L", "M", start=10))
    revert(table, "A")
    opened.clear()

    assert lethe.scan(table).count() == 4
    assert kinds(opened)["data"] == 1


def test_a_tombstone_that_knows_its_partitions_costs_the_other_partitions_nothing(
    catalog: Catalog, opened: list[str]
) -> None:
    """Both files have the batch between their bounds; in one of them nobody remembers it."""
    table = partitioned(catalog)
    table.append(in_days("A", "B", "C", day=1))
    table.append(in_days("A", "C", day=2, start=10))
    revert(table, "B", partitions=("1/[1]",))
    opened.clear()

    scan = lethe.scan(table)

    assert scan.count() == 4
    assert kinds(opened)["data"] == 1
    assert values(scan) == [0, 2, 10, 11]


def test_rows_that_another_writer_adds_to_a_partition_without_a_record_of_the_batch_stay_hidden(
    catalog: Catalog,
) -> None:
    table = partitioned(catalog)
    table.append(in_days("A", "B", "C", day=1))
    revert(table, "B", partitions=("1/[1]",))
    table.append(in_days("A", "B", "C", day=2, start=10))

    assert values(lethe.scan(table)) == [0, 2, 10, 12]


def test_a_filter_on_an_old_snapshot_uses_its_column_names(table: Table) -> None:
    table.append(rows("A", "B"))
    before = table.current_snapshot()
    with table.update_schema() as update:
        update.rename_column("v", "w")
    assert before is not None

    assert values(lethe.scan(table, snapshot_id=before.snapshot_id, filter="v > 0")) == [1]
    assert lethe.scan(table, filter="w > 0").to_arrow()["w"].to_pylist() == [1]


def test_rows_come_batch_by_batch_for_tables_that_do_not_fit_into_memory(table: Table) -> None:
    for n in range(20):
        table.append(rows("A", f"B{n:02d}", start=10 * n))
    revert(table, "A", "B07")

    found = [v for b in lethe.scan(table, columns=["v"]).to_batches() for v in b.column("v").to_pylist()]

    assert sorted(found) == [10 * n + 1 for n in range(20) if n != 7]


def test_a_stream_has_one_schema_and_can_be_read_once(table: Table) -> None:
    table.append(rows("A", "B", None))
    table.append(rows("C", start=10))
    revert(table, "A")

    reader = lethe.scan(table, columns=["batch_id", "v"]).to_reader()

    assert reader.schema.names == ["batch_id", "v"]
    assert sorted(reader.read_all()["v"].to_pylist()) == [1, 2, 10]
    assert reader.read_all().num_rows == 0
    assert lethe.scan(table, filter="v > 99").to_reader().read_all().num_rows == 0


def test_deletes_of_other_engines_apply_as_well(table: Table) -> None:
    """PyIceberg rewrites files to delete; Spark's position deletes are tested with Spark."""
    table.append(rows("A", "B", "C"))
    revert(table, "A")
    table.delete("v = 1")

    assert values(lethe.scan(table)) == [2]


def test_when_snapshots_between_the_ledger_and_the_one_read_are_gone_any_file_may_be_another_writers(
    table: Table,
) -> None:
    """What they added cannot be told from the rest, so that no partition rules a file out."""
    table.append(rows("A"))
    revert(table, "A")
    table.append(rows("B"))
    theirs = head(table)
    facts = observe(table, "batch_id")
    whole = ledger_store.load(table.io, facts, theirs).resolution
    lens = SnapshotView.on(table, facts.batch_field_id)

    added = lens.foreign(theirs, whole, facts.snapshots)
    assert added is not None
    assert [f.lower for f in lens.bounds(SnapshotFiles.LIVE, theirs) if f.path in added] == ["B"]
    assert lens.foreign(theirs, replace(whole, carrier_id=1), facts.snapshots) is None
    assert lens.foreign(theirs, replace(whole, bare=()), facts.snapshots) == frozenset()
