"""Spark and the readers without Spark find the same rows, in tables of every shape, at the head and at each retained snapshot.

Other tests read without Spark only (`Story.check_reads`); this suite is why that is enough. A new shape of table gets a case
here.
"""

from collections import Counter
from collections.abc import Callable
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
    story.put("F")
    story.consolidate("F")
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
    story.put("F", "G")
    story.consolidate("F")
    story.consolidate("G")
    maintain(story, compact_small_files=True, expire_snapshots=False)
    return story, of_batches("B", "D", "F", "G")


def deletion_vectors(story: Story) -> tuple[Story, Counter[Row]]:
    native = Native.of(story, "DeletionVectors").filled()
    native.revert("A", "E", name="one")
    native.revert("B", name="two")
    native.undo("two")
    return native, of_batches("B", "D")


def position_deletes(story: Story) -> tuple[Story, Counter[Row]]:
    native = Native.of(story, "PositionDeletes").filled()
    native.revert("A", "E", name="one")
    native.revert("B", name="two")
    native.undo("two")
    return native, of_batches("B", "D")


def erased_records(story: Story) -> tuple[Story, Counter[Row]]:
    named = Names.of(story, 3).filled()
    named.revert("D")
    named.erase(row("A", 0), row("B", 1))
    return named, but(row("A", 0), row("B", 1), batches=("A", "B"))


def change_data(story: Story) -> tuple[Story, Counter[Row]]:
    changing = Changing(story.spark, story.lake, story.name, ("day",), story.catalog, 3).filled()
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
