"""Native deletes beside the ledger: what they hide or show again, and tombstones that are restored after a foreign commit."""

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from lethe.base.errors import InputError
from lethe.contract.settings import NativeDeletes
from lethe.files.bounds import FileBounds
from lethe.files.native_deletes import (
    AddedFiles,
    DeletedPositions,
    Masked,
    Masking,
    check_lifted,
    plan_masking,
    plan_positions,
    positions_after,
    restore_tombstones,
    with_masks,
    with_purged,
)
from lethe.ledger.ledger import BatchState, Delta, Ledger, apply
from lethe.ledger.tombstone import META_PURGED_BY, Mask, Tombstone, merge
from pyroaring import FrozenBitMap64

from tests.support.builders import FIELD, NOW, RUN, a_batch, a_file, a_ledger, a_tombstone, on_files

DELETION_VECTORS, POSITION_DELETES = NativeDeletes
WHOLE = Mask(DELETION_VECTORS, 3)


def masked(id: str = "A", mask: Mask = WHOLE) -> Tombstone:
    return a_tombstone(id).masked(mask)


def adding(*tombstones: Tombstone | str) -> Delta:
    return Delta(RUN, add_tombstones=tuple(a_tombstone(t) if isinstance(t, str) else t for t in tombstones))


def test_a_tombstone_set_again_without_a_mask_may_hide_rows_that_came_since() -> None:
    """A newer mask counts; what was masked stays known, for an Undo has to lift it."""
    assert merge(masked(), a_tombstone()).mask == replace(WHOLE, whole=False)
    assert merge(masked(), masked(mask=Mask(DELETION_VECTORS, 4))).mask == Mask(DELETION_VECTORS, 4)
    assert merge(a_tombstone(), masked()).mask == WHOLE
    assert merge(a_tombstone(), a_tombstone()).mask is None


def test_a_change_masks_what_it_takes_back_and_lifts_what_it_shows_again() -> None:
    """Of a ledger of which everything is masked, nothing else is looked at."""
    ledger = on_files(a_ledger(masked("A"), masked("B"), masked("C")))
    delta = replace(adding("D"), remove_tombstones=frozenset({(FIELD, "A")}))

    masking = plan_masking(ledger, delta, FIELD, DELETION_VECTORS, all_masked=True)

    assert (masking.mask.keys(), masking.lift.keys(), masking.existing_masks) == ({"D"}, {"A"}, {})


def test_what_others_left_unmasked_is_masked_along() -> None:
    """Tombstones from before the mode was set, and those that rows came for since; not those of another column."""
    ledger = a_ledger(masked("A"), "B", masked("C", replace(WHOLE, whole=False)), a_tombstone("Z", namespace=99))

    masking = plan_masking(ledger, adding("D"), FIELD, DELETION_VECTORS, all_masked=False)

    assert masking.mask.keys() == {"B", "C", "D"}
    assert masking.existing_masks == {"C": replace(WHOLE, whole=False)}


def test_what_is_undone_and_taken_back_again_in_one_change_stays_masked() -> None:
    ledger = a_ledger(masked("A"))
    delta = replace(adding("A"), remove_tombstones=frozenset({(FIELD, "A")}))

    masking = plan_masking(ledger, delta, FIELD, DELETION_VECTORS, all_masked=True)

    assert (masking.mask.keys(), masking.lift, masking.existing_masks) == ({"A"}, {}, {"A": WHOLE})


def test_tombstones_say_how_they_are_masked_and_whether_they_can_be_undone() -> None:
    ledger = a_ledger("old", masked("again", replace(WHOLE, whole=False)))
    delta = adding("mixed", "beside", "unsure", "unknown", a_tombstone("other", namespace=99))
    masking = plan_masking(ledger, delta, FIELD, DELETION_VECTORS, all_masked=False)
    found = Masked({"mixed": 3, "old": 1, "again": 5}, {"beside"}, {"unsure"})

    after = apply(ledger, with_masks(delta, masking, found, DELETION_VECTORS)).tombstones

    masks = {t.id: t.mask for t in after.values()}
    assert masks == {
        "mixed": Mask(DELETION_VECTORS, 3),
        "beside": Mask(DELETION_VECTORS, 0),
        "unsure": Mask(DELETION_VECTORS, 0, whole=False),
        "unknown": Mask(DELETION_VECTORS, 0),
        "old": Mask(DELETION_VECTORS, 1),
        "again": Mask(DELETION_VECTORS, 5),
        "other": None,
    }
    assert {t.id for t in after.values() if META_PURGED_BY in t.meta} == {"beside"}


def test_batches_whose_hidden_rows_were_erased_are_not_to_be_undone() -> None:
    """Those of which a tombstone is active, and the first reason stays."""
    purged = a_tombstone("B", meta={META_PURGED_BY: "a vacuum"})
    ledger = a_ledger(masked("A"), purged, "C")

    after = apply(ledger, with_purged(ledger, Delta(RUN), FIELD, {"A", "B", "unknown"})).tombstones

    assert {t.id: t.meta.get(META_PURGED_BY) for t in after.values()} == {"A": "beside", "B": "a vacuum", "C": None}
    assert with_purged(ledger, delta := Delta(RUN), FIELD, ()) is delta


WRONG_UNDOS: dict[str, tuple[dict[str, int], dict[str, str], dict[str, int], str]] = {
    "no rows": ({}, {}, {}, "AlreadyPurged: Restatement ns/undo"),
    "fewer rows": ({"A": 2}, {}, {}, "AlreadyPurged: Restatement ns/undo"),
    "more rows": ({"A": 4}, {}, {}, "AlreadyPurged: Restatement ns/undo"),
    "a file that cannot be searched": (
        {"A": 3},
        {"A": "f: it has no field ids"},
        {},
        "FileNotSearchable: .*no field ids",
    ),
    "deletes of several files": (
        {"A": 3},
        {},
        {"A": 2},
        "AlreadyPurged: .*several data files, also delete 2 rows of batch 'A'",
    ),
}


@pytest.mark.parametrize(("rows", "unsearched", "hidden", "message"), WRONG_UNDOS.values(), ids=WRONG_UNDOS)
def test_an_undo_of_other_rows_than_were_masked_is_refused(
    rows: dict[str, int], unsearched: dict[str, str], hidden: dict[str, int], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        check_lifted("ns/undo", {"A": masked("A")}, rows, unsearched, hidden)


def rows(*positions: int) -> FrozenBitMap64:
    return FrozenBitMap64(positions)


def test_deletes_into_which_another_writer_merged_those_of_lethe_are_taken_over() -> None:
    """The rows that the other writer deleted stay deleted."""
    before = DeletedPositions(rows(8), theirs=(rows(5), rows(1, 2, 6)))

    after = positions_after(before, hide=rows(), show=rows(1, 2))

    assert (after.ours, after.taken_over) == (rows(6, 8), {1})
    assert after.whole(before) == rows(5, 6, 8)


def test_rows_that_deletes_for_several_data_files_hide_cannot_be_shown() -> None:
    after = positions_after(DeletedPositions(rows(), shared=rows(1, 2, 9)), hide=rows(), show=rows(1, 2))

    assert after.still_hidden == rows(1, 2)


def test_a_plan_names_the_files_that_change_and_the_batches_that_other_deletes_concern() -> None:
    before = {
        "mask": DeletedPositions(rows(), theirs=(rows(0),)),
        "again": DeletedPositions(rows(0, 1)),
        "lift": DeletedPositions(rows(3, 4), shared=rows(9)),
        "moved": DeletedPositions(shared=rows(1)),
    }
    found = {
        "mask": {"partly deleted": rows(0, 1)},
        "again": {"masked": rows(0, 1)},
        "lift": {"undone": rows(3, 4)},
        "moved": {"merged away": rows(1)},
    }
    lifted = {i: a_tombstone(i).masked(Mask(POSITION_DELETES, 2)) for i in ("undone", "merged away")}
    masked = {i: a_tombstone(i) for i in ("partly deleted", "masked")}
    masking = Masking(masked, lifted, {"masked": Mask(DELETION_VECTORS, 2)})

    plan = plan_positions(before, found, masking, POSITION_DELETES)

    assert {path: after.ours for path, after in plan.after.items()} == {"mask": rows(0, 1), "lift": rows()}
    assert plan.beside == {"partly deleted"}
    assert plan.still_hidden == {"merged away": 1}


DUE = NOW + timedelta(days=3)
GONE = [
    a_batch("A", BatchState.REVERTED, restatement="ns/r/1", evict_by=DUE),
    a_batch("B", BatchState.REPLACED, restatement="ns/r/2", evict_by=DUE),
    a_batch("C"),
    a_batch("D", BatchState.REFUSED),
    a_batch("E", BatchState.ERASED, restatement="ns/r/3", evict_by=DUE),
]
NOTHING = Delta(RUN)


def restored(
    ledger: Ledger, *files: FileBounds, delta: Delta = NOTHING, only_moved: bool = False, holds: Any = None
) -> Delta:
    """What the change becomes when the files came in without a ledger."""
    return restore_tombstones(ledger, delta, AddedFiles(files, FIELD, only_moved, holds=holds), NOW)


def armed(ledger: Ledger, *files: FileBounds, only_moved: bool = False, holds: Any = None) -> tuple[Tombstone, ...]:
    """The tombstones that an empty change gets."""
    return restored(ledger, *files, only_moved=only_moved, holds=holds).add_tombstones


def ids(tombstones: Collection[Tombstone]) -> list[str]:
    return [t.id for t in tombstones]


def test_rows_of_a_batch_taken_back_that_arrive_after_its_vacuum_are_hidden_again() -> None:
    found = armed(a_ledger(batches=GONE), a_file("A", "Z"))

    assert ids(found) == ["A", "B", "E"]
    assert [t.restatements for t in found] == [("ns/r/1",), ("ns/r/2",), ("ns/r/3",)]
    assert {(t.namespace, t.added_on, t.evict_by, t.meta["run"]) for t in found} == {(FIELD, NOW, DUE, RUN)}
    assert all("without a ledger" in t.meta["reason"] for t in found)
    assert all(META_PURGED_BY in t.meta for t in found)  # the rows of before are gone: nobody can undo the restatement


ARMED: dict[str, tuple[list[Tombstone], list[FileBounds], bool, list[str]]] = {
    "a batch that is tombstoned now needs no second": ([a_tombstone("A")], [a_file("A", "Z")], False, ["B", "E"]),
    "a tombstone of another column is none": ([a_tombstone("A", namespace=FIELD + 1)], [a_file("A")], False, ["A"]),
    "files that cannot hold the batch": ([], [a_file("F", "Z")], False, []),
    "no files": ([], [], False, []),
    "a file without bounds might hold every one": ([], [a_file(None)], False, ["A", "B", "E"]),
    "a compaction brings no rows that were not there": ([], [a_file("A", "Z")], True, []),
}


@pytest.mark.parametrize(("active", "files", "only_moved", "expected"), ARMED.values(), ids=ARMED)
def test_only_what_files_may_bring_back_is_hidden_again(
    active: list[Tombstone], files: list[FileBounds], only_moved: bool, expected: list[str]
) -> None:
    assert ids(armed(a_ledger(*active, batches=GONE), *files, only_moved=only_moved)) == expected


# --- partitions -----------------------------------------------------------------------------------------------------
ONE, TWO = ("0/[1]",), ("0/[1]", "0/[2]")


def in_partition(text: str | None, lower: str = "A", upper: str = "C") -> FileBounds:
    return replace(a_file(lower, upper), partition=text)


def in_partitions(id: str, *partitions: str) -> Tombstone:
    return a_tombstone(id, meta={"partitions": "\n".join(partitions)})


def test_a_mask_is_not_of_rows_that_came_without_a_ledger() -> None:
    """What was masked stays known: an Undo has to lift it. A compaction brings no rows."""
    mask = Mask(NativeDeletes.DELETION_VECTORS, 4)
    ledger = a_ledger(a_tombstone("A").masked(mask), a_tombstone("X").masked(mask), "B")

    (found,) = armed(ledger, a_file("A", "C"))

    assert (found.id, found.mask) == ("A", replace(mask, whole=False))
    assert apply(ledger, Delta(RUN, add_tombstones=(found,))).tombstones[found.key].mask == replace(mask, whole=False)
    assert armed(ledger, a_file("A", "C"), only_moved=True) == ()


@pytest.mark.parametrize(
    ("known", "file", "only_moved", "expected"),
    [
        (ONE, None, False, None),
        (TWO, "0/[2]", False, TWO),
        (ONE, "0/[2]", True, ONE),
        (ONE, "1/[1,8]", True, ("0/[1]", "1/[1,8]")),
    ],
    ids=[
        "a partition without a text means anywhere",
        "known partitions change nothing",
        "a compaction within one partition spec moves no row, though the bounds of its files are wide",
        "a compaction into another partition spec moves rows",
    ],
)
def test_partitions_grow_only_by_those_that_rows_may_have_come_into(
    known: tuple[str, ...], file: str | None, only_moved: bool, expected: tuple[str, ...] | None
) -> None:
    ledger = a_ledger(in_partitions("A", *known), batches=[a_batch("A", partitions=known)])

    after = apply(ledger, restored(ledger, in_partition(file), only_moved=only_moved))

    assert (after.tombstones[(FIELD, "A")].partitions, after.batches["A"].partitions) == (expected, expected)


def test_a_revert_planned_on_what_the_ledger_remembers_covers_files_that_it_has_not_seen() -> None:
    """Its tombstone is a copy of the batch's partitions; the file came in between."""
    ledger = a_ledger(batches=[a_batch("A", partitions=ONE)])
    revert = Delta(RUN, (in_partitions("A", *ONE),), set_batches=(a_batch("A", BatchState.REVERTED, partitions=ONE),))

    after = apply(ledger, restored(ledger, in_partition("0/[2]"), delta=revert))

    assert (after.tombstones[(FIELD, "A")].partitions, after.batches["A"].partitions) == (TWO, TWO)
    assert after.batches["A"].state is BatchState.REVERTED


def test_what_a_change_removes_or_forgets_does_not_come_back_by_growing() -> None:
    """An Undo of A while a foreign file might hold A: its rows are to be seen."""
    known = a_batch("A", BatchState.REVERTED, rows=None, partitions=ONE)
    ledger = a_ledger(in_partitions("A", *ONE), batches=[known])
    undo = Delta(RUN, remove_tombstones=frozenset({(FIELD, "A")}), forget_batches=frozenset({"A"}))

    after = apply(ledger, restored(ledger, in_partition("0/[2]"), delta=undo))

    assert (dict(after.tombstones), dict(after.batches)) == ({}, {})


def test_if_files_can_be_searched_only_batches_that_they_hold_are_deleted_again() -> None:
    """Bounds choose whom to look for: a file of many batches has bounds that allow every batch of years."""
    asked: list[list[str]] = []

    def holds(ids: Collection[str]) -> set[str]:
        asked.append(sorted(ids))
        return {"E"}

    assert ids(armed(a_ledger(batches=GONE), a_file("A", "Z"), holds=holds)) == ["E"]
    assert asked == [["A", "B", "E"]]
