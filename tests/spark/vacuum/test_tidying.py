"""What runs leave behind: a head with a ledger, a history of bounded length, and only the ledger files somebody needs."""

import os
import time
from collections import Counter
from pathlib import Path

import pytest
from lethe import ledger_store
from lethe.contract.run import SnapshotLimits
from lethe.contract.settings import UnknownBatches
from lethe.iceberg.facts import observe
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.built_once import built_once
from tests.spark.support.story import ALL_GONE, Story, avro, of_batches
from tests.support.builders import a_request
from tests.support.lake import Lake
from tests.support.steps import Killed, die

DAY = 86_400


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake) -> Story:
    """Batches A and B are in the table."""
    return Story.begin(spark, lake).filled("AB")


# --- a head of another writer's -------------------------------------------------------------------------------------


def test_a_consolidation_of_no_batches_gives_a_bare_head_the_ledger_it_rests_on(story: Story) -> None:
    """It copies what is active, and is no vacuum: it removed no file and ended no tombstone."""
    story.revert("A")
    story.vacuum(max_bytes=1)
    story.append_as_foreign_writer("x")
    before = {k: story.ledger().tombstones[k] for k in story.ledger().tombstones}

    result = story.consolidate()

    assert (result.outcome, result.snapshot_id) == ("Committed", story.head().snapshot_id)
    assert story.counts() == {"added": "0", "deleted": "0", "total": "1"}
    keys = story.keys()
    assert "tombstone.vacuum.file" not in keys
    assert dict(story.ledger().tombstones) == before
    story.check_reads(of_batches("B") + Counter({("x", 500, 1): 1}))
    assert story.consolidate().outcome == "NothingToDo"


def test_a_revert_while_a_head_is_being_stamped_is_not_lost(story: Story) -> None:
    """A stamp that merely copied what it had read before would bring A's rows back."""
    story.append_as_foreign_writer("x")

    story.consolidate(before_commit=lambda: story.revert("A"))

    assert story.tombstones() == {"A"}
    story.check_reads(of_batches("B") + Counter({("x", 500, 1): 1}))


# --- the length of the history --------------------------------------------------------------------------------------


def test_a_table_of_many_commits_and_no_vacuum_keeps_a_bounded_history_and_every_tombstone(story: Story) -> None:
    limits = SnapshotLimits(max_count=5, min_to_keep=2)

    for n in range(12):
        story.run(
            story.restatement(
                a_request(f"r{n}", batch_ids=(f"x{n:02}",), unknown_batches=UnknownBatches.ALLOW), snapshots=limits
            )
        )
        assert len(story.table().metadata.snapshots) <= 6
    story.run(story.restatement(a_request("last", batch_ids=("A",)), snapshots=limits))

    assert story.table().properties["write.metadata.delete-after-commit.enabled"] == "true"
    assert story.tombstones() == {f"x{n:02}" for n in range(12)} | {"A"}
    story.check_reads(of_batches("B"))
    assert story.consolidate("A").outcome == "AlreadyCommitted"


def test_a_foreign_head_gets_a_ledger_before_older_snapshots_expire(story: Story) -> None:
    """Another writer commits between this run's commit and its tidying up."""
    story.revert("A")
    limits = SnapshotLimits(max_count=2, min_to_keep=1)

    story.run(
        story.restatement(
            a_request("second", batch_ids=("y",), unknown_batches=UnknownBatches.ALLOW), snapshots=limits
        ),
        after_commit=lambda: story.append_as_foreign_writer("x"),
    )

    assert story.keys()["lethe.ledger"]
    assert len(story.table().metadata.snapshots) == 3  # the foreign writer's is one of the two, and keeps its carrier
    story.check_reads(of_batches("B") + Counter({("x", 500, 1): 1}))


# --- files of ledgers -----------------------------------------------------------------------------------------------


def grow_old(story: Story) -> None:
    """Every ledger file was written two days ago."""
    moment = time.time() - 2 * DAY
    for path in story.ledger_files().values():
        os.utime(path, (moment, moment))


def needed(story: Story) -> set[str]:
    """The files that retained snapshots lead to, found without the code under test."""
    table = story.table()
    facts = observe(table, "batch_id")
    found: set[str] = set()
    for snapshot in table.snapshots():
        keys = story.keys(snapshot)
        found |= {Path(keys[k]).name for k in ("lethe.ledger", "tombstone.file", "tombstone.vacuum.file") if k in keys}
        if "lethe.ledger" in keys:
            root = ledger_store.read_root(table.io, facts, keys["lethe.ledger"])
            found |= {c.file for chunks in root.parts.values() for c in chunks}
    return found


def test_the_ledger_files_of_expired_snapshots_go_and_those_of_retained_ones_stay(story: Story) -> None:
    story.revert("A")
    story.revert("B", name="second")
    before = set(story.ledger_files())
    grow_old(story)

    result = story.vacuum(ALL_GONE)

    left = set(story.ledger_files())
    assert result.ledger_files_removed == len(before - left) > 0
    assert needed(story) <= left
    # Gone but for what was the head's a moment ago, when somebody may have begun to read it.
    assert all(name in needed(story) or int(name[:8]) >= 3 for name in left)
    story.check_reads(Counter())


def test_files_of_a_commit_under_way_are_not_taken_for_litter(story: Story) -> None:
    """Its ledger is written and no snapshot names it yet, while a vacuum beside it cleans up."""
    story.restate(a_request("mine", batch_ids=("A",)), before_commit=lambda: story.vacuum(ALL_GONE))

    assert story.tombstones() == {"A"}
    story.check_reads(of_batches("B"))


@pytest.mark.parametrize("step", some(["before_cleanup", "between_cleanups"], "between_cleanups"))
def test_a_clean_up_that_dies_leaves_nothing_half_gone_and_is_finished_by_the_next(story: Story, step: str) -> None:
    story.revert("A")
    grow_old(story)
    with pytest.raises(Killed):
        story.vacuum(ALL_GONE, **{step: die})
    for name in story.ledger_files():
        if name.endswith("-root.json"):  # no root is left without its parts
            table = story.table()
            root = ledger_store.read_root(
                table.io, observe(table, "batch_id"), f"{table.location()}/_tombstones/{name}"
            )
            assert {c.file for chunks in root.parts.values() for c in chunks} <= set(story.ledger_files())
    grow_old(story)
    story.revert("B", name="second")

    story.vacuum(ALL_GONE, key="2")

    assert needed(story) <= set(story.ledger_files())
    story.check_reads(Counter())


def test_nothing_is_removed_while_a_ledger_of_the_history_cannot_be_read(story: Story) -> None:
    """Whoever mends it may need any of them."""
    story.revert("A")
    damaged = story.ledger_files()[Path(story.keys()["lethe.ledger"]).name]
    story.tag()
    story.revert("B", name="second")
    content = damaged.read_bytes()
    damaged.write_bytes(content[:40])
    before = set(story.ledger_files())
    grow_old(story)

    result = story.vacuum(ALL_GONE)

    assert (result.outcome, result.ledger_files_removed) == ("Committed", 0)
    assert before <= set(story.ledger_files())
    damaged.write_bytes(content)
    assert avro(story.keys()["tombstone.file"]) == []


# --- data files that nobody published -------------------------------------------------------------------------------


def test_staged_files_that_were_abandoned_leave_the_storage_at_once(story: Story) -> None:
    """E and F lie in common files, and another run promotes E meanwhile: F is written again, without E."""
    story.put("E", "F")
    before, staged = story.data_folder(), set[str]()

    def promoted_by_another() -> None:
        staged.update(story.data_folder() - before)
        story.consolidate("E")

    story.consolidate("E", "F", after_stage=promoted_by_another)

    assert staged
    assert not staged & story.data_folder()
    story.check_storage()
    story.check_reads(of_batches("A", "B", "E", "F"))
