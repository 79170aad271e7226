"""Bounds prove that a file cannot, might or can only hold tombstoned rows; what they do not prove is "might"."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.files.bounds import FileBounds, IdIndex, split_by_bounds

from tests.support.builders import a_file

WHERE = {
    "below every id": (a_file("A", "B"), ["C"], "cannot"),
    "above every id": (a_file("D", "E"), ["C"], "cannot"),
    "between two ids": (a_file("D", "E"), ["C", "F"], "cannot"),
    "no ids": (a_file("A", "Z"), [], "cannot"),
    "at the lower bound": (a_file("C", "E"), ["C"], "may_contain_deleted_rows"),
    "at the upper bound": (a_file("A", "C"), ["C"], "may_contain_deleted_rows"),
    "within": (a_file("A", "E"), ["C"], "may_contain_deleted_rows"),
    "both bounds tombstoned, something between": (a_file("A", "C"), ["A", "C"], "may_contain_deleted_rows"),
    "only this id": (a_file("C"), ["C"], "all_rows_deleted"),
    "only this id, one of many": (a_file("C"), ["A", "B", "C", "D"], "all_rows_deleted"),
    "rows A, A and NULL have equal bounds": (a_file("A", nulls=1), ["A"], "may_contain_deleted_rows"),
    "equal bounds, null count unknown": (a_file("A", nulls=None), ["A"], "may_contain_deleted_rows"),
    "only NULLs": (FileBounds("f", 3, 9, None, None, 3), ["A"], "may_contain_deleted_rows"),
    "bounds unknown": (FileBounds("f", 3, 9, None, None, None), ["A"], "may_contain_deleted_rows"),
    "lower bound unknown": (FileBounds("f", 3, 9, None, "B", 0), ["A"], "may_contain_deleted_rows"),
    "upper bound unknown": (FileBounds("f", 3, 9, "A", None, 0), ["B"], "may_contain_deleted_rows"),
    "lower bound unknown, all ids above": (FileBounds("f", 3, 9, None, "B", 0), ["C"], "cannot"),
    "upper bound unknown, all ids below": (FileBounds("f", 3, 9, "B", None, 0), ["A"], "cannot"),
    "a prefix of the bound is another id": (a_file("2013-01-01.UA.2"), ["2013-01-01.UA"], "cannot"),
    "the bound is a prefix of the id": (a_file("2013-01-01.UA"), ["2013-01-01.UA.2"], "cannot"),
    "truncated bounds of ids with a shared prefix": (
        a_file("2013-01-01.UA", "2013-01-01.UB"),
        ["2013-01-01.UA.2"],
        "may_contain_deleted_rows",
    ),
    "beyond the basic plane": (a_file("\uffff", "\U0001f600"), ["\U0001f5ff"], "may_contain_deleted_rows"),
    "the empty string": (a_file("", "A"), [""], "may_contain_deleted_rows"),
}


@pytest.mark.parametrize(("file", "ids", "wanted"), WHERE.values(), ids=WHERE)
def test_what_bounds_prove(file: FileBounds, ids: list[str], wanted: str) -> None:
    split = split_by_bounds([file], ids)

    assert {wanted: (file,)} == {k: v for k, v in vars(split).items() if v}


words = st.text("abé\U0001f600", max_size=4)
rows = st.lists(st.none() | words, min_size=1, max_size=6)


def of_rows(path: str, values: list[str | None]) -> FileBounds:
    """Bounds as a writer with full metrics records them: in the order of UTF-8 bytes."""
    known = sorted((v for v in values if v is not None), key=lambda v: v.encode())
    lower, upper = (known[0], known[-1]) if known else (None, None)
    return FileBounds(path, len(values), 1, lower, upper, len(values) - len(known))


@given(st.lists(rows, max_size=6), st.sets(words, max_size=5))
def test_no_file_with_a_tombstoned_row_is_passed_over_and_none_with_another_row_is_dropped(
    contents: list[list[str | None]], ids: set[str]
) -> None:
    files = [of_rows(str(i), values) for i, values in enumerate(contents)]

    split = split_by_bounds(files, ids)

    for f in split.cannot:
        assert ids.isdisjoint(v for v in contents[int(f.path)] if v is not None)
    for f in split.all_rows_deleted:
        assert set(contents[int(f.path)]) <= ids
    assert (
        sorted((*split.cannot, *split.may_contain_deleted_rows, *split.all_rows_deleted), key=lambda f: int(f.path))
        == files
    )


@given(rows, st.sets(words, max_size=6))
def test_the_ids_within_a_file_are_all_between_its_bounds(values: list[str | None], ids: set[str]) -> None:
    file = of_rows("f", values)
    index = IdIndex(ids)

    within = index.within(file)

    assert bool(within) == index.might_hold(file)
    assert {v for v in values if v is not None} & ids <= set(within)
    assert within == [i for i in sorted(ids) if (file.lower or "") <= i and (file.upper is None or i <= file.upper)]


def test_files_keep_their_order() -> None:
    files = [a_file("C", path="3"), a_file("A", path="1"), a_file("B", path="2")]

    assert split_by_bounds(files, ["A", "B", "C"]).all_rows_deleted == tuple(files)
