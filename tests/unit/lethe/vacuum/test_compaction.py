"""Small neighbours are merged, nothing that a purge has to write again is touched, and no byte is rewritten for little."""

from collections.abc import Collection
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


UNKNOWN = replace(a_file(None, path="?", nulls=None), partition="0/[1]", lower=None, upper=None)
A, B = small("A"), small("B")
TO_PURGE = [A, B, small("C", "D"), small("E", deletes=["dv"]), small("F"), small("G")]
MERGED: dict[str, tuple[list[FileBounds], str, int, list[list[str]]]] = {
    # the files, the tombstoned batches, the current partition spec, and the files that are merged
    "neighbours of a partition are merged in batch order": (
        [small("C"), A, B, small("A", day=2), small("B", day=2)],
        "",
        0,
        [["1/A", "1/B", "1/C"], ["2/A", "2/B"]],
    ),
    "a file that is alone or large enough stays": (
        [A, small("B", day=2), small("C", size=500, day=3), small("D", size=900, day=3)],
        "",
        0,
        [],
    ),
    # The merged file would span the batches of the large one, and every look for those would open both.
    "files with a large one between them are not merged around it": (
        [A, B, small("C", size=800), small("D"), small("E")],
        "",
        0,
        [["1/A", "1/B"], ["1/D", "1/E"]],
    ),
    # Merged first, the survivors would be written twice, and live rows beside them for nothing.
    "files that the purge must rewrite are left to it": (TO_PURGE, "D", 0, [["1/A", "1/B"], ["1/F", "1/G"]]),
    "a file of unknown bounds may hold any tombstone": ([UNKNOWN, A, B], "Z", 0, [["1/A", "1/B"]]),
    "a file of unknown bounds, without tombstones": ([UNKNOWN, A, B], "", 0, [["?", "1/A", "1/B"]]),
    "files of an older partition spec stay": ([A, B], "", 1, []),
    "files of an unknown partition stay": ([replace(A, partition=None), replace(B, partition=None)], "", 0, []),
    # Else a byte would be rewritten at every vacuum until its file is large.
    "a merged file is not rewritten for a small one": ([small("A", size=400), small("B", size=10)], "", 0, []),
    "small files are merged beside a merged one": (
        [A, B, small("C", size=400), small("D", size=10)],
        "",
        0,
        [["1/A", "1/B"]],
    ),
    "merged files are of about the target size": (
        [small(f"{n}", size=300) for n in range(10)],
        "",
        0,
        [[f"1/{n + m}" for m in range(3)] for n in (0, 3, 6)],
    ),
}


@pytest.mark.parametrize(("files", "tombstoned", "spec_id", "merged"), MERGED.values(), ids=MERGED)
def test_small_neighbours_are_merged(
    files: list[FileBounds], tombstoned: str, spec_id: int, merged: list[list[str]]
) -> None:
    found = plan_compaction(1, files, tombstoned, spec_id, TARGET)

    assert [[f.path for f in one] for one in found.bins] == merged


def test_a_budget_is_spent_where_most_files_go_per_byte() -> None:
    many, few = [small(n, size=10) for n in "ABCD"], [small(n, size=200, day=2) for n in "AB"]

    found = plan_compaction(1, [*few, *many], (), 0, TARGET, max_bytes=100)

    assert ([[f.path for f in one] for one in found.bins], found.left) == ([["1/A", "1/B", "1/C", "1/D"]], 1)
    assert plan_compaction(1, [*few, *many], (), 0, TARGET, max_bytes=0).bins == ()


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
