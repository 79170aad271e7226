"""A partial vacuum: as much as the budget allows, the rest another time, and no reader notices either."""

from collections import Counter

import pytest
from pyspark.sql import SparkSession

from tests.spark.support.built_once import built_once
from tests.spark.support.story import ALL_GONE, Story, avro, local, of_batches
from tests.support.lake import Lake


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake) -> Story:
    """Batches A, B and D are in the table, in a common file for each of two days; A and D were reverted."""
    story = Story.begin(spark, lake)
    story.put("A", "B", "D")
    story.consolidate("A", "B", "D")
    story.revert("A", "D")
    return story


def counts(keys: dict[str, str]) -> dict[str, str]:
    return {k.split(".")[2]: v for k, v in keys.items() if k.startswith("tombstone.metrics.")}


def test_a_tombstone_stays_until_its_last_file_is_rewritten_and_is_named_by_each_vacuum_that_applied_it(
    story: Story,
) -> None:
    """Who asks for the rows deleted since finds those that left with the first file as well as those of the second."""
    assert len(story.files()) == 2

    first = story.vacuum(max_bytes=1)

    assert (first.files_rewritten, first.files_left, first.tombstones_purged, first.rows_purged) == (1, 1, 0, 4)
    assert first.bytes_left > 0
    keys = story.keys()
    assert counts(keys) == {"added": "0", "deleted": "0", "total": "2", "vacuum": "2"}
    assert {t["id"] for t in avro(keys["tombstone.file"])} == {"A", "D"}
    assert {t["id"] for t in avro(keys["tombstone.vacuum.file"])} == {"A", "D"}
    story.check_reads(of_batches("B"))

    second = story.vacuum(key="2", max_bytes=1)

    assert (second.files_rewritten, second.files_left, second.tombstones_purged) == (1, 0, 2)
    keys = story.keys()
    assert counts(keys) == {"added": "0", "deleted": "2", "total": "0", "vacuum": "2"}
    assert {t["id"] for t in avro(keys["tombstone.vacuum.file"])} == {"A", "D"}
    story.check_reads(of_batches("B"))


@pytest.mark.long
def test_after_the_last_partial_vacuum_the_storage_holds_nothing_that_was_purged(story: Story) -> None:
    story.vacuum(ALL_GONE, max_bytes=1)
    story.vacuum(ALL_GONE, key="2", max_bytes=1)

    assert story.data_folder() == {local(p) for p in story.files()}
    assert {b for batches in story.files().values() for b in batches} == {"B"}


@pytest.mark.long
def test_rows_that_arrive_between_two_partial_vacuums_are_hidden_and_purged(story: Story) -> None:
    story.vacuum(max_bytes=1)
    story.append_as_foreign_writer("A", "x")

    story.vacuum(key="2", max_bytes=1)
    story.vacuum(key="3", max_bytes=1)

    story.check_reads(of_batches("B") + Counter({("x", 501, 1): 1}))
    assert avro(story.keys()["tombstone.file"]) == []


def test_a_vacuum_after_a_change_of_partitioning_remembers_where_the_survivors_are_now(story: Story) -> None:
    """B's rows are written again, by another partition spec; a tombstone for B must say so."""
    story.spark.sql(f"ALTER TABLE {story.full_name} ADD PARTITION FIELD bucket(2, v)")

    story.vacuum()

    before = {"0/[1]", "0/[2]"}
    partitions = set(story.ledger().batches["B"].partitions or ())
    assert before < partitions
    assert any(p.startswith("1/[") for p in partitions)
    story.revert("B", name="second")
    (tombstone,) = story.ledger().tombstones.values()
    assert set(tombstone.partitions or ()) == partitions
