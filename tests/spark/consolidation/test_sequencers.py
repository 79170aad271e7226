"""What event notifications told of an object is remembered by the commit that promotes it, if that is what it promotes."""

import pytest
from lethe.buffer.notifications import Written, is_settled
from lethe.contract.run import RunSpec, SeenObject
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.story import Story
from tests.support.buffers import batches_in
from tests.support.lake import Lake
from tests.support.steps import Killed, die


@pytest.fixture
def story(spark: SparkSession, lake: Lake) -> Story:
    return Story.begin(spark, lake)


def run_with_notifications(story: Story, run: RunSpec, **sequencers: str) -> RunSpec:
    """The run that heard of the objects of these batches as they are now."""
    batches = batches_in(story.buffer.uri)
    seen = tuple(
        SeenObject(key=o.key, etag=o.etag, sequencer=sequencers[b.id])
        for b in batches
        if b.id in sequencers
        for o in b.data_objects
    )
    assert run.consolidation is not None
    return run.model_copy(update={"consolidation": run.consolidation.model_copy(update={"seen_objects": seen})})


def remembered(story: Story) -> dict[str, list[str | None]]:
    return {i: [o.sequencer for o in b.objects] for i, b in story.ledger().batches.items()}


@pytest.mark.parametrize("step", some(["", "after-stage"], "after-stage"))
def test_the_commit_records_the_sequencers_of_its_objects(story: Story, step: str) -> None:
    """Also when the files were staged by an attempt that died. What is told again is settled by the ledger alone."""
    story.put("A", "B", files=2)
    story.put_file("R", b"no parquet")
    run = run_with_notifications(story, story.consolidation("A", "B", "R"), A="0A", R="0B")
    if step:
        with pytest.raises(Killed):
            story.run(run, **{step.replace("-", "_"): die})

    story.run(run)

    assert remembered(story) == {"A": ["0A", "0A"], "B": [None, None], "R": ["0B"]}
    refused = story.ledger().batches["R"]
    again = Written("R", "batch_id=R", refused.objects[0].key, "", "0B")
    assert is_settled(again, refused)


def test_the_sequencer_of_an_earlier_write_is_not_recorded_for_a_later_one(story: Story) -> None:
    story.put("A")
    run = run_with_notifications(story, story.consolidation("A"), A="0A")
    story.put("A", rows=6)

    story.run(run)

    assert remembered(story) == {"A": [None]}
