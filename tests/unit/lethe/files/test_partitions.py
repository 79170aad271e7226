"""A partition has one text or none, and what is remembered of a batch is a superset of where its rows are."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.files.bounds import FileBounds, partition_text, partition_text_of_json, partitions_of_batches, widened

from tests.support.builders import a_file

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


def test_a_batch_is_recorded_in_the_partitions_of_every_file_that_may_hold_it() -> None:
    files = [in_partition("A", "C", "0/[1]"), in_partition("B", "D", "0/[2]"), in_partition("E", "E", "0/[3]")]

    assert partitions_of_batches(files, ["A", "B", "D", "E"]) == {
        "A": ("0/[1]",),
        "B": ("0/[1]", "0/[2]"),
        "D": ("0/[2]",),
        "E": ("0/[3]",),
    }


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


def test_unknown_bounds_may_hold_every_batch() -> None:
    assert partitions_of_batches([in_partition(None, None, "0/[1]")], ["A"]) == {"A": ("0/[1]",)}


def test_files_of_another_writer_widen_what_is_remembered_of_the_batches_they_may_hold() -> None:
    known = {"A": ("0/[1]",), "B": ("0/[1]",), "C": ("0/[1]", "0/[2]"), "D": None, "E": ("0/[1]",)}
    foreign = [in_partition("B", "D", "0/[2]"), in_partition("E", "E", None)]

    assert widened(known, foreign) == {"B": ("0/[1]", "0/[2]"), "E": None}


ids = st.sampled_from("ABCDEF")
written = st.lists(st.tuples(st.lists(ids, min_size=1, max_size=4), st.none() | st.integers(0, 70)), max_size=80)


@given(written, written)
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
