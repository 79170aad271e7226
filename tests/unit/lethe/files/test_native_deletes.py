"""Native deletes beside the ledger: which batches they hide or show again with a change, and when an Undo would not be exact."""

from dataclasses import replace

import pytest
from lethe.base.errors import InputError
from lethe.contract.settings import NativeDeletes
from lethe.files.native_deletes import (
    Masked,
    check_lifted,
    files_to_mask,
    plan_masking,
    refuse_masked,
    with_masks,
    with_purged,
)
from lethe.ledger.ledger import Delta, apply
from lethe.ledger.tombstone import META_PURGED_BY, Mask, Tombstone, merge

from tests.support.builders import FIELD, RUN, a_file, a_ledger, a_tombstone, on_files

DELETION_VECTORS, POSITION_DELETES = NativeDeletes
WHOLE = Mask(DELETION_VECTORS, 3)


def masked(id: str = "A", mask: Mask = WHOLE) -> Tombstone:
    return a_tombstone(id).masked(mask)


def adding(*tombstones: Tombstone | str) -> Delta:
    return Delta(RUN, add_tombstones=tuple(a_tombstone(t) if isinstance(t, str) else t for t in tombstones))


@pytest.mark.parametrize("mask", [WHOLE, Mask(POSITION_DELETES, 0), Mask(DELETION_VECTORS, 12, whole=False)])
def test_a_mask_is_read_as_it_was_written(mask: Mask) -> None:
    assert Mask.parse(str(mask)) == mask


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

    assert (masking.mask.keys(), masking.lift.keys(), masking.known) == ({"D"}, {"A"}, {})


def test_what_others_left_unmasked_is_masked_along() -> None:
    """Tombstones from before the mode was set, and those that rows came for since; not those of another column."""
    ledger = a_ledger(masked("A"), "B", masked("C", replace(WHOLE, whole=False)), a_tombstone("Z", namespace=99))

    masking = plan_masking(ledger, adding("D"), FIELD, DELETION_VECTORS, all_masked=False)

    assert masking.mask.keys() == {"B", "C", "D"}
    assert masking.known == {"C": replace(WHOLE, whole=False)}


def test_in_the_ledger_alone_nothing_is_masked_but_an_undo_lifts() -> None:
    """The mode may have been another one when the batch was taken back."""
    ledger = a_ledger(masked("A"), "B")
    delta = replace(adding("D"), remove_tombstones=frozenset({(FIELD, "A"), (FIELD, "B")}))

    masking = plan_masking(ledger, delta, FIELD, None, all_masked=False)

    assert (masking.mask, masking.lift.keys()) == ({}, {"A"})


def test_what_is_undone_and_taken_back_again_in_one_change_stays_masked() -> None:
    ledger = a_ledger(masked("A"))
    delta = replace(adding("A"), remove_tombstones=frozenset({(FIELD, "A")}))

    masking = plan_masking(ledger, delta, FIELD, DELETION_VECTORS, all_masked=True)

    assert (masking.mask.keys(), masking.lift, masking.known) == ({"A"}, {}, {"A": WHOLE})


def test_a_file_of_one_batch_is_dropped_and_others_are_masked() -> None:
    """A file with rows of no batch has bounds of one batch, and is not covered by it."""
    masking = plan_masking(a_ledger(), adding("A", "C"), FIELD, DELETION_VECTORS, all_masked=True)
    whole, mixed, beside, nulls = a_file("A"), a_file("B", "D"), a_file("D", "E"), a_file("C", nulls=1)

    split = files_to_mask([whole, mixed, beside, nulls], masking)

    assert (split.all_rows_deleted, split.may_contain_deleted_rows, split.cannot) == (
        (whole,),
        (mixed, nulls),
        (beside,),
    )


def test_tombstones_say_how_they_are_masked_and_whether_they_can_be_undone() -> None:
    ledger = a_ledger("old", masked("again", replace(WHOLE, whole=False)))
    delta = adding("mixed", "dropped", "beside", "unsure", "unknown", a_tombstone("other", namespace=99))
    masking = plan_masking(ledger, delta, FIELD, DELETION_VECTORS, all_masked=False)
    found = Masked({"mixed": 3, "dropped": 4, "old": 1, "again": 5}, {"dropped"}, {"beside"}, {"unsure"})

    after = apply(ledger, with_masks(delta, masking, found, DELETION_VECTORS)).tombstones

    masks = {t.id: t.mask for t in after.values()}
    assert masks == {
        "mixed": Mask(DELETION_VECTORS, 3),
        "dropped": Mask(DELETION_VECTORS, 4),
        "beside": Mask(DELETION_VECTORS, 0),
        "unsure": Mask(DELETION_VECTORS, 0, whole=False),
        "unknown": Mask(DELETION_VECTORS, 0),
        "old": Mask(DELETION_VECTORS, 1),
        "again": Mask(DELETION_VECTORS, 5),
        "other": None,
    }
    assert {t.id for t in after.values() if META_PURGED_BY in t.meta} == {"dropped", "beside"}


def test_a_change_without_a_mask_is_left_as_it_is() -> None:
    delta = adding("A")

    assert with_masks(delta, plan_masking(a_ledger(), delta, FIELD, None, False), Masked({}), None) is delta


def test_batches_whose_hidden_rows_were_erased_are_not_to_be_undone() -> None:
    """Those of which a tombstone is active, and the first reason stays."""
    purged = a_tombstone("B", meta={META_PURGED_BY: "a vacuum"})
    ledger = a_ledger(masked("A"), purged, "C")

    after = apply(ledger, with_purged(ledger, Delta(RUN), FIELD, {"A", "B", "unknown"})).tombstones

    assert {t.id: t.meta.get(META_PURGED_BY) for t in after.values()} == {"A": "beside", "B": "a vacuum", "C": None}
    assert with_purged(ledger, delta := Delta(RUN), FIELD, ()) is delta


def test_an_undo_is_exact_when_as_many_rows_are_there_as_were_masked() -> None:
    check_lifted(
        "ns/undo", {"A": masked("A"), "none": masked("none", Mask(DELETION_VECTORS, 0))}, {"A": 3, "B": 1}, {}, {}
    )


@pytest.mark.parametrize("rows", [{}, {"A": 2}, {"A": 4}], ids=["none", "fewer", "more"])
def test_an_undo_of_other_rows_than_were_masked_is_refused(rows: dict[str, int]) -> None:
    with pytest.raises(InputError, match="Restatement ns/undo") as refused:
        check_lifted("ns/undo", {"A": masked("A")}, rows, {}, {})

    assert refused.value.reason == "AlreadyPurged"


def test_an_undo_that_cannot_search_a_file_is_refused() -> None:
    with pytest.raises(InputError, match="no field ids") as refused:
        check_lifted("ns/undo", {"A": masked("A")}, {"A": 3}, {"A": "s3://f: it has no field ids"}, {})

    assert refused.value.reason == "FileNotSearchable"


def test_an_undo_that_deletes_of_several_data_files_would_still_hide_is_refused() -> None:
    with pytest.raises(InputError, match="several data files, also delete 2 rows of batch 'A'") as refused:
        check_lifted("ns/undo", {"A": masked("A")}, {"A": 3}, {}, {"A": 2})

    assert refused.value.reason == "AlreadyPurged"


def test_a_run_that_cannot_lift_masks_refuses_to_undo_a_masked_batch_and_no_other() -> None:
    ledger = a_ledger(masked("A"), "B")

    def undoing(batch_id: str) -> None:
        delta = Delta(RUN, remove_tombstones=frozenset({(FIELD, batch_id)}))
        refuse_masked("sdk/undo", plan_masking(ledger, delta, FIELD, None, all_masked=True))

    undoing("B")
    with pytest.raises(InputError, match=r"sdk/undo: .*'A'") as refused:
        undoing("A")

    assert refused.value.reason == "NotSupported"
