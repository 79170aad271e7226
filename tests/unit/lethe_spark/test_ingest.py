"""How files are distributed to tasks, and which types fit."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.ingest.buffer_store import FileTask
from lethe.ingest.exact_values import fits
from lethe_spark.ingest import BYTES_PER_GROUP, FILES_PER_GROUP, pack


@given(st.lists(st.integers(0, 10**9), max_size=60), st.integers(1, 8))
def test_every_file_is_in_one_group_and_no_group_is_empty(sizes: list[int], parallelism: int) -> None:
    tasks = [FileTask("b", f"s3://b/{i}", size) for i, size in enumerate(sizes)]

    groups = pack(tasks, parallelism)

    assert sorted(t.uri for g in groups for t in g.files) == sorted(t.uri for t in tasks)
    assert all(g.files for g in groups)


def test_groups_are_bounded_by_bytes_and_by_files() -> None:
    large = [FileTask("b", f"s3://b/{i}", BYTES_PER_GROUP) for i in range(10)]
    small = [FileTask("b", f"s3://b/{i}", 1) for i in range(FILES_PER_GROUP * 4)]

    assert [len(g.files) for g in pack(large, 2)] == [1] * 10
    assert max(len(g.files) for g in pack(small, 2)) <= FILES_PER_GROUP


def test_one_large_file_does_not_drag_small_ones_along() -> None:
    tasks = [FileTask("b", "s3://b/large", 64 * 2**20), *(FileTask("b", f"s3://b/{i}", 10_000) for i in range(100))]

    assert sorted(len(g.files) for g in pack(tasks, 2)) == [1, 100]


@pytest.mark.parametrize(
    ("actual", "wanted", "fit"),
    [
        (pa.int32(), pa.int64(), True),
        (pa.uint32(), pa.int64(), True),
        (pa.float32(), pa.float64(), True),
        (pa.large_string(), pa.string(), True),
        (pa.dictionary(pa.int8(), pa.string()), pa.string(), True),
        (pa.timestamp("ns", "America/New_York"), pa.timestamp("us", "UTC"), True),
        (pa.timestamp("s"), pa.timestamp("us"), True),
        (pa.decimal128(5, 2), pa.decimal128(9, 2), True),
        (pa.null(), pa.date32(), True),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), True),
        (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int64())]), True),
        (pa.int64(), pa.int32(), False),
        (pa.uint64(), pa.int64(), False),
        (pa.int64(), pa.float64(), False),
        (pa.float64(), pa.int64(), False),
        (pa.string(), pa.int64(), False),
        (pa.int64(), pa.string(), False),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), False),
        (pa.timestamp("us", "UTC"), pa.timestamp("us"), False),
        (pa.decimal128(9, 3), pa.decimal128(9, 2), False),
        (pa.struct([("b", pa.int64())]), pa.struct([("a", pa.int64())]), False),
    ],
)
def test_types_that_keep_every_value_fit(actual: pa.DataType, wanted: pa.DataType, fit: bool) -> None:
    assert fits(actual, wanted) is fit
