"""Small files become larger ones, sorted; nothing comes back, nothing goes, whoever else is at work and wherever a run dies."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import lethe
import pytest
from lethe.contract.run import SnapshotLimits
from lethe_spark.jobs.vacuum.compaction import compact_small_files
from pyspark.sql import SparkSession

from tests.spark.support.built_once import built_once
from tests.spark.support.maintenance import below, by_day, grow_old, maintain, maintaining, table_of
from tests.spark.support.native_deletes import Native
from tests.spark.support.story import ALL_GONE, Story, local, of_batches
from tests.support.lake import Lake
from tests.support.steps import Killed, SteppedContext, die

MERGED = {"day=1": [["A", "A", "B", "B", "D", "D"]], "day=2": [["A", "A", "B", "B", "D", "D"]]}


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake) -> Story:
    """Batches A, B and D are in the table, each in files of its own on two days."""
    return filled(Story.begin(spark, lake))


def filled(story: Story) -> Story:
    story.put("A", "B", "D")
    for batch_id in ("D", "A", "B"):
        story.consolidate(batch_id)
    return story


def test_small_files_of_a_partition_become_one_in_batch_order_and_no_reader_notices(story: Story) -> None:
    since = story.head().snapshot_id
    ledger = story.ledger()

    result = maintain(story, compact_small_files=True, expire_snapshots=False)

    assert (result.outcome, result.small_files_compacted, result.message) == ("Committed", 6, "")
    assert result.snapshot_id == story.head().snapshot_id
    assert by_day(story) == MERGED
    keys = story.keys()
    assert (story.operation(), keys["lethe.run-kind"], "tombstone.vacuum.file" in keys) == ("replace", "Vacuum", False)
    assert dict(story.ledger().batches) == dict(ledger.batches)
    assert lethe.scan(story.full_name, since=since).to_arrow().num_rows == 0
    story.check_reads(of_batches("A", "B", "D"))
    assert maintain(story, key="2", compact_small_files=True).outcome == "NothingToDo"


@pytest.mark.long
def test_a_table_without_partitions_is_compacted_into_one_sorted_file(spark: SparkSession, lake: Lake) -> None:
    story = filled(Story.begin(spark, lake, partition_by=()))

    result = maintain(story, compact_small_files=True)

    assert result.small_files_compacted == 3
    assert list(story.files().values()) == [["A"] * 4 + ["B"] * 4 + ["D"] * 4]
    story.check_reads(of_batches("A", "B", "D"))


@pytest.mark.long
def test_nothing_is_compacted_unless_it_is_asked_for(story: Story) -> None:
    assert story.vacuum().outcome == "NothingToDo"
    assert {len(files) for files in by_day(story).values()} == {3}


@pytest.mark.long
def test_files_that_may_hold_rows_to_purge_are_left_to_the_purge(story: Story) -> None:
    """Merged, their survivors would be written twice."""
    story.put("C", "E")
    story.consolidate("C")
    story.consolidate("E")
    story.revert("B")
    context = story.context(maintaining(story))

    done = compact_small_files(context, table_of(story), None, lambda: "")

    assert done.merged == 6  # of C, D and E; A has no neighbour left
    assert by_day(story)["day=1"].count(["A", "A"]) == by_day(story)["day=1"].count(["B", "B"]) == 1
    story.check_reads(of_batches("A", "C", "D", "E"))


def test_what_is_purged_first_makes_neighbours_of_the_others(story: Story) -> None:
    story.revert("B")

    result = maintain(story, compact_small_files=True)

    assert (result.files_deleted, result.small_files_compacted) == (2, 4)
    assert by_day(story) == {day: [["A", "A", "D", "D"]] for day in MERGED}
    story.check_reads(of_batches("A", "D"))


@pytest.mark.long
def test_the_budget_of_a_run_holds_for_the_purge_and_the_compaction_together(story: Story) -> None:
    assert maintain(story, compact_small_files=True, max_bytes=1).small_files_compacted == 0
    one_day = sum(p.stat().st_size for path, p in below(story).items() if "day=1" in path)

    assert maintain(story, key="2", compact_small_files=True, max_bytes=one_day).small_files_compacted == 3


@pytest.mark.long
def test_each_step_is_a_commit_of_its_own(story: Story) -> None:
    before = len(story.snapshots())

    result = maintain(story, compact_small_files=True, step_bytes=1, expire_snapshots=False)

    assert (result.small_files_compacted, len(story.snapshots()) - before) == (6, 2)
    assert by_day(story) == MERGED
    story.check_reads(of_batches("A", "B", "D"))


@pytest.mark.long
def test_no_step_begins_when_the_time_is_over_and_what_was_committed_stays(story: Story) -> None:
    assert maintain(story, compact_small_files=True, max_seconds=0).stopped == "MaxRunSeconds"
    assert {len(files) for files in by_day(story).values()} == {3}
    answers = iter(["", "WindowClosed"])

    done = compact_small_files(
        story.context(maintaining(story, step_bytes=1)), table_of(story), None, lambda: next(answers)
    )

    assert (done.merged, done.stopped) == (3, True)
    assert sorted(map(len, by_day(story).values())) == [1, 3]
    story.check_reads(of_batches("A", "B", "D"))


@pytest.mark.long
def test_files_with_native_deletes_are_left_alone_and_the_others_keep_their_row_ids(
    spark: SparkSession, lake: Lake
) -> None:
    """An Undo takes rows out of deletion vectors: the rows have to be there."""
    story = Native.of(Story.begin(spark, lake, format_version=3), "DeletionVectors")
    story.put("A", "B", "C", "D")
    story.consolidate("A", "B")
    story.consolidate("C")
    story.consolidate("D")
    story.revert("A")
    ids = _row_ids(story)
    context = story.context(maintaining(story))

    done = compact_small_files(context, table_of(story), None, lambda: "")

    assert done.merged == 4  # of C and D
    assert _row_ids(story) == ids
    story.check_native(of_batches("B", "C", "D"))
    assert story.undo().succeeded
    story.check_native(of_batches("A", "B", "C", "D"))


# --- races ----------------------------------------------------------------------------------------------------------


def test_a_revert_while_files_are_merged_hides_its_rows_and_can_be_undone(story: Story) -> None:
    result = maintain(story, {"after_compact": lambda: story.revert("A")}, compact_small_files=True)

    assert result.small_files_compacted == 6
    story.check_reads(of_batches("B", "D"))
    story.vacuum(key="2", max_bytes=0)
    story.check_reads(of_batches("B", "D"))


@pytest.mark.long
def test_an_undo_after_a_compaction_brings_every_row_back(story: Story) -> None:
    maintain(story, {"after_compact": lambda: story.revert("A")}, compact_small_files=True)

    assert story.undo().succeeded

    story.check_reads(of_batches("A", "B", "D"))


def test_rows_that_a_vacuum_purged_under_a_compaction_do_not_come_back(story: Story) -> None:
    """Their tombstone is gone by then: nothing would hide them any more."""

    def purge() -> None:
        story.revert("A")
        assert story.vacuum(key="theirs").tombstones_purged == 1

    result = maintain(story, {"after_compact": purge}, compact_small_files=True)

    assert result.small_files_compacted == 4
    assert story.ledger().tombstones == {}
    assert by_day(story) == {day: [["B", "B", "D", "D"]] for day in MERGED}
    story.check_reads(of_batches("B", "D"))


@pytest.mark.long
def test_a_batch_promoted_while_files_are_merged_is_there_once(story: Story) -> None:
    story.put("C")

    result = maintain(story, {"before_commit": lambda: story.consolidate("C")}, compact_small_files=True)

    assert result.small_files_compacted == 6
    story.check_reads(of_batches("A", "B", "C", "D"))


@pytest.mark.long
def test_rows_that_another_writer_brought_of_a_purged_batch_are_hidden_in_the_merged_file(story: Story) -> None:
    """Nothing hides them yet when they are merged: their tombstone comes with the compaction's own commit."""
    story.revert("A")
    story.vacuum()
    story.append_as_foreign_writer("A")

    result = maintain(story, key="2", compact_small_files=True)

    assert result.small_files_compacted == 5
    assert by_day(story)["day=1"] == [["A", "B", "B", "D", "D"]]
    assert {t.id for t in story.ledger().tombstones.values()} == {"A"}
    story.check_reads(of_batches("B", "D"))


def test_a_compaction_by_another_engine_in_between_is_given_way_to(story: Story) -> None:
    def by_spark() -> None:
        story.spark.sql(
            f"CALL {story.catalog}.system.rewrite_data_files(table => '{story.name}', "
            "options => map('min-input-files', '2'))"
        ).collect()

    result = maintain(story, {"after_compact": by_spark}, compact_small_files=True)

    assert result.small_files_compacted == 0
    assert {len(files) for files in by_day(story).values()} == {1}
    story.check_reads(of_batches("A", "B", "D"))
    assert not [p for p in story.data_folder() if maintaining(story).run_id in p], (
        "what it wrote in vain is left behind"
    )


@pytest.mark.long
def test_files_that_keep_changing_under_it_are_left_for_later(story: Story) -> None:
    story.put("E")
    story.consolidate("E")
    gone = iter("ABD")

    def drop() -> None:
        """Somebody takes a batch out of the table, by whole files."""
        batch = next(gone)
        story.table().delete(f"batch_id = '{batch}'")

    context = story.context(maintaining(story))
    repeating = Repeating(context.spec, context.reporter, context.catalog_properties, spark=story.spark, happening=drop)

    done = compact_small_files(repeating, table_of(story), None, lambda: "")

    assert (done.merged, "kept replacing the small files" in done.why) == (0, True)
    story.check_reads(of_batches("E"))


# --- deaths ---------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("step", ["after_compact", "before_commit", "after_commit"])
def test_a_compaction_that_dies_loses_nothing_and_its_repetition_finishes_it(story: Story, step: str) -> None:
    run = maintaining(story, compact_small_files=True, limits=SnapshotLimits())
    with pytest.raises(Killed):
        story.run(run, **{step: die})
    story.check_reads(of_batches("A", "B", "D"))

    result = story.run(run)

    assert result.small_files_compacted == (0 if step == "after_commit" else 6)
    assert by_day(story) == MERGED
    story.check_reads(of_batches("A", "B", "D"))


@pytest.mark.long
def test_what_a_compaction_that_died_had_written_goes_as_orphans(story: Story) -> None:
    with pytest.raises(Killed):
        maintain(story, {"after_compact": die}, compact_small_files=True)
    litter = story.data_folder() - {local(p) for p in story.files()}
    assert len(litter) == 2
    grow_old(*below(story).values())

    result = maintain(story, key="2", remove_orphan_files=True, limits=ALL_GONE)

    assert result.orphan_files_removed >= 2
    assert story.data_folder() == {local(p) for p in story.files()}
    story.check_reads(of_batches("A", "B", "D"))


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


@dataclass(frozen=True)
class Repeating(SteppedContext):
    """Something happens each time that files were merged."""

    happening: Callable[[], object] = die

    def step(self, name: str) -> None:
        if name == "after-compact":
            self.happening()


def _row_ids(story: Story) -> Counter[tuple[int, int]]:
    story.spark.catalog.clearCache()
    rows = story.spark.sql(f"SELECT v, _row_id FROM {story.full_name}").collect()
    return Counter((r[0], r[1]) for r in rows)
