"""What bounds and partitions prove of a file; what they do not prove is that it might hold tombstoned rows."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.files.bounds import (
    NEVER,
    FileBounds,
    IdIndex,
    Suspects,
    partition_text,
    partition_text_of_json,
    partitions_of_batches,
    split_by_bounds,
    widened,
)
from lethe.ledger.tombstone import META_PARTITIONS, Tombstone

from tests.support.builders import NOW, a_file, a_tombstone

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


TEXTS = {
    "no partition": ([], "7/[]"),
    "an integer": ([3], "7/[3]"),
    "a null": ([None], "7/[null]"),
    "a string": (["UA"], '7/["UA"]'),
    "a number that is a string": (["3"], '7/["3"]'),
    "a boolean is no number": ([True, 1], "7/[true,1]"),
    "two fields in the spec's order": ([18628, "a b"], '7/[18628,"a b"]'),
    "quotes and line ends": (['"\n/'], '7/["\\"\\n/"]'),
    "beyond ASCII": (["é\U0001f600"], '7/["é\U0001f600"]'),
    "a long": ([2**63 - 1, -(2**63)], "7/[9223372036854775807,-9223372036854775808]"),
    "a float is not sure": ([1.5], None),
    "a decimal is not sure": ([Decimal("1.50")], None),
    "bytes are not sure": ([b"a"], None),
    "one that is not sure among others": ([1, 1.0], None),
    "half a character": (["\ud800"], None),
    "a character that was not understood": (["a\ufffd"], None),
}


@pytest.mark.parametrize(("values", "text"), TEXTS.values(), ids=TEXTS)
def test_a_partition_tuple_has_one_text_or_none(values: list[object], text: str | None) -> None:
    assert partition_text(7, values) == text


JSON = {
    "a date is its number of days": (["date"], ["1970-01-31"], "0/[30]"),
    "a date before 1970": (["date"], ["1969-12-30"], "0/[-2]"),
    "a date that Python does not know": (["date"], ["+12345-01-01"], None),
    "an integer": (["int"], [4], "0/[4]"),
    "a string, a boolean and a null": (["string", "boolean", "long"], ["4", False, None], '0/["4",false,null]'),
    "a timestamp as it is": (["timestamptz"], ["2013-01-01T00:00:00+00:00"], None),
    "a UUID is no string": (["uuid"], ["f79c3e09-677c-4bbd-a479-3f349cb785e7"], None),
}


@pytest.mark.parametrize(("types", "values", "text"), JSON.values(), ids=JSON)
def test_the_json_form_of_a_partition_has_the_same_text_or_none(
    types: list[str], values: list[object], text: str | None
) -> None:
    assert partition_text_of_json(0, types, values) == text


def in_partition(lower: str | None, upper: str | None, partition: str | None) -> FileBounds:
    return replace(a_file(lower, upper, path=f"{lower}-{upper}-{partition}"), partition=partition)


def test_a_batch_is_anywhere_when_its_files_do_not_say_where() -> None:
    """No text for a file, more partitions than are worth a list, or no file at all."""
    many = [in_partition("M", "M", f"0/[{n}]") for n in range(65)]
    files = [in_partition("A", "B", None), in_partition("B", "C", "0/[1]"), *many, *many[:1]]

    assert partitions_of_batches(files, ["A", "B", "C", "M", "Z"]) == {
        "A": None,
        "B": None,
        "C": ("0/[1]",),
        "M": None,
        "Z": None,
    }
    assert partitions_of_batches(many[:64], ["M"]) == {"M": tuple(sorted(f"0/[{n}]" for n in range(64)))}


batch_ids = st.sampled_from("ABCDEF")
written_files = st.lists(
    st.tuples(st.lists(batch_ids, min_size=1, max_size=4), st.none() | st.integers(0, 70)), max_size=80
)


@given(written_files, written_files)
def test_whatever_was_written_is_remembered(
    ours: list[tuple[list[str], int]], theirs: list[tuple[list[str], int]]
) -> None:
    def files(contents: list[tuple[list[str], int]]) -> list[FileBounds]:
        texts = [None if day is None else f"0/[{day}]" for _, day in contents]
        return [in_partition(min(b), max(b), t) for (b, _), t in zip(contents, texts, strict=True)]

    remembered = partitions_of_batches(files(ours), "ABCDEF")
    remembered |= widened(remembered, files(theirs))

    for batches, day in ours + theirs:
        for batch in batches:
            known = remembered[batch]
            assert known is None or (day is not None and f"0/[{day}]" in known)


def of(id: str, *partitions: str) -> Tombstone:
    """A tombstone limited to these partitions; without any, one that may be anywhere."""
    return a_tombstone(id, meta={META_PARTITIONS: "\n".join(partitions)} if partitions else {})


def file_in(partition: str | None, lower: str, upper: str, path: str = "") -> FileBounds:
    return replace(a_file(lower, upper, path=path or f"{partition}{lower}{upper}"), partition=partition)


some_ids = st.sampled_from("ABCDEF")
partitions = st.sampled_from(["0/[1]", "0/[2]", "1/[1]"])
tombstones = st.lists(
    st.builds(lambda i, ps: of(i, *sorted(ps)), some_ids, st.sets(partitions, max_size=2)), unique_by=lambda t: t.id
)
files = st.lists(
    st.builds(lambda a, b, p: file_in(p, min(a, b), max(a, b)), some_ids, some_ids, st.none() | partitions), max_size=6
)


def may_contain_deleted_rows(tombstone: Tombstone, file: FileBounds) -> bool:
    """In the simplest words there are."""
    assert file.lower is not None
    assert file.upper is not None
    if not file.lower <= tombstone.id <= file.upper:
        return False
    known = tombstone.partitions
    if known is None or file.partition is None or file.partition in known:
        return True
    return any(p.partition("/")[0] != file.partition.partition("/")[0] for p in known)


@given(tombstones=tombstones, files=files)
def test_the_layers_decide_about_each_file_as_each_tombstone_does(
    tombstones: list[Tombstone], files: list[FileBounds]
) -> None:
    suspects = Suspects(tombstones)

    for f in files:
        wanted = {t.id for t in tombstones if may_contain_deleted_rows(t, f)}
        assert set(suspects.within(f)) == wanted
        assert len(suspects.within(f)) == len(wanted)
        assert suspects.might_hold(f) == bool(wanted)
    assert suspects.covered(files) == {t.id for t in tombstones if any(may_contain_deleted_rows(t, f) for f in files)}


def test_the_earliest_deadline_is_that_of_the_tombstones_that_a_file_might_hold() -> None:
    due = {"A": 3, "C": 1, "E": 2}
    suspects = Suspects([a_tombstone(i, evict_by=NOW + timedelta(days=n)) for i, n in due.items()] + [of("D")])

    found = [suspects.earliest(a_file(*bounds)) for bounds in ("AB", "AC", "DE", "DD", "XZ")]

    assert found == [NOW + timedelta(days=n) for n in (3, 1, 2)] + [NEVER, NEVER]
