"""A vacuum purges what it planned to purge, on whatever head it commits, or plans anew."""

import pytest
from lethe.ledger.ledger import Ledger
from lethe.plan.bounds import FileBounds
from lethe.plan.vacuum import PlanAnew, Purge, VacuumPlan, plan_purge, plan_vacuum

from tests.builders import FIELD, RUN, a_file, a_ledger, a_tombstone, ago

WHOLE, MIXED, CLEAN = a_file("A"), a_file("A", "C"), a_file("D", "E")
LEDGER = a_ledger("A", "B")


def planned(ledger: Ledger = LEDGER, *files: FileBounds) -> VacuumPlan:
    return plan_vacuum(ledger, 1, files or (WHOLE, MIXED, CLEAN), FIELD)


def purge(plan: VacuumPlan, ledger: Ledger, *files_now: FileBounds) -> Purge:
    result = plan_purge(plan, ledger, files_now, RUN)
    assert isinstance(result, Purge), result
    return result


def gone(result: Purge) -> set[str]:
    return {i for _, i in result.delta.remove_tombstones}


def test_a_file_of_only_tombstoned_rows_is_dropped_one_that_might_hold_some_is_rewritten_and_the_rest_stays() -> None:
    plan = planned()

    assert (plan.delete, plan.rewrite) == ((WHOLE,), (MIXED,))
    assert {t.id for t in plan.tombstones} == {"A", "B"}
    assert plan.touched == {WHOLE.path, MIXED.path}


def test_a_file_with_a_row_without_batch_id_is_never_dropped() -> None:
    """Rows A, A and NULL have the bounds A and A: dropping the file would lose the third."""
    with_null = a_file("A", nulls=1)

    assert planned(LEDGER, with_null).rewrite == (with_null,)


def test_tombstones_of_other_columns_are_none_of_its_business() -> None:
    plan = planned(a_ledger(a_tombstone("A", namespace=FIELD + 1)))

    assert (plan.delete, plan.rewrite, plan.tombstones) == ((), (), ())


def test_an_undisturbed_vacuum_ends_every_tombstone_and_names_those_it_applied() -> None:
    result = purge(planned(), LEDGER, WHOLE, MIXED, CLEAN)

    assert gone(result) == {"A", "B"}
    assert {t.id for t in result.vacuumed} == {"A", "B"}
    assert result.delta.run == RUN
    assert not result.delta.add_tombstones


def test_tombstones_that_no_file_can_hold_are_ended_without_having_been_applied() -> None:
    result = purge(planned(LEDGER, CLEAN), LEDGER, CLEAN)

    assert (gone(result), result.vacuumed) == ({"A", "B"}, ())


def test_a_tombstone_stays_while_a_file_that_came_after_the_plan_might_hold_its_rows() -> None:
    """A late append brings rows of A. Were A ended, they would be seen; they were taken back before they came."""
    late = a_file("A", "A", path="late")

    result = purge(planned(), LEDGER, WHOLE, MIXED, CLEAN, late)

    assert gone(result) == {"B"}
    assert {t.id for t in result.vacuumed} == {"A", "B"}  # applied to the removed files all the same


@pytest.mark.parametrize("late", [a_file(None, path="late"), a_file("0", "Z", path="late")], ids=["no bounds", "wide"])
def test_a_late_file_that_proves_nothing_keeps_every_tombstone(late: FileBounds) -> None:
    assert gone(purge(planned(), LEDGER, WHOLE, MIXED, CLEAN, late)) == set()


def test_a_tombstone_set_since_the_plan_stays_active() -> None:
    """The written files still hold its rows."""
    result = purge(planned(), a_ledger("A", "B", "C"), WHOLE, MIXED, CLEAN)

    assert gone(result) == {"A", "B"}
    assert {t.id for t in result.vacuumed} == {"A", "B"}


ANEW = {
    "a planned file was compacted away": (LEDGER, (WHOLE, CLEAN), "no longer part"),
    "a file to drop was compacted away": (LEDGER, (MIXED, CLEAN), "no longer part"),
    "rows of a planned file were deleted": (
        LEDGER,
        (WHOLE, a_file("A", "C", has_deletes=True), CLEAN),
        "were deleted since",
    ),
    "a revert was undone": (a_ledger("B"), (WHOLE, MIXED, CLEAN), "taken back"),
    "a revert was undone and made again": (
        a_ledger(a_tombstone("A", added_on=ago(seconds=-5)), "B"),
        (WHOLE, MIXED, CLEAN),
        "set again",
    ),
    "another restatement holds it too": (
        a_ledger(a_tombstone("A", restatements=["ns/r/1", "ns/r/2"]), "B"),
        (WHOLE, MIXED, CLEAN),
        "set again",
    ),
}


@pytest.mark.parametrize(("ledger", "files", "why"), ANEW.values(), ids=ANEW)
def test_files_written_on_what_is_no_longer_so_are_not_committed(
    ledger: Ledger, files: tuple[FileBounds, ...], why: str
) -> None:
    """Written without A's rows, A undone: committing the files would lose them after a successful undo."""
    result = plan_purge(planned(), ledger, files, RUN)

    assert isinstance(result, PlanAnew)
    assert why in result.why


def test_a_message_never_says_whose_rows_they_were() -> None:
    """It goes to a log; a value may be one that somebody wants forgotten."""
    result = plan_purge(planned(), a_ledger("B"), [WHOLE, MIXED, CLEAN], RUN)

    assert isinstance(result, PlanAnew)
    assert "'A'" not in result.why


def test_deletes_that_were_there_when_the_vacuum_read_the_file_do_not_disturb_it() -> None:
    file = a_file("A", "C", has_deletes=True)

    assert gone(purge(planned(LEDGER, file), LEDGER, file)) == {"A", "B"}
