"""What a vacuum takes first, what it expects to find, and what it writes again beside it."""

from dataclasses import replace
from datetime import timedelta

import pytest
from lethe.files.bounds import FileBounds, Suspects
from lethe.ledger.tombstone import Tombstone
from lethe.vacuum.plan import (
    Drift,
    Estimate,
    PurgeDeadlines,
    by_priority,
    first_step,
    in_vain_percent,
    small_neighbours,
    within_budget,
)

from tests.support.builders import NOW, a_file, a_tombstone


def file_in(partition: str, lower: str, upper: str, size: int = 100, records: int = 10) -> FileBounds:
    bounds = a_file(lower, upper, path=f"{partition}:{lower}-{upper}:{size}", size=size, records=records)
    return replace(bounds, partition=partition)


def expected(tombstones: list[Tombstone], files: list[FileBounds], **rows: int) -> Estimate:
    return Estimate(Suspects(tombstones), files, rows)


# --- what to expect -------------------------------------------------------------------------------------------------


def test_where_no_files_overlap_nothing_is_expected_to_be_rewritten_in_vain() -> None:
    files = [a_file("A", "C"), a_file("D", "F")]

    assert in_vain_percent(expected([a_tombstone("B"), a_tombstone("E")], files), files) == pytest.approx(0)


def test_of_files_that_overlap_as_many_are_expected_to_hold_a_batch_as_its_rows_need() -> None:
    files = [a_file("A", "Z", path=str(n), records=10) for n in range(4)]
    one = [a_tombstone("B")]

    assert in_vain_percent(expected(one, files, B=3), files) == pytest.approx(75)
    assert in_vain_percent(expected(one, files, B=20), files) == pytest.approx(50)
    assert in_vain_percent(expected(one, files, B=40), files) == pytest.approx(0)


def test_the_more_batches_go_the_less_is_in_vain() -> None:
    files = [a_file("A", "Z", path=str(n)) for n in range(2)]
    two = expected([a_tombstone("B"), a_tombstone("C")], files)

    assert in_vain_percent(two, files) == pytest.approx(25)


def test_what_native_deletes_hide_is_never_in_vain() -> None:
    hidden = a_file("A", "Z", deletes=["d"])

    assert in_vain_percent(expected([], [hidden]), [hidden]) == 0
    assert in_vain_percent(expected([], []), []) is None


def drift(*files: FileBounds) -> float | None:
    found = Drift()
    for f in files:
        found.add(f)
    return found.mean_depth()


DRIFT = {
    "one behind the other": ([("A", "C"), ("D", "F")], 1.0),
    "a batch that ends one file and begins the next": ([("A", "C"), ("C", "F")], 1.0),
    "a large batch with files of its own": ([("A", "C"), ("C", "C"), ("C", "C"), ("C", "D")], 1.0),
    "two from end to end": ([("A", "Z"), ("A", "Z")], 2.0),
    "a file of one batch within another": ([("A", "Z"), ("C", "C")], 1.5),
    "one that reaches into the next": ([("A", "D"), ("C", "F")], 1.5),
    "bounds unknown": ([(None, None), ("C", "F")], 1.5),
}


@pytest.mark.parametrize(("bounds", "wanted"), DRIFT.values(), ids=DRIFT)
def test_drift_is_the_number_of_overlapping_files(bounds: list[tuple[str, str]], wanted: float) -> None:
    assert drift(*(a_file(lower, upper, path=str(n)) for n, (lower, upper) in enumerate(bounds))) == wanted


def test_files_of_different_partitions_do_not_overlap() -> None:
    assert drift(file_in("0/[1]", "A", "Z"), file_in("0/[2]", "A", "Z")) == 1.0
    assert drift() is None


# --- in which order -------------------------------------------------------------------------------------------------


def order(files: list[FileBounds], *tombstones: Tombstone, due_days: float | None = None, **rows: int) -> list[str]:
    suspects = Suspects(tombstones)
    due_by = None if due_days is None else NOW + timedelta(days=due_days)
    return [f.path for f in by_priority(files, suspects, Estimate(suspects, files, rows), PurgeDeadlines(due_by))]


def test_what_is_due_goes_before_what_is_dense_and_the_earliest_deadline_first() -> None:
    files = [a_file(i, f"{i}z", path=i, size=1000) for i in "ABC"] + [a_file("D", "Dz", path="dense", size=1)]
    due = [a_tombstone(i, evict_by=NOW + timedelta(days=n)) for i, n in {"A": 2, "B": 1, "C": 30}.items()]

    assert order(files, *due, a_tombstone("D"), due_days=7, D=900) == ["B", "A", "dense", "C"]


def test_files_go_first_of_which_most_rows_are_deleted_for_each_byte() -> None:
    """A tombstone of a large batch takes more off readers than one of a small one; a small file costs less to write."""
    files = [a_file(i, f"{i}z", path=i, size=size) for i, size in {"A": 1000, "B": 1000, "C": 10}.items()]

    assert order(files, *map(a_tombstone, "ABC"), A=1, B=500, C=50) == ["C", "B", "A"]


def test_files_that_are_much_alike_go_partition_by_partition_in_the_order_of_batches() -> None:
    """So that a step that is cut off in between leaves whole neighbourhoods."""
    files = [file_in(p, lower, f"{lower}z", size=100 + n) for n, (p, lower) in enumerate(["2C", "1B", "2A", "1C"])]

    found = order(files, *map(a_tombstone, "ABC"), C=2)

    assert [f.partition(":")[0] for f in found] == ["1", "1", "2", "2"]
    assert [f.split(":")[1][0] for f in found] == ["B", "C", "A", "C"]


def test_files_without_a_deleted_row_to_expect_go_last() -> None:
    hidden = a_file("X", "Z", path="hidden", deletes=["d"])

    assert order([hidden, a_file("A", path="A", size=10**6)], a_tombstone("A")) == ["A", "hidden"]


def test_a_budget_takes_in_order_what_fits_and_the_first_of_a_run_in_any_case() -> None:
    large, small, tiny = (a_file("A", path=p, size=n) for p, n in (("large", 90), ("small", 40), ("tiny", 10)))

    assert within_budget([large, small, tiny], 100) == ((large, tiny), (small,))
    assert within_budget([large, small], 10) == ((large,), (small,))
    assert within_budget([large, tiny], 100, spent=50) == ((tiny,), (large,))


def test_a_step_has_as_many_files_as_its_bytes_and_one_at_least() -> None:
    files = [a_file("A", path=str(n), size=40) for n in range(4)]

    assert [len(first_step(files, size)) for size in (1, 79, 80, 1000)] == [1, 1, 2, 4]
    assert first_step([], 10) == ()


# --- merged beside --------------------------------------------------------------------------------------------------


def test_small_neighbours_of_a_rewritten_file_are_merged_into_it_if_that_costs_little() -> None:
    rewritten = [file_in("1", "F", "K", size=1000)]
    beside = [file_in("1", "C", "D", size=4), file_in("1", "M", "N", size=6)]
    others = [file_in("1", "A", "B", size=1), file_in("2", "F", "G", size=1), file_in("1", "G", "H", size=100)]

    assert set(small_neighbours(rewritten, [*beside, *others[:2]])) == set(beside)
    assert small_neighbours(rewritten, [others[2]]) == ()
    assert small_neighbours(rewritten, beside, at_most=5) == (beside[0],)
    assert small_neighbours([], beside) == ()
