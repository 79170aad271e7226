"""Small neighbours are merged, nothing that a purge has to write again is touched, and no byte is rewritten for little."""

from collections.abc import Collection, Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.files.bounds import FileBounds, outdated
from lethe.vacuum.compaction import SMALL, Bin, plan_compaction, rounds, steps

from tests.support.builders import a_file

TARGET = 1000


def small(
    name: str, upper: str | None = None, *, size: int = 100, day: int = 1, deletes: Collection[str] = ()
) -> FileBounds:
    """A file of one batch, or of those between two, on a day."""
    return replace(a_file(name, upper, size=size, deletes=deletes, path=f"{day}/{name}"), partition=f"0/[{day}]")


def plan(
    files: Iterable[FileBounds], *tombstoned: str, max_bytes: int | None = None, spec_id: int = 0
) -> list[list[str]]:
    """The bins as lists of paths."""
    found = plan_compaction(1, files, tombstoned, spec_id, TARGET, max_bytes)
    return [[f.path for f in one] for one in found.bins]


def test_neighbours_of_a_partition_are_merged_in_batch_order() -> None:
    files = [small("C"), small("A"), small("B"), small("A", day=2), small("B", day=2)]

    assert plan(files) == [["1/A", "1/B", "1/C"], ["2/A", "2/B"]]


def test_a_file_that_is_alone_or_large_enough_stays() -> None:
    assert plan([small("A"), small("B", day=2), small("C", size=500, day=3), small("D", size=900, day=3)]) == []


def test_files_with_a_large_one_between_them_are_not_merged_around_it() -> None:
    """The merged file would span the batches of the large one, and every look for those would open both."""
    files = [small("A"), small("B"), small("C", size=800), small("D"), small("E")]

    assert plan(files) == [["1/A", "1/B"], ["1/D", "1/E"]]


def test_files_that_the_purge_must_rewrite_are_left_to_it() -> None:
    """Merged first, the survivors would be written twice, and live rows beside them for nothing."""
    files = [small("A"), small("B"), small("C", "D"), small("E", deletes=["dv"]), small("F"), small("G")]

    assert plan(files, "D") == [["1/A", "1/B"], ["1/F", "1/G"]]


def test_a_file_of_unknown_bounds_may_hold_any_tombstone() -> None:
    unknown = replace(a_file(None, path="?", nulls=None), partition="0/[1]", lower=None, upper=None)

    assert plan([unknown, small("A"), small("B")], "Z") == [["1/A", "1/B"]]
    assert plan([unknown, small("A"), small("B")]) == [["?", "1/A", "1/B"]]


def test_files_of_an_older_partition_spec_or_of_an_unknown_partition_stay() -> None:
    unknown = [replace(small(n), partition=None) for n in "CD"]

    assert plan([small("A"), small("B"), *unknown], spec_id=1) == []


def test_merged_files_are_of_about_the_target_size() -> None:
    files = [small(f"{n:02}", size=300) for n in range(10)]

    assert [len(one) for one in plan(files)] == [3, 3, 3]


def test_a_merged_file_is_not_rewritten_for_each_small_one() -> None:
    """Else a byte would be rewritten at every vacuum until its file is large."""
    assert plan([small("A", size=400), small("B", size=10)]) == []
    assert plan([small("A"), small("B"), small("C", size=400), small("D", size=10)]) == [["1/A", "1/B"]]


def test_a_budget_is_spent_where_most_files_go_per_byte() -> None:
    many, few = [small(n, size=10) for n in "ABCD"], [small(n, size=200, day=2) for n in "AB"]

    found = plan_compaction(1, [*few, *many], (), 0, TARGET, max_bytes=100)

    assert ([[f.path for f in one] for one in found.bins], found.left) == ([["1/A", "1/B", "1/C", "1/D"]], 1)
    assert plan([*few, *many], max_bytes=0) == []


def test_bins_of_one_partition_are_not_written_together() -> None:
    """A row of the one would get among those of the other, whatever lies between them."""
    files = [small(n, size=s, day=d) for d in (1, 2) for n, s in (("A", 9), ("B", 9), ("C", 800), ("D", 9), ("E", 9))]
    bins = plan_compaction(1, [*files, small("A", day=3), small("B", day=3)], (), 0, TARGET).bins

    assert [[one[0].path for one in together] for together in rounds(bins)] == [["1/A", "2/A", "3/A"], ["1/D", "2/D"]]


def test_steps_are_of_about_the_size_asked_for_and_leave_nothing_out() -> None:
    bins: list[Bin] = [(small(n, size=40),) for n in "ABCDE"]

    assert [len(s) for s in steps(bins, 100)] == [2, 2, 1]
    assert [len(s) for s in steps(bins, 1)] == [1] * 5
    assert list(steps([], 100)) == []


@pytest.mark.parametrize(
    ("now", "why"),
    [
        ([small("A")], "1/B is no longer part of the table"),
        ([small("A"), small("B", deletes=["dv"])], "rows of 1/B were deleted since the plan"),
        ([small("A"), small("B"), small("C")], ""),
    ],
)
def test_what_was_merged_may_be_committed_only_if_the_files_are_as_they_were(now: list[FileBounds], why: str) -> None:
    assert outdated([small("A"), small("B")], now) == why


FILES = st.lists(
    st.builds(
        lambda n, width, size, day: small(f"{n:02}", f"{n + width:02}", size=size, day=day),
        st.integers(10, 50),
        st.integers(0, 20),
        st.integers(1, 1200),
        st.integers(1, 2),
    ),
    max_size=30,
    unique_by=lambda f: f.path,
)


@given(FILES, st.sets(st.integers(10, 70).map(str), max_size=3))
def test_every_bin_is_worth_it_whatever_the_files_are(files: list[FileBounds], tombstoned: set[str]) -> None:
    bins = plan_compaction(1, files, tombstoned, 0, TARGET).bins

    merged = [f for one in bins for f in one]
    assert len(merged) == len(set(merged))
    for one in bins:
        size = sum(f.size for f in one)
        assert len(one) >= 2
        assert size <= TARGET
        assert all(2 * f.size <= size and f.size < SMALL * TARGET for f in one)
        assert len({f.partition for f in one}) == 1
        assert not any((f.lower or "") <= t <= (f.upper or "") for f in one for t in tombstoned)
