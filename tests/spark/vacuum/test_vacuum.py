"""Vacuum: soft-deleted rows leave the files, everything else stays, and what a reader sees does not change."""

from collections import Counter

from lethe.contract.run import SnapshotLimits

from tests.spark.support.story import ALL_GONE, Story, avro, local, of_batches


def test_a_vacuums_snapshot_names_both_tombstone_files_for_any_avro_reader(story: Story) -> None:
    """What is active after it, and what it applied to the files it removed."""
    story.revert("A", "D")

    result = story.vacuum()

    keys = story.keys(story.table().snapshot_by_id(result.snapshot_id or 0))
    assert avro(keys["tombstone.file"]) == []
    vacuumed = avro(keys["tombstone.vacuum.file"])
    assert [t["id"] for t in vacuumed] == ["A", "D"]
    assert all(t["meta"]["restatements"] == "ns/revert/0" for t in vacuumed)
    assert story.counts() == {"added": "0", "deleted": "2", "total": "0", "vacuum": "2"}
    assert story.states() == {"A": "reverted", "B": "promoted", "D": "reverted"}  # purging never forgets this


def test_files_of_only_tombstoned_rows_are_dropped_without_being_read(story: Story) -> None:
    story.filled("E")
    story.revert("E")
    before = story.rows_at()

    result = story.vacuum()

    assert (result.files_deleted, result.files_rewritten, result.files_added) == (2, 0, 0)
    assert (result.rows_purged, story.operation()) == (4, "delete")
    assert story.purged_by_head() == {"E"}
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
    assert story.purged_by_head() == {"A", "B", "D"}
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
    story.check_storage()
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


def test_a_tagged_snapshot_of_another_writer_keeps_the_ledger_it_was_written_on(story: Story) -> None:
    """Without it, the tag would show rows that were deleted, or could not be read at all."""
    story.revert("A")
    bare = story.append_as_foreign_writer("x")
    story.tag()
    story.revert("x", name="second", unknown="Allow")

    story.vacuum(ALL_GONE)

    assert story.rows_at(bare) == of_batches("B", "D") + Counter({("x", 500, 1): 1})
    story.check_reads(of_batches("B", "D"))


def test_a_tombstone_that_no_file_can_hold_is_ended_without_touching_a_file(story: Story) -> None:
    story.revert("zzz", unknown="Allow")
    files = story.files()

    result = story.vacuum()

    assert (result.tombstones_purged, result.files_rewritten, result.files_deleted) == (1, 0, 0)
    assert (story.files(), story.purged_by_head()) == (files, set())
    assert story.counts() == {"added": "0", "deleted": "1", "total": "0", "vacuum": "0"}
    story.put("zzz")
    assert story.consolidate("zzz").batches_withheld == 1


def test_a_tombstone_stays_until_its_last_file_is_rewritten_and_is_named_by_each_vacuum_that_applied_it(
    story: Story,
) -> None:
    """Who asks for the rows deleted since finds those that left with the first file as well as those of the second."""
    story.revert("A", "D")

    first = story.vacuum(max_bytes=1)

    assert (first.files_rewritten, first.files_left, first.tombstones_purged, first.rows_purged) == (1, 1, 0, 4)
    assert first.bytes_left > 0
    assert story.counts() == {"added": "0", "deleted": "0", "total": "2", "vacuum": "2"}
    assert story.tombstones() == story.purged_by_head() == {"A", "D"}
    story.check_reads(of_batches("B"))

    second = story.vacuum(key="2", max_bytes=1)

    assert (second.files_rewritten, second.files_left, second.tombstones_purged) == (1, 0, 2)
    assert story.counts() == {"added": "0", "deleted": "2", "total": "0", "vacuum": "2"}
    assert story.purged_by_head() == {"A", "D"}
    story.check_reads(of_batches("B"))


def test_a_vacuum_after_a_change_of_partitioning_remembers_where_the_survivors_are_now(story: Story) -> None:
    """B's rows are written again, by another partition spec; a tombstone for B must say so."""
    story.revert("A", "D")
    story.sql("ALTER TABLE {t} ADD PARTITION FIELD bucket(2, v)")

    story.vacuum()

    before = {"0/[1]", "0/[2]"}
    partitions = set(story.ledger().batches["B"].partitions or ())
    assert before < partitions
    assert any(p.startswith("1/[") for p in partitions)
    story.revert("B", name="second")
    (tombstone,) = story.ledger().tombstones.values()
    assert set(tombstone.partitions or ()) == partitions
