"""Files that stay large are purged one by one, without Spark's rows. The result is that of a rewrite by Spark.

In format version 3 rows have ids. Rows that stay keep theirs in such files, as in a rewrite by Spark.
"""

from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from lethe.contract.settings import Deletes
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.all_types import all_types, alone, data_file, differences, ids_of, metrics, rows_of
from tests.spark.support.native_deletes import Native
from tests.spark.support.story import Story, local, of_batches
from tests.spark.support.streaming_writer import delete_by_equality
from tests.support.lake import Lake

STORED = {"_row_id", "_last_updated_sequence_number"}


def test_files_lose_the_rows_and_keep_everything_else(story: Story, filtered: list[str]) -> None:
    story.revert("A")
    before, files = story.rows_at(), set(story.files())

    result = alone(story)

    assert set(filtered) == files
    assert (result.outcome, result.tombstones_purged, result.rows_purged) == ("Committed", 1, 4)
    assert (result.files_rewritten, result.files_added, story.operation()) == (2, 2, "replace")
    story.check_reads(before)
    assert all(batches == sorted(b or "" for b in batches) for batches in story.files().values())
    assert story.in_files().keys() == {"B", "D"}


def test_files_that_get_deletes_in_the_meantime_are_purged_again(story: Story, filtered: list[str]) -> None:
    story.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    story.revert("A")
    run = story.vacuuming_so(target_file_size_bytes=1)

    story.run(run, after_write=lambda: story.sql("DELETE FROM {t} WHERE batch_id = 'B'"))

    assert len(filtered) == 4
    assert story.in_files().keys() == {"D"}
    story.check_reads(of_batches("D"))


def test_rows_that_another_engine_deleted_go_along(story: Story, filtered: list[str]) -> None:
    story.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    story.sql("DELETE FROM {t} WHERE batch_id = 'B'")
    story.revert("A")
    before = story.rows_at()

    alone(story)

    assert len(filtered) == 2
    story.check_reads(before)
    assert story.in_files().keys() == {"D"}
    assert not story.table().inspect.delete_files()


def test_a_file_with_deletes_by_values_is_left_to_spark(story: Story, filtered: list[str]) -> None:
    delete_by_equality(story, "batch_id", "B", 0, [1])
    story.revert("A")

    alone(story)

    assert len(filtered) < 2
    assert not story.table().inspect.delete_files()


@pytest.mark.parametrize(
    "deletes", some([Deletes.DELETION_VECTORS, Deletes.POSITION_DELETES], Deletes.DELETION_VECTORS)
)
def test_native_deletes_of_lethe_go_with_their_rows(
    spark: SparkSession, lake: Lake, filtered: list[str], deletes: Deletes
) -> None:
    """E is in files of its own, which are dropped. What is hidden and not purged by this run goes as well."""
    story = Native.begin(spark, lake, deletes=deletes).filled()
    story.revert("A", "E")

    alone(story)

    assert (len(filtered), story.deletes_now(), story.tombstones()) == (2, [], set())
    story.check_native(of_batches("B", "D"))
    assert story.in_files().keys() == {"B", "D"}


def test_columns_that_were_dropped_and_added_and_renamed(story: Story, filtered: list[str]) -> None:
    """Spark rewrites a file with a dropped column: its values must not stay. One that lacks a new column is filtered."""
    story.sql("ALTER TABLE {t} ADD COLUMN note STRING")
    story.revert("A")
    alone(story)
    assert len(filtered) == 2

    story.sql("ALTER TABLE {t} RENAME COLUMN v TO w")
    story.sql("ALTER TABLE {t} DROP COLUMN note")
    story.revert("B", name="revert-b")
    alone(story, key="2")

    assert len(filtered) == 2
    rows = story.table().scan().to_arrow()
    assert (rows["batch_id"].unique().to_pylist(), rows["w"].null_count) == (["D"], 0)


# --- row ids, of format version 3 ------------------------------------------------------------------------------------


def without(ids: dict[Any, tuple[int, int, str]], *batches: str) -> dict[Any, tuple[int, int, str]]:
    return {key: one for key, one in ids.items() if one[2] not in batches}


def begun(spark: SparkSession, lake: Lake, format_version: int = 3) -> Story:
    """Batches A, B and D are in the table, and E to G in other files of a later commit. Each day has files of its own."""
    return Story.begin(spark, lake, format_version=format_version).filled("ABD", "EFG")


@pytest.mark.parametrize("format_version", some([2, 3], 3))
def test_rows_ids_and_metrics_of_all_types_are_those_of_a_rewrite_by_spark(
    spark: SparkSession, lake: Lake, filtered: list[str], format_version: int
) -> None:
    by_arrow, by_spark = (all_types(spark, lake, format_version) for _ in range(2))
    gone = ("B003", "B004", "B019")
    before = ids_of(by_arrow, "id") if format_version == 3 else {}

    old = pq.read_metadata(local(data_file(by_arrow).file_path))
    in_groups = sum(old.row_group(n).column(c).total_compressed_size for n in range(10) for c in range(old.num_columns))

    result = alone(by_arrow)
    assert len(filtered) == 1
    assert result.plan.bytes_to_copy + result.plan.bytes_to_encode == result.bytes_rewritten
    assert result.plan.bytes_to_copy / result.bytes_rewritten == pytest.approx(7 / 10, abs=0.001)
    assert result.bytes_copied / in_groups == pytest.approx(7 / 10, abs=0.02)
    by_spark.vacuum()
    assert len(filtered) == 1

    assert rows_of(by_arrow) == rows_of(by_spark)
    assert len(rows_of(by_arrow)) == 1700
    assert differences(metrics(data_file(by_arrow)), metrics(data_file(by_spark))) == {}
    if format_version == 3:
        assert ids_of(by_arrow, "id") == ids_of(by_spark, "id") == without(before, *gone)
        check_readers(by_arrow)


def check_readers(story: Story) -> None:
    """Arrow, DuckDB and PyIceberg read the rows and the ids that Spark reads."""
    ids = ids_of(story, "id")
    path = local(data_file(story).file_path)
    columns = ["id", "_row_id", "_last_updated_sequence_number", "batch_id"]
    by_arrow = pq.read_table(path, columns=columns)
    assert {key: tuple(rest) for key, *rest in zip(*(by_arrow[c].to_pylist() for c in columns), strict=True)} == ids
    assert {row[0]: row[1:] for row in duckdb.sql(f"SELECT {', '.join(columns)} FROM '{path}'").fetchall()} == ids
    everything = pq.read_table(path).drop_columns(sorted(STORED))
    by_pyiceberg = story.table().scan().to_arrow()
    assert str(everything.to_pylist()) == str(by_pyiceberg.to_pylist())
    assert {row["id"] for row in by_pyiceberg.to_pylist()} == ids.keys()


@pytest.mark.long
def test_files_whose_rows_have_no_ids_yet_are_left_to_spark(
    spark: SparkSession, lake: Lake, filtered: list[str]
) -> None:
    story = begun(spark, lake, format_version=2)
    story.revert("A")
    spark.sql(f"ALTER TABLE {story.full_name} SET TBLPROPERTIES ('format-version' = '3')")
    before = story.rows_at()

    result = alone(story)

    assert (filtered, result.outcome, result.rows_purged) == ([], "Committed", 4)
    story.check_reads(before)
    assert all(row_id is not None for row_id, _, _ in ids_of(story).values())


@pytest.mark.long
def test_a_table_that_is_upgraded_in_the_meantime_is_planned_again(
    spark: SparkSession, lake: Lake, filtered: list[str]
) -> None:
    """The rows have got ids since their file was written without them."""
    story = begun(spark, lake, format_version=2)
    story.revert("A")
    ids: dict[Any, tuple[int, int, str]] = {}

    def upgrade() -> None:
        spark.sql(f"ALTER TABLE {story.full_name} SET TBLPROPERTIES ('format-version' = '3')")
        spark.sql(f"INSERT INTO {story.full_name} VALUES (900, 1, 'E')")
        ids.update(ids_of(story))

    story.run(story.vacuuming_so(target_file_size_bytes=1), after_write=upgrade)

    assert len(filtered) == 4
    assert ids_of(story) == without(ids, "A")
