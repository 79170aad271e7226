"""What holds the files of an erasure, and how it is named: tags, branches, snapshots, runs that may still publish."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from lethe.contract.settings import Deletes
from pyspark.sql import SparkSession

from tests.spark.parameters import pairs
from tests.spark.support.erasures import (
    DAY,
    blockers,
    check_closed,
    check_erasures,
    compact,
    erase,
    names_of,
    tag,
    the_erasure,
    the_outcome,
    the_record,
    three_batches,
)
from tests.spark.support.story import ALL_GONE, Story, format_version_of, of_batches
from tests.support.lake import Lake
from tests.support.steps import Killed, die


@pytest.fixture
def story(spark: SparkSession, lake: Lake) -> Story:
    return three_batches(spark, lake)


def test_a_tag_holds_a_due_erasure_and_is_named_until_it_is_dropped(story: Story) -> None:
    tagged = tag(story)
    erase(story, "A")

    held = story.vacuum()
    later = check_erasures(story)
    rows = story.rows_at(tagged)
    story.table().manage_snapshots().remove_tag("audit").commit()
    free = check_erasures(story)

    assert (blockers(held), the_outcome(held).blocked_by_count) == (["tag audit"], 1)
    assert (later.outcome, blockers(later)) == ("NothingToDo", ["tag audit"])
    assert rows == of_batches("A", "B", "D")
    check_closed(story, free)
    assert free.snapshots_expired == 1
    story.check_reads(of_batches("B", "D"))


@pytest.mark.long
def test_a_tag_with_an_age_limit_is_a_blocker_until_it_expires(story: Story) -> None:
    head = story.head()
    story.table().manage_snapshots().create_tag(head.snapshot_id, "audit", max_ref_age_ms=9 * DAY * 1000).commit()
    erase(story, "A")

    story.vacuum()

    (blocker,) = the_erasure(story).blockers
    assert blocker.until is not None
    assert blocker.until.timestamp() == pytest.approx(head.timestamp_ms / 1000 + 9 * DAY)
    assert the_erasure(story).look_again == blocker.until


def test_a_branch_holds_it_and_so_does_what_the_branch_copied(story: Story) -> None:
    """A compaction on the branch wrote the rows again, after the table's own were purged."""
    story.spark.sql(f"ALTER TABLE {story.full_name} CREATE BRANCH dev")
    erase(story, "A")
    held = story.vacuum()
    story.spark.sql(f"INSERT OVERWRITE {story.full_name}.branch_dev SELECT * FROM {story.full_name}.branch_dev")
    copied = check_erasures(story)
    kept = {Path(f.path).name for f in story.ledger().purged_files.values()}
    story.spark.sql(f"ALTER TABLE {story.full_name} DROP BRANCH dev")

    free = check_erasures(story)

    assert (blockers(held), blockers(copied)) == (["branch dev"], ["branch dev"])
    check_closed(story, free)
    assert names_of(f["path"] for f in the_record(free)["files"]) == kept
    assert len(kept) == 4  # two, and their copies


@pytest.mark.long
def test_a_tag_on_files_that_a_compaction_replaced_before_the_erase_holds_it(story: Story) -> None:
    """They never were the files of the vacuum."""
    tag(story)
    before = set(story.files())
    compact(story)
    assert before.isdisjoint(story.files())
    erase(story, "A")

    held = story.vacuum()

    assert blockers(held) == ["tag audit"]
    assert names_of(before) < {Path(f.path).name for f in story.ledger().purged_files.values()}


@pytest.mark.long
def test_a_tag_on_a_snapshot_that_cannot_hold_the_rows_holds_nothing(story: Story) -> None:
    story.put("X")
    story.consolidate("X")
    erase(story, "X")
    story.vacuum(key="before")
    tagged = tag(story)
    story.put("Y")
    story.consolidate("Y")
    erase(story, "Y", name="second")

    result = story.vacuum()

    check_closed(story, result)
    assert story.rows_at(tagged) == of_batches("A", "B", "D")


@pytest.mark.long
def test_a_tagged_snapshot_of_another_writer_keeps_its_ledger_when_its_carrier_is_expired_for_an_erasure(
    story: Story,
) -> None:
    """The tag holds the erasure; all others that hold it go, the one by which the tag is read among them."""
    erase(story, "A")
    bare = story.append_as_foreign_writer("x")
    story.table().manage_snapshots().create_tag(bare, "audit").commit()

    result = story.vacuum()

    assert blockers(result) == ["tag audit"]
    carrier = story.ledger().requests["ns/erase/0"].result["snapshotId"]
    assert carrier not in {s.snapshot_id for s in story.table().metadata.snapshots}
    import lethe

    rows = lethe.scan(story.full_name, snapshot_id=bare).to_arrow().to_pylist()
    assert {r["batch_id"] for r in rows} == {"B", "D", "x"}


@pytest.mark.long
def test_a_staged_snapshot_whose_run_may_publish_it_holds_it_for_a_day(story: Story) -> None:
    story.put("A2")
    with pytest.raises(Killed):
        story.consolidate("A2", after_stage=die)
    erase(story, "A", "A2")

    result = story.vacuum()

    assert [b.split(" ")[0] for b in blockers(result)] == ["staged"]
    (blocker,) = the_erasure(story).blockers
    assert blocker.until is not None
    assert timedelta(hours=23) < blocker.until - datetime.now(UTC) < timedelta(hours=25)


@pytest.mark.parametrize(("value", "mode"), pairs(["false", "no"], Deletes, ("no", Deletes.LEDGER)))
def test_no_erasure_is_verified_while_a_property_forbids_to_delete_files(story: Story, value: str, mode: str) -> None:
    """Iceberg reads any value but `true` as false. The vacuum says why no snapshot expires, and goes on."""
    version = format_version_of(mode)
    story.spark.sql(f"ALTER TABLE {story.full_name} SET TBLPROPERTIES ('format-version' = '{version}')")
    story = replace(story, deletes=Deletes(mode), format_version=version)
    erase(story, "A")
    story.spark.sql(f"ALTER TABLE {story.full_name} SET TBLPROPERTIES ('gc.enabled' = '{value}')")
    before = story.data_folder()

    vacuumed = story.vacuum(ALL_GONE)
    checked = check_erasures(story)
    held = the_erasure(story).blockers[0]
    kept = before <= story.data_folder()
    story.spark.sql(f"ALTER TABLE {story.full_name} UNSET TBLPROPERTIES ('gc.enabled')")
    free = check_erasures(story)

    assert "the table property gc.enabled is not true" in vacuumed.message
    assert (vacuumed.erasures_open, checked.erasures_open, kept) == (1, 1, True)
    assert str(held) == "the table property gc.enabled (it must be true to erase anything. Set it to true, or unset it)"
    check_closed(story, free)
