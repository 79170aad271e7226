"""A run that was asked for before a rollback does not build on the table after it, unless somebody accepts that head."""

import pytest
from lethe.base.errors import InputError
from lethe.contract.run import RunSpec
from pyspark.sql import SparkSession

from tests.spark.support.built_once import built_once
from tests.spark.support.story import Story
from tests.support.lake import Lake


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake) -> Story:
    """Batches A and B, promoted one after the other; both still lie in the buffer."""
    story = Story.begin(spark, lake)
    story.put("A", "B", "C")
    story.consolidate("A")
    story.consolidate("B")
    return story


def seeing_the_head(story: Story, *batch_ids: str) -> RunSpec:
    head = story.head()
    return story.consolidation(*batch_ids, seen_snapshot_id=head.snapshot_id, seen_sequence_number=head.sequence_number)


def roll_back(story: Story) -> int:
    """To the snapshot before the head."""
    before = story.snapshots()[1].snapshot_id
    story.spark.sql(f"CALL {story.catalog}.system.set_current_snapshot('{story.name}', {before})")
    return before


def test_a_run_refuses_a_table_that_was_rolled_back_since_it_was_asked_for(story: Story) -> None:
    """Between the operator's look and the run's start, nobody else can notice."""
    spec, seen = seeing_the_head(story, "C"), story.head().snapshot_id
    before = roll_back(story)

    with pytest.raises(InputError) as refusal:
        story.run(spec)

    assert refusal.value.reason == "TableRolledBack"
    assert str(seen) in refusal.value.message
    assert str(before) in refusal.value.message
    assert (story.head().snapshot_id, story.states()) == (before, {"A": "promoted"})


def test_after_an_accepted_rollback_what_it_took_away_is_promoted_again_once(story: Story) -> None:
    """By the very run that promoted it before: the id is the same, and what it staged then is still there."""
    wanted = story.rows_at()
    roll_back(story)

    story.run(seeing_the_head(story, "B"))

    assert story.rows_at() == wanted
    assert story.states() == {"A": "promoted", "B": "promoted"}
