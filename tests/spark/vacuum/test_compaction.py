"""Small files become larger ones, sorted; nothing comes back, nothing goes, whoever else is at work and wherever a run dies.

Arrow merges them, without Spark's rows.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import lethe
import pytest
from lethe_spark.jobs.vacuum import compaction
from lethe_spark.jobs.vacuum.compaction import MergedBins, compact_small_files
from pyspark.sql import SparkSession

from tests.spark.parameters import named
from tests.spark.support.all_types import (
    ids_of,
)
from tests.spark.support.built_once import built_once
from tests.spark.support.maintenance import by_day, maintain, maintaining, table_of
from tests.spark.support.native_deletes import Native
from tests.spark.support.story import Row, Story, of_batches
from tests.support.lake import Lake
from tests.support.steps import Killed, die

MERGED = {f"day={day}": [["A", "A", "B", "B", "D", "D"]] for day in (1, 2)}


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake) -> Story:
    """Batches A, B and D are in the table, each in files of its own on two days."""
    return Story.begin(spark, lake).filled("D", "A", "B")


@pytest.fixture
def merged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the files that Arrow has merged."""
    paths: list[str] = []
    original = compaction.merge_bins

    def remembered(*arguments: Any) -> MergedBins:
        done = original(*arguments)
        paths.extend(f.path for f in done.removed)
        return done

    monkeypatch.setattr(compaction, "merge_bins", remembered)
    return paths


def test_small_files_of_a_partition_become_one_in_batch_order_and_no_reader_notices(
    story: Story, merged: list[str]
) -> None:
    since = story.head().snapshot_id
    ledger = story.ledger()

    result = maintain(story, compact_small_files=True, expire_snapshots=False)

    assert (result.outcome, result.small_files_compacted, result.message) == ("Committed", 6, "")
    assert (result.snapshot_id, len(merged)) == (story.head().snapshot_id, 6)
    assert by_day(story) == MERGED
    keys = story.keys()
    assert (story.operation(), keys["lethe.run-kind"], "tombstone.vacuum.file" in keys) == ("replace", "Vacuum", False)
    assert dict(story.ledger().batches) == dict(ledger.batches)
    assert lethe.scan(story.full_name, since=since).to_arrow().num_rows == 0
    story.check_reads(of_batches("A", "B", "D"))
    assert maintain(story, key="2", compact_small_files=True).outcome == "NothingToDo"


def test_what_is_purged_first_makes_neighbours_of_the_others(story: Story) -> None:
    story.revert("B")

    result = maintain(story, compact_small_files=True)

    assert (result.files_deleted, result.small_files_compacted) == (2, 4)
    assert by_day(story) == {day: [["A", "A", "D", "D"]] for day in MERGED}
    story.check_reads(of_batches("A", "D"))


@pytest.mark.long
def test_files_with_native_deletes_are_left_alone_and_the_others_keep_their_row_ids(
    spark: SparkSession, lake: Lake
) -> None:
    """An Undo takes rows out of deletion vectors: the rows have to be there."""
    story = Native.begin(spark, lake).filled("AB", "C", "D")
    story.revert("A")
    ids = ids_of(story)
    context = story.context(maintaining(story))

    done = compact_small_files(context, table_of(story), None, lambda: "")

    assert done.merged == 4  # of C and D
    assert ids_of(story) == ids
    story.check_native(of_batches("B", "C", "D"))
    assert story.undo().succeeded
    story.check_native(of_batches("A", "B", "C", "D"))


# --- races ----------------------------------------------------------------------------------------------------------


class Race(NamedTuple):
    """What others do once the files are merged, how many of these count, what lies in each partition, and what is seen."""

    act: Callable[[Story], object]
    compacted: int
    files: dict[str, list[list[str]]]
    rows: Counter[Row]


def purged(story: Story) -> None:
    story.revert("A")
    assert story.vacuum(key="theirs").tombstones_purged == 1


MEANWHILE = {
    "a revert": Race(lambda s: s.revert("A"), 6, MERGED, of_batches("B", "D")),
    "a purge": Race(purged, 4, {day: [["B", "B", "D", "D"]] for day in MERGED}, of_batches("B", "D")),
    "a compaction by another engine": Race(Story.compact, 0, MERGED, of_batches("A", "B", "D")),
}


@pytest.mark.parametrize("case", named({k: (v,) for k, v in MEANWHILE.items()}, *MEANWHILE))
def test_what_others_commit_while_files_are_merged_holds_and_no_row_returns(story: Story, case: Race) -> None:
    """The tombstone of purged rows is gone by then: nothing would hide them any more."""
    result = maintain(story, {"after_compact": lambda: case.act(story)}, compact_small_files=True)

    assert result.small_files_compacted == case.compacted
    assert {day: [sorted(map(str, ids)) for ids in files] for day, files in by_day(story).items()} == case.files
    story.check_reads(case.rows)
    if not case.compacted:
        assert not [p for p in story.data_folder() if maintaining(story).run_id in p], "what it wrote in vain is left"
    if story.ledger().tombstones:
        assert story.undo().succeeded
        story.check_reads(of_batches("A", "B", "D"))


def test_files_whose_snapshot_has_expired_are_merged_by_another_plan(story: Story) -> None:
    def expire() -> None:
        story.filled("E")
        story.sql("CALL {catalog}.system.expire_snapshots(table => '{name}', older_than => now(), retain_last => 1)")

    result = maintain(story, {"after_compact": expire}, compact_small_files=True, expire_snapshots=False)

    assert (result.outcome, result.small_files_compacted, result.message) == ("Committed", 8, "")
    assert by_day(story) == {day: [["A", "A", "B", "B", "D", "D", "E", "E"]] for day in MERGED}
    story.check_reads(of_batches("A", "B", "D", "E"))


# --- deaths ----------------------------------------------------------------------------------------------------------


def test_a_vacuum_that_dies_over_its_maintenance_loses_nothing(story: Story) -> None:
    """What it had purged stays purged."""
    story.revert("B")
    run = maintaining(story, compact_small_files=True, rewrite_manifests=True, remove_orphan_files=True)

    with pytest.raises(Killed):
        story.run(run, after_compact=die)

    assert story.ledger().tombstones == {}
    story.check_reads(of_batches("A", "D"))
    assert story.run(run).small_files_compacted == 4
    story.check_reads(of_batches("A", "D"))
