"""What a vacuum takes first, what it expects to copy, to encode and to find, and which files it filters one by one."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.files.bounds import FileBounds, Suspects
from lethe.ledger.tombstone import Tombstone
from lethe.vacuum.plan import (
    Drift,
    Estimate,
    ExpectedBytes,
    PurgeDeadlines,
    SmallPurge,
    TableTraits,
    apart,
    by_priority,
    bytes_after_conflict,
    expected_bytes,
    first_step,
    in_vain_percent,
    one_by_one,
    small_neighbours,
    stays_large,
    within_budget,
)

from tests.support.builders import NOW, a_file, a_tombstone


def file_in(partition: str, lower: str, upper: str, size: int = 100, records: int = 10) -> FileBounds:
    bounds = a_file(lower, upper, path=f"{partition}:{lower}-{upper}:{size}", size=size, records=records)
    return replace(bounds, partition=partition)


def an_estimate(tombstones: list[Tombstone], files: list[FileBounds], **rows: int) -> Estimate:
    return Estimate(Suspects(tombstones), files, rows)


OVERLAPPING = [a_file("A", "Z", path=str(n), records=10) for n in range(4)]
IN_VAIN: dict[str, tuple[str, list[FileBounds], dict[str, int], float | None]] = {
    "no files overlap": ("BE", [a_file("A", "C"), a_file("D", "F")], {}, 0),
    "as many files are expected to hold a batch as its rows need": ("B", OVERLAPPING, {"B": 3}, 75),
    "its rows need two of four files": ("B", OVERLAPPING, {"B": 20}, 50),
    "its rows need all files": ("B", OVERLAPPING, {"B": 40}, 0),
    "the more batches go, the less is in vain": ("BC", OVERLAPPING[:2], {}, 25),
    "what native deletes hide is never in vain": ("", [a_file("A", "Z", deletes=["d"])], {}, 0),
    "there is nothing": ("", [], {}, None),
}


@pytest.mark.parametrize(("batches", "files", "rows", "percent"), IN_VAIN.values(), ids=IN_VAIN)
def test_how_much_is_expected_to_be_rewritten_in_vain(
    batches: str, files: list[FileBounds], rows: dict[str, int], percent: float | None
) -> None:
    found = in_vain_percent(an_estimate([*map(a_tombstone, batches)], files, **rows), files)

    assert found == (None if percent is None else pytest.approx(percent))


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
    "no files": ([], None),
}


@pytest.mark.parametrize(("bounds", "wanted"), DRIFT.values(), ids=DRIFT)
def test_drift_is_the_number_of_overlapping_files(bounds: list[tuple[str, str]], wanted: float | None) -> None:
    assert drift(*(a_file(lower, upper, path=str(n)) for n, (lower, upper) in enumerate(bounds))) == wanted


# --- in which order -------------------------------------------------------------------------------------------------
def order(files: list[FileBounds], *tombstones: Tombstone, due_days: float | None = None, **rows: int) -> list[str]:
    suspects = Suspects(tombstones)
    due_by = None if due_days is None else NOW + timedelta(days=due_days)
    return [f.path for f in by_priority(files, suspects, Estimate(suspects, files, rows), PurgeDeadlines(due_by))]


def test_what_is_due_goes_before_what_is_dense_and_the_earliest_deadline_first() -> None:
    files = [a_file(i, f"{i}z", path=i, size=1000) for i in "ABC"] + [a_file("D", "Dz", path="dense", size=1)]
    due = [a_tombstone(i, evict_by=NOW + timedelta(days=n)) for i, n in {"A": 2, "B": 1, "C": 30}.items()]

    assert order(files, *due, a_tombstone("D"), due_days=7, D=900) == ["B", "A", "dense", "C"]


def test_files_that_are_much_alike_go_partition_by_partition_in_the_order_of_batches() -> None:
    """So that a step that is cut off in between leaves whole neighbourhoods."""
    files = [file_in(p, lower, f"{lower}z", size=100 + n) for n, (p, lower) in enumerate(["2C", "1B", "2A", "1C"])]

    found = order(files, *map(a_tombstone, "ABC"), C=2)

    assert [f.partition(":")[0] for f in found] == ["1", "1", "2", "2"]
    assert [f.split(":")[1][0] for f in found] == ["B", "C", "A", "C"]


def test_a_budget_takes_in_order_what_fits_and_the_first_of_a_run_in_any_case() -> None:
    large, small, tiny = (a_file("A", path=p, size=n) for p, n in (("large", 90), ("small", 40), ("tiny", 10)))

    assert within_budget([large, small, tiny], 100) == ((large, tiny), (small,))
    assert within_budget([large, small], 10) == ((large,), (small,))
    assert within_budget([large, tiny], 100, spent=50) == ((tiny,), (large,))


def test_a_step_has_as_many_files_as_its_bytes_and_one_at_least() -> None:
    files = [a_file("A", path=str(n), size=40) for n in range(4)]

    assert [len(first_step(files, size)) for size in (1, 79, 80, 1000)] == [1, 1, 2, 4]
    assert first_step([], 10) == ()


def test_after_a_conflict_a_step_has_a_quarter_of_the_bytes_and_one_at_least() -> None:
    files = [a_file("A", path=str(n), size=40) for n in range(4)]

    assert [bytes_after_conflict(files, size) for size in (1000, 20)] == [40, 20]
    assert [bytes_after_conflict(some, 1000) for some in (files[:0], [a_file("A", size=3)])] == [1, 1]


# --- merged beside --------------------------------------------------------------------------------------------------
def test_small_neighbours_of_a_rewritten_file_are_merged_into_it_if_that_costs_little() -> None:
    rewritten = [file_in("1", "F", "K", size=1000)]
    beside = [file_in("1", "C", "D", size=4), file_in("1", "M", "N", size=6)]
    others = [file_in("1", "A", "B", size=1), file_in("2", "F", "G", size=1), file_in("1", "G", "H", size=100)]

    assert set(small_neighbours(rewritten, [*beside, *others[:2]])) == set(beside)
    assert small_neighbours(rewritten, [others[2]]) == ()
    assert small_neighbours(rewritten, beside, at_most=5) == (beside[0],)
    assert small_neighbours([], beside) == ()


TABLE = TableTraits(format_version=2, spec_id=0, columns=("batch_id", "v"), properties={}, batch_orders={2})
SIZE = 1000


def a_candidate(lower: str = "A", upper: str = "F", groups: int = 10, **changes: Any) -> SmallPurge:
    """A file of a thousand bytes and a thousand rows."""
    bounds = a_file(lower, upper, path=f"{lower}-{upper}", size=SIZE, records=1000)
    return replace(SmallPurge(bounds, "PARQUET", 0, loses=10, groups=groups, sort_order_id=2), **changes)


def expected(batches: dict[str, int], *files: SmallPurge, filtered: bool = True) -> ExpectedBytes:
    """Of deleted batches with so many rows."""
    estimate = Estimate(Suspects([a_tombstone(b) for b in batches]), [f.bounds for f in files], batches)
    return expected_bytes(estimate, files, files if filtered else ())


@pytest.mark.parametrize(
    ("table", "is_filterable"),
    [
        ({}, True),
        ({"format_version": 1}, True),
        ({"format_version": 3}, True),
        ({"format_version": 4}, False),
        ({"columns": ("batch_id", "_row_id")}, False),
        ({"properties": {"write.format.default": "parquet"}}, True),
        ({"properties": {"write.format.default": "orc"}}, False),
        ({"properties": {"encryption.key-id": "k"}}, False),
        ({"properties": {"write.parquet.bloom-filter-enabled.column.v": "true"}}, False),
        ({"properties": {"write.parquet.bloom-filter-enabled.column.v": "false"}}, True),
    ],
)
def test_the_table_decides_about_all_its_files(table: dict[str, Any], is_filterable: bool) -> None:
    file = a_candidate()

    assert one_by_one(replace(TABLE, **table), [file], target=1) == ([file] if is_filterable else [])


@pytest.mark.parametrize(
    "changes",
    [
        {"format_name": "ORC"},
        {"spec_id": 1},
        {"loses": None},
        {"loses": 990},
    ],
)
def test_a_file_that_is_not_plain_or_becomes_small_is_left(changes: dict[str, Any]) -> None:
    assert one_by_one(TABLE, [a_candidate(**changes)], target=SIZE) == []


def test_sorted_files_that_overlap_are_left() -> None:
    files = [a_candidate("A", "C"), a_candidate("B", "D"), a_candidate("E", "F")]

    assert one_by_one(TABLE, files, target=1) == [files[2]]


def test_files_that_lose_no_rows_of_batches_may_overlap() -> None:
    """An erasure takes a few rows out of them. To sort them again is not its business."""
    files = [a_candidate("A", "C", loses=0), a_candidate("B", "D"), a_candidate("B", "E", loses=0)]

    assert one_by_one(TABLE, files, target=1) == files
    assert one_by_one(TABLE, [*files, a_candidate("C", "E")], target=1) == [files[0], files[2]]


def test_a_sorted_file_may_overlap_with_one_that_is_not_sorted_with_it() -> None:
    files = [a_candidate("A", "C"), replace(a_candidate("B", "D"), sort_order_id=None)]

    assert one_by_one(TABLE, files, target=SIZE) == files
    assert one_by_one(TABLE, [files[0], replace(files[1], format_name="ORC")], target=SIZE) == []


HIDDEN = a_candidate(bounds=a_file("A", "Z", size=SIZE, records=1000, deletes=["d"]))
EXPECTED: dict[str, tuple[dict[str, int], list[SmallPurge], bool, tuple[int, int]]] = {
    "files that overlap": ({"C": 2}, [a_candidate("A", "D"), a_candidate("B", "E")], True, (0, 1000)),
    "files apart": ({"A": 1, "D": 1}, [a_candidate("A", "B"), a_candidate("D", "E")], True, (1800, 200)),
    "one row": ({"B": 1}, [a_candidate()], True, (900, 100)),
    "a hundred rows": ({"B": 100}, [a_candidate()], True, (801, 199)),
    "three batches": ({"B": 1, "C": 1, "D": 1}, [a_candidate()], True, (700, 300)),
    "more rows than the file has": ({"B": 5000}, [a_candidate()], True, (0, 1000)),
    "unknown row groups": ({"B": 1}, [a_candidate(groups=0)], True, (0, 1000)),
    "one row group": ({"B": 1}, [a_candidate(groups=1)], True, (0, 1000)),
    "a file that Spark rewrites": ({"B": 1}, [a_candidate()], False, (0, 1000)),
    "what native deletes hide": ({}, [HIDDEN], False, (0, 1000)),
}


@pytest.mark.parametrize(("batches", "files", "filtered", "bytes_"), EXPECTED.values(), ids=EXPECTED)
def test_a_batch_touches_the_row_groups_that_its_rows_need(
    batches: dict[str, int], files: list[SmallPurge], filtered: bool, bytes_: tuple[int, int]
) -> None:
    """Copied and encoded."""
    assert expected(batches, *files, filtered=filtered) == ExpectedBytes(*bytes_)


FILE = FileBounds("f", records=100, size=1000, lower="A", upper="C", null_count=0, partition="1")
letters = st.sampled_from("ABCDEFGH")
files = st.lists(
    st.tuples(st.one_of(st.none(), letters), st.one_of(st.none(), letters), st.sampled_from("12")), max_size=6
).map(lambda found: [replace(FILE, path=str(n), lower=a, upper=b, partition=p) for n, (a, b, p) in enumerate(found)])


@given(files)
def test_a_file_is_apart_if_it_overlaps_with_no_other(found: list[FileBounds]) -> None:
    def known(f: FileBounds) -> bool:
        return f.lower is not None and f.upper is not None and f.lower <= f.upper

    found = [f for f in found if f.lower is None or f.upper is None or known(f)]

    def overlap(a: FileBounds, b: FileBounds) -> bool:
        """Whether they have more in common than an end."""
        if not (known(a) and known(b)):
            return True
        lower, upper = max(a.lower or "", b.lower or ""), min(a.upper or "", b.upper or "")
        inside = any((f.lower or "") < lower == upper < (f.upper or "") for f in (a, b))
        return lower < upper or inside

    expected = {
        f.path
        for f in found
        if known(f) and not any(g is not f and g.partition == f.partition and overlap(f, g) for g in found)
    }
    assert apart(found) == expected


def test_a_file_is_large_by_what_is_left_of_it() -> None:
    assert stays_large(FILE, rows=0, target=8000)
    assert not stays_large(FILE, rows=1, target=8000)
    assert stays_large(FILE, rows=50, target=4000)
    assert not stays_large(FILE, rows=100, target=8)
