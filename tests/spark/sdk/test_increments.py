"""Increments across what Lethe's own jobs and other engines do: rows at the end are rows at the beginning, plus the
appended, minus the deleted."""

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import lethe
import lethe_spark
import pytest
from lethe.base.errors import InputError
from pyspark.sql import SparkSession

from tests.spark.support.story import Row, Story, local, of_arrow, of_batches, of_spark
from tests.support.lake import CATALOG, Lake
from tests.support.steps import Killed, die

Which = Literal["appended", "deleted"]


@pytest.fixture
def story(spark: SparkSession, lake: Lake) -> Story:
    return Story.begin(spark, lake)


def scanned(story: Story, since: int, until: int | None, rows: Which) -> Counter[Row]:
    return of_arrow(lethe.scan(f"{CATALOG}.{story.name}", since=since, until=until, rows=rows).to_arrow())


def by_spark(story: Story, since: int, until: int | None, rows: Which) -> Counter[Row]:
    frame = lethe_spark.read(story.spark, f"{CATALOG}.{story.name}", since=since, until=until, rows=rows)
    return of_spark(frame)


def check_ranges(story: Story, any_two: bool = False) -> None:
    """With PyIceberg from the first snapshot and from the one before to each, or between any two; with Spark from the first, and
    from the middle, to the head."""
    ids = [s.snapshot_id for s in reversed(story.snapshots())]
    seen = {i: story.rows_at(i) for i in ids}
    for n, until in enumerate(ids):
        for since in ids[: n + 1] if any_two else dict.fromkeys((ids[0], ids[max(0, n - 1)])):
            came, went = scanned(story, since, until, "appended"), scanned(story, since, until, "deleted")
            assert seen[until] + went == seen[since] + came, (ids.index(since), n)
    for since in (ids[0], ids[len(ids) // 2]):
        for which in ("appended", "deleted"):
            assert by_spark(story, since, ids[-1], which) == scanned(story, since, ids[-1], which)


def compact(story: Story) -> None:
    """Another engine's compaction, all files of a partition into one."""
    story.spark.sql(
        f"CALL {CATALOG}.system.rewrite_data_files(table => '{story.name}', options => map('rewrite-all', 'true'))"
    )


@pytest.mark.long
def test_reverted_and_purged_rows_are_deleted_once(story: Story) -> None:
    story.put("A", "B", "C")
    story.consolidate("A", "B")
    first = story.head().snapshot_id
    story.consolidate("C")
    story.revert("A")
    reverted = story.head().snapshot_id
    story.vacuum()

    assert by_spark(story, first, None, "appended") == of_batches("C")
    assert by_spark(story, first, None, "deleted") == of_batches("A")
    assert by_spark(story, reverted, None, "deleted") == Counter()
    check_ranges(story)


@pytest.mark.long
def test_rows_purged_by_and_by_are_deleted_once(story: Story) -> None:
    """Each vacuum takes one of the files; the tombstone stays until the last."""
    story.put("A", "B", "C")
    story.consolidate("A", "B")
    first = story.head().snapshot_id
    story.consolidate("C")
    story.revert("A", "C")
    for n in range(4):
        story.vacuum(key=str(n), max_bytes=1)

    assert by_spark(story, first, None, "deleted") == of_batches("A", "C")
    check_ranges(story)


@pytest.mark.long
def test_a_batch_that_came_and_went_within_the_range_is_in_both(story: Story) -> None:
    story.put("A", "B")
    story.consolidate("A")
    first = story.head().snapshot_id
    story.consolidate("B")
    story.revert("B")
    story.vacuum()

    assert by_spark(story, first, None, "appended") == by_spark(story, first, None, "deleted") == of_batches("B")
    check_ranges(story)


def test_a_compaction_by_another_engine_counts_as_nothing(story: Story) -> None:
    """Also when tombstoned rows move with it, are purged from the new file, or are seen again there."""
    story.put("A", "B", "C")
    story.consolidate("A", "B")
    first = story.head().snapshot_id
    story.consolidate("C")
    story.revert("A", name="revert-a")
    story.revert("C", name="revert-c")
    reverted = story.head().snapshot_id
    compact(story)

    assert by_spark(story, first, None, "appended") == of_batches("C")
    assert by_spark(story, first, None, "deleted") == of_batches("A", "C")
    assert by_spark(story, reverted, None, "appended") == Counter()

    story.undo(of="revert-c")
    assert by_spark(story, reverted, None, "appended") == of_batches("C")
    story.vacuum()
    check_ranges(story, any_two=True)


@pytest.mark.long
def test_late_rows_of_another_writer(story: Story) -> None:
    story.put("A", "B")
    story.consolidate("A", "B")
    story.revert("A")
    reverted = story.head().snapshot_id
    story.append_as_foreign_writer("A", "X", None, start=500)
    assert by_spark(story, reverted, None, "appended") == Counter({("X", 501, 1): 1, (None, 502, 1): 1})
    story.vacuum()
    story.append_as_foreign_writer("A", start=600)
    story.put("D")
    story.consolidate("D")

    check_ranges(story)


def test_published_staged_batches_are_appended_when_they_are_published(story: Story) -> None:
    """A run that died after it had staged its files: the next attempt publishes them."""
    story.put("A", "B")
    story.consolidate("A")
    first = story.head().snapshot_id
    with pytest.raises(Killed):
        story.consolidate("B", after_stage=die)
    assert by_spark(story, first, None, "appended") == Counter()
    story.consolidate("B")

    assert by_spark(story, first, None, "appended") == of_batches("B")
    check_ranges(story)


def test_moments_filters_and_columns(story: Story) -> None:
    story.put("A", "B")
    story.consolidate("A")
    first = story.head()
    story.consolidate("B")
    then = datetime.fromtimestamp(first.timestamp_ms / 1000, UTC)
    name = f"{CATALOG}.{story.name}"

    appended = lethe_spark.read(story.spark, name, since=then, filter="day = 1")
    assert of_spark(appended) == Counter({r: n for r, n in of_batches("B").items() if r[2] == 1})
    with pytest.raises(InputError, match="NotAnAncestor"):
        lethe_spark.read(story.spark, name, since=story.head().snapshot_id, until=first.snapshot_id)

    second = story.head().snapshot_id
    story.spark.sql(f"ALTER TABLE {name} RENAME COLUMN v TO w")
    assert lethe_spark.read(story.spark, name, since=then, until=second).columns == ["v", "day", "batch_id"]
    assert lethe_spark.read(story.spark, name, since=then).columns == ["w", "day", "batch_id"]
    assert lethe_spark.read(story.spark, name, since=second).columns == ["w", "day", "batch_id"]
    story.spark.sql(f"ALTER TABLE {name} DROP COLUMN w")
    with pytest.raises(InputError, match="ColumnGone"):
        lethe_spark.read(story.spark, name, since=then, until=second)
    assert lethe.scan(name, since=then, until=second).to_arrow().column_names == ["v", "day", "batch_id"]


@pytest.mark.long
def test_only_files_that_matter_are_opened(story: Story) -> None:
    for batch in "ABCDEF":
        story.put(batch)
        story.consolidate(batch)
    before = story.head().snapshot_id
    story.put("G")
    story.consolidate("G")
    story.revert("B")
    for path, batches in story.files().items():
        if not {"B", "G"} & set(batches):
            Path(local(path)).unlink()

    assert by_spark(story, before, None, "appended") == of_batches("G")
    assert by_spark(story, before, None, "deleted") == of_batches("B")


def test_an_increment_across_deletes_of_another_engine_is_refused(story: Story) -> None:
    story.put("A", "B")
    story.consolidate("A", "B")
    first = story.head().snapshot_id
    story.spark.sql(f"DELETE FROM {CATALOG}.{story.name} WHERE day = 1")

    with pytest.raises(InputError, match=f"ForeignChange: {story.name}: snapshot {story.head().snapshot_id}"):
        lethe_spark.read(story.spark, f"{CATALOG}.{story.name}", since=first)
