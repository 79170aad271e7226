"""Which positions Lethe's native deletes name after a change, beside the deletes of other writers."""

from lethe.contract.settings import NativeDeletes
from lethe.files.native_deletes import DeletedPositions, Masking, plan_positions, positions_after
from lethe.ledger.tombstone import Mask
from pyroaring import FrozenBitMap64

from tests.support.builders import a_tombstone

DELETION_VECTORS, POSITION_DELETES = NativeDeletes


def rows(*positions: int) -> FrozenBitMap64:
    return FrozenBitMap64(positions)


def test_rows_to_hide_are_added_and_rows_to_show_are_taken_out() -> None:
    after = positions_after(DeletedPositions(rows(1, 2, 3)), hide=rows(7, 8), show=rows(2, 3))

    assert (after.ours, after.taken_over, after.still_hidden) == (rows(1, 7, 8), frozenset(), rows())


def test_deletes_of_other_writers_stay_even_if_they_name_rows_to_show() -> None:
    """Lethe's own deletes name all rows to show, so another writer deleted one of them as well."""
    before = DeletedPositions(rows(1, 2), theirs=(rows(2, 5),), shared=rows(1))

    after = positions_after(before, hide=rows(), show=rows(1, 2))

    assert (after.ours, after.taken_over, after.still_hidden) == (rows(), frozenset(), rows())
    assert after.whole(before) == rows(1, 2, 5)


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


def test_the_ledger_alone_hides_nothing_by_position_but_an_undo_shows_rows() -> None:
    lift = {"A": a_tombstone("A").masked(Mask(POSITION_DELETES, 1))}
    masking = Masking({"B": a_tombstone("B")}, lift)
    before, found = {"f": DeletedPositions(rows(0))}, {"f": {"A": rows(0), "B": rows(1)}}

    plan = plan_positions(before, found, masking, None)

    assert ({p: a.ours for p, a in plan.after.items()}, plan.beside) == ({"f": rows()}, frozenset())
