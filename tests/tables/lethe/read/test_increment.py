"""What came and what went between two snapshots of a real table; what counts as what is tested with the plan."""

from collections import Counter
from datetime import UTC, datetime

import lethe
import pytest
from lethe.base.errors import InputError, LedgerError
from pyiceberg.table import Table

from tests.support.tables import SCHEMA, head, kinds, revert, rows, undo, vacuum, values


def check_every_range(table: Table) -> None:
    """Rows at the end are those at the beginning, plus the appended, minus the deleted."""
    ids: list[int] = []
    at: int | None = head(table)
    while at is not None:
        ids.insert(0, at)
        snapshot = table.snapshot_by_id(at)
        at = snapshot.parent_snapshot_id if snapshot is not None else None
    seen = {i: Counter(values(lethe.scan(table, snapshot_id=i))) for i in ids}
    for n, until in enumerate(ids):
        for since in ids[: n + 1]:
            came = Counter(values(lethe.scan(table, since=since, until=until, rows="appended")))
            went = Counter(values(lethe.scan(table, since=since, until=until, rows="deleted")))
            assert seen[until] + went == seen[since] + came, (ids.index(since), n)


def test_what_was_appended_and_what_was_reverted_after_a_snapshot(table: Table) -> None:
    table.append(rows("A", "B"))
    first = head(table)
    table.append(rows("C", "D", start=10))
    revert(table, "A", "D")

    assert values(lethe.scan(table, since=first)) == [10, 11]
    assert values(lethe.scan(table, since=first, rows="deleted")) == [0, 11]
    assert values(lethe.scan(table, since=head(table))) == []
    assert values(lethe.scan(table, since=head(table), rows="deleted")) == []
    check_every_range(table)


def test_an_increment_ends_at_the_given_snapshot(table: Table) -> None:
    table.append(rows("A"))
    first = head(table)
    table.append(rows("B", start=10))
    second = head(table)
    table.append(rows("C", start=20))
    revert(table, "B")

    assert values(lethe.scan(table, since=first, until=second)) == [10]
    assert values(lethe.scan(table, since=first, until=second, rows="deleted")) == []
    assert values(lethe.scan(table, since=second)) == [20]


def test_moments_mean_the_heads_of_then(table: Table) -> None:
    table.append(rows("A"))
    first = table.current_snapshot()
    table.append(rows("B", start=10))
    assert first is not None
    then = datetime.fromtimestamp(first.timestamp_ms / 1000, UTC)

    assert values(lethe.scan(table, since=then)) == [10]
    assert values(lethe.scan(table, since=then, until=then)) == []
    assert values(lethe.scan(table, since=first.snapshot_id, until=datetime.now(UTC))) == [10]


def test_purged_rows_were_deleted_when_they_were_reverted_not_when_they_were_purged(table: Table) -> None:
    table.append(rows("A", "B", "C"))
    written = head(table)
    revert(table, "A")
    reverted = head(table)
    vacuum(table, "A")

    assert values(lethe.scan(table, since=written, rows="deleted")) == [0]
    assert values(lethe.scan(table, since=reverted, rows="deleted")) == []
    assert values(lethe.scan(table, since=written, until=reverted, rows="deleted")) == [0]
    assert values(lethe.scan(table, since=written)) == []
    check_every_range(table)


def test_a_batch_purged_from_one_file_and_then_from_the_other_is_deleted_once(table: Table) -> None:
    table.append(rows("A", "B"))
    table.append(rows("A", "C", start=10))
    written = head(table)
    revert(table, "A")
    vacuum(table, "A", files_at_most=1, forget=False)
    vacuum(table, "A")

    assert values(lethe.scan(table, since=written, rows="deleted")) == [0, 10]
    check_every_range(table)


def test_rows_seen_again_after_an_undo_count_as_appended(table: Table) -> None:
    table.append(rows("A", "B"))
    revert(table, "A")
    reverted = head(table)
    undo(table, "A")

    assert values(lethe.scan(table, since=reverted)) == [0]
    check_every_range(table)


def test_late_rows_of_a_batch_that_was_taken_back(table: Table) -> None:
    """While it is tombstoned nobody ever sees them; after the purge they are there until a commit arms the tombstone."""
    table.append(rows("A", "B"))
    revert(table, "A")
    reverted = head(table)
    table.append(rows("A", start=10))
    assert values(lethe.scan(table, since=reverted)) == []
    vacuum(table, "A")
    purged = head(table)
    table.append(rows("A", start=20))
    assert values(lethe.scan(table, since=reverted)) == [20]
    revert(table, "A")

    assert values(lethe.scan(table, since=purged)) == [20]
    assert values(lethe.scan(table, since=purged, rows="deleted")) == [20]
    assert values(lethe.scan(table, since=reverted)) == []
    check_every_range(table)


def test_rows_without_a_batch_are_appended_and_never_deleted(table: Table) -> None:
    table.append(rows("A"))
    first = head(table)
    table.append(rows("A", None, start=10))
    revert(table, "A")

    assert values(lethe.scan(table, since=first)) == [10, 11]
    assert values(lethe.scan(table, since=first, rows="deleted")) == [0, 10]
    check_every_range(table)


def test_columns_and_rows_of_an_increment_may_be_chosen(table: Table) -> None:
    table.append(rows("A"))
    first = head(table)
    table.append(rows("B", "C", "D", start=10))
    revert(table, "C")

    found = lethe.scan(table, since=first, rows="deleted", columns=["v"], filter="v > 10").to_arrow()
    assert found.to_pylist() == [{"v": 11}]
    assert lethe.scan(table, since=first, columns=["batch_id"], filter="v > 11").to_arrow().to_pylist() == [
        {"batch_id": "D"}
    ]
    assert lethe.scan(table, since=first, filter="v > 99").to_arrow().column_names == SCHEMA.names


def test_an_increment_has_the_columns_of_its_end(table: Table) -> None:
    table.append(rows("A"))
    first = head(table)
    table.append(rows("B", start=10))
    second = head(table)
    with table.update_schema() as update:
        update.rename_column("v", "w")

    assert lethe.scan(table, since=first, until=second).to_arrow().to_pylist() == [{"v": 10, "batch_id": "B"}]
    assert lethe.scan(table, since=first).to_arrow().to_pylist() == [{"w": 10, "batch_id": "B"}]


def test_only_the_files_that_were_added_or_may_hold_a_new_tombstone_are_opened(table: Table, opened: list[str]) -> None:
    for n, batch in enumerate("ABCDEFGH"):
        table.append(rows(batch, f"{batch}2", start=10 * n))
    before = head(table)
    table.append(rows("X", start=100))
    revert(table, "C", "D2")
    opened.clear()

    came = lethe.scan(table, since=before).to_arrow()
    assert (came["v"].to_pylist(), kinds(opened)["data"]) == ([100], 1)
    opened.clear()
    went = lethe.scan(table, since=before, rows="deleted").to_arrow()
    assert (sorted(went["v"].to_pylist()), kinds(opened)["data"]) == ([20, 31], 2)


def test_an_increment_across_deletes_of_another_writer_is_refused(table: Table) -> None:
    """Its rows are gone without a tombstone; up to it, and from it on, increments work."""
    table.append(rows("A", "B"))
    first = head(table)
    table.append(rows("C", start=10))
    second = head(table)
    table.delete("v = 0")
    deleted = head(table)
    table.append(rows("D", start=20))

    for which in ("appended", "deleted"):
        with pytest.raises(
            InputError, match=f"ForeignChange: lite.air.flights: snapshot {deleted}|ForeignChange"
        ) as refused:
            lethe.scan(table, since=first, rows=which)
        assert str(deleted) in refused.value.message
        assert str(second) in refused.value.message
    assert values(lethe.scan(table, since=first, until=second)) == [10]
    assert values(lethe.scan(table, since=deleted)) == [20]


def test_a_vacuum_file_that_is_gone_stops_the_reading(table: Table) -> None:
    table.append(rows("A", "B"))
    written = head(table)
    revert(table, "A")
    vacuum(table, "A")
    summary = table.snapshot_by_id(head(table))
    assert summary is not None
    assert summary.summary is not None
    uri = summary.summary.additional_properties["tombstone.vacuum.file"]
    table.io.delete(uri)

    with pytest.raises(LedgerError, match="LedgerMissing"):
        lethe.scan(table, since=written, rows="deleted")
