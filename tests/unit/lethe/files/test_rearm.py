"""A commit that knows no ledger cannot bring rows of a batch taken back to light for longer than our next commit."""

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta

from lethe.contract.settings import NativeDeletes
from lethe.files.bounds import FileBounds
from lethe.files.native_deletes import AddedFiles, restore_tombstones
from lethe.ledger.ledger import BatchState, Delta, Ledger, apply
from lethe.ledger.tombstone import META_PURGED_BY, Mask, Tombstone

from tests.support.builders import FIELD, NOW, RUN, a_batch, a_file, a_ledger, a_tombstone

GONE = [
    a_batch("A", BatchState.REVERTED, restatement="ns/r/1"),
    a_batch("B", BatchState.REPLACED, restatement="ns/r/2"),
    a_batch("C"),
    a_batch("D", BatchState.REFUSED),
    a_batch("E", BatchState.ERASED, restatement="ns/r/3"),
]
NOTHING = Delta(RUN)


def armed(ledger: Ledger, files: Collection[FileBounds], only_moved: bool = False) -> tuple[Tombstone, ...]:
    """The tombstones that an empty change gets."""
    return restore_tombstones(ledger, NOTHING, AddedFiles(files, FIELD, only_moved), NOW).add_tombstones


def ids(tombstones: Collection[Tombstone]) -> list[str]:
    return [t.id for t in tombstones]


def test_rows_of_a_batch_taken_back_that_arrive_after_its_vacuum_are_hidden_again() -> None:
    found = armed(a_ledger(batches=GONE), [a_file("A", "Z")])

    assert ids(found) == ["A", "B", "E"]
    assert [t.restatements for t in found] == [("ns/r/1",), ("ns/r/2",), ("ns/r/3",)]
    assert {(t.namespace, t.added_on, t.meta["run"]) for t in found} == {(FIELD, NOW, RUN)}
    assert all("without a ledger" in t.meta["reason"] for t in found)
    assert all(META_PURGED_BY in t.meta for t in found)  # the rows of before are gone: nobody can undo the restatement


def test_a_tombstone_that_comes_back_has_the_deadline_that_its_batch_had() -> None:
    due = NOW + timedelta(days=3)
    ledger = a_ledger(batches=[a_batch("A", BatchState.REVERTED, evict_by=due)])

    (found,) = armed(ledger, [a_file("A")])

    assert found.evict_by == due


def test_a_batch_that_is_tombstoned_now_needs_no_second_tombstone() -> None:
    assert ids(armed(a_ledger("A", batches=GONE), [a_file("A", "Z")])) == ["B", "E"]


def test_a_tombstone_of_another_column_does_not_count_as_one() -> None:
    ledger = a_ledger(a_tombstone("A", namespace=FIELD + 1), batches=GONE)

    assert ids(armed(ledger, [a_file("A")])) == ["A"]


def test_files_that_cannot_hold_the_batch_bring_nothing_back() -> None:
    ledger = a_ledger(batches=GONE)

    assert restore_tombstones(ledger, NOTHING, AddedFiles([a_file("F", "Z")], FIELD), NOW) == NOTHING
    assert restore_tombstones(ledger, NOTHING, AddedFiles([], FIELD), NOW) == NOTHING


def test_a_file_without_bounds_might_hold_every_one() -> None:
    assert ids(armed(a_ledger(batches=GONE), [a_file(None)])) == ["A", "B", "E"]


def test_an_unknown_id_that_was_reverted_is_armed_too() -> None:
    """It was restated before anybody had seen it; its rows come by a foreign append."""
    ledger = a_ledger(batches=[a_batch("X", BatchState.REVERTED, rows=None, restatement=None)])

    (found,) = armed(ledger, [a_file("X")])

    assert (found.id, found.restatements) == ("X", ())


def test_a_compaction_brings_no_rows_that_were_not_there() -> None:
    assert armed(a_ledger(batches=GONE), [a_file("A", "Z")], only_moved=True) == ()


# --- partitions -----------------------------------------------------------------------------------------------------

ONE, TWO = ("0/[1]",), ("0/[1]", "0/[2]")


def in_partition(text: str | None, lower: str = "A", upper: str = "C") -> FileBounds:
    return replace(a_file(lower, upper), partition=text)


def marked(id: str, *partitions: str) -> Tombstone:
    return a_tombstone(id, meta={"partitions": "\n".join(partitions)})


def test_a_mask_is_not_of_rows_that_came_without_a_ledger() -> None:
    """What was masked stays known: an Undo has to lift it. A compaction brings no rows."""
    mask = Mask(NativeDeletes.DELETION_VECTORS, 4)
    ledger = a_ledger(a_tombstone("A").masked(mask), a_tombstone("X").masked(mask), "B")

    (found,) = armed(ledger, [a_file("A", "C")])

    assert (found.id, found.mask) == ("A", replace(mask, whole=False))
    assert apply(ledger, Delta(RUN, add_tombstones=(found,))).tombstones[found.key].mask == replace(mask, whole=False)
    assert armed(ledger, [a_file("A", "C")], only_moved=True) == ()


def test_a_tombstone_and_its_batch_grow_by_the_partitions_that_another_writer_put_such_rows_in() -> None:
    """A reader that asks for day 2 would else not look for it there."""
    ledger = a_ledger(marked("A", *ONE), marked("Z", *ONE), batches=[a_batch("B", partitions=ONE), *GONE[2:]])

    after = apply(ledger, restore_tombstones(ledger, NOTHING, AddedFiles([in_partition("0/[2]")], FIELD), NOW))

    assert {t.id: t.partitions for t in after.tombstones.values()} == {"A": TWO, "Z": ONE}
    assert (after.batches["B"].partitions, after.batches["C"].partitions) == (TWO, None)


def test_a_file_in_a_partition_without_a_text_means_anywhere() -> None:
    ledger = a_ledger(marked("A", *ONE), batches=[a_batch("A", partitions=ONE)])

    after = apply(ledger, restore_tombstones(ledger, NOTHING, AddedFiles([in_partition(None)], FIELD), NOW))

    assert (after.tombstones[(FIELD, "A")].partitions, after.batches["A"].partitions) == (None, None)


def test_partitions_that_are_known_already_change_nothing() -> None:
    ledger = a_ledger(marked("A", *TWO), batches=[a_batch("A", partitions=TWO)])

    assert restore_tombstones(ledger, NOTHING, AddedFiles([in_partition("0/[2]")], FIELD), NOW) == NOTHING


def test_a_revert_planned_on_what_the_ledger_remembers_covers_files_that_it_has_not_seen() -> None:
    """Its tombstone is a copy of the batch's partitions; the file came in between."""
    ledger = a_ledger(batches=[a_batch("A", partitions=ONE)])
    revert = Delta(RUN, (marked("A", *ONE),), set_batches=(a_batch("A", BatchState.REVERTED, partitions=ONE),))

    after = apply(ledger, restore_tombstones(ledger, revert, AddedFiles([in_partition("0/[2]")], FIELD), NOW))

    assert (after.tombstones[(FIELD, "A")].partitions, after.batches["A"].partitions) == (TWO, TWO)
    assert after.batches["A"].state is BatchState.REVERTED


def test_a_second_tombstone_of_a_batch_loses_no_partition_of_either() -> None:
    ledger = a_ledger(marked("A", *ONE))
    second = Delta(RUN, (marked("A", "0/[3]"),))

    after = apply(ledger, restore_tombstones(ledger, second, AddedFiles([in_partition("0/[2]")], FIELD), NOW))

    assert set(after.tombstones[(FIELD, "A")].partitions or ()) == {"0/[1]", "0/[2]", "0/[3]"}


def test_what_a_change_removes_or_forgets_does_not_come_back_by_growing() -> None:
    """An Undo of A while a foreign file might hold A: its rows are to be seen."""
    ledger = a_ledger(marked("A", *ONE), batches=[a_batch("A", BatchState.REVERTED, rows=None, partitions=ONE)])
    undo = Delta(RUN, remove_tombstones=frozenset({(FIELD, "A")}), forget_batches=frozenset({"A"}))

    after = apply(ledger, restore_tombstones(ledger, undo, AddedFiles([in_partition("0/[2]")], FIELD), NOW))

    assert (dict(after.tombstones), dict(after.batches)) == ({}, {})


def test_a_compaction_within_one_partition_spec_leaves_each_row_in_its_partition() -> None:
    """The bounds of its files are wide: taken at their word, every batch would soon be anywhere."""
    ledger = a_ledger(marked("A", *ONE), batches=[a_batch("B", partitions=ONE)])

    assert (
        restore_tombstones(ledger, NOTHING, AddedFiles([in_partition("0/[2]")], FIELD, only_moved=True), NOW) == NOTHING
    )


def test_a_compaction_into_another_partition_spec_moves_rows() -> None:
    ledger = a_ledger(marked("A", *ONE), batches=[a_batch("B", partitions=("0/[1]", "1/[1,7]"))])

    after = apply(
        ledger, restore_tombstones(ledger, NOTHING, AddedFiles([in_partition("1/[1,8]")], FIELD, only_moved=True), NOW)
    )

    assert after.tombstones[(FIELD, "A")].partitions == ("0/[1]", "1/[1,8]")
    assert after.batches["B"].partitions == ("0/[1]", "1/[1,7]", "1/[1,8]")


def test_if_files_can_be_searched_only_batches_that_they_hold_are_deleted_again() -> None:
    """Bounds choose whom to look for: a file of many batches has bounds that allow every batch of years."""
    asked: list[list[str]] = []

    def holds(ids: Collection[str]) -> set[str]:
        asked.append(sorted(ids))
        return {"E"}

    found = restore_tombstones(
        a_ledger(batches=GONE), NOTHING, AddedFiles([a_file("A", "Z")], FIELD, holds=holds), NOW
    ).add_tombstones

    assert (ids(found), asked) == (["E"], [["A", "B", "E"]])
