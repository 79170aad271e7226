"""A file is read plain only if no tombstoned row can be in it; a partition rules a file out only when that is sure."""

from collections.abc import Collection
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.files.bounds import FileBounds
from lethe.files.increment import SkippedRange, covered_by, plan_read, skipped_ranges, unsure_of
from lethe.ledger.tombstone import META_PARTITIONS, Tombstone

from tests.support.builders import a_file, a_tombstone


def of(id: str, *partitions: str) -> Tombstone:
    """A tombstone limited to these partitions; without any, one that may be anywhere."""
    return a_tombstone(id, meta={META_PARTITIONS: "\n".join(partitions)} if partitions else {})


def a_file_in(
    partition: str | None, lower: str | None = "A", upper: str | None = "C", nulls: int | None = 0
) -> FileBounds:
    return replace(a_file(lower, upper, nulls=nulls), partition=partition)


WHERE = {
    "its own partition": (a_file_in("0/[1]"), [of("B", "0/[1]")], "filtered"),
    "one of its partitions": (a_file_in("0/[1]"), [of("B", "0/[0]", "0/[1]")], "filtered"),
    "another partition": (a_file_in("0/[1]"), [of("B", "0/[2]")], "plain"),
    "anywhere": (a_file_in("0/[1]"), [of("B")], "filtered"),
    "anywhere, among others that are elsewhere": (a_file_in("0/[1]"), [of("A", "0/[2]"), of("B")], "filtered"),
    "a partition of another spec, which may have been rewritten": (a_file_in("1/[1]"), [of("B", "0/[2]")], "filtered"),
    "one partition of its own spec and one of another": (a_file_in("1/[1]"), [of("B", "1/[2]", "0/[2]")], "filtered"),
    "a file without a sure partition": (a_file_in(None), [of("B", "0/[2]")], "filtered"),
    "its partition but not its bounds": (a_file_in("0/[1]"), [of("D", "0/[1]")], "plain"),
    "out of bounds in its partition, in bounds in another": (
        a_file_in("0/[1]"),
        [of("D", "0/[1]"), of("B", "0/[2]")],
        "plain",
    ),
    "nothing else": (a_file_in("0/[1]", "B", "B"), [of("B", "0/[1]")], "skipped"),
    "nothing else, though nobody remembers it here": (a_file_in("0/[1]", "B", "B"), [of("B", "0/[2]")], "skipped"),
    "nothing else but rows without a batch": (a_file_in("0/[1]", "B", "B", nulls=1), [of("B")], "filtered"),
    "an unpartitioned table": (a_file_in("0/[]"), [of("B", "0/[]")], "filtered"),
    "no tombstones": (a_file_in("0/[1]"), [], "plain"),
}


@pytest.mark.parametrize(("file", "tombstones", "wanted"), WHERE.values(), ids=WHERE)
def test_what_a_read_does_with_a_file(file: FileBounds, tombstones: list[Tombstone], wanted: str) -> None:
    plan = plan_read([file], tombstones)

    assert {wanted} == {k for k in ("plain", "filtered", "skipped") if getattr(plan, k)}


def test_only_ids_within_the_filtered_files_are_searched() -> None:
    files = [a_file("A", "C"), a_file("X", "Z"), a_file("K", "K")]

    plan = plan_read(files, [of("B"), of("D"), of("K"), of("W")])

    assert (plan.filtered, plan.plain, plan.skipped) == ((files[0],), (files[1],), (files[2],))
    assert plan.ids == {"B"}


def test_what_another_writer_added_is_never_ruled_out_by_its_partition() -> None:
    """Rows of an old batch may have come into any partition; nobody remembers them there."""
    ours, theirs = a_file_in("0/[1]"), replace(a_file_in("0/[1]"), path="theirs")
    elsewhere = [of("B", "0/[2]")]

    some = plan_read(unsure_of([ours, theirs], {"theirs"}), elsewhere)
    unknown = plan_read(unsure_of([ours, theirs], None), elsewhere)

    assert ([f.path for f in some.plain], [f.path for f in some.filtered]) == ([ours.path], ["theirs"])
    assert not unknown.plain


def test_the_ground_that_files_cover_is_few_intervals() -> None:
    files = [a_file("D", "F"), a_file("A", "B"), a_file("E", "G"), a_file("X", "X")]

    assert covered_by(files) == (("A", "B"), ("D", "G"), ("X", "X"))
    assert covered_by([*files, FileBounds("f", 1, 1, None, None, None)]) == ((None, None),)
    assert covered_by([]) == ()


def test_skipped_files_side_by_side_are_one_run() -> None:
    """As long as no file that is read might hold an id in between; the largest come first."""
    skipped = [
        a_file(i, path=f"{i}{n}", size=10) for i, n in (("B", 1), ("B", 2), ("D", 1), ("F", 1), ("H", 1), ("K", 1))
    ]
    others = [a_file("A"), a_file("E"), a_file("K", "M")]

    plan = plan_read([*skipped, *others], [of(i) for i in "BCDFGHK"])

    assert skipped_ranges(plan, 9) == (
        SkippedRange("B", "D", 30),
        SkippedRange("F", "H", 20),
        SkippedRange("K", "K", 10),
    )
    assert skipped_ranges(plan, 1) == (SkippedRange("B", "D", 30),)
    assert skipped_ranges(plan_read([*skipped, FileBounds("f", 1, 1, None, None, None)], [of("B"), of("D")]), 9) == (
        SkippedRange("B", "B", 20),
        SkippedRange("D", "D", 10),
    )


names = st.sampled_from("ABCDEF")
days = st.integers(0, 3)
a_row = st.tuples(st.none() | names, days)


@given(st.lists(a_row, max_size=12), st.sets(names), st.integers(1, 4))
def test_every_tombstoned_row_is_left_out_and_no_other(
    rows: list[tuple[str | None, int]], ids: Collection[str], split: int
) -> None:
    """Files of one partition each; tombstones limited to the partitions that have rows of theirs."""
    contents: dict[str, list[tuple[str | None, int]]] = {}
    for n, row in enumerate(rows):
        contents.setdefault(f"{row[1]}/{n % split}", []).append(row)
    files = []
    for path, of_file in contents.items():
        known = sorted(b for b, _ in of_file if b is not None)
        lower, upper = (known[0], known[-1]) if known else (None, None)
        nulls = len(of_file) - len(known)
        files.append(FileBounds(path, len(of_file), 1, lower, upper, nulls, partition=f"0/[{of_file[0][1]}]"))
    tombstones = [of(i, *{f"0/[{day}]" for b, day in rows if b == i}) for i in ids]

    plan = plan_read(files, tombstones)

    for run in skipped_ranges(plan, 99):
        assert all(r[0] in ids for r in rows if r[0] is not None and run.lower <= r[0] <= run.upper)
    read = [r for f in plan.plain for r in contents[f.path]]
    read += [r for f in plan.filtered for r in contents[f.path] if r[0] not in plan.ids]
    assert sorted(map(str, read)) == sorted(str(r) for r in rows if r[0] not in ids)
