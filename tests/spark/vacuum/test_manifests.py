"""Manifests are rewritten with the ledger, and nobody's rows, tombstones or increments change by it."""

from collections import Counter
from typing import Any

import lethe
import pytest
from lethe_spark.jobs.vacuum.job import rewrite_manifests
from pyspark.sql import SparkSession

from tests.spark.support.built_once import built_once
from tests.spark.support.maintenance import added_by, maintain, maintaining, manifests, table_of
from tests.spark.support.native_deletes import Native
from tests.spark.support.story import Row, Story, avro, of_arrow, of_batches
from tests.support.lake import Lake
from tests.support.steps import Killed, die

FOREIGN_BATCHES = [f"x{n:02}" for n in range(12)]
THEIR_ROWS: Counter[Row] = Counter({(i, 500, 1 + n % 3): 1 for n, i in enumerate(FOREIGN_BATCHES)})


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake) -> Story:
    """Batches A and B are in the table, and a manifest of each of twelve commits of another writer's."""
    return with_foreign_writers(Story.begin(spark, lake))


def with_foreign_writers(story: Story) -> Story:
    story.put("A", "B")
    story.consolidate("A", "B")
    for n, batch in enumerate(FOREIGN_BATCHES):
        story.append_as_foreign_writer(batch, day=1 + n % 3)
    return story


def tombstones(story: Story) -> set[str]:
    return {t["id"] for t in avro(story.keys()["tombstone.file"])}


def test_many_small_manifests_become_one_and_the_snapshot_carries_the_ledger(story: Story) -> None:
    story.revert("A")
    before, files, since = manifests(story), added_by(story), story.head().snapshot_id

    done = rewrite_manifests(story.context(maintaining(story)), table_of(story))

    assert (done.outcome, manifests(story)) == (before, 1)
    keys = story.keys()
    assert (story.operation(), "tombstone.vacuum.file" in keys) == ("replace", False)
    assert (tombstones(story), added_by(story)) == ({"A"}, files)
    assert lethe.scan(story.full_name, since=since).to_arrow().num_rows == 0
    story.check_reads(of_batches("B") + THEIR_ROWS)


@pytest.mark.long
def test_a_vacuum_rewrites_manifests_if_it_is_asked_to_and_only_once(story: Story) -> None:
    assert story.vacuum().manifests_rewritten == 0

    first, second = (maintain(story, key=key, rewrite_manifests=True) for key in ("2", "3"))

    assert (first.outcome, first.manifests_rewritten > 0, first.message) == ("Committed", True, "")
    assert (second.outcome, second.manifests_rewritten) == ("NothingToDo", 0)
    story.check_reads(of_batches("A", "B") + THEIR_ROWS)


@pytest.mark.long
def test_a_few_manifests_are_left_as_they_are(spark: SparkSession, lake: Lake) -> None:
    story = Story.begin(spark, lake)
    story.put("A", "B")
    story.consolidate("A")
    story.consolidate("B")

    assert maintain(story, rewrite_manifests=True).manifests_rewritten == 0
    assert manifests(story) == 2


@pytest.mark.long
def test_manifests_of_deletes_and_row_ids_stay_as_they_are(spark: SparkSession, lake: Lake) -> None:
    """Rewriting concerns those of data files; a vector is found by the path of its file."""
    story = Native.of(Story.begin(spark, lake, format_version=3), "DeletionVectors")
    story.put("A", "B")
    story.consolidate("A", "B")
    names = [f"C{n}" for n in range(10)]
    for name in names:
        story.put(name)
        story.consolidate(name)
    story.revert("A")
    ids = _row_ids(story)

    done = rewrite_manifests(story.context(maintaining(story)), table_of(story))

    assert (done.outcome, manifests(story)) == (11, 2)
    assert _row_ids(story) == ids
    story.check_native(of_batches("B", *names), since=story.head().snapshot_id)
    assert story.undo().succeeded
    story.check_native(of_batches("A", "B", *names), since=story.head().snapshot_id)


# --- races and deaths -----------------------------------------------------------------------------------------------


def test_a_revert_while_manifests_are_rewritten_is_not_lost(story: Story) -> None:
    """A ledger that was read before and written after would bring A's rows back."""
    result = maintain(story, {"before_commit": lambda: story.revert("A")}, rewrite_manifests=True)

    assert (result.manifests_rewritten > 0, manifests(story)) == (True, 1)
    assert tombstones(story) == {"A"}
    story.check_reads(of_batches("B") + THEIR_ROWS)


@pytest.mark.long
def test_rows_that_another_writer_appends_meanwhile_are_there(story: Story) -> None:
    maintain(
        story, {"before_commit": lambda: story.append_as_foreign_writer("late", start=900)}, rewrite_manifests=True
    )

    assert manifests(story) == 1
    story.check_reads(of_batches("A", "B") + THEIR_ROWS + Counter({("late", 900, 1): 1}))


@pytest.mark.long
def test_a_rewrite_by_another_engine_in_between_is_taken_as_it_is(story: Story) -> None:
    def by_spark() -> None:
        story.spark.sql(f"CALL {story.catalog}.system.rewrite_manifests('{story.name}')").collect()

    maintain(story, {"before_commit": by_spark}, rewrite_manifests=True)

    assert manifests(story) == 1
    assert story.keys()["lethe.ledger"]
    story.check_reads(of_batches("A", "B") + THEIR_ROWS)


@pytest.mark.long
@pytest.mark.parametrize("step", ["before_commit", "after_commit"])
def test_a_rewrite_that_dies_is_finished_by_its_repetition(story: Story, step: str) -> None:
    run = maintaining(story, rewrite_manifests=True)
    with pytest.raises(Killed):
        story.run(run, **{step: die})

    result = story.run(run)

    assert (result.manifests_rewritten > 0) == (step == "before_commit")
    assert manifests(story) == 1
    story.check_reads(of_batches("A", "B") + THEIR_ROWS)


@pytest.mark.long
def test_increments_can_be_read_across_a_rewrite_of_manifests(story: Story) -> None:
    since = story.head().snapshot_id
    maintain(story, rewrite_manifests=True, expire_snapshots=False)
    story.revert("A")
    story.append_as_foreign_writer("late", start=900)

    came, went = (
        of_arrow(lethe.scan(story.full_name, since=since, rows=rows).to_arrow()) for rows in ("appended", "deleted")
    )

    assert (came, went) == (Counter({("late", 900, 1): 1}), of_batches("A"))


def _row_ids(story: Story) -> list[Any]:
    story.spark.catalog.clearCache()
    return sorted(story.spark.sql(f"SELECT _row_id, v FROM {story.full_name}").collect())
