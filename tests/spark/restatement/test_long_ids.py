"""Batch ids as long as an id may be: 256 characters, which may be 1,024 bytes."""

from collections import Counter

import lethe
import lethe_spark
import pytest
from lethe.contract.settings import Deletes
from pyspark.sql import SparkSession

from tests.spark.support.native_deletes import Native
from tests.spark.support.story import Row, Story, of_arrow, of_batches, of_spark
from tests.support.lake import SCHEMA, Lake

START = "\U0001f600" * 255
FIRST, SECOND, THIRD = (START + end for end in ("\U0001f600", "\U0001f601", "\ud7ff"))


@pytest.mark.parametrize("deletes", [Deletes.LEDGER, Deletes.POSITION_DELETES, Deletes.DELETION_VECTORS])
def test_ids_of_1024_bytes_are_taken_back_shown_again_and_purged(
    spark: SparkSession, lake: Lake, deletes: Deletes
) -> None:
    """They differ in the last character only, beyond all bounds that are cut."""
    story = Native.of(Story.begin(spark, lake, ()), deletes)
    assert [len(i.encode()) for i in (FIRST, SECOND)] == [1024, 1024]
    story.put("A")
    story.consolidate("A")
    before = of_batches("A")
    ids = (FIRST, SECOND, THIRD)
    frame = spark.createDataFrame([(500 + n, 1, i) for n, i in enumerate(ids)], SCHEMA)
    frame.coalesce(1).writeTo(story.full_name).append()

    def rows(*found: str) -> Counter[Row]:
        return before + Counter((i, 500 + ids.index(i), 1) for i in found)

    def check(*found: str) -> None:
        assert of_arrow(lethe.scan(story.full_name).to_arrow()) == rows(*found)
        assert of_spark(lethe_spark.read(spark, story.full_name)) == rows(*found)
        if deletes.native is not None:
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
