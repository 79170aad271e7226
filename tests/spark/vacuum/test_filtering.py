"""Files that stay large are purged one by one, without Spark's rows. The result is that of a rewrite by Spark."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.all_types import alone
from tests.spark.support.built_once import built_once
from tests.spark.support.native_deletes import Native
from tests.spark.support.story import Story, of_batches
from tests.support.lake import Lake
from tests.support.steps import Killed, die


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake) -> Story:
    """Batches A, B and D are in the table, in a common file for each of two days."""
    story = Story.begin(spark, lake)
    story.put("A", "B", "D")
    story.consolidate("A", "B", "D")
    return story


def test_files_lose_the_rows_and_keep_everything_else(story: Story, filtered: list[str]) -> None:
    story.revert("A")
    before, files = story.rows_at(), set(story.files())

    result = alone(story)

    assert set(filtered) == files
    assert (result.outcome, result.tombstones_purged, result.rows_purged) == ("Committed", 1, 4)
    assert (result.files_rewritten, result.files_added, story.operation()) == (2, 2, "replace")
    story.check_reads(before)
    assert all(batches == sorted(b or "" for b in batches) for batches in story.files().values())
    assert {b for batches in story.files().values() for b in batches} == {"B", "D"}


@pytest.mark.parametrize("step", some(["after_write", "before_commit", "after_commit"], "before_commit"))
def test_a_run_that_dies_loses_no_row_and_is_repeated(story: Story, filtered: list[str], step: str) -> None:
    story.revert("A")
    before = story.rows_at()
    run = story.vacuuming_so(target_file_size_bytes=1)
    with pytest.raises(Killed):
        story.run(run, **{step: die})
    story.check_reads(before)

    story.run(run.model_copy(update={"attempt": 2}))

    assert len(filtered) == (2 if step == "after_commit" else 4)
    story.check_reads(before)
    assert {b for batches in story.files().values() for b in batches} == {"B", "D"}


def test_files_that_get_deletes_in_the_meantime_are_purged_again_by_spark(story: Story, filtered: list[str]) -> None:
    story.spark.sql(f"ALTER TABLE {story.full_name} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    story.revert("A")
    run = story.vacuuming_so(target_file_size_bytes=1)

    story.run(run, after_write=lambda: story.spark.sql(f"DELETE FROM {story.full_name} WHERE batch_id = 'B'"))

    assert len(filtered) == 2
    assert {b for batches in story.files().values() for b in batches} == {"D"}
    story.check_reads(of_batches("D"))


@pytest.mark.long
def test_a_small_file_is_left_to_spark_which_merges_it_with_others(story: Story, filtered: list[str]) -> None:
    story.revert("A")

    result = story.vacuum()

    assert (filtered, result.files_rewritten, result.rows_purged) == ([], 2, 4)


def append(story: Story, *batches: str | None, start: int, **options: str) -> None:
    """A file of Spark with the rows in this order."""
    rows = [(start + n, 1, batch) for n, batch in enumerate(batches)]
    frame = story.spark.createDataFrame(rows, "v long, day int, batch_id string").coalesce(1)
    options |= {"use-table-distribution-and-ordering": "false"}
    frame.writeTo(story.full_name).options(**options).append()


@pytest.mark.long
def test_a_sorted_file_that_is_not_in_order_is_left_to_spark_which_sorts_it(story: Story, filtered: list[str]) -> None:
    append(story, "E", "C", "E", "C", None, start=500, **{"output-sort-order-id": "1"})
    story.revert("C")
    before = story.rows_at()

    result = alone(story)

    assert (filtered, result.files_rewritten, result.rows_purged) == ([], 1, 2)
    story.check_reads(before)
    assert [None, "E", "E"] in story.files().values()


@pytest.mark.long
@pytest.mark.parametrize("format_version", [2, 3])
def test_unsorted_files_are_filtered_in_any_order(
    spark: SparkSession, lake: Lake, filtered: list[str], format_version: int
) -> None:
    """Also if they overlap. They keep their order."""
    story = Story.begin(spark, lake, partition_by=(), format_version=format_version)
    story.put("A", "B", "D")
    story.consolidate("A", "B", "D")
    append(story, *"EBC", None, *"EA", start=500)
    append(story, "E", None, *"DAB", start=600)
    story.revert("B", "C")
    before = story.rows_at()

    result = alone(story)

    assert (len(filtered), result.files_rewritten, result.rows_purged) == (3, 3, 7)
    story.check_reads(before)
    found = sorted((batches for batches in story.files().values()), key=len)
    assert found[:2] in ([[*"E", None, *"DA"], [*"E", None, *"EA"]], [[*"E", None, *"EA"], [*"E", None, *"DA"]])
    if format_version == 3:
        rows = spark.sql(f"SELECT count(*), count(DISTINCT _row_id) FROM {story.full_name}").collect()[0]
        assert rows[0] == rows[1]


@pytest.mark.long
def test_a_file_that_pyiceberg_wrote_is_filtered(story: Story, filtered: list[str]) -> None:
    story.append_as_foreign_writer("E", "C", None, "C")
    story.revert("C")
    before = story.rows_at()

    result = alone(story)

    assert (len(filtered), result.files_rewritten, result.rows_purged) == (1, 1, 2)
    story.check_reads(before)
    assert ["E", None] in story.files().values()


@pytest.mark.long
def test_rows_without_a_batch_that_are_first_are_in_order(story: Story, filtered: list[str]) -> None:
    story.append_as_foreign_writer(None, None, "C", "E", "F")
    story.revert("C", "E")
    before = story.rows_at()

    alone(story)

    assert len(filtered) == 1
    story.check_reads(before)


def test_a_file_with_deletes_of_another_engine_is_left_to_spark(story: Story, filtered: list[str]) -> None:
    story.spark.sql(f"ALTER TABLE {story.full_name} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    story.spark.sql(f"DELETE FROM {story.full_name} WHERE batch_id = 'B'")
    story.revert("A")
    before = story.rows_at()

    alone(story)

    assert filtered == []
    story.check_reads(before)
    assert not story.table().inspect.delete_files()


@pytest.mark.long
@pytest.mark.parametrize("deletes", ["DeletionVectors", "PositionDeletes"])
def test_tables_with_native_deletes_of_lethe_are_left_to_spark(
    spark: SparkSession, lake: Lake, filtered: list[str], deletes: Any
) -> None:
    """Those of a batch that was deleted after the survey would not apply to a newer file."""
    story = Native.of(Story.begin(spark, lake), deletes).filled()
    story.revert("A")

    alone(story)

    assert filtered == []
    story.check_native(of_batches("B", "D", "E"))


def test_columns_that_were_dropped_and_added_and_renamed(story: Story, filtered: list[str]) -> None:
    """Spark rewrites a file with a dropped column: its values must not stay. One that lacks a new column is filtered."""
    story.spark.sql(f"ALTER TABLE {story.full_name} ADD COLUMN note STRING")
    story.revert("A")
    alone(story)
    assert len(filtered) == 2

    story.spark.sql(f"ALTER TABLE {story.full_name} RENAME COLUMN v TO w")
    story.spark.sql(f"ALTER TABLE {story.full_name} DROP COLUMN note")
    story.revert("B", name="revert-b")
    alone(story, key="2")

    assert len(filtered) == 2
    rows = story.table().scan().to_arrow()
    assert (rows["batch_id"].unique().to_pylist(), rows["w"].null_count) == (["D"], 0)
