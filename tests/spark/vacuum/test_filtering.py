"""Files that stay large are purged one by one, without Spark's rows. The result is that of a rewrite by Spark."""

from typing import Any, Literal

import pytest
from lethe_spark.jobs.vacuum import purge_step
from lethe_spark.jobs.vacuum.filtering import FilteredFiles
from pyiceberg.manifest import DataFile
from pyspark.sql import SparkSession

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


@pytest.fixture
def filtered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the files that were purged one by one."""
    paths: list[str] = []
    original = purge_step.filter_files

    def remembered(*arguments: Any) -> FilteredFiles:
        done = original(*arguments)
        paths.extend(done.replaced)
        return done

    monkeypatch.setattr(purge_step, "filter_files", remembered)
    return paths


def alone(story: Story, key: str = "1", **asked: Any) -> Any:
    """A vacuum for which any file is large."""
    return story.run(story.vacuuming_so(key, target_file_size_bytes=1, **asked))


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


@pytest.mark.parametrize("step", ["after_write", "before_commit", "after_commit"])
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


def test_a_small_file_is_left_to_spark_which_merges_it_with_others(story: Story, filtered: list[str]) -> None:
    story.revert("A")

    result = story.vacuum()

    assert (filtered, result.files_rewritten, result.rows_purged) == ([], 2, 4)


def test_a_file_that_is_not_in_order_is_left_to_spark_which_sorts_it(story: Story, filtered: list[str]) -> None:
    story.append_as_foreign_writer("E", "C", "E", "C", None)
    story.revert("C")
    before = story.rows_at()

    result = alone(story)

    assert (filtered, result.files_rewritten, result.rows_purged) == ([], 1, 2)
    story.check_reads(before)
    assert [None, "E", "E"] in story.files().values()


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


@pytest.mark.parametrize("deletes", ["DeletionVectors", "EqualityDeletes"])
def test_tables_with_native_deletes_of_lethe_are_left_to_spark(
    spark: SparkSession, lake: Lake, filtered: list[str], deletes: Literal["DeletionVectors", "EqualityDeletes"]
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


# --- the same as Spark ------------------------------------------------------------------------------------------------

COLUMNS = """id BIGINT NOT NULL, batch_id STRING, flag BOOLEAN, small INT, ratio FLOAT, price DOUBLE, amount DECIMAL(9,2),
  large DECIMAL(18,4), huge DECIMAL(30,5), name STRING, blob BINARY, day DATE, at TIMESTAMP, wall TIMESTAMP_NTZ, never STRING,
  tags ARRAY<STRING>, counts MAP<STRING, DOUBLE>, deep STRUCT<v: FLOAT, w: ARRAY<STRUCT<z: STRING, n: INT>>>"""

ROWS_OF_ALL_TYPES = """
SELECT id, concat('B', lpad(CAST(id DIV 100 AS STRING), 3, '0')) batch_id, id % 3 = 0 flag,
  CAST(if(id % 7 = 0, NULL, id) AS INT) small, CAST(if(id % 11 = 0, 'NaN', id / 3) AS FLOAT) ratio,
  CAST(if(id % 13 = 0, NULL, -id / 7) AS DOUBLE) price, CAST(id / 8 AS DECIMAL(9,2)) amount,
  CAST(id * 1.5 AS DECIMAL(18,4)) large, CAST(id * 1234567.25 AS DECIMAL(30,5)) huge,
  repeat(concat('name-', CAST(id AS STRING)), 5) name, CAST(concat('blob', CAST(id AS STRING)) AS BINARY) blob,
  date_add(DATE'2026-01-01', CAST(id % 400 AS INT)) day, timestamp_seconds(1700000000 + id) at,
  TIMESTAMP_NTZ'2026-01-01 10:00:00.123456' + make_dt_interval(0, 0, 0, id) wall, CAST(NULL AS STRING) never,
  if(id % 5 = 0, NULL, array('a', NULL, CAST(id AS STRING))) tags, map('x', id / 2D, 'y', NULL) counts,
  named_struct('v', CAST(id + 1 AS FLOAT), 'w', array(named_struct('z', CAST(id AS STRING), 'n', CAST(id AS INT)))) deep
FROM range(2000) ORDER BY id"""


def all_types(spark: SparkSession, lake: Lake) -> Story:
    """Twenty batches of a hundred rows with columns of many types, in one file. Three batches are deleted."""
    story = Story.begin(spark, lake)
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {story.catalog}.air")
    groups = {
        "row-group-size-bytes": 20_000,
        "row-group-check-min-record-count": 100,
        "row-group-check-max-record-count": 100,
    }
    wanted = {"write.metadata.metrics.column.batch_id": "full"} | {f"write.parquet.{k}": v for k, v in groups.items()}
    properties = ", ".join(f"'{k}' = '{v}'" for k, v in wanted.items())
    spark.sql(f"CREATE TABLE {story.full_name} ({COLUMNS}) USING iceberg TBLPROPERTIES ({properties})")
    spark.sql(f"ALTER TABLE {story.full_name} WRITE ORDERED BY batch_id")
    spark.sql(ROWS_OF_ALL_TYPES).coalesce(1).writeTo(story.full_name).append()
    story.revert("B003", "B004", "B019")
    return story


def test_rows_and_metrics_of_all_types_are_those_of_a_rewrite_by_spark(
    spark: SparkSession, lake: Lake, filtered: list[str]
) -> None:
    by_arrow, by_spark = all_types(spark, lake), all_types(spark, lake)

    result = alone(by_arrow)
    assert len(filtered) == 1
    assert 0 < result.bytes_copied < result.bytes_rewritten
    by_spark.vacuum()
    assert len(filtered) == 1

    assert rows_of(by_arrow) == rows_of(by_spark)
    assert len(rows_of(by_arrow)) == 1700
    assert differences(metrics(data_file(by_arrow)), metrics(data_file(by_spark))) == {}


def data_file(story: Story) -> DataFile:
    table = story.table()
    (manifest,) = (m for m in story.head().manifests(table.io) if m.has_added_files() or m.has_existing_files())
    (entry,) = manifest.fetch_manifest_entry(table.io)
    return entry.data_file


def metrics(file: DataFile) -> dict[str, Any]:
    """All that the manifest says of a file, but its path and its sizes."""
    names = ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
    known = {name: dict(getattr(file, name) or {}) for name in names}
    return known | {
        "rows": file.record_count,
        "sort": file.sort_order_id,
        "spec": file.spec_id,
        "columns": len(file.column_sizes),
    }


def rows_of(story: Story) -> list[str]:
    return [
        str(row) for row in story.spark.table(story.full_name).orderBy("id").collect()
    ]  # NaN is not equal to itself


def differences(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """What differs, by field id."""
    found: dict[str, Any] = {}
    for name in one:
        a, b = one[name], other[name]
        if isinstance(a, dict):
            found |= {f"{name} {i}": (a.get(i), b.get(i)) for i in a.keys() | b.keys() if a.get(i) != b.get(i)}
        elif a != b:
            found[name] = (a, b)
    return found
