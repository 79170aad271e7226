"""Another engine adds columns of types that Lethe does not read or write. Batches go on, and later all is well without them."""

import io
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import lethe
import lethe_spark
import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from lethe.base import names
from lethe.base.errors import InputError
from lethe.contract.run import BufferRef, CreateTable, TableRef
from lethe.contract.settings import Deletes, FileFormat
from lethe.files.bounds import partitions_of_batches
from lethe.process import processor_seconds
from pyiceberg.types import FixedType, PrimitiveType, UUIDType
from pyspark.sql import SparkSession

from tests.spark.parameters import pairs, some, tuples
from tests.spark.support.all_types import alone
from tests.spark.support.flights import Flights
from tests.spark.support.story import Story, of_arrow, of_batches, of_spark
from tests.spark.support.unknown_types import KINDS, add_column
from tests.support.lake import Lake

# A table of format version 2 cannot have such a column, and one of version 3 gets no position deletes from Lethe. Those from
# before it was raised have a test of their own.
MODES = [Deletes.LEDGER, Deletes.DELETION_VECTORS]
LEDGER, VECTORS = MODES


def rows_without(story: Story, everywhere: bool = True) -> Counter[Any]:
    """The rows without the column, of which all readers find the same.

    Args:
        everywhere: Whether they are gone for readers that do not know the ledger, too.
    """
    columns = ("v", "day", "batch_id")
    found = lethe.scan(story.full_name, columns=columns).to_arrow().to_pylist()
    rows = Counter((r["batch_id"], r["v"], r["day"]) for r in found)
    assert of_spark(lethe_spark.read(story.spark, story.full_name).select(*columns)) == rows
    story.spark.catalog.clearCache()
    assert (of_spark(story.spark.table(story.full_name).select(*columns)) == rows) == everywhere
    return rows


@pytest.mark.parametrize(("kind", "mode"), pairs(KINDS, MODES, ("geometry", LEDGER), ("variant", VECTORS)))
def test_batches_restatements_and_vacuums_go_on_beside_such_a_column_and_after_it(
    spark: SparkSession, lake: Lake, kind: str, mode: str
) -> None:
    story = Story.begin(spark, lake, format_version=3, deletes=mode)
    story.put("A", "B", "C", "D", "E")
    story.consolidate("A", "C")

    add_column(story, kind)

    assert story.consolidate("B").batches_promoted == 1
    assert story.revert("A").succeeded
    assert rows_without(story, everywhere=mode == VECTORS) == of_batches("B", "C")
    assert story.undo().succeeded
    assert rows_without(story) == of_batches("A", "B", "C")
    assert story.revert("A", name="again").succeeded
    assert story.vacuum().tombstones_purged == 1
    assert rows_without(story) == of_batches("B", "C")
    with pytest.raises(InputError, match=f"column shape has the type {kind}"):
        lethe.scan(story.full_name)

    spark.sql(f"ALTER TABLE {story.full_name} DROP COLUMN shape")

    assert story.consolidate("D", "E").batches_promoted == 2
    assert of_arrow(lethe.scan(story.full_name).to_arrow()) == of_batches("B", "C", "D", "E")
    assert of_spark(lethe_spark.read(spark, story.full_name)) == of_batches("B", "C", "D", "E")


@pytest.mark.parametrize("mode", some(MODES, VECTORS))
def test_values_of_such_a_column_survive_a_vacuum(spark: SparkSession, lake: Lake, mode: str) -> None:
    """B and D are in one file, which is rewritten."""
    story = Story.begin(spark, lake, format_version=3, deletes=mode).filled("A")
    add_column(story, "variant")
    rows = """VALUES (7, 'B', '{"a": 1}'), (8, 'D', '{"a": 2}') AS t(v, batch_id, json)"""
    spark.sql(f"INSERT INTO {story.full_name} SELECT v, 1, batch_id, parse_json(json) FROM {rows}")
    assert spark.sql(f"SELECT file_path FROM {story.full_name}.files").count() == 3
    assert story.revert("A", "B").succeeded

    result = story.vacuum()

    assert (result.tombstones_purged, result.files_rewritten) == (2, 1)
    (found,) = spark.sql(f"SELECT v, to_json(shape) AS shape FROM {story.full_name}").collect()
    assert (found["v"], found["shape"]) == (8, '{"a":2}')


@pytest.mark.parametrize(
    ("kind", "shreds", "mode"),
    tuples(
        [
            (*stored, mode)
            for stored in (("variant", False), ("variant", True), ("struct<a: int, b: array<variant>>", False))
            for mode in MODES
        ],
        ("variant", True, LEDGER),
        ("variant", False, VECTORS),
    ),
)
def test_files_with_values_of_such_a_column_are_read_without_them(
    spark: SparkSession, lake: Lake, kind: str, shreds: bool, mode: str
) -> None:
    """While the table has the column, and after it was dropped. Also where the values are stored as columns of their own."""
    story = Story.begin(spark, lake, format_version=3, deletes=mode).filled("A")
    before = story.head().snapshot_id
    if shreds:
        spark.sql(f"ALTER TABLE {story.full_name} SET TBLPROPERTIES ('write.parquet.shred-variants' = 'true')")
    spark.sql(f"ALTER TABLE {story.full_name} ADD COLUMN shape {kind}")
    shape = (
        """parse_json('{"x": 1, "y": ["a"]}')"""
        if kind == "variant"
        else "struct(1 AS a, array(parse_json('[1]')) AS b)"
    )
    rows = "VALUES (7, 'B'), (8, 'C') AS t(v, batch_id)"
    spark.sql(f"INSERT INTO {story.full_name} SELECT v, 1, batch_id, {shape} FROM {rows}")
    assert story.revert("C", name="beside").succeeded
    others = [{"v": 7, "day": 1, "batch_id": "B"}]

    def read(**how: Any) -> list[dict[str, Any]]:
        found = lethe.scan(story.full_name, columns=("v", "day", "batch_id"), filter="batch_id IN ('B', 'C')", **how)
        return found.to_arrow().to_pylist()

    assert read() == others
    with pytest.raises(InputError, match="the filter: column shape has the type"):
        lethe.scan(story.full_name, columns=("v",), filter="shape IS NULL")
    assert lethe_spark.read(spark, story.full_name, filter="shape IS NOT NULL").select("v").collect() == [(7,)]

    spark.sql(f"ALTER TABLE {story.full_name} DROP COLUMN shape")

    assert read() == others
    deleted = read(since=before, rows="deleted")
    assert [r for r in read(since=before) if r not in deleted] == others
    assert of_arrow(lethe.scan(story.full_name).to_arrow()) == of_batches("A") + Counter([("B", 7, 1)])
    assert story.revert("A").succeeded
    assert lethe.scan(story.full_name).to_arrow().to_pylist() == others
    with pytest.raises(InputError, match="shape"):
        lethe_spark.read(spark, story.full_name, filter="shape IS NULL")


def test_a_field_of_such_a_type_that_was_dropped_from_a_struct_is_left_out(spark: SparkSession, lake: Lake) -> None:
    """Also if another column has the name of a dropped one by now."""
    story = Story.begin(spark, lake, format_version=3).filled("A")
    spark.sql(f"ALTER TABLE {story.full_name} ADD COLUMNS (shape variant, s struct<a: int, b: variant, c: string>)")
    of_b = "parse_json('[1]'), struct(1 AS a, parse_json('{}') AS b, 'x' AS c)"
    spark.sql(f"INSERT INTO {story.full_name} SELECT 7, 1, 'B', {of_b}")
    spark.sql(f"ALTER TABLE {story.full_name} DROP COLUMN s.b")
    spark.sql(f"ALTER TABLE {story.full_name} DROP COLUMN shape")
    spark.sql(f"ALTER TABLE {story.full_name} ADD COLUMN shape int")
    assert story.revert("A").succeeded

    found = lethe.scan(story.full_name, filter="s.a = 1 and shape is null").to_arrow().to_pylist()

    assert found == [{"v": 7, "day": 1, "batch_id": "B", "s": {"a": 1, "c": "x"}, "shape": None}]
    assert lethe_spark.read(spark, story.full_name).toArrow().to_pylist() == found


def test_a_required_column_of_such_a_type_stops_batches_and_names_itself(spark: SparkSession, lake: Lake) -> None:
    story = Story.begin(spark, lake, format_version=3)
    story.put("A")
    story.consolidate()
    add_column(story, "variant", required=True)

    with pytest.raises(InputError, match="column shape is required and has the type variant") as refused:
        story.consolidate("A")

    assert refused.value.reason == "UnknownType"


UUID_TEXT = "0f4b5f0a-0000-4000-8000-000000000001"
NARROW: dict[str, tuple[PrimitiveType, Any, Any, Any, str]] = {
    "uuid": (UUIDType(), UUID_TEXT, "7", UUID(UUID_TEXT), "row 0: column c holds a text that is not a UUID"),
    "fixed": (FixedType(3), b"abc", b"abcd", b"abc", "row 0: column c holds bytes of another length than 3"),
}


@pytest.mark.parametrize(("kind", "good", "bad", "stored", "said"), NARROW.values(), ids=NARROW)
def test_a_value_that_fits_only_the_type_of_spark_refuses_its_batch(
    spark: SparkSession, lake: Lake, kind: PrimitiveType, good: Any, bad: Any, stored: Any, said: str
) -> None:
    """Iceberg's writers fail at it, in each run again."""
    story = Story.begin(spark, lake).filled("A")
    with story.table().update_schema() as columns:
        columns.add_column("c", kind)
    for batch, value in (("B", good), ("C", bad)):
        out = io.BytesIO()
        pq.write_table(pa.table({"v": [1], "day": pa.array([1], pa.int32()), "c": [value]}), out)
        story.put_file(batch, out.getvalue())

    result = story.consolidate("B", "C")

    (refused,) = result.refused
    assert (result.batches_promoted, refused.batch_id, said in refused.message) == (1, "C", True), refused.message
    assert lethe.scan(story.full_name, filter="batch_id = 'B'").to_arrow()["c"].to_pylist() == [stored]


# --- thousands of columns --------------------------------------------------------------------------------------------
# Tables with thousands of columns are filled, restated, vacuumed and read; files with more than 10,000 are refused by name.


def wide(batch: int, columns: int) -> pa.Table:
    numbers = {f"c{n}": pa.array([batch * 10 + n, None], pa.int64()) for n in range(columns)}
    return pa.table({"v": pa.array([batch, batch + 1], pa.int64()), **numbers})


@pytest.mark.parametrize("columns", some([150, 4000], 150))
def test_a_wide_table_goes_through_all_its_runs(spark: SparkSession, lake: Lake, columns: int) -> None:
    story = Story.begin(spark, lake, ())
    schema = ", ".join(["v bigint", *(f"c{n} bigint" for n in range(columns)), "batch_id string"])
    # Without metrics of each column, as such a table needs them; of the batch column Lethe sets them.
    properties = {"write.metadata.metrics.max-inferred-column-defaults": "100"}
    table = TableRef(catalog=story.catalog, name=story.name, create=CreateTable(schema=schema, properties=properties))
    for n, batch in enumerate("ABC"):
        story.buffer.put(batch, wide(n, columns))
    assert story.run(story.consolidation("A", "B", "C", table=table)).batches_promoted == 3
    assert story.revert("A").succeeded
    found = lethe.scan(story.full_name).to_arrow()
    assert (found.num_columns, sorted(found["v"].to_pylist())) == (columns + 2, [1, 2, 2, 3])
    read = lethe_spark.read(spark, story.full_name).select("v", f"c{columns - 1}").collect()
    assert {(r[0], r[1]) for r in read} == {(1, 9 + columns), (2, None), (2, 19 + columns), (3, None)}
    assert alone(story).tombstones_purged == 1
    assert story.revert("B", name="two").succeeded
    assert story.vacuum(key="2").tombstones_purged == 1
    assert sorted(story.table().scan(selected_fields=("v",)).to_arrow()["v"].to_pylist()) == [2, 3]


def test_a_file_with_more_columns_than_a_file_may_have_is_refused_by_name(spark: SparkSession, lake: Lake) -> None:
    story = Story.begin(spark, lake)
    story.put("A", "B")
    rows = pa.table({f"c{n}": [n] for n in range(10_001)})
    pq.write_table(rows, story.folder("B") / "part-0.parquet")

    result = story.consolidate("A", "B")

    (refused,) = result.refused
    assert (result.batches_promoted, refused.batch_id, refused.reason) == (1, "B", "FileTooCostly")
    assert "part-0.parquet: it has 10001 columns" in refused.message


def mixed(columns: int, seed: int) -> pa.Table:
    """Rows of integers and texts."""
    values = np.random.default_rng(seed)
    numbers = {f"c{n}": values.integers(0, 1000, ROWS_OF_A_FILE) for n in range(columns)}
    return pa.table({c: v if int(c[1:]) % 2 else [f"s{i}" for i in v] for c, v in numbers.items()})


ROWS_OF_A_FILE = 2_000
WRITERS: dict[FileFormat, Callable[[pa.Table, Path], object]] = {
    FileFormat.PARQUET: pq.write_table,
    FileFormat.CSV: pa_csv.write_csv,
    FileFormat.JSON: lambda table, path: path.write_text("".join(f"{json.dumps(r)}\n" for r in table.to_pylist())),
}


@pytest.mark.long
@pytest.mark.parametrize("format_", list(WRITERS))
def test_a_value_of_4000_columns_takes_at_most_twice_the_processor_time_of_one_of_100(
    spark: SparkSession, lake: Lake, format_: FileFormat
) -> None:
    def microseconds_for_a_value(columns: int) -> float:
        story = Story.begin(spark, lake, ())
        for n, batch in enumerate("ABCD"):
            story.put(batch)
            (file,) = story.folder(batch).glob("part-*")
            file.unlink()
            WRITERS[format_](mixed(columns, n), file.with_name(f"part-0.{format_}"))
        schema = ", ".join(f"c{n} {'bigint' if n % 2 else 'string'}" for n in range(columns))
        table = TableRef(
            catalog=story.catalog, name=story.name, create=CreateTable(schema=f"{schema}, batch_id string")
        )
        buffer = BufferRef(uri=story.buffer.uri, format=format_)
        spec = story.consolidation(*"ABCD", buffer=buffer).model_copy(update={"table": table})
        before = processor_seconds()
        assert story.run(spec).rows_added == 4 * ROWS_OF_A_FILE
        return (processor_seconds() - before) / (4 * ROWS_OF_A_FILE * columns) * 1e6

    few = min(microseconds_for_a_value(100) for _ in range(3))  # the first one also compiles Java

    assert microseconds_for_a_value(4_000) <= 2 * few


# --- partitions ------------------------------------------------------------------------------------------------------
# The text of a partition is the same whether Spark's driver makes it of a file it has just written or PyIceberg of the
# manifest; and what is remembered of batches names every partition that holds a row of theirs.


def test_after_a_change_of_partitioning_a_file_has_the_text_of_its_own_spec(flights: Flights) -> None:
    flights.commit(files=flights.written("A"))
    flights.spark.sql(f"ALTER TABLE {flights.full_name} ADD PARTITION FIELD bucket(2, batch_id)")
    flights.table.refresh()
    files = flights.written("B", run_id="run-2")
    committed = flights.written_files(flights.commit(files=files, run_id="run-2"))

    texts = {f.path: f.partition for f in committed}
    assert {f.path: f.partition for f in files}.items() <= texts.items()
    assert sorted(t.partition("/")[0] for t in texts.values() if t) == ["0", "0", "1", "1"]


def test_what_is_remembered_of_written_batches_names_every_partition_with_their_rows(flights: Flights) -> None:
    files = flights.written("A", "B", "C")

    assert partitions_of_batches(files, ["A", "B", "C"]) == dict.fromkeys("ABC", ("0/[1]", "0/[2]"))
    assert flights.table.properties[names.BATCH_COLUMN] == str(flights.table.field_id("batch_id"))
