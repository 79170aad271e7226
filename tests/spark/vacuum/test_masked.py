"""A vacuum in steps, or of some batches only, where deleted batches are masked by native deletes: what goes along is told."""

import pytest
from pyspark.sql import SparkSession

from tests.spark.support.built_once import built_once
from tests.spark.support.native_deletes import Native
from tests.spark.support.story import Story, avro, of_batches
from tests.spark.vacuum.test_steps import in_steps, tombstones
from tests.support.lake import Lake

MODES = "DeletionVectors", "PositionDeletes"


@pytest.fixture
@built_once
def story(request: pytest.FixtureRequest, spark: SparkSession, lake: Lake) -> Native:
    """A, B and D lie in a common file for each of two days, E in others; A was reverted."""
    story = Native.of(Story.begin(spark, lake), request.param).filled()
    story.revert("A")
    return story


def vacuumed(story: Native) -> set[str]:
    """What the head's vacuum says that it applied."""
    return {t["id"] for t in avro(story.keys()["tombstone.vacuum.file"])}


@pytest.mark.long
@pytest.mark.parametrize("story", MODES, indirect=True)
def test_rows_masked_between_two_steps_are_purged_by_the_second_and_reported_as_deleted(story: Native) -> None:
    """The step reads its files without those rows: they are gone, though the run is not about them, and nobody can undo that."""
    result = story.run(in_steps(story), step_2=lambda: story.revert("B", name="meanwhile"))

    assert (result.steps, result.tombstones_purged, tombstones(story), vacuumed(story)) == (2, 1, {"B"}, {"A", "B"})
    assert story.plain() == of_batches("D", "E")
    undone = story.undo("meanwhile")
    assert (undone.succeeded, undone.reason) == (False, "AlreadyPurged")
    story.vacuum(key="after")
    assert tombstones(story) == set()
    story.check_native(of_batches("D", "E"))


@pytest.mark.long
@pytest.mark.parametrize("story", MODES, indirect=True)
def test_a_vacuum_of_some_batches_reports_other_purged_batches(story: Native) -> None:
    story.revert("B", name="other")

    result = story.run(story.vacuuming_so(batch_ids=("A",)))

    assert (result.tombstones_purged, tombstones(story), vacuumed(story)) == (1, {"B"}, {"A", "B"})
    story.check_native(of_batches("D", "E"))
