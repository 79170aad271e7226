"""A vacuum purges what it planned to purge, on whatever head it commits, or plans again."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.contract.run import VacuumSpec
from lethe.contract.settings import NativeDeletes
from lethe.files.bounds import FileBounds, Suspects
from lethe.ledger.ledger import Delta, Ledger, apply
from lethe.ledger.tombstone import META_PURGED_BY, Erasure, Mask, Tombstone
from lethe.vacuum.plan import (
    AgedRows,
    Estimate,
    KeptFile,
    PlanAgain,
    PurgeDeadlines,
    PurgeStep,
    VacuumPlan,
    also_purged,
    by_priority,
    out_of_time,
    plan_purge,
)

from tests.support.builders import FIELD, NOW, RUN, a_file, a_ledger, a_tombstone, ago
from tests.support.vacuuming import plan_vacuum

WHOLE, MIXED, CLEAN = a_file("A"), a_file("A", "C"), a_file("D", "E")
LEDGER = a_ledger("A", "B")


def planned(ledger: Ledger = LEDGER, *files: FileBounds) -> VacuumPlan:
    return plan_vacuum(ledger, 1, files or (WHOLE, MIXED, CLEAN), FIELD)


def purge(plan: VacuumPlan, ledger: Ledger, *files_now: FileBounds) -> PurgeStep:
    result = plan_purge(plan, ledger, files_now, RUN)
    assert isinstance(result, PurgeStep), result
    return result


def gone(result: PurgeStep) -> set[str]:
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


def a_kept(file: FileBounds, *ids: str, is_sure: bool = True) -> KeptFile:
    return KeptFile(file.path, frozenset({"case-7"}), frozenset(ids), is_sure, has_deletes=False)


LATE = a_file("A", "A", path="late")
PLANNED = (WHOLE, MIXED, CLEAN)
ENDS: dict[str, tuple[Sequence[FileBounds], Ledger, Sequence[FileBounds], str, str, str]] = {
    # the planned files, ledger and files of now; the tombstones that are ended, applied, and marked as purged in part
    "an undisturbed vacuum ends every tombstone": (PLANNED, LEDGER, PLANNED, "AB", "AB", ""),
    "those that no file can hold are ended without having been applied": ((CLEAN,), LEDGER, (CLEAN,), "AB", "", ""),
    # Were A ended, its late rows would be seen; they were taken back before they came.
    "one stays while a late file might hold its rows": (PLANNED, LEDGER, (*PLANNED, LATE), "B", "AB", "A"),
    "all stay while a late file has no bounds": (
        PLANNED,
        LEDGER,
        (*PLANNED, a_file(None, path="late")),
        "",
        "AB",
        "AB",
    ),
    "all stay while a late file is wide": (PLANNED, LEDGER, (*PLANNED, a_file("0", "Z", path="late")), "", "AB", "AB"),
    # The written files still hold its rows.
    "one that was set since the plan stays": (PLANNED, a_ledger("A", "B", "C"), PLANNED, "AB", "AB", ""),
}


@pytest.mark.parametrize(("files", "ledger", "files_now", "ended", "applied", "marked"), ENDS.values(), ids=ENDS)
def test_a_tombstone_ends_with_the_last_file_that_might_hold_its_rows(
    files: Sequence[FileBounds], ledger: Ledger, files_now: Sequence[FileBounds], ended: str, applied: str, marked: str
) -> None:
    result = purge(planned(LEDGER, *files), ledger, *files_now)

    assert (gone(result), {t.id for t in result.vacuumed}) == (set(ended), set(applied))
    assert (marks(result), result.delta.run) == (dict.fromkeys(marked, RUN), RUN)


KEPT: dict[str, tuple[KeptFile, str]] = {
    # a file of A to C that holds keep, and the tombstones that end
    "of a file that was searched, only the batches in it count": (a_kept(MIXED, "A"), "B"),
    "of a file that was not, those that its bounds allow": (a_kept(MIXED, "A", is_sure=False), ""),
}


@pytest.mark.parametrize(("kept", "ended"), KEPT.values(), ids=KEPT)
def test_a_tombstone_stays_while_a_hold_keeps_a_file_with_its_rows(kept: KeptFile, ended: str) -> None:
    result = plan_purge(planned(LEDGER, CLEAN), LEDGER, [MIXED, CLEAN], RUN, (), [kept])

    assert isinstance(result, PurgeStep)
    assert gone(result) == set(ended)
    assert marks(result) == {}


SET_LATER = a_tombstone("A", added_on=ago(seconds=-5))
HELD_TWICE = a_tombstone("A", restatements=["ns/r/1", "ns/r/2"])
DELETED, DELETED_AGAIN = (a_file("A", "C", deletes=[d]) for d in "de")
ANEW: dict[str, tuple[Sequence[FileBounds], Ledger, Sequence[FileBounds], str]] = {
    "a planned file was compacted away": (PLANNED, LEDGER, (WHOLE, CLEAN), "no longer part"),
    "a file to drop was compacted away": (PLANNED, LEDGER, (MIXED, CLEAN), "no longer part"),
    "rows of a planned file were deleted": (PLANNED, LEDGER, (WHOLE, DELETED, CLEAN), "were deleted since"),
    "more rows of a planned file were deleted": ((DELETED,), LEDGER, (DELETED_AGAIN,), "were deleted since"),
    "a revert was undone": (PLANNED, a_ledger("B"), PLANNED, "removed or set again"),
    "a revert was undone and made again": (PLANNED, a_ledger(SET_LATER, "B"), PLANNED, "set again"),
    "another restatement holds it too": (PLANNED, a_ledger(HELD_TWICE, "B"), PLANNED, "set again"),
}


@pytest.mark.parametrize(("files", "ledger", "files_now", "why"), ANEW.values(), ids=ANEW)
def test_files_written_on_what_is_no_longer_so_are_not_committed(
    files: Sequence[FileBounds], ledger: Ledger, files_now: Sequence[FileBounds], why: str
) -> None:
    """Written without A's rows, A undone: committing the files would lose them after a successful undo. The message goes to
    a log: it contains no batch id, which may be one that somebody wants forgotten."""
    result = plan_purge(planned(LEDGER, *files), ledger, files_now, RUN)

    assert isinstance(result, PlanAgain)
    assert why in result.why
    assert "'A'" not in result.why


def test_deletes_that_were_there_when_the_vacuum_read_the_file_do_not_disturb_it() -> None:
    file = a_file("A", "C", deletes=["d"])

    assert gone(purge(planned(LEDGER, file), LEDGER, file)) == {"A", "B"}


# --- erased records -------------------------------------------------------------------------------------------------
HIDDEN, BARE = a_file("X", "Y", deletes=["d"]), a_file("X", "Z")


def owing(*tombstones: str, field_id: int = FIELD + 1, evict_by: datetime | None = None) -> Ledger:
    return a_ledger(*tombstones, erasures=(Erasure("ns/erase/1", field_id, evict_by),))


def test_files_with_native_deletes_are_rewritten_while_an_erase_by_records_is_open() -> None:
    """A deletion vector hides the rows of somebody who is to be forgotten; the file still holds them."""
    plan = planned(owing(), HIDDEN, BARE)

    assert (plan.delete, plan.rewrite, plan.tombstones, plan.applied) == ((), (HIDDEN,), (), ())
    assert purge(plan, owing(), HIDDEN, BARE) == PurgeStep(Delta(RUN), ())


(OPEN,) = owing().erasures


@pytest.mark.parametrize(
    "erasures",
    [
        (),
        owing(field_id=FIELD).erasures,
        (replace(OPEN, purged_by=3, purged_at=3, purged_time=NOW),),
        (replace(OPEN, verified=True),),
    ],
    ids=["none", "by batch ids, whose rows have tombstones", "no older file has any", "verified"],
)
def test_without_an_open_erase_by_records_native_deletes_are_no_reason_to_rewrite_a_file(erasures: Any) -> None:
    assert planned(a_ledger(erasures=erasures), HIDDEN).rewrite == ()


def test_files_of_an_erase_that_is_due_come_first() -> None:
    large = a_file("A", "B", size=10, records=1)
    due = NOW + timedelta(hours=1)

    def first(due_by: datetime | None) -> tuple[FileBounds, ...]:
        ledger = owing("A", "B", evict_by=due)
        return plan_vacuum(ledger, 1, [large, HIDDEN], FIELD, max_bytes=1, due_by=due_by).rewrite

    assert first(due) == (HIDDEN,)
    assert first(due - timedelta(seconds=1)) == (large,)


def marks(result: PurgeStep) -> dict[str, str]:
    return {t.id: t.meta[META_PURGED_BY] for t in result.delta.add_tombstones}


def test_a_partial_vacuum_takes_the_files_with_the_most_tombstones_per_byte_and_leaves_the_rest() -> None:
    """One of A and one of B lie in each small file; the large one costs ten times as much for three."""
    ledger = a_ledger("A", "B", "C")
    small = [a_file("A", "B", path=f"s{n}", size=100) for n in range(3)]
    large = a_file("A", "C", path="large", size=1000)

    plan = plan_vacuum(ledger, 1, [large, *small], FIELD, max_bytes=250)

    assert [f.path for f in plan.rewrite] == ["s0", "s1"]
    assert [f.path for f in plan.postponed] == ["s2", "large"]
    assert {t.id for t in plan.applied} == {"A", "B"}


def test_rows_whose_bytes_are_due_go_first_the_earliest_before_the_others() -> None:
    def due(id: str, days: float) -> object:
        return a_tombstone(id, evict_by=NOW + timedelta(days=days))

    ledger = a_ledger(due("A", 0.5), due("B", -2), due("C", 30), *"DEFGH")  # type: ignore[arg-type]
    files = [a_file("D", "I", path="dense", size=1), *(a_file(i, f"{i}x", path=i, size=100) for i in "ABC")]

    def order(max_bytes: int) -> list[str]:
        plan = plan_vacuum(ledger, 1, files, FIELD, max_bytes, due_by=NOW + timedelta(days=1))
        return sorted(f.path for f in plan.rewrite)

    assert order(100) == ["B"]
    assert order(200) == ["A", "B"]
    assert order(201) == ["A", "B", "dense"]
    assert order(301) == ["A", "B", "C", "dense"]


def test_the_vacuum_that_removes_the_last_file_ends_the_tombstone_and_keeps_the_first_mark() -> None:
    first, second = a_file("A", "B", path="f1"), a_file("A", "C", path="f2", size=200)
    ledger = a_ledger("A", "B", "C")
    ledger = apply(ledger, purge(plan_vacuum(ledger, 1, [first, second], FIELD, 100), ledger, first, second).delta)

    result = plan_purge(plan_vacuum(ledger, 2, [second], FIELD, 100), ledger, [second], "another-run")

    assert isinstance(result, PurgeStep)
    assert gone(result) == {"A", "B", "C"}
    assert {t.id: t.meta.get(META_PURGED_BY) for t in result.vacuumed} == {"A": RUN, "B": RUN, "C": None}


def test_an_undo_of_rows_that_the_partial_vacuum_does_not_touch_does_not_disturb_it() -> None:
    """Only what was left out of the written files must still be deleted."""
    ledger = a_ledger("A", "Z")
    plan = plan_vacuum(ledger, 1, [MIXED, a_file("X", "Z", size=10_000)], FIELD, max_bytes=100)

    result = purge(plan, a_ledger("A"), MIXED, a_file("X", "Z", size=10_000))

    assert (gone(result), {t.id for t in result.vacuumed}) == ({"A"}, {"A"})


def test_a_plan_does_not_remove_a_tombstone_that_was_set_again_after_it() -> None:
    set_again = a_tombstone("Z", added_on=ago(seconds=-5))

    result = purge(plan_vacuum(a_ledger("A", "Z"), 1, [MIXED], FIELD), a_ledger("A", set_again), MIXED)

    assert gone(result) == {"A"}


ids = st.sampled_from("ABCDEFGH")
data_files = st.lists(
    st.builds(
        lambda a, b, size, n: a_file(min(a, b), max(a, b), path=str(n), size=size),
        ids,
        ids,
        st.integers(1, 100),
        st.integers(0, 10**9),
    ),
    max_size=8,
    unique_by=lambda f: f.path,
)


@given(files=data_files, tombstoned=st.sets(ids), budget=st.integers(0, 300))
def test_whatever_the_budget_no_row_comes_back_and_repeating_it_ends_every_tombstone(
    files: list[FileBounds], tombstoned: set[str], budget: int
) -> None:
    """Survivors of a rewritten file hold no tombstoned id, so no file stands for them here."""
    ledger, now = a_ledger(*tombstoned), {f.path: f for f in files}
    for turn in range(20):
        plan = plan_vacuum(ledger, turn, now.values(), FIELD, budget, NOW)
        assert {*plan.rewrite, *plan.postponed, *plan.delete} <= set(now.values())
        assert sum(f.size for f in plan.rewrite) <= max(budget, max((f.size for f in plan.rewrite), default=0))
        result = purge(plan, ledger, *now.values())
        now = {p: f for p, f in now.items() if p not in plan.touched}
        # A tombstone goes only with the last file that might hold its id.
        assert not any(f.lower <= i <= f.upper for i in gone(result) for f in now.values())  # type: ignore[operator]
        ledger = apply(ledger, result.delta)
    assert not ledger.tombstones


# --- what goes along ------------------------------------------------------------------------------------------------
def masked(id: str) -> Tombstone:
    return a_tombstone(id).masked(Mask(NativeDeletes.DELETION_VECTORS, 3))


def test_masked_rows_of_other_batches_in_rewritten_files_are_purged_too() -> None:
    """It reads them without those rows. Rows of B that nothing masks are written like any others."""
    ledger = a_ledger("A", "B", masked("C"), masked("Z"))
    about = tuple(t for t in ledger.tombstones.values() if t.id == "A")

    found = also_purged(ledger, FIELD, about, [MIXED])

    assert [t.id for t in found] == ["C"]
    assert also_purged(ledger, FIELD, tuple(ledger.tombstones.values()), [MIXED]) == ()
    assert also_purged(ledger, FIELD, about, []) == ()


def test_a_searched_file_keeps_no_tombstone() -> None:
    other = a_file("A", "Z", path="other", size=10_000)
    plan = plan_vacuum(LEDGER, 1, [MIXED, other], FIELD, max_bytes=100)
    assert plan.rewrite == (MIXED,)

    kept = plan_purge(plan, LEDGER, [MIXED, other], RUN)
    result = plan_purge(plan, LEDGER, [MIXED, other], RUN, cleared={"other"})

    assert isinstance(kept, PurgeStep)
    assert isinstance(result, PurgeStep)
    assert (gone(kept), gone(result)) == (set(), {"A", "B"})


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({}, ""),
        ({"max_seconds": 61, "stop_by": ago(seconds=-1)}, ""),
        ({"max_seconds": 60}, "MaxRunSeconds"),
        ({"max_seconds": 0}, "MaxRunSeconds"),
        ({"stop_by": NOW}, "WindowClosed"),
        ({"max_seconds": 60, "stop_by": NOW}, "WindowClosed"),
    ],
)
def test_the_end_of_the_window_and_the_end_of_the_time_budget_have_different_reasons(
    limits: dict[str, object], why: str
) -> None:
    spec = VacuumSpec.model_validate({"policy": "air/nightly", **limits})

    assert out_of_time(spec, timedelta(seconds=60), NOW) == why


# --- rows that are too old --------------------------------------------------------------------------------------------

DAY = date(2024, 6, 1)


def aged(*files: FileBounds, cutoff: date = DAY, delete: Sequence[FileBounds] = (), **plan: Any) -> VacuumPlan:
    """A plan that rewrites or deletes files, of which these lose rows for their age."""
    rows = AgedRows(cutoff, "booked_at, 30 days", FIELD, frozenset(f.path for f in files))
    rewrite = tuple(f for f in files if f not in delete)
    return VacuumPlan(1, tuple(delete), rewrite, (), (), aged=rows, **plan)


def test_an_approval_is_for_the_day_of_the_rows_that_the_plan_removes() -> None:
    digests = [aged(MIXED, cutoff=DAY + timedelta(days=n)).digest for n in (0, 0, 1)]

    assert digests[0] == digests[1] != digests[2]
    assert aged(delete=[WHOLE]).digest == aged(delete=[WHOLE], cutoff=DAY + timedelta(days=1)).digest


REMOVED: dict[str, tuple[VacuumPlan, str]] = {
    "a whole file": (aged(MIXED, delete=[MIXED]), "AB"),
    "a part of a file": (aged(MIXED), "AB"),
    "a file that no tombstone is in": (aged(CLEAN, delete=[CLEAN]), ""),
    "nothing of the file": (VacuumPlan(1, (), (MIXED,), (), (), aged=AgedRows(DAY, "", FIELD, frozenset())), ""),
}


@pytest.mark.parametrize(("plan", "marked"), REMOVED.values(), ids=REMOVED)
def test_tombstones_whose_rows_may_have_gone_for_their_age_cannot_be_undone(plan: VacuumPlan, marked: str) -> None:
    """None of them is in the plan: they were set later, or the run purges other batches."""
    result = purge(plan, LEDGER, *PLANNED)

    assert marks(result) == dict.fromkeys(marked, RUN)
    assert {t.id for t in result.vacuumed} == set(marked)
    assert gone(result) == set()


def test_files_with_rows_that_are_too_old_come_after_deadlines_and_before_others() -> None:
    due, rich, old = a_file("A", "B", path="due"), a_file("C", "D", path="rich", size=1), a_file("x", "y", path="old")
    suspects = Suspects(a_ledger(a_tombstone("A", evict_by=NOW), "C", "D").tombstones.values())
    files = [rich, old, due]

    ordered = by_priority(files, suspects, Estimate(suspects, files, {}), PurgeDeadlines(NOW), {"old"})

    assert [f.path for f in ordered] == ["due", "old", "rich"]


def test_old_batches_leave_only_the_files_that_lose_rows_for_their_age() -> None:
    """A hold keeps them in the other rewritten files, which lose the rows of tombstones alone."""
    rows = AgedRows(DAY, "batch age, 30 days", FIELD, frozenset({MIXED.path}), frozenset({"C"}))
    plan = VacuumPlan(1, (), (MIXED, CLEAN), (a_tombstone("A"),), (a_tombstone("A"),), aged=rows)

    assert (plan.losing_aged, plan.losing_aged_in_part) == ((MIXED,), (MIXED,))
    assert (plan.batches_leaving(for_age=True), plan.batches_leaving(for_age=False)) == ({"A", "C"}, {"A"})


def test_rows_of_a_file_that_a_hold_keeps_do_not_count_as_gone_for_their_age() -> None:
    """The file is rewritten for A alone. The rows of B in it stay, so an Undo can show them."""
    rows = AgedRows(DAY, "booked_at, 30 days", FIELD, frozenset())
    plan = VacuumPlan(1, (), (MIXED,), (a_tombstone("A"),), (a_tombstone("A"),), aged=rows)

    result = purge(plan, LEDGER, MIXED, a_file("B", "B", path="other"))

    assert [t.id for t in result.vacuumed] == ["A"]
    assert gone(result) == {"A"}
