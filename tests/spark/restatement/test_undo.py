"""Undo: a revert is taken back whole, or refused with the reason, and nobody sees anything in between."""

from collections import Counter

import pytest
from pyspark.sql import SparkSession

from tests.spark.support.built_once import built_once
from tests.spark.support.story import Story, avro, of_batches
from tests.support.builders import a_request
from tests.support.lake import Lake


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake) -> Story:
    """Batches A, B and D are in the table."""
    story = Story.begin(spark, lake)
    story.put("A", "B", "D")
    story.consolidate("A", "B", "D")
    return story


def test_an_undo_shows_the_rows_again_and_touches_no_data_file(story: Story) -> None:
    files = story.files()
    story.revert("A", "D")

    result = story.undo()

    assert (result.succeeded, result.tombstones_removed, result.rows_restored) == (True, 2, 8)
    assert result.undoes == "ns/revert/0"
    assert (result.snapshot_id, story.files()) == (story.head().snapshot_id, files)
    assert story.states() == {"A": "promoted", "B": "promoted", "D": "promoted"}
    story.check_reads(of_batches("A", "B", "D"))
    assert story.rows_at(story.snapshots()[1].snapshot_id) == of_batches("B")  # the past stays as it was
    keys = story.keys()
    assert avro(keys["tombstone.file"]) == []
    assert [keys[f"tombstone.metrics.{k}.count"] for k in ("added", "deleted", "total")] == ["0", "2", "0"]


def test_a_batch_reverted_before_it_came_comes_after_the_undo(story: Story) -> None:
    story.revert("late")
    story.put("late")
    assert story.consolidate("late").batches_withheld == 1

    story.undo()

    assert story.consolidate("late").batches_promoted == 1
    story.check_reads(of_batches("A", "B", "D", "late"))


@pytest.mark.long
def test_rows_that_another_writer_brought_for_a_batch_are_seen_again(story: Story) -> None:
    story.append_as_foreign_writer("A", "x")
    story.revert("A", "x")

    story.undo()

    story.check_reads(of_batches("A", "B", "D") + Counter({("A", 500, 1): 1, ("x", 501, 1): 1}))


def test_revert_undo_and_revert_applied_again_in_any_order_change_nothing(story: Story) -> None:
    """A rebuilt cluster gets all its resources at once, in whatever order."""
    revert = a_request("revert", batch_ids=("A",))
    undo = a_request("undo", "Undo", batch_ids=(), undoes="ns/revert/0")
    again = a_request("again", batch_ids=("A",))
    first = [story.restate(r) for r in (revert, undo, again)]
    head = story.head().snapshot_id

    results = [story.restate(r) for r in (again, undo, revert)]

    assert [r.snapshot_id for r in results] == [r.snapshot_id for r in reversed(first)]
    assert story.head().snapshot_id == head
    story.check_reads(of_batches("B", "D"))


def test_what_a_partial_vacuum_has_begun_to_purge_is_not_brought_back_in_part(story: Story) -> None:
    """A's rows lie in a file for each of two days; one of the files is rewritten."""
    story.revert("A")
    assert story.vacuum(max_bytes=1).files_left == 1

    result = story.undo()

    assert (result.succeeded, result.reason) == (False, "AlreadyPurged")
    assert "completely or partly" in result.message
    story.check_reads(of_batches("B", "D"))
    story.vacuum(key="2")
    story.check_reads(of_batches("B", "D"))
