"""A file that kills or stalls its decoder is refused, and the good batches of the same run are promoted."""

import pyarrow as pa
import pytest
from lethe.contract.run import BufferRef, CreateTable, FileFormat, TableRef
from pyspark.sql import SparkSession

from tests.spark.support.story import Story, of_batches, some_rows
from tests.support import poison
from tests.support.buffer_formats import written
from tests.support.lake import CATALOG, ROWS, Lake

GOOD = tuple("abcde")
POISONS = {
    "json": {"deep": poison.deep_json(20_000)},
    "avro": {"endless": poison.rows_of_no_bytes()},
    "parquet": {"columns": poison.many_columns(10_001)},
}


@pytest.mark.parametrize("format_name", POISONS)
def test_one_run_promotes_five_good_batches_and_refuses_the_others(
    spark: SparkSession, lake: Lake, format_name: str
) -> None:
    story = Story.begin(spark, lake)
    contents = {i: written(format_name, pa.Table.from_pylist(some_rows(i, 4), ROWS)) for i in GOOD}
    contents |= POISONS[format_name]
    for batch_id, content in contents.items():
        story.put(batch_id)
        (story.folder(batch_id) / "part-0.parquet").write_bytes(content)

    buffer = BufferRef(uri=story.buffer.uri, format=FileFormat(format_name))
    result = story.run(story.consolidation(*contents, buffer=buffer))

    assert {r.batch_id: r.reason for r in result.refused} == dict.fromkeys(POISONS[format_name], "FileTooCostly")
    assert all("part-0.parquet: " in r.message for r in result.refused)
    assert (result.outcome, result.batches_promoted) == ("Committed", 5)
    story.check_reads(of_batches(*GOOD))


def test_one_run_refuses_a_file_that_takes_all_memory(spark: SparkSession, lake: Lake) -> None:
    """The decoder ends, and neither Spark's worker nor the run."""
    story = Story.begin(spark, lake)
    create = CreateTable(schema="v bigint, day int, name string")
    for n, batch_id in enumerate(GOOD):
        rows = pa.table({"v": [n], "day": pa.array([1], pa.int32()), "name": ["a"]})
        story.buffer.put(batch_id, rows)
    story.buffer.put("poison", pa.table({"v": [1]}))
    (story.folder("poison") / "part-0.parquet").write_bytes(poison.one_text_many_times())

    table = TableRef(catalog=CATALOG, name=story.name, create=create)
    result = story.run(story.consolidation(*GOOD, "poison", table=table))

    assert {r.batch_id: r.reason for r in result.refused} == {"poison": "FileTooCostly"}
    assert "MiB of memory" in result.refused[0].message
    assert (result.outcome, result.batches_promoted) == ("Committed", 5)
