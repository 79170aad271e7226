"""Tables with thousands of columns are filled, restated, vacuumed and read; files with more than 10,000 are refused by name."""

import time

import lethe
import lethe_spark
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.contract.run import CreateTable, TableRef
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.all_types import alone
from tests.spark.support.story import Story
from tests.support.lake import Lake


def wide(batch: int, columns: int) -> pa.Table:
    numbers = {f"c{n}": pa.array([batch * 10 + n, None], pa.int64()) for n in range(columns)}
    return pa.table({"v": pa.array([batch, batch + 1], pa.int64()), **numbers})


@pytest.mark.parametrize("columns", some([400, 4000], 400))
def test_a_wide_table_goes_through_all_its_runs(spark: SparkSession, lake: Lake, columns: int) -> None:
    story = Story.begin(spark, lake, ())
    schema = ", ".join(["v bigint", *(f"c{n} bigint" for n in range(columns)), "batch_id string"])
    # Without metrics of each column, as such a table needs them; of the batch column Lethe sets them.
    properties = {"write.metadata.metrics.max-inferred-column-defaults": "100"}
    table = TableRef(catalog=story.catalog, name=story.name, create=CreateTable(schema=schema, properties=properties))
    times = {}

    def timed(what: str, start: float) -> float:
        now = time.monotonic()
        times[what] = round(now - start, 1)
        return now

    for n, batch in enumerate("ABC"):
        story.buffer.put(batch, wide(n, columns))
    at = time.monotonic()
    assert story.run(story.consolidation("A", "B", "C", table=table)).batches_promoted == 3
    at = timed("consolidation", at)
    assert story.revert("A").succeeded
    at = timed("revert", at)
    found = lethe.scan(story.full_name).to_arrow()
    assert (found.num_columns, sorted(found["v"].to_pylist())) == (columns + 2, [1, 2, 2, 3])
    at = timed("scan", at)
    read = lethe_spark.read(spark, story.full_name).select("v", f"c{columns - 1}").collect()
    assert {(r[0], r[1]) for r in read} == {(1, 9 + columns), (2, None), (2, 19 + columns), (3, None)}
    at = timed("read", at)
    assert alone(story).tombstones_purged == 1
    at = timed("purge alone", at)
    assert story.revert("B", name="two").succeeded
    assert story.vacuum(key="2").tombstones_purged == 1
    timed("revert and vacuum by Spark", at)
    assert sorted(story.table().scan(selected_fields=("v",)).to_arrow()["v"].to_pylist()) == [2, 3]
    print(columns, times)


def test_a_file_with_more_columns_than_a_file_may_have_is_refused_by_name(spark: SparkSession, lake: Lake) -> None:
    story = Story.begin(spark, lake)
    story.put("A", "B")
    rows = pa.table({f"c{n}": [n] for n in range(10_001)})
    pq.write_table(rows, story.folder("B") / "part-0.parquet")

    result = story.consolidate("A", "B")

    (refused,) = result.refused
    assert (result.batches_promoted, refused.batch_id, refused.reason) == (1, "B", "FileTooCostly")
    assert "part-0.parquet: it has 10001 columns" in refused.message
