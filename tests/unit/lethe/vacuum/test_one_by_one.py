"""Which files a vacuum only filters, by metadata, and how many bytes its plan expects to copy and to encode."""

import random
from dataclasses import replace
from typing import Any

import pytest
from lethe.files.bounds import FileBounds, Suspects
from lethe.vacuum.plan import (
    Estimate,
    ExpectedBytes,
    SmallPurge,
    TableTraits,
    expected_bytes,
    in_vain_percent,
    is_sorted,
    one_by_one,
)

from tests.support.builders import a_file, a_tombstone

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
        {"bounds": a_file("A", "F", size=SIZE, records=1000, deletes=["d"])},
    ],
)
def test_a_file_that_is_not_plain_or_becomes_small_is_left(changes: dict[str, Any]) -> None:
    assert one_by_one(TABLE, [a_candidate(**changes)], target=SIZE) == []


def test_sorted_files_that_overlap_are_left() -> None:
    files = [a_candidate("A", "C"), a_candidate("B", "D"), a_candidate("E", "F")]

    assert one_by_one(TABLE, files, target=1) == [files[2]]


@pytest.mark.parametrize("order", [None, 0, 1])
def test_files_without_order_may_overlap(order: int | None) -> None:
    unbounded = a_candidate(bounds=replace(a_file("A", "F", size=SIZE, records=1000), upper=None))
    files = [a_candidate("A", "C"), a_candidate("B", "D"), a_candidate("E", "F"), unbounded, a_candidate(loses=990)]
    unsorted = [replace(f, sort_order_id=order) for f in files]

    assert one_by_one(TABLE, unsorted, target=SIZE) == unsorted[:4]
    assert not any(is_sorted(TABLE, f) for f in unsorted)


def test_a_sorted_file_may_overlap_with_one_that_is_not_sorted_with_it() -> None:
    files = [a_candidate("A", "C"), replace(a_candidate("B", "D"), sort_order_id=None)]

    assert one_by_one(TABLE, files, target=SIZE) == files
    assert one_by_one(TABLE, [files[0], replace(files[1], format_name="ORC")], target=SIZE) == []


def test_all_row_groups_of_files_that_overlap_may_have_rows_of_a_batch() -> None:
    files = [a_candidate("A", "D"), a_candidate("B", "E")]
    apart = [a_candidate("A", "B"), a_candidate("D", "E")]

    assert expected({"C": 2}, *files) == ExpectedBytes(copied=0, encoded=1000)
    assert expected({"A": 1, "D": 1}, *apart) == ExpectedBytes(copied=1800, encoded=200)


def test_a_batch_touches_the_row_groups_that_its_rows_need() -> None:
    assert expected({"B": 1}, a_candidate()) == ExpectedBytes(copied=900, encoded=100)
    assert expected({"B": 100}, a_candidate()) == ExpectedBytes(copied=801, encoded=199)
    assert expected({"B": 1, "C": 1, "D": 1}, a_candidate()) == ExpectedBytes(copied=700, encoded=300)
    assert expected({"B": 5000}, a_candidate()) == ExpectedBytes(copied=0, encoded=1000)


def test_all_is_encoded_in_a_file_without_row_groups_that_are_known_and_in_one_that_spark_rewrites() -> None:
    for groups in (0, 1):
        assert expected({"B": 1}, a_candidate(groups=groups)) == ExpectedBytes(copied=0, encoded=1000)
    assert expected({"B": 1}, a_candidate(), filtered=False) == ExpectedBytes(copied=0, encoded=1000)


def test_what_native_deletes_hide_is_encoded() -> None:
    hidden = a_candidate(bounds=a_file("A", "Z", size=SIZE, records=1000, deletes=["d"]))

    assert expected({}, hidden, filtered=False) == ExpectedBytes(copied=0, encoded=1000)


@pytest.mark.parametrize("seed", range(30))
def test_copied_encoded_and_in_vain_are_all_bytes(seed: int) -> None:
    luck = random.Random(seed)
    files = [a_candidate(*sorted(luck.choices("ABCDEFGH", k=2)), groups=luck.randrange(20)) for _ in range(10)]
    files = [replace(f, bounds=replace(f.bounds, path=str(n))) for n, f in enumerate(files)]
    batches = {b: luck.randrange(1, 3000) for b in luck.sample("ABCDEFGH", 3)}
    found = expected(batches, *files)

    bounds: list[FileBounds] = [f.bounds for f in files]
    estimate = Estimate(Suspects([a_tombstone(b) for b in batches]), bounds, batches)
    vain = in_vain_percent(estimate, bounds)
    assert vain is not None
    assert found.copied + found.encoded + vain / 100 * SIZE * len(files) == pytest.approx(SIZE * len(files), abs=2)


@pytest.mark.parametrize(("rows_per_batch", "deleted"), [(1, 3), (7, 5), (40, 2), (100, 4), (250, 2)])
def test_in_a_file_in_order_not_less_is_expected_to_be_encoded_than_is_on_average(
    rows_per_batch: int, deleted: int
) -> None:
    """Row groups of a hundred rows. The batches begin anywhere, because rows of others are before them."""
    luck = random.Random(1)
    encoded = []
    for _ in range(400):
        begin = luck.randrange(100)
        names = range((1000 - begin) // rows_per_batch)
        out = luck.sample(names, min(deleted, len(names)))
        rows = {begin + n * rows_per_batch + r for n in out for r in range(rows_per_batch)}
        encoded.append(len({row // 100 for row in rows}) * SIZE // 10)
    estimated = expected({f"B{n}": rows_per_batch for n in range(deleted)}, a_candidate("A", "Z")).encoded

    average = sum(encoded) / len(encoded)
    assert average * 0.97 <= estimated <= average * 1.6
