"""Vacuum: soft-deleted rows leave the files, everything else stays, and what a reader sees does not change."""

from collections import Counter
from pathlib import Path

import pytest
from lethe.contract.run import SnapshotLimits
from pyspark.sql import SparkSession

from tests.spark.support.built_once import built_once
from tests.spark.support.story import ALL_GONE, Story, avro, local, of_batches
from tests.support.lake import Lake


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake) -> Story:
    """Batches A, B and D are in the table, in common files."""
    story = Story.begin(spark, lake)
    story.put("A", "B", "D")
    story.consolidate("A", "B", "D")
    return story


def counts(keys: dict[str, str]) -> dict[str, str]:
    return {k.split(".")[2]: v for k, v in keys.items() if k.startswith("tombstone.metrics.")}


def test_a_vacuum_rewrites_the_files_without_the_tombstoned_rows_and_no_reader_notices(story: Story) -> None:
    story.revert("A")
    before, files = story.rows_at(), story.files()

    result = story.vacuum()

    assert (result.outcome, result.tombstones_purged, result.rows_purged) == ("Committed", 1, 4)
    assert (result.files_rewritten, result.files_deleted) == (len(files), 0)
    assert story.operation() == "replace"
    story.check_reads(before)
    assert {b for batches in story.files().values() for b in batches} == {"B", "D"}
    for batches in story.files().values():
        assert batches == sorted(b or "" for b in batches)


def test_a_vacuums_snapshot_names_both_tombstone_files_for_any_avro_reader(story: Story) -> None:
    """What is active after it, and what it applied to the files it removed."""
    story.revert("A", "D")

    result = story.vacuum()

    keys = story.keys(story.table().snapshot_by_id(result.snapshot_id or 0))
    assert avro(keys["tombstone.file"]) == []
    vacuumed = avro(keys["tombstone.vacuum.file"])
    assert [t["id"] for t in vacuumed] == ["A", "D"]
    assert all(t["meta"]["restatements"] == "ns/revert/0" for t in vacuumed)
    assert counts(keys) == {"added": "0", "deleted": "2", "total": "0", "vacuum": "2"}
    assert story.states() == {"A": "reverted", "B": "promoted", "D": "reverted"}  # purging never forgets this


def test_files_of_only_tombstoned_rows_are_dropped_without_being_read(story: Story) -> None:
    story.put("E")
    story.consolidate("E")
    story.revert("E")
    before = story.rows_at()

    result = story.vacuum()

    assert (result.files_deleted, result.files_rewritten, result.files_added) == (2, 0, 0)
    assert (result.rows_purged, story.operation()) == (4, "delete")
    assert [t["id"] for t in avro(story.keys()["tombstone.vacuum.file"])] == ["E"]
    story.check_reads(before)


@pytest.mark.long
def test_whole_and_mixed_files_are_purged_in_one_commit(story: Story) -> None:
    story.put("E")
    story.consolidate("E")
    story.revert("A", "E")
    before = story.rows_at()

    result = story.vacuum()

    assert (result.files_deleted, result.files_rewritten, result.rows_purged) == (2, 2, 8)
    assert len([s for s in story.snapshots() if "tombstone.vacuum.file" in story.keys(s)]) == 1
    story.check_reads(before)


def test_a_file_with_only_deleted_rows_is_dropped_and_not_rewritten_although_its_bounds_do_not_prove_it(
    story: Story,
) -> None:
    """Several batches in one file: to look into it tells that none of its rows is left."""
    held = len(story.files())
    story.revert("A", "B", "D")

    result = story.vacuum()

    assert (result.rows_purged, result.files_added, story.files()) == (12, 0, {})
    assert (result.files_deleted, result.files_rewritten, result.bytes_rewritten) == (held, 0, 0)
    assert {t["id"] for t in avro(story.keys()["tombstone.vacuum.file"])} == {"A", "B", "D"}
    story.check_reads(Counter())


def test_rows_without_a_batch_id_survive_even_when_the_bounds_name_only_purged_ones(story: Story) -> None:
    """Rows A, A and NULL in one file have the bounds A and A: dropping it would lose the third."""
    story.append_as_foreign_writer("A", "A", None)
    story.revert("A")

    story.vacuum()

    story.check_reads(of_batches("B", "D") + Counter({(None, 502, 1): 1}))
    assert story.table().scan().to_arrow().num_rows == 9


def test_purged_files_are_gone_from_storage_after_expiry_and_live_ones_are_there(story: Story) -> None:
    """Neither an old snapshot nor the staged one by which a file came may hold it back."""
    before = {local(p) for p in story.files()}
    story.revert("A")

    result = story.vacuum(ALL_GONE)

    assert result.snapshots_expired == 3  # promoted, reverted, and the staged one
    assert story.data_folder() == {local(p) for p in story.files()}
    assert before.isdisjoint(story.data_folder())
    assert [s.snapshot_id for s in story.table().snapshots()] == [story.head().snapshot_id]
    story.check_reads(of_batches("B", "D"))
    assert story.consolidate("A", "B", "D").outcome == "AlreadyCommitted"  # the ledger remembers what history forgot


def test_the_limits_say_which_snapshots_stay_readable(story: Story) -> None:
    story.revert("A")

    result = story.vacuum(SnapshotLimits(max_age_seconds=0, min_to_keep=2, max_count=1))

    assert result.snapshots_expired == 2
    assert len(story.snapshots()) == 2
    story.check_reads()
    assert story.rows_at(story.snapshots()[1].snapshot_id) == of_batches("B", "D")


@pytest.mark.long
def test_a_tag_keeps_its_snapshot_and_its_rows(story: Story) -> None:
    story.table().manage_snapshots().create_tag(story.head().snapshot_id, "audit").commit()
    tagged = story.head().snapshot_id
    story.revert("A")

    story.vacuum(ALL_GONE)

    assert story.rows_at(tagged) == of_batches("A", "B", "D")
    story.check_reads(of_batches("B", "D"))


def test_a_tagged_snapshot_of_another_writer_keeps_the_ledger_it_was_written_on(story: Story) -> None:
    """Without it, the tag would show rows that were deleted, or could not be read at all."""
    story.revert("A")
    bare = story.append_as_foreign_writer("x")
    story.table().manage_snapshots().create_tag(bare, "audit").commit()
    story.revert("x", name="second")

    story.vacuum(ALL_GONE)

    assert story.rows_at(bare) == of_batches("B", "D") + Counter({("x", 500, 1): 1})
    story.check_reads(of_batches("B", "D"))


def test_a_vacuum_of_nothing_commits_nothing(story: Story) -> None:
    before = story.head().snapshot_id

    result = story.vacuum()

    assert (result.outcome, result.tombstones_purged, story.head().snapshot_id) == ("NothingToDo", 0, before)


def test_a_tombstone_that_no_file_can_hold_is_ended_without_touching_a_file(story: Story) -> None:
    story.revert("zzz")
    files = story.files()

    result = story.vacuum()

    assert (result.tombstones_purged, result.files_rewritten, result.files_deleted) == (1, 0, 0)
    assert (story.files(), avro(story.keys()["tombstone.vacuum.file"])) == (files, [])
    assert counts(story.keys()) == {"added": "0", "deleted": "1", "total": "0", "vacuum": "0"}
    story.put("zzz")
    assert story.consolidate("zzz").batches_withheld == 1


@pytest.mark.long
def test_the_whole_loop_keeps_every_promise_at_every_step(spark: SparkSession, lake: Lake) -> None:
    """Promote, take back, replace, purge, and again: after each step every door shows what a plain dict would hold."""
    story, model = Story.begin(spark, lake), Counter(of_batches())
    story.put("A", "B", "C")
    story.consolidate("A", "B", "C")
    story.check_reads(model := of_batches("A", "B", "C"))
    story.revert("B")
    story.check_reads(model := model - of_batches("B"))
    story.replay("C", by="C2")
    story.check_reads(model := model - of_batches("C") + of_batches("C2", rows=3))
    story.vacuum()
    story.check_reads(model)
    story.put("D", "B")
    story.consolidate("D", "B")
    story.check_reads(model := model + of_batches("D"))
    story.replay("C2", "D", by="E", name="again")
    story.check_reads(model := model - of_batches("C2", rows=3) - of_batches("D") + of_batches("E", rows=3))

    story.vacuum(ALL_GONE, key="2")

    story.check_reads(model)
    assert model == of_batches("A") + of_batches("E", rows=3)
    assert story.table().scan().to_arrow().num_rows == 7
    assert story.data_folder() == {local(p) for p in story.files()}
    assert Path(local(story.keys()["lethe.ledger"])).exists()
