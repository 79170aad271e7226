"""A ledger after a delta, and its own snapshot's id filled in by whoever reads it."""

from dataclasses import replace
from datetime import timedelta

import pytest
from lethe.ledger.ledger import (
    BatchState,
    Delta,
    Ledger,
    RequestEntry,
    apply,
    counted,
    resolve_delta,
    settled_batch,
    settled_request,
)

from tests.support.builders import NOW, RUN, a_batch, a_carrier, a_ledger, a_request_entry, a_tombstone, ago, on_files


def test_apply_adds_removes_and_sets_and_leaves_the_ledger_before_as_it_was() -> None:
    before = a_ledger("A", "B", batches=[a_batch("A"), a_batch("B")], version=4)
    delta = Delta(
        "run-5",
        add_tombstones=(a_tombstone("C"),),
        remove_tombstones=frozenset({(7, "A")}),
        set_batches=(a_batch("B", BatchState.REVERTED), a_batch("D")),
        set_requests=(a_request_entry("ns/r/1"),),
    )

    after = apply(before, delta, (a_carrier(3, 4),))

    assert (after.version, after.pending_run) == (5, "run-5")
    assert after.ids(7) == {"B", "C"}
    assert {i: b.state for i, b in after.batches.items()} == {"A": "promoted", "B": "reverted", "D": "promoted"}
    assert set(after.requests) == {"ns/r/1"}
    assert after.carriers == (a_carrier(3, 4),)
    assert before == a_ledger("A", "B", batches=[a_batch("A"), a_batch("B")], version=4)


def test_a_tombstone_that_one_delta_removes_and_adds_is_active_afterwards() -> None:
    """A vacuum that purges A on a head whose bare commits brought A in again must end with A hidden."""
    again = a_tombstone("A", restatements=["again"])

    after = apply(a_ledger("A"), Delta(RUN, add_tombstones=(again,), remove_tombstones=frozenset({(7, "A")})))

    assert dict(after.tombstones) == {(7, "A"): again}


def test_apply_merges_a_tombstone_that_is_active_already() -> None:
    after = apply(a_ledger("A"), Delta(RUN, add_tombstones=(a_tombstone("A", restatements=["r2"]),)))

    assert after.tombstones[(7, "A")].restatements == ("ns/r/1", "r2")


def test_ids_are_those_of_one_column_only() -> None:
    ledger = a_ledger("A", a_tombstone("B", namespace=8))

    assert (ledger.ids(7), ledger.ids(8), ledger.ids(9)) == ({"A"}, {"B"}, frozenset())


def test_a_batch_taken_back_keeps_the_snapshot_that_promoted_it() -> None:
    entry = a_batch("A", BatchState.REVERTED, snapshot_id=11)

    assert settled_batch(entry, 22).snapshot_id == 11
    assert settled_batch(replace(entry, snapshot_id=None), 22).snapshot_id == 22


def test_a_refused_request_has_no_snapshot_to_be_filled_in() -> None:
    refused = RequestEntry("k", RUN, NOW, {"succeeded": False})

    assert settled_request(refused, 22) == refused
    assert settled_request(a_request_entry("k"), 22).result["snapshotId"] == 22


COUNTS = [
    (a_ledger(), Delta(RUN), (0, 0, 0)),
    (a_ledger(), Delta(RUN, add_tombstones=(a_tombstone("A"), a_tombstone("B"))), (2, 0, 2)),
    (a_ledger("A", "B"), Delta(RUN, (a_tombstone("C"),), frozenset({(7, "A")})), (1, 1, 2)),
    (a_ledger("A"), Delta(RUN, remove_tombstones=frozenset({(7, "A")})), (0, 1, 0)),
    (a_ledger("A"), Delta(RUN, remove_tombstones=frozenset({(7, "Z")})), (0, 0, 1)),
    (a_ledger("A"), Delta(RUN, (a_tombstone("A", restatements=["r2"]),)), (0, 0, 1)),
    (a_ledger("A"), Delta(RUN, (a_tombstone("A"),), frozenset({(7, "A")})), (0, 0, 1)),
]


@pytest.mark.parametrize(("before", "delta", "counts"), COUNTS)
def test_tombstones_are_counted_as_active_before_and_after(
    before: Ledger, delta: Delta, counts: tuple[int, int, int]
) -> None:
    made = resolve_delta(before, delta)

    assert (made.added, made.deleted, made.statistics.tombstones) == counts


def test_the_statistics_after_a_delta_equal_a_new_count() -> None:
    before = a_ledger(
        a_tombstone("A", added_on=ago(days=3), evict_by=NOW),
        a_tombstone("B", added_on=ago(days=2), evict_by=NOW + timedelta(days=1)),
        batches=[a_batch("A", BatchState.REVERTED), a_batch("B", BatchState.REVERTED), a_batch("C")],
    )
    delta = Delta(
        RUN,
        add_tombstones=(a_tombstone("C", added_on=NOW),),
        remove_tombstones=frozenset({(7, "A")}),
        set_batches=(a_batch("C", BatchState.REPLACED), a_batch("D")),
        forget_batches=frozenset({"A"}),
    )

    after = apply(before, delta)

    assert after.statistics == counted(after)
    assert (after.oldest_added_on, after.next_evict_by) == (ago(days=2), NOW + timedelta(days=1))
    assert after.states == {"reverted": 1, "replaced": 1, "promoted": 1}


def test_tombstones_are_found_by_column_and_by_range() -> None:
    ledger = a_ledger("A", "B", "C", a_tombstone("B", namespace=8))

    assert [t.id for t in ledger.tombstones_within(7, [("B", None)])] == ["B", "C"]
    assert [t.id for t in ledger.tombstones_within(7, [(None, "A"), ("C", "C")])] == ["A", "C"]
    assert ledger.tombstones_within(7, []) == []


def test_a_delta_of_nothing_is_empty() -> None:
    assert Delta(RUN).is_empty
    assert not Delta(RUN, remove_tombstones=frozenset({(7, "A")})).is_empty


# --- rows that tombstones hide ---------------------------------------------------------------------------------------


def hidden(ledger: Ledger) -> int | None:
    return ledger.statistics.tombstoned_rows


def test_the_rows_that_tombstones_hide_follow_what_is_taken_back_undone_and_purged() -> None:
    """An id that was never promoted, or whose rows nobody counted, adds none."""
    promoted = (a_batch("A", rows=3), a_batch("B", rows=5), a_batch("C", rows=None))
    reverted = (a_batch("A", BatchState.REVERTED, rows=3), a_batch("B", BatchState.REVERTED, rows=5))
    ledger = a_ledger(batches=promoted)

    taken_back = apply(ledger, Delta(RUN, tuple(map(a_tombstone, "ABCX")), set_batches=reverted))
    undone = apply(taken_back, Delta(RUN, remove_tombstones=frozenset({(7, "A")}), set_batches=promoted[:1]))
    purged = apply(undone, Delta(RUN, remove_tombstones=frozenset({(7, "B")})))

    assert [hidden(x) for x in (ledger, taken_back, undone, purged)] == [0, 8, 5, 0]
    assert all(hidden(x) == counted(x).tombstoned_rows for x in (taken_back, undone, purged))


def test_a_tombstone_that_is_set_once_more_hides_no_more_rows() -> None:
    ledger = a_ledger("A", batches=[a_batch("A", BatchState.REVERTED, rows=3)])

    after = apply(ledger, Delta(RUN, (a_tombstone("A", restatements=["r2"]),)))

    assert hidden(after) == 3


def test_only_the_entries_that_a_change_names_are_read() -> None:
    ledger = on_files(a_ledger("A", batches=[a_batch("A", rows=3), a_batch("B", rows=5), a_batch("C")]))

    made = resolve_delta(ledger, Delta(RUN, (a_tombstone("B", added_on=NOW),)))

    assert made.statistics.tombstoned_rows == 8


def test_a_ledger_without_counts_is_counted_again() -> None:
    """Such as one of before they were counted, or of another writer."""
    ledger = a_ledger("A", batches=[a_batch("A", rows=3), a_batch("B", rows=5)])
    uncounted = replace(ledger, recorded=replace(counted(ledger), tombstoned_rows=None))

    assert hidden(uncounted) is None
    assert hidden(apply(uncounted, Delta(RUN, (a_tombstone("B"),)))) == 8
