"""Batch ids as long as an id may be: 256 characters, which may be 1,024 bytes."""

from collections import Counter
from pathlib import Path
from typing import Any

import lethe
import lethe_spark
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.contract.settings import Deletes
from pyspark.sql import SparkSession

from tests.spark.parameters import MODES, some
from tests.spark.support.erasures import erase
from tests.spark.support.native_deletes import Native
from tests.spark.support.story import ALL_GONE, Row, Story, of_arrow, of_batches, of_spark, some_rows
from tests.support.lake import SCHEMA, Lake

START = "\U0001f600" * 255
FIRST, SECOND, THIRD = (START + end for end in ("\U0001f600", "\U0001f601", "\ud7ff"))


@pytest.mark.parametrize("deletes", some(MODES, Deletes.DELETION_VECTORS))
def test_ids_of_1024_bytes_are_taken_back_shown_again_and_purged(
    spark: SparkSession, lake: Lake, deletes: Deletes
) -> None:
    """They differ in the last character only, beyond all bounds that are cut."""
    story = Native.begin(spark, lake, (), deletes=deletes)
    assert [len(i.encode()) for i in (FIRST, SECOND)] == [1024, 1024]
    story.filled("A")
    before = of_batches("A")
    ids = (FIRST, SECOND, THIRD)
    frame = spark.createDataFrame([(500 + n, 1, i) for n, i in enumerate(ids)], SCHEMA)
    frame.coalesce(1).writeTo(story.full_name).append()

    def rows(*found: str) -> Counter[Row]:
        return before + Counter((i, 500 + ids.index(i), 1) for i in found)

    def check(*found: str) -> None:
        assert of_arrow(lethe.scan(story.full_name).to_arrow()) == rows(*found)
        assert of_spark(lethe_spark.read(spark, story.full_name)) == rows(*found)
        if deletes is not Deletes.LEDGER:
            assert story.plain() == rows(*found)
            assert story.rows_at() == rows(*found)

    assert story.revert(FIRST).succeeded
    check(SECOND, THIRD)
    assert story.undo().succeeded
    check(FIRST, SECOND, THIRD)
    assert story.revert(FIRST, THIRD, name="again").succeeded
    assert story.vacuum().tombstones_purged == 2
    check(SECOND)
    assert story.plain() == rows(SECOND)
    assert story.ledger().tombstones == {}


# --- batches of partitions -------------------------------------------------------------------------------------------
# Batches whose id is the value of a partition alone: files that another engine added as they were lack the batch column.


def adopted(story: Story, home: Path, *batch_ids: str) -> None:
    """Batches of a folder each, added by Spark as they are."""
    folder = home / f"hive-{story.name}"
    for batch_id in batch_ids:
        at = folder / f"batch_id={batch_id}"
        at.mkdir(parents=True)
        rows = pa.schema([("v", pa.int64()), ("day", pa.int32())])
        pq.write_table(pa.Table.from_pylist(some_rows(batch_id, 4), rows), at / "part-0.parquet")
    name = f"{story.catalog}.{story.name}"
    story.spark.sql(
        f"CALL {story.catalog}.system.add_files(table => '{story.name}', source_table => '`parquet`.`{folder}`')"
    ).collect()
    story.spark.catalog.refreshTable(name)


def a_story(spark: SparkSession, lake: Lake, version: int, tmp_path: Path) -> Story:
    """Batch A came through Lethe, X and Y by another engine as files without the batch column."""
    story = Story.begin(spark, lake, partition_by=("batch_id",), format_version=version).filled("A")
    name = story.full_name
    mapping = (
        '[{"field-id": 1, "names": ["v"]}, {"field-id": 2, "names": ["day"]}, {"field-id": 3, "names": ["batch_id"]}]'
    )
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('schema.name-mapping.default' = '{mapping}')")
    adopted(story, tmp_path, "X", "Y")
    return story


def everywhere(story: Story) -> list[Counter[Row]]:
    """What Lethe's two readers find."""
    story.spark.catalog.clearCache()
    return [of_arrow(lethe.scan(story.full_name).to_arrow()), of_spark(lethe_spark.read(story.spark, story.full_name))]


@pytest.mark.parametrize("deletes", some(["DeletionVectors", "PositionDeletes"], "PositionDeletes"))
def test_a_reverted_batch_of_a_partition_is_hidden_from_every_engine(
    spark: SparkSession, lake: Lake, tmp_path: Path, deletes: Any
) -> None:
    """Native deletes reach the file although it has no such column, and an Undo is refused where it could not be exact."""
    version = 3 if deletes == "DeletionVectors" else 2
    story = a_story(spark, lake, version, tmp_path).seen_as(Native, deletes=deletes)

    result = story.revert("X")

    assert (result.succeeded, story.plain()) == (True, of_batches("A", "Y"))
    assert everywhere(story) == [of_batches("A", "Y")] * 2


@pytest.mark.parametrize("version", some([2, 3], 3))
def test_a_purge_drops_the_file_of_such_a_batch_by_its_metadata(
    spark: SparkSession, lake: Lake, tmp_path: Path, version: int
) -> None:
    story = a_story(spark, lake, version, tmp_path)
    erase(story, "X")
    assert everywhere(story) == [of_batches("A", "Y")] * 2

    purged = story.vacuum(ALL_GONE)

    assert (purged.files_deleted, purged.files_rewritten, purged.tombstones_purged) == (1, 0, 1)
    assert everywhere(story) == [of_batches("A", "Y")] * 2
    assert story.rows_at() == of_batches("A", "Y")
