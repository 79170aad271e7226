"""Data files that Arrow writes are those that Spark would write: the same rows, order, columns, partitions and metrics."""

import gc
import json
import math
import random
import sys
import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.base.errors import TransientError
from lethe.files.bounds import MAX_PARTITIONS
from lethe.ingest.buffer_files import ReadSettings
from lethe.ledger.ledger import BufferedObject
from lethe.uri import local_path
from lethe.writing.data_files import TableLayout, Unsupported
from lethe_spark import ingest
from lethe_spark.ingest import BatchSource, Ingested, write_batches
from lethe_spark.jvm.errors import JvmError

from tests.spark.parameters import named, pairs, some
from tests.spark.support.flights import Flights
from tests.support.lake import SCHEMA as FLIGHTS
from tests.support.lake import BufferFolder

SCHEMA = (
    "b boolean, i int, l bigint, f float, d double, day date, ts timestamp, local timestamp_ntz, s string, bin binary, "
    "small decimal(9,2), middle decimal(18,3), large decimal(38,10), "
    "st struct<x: double, deep: struct<y: int, t: timestamp>>, items array<struct<a: int, b: string>>, "
    "pairs map<string, array<double>>, batch_id string"
)
ITEM = pa.struct([("a", pa.int32()), ("b", pa.string())])
DEEP = pa.struct([("y", pa.int32()), ("t", pa.timestamp("us", "UTC"))])
COLUMNS = pa.schema(
    [
        ("b", pa.bool_()),
        ("i", pa.int32()),
        ("l", pa.int64()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("day", pa.date32()),
        ("ts", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("s", pa.string()),
        ("bin", pa.binary()),
        ("small", pa.decimal128(9, 2)),
        ("middle", pa.decimal128(18, 3)),
        ("large", pa.decimal128(38, 10)),
        ("st", pa.struct([("x", pa.float64()), ("deep", DEEP)])),
        ("items", pa.list_(ITEM)),
        ("pairs", pa.map_(pa.string(), pa.list_(pa.float64()))),
    ]
)
# Parquet's specification wants an upper bound of +0.0 if the largest value is -0.0, as Arrow writes it.
_PLUS_ZERO = {"00000080": "00000000", "0000000000000080": "0000000000000000"}
# In version 3 Spark writes empty columns for the ids of new rows.
_ROW_LINEAGE = (2147483539, 2147483540)
# What of a data file may differ: sizes depend on the encoder.
_OF_THE_ENCODER = ("file-path", "file-size-in-bytes", "column-sizes", "split-offsets")


def some_row(of: random.Random) -> dict[str, Any]:
    def maybe(value: Any) -> Any:
        return None if of.random() < 0.1 else value

    def number() -> float:
        return of.choice([math.nan, -0.0, 1.5, of.gauss(0, 1e6), math.inf])

    moment = datetime(2013, 1, 1, tzinfo=UTC) + timedelta(microseconds=of.randrange(-(10**15), 10**15))
    text = "".join(of.choice("abcÄ𝄞 /%") for _ in range(of.randrange(30)))
    return {
        "b": maybe(of.random() < 0.5),
        "i": maybe(of.randrange(-(2**31), 2**31)),
        "l": maybe(of.randrange(-(2**63), 2**63)),
        "f": maybe(number()),
        "d": maybe(number()),
        "day": maybe(date(1960, 1, 1) + timedelta(days=of.randrange(40000))),
        "ts": maybe(moment),
        "local": maybe(moment.replace(tzinfo=None)),
        "s": maybe(text),
        "bin": maybe(text.encode()),
        "small": maybe(Decimal(of.randrange(-(10**9) + 1, 10**9)).scaleb(-2)),
        "middle": maybe(Decimal(of.randrange(-(10**18) + 1, 10**18)).scaleb(-3)),
        "large": maybe(Decimal(of.randrange(-(10**27), 10**27)).scaleb(-10)),
        "st": maybe({"x": maybe(number()), "deep": maybe({"y": maybe(of.randrange(9)), "t": moment})}),
        "items": maybe([{"a": n, "b": maybe(text)} for n in range(of.randrange(3))]),
        "pairs": maybe([(f"{n}", [number()]) for n in range(of.randrange(3))]),
    }


def some_rows(seed: int, count: int = 60) -> pa.Table:
    of = random.Random(seed)
    rows = [some_row(of) for _ in range(count)]
    for row in rows:
        row["part"] = of.choice([1, 2, None])
    return pa.Table.from_pylist(rows, schema=COLUMNS)


def write(flights: Flights, buffer: BufferFolder, run_id: str) -> Ingested:
    done = write_batches(flights.table, buffer.sources(), ReadSettings("batch_id", {}), run_id)
    assert not done.refused
    return done


def by_spark(flights: Flights, buffer: BufferFolder, monkeypatch: pytest.MonkeyPatch) -> Ingested:
    def refuse(_: TableLayout) -> None:
        raise Unsupported("the test compares")

    with monkeypatch.context() as patched:
        patched.setattr(TableLayout, "check", refuse)
        return write(flights, buffer, "by-spark")


def documents(flights: Flights, done: Ingested) -> list[dict[str, Any]]:
    """Iceberg's JSON of the files, without what the encoder decides."""
    parser, specs = flights.table.jvm.org.apache.iceberg.ContentFileParser, flights.table.java.specs()
    found = [json.loads(parser.toJson(f.java, specs.get(int(f.java.specId())))) for f in done.files]
    for document in found:
        for name in _OF_THE_ENCODER:
            document.pop(name)
        for name, value in document.items():
            if isinstance(value, dict):
                of_fields = sorted(zip(value["keys"], value["values"], strict=True))
                document[name] = {i: _PLUS_ZERO.get(v, v) for i, v in of_fields if i not in _ROW_LINEAGE}
    return sorted(found, key=lambda d: json.dumps([d["partition"], d["record-count"], d["lower-bounds"]]))


def read(done: Ingested) -> list[pa.Table]:
    return [pq.ParquetFile(local_path(f.path)).read() for f in done.files]


def texts(done: Ingested) -> list[str]:
    """Each row as a text, because NaN is not equal to itself."""
    return sorted(repr(row) for table in read(done) for row in table.to_pylist())


def partitions_of(done: Ingested) -> dict[str, tuple[str, ...] | None]:
    """By batch, the partitions of the files with its rows; None, if one has no text, or they are too many."""
    texts: dict[str, set[str | None]] = {i: set() for i in done.rows_per_batch}
    for file, rows in zip(done.files, read(done), strict=True):
        for batch in set(rows["batch_id"].to_pylist()):
            texts[batch].add(file.partition)
    return {
        i: None if None in found or len(found) > MAX_PARTITIONS else tuple(sorted(found))  # type: ignore[type-var]
        for i, found in texts.items()
    }


def created_by(done: Ingested) -> set[str]:
    return {pq.ParquetFile(local_path(f.path)).metadata.created_by.split()[0] for f in done.files}


def parquet_schema(done: Ingested) -> list[str]:
    """The lines after the name of the schema."""
    lines = str(pq.ParquetFile(local_path(done.files[0].path)).schema).split("\n")[2:]
    return [line for line in lines if not any(f"field_id={i} " in line for i in _ROW_LINEAGE)]


def folders(done: Ingested, run_id: str) -> list[str]:
    return sorted(f.path.split(f"/{run_id}/")[1].rpartition("/")[0] for f in done.files)


SPECS: dict[str, Sequence[str]] = {
    "none": (),
    "days": ("days(ts)",),
    "hours of local time": ("hours(local)",),
    "two fields of one column": ("months(ts)", "bucket(4, l)", "truncate(2, s)"),
    "identities": ("b", "day"),
    "text": ("s",),
    "decimal": ("truncate(100, small)", "bucket(3, large)"),
    "buckets": ("bucket(2, i)", "bucket(2, day)", "bucket(2, ts)", "bucket(2, bin)"),
    "years": ("years(day)",),
    "the batch": ("bucket(2, batch_id)",),
}


@pytest.mark.parametrize("partition_by", named({n: (s,) for n, s in SPECS.items()}, "buckets"))
def test_files_are_those_of_spark(
    buffer: BufferFolder,
    make_flights: Callable[..., Flights],
    partition_by: Sequence[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number, batch in enumerate(["A", "B", "ü/1"]):
        buffer.put(batch, some_rows(number), files=2)
    flights = make_flights(schema=SCHEMA, partition_by=partition_by)

    arrow, spark = write(flights, buffer, "by-arrow"), by_spark(flights, buffer, monkeypatch)

    assert (created_by(arrow), created_by(spark)) == ({"parquet-cpp-arrow"}, {"parquet-mr"})
    assert texts(arrow) == texts(spark)
    assert documents(flights, arrow) == documents(flights, spark)
    assert sorted((f.partition or "", f.lower, f.upper) for f in arrow.files) == sorted(
        (f.partition or "", f.lower, f.upper) for f in spark.files
    )
    assert arrow.partitions == partitions_of(arrow)
    assert spark.partitions is None
    assert parquet_schema(arrow) == parquet_schema(spark)
    assert folders(arrow, "by-arrow") == folders(spark, "by-spark")


ORDERS = {
    "the batch": "batch_id",
    "within batches": "batch_id, l DESC NULLS LAST, s",
    "not by batch": "ts DESC NULLS FIRST, b",
    "a date": "day ASC NULLS LAST",
}


@pytest.mark.parametrize(
    ("order", "tasks"),
    pairs(ORDERS.values(), (1, 100), (ORDERS["within batches"], 100)),
)
def test_rows_are_in_the_order_of_the_table(
    buffer: BufferFolder,
    make_flights: Callable[..., Flights],
    order: str,
    tasks: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if many tasks read them."""
    monkeypatch.setattr(ingest, "FILES_PER_GROUP", max(1, 8 // tasks))
    for number, batch in enumerate(["C", "A", "ü", "B"]):
        buffer.put(batch, some_rows(number, 50), files=3)
    flights = make_flights(schema=SCHEMA, partition_by=("bucket(2, i)",))
    flights.spark.sql(f"ALTER TABLE {flights.full_name} WRITE ORDERED BY {order}")
    flights.table.refresh()

    arrow, spark = write(flights, buffer, "by-arrow"), by_spark(flights, buffer, monkeypatch)

    assert created_by(arrow) == {"parquet-cpp-arrow"}
    names = [part.split()[0] for part in order.split(", ")]
    of_arrow, of_spark = (
        sorted(([tuple(row[n] for n in names) for row in t.select(names).to_pylist()] for t in read(done)), key=repr)
        for done in (arrow, spark)
    )
    assert of_arrow == of_spark
    assert documents(flights, arrow) == documents(flights, spark)


def test_a_table_in_version_3_and_with_required_columns(
    buffer: BufferFolder, make_flights: Callable[..., Flights], monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer.put(
        "A",
        pa.table({"v": pa.array([3, 1], pa.int64()), "st": pa.array([{"x": 1}] * 2, pa.struct([("x", pa.int32())]))}),
    )
    flights = make_flights(
        schema="v bigint NOT NULL, st struct<x: int NOT NULL>, batch_id string NOT NULL", partition_by=()
    )
    flights.table.set_properties({"format-version": "3"})

    arrow, spark = write(flights, buffer, "by-arrow"), by_spark(flights, buffer, monkeypatch)

    assert created_by(arrow) == {"parquet-cpp-arrow"}
    assert documents(flights, arrow) == documents(flights, spark)
    assert parquet_schema(arrow) == parquet_schema(spark)


@pytest.mark.long
def test_files_have_about_the_target_size_and_row_groups_theirs(
    buffer: BufferFolder, make_flights: Callable[..., Flights]
) -> None:
    of = random.Random(7)
    for batch in "ABCD":
        buffer.put(batch, pa.table({"s": [str(uuid.UUID(int=of.getrandbits(128))) for _ in range(100_000)]}), files=4)
    flights = make_flights(schema="s string, batch_id string", partition_by=())
    flights.table.set_properties(
        {"write.parquet.row-group-size-bytes": "500000", "write.parquet.compression-codec": "snappy"}
    )

    done = write_batches(flights.table, buffer.sources(), ReadSettings("batch_id", {}), "run-1", 3_000_000)

    sizes = [f.bytes for f in done.files]
    assert len(sizes) >= 5
    assert max(sizes) < 4_500_000
    groups = [
        (g.total_byte_size, g.column(0).compression)
        for f in done.files
        for m in [pq.ParquetFile(local_path(f.path)).metadata]
        for g in map(m.row_group, range(m.num_row_groups))
    ]
    assert sorted(size for size, _ in groups)[len(groups) // 2] < 1_000_000
    assert {codec for _, codec in groups} == {"SNAPPY"}
    bounds = sorted((f.lower, f.upper) for f in done.files)
    assert all(before[1] <= after[0] for before, after in pairwise(bounds))


def test_a_task_that_fails_leaves_no_file(
    buffer: BufferFolder, make_flights: Callable[..., Flights], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any partition that it has written."""
    for day in (1, 2, 3, 4, 5):
        buffer.put(f"B{day}", [{"v": 1, "day": day}])
    flights = make_flights(schema=FLIGHTS)
    folder = Path(local_path(f"{flights.table.location}/data/run-1"))
    folder.mkdir(parents=True)
    (folder / "day=4").write_text("a file is where a folder should be")
    monkeypatch.setattr(ingest, "plan", lambda *_: (defaultdict(int), 1))

    with pytest.raises(JvmError):
        write_batches(flights.table, buffer.sources(), ReadSettings("batch_id", {}), "run-1")

    assert [p.name for p in folder.rglob("*") if p.is_file()] == ["day=4"]


# --- what is set aside -----------------------------------------------------------------------------------------------


def plain_rows(done: Ingested) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for table in read(done) for row in table.to_pylist())


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


@pytest.mark.parametrize("one_pass_bytes", some([0, 1 << 30], 0))
def test_a_table_that_arrow_does_not_write_gets_the_same_rows_by_spark(
    buffer: BufferFolder, make_flights: Callable[..., Flights], one_pass_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "ONE_PASS_BYTES", one_pass_bytes)
    for id in "AB":
        buffer.put(id, [{"v": n, "day": n % 3} for n in range(30)], files=2)
    (buffer.put("bad", [{"v": 1, "day": 1}], files=2) / "part-1.parquet").write_bytes(b"not parquet")
    flights = make_flights()
    flights.table.set_properties({"write.parquet.bloom-filter-enabled.column.v": "true"})

    done = write_batches(flights.table, buffer.sources(), ReadSettings("batch_id", {}), "run-1")

    assert done.rows_per_batch == {"A": 30, "B": 30}
    assert plain_rows(done) == sorted((n, n % 3, id) for id in "AB" for n in range(30))
    assert b"parquet-mr" in pq.ParquetFile(local_path(done.files[0].path)).metadata.created_by.encode()


def test_what_tasks_import_is_left_out_when_workers_collect_garbage(flights: Flights) -> None:
    """A worker collects after each task. If it had imported it itself, this would take longer than reading a hundred files."""
    name = ingest.__name__

    def is_left_out(_: int) -> bool:
        module = sys.modules.get(name)
        return module is not None and all(found is not module for found in gc.get_objects())

    assert flights.spark.sparkContext.parallelize([0], 1).map(is_left_out).collect() == [True]
