"""A commit that knows no ledger cannot bring rows of a batch taken back to light for longer than our next commit."""

from lethe.ledger.ledger import BatchState
from lethe.plan.rearm import rearmed

from tests.builders import FIELD, NOW, RUN, a_batch, a_file, a_ledger, a_tombstone

GONE = [
    a_batch("A", BatchState.REVERTED, restatement="ns/r/1"),
    a_batch("B", BatchState.REPLACED, restatement="ns/r/2"),
    a_batch("C"),
    a_batch("D", BatchState.REFUSED),
]


def ids(*tombstones: object) -> list[str]:
    return [t.id for t in tombstones]  # type: ignore[attr-defined]


def test_rows_of_a_reverted_batch_that_arrive_after_its_vacuum_are_hidden_again() -> None:
    found = rearmed(a_ledger(batches=GONE), [a_file("A", "Z")], FIELD, RUN, NOW)

    assert ids(*found) == ["A", "B"]
    assert [t.restatements for t in found] == [("ns/r/1",), ("ns/r/2",)]
    assert {(t.namespace, t.added_on, t.meta["run"]) for t in found} == {(FIELD, NOW, RUN)}
    assert all("without a ledger" in t.meta["reason"] for t in found)


def test_a_batch_that_is_tombstoned_now_needs_no_second_tombstone() -> None:
    assert ids(*rearmed(a_ledger("A", batches=GONE), [a_file("A", "Z")], FIELD, RUN, NOW)) == ["B"]


def test_a_tombstone_of_another_column_does_not_count_as_one() -> None:
    ledger = a_ledger(a_tombstone("A", namespace=FIELD + 1), batches=GONE)

    assert ids(*rearmed(ledger, [a_file("A")], FIELD, RUN, NOW)) == ["A"]


def test_files_that_cannot_hold_the_batch_bring_nothing_back() -> None:
    assert rearmed(a_ledger(batches=GONE), [a_file("C", "Z")], FIELD, RUN, NOW) == ()
    assert rearmed(a_ledger(batches=GONE), [], FIELD, RUN, NOW) == ()


def test_a_file_without_bounds_might_hold_every_one() -> None:
    assert ids(*rearmed(a_ledger(batches=GONE), [a_file(None)], FIELD, RUN, NOW)) == ["A", "B"]


def test_an_unknown_id_that_was_reverted_is_armed_too() -> None:
    """It was restated before anybody had seen it; its rows come by a foreign append."""
    ledger = a_ledger(batches=[a_batch("X", BatchState.REVERTED, rows=None, restatement=None)])

    (found,) = rearmed(ledger, [a_file("X")], FIELD, RUN, NOW)

    assert (found.id, found.restatements) == ("X", ())
