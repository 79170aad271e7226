"""Increments across what Lethe's own jobs and other engines do: rows at the end are rows at the beginning, plus the
appended, minus the deleted."""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

import lethe
import lethe_spark
import pytest
from lethe.base.errors import InputError
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.changes import SOME, Changing, changed
from tests.spark.support.erases import Names, but, row
from tests.spark.support.maintenance import maintain
from tests.spark.support.native_deletes import Native
from tests.spark.support.story import Row, Story, of_arrow, of_batches, of_spark
from tests.support.lake import Lake
from tests.support.steps import Killed, die

Which = Literal["appended", "deleted"]


@pytest.fixture
def story(spark: SparkSession, lake: Lake) -> Story:
    return Story.begin(spark, lake)


def scanned(story: Story, since: int, until: int | None, rows: Which) -> Counter[Row]:
    return of_arrow(lethe.scan(story.full_name, since=since, until=until, rows=rows).to_arrow())


def by_spark(story: Story, since: int, until: int | None, rows: Which) -> Counter[Row]:
    frame = lethe_spark.read(story.spark, story.full_name, since=since, until=until, rows=rows)
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


def test_a_compaction_by_another_engine_counts_as_nothing(story: Story) -> None:
    """Also when tombstoned rows move with it, are purged from the new file, or are seen again there."""
    story.put("A", "B", "C")
    story.consolidate("A", "B")
    first = story.head().snapshot_id
    story.consolidate("C")
    story.revert("A", name="revert-a")
    story.revert("C", name="revert-c")
    reverted = story.head().snapshot_id
    story.compact()

    assert by_spark(story, first, None, "appended") == of_batches("C")
    assert by_spark(story, first, None, "deleted") == of_batches("A", "C")
    assert by_spark(story, reverted, None, "appended") == Counter()

    story.undo(of="revert-c")
    assert by_spark(story, reverted, None, "appended") == of_batches("C")
    story.vacuum()
    check_ranges(story, any_two=True)


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
    name = story.full_name

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


# --- parity ----------------------------------------------------------------------------------------------------------
# Spark and the readers without Spark find the same rows, in tables of every shape, at the head and at each retained
# snapshot.


WHICH: tuple[Literal["appended", "deleted"], ...] = ("appended", "deleted")
Shape = Callable[[Story], tuple[Story, Counter[Row]]]


def filled(story: Story) -> Story:
    """Batches A and B share files, D has its own."""
    story.put("A", "B", "D")
    story.consolidate("A", "B")
    story.consolidate("D")
    return story


def restated(story: Story) -> tuple[Story, Counter[Row]]:
    """Each operation once, and late rows of a deleted batch by another writer."""
    filled(story).replay("B", by="E")
    story.revert("A", name="one")
    story.revert("D", name="two")
    story.undo("two")
    story.append_as_foreign_writer("A", "D", None)
    return story, of_batches("D") + of_batches("E", rows=3) + Counter({("D", 501, 1): 1, (None, 502, 1): 1})


def unpartitioned(story: Story) -> tuple[Story, Counter[Row]]:
    return restated(Story.begin(story.spark, story.lake, partition_by=()))


def partitioned_by_batch(story: Story) -> tuple[Story, Counter[Row]]:
    return restated(Story.begin(story.spark, story.lake, partition_by=("batch_id",)))


def repartitioned(story: Story) -> tuple[Story, Counter[Row]]:
    """The later files have another partition spec."""
    filled(story).spark.sql(f"ALTER TABLE {story.full_name} ADD PARTITION FIELD bucket(4, v)")
    story.filled("F")
    story.revert("A", "F")
    return story, of_batches("B", "D")


def evolved(story: Story) -> tuple[Story, Counter[Row]]:
    """A column was added since the first files."""
    filled(story).spark.sql(f"ALTER TABLE {story.full_name} ADD COLUMN note string")
    story.append_as_foreign_writer("B", "F")
    story.revert("B")
    return story, of_batches("A", "D") + Counter({("F", 501, 1): 1})


def vacuumed(story: Story) -> tuple[Story, Counter[Row]]:
    """Rows are purged from some files, tombstones are left for others."""
    filled(story).revert("A", name="one")
    story.vacuum()
    story.revert("D", name="two")
    return story, of_batches("B")


def compacted(story: Story) -> tuple[Story, Counter[Row]]:
    filled(story).revert("A")
    story.filled("F", "G")
    maintain(story, compact_small_files=True, expire_snapshots=False)
    return story, of_batches("B", "D", "F", "G")


def deletion_vectors(story: Story) -> tuple[Story, Counter[Row]]:
    native = story.seen_as(Native, deletes="DeletionVectors", format_version=3).filled()
    native.revert("A", "E", name="one")
    native.revert("B", name="two")
    native.undo("two")
    return native, of_batches("B", "D")


def position_deletes(story: Story) -> tuple[Story, Counter[Row]]:
    native = story.seen_as(Native, deletes="PositionDeletes").filled()
    native.revert("A", "E", name="one")
    native.revert("B", name="two")
    native.undo("two")
    return native, of_batches("B", "D")


def erased_records(story: Story) -> tuple[Story, Counter[Row]]:
    named = story.seen_as(Names, format_version=3).filled()
    named.revert("D")
    named.erase(row("A", 0), row("B", 1))
    return named, but(row("A", 0), row("B", 1), batches=("A", "B"))


def change_data(story: Story) -> tuple[Story, Counter[Row]]:
    changing = story.seen_as(Changing, format_version=3).filled()
    changing.change(*SOME)
    return changing, changed(SOME, "C1")


# `make test` takes a shape for each way in which rows go: by tombstones, and by native deletes.
UNCHANGED = some(
    (
        unpartitioned,
        restated,
        partitioned_by_batch,
        repartitioned,
        evolved,
        vacuumed,
        compacted,
        deletion_vectors,
        position_deletes,
    ),
    restated,
    deletion_vectors,
)
ERASED = some((erased_records, change_data), change_data)


def _name(shape: Shape) -> str:
    return shape.__name__.replace("_", " ")


@pytest.mark.parametrize("shape", UNCHANGED, ids=_name)
def test_spark_and_the_readers_without_it_find_the_same_rows_and_the_same_increment(
    spark: SparkSession, lake: Lake, shape: Shape
) -> None:
    story, wanted = shape(Story.begin(spark, lake))

    story.check_reads(wanted)
    story.check_reads_by_spark()

    since, until = (story.snapshots()[n].snapshot_id for n in (-1, 0))

    read = [of_arrow(lethe.scan(story.full_name, since=since, until=until, rows=r).to_arrow()) for r in WHICH]
    by_spark = [of_spark(lethe_spark.read(spark, story.full_name, since=since, until=until, rows=r)) for r in WHICH]

    assert by_spark == read
    came, went = read
    assert story.rows_at(since) + came == story.rows_at(until) + went


@pytest.mark.parametrize("shape", ERASED, ids=_name)
def test_they_find_the_same_rows_without_erased_records_and_no_reader_has_an_increment_across_them(
    spark: SparkSession, lake: Lake, shape: Shape
) -> None:
    """Nothing keeps the rows that such an increment would have to show."""
    story, wanted = shape(Story.begin(spark, lake))

    story.check_reads(wanted)
    story.check_reads_by_spark()

    since = story.snapshots()[-1].snapshot_id
    with pytest.raises(InputError, match="ErasedBetween"):
        lethe.scan(story.full_name, since=since).to_arrow()
    with pytest.raises(InputError, match="ErasedBetween"):
        lethe_spark.read(spark, story.full_name, since=since)
