"""Buffered batches into one DataFrame: what goes in, what is set aside, and what is tried again."""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lethe.errors import InputError, TransientError
from lethe.ledger.ledger import BufferedObject
from lethe_spark import buffer_store
from lethe_spark.buffer_files import Reader, decode_error
from lethe_spark.buffer_store import BufferAway, FileTask, Watched
from lethe_spark.fitting import ERROR_COLUMN
from lethe_spark.ingest import BatchSource, Ingest, read_batches
from lethe_spark.jvm.rewrite import write_uncommitted
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from tests.spark.lake import BufferFolder, Flights

SCHEMA = StructType().add("v", "long").add("day", "integer").add("batch_id", "string")
DAY = pa.array([1], pa.int32())
Read = Callable[..., Ingest]


@pytest.fixture
def read(spark: SparkSession, buffer: BufferFolder) -> Read:
    """Read the test's whole buffer."""

    def read_buffer(schema: str | StructType = SCHEMA) -> Ingest:
        wanted = StructType.fromDDL(schema) if isinstance(schema, str) else schema
        return read_batches(spark, buffer.sources(), wanted, "batch_id", {})

    return read_buffer


def rows(ingest: Ingest) -> list[tuple[Any, ...]]:
    return sorted(tuple(r) for r in ingest.frame.collect())


def refusals(ingest: Ingest) -> dict[str, str]:
    return {r.batch_id: r.reason for r in ingest.refused}


def test_rows_of_many_small_files_carry_the_id_of_their_batch(buffer: BufferFolder, read: Read) -> None:
    buffer.put("2013-01-01.UA", [{"v": n, "day": 1} for n in range(5)], files=3)
    buffer.put("weird/ id=ü", [{"day": 2, "v": 9}])

    with read() as ingest:
        assert [*((n, 1, "2013-01-01.UA") for n in range(5)), (9, 2, "weird/ id=ü")] == rows(ingest)
        assert (
            ingest.rows_per_batch,
            ingest.rows,
            ingest.refused,
        ) == ({"2013-01-01.UA": 5, "weird/ id=ü": 1}, 6, ())


def test_a_batch_without_rows_or_without_files_is_read_as_empty(buffer: BufferFolder, read: Read) -> None:
    buffer.put("empty", pa.table({"v": pa.array([], pa.int64()), "day": pa.array([], pa.int32())}))
    (buffer.put("no-files") / "part-0.parquet").unlink()

    with read() as ingest:
        assert (ingest.rows_per_batch, rows(ingest)) == ({"empty": 0, "no-files": 0}, [])


@pytest.mark.parametrize("damage", ["garbage", "cut off", "empty"])
def test_one_unreadable_file_sets_its_whole_batch_aside_and_is_named(
    buffer: BufferFolder, read: Read, damage: str
) -> None:
    """Rows of its other files, which Spark has seen by then, do not go in either."""
    buffer.put("good", [{"v": 1, "day": 1}])
    folder = buffer.put("bad", [{"v": n, "day": 1} for n in range(6)], files=3)
    file = folder / "part-1.parquet"
    whole = file.read_bytes()
    file.write_bytes({"garbage": b"not parquet", "cut off": whole[: len(whole) // 2], "empty": b""}[damage])

    with read() as ingest:
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

    with read() as ingest:
        assert (refusals(ingest), rows(ingest)) == ({"bad": "UnreadableFile"}, [])


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (pa.table({"v": [1]}), "column day (int32) is missing; the file has v"),
        (pa.table({"v": [1], "day": DAY, "tail": ["N1"]}), "column tail is not in the table"),
        (pa.table({"v": ["1"], "day": DAY}), "column v is string, expected int64"),
        (pa.table({"v": [1.0], "day": DAY}), "column v is double, expected int64"),
        (pa.table({"v": [1], "day": pa.array([1], pa.int64())}), "column day is int64, expected int32"),
    ],
)
def test_a_file_that_does_not_fit_the_table_is_refused_by_column(
    buffer: BufferFolder, read: Read, table: pa.Table, problem: str
) -> None:
    buffer.put("bad", table)

    with read() as ingest:
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

    with read("n bigint, x double, at timestamp, carrier string, tail string, nothing date, batch_id string") as ingest:
        found = ingest.frame.selectExpr(
            "n", "x", "cast(at as long)", "carrier", "tail", "nothing", "batch_id"
        ).collect()
    assert [(1, 0.5, int(moment.timestamp()), "UA", "N1", None, "A")] == [tuple(r) for r in found]


def test_a_time_that_would_be_rounded_is_refused(buffer: BufferFolder, read: Read) -> None:
    buffer.put("A", pa.table({"at": pa.array([1], pa.timestamp("ns", "UTC"))}))

    with read("at timestamp, batch_id string") as ingest:
        assert refusals(ingest) == {"A": "SchemaMismatch"}
        assert "column at" in ingest.refused[0].message


@pytest.mark.parametrize(
    ("ids", "refused"),
    [(["A", "A"], {}), (["A", "B"], {"A": "BatchIdMismatch"}), (["A", None], {"A": "BatchIdMismatch"})],
)
def test_a_batch_column_in_the_file_must_be_the_id_everywhere(
    buffer: BufferFolder, read: Read, ids: list[str | None], refused: dict[str, str]
) -> None:
    buffer.put("A", pa.table({"batch_id": ids, "v": [1, 2], "day": pa.array([1, 1], pa.int32())}))

    with read() as ingest:
        assert refused == refusals(ingest)


def test_a_null_in_a_required_column_is_refused_and_the_rest_is_written(
    buffer: BufferFolder, spark: SparkSession, make_flights: Callable[..., Flights]
) -> None:
    """Spark sees every column of Python's rows as nullable; the table keeps its promise all the same."""
    flights = make_flights(schema="v bigint NOT NULL, day int, batch_id string")
    buffer.put("bad", pa.table({"v": [1, None], "day": pa.array([1, 1], pa.int32())}))
    buffer.put("good", pa.table({"v": [1, 2], "day": pa.array([1, 1], pa.int32())}))

    with read_batches(spark, buffer.sources(), spark.table(flights.full_name).schema, "batch_id", {}) as ingest:
        files = write_uncommitted(flights.table, ingest.frame, "run-1")

    assert (refusals(ingest), sum(f.records for f in files)) == ({"bad": "SchemaMismatch"}, 2)
    assert "column v holds nulls" in ingest.refused[0].message


def test_a_batch_with_several_bad_files_names_the_first_and_counts_the_rest(buffer: BufferFolder, read: Read) -> None:
    folder = buffer.put("bad", [{"v": n, "day": 1} for n in range(3)], files=3)
    for n in (1, 2):
        (folder / f"part-{n}.parquet").write_bytes(b"x")

    with read() as ingest:
        message = ingest.refused[0].message
    assert "part-1.parquet" in message
    assert "1 more files" in message


def test_an_object_that_vanished_or_changed_since_the_listing_is_tried_again(
    buffer: BufferFolder, spark: SparkSession
) -> None:
    """Refusing the batch would remember a passing trouble for ever."""
    folder = buffer.put("A", [{"v": 1, "day": 1}])
    listed = buffer.sources()
    file = folder / "part-0.parquet"

    file.write_bytes(file.read_bytes() + b"more")
    with pytest.raises(TransientError, match=r"ObjectChanged: .*part-0\.parquet: it changed after it was listed"):
        read_batches(spark, listed, SCHEMA, "batch_id", {})

    file.unlink()
    with pytest.raises(TransientError, match=r"ObjectGone: .*part-0\.parquet"):
        read_batches(spark, listed, SCHEMA, "batch_id", {})


def test_a_batch_of_which_a_file_cannot_be_had_waits_and_the_others_go_in(
    buffer: BufferFolder, spark: SparkSession
) -> None:
    """A file of the same length is another one, too: what is promoted is what was listed."""
    buffer.put("A", [{"v": 1, "day": 1}])
    changed = buffer.put("B", [{"v": 2, "day": 1}]) / "part-0.parquet"
    gone = buffer.put("C", [{"v": 3, "day": 1}, {"v": 4, "day": 1}], files=2) / "part-1.parquet"
    listed = buffer.sources()
    os.utime(changed, ns=(0, 1))
    gone.unlink()

    with read_batches(spark, listed, SCHEMA, "batch_id", {}) as ingest:
        assert (rows(ingest), ingest.rows_per_batch, ingest.refused) == ([(1, 1, "A")], {"A": 1}, ())
        assert {u.batch_id: u.reason for u in ingest.unread} == {"B": "ObjectChanged", "C": "ObjectGone"}


def test_a_store_that_does_not_answer_is_transient(spark: SparkSession) -> None:
    nobody = {
        "s3.endpoint": "http://127.0.0.1:9",
        "s3.access-key-id": "a",
        "s3.secret-access-key": "topsecret",
        "s3.region": "us-east-1",
    }
    source = BatchSource("A", (BufferedObject("s3://lake/batch_id=A/x.parquet", 10, "e"),))

    with pytest.raises(TransientError, match=r"BufferAway: .*s3://lake/batch_id=A/x\.parquet") as away:
        read_batches(spark, [source], SCHEMA, "batch_id", nobody)

    assert "topsecret" not in str(away.value)


def test_a_batch_column_that_is_not_a_string_is_refused_at_once(spark: SparkSession) -> None:
    with pytest.raises(InputError, match="BatchColumnType: the batch column batch_id is bigint, expected string"):
        read_batches(spark, [], StructType.fromDDL("batch_id bigint"), "batch_id", {})


def read_by_pieces(file: Path, monkeypatch: pytest.MonkeyPatch) -> list[pa.RecordBatch]:
    """As a worker reads a file that is too large to be fetched whole."""
    monkeypatch.setattr(buffer_store, "WHOLE_FILE_BYTES", 0)
    wide = StructType([*SCHEMA.fields, StructField(ERROR_COLUMN, StringType())])
    task = FileTask("A", f"file://{file}", file.stat().st_size)
    payload = pa.record_batch({"files": [FileTask.encode([task])]})
    return list(Reader(SCHEMA, wide, "batch_id", {}).read([payload]))


def test_a_large_file_is_read_by_pieces_and_damage_in_it_found(
    buffer: BufferFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = buffer.put("A", [{"v": n * 7919, "day": n % 31} for n in range(200_000)]) / "part-0.parquet"

    assert sum(b.num_rows for b in read_by_pieces(file, monkeypatch)) == 200_000

    content = bytearray(file.read_bytes())
    content[200:4000] = b"\xff" * 3800
    file.write_bytes(content)
    (error,) = [e for b in read_by_pieces(file, monkeypatch) for e in b.column(ERROR_COLUMN).to_pylist() if e]
    assert decode_error(error).reason == "UnreadableFile"


def test_a_store_that_fails_within_a_large_file_is_not_taken_for_damage(
    buffer: BufferFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyArrow reports both as OSError."""
    file = buffer.put("A", [{"v": n * 7919, "day": n % 31} for n in range(200_000)]) / "part-0.parquet"

    def reset(_: Watched, _size: int = -1) -> bytes:
        raise OSError("connection reset")

    monkeypatch.setattr(Watched, "_fetch", reset)
    with pytest.raises(BufferAway, match="connection reset"):
        read_by_pieces(file, monkeypatch)
