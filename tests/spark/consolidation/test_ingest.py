"""Buffered batches into data files: what goes in, what is set aside, and what is tried again."""

import gc
import os
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.base.errors import InputError, TransientError
from lethe.base.objects import BufferedObject
from lethe.ingest.buffer_files import ReadSettings
from lethe.uri import local_path
from lethe_spark import ingest as packing
from lethe_spark import ingest as writing
from lethe_spark.ingest import BatchSource, Ingested, write_batches

from tests.spark.parameters import some
from tests.spark.support.flights import Flights
from tests.support.lake import SCHEMA, BufferFolder

DAY = pa.array([1], pa.int32())
Read = Callable[..., Ingested]


@pytest.fixture
def read(buffer: BufferFolder, make_flights: Callable[..., Flights]) -> Read:
    """Write the test's whole buffer, or what is listed of it, as files of a new table."""

    def write_buffer(schema: str = SCHEMA, listed: Sequence[BatchSource] | None = None) -> Ingested:
        flights = make_flights(schema=schema, partition_by=("day",) if "day" in schema else ())
        return write_batches(
            flights.table, buffer.sources() if listed is None else listed, ReadSettings("batch_id", {}), "run-1"
        )

    return write_buffer


def table_of(done: Ingested) -> pa.Table:
    return pa.concat_tables(pq.ParquetFile(local_path(f.path)).read() for f in done.files)


def rows(done: Ingested) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table_of(done).to_pylist()) if done.files else []


def refusals(ingest: Ingested) -> dict[str, str]:
    return {r.batch_id: r.reason for r in ingest.refused}


def test_rows_of_many_small_files_carry_the_id_of_their_batch(buffer: BufferFolder, read: Read) -> None:
    buffer.put("2013-01-01.UA", [{"v": n, "day": 1} for n in range(5)], files=3)
    buffer.put("weird/ id=ü", [{"day": 2, "v": 9}])

    ingest = read()
    assert [*((n, 1, "2013-01-01.UA") for n in range(5)), (9, 2, "weird/ id=ü")] == rows(ingest)
    assert (
        ingest.rows_per_batch,
        ingest.rows,
        ingest.refused,
    ) == ({"2013-01-01.UA": 5, "weird/ id=ü": 1}, 6, ())


def test_a_batch_without_rows_or_without_files_is_read_as_empty(buffer: BufferFolder, read: Read) -> None:
    buffer.put("empty", pa.table({"v": pa.array([], pa.int64()), "day": pa.array([], pa.int32())}))
    (buffer.put("no-files") / "part-0.parquet").unlink()

    ingest = read()
    assert (ingest.rows_per_batch, rows(ingest)) == ({"empty": 0, "no-files": 0}, [])


@pytest.mark.parametrize("damage", some(["garbage", "cut off", "empty"], "cut off"))
def test_one_unreadable_file_sets_its_whole_batch_aside_and_is_named(
    buffer: BufferFolder, read: Read, damage: str
) -> None:
    """Rows of its other files, which Spark has seen by then, do not go in either."""
    buffer.put("good", [{"v": 1, "day": 1}])
    folder = buffer.put("bad", [{"v": n, "day": 1} for n in range(6)], files=3)
    file = folder / "part-1.parquet"
    whole = file.read_bytes()
    file.write_bytes({"garbage": b"not parquet", "cut off": whole[: len(whole) // 2], "empty": b""}[damage])

    ingest = read()
    assert (rows(ingest), ingest.rows_per_batch) == ([(1, 1, "good")], {"good": 1})
    assert refusals(ingest) == {"bad": "UnreadableFile"}
    assert ingest.refused[0].message.startswith(f"file://{file}: ")


def test_damage_in_the_middle_of_a_page_is_found_too(buffer: BufferFolder, read: Read) -> None:
    """The footer is fine, so rows were about to come."""
    folder = buffer.put("bad", [{"v": n * 7919, "day": n % 31} for n in range(50_000)])
    file = folder / "part-0.parquet"
    content = bytearray(file.read_bytes())
    content[200:4000] = b"\xff" * 3800
    file.write_bytes(content)

    ingest = read()
    assert (refusals(ingest), rows(ingest)) == ({"bad": "UnreadableFile"}, [])


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        pytest.param(pa.table(columns), problem, marks=pytest.mark.long)
        for columns, problem in (
            ({"v": [1]}, "column day (int32) is missing; the file has 1 columns"),
            ({"v": [1], "day": DAY, "tail": ["N1"]}, "column tail is not in the table"),
            ({"v": ["1"], "day": DAY}, "column v is string, expected int64"),
            ({"v": [1], "day": pa.array([1], pa.int64())}, "column day is int64, expected int32"),
        )
    ]
    + [(pa.table({"v": [1.0], "day": DAY}), "column v is double, expected int64")],
)
def test_a_file_that_does_not_fit_the_table_is_refused_by_column(
    buffer: BufferFolder, read: Read, table: pa.Table, problem: str
) -> None:
    buffer.put("bad", table)

    ingest = read()
    assert refusals(ingest) == {"bad": "SchemaMismatch"}
    assert problem in ingest.refused[0].message


def test_types_that_lose_nothing_are_widened(buffer: BufferFolder, read: Read) -> None:
    moment = datetime(2013, 1, 1, 10, tzinfo=UTC)
    buffer.put(
        "A",
        pa.table(
            {
                "n": pa.array([1], pa.int16()),
                "x": pa.array([0.5], pa.float32()),
                "at": pa.array([moment], pa.timestamp("ns", "Europe/Berlin")),
                "carrier": pa.array(["UA"]).dictionary_encode(),
                "tail": pa.array(["N1"], pa.large_string()),
                "nothing": pa.nulls(1),
            }
        ),
    )

    ingest = read("n bigint, x double, at timestamp, carrier string, tail string, nothing date, batch_id string")
    assert rows(ingest) == [(1, 0.5, moment, "UA", "N1", None, "A")]


def test_a_time_that_would_be_rounded_is_refused(buffer: BufferFolder, read: Read) -> None:
    buffer.put("A", pa.table({"at": pa.array([1], pa.timestamp("ns", "UTC"))}))

    ingest = read("at timestamp, batch_id string")
    assert refusals(ingest) == {"A": "SchemaMismatch"}
    assert "column at" in ingest.refused[0].message


@pytest.mark.parametrize(
    ("ids", "refused"),
    [
        pytest.param(["A", "A"], {}, marks=pytest.mark.long),
        (["A", "B"], {"A": "BatchIdMismatch"}),
        pytest.param(["A", None], {"A": "BatchIdMismatch"}, marks=pytest.mark.long),
    ],
)
def test_a_batch_column_in_the_file_must_be_the_id_everywhere(
    buffer: BufferFolder, read: Read, ids: list[str | None], refused: dict[str, str]
) -> None:
    buffer.put("A", pa.table({"batch_id": ids, "v": [1, 2], "day": pa.array([1, 1], pa.int32())}))

    ingest = read()
    assert refused == refusals(ingest)


def test_a_null_in_a_required_column_is_refused_and_the_rest_is_written(
    buffer: BufferFolder, make_flights: Callable[..., Flights]
) -> None:
    """Spark sees every column of Python's rows as nullable; the table keeps its promise all the same."""
    flights = make_flights(schema="v bigint NOT NULL, day int, batch_id string")
    buffer.put("bad", pa.table({"v": [1, None], "day": pa.array([1, 1], pa.int32())}))
    buffer.put("good", pa.table({"v": [1, 2], "day": pa.array([1, 1], pa.int32())}))

    ingest = write_batches(flights.table, buffer.sources(), ReadSettings("batch_id", {}), "run-1")

    assert (refusals(ingest), sum(f.records for f in ingest.files)) == ({"bad": "SchemaMismatch"}, 2)
    assert "row 1: column v holds a null" in ingest.refused[0].message


@pytest.mark.long
def test_a_batch_with_several_bad_files_names_the_first_and_counts_the_rest(buffer: BufferFolder, read: Read) -> None:
    folder = buffer.put("bad", [{"v": n, "day": 1} for n in range(3)], files=3)
    for n in (1, 2):
        (folder / f"part-{n}.parquet").write_bytes(b"x")

    ingest = read()
    message = ingest.refused[0].message
    assert "part-1.parquet" in message
    assert "1 more files" in message


@pytest.mark.long
def test_an_object_that_vanished_or_changed_since_the_listing_is_tried_again(buffer: BufferFolder, read: Read) -> None:
    """Refusing the batch would remember a passing trouble for ever."""
    folder = buffer.put("A", [{"v": 1, "day": 1}])
    listed = buffer.sources()
    file = folder / "part-0.parquet"

    file.write_bytes(file.read_bytes() + b"more")
    (changed,) = read(listed=listed).unread
    file.unlink()
    (gone,) = read(listed=listed).unread

    assert (changed.reason, gone.reason) == ("ObjectChanged", "ObjectGone")
    assert "part-0.parquet: it changed after it was listed" in changed.message


def test_a_batch_of_which_a_file_cannot_be_had_waits_and_the_others_go_in(buffer: BufferFolder, read: Read) -> None:
    """A file of the same length is another one, too: what is promoted is what was listed."""
    buffer.put("A", [{"v": 1, "day": 1}])
    changed = buffer.put("B", [{"v": 2, "day": 1}]) / "part-0.parquet"
    gone = buffer.put("C", [{"v": 3, "day": 1}, {"v": 4, "day": 1}], files=2) / "part-1.parquet"
    listed = buffer.sources()
    os.utime(changed, ns=(0, 1))
    gone.unlink()

    ingest = read(listed=listed)

    assert (rows(ingest), ingest.rows_per_batch, ingest.refused) == ([(1, 1, "A")], {"A": 1}, ())
    assert {u.batch_id: u.reason for u in ingest.unread} == {"B": "ObjectChanged", "C": "ObjectGone"}


def test_a_store_that_does_not_answer_is_transient(flights: Flights) -> None:
    nobody = {
        "s3.endpoint": "http://127.0.0.1:9",
        "s3.access-key-id": "a",
        "s3.secret-access-key": "topsecret",
        "s3.region": "us-east-1",
    }
    source = BatchSource("A", (BufferedObject("s3://lake/batch_id=A/x.parquet", 10, "e"),))

    with pytest.raises(TransientError, match=r"BufferAway: .*s3://lake/batch_id=A/x\.parquet") as away:
        write_batches(flights.table, [source], ReadSettings("batch_id", nobody), "run-1")

    assert "topsecret" not in str(away.value)


@pytest.mark.long
def test_a_batch_column_that_is_not_a_string_is_refused_at_once(read: Read) -> None:
    with pytest.raises(InputError, match="BatchColumnType: the batch column batch_id is bigint, expected string"):
        read("batch_id bigint", [])


def test_nothing_of_a_batch_goes_in_if_another_task_finds_a_bad_file(
    buffer: BufferFolder, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "FILES_PER_GROUP", 1)  # each file is a task of its own
    buffer.put("good", [{"v": 1, "day": 1}])
    folder = buffer.put("large", [{"v": n, "day": 1} for n in range(6)], files=3)
    (folder / "part-2.parquet").write_bytes(b"not parquet")

    ingest = read()

    assert (rows(ingest), ingest.rows_per_batch, refusals(ingest)) == (
        [(1, 1, "good")],
        {"good": 1},
        {"large": "UnreadableFile"},
    )


@pytest.mark.parametrize("one_pass_bytes", some([0, 1 << 30], 0))
def test_a_table_that_arrow_does_not_write_gets_the_same_rows_by_spark(
    buffer: BufferFolder, make_flights: Callable[..., Flights], one_pass_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "ONE_PASS_BYTES", one_pass_bytes)
    for id in "AB":
        buffer.put(id, [{"v": n, "day": n % 3} for n in range(30)], files=2)
    (buffer.put("bad", [{"v": 1, "day": 1}], files=2) / "part-1.parquet").write_bytes(b"not parquet")
    flights = make_flights(schema=SCHEMA, partition_by=("day",))
    flights.table.set_properties({"write.parquet.bloom-filter-enabled.column.v": "true"})

    ingest = write_batches(flights.table, buffer.sources(), ReadSettings("batch_id", {}), "run-1")

    assert ingest.rows_per_batch == {"A": 30, "B": 30}
    assert rows(ingest) == sorted((n, n % 3, id) for id in "AB" for n in range(30))
    assert b"parquet-mr" in pq.ParquetFile(local_path(ingest.files[0].path)).metadata.created_by.encode()


@pytest.mark.long
def test_a_table_without_partitions_gets_one_sorted_file(buffer: BufferFolder, read: Read) -> None:
    for id in "BAC":
        buffer.put(id, pa.table({"v": pa.array(range(30), pa.int64())}), files=2)

    ingest = read("v bigint, batch_id string")

    (file,) = ingest.files
    assert table_of(ingest)["batch_id"].to_pylist() == [id for id in "ABC" for _ in range(30)]
    assert (file.lower, file.upper) == ("A", "C")


def test_what_tasks_import_is_left_out_when_workers_collect_garbage(flights: Flights) -> None:
    """A worker collects after each task. If it had imported it itself, this would take longer than reading a hundred files."""
    name = packing.__name__

    def is_left_out(_: int) -> bool:
        module = sys.modules.get(name)
        return module is not None and all(found is not module for found in gc.get_objects())

    assert flights.spark.sparkContext.parallelize([0], 1).map(is_left_out).collect() == [True]
