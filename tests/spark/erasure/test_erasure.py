"""An erasure is verified once nothing holds a file that may have held its rows, and until then it says what does."""

import os
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from lethe.contract.run import Provenance, SnapshotLimits
from lethe.restatement.plan import values_digest
from pyspark.sql import SparkSession

from tests.spark.parameters import some, tuples
from tests.spark.support.built_once import built_once
from tests.spark.support.erases import Names, but, files_with, name_of, row
from tests.spark.support.erasures import (
    DAY,
    DUE,
    a_data_file,
    blockers,
    check_closed,
    check_erasures,
    compact,
    erase,
    leave,
    names_of,
    next_attempt,
    tag,
    the_erasure,
    the_outcome,
    the_record,
    three_batches,
)
from tests.spark.support.story import ALL_GONE, Story, local, of_batches
from tests.support.builders import a_request
from tests.support.lake import Lake
from tests.support.steps import Killed, die

Make = Callable[..., Names]


@pytest.fixture
def story(spark: SparkSession, lake: Lake) -> Story:
    return three_batches(spark, lake)


# --- the whole way --------------------------------------------------------------------------------------------------


def test_a_due_erase_is_verified_by_the_vacuum_that_purges_it_whatever_the_retention(story: Story) -> None:
    """Its snapshots would be kept for five days."""
    before = set(story.files())
    erase(story, "A")

    result = story.vacuum()

    check_closed(story, result)
    record = the_record(result)
    assert names_of(f["path"] for f in record["files"]) == names_of(before)
    assert (record["restatement"]["key"], record["restatement"]["batches"]) == ("ns/erase/0", 1)
    assert record["purge"]["snapshot-id"] == result.snapshot_id == the_outcome(result).vacuum_snapshot_id
    assert record["files-bytes"] == sum(f["bytes"] for f in record["files"]) > 0
    assert (record["verified"]["run"], record["verified"]["all-versions"]) == (result.run_id, False)
    assert record["verified"]["storage-calls"]["exists"] >= len(before)
    # Promoted, staged and erased; purged and noted: their manifests tell what the files held.
    assert result.snapshots_expired == 5
    story.check_reads(of_batches("B", "D"))


@pytest.mark.long
def test_no_clean_up_deletes_a_record(story: Story) -> None:
    erase(story, "A")
    result = story.vacuum()
    record = Path(local(the_outcome(result).record))
    week = time.time() - 30 * DAY
    os.utime(record, (week, week))

    story.revert("B")
    story.vacuum(ALL_GONE, key="2")

    assert record.parent.name == "_erasures"
    assert record.exists()


def test_an_erase_that_is_not_due_waits_for_retention_and_reports_until_when(story: Story) -> None:
    erase(story, "A", seconds=30 * DAY)

    held = story.vacuum()
    first = the_erasure(story)
    again = check_erasures(story)
    expired = check_erasures(story, ALL_GONE)

    assert blockers(held) == [f"snapshot {i}" for i in sorted_ids(story, first)]
    assert first.purged_by == held.snapshot_id
    assert first.look_again is not None
    assert abs(first.look_again - datetime.now(UTC) - timedelta(days=5)) < timedelta(minutes=10)
    assert (again.outcome, again.erasures_open, blockers(again)) == ("NothingToDo", 1, blockers(held))
    assert expired.outcome == "Committed"
    check_closed(story, expired)


def sorted_ids(_: Story, erasure: object) -> list[str]:
    return [b.name for b in erasure.blockers]  # type: ignore[attr-defined]


@pytest.mark.long
@pytest.mark.parametrize("seconds", [DUE, None], ids=["due", "whenever"])
def test_one_that_no_snapshot_holds_any_more_is_verified_whether_or_not_it_is_due(
    story: Story, seconds: int | None
) -> None:
    erase(story, "A", seconds=seconds)

    check_closed(story, story.vacuum(ALL_GONE))


def test_a_revert_and_a_replay_with_a_deadline_are_verified_as_well(story: Story) -> None:
    story.revert("A", evict_by_seconds=DUE)
    story.replay("B", by="B2", evict_by_seconds=DUE)

    result = story.vacuum()

    assert {o.restatement: o.verified_time is not None for o in result.erasures} == {
        "ns/revert/0": True,
        "ns/replay/0": True,
    }
    story.check_reads(of_batches("D") + of_batches("B2", rows=3))


@pytest.mark.long
def test_a_revert_without_a_deadline_leaves_nothing_to_verify(story: Story) -> None:
    story.revert("A")

    result = story.vacuum()

    assert (result.erasures, result.snapshots_expired) == ((), 1)  # the staged one, which was published
    assert not Path(local(story.table().location()), "_erasures").exists()


def test_rows_that_a_partial_vacuum_left_keep_the_erasure_open(story: Story) -> None:
    erase(story, "A")

    first = story.vacuum(max_bytes=1)
    open_ = the_erasure(story)
    second = story.vacuum(max_bytes=1, key="2")

    assert (first.erasures_open, open_.is_purged, the_outcome(first).vacuum_snapshot_id) == (1, False, None)
    check_closed(story, second)
    assert the_outcome(second).vacuum_snapshot_id == second.snapshot_id


def test_the_record_contains_the_requester_the_reason_and_a_keyed_digest_of_the_batches(
    story: Story, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "key").write_bytes(b"0" * 32)
    monkeypatch.setenv("LETHE_VALUES_DIGEST_KEY_FILE", str(tmp_path / "key"))
    asked = Provenance(reason="wrong consent", ticket="GDPR-17", uid="u-1")
    request = a_request("erase", "Erase", batch_ids=("A",), evict_by_seconds=DUE, provenance=asked)
    assert story.restate(request).provenance is None  # who asked needs no telling

    reported = the_record(story.vacuum())["request"]

    assert (reported["name"], reported["reason"], reported["ticket"], reported["uid"]) == (
        "ns/erase",
        "wrong consent",
        "GDPR-17",
        "u-1",
    )
    assert reported["batch-ids-digest"] == values_digest(b"A", b"0" * 32) != ""


# --- records --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=some([2, 3], 3), ids=["v2", "v3"])
@built_once
def people(request: pytest.FixtureRequest, spark: SparkSession, lake: Lake) -> Names:
    return Names.of(Story.begin(spark, lake, ("name",)), request.param).filled()


def test_an_erase_by_records_is_verified_and_no_value_remains_anywhere(people: Names) -> None:
    """The table is partitioned by the name, so that the paths of its files hold it. On version 2 the rows leave with the Erase
    itself, on version 3 with the vacuum."""
    gone = row("A", 1)
    files = set(people.files())
    assert people.restate(people.an_erase(name_of(gone[1]), evict_by_seconds=DUE)).succeeded
    erased = people.head().snapshot_id

    result = people.vacuum()

    check_closed(people, result)
    by = the_outcome(result).vacuum_snapshot_id
    assert by == (erased if people.format_version == 2 else result.snapshot_id)
    record = the_record(result)
    assert record["restatement"]["named-by"] == "records"
    assert names_of(f["path"] for f in record["files"] if f["content"] == "data") <= names_of(files)
    vectors = [f["path"] for f in record["files"] if f["content"] == "deletes"]
    assert [Path(p).suffix for p in vectors] == ([".puffin"] if people.format_version == 3 else [])
    content = Path(local(the_outcome(result).record)).read_text()
    assert "passenger" not in content
    assert "/name=*/" in content
    assert files_with(Path(local(the_outcome(result).record)).parent, name_of(gone[1])) == []
    people.check_reads(but(gone))


@pytest.mark.long
def test_an_undo_of_a_revert_from_before_is_refused_although_the_erasure_is_closed(
    spark: SparkSession, lake: Lake
) -> None:
    """No vacuum was needed: the tombstones are there still, and the Erase could not search what they keep out."""
    people = Names.of(Story.begin(spark, lake)).filled()
    people.revert("late")
    people.restate(people.an_erase(name_of(row("A", 1)[1]), evict_by_seconds=DUE))
    check_closed(people, check_erasures(people))

    undone = people.undo()

    assert (undone.succeeded, undone.reason) == (False, "ErasedSince")


# --- what happens in between ----------------------------------------------------------------------------------------


@pytest.mark.long
def test_an_undo_before_the_vacuum_ends_the_obligation_and_keeps_the_rows(story: Story) -> None:
    story.revert("A", evict_by_seconds=DUE)
    story.undo()

    result = story.vacuum()

    assert (result.erasures, story.ledger().erasures) == ((), ())
    story.check_reads(of_batches("A", "B", "D"))


@pytest.mark.long
def test_files_that_another_run_expires_before_the_vacuum_are_recorded(story: Story) -> None:
    """Its history is too long; it knows nothing of erasures but that the ledger must hear of the files."""
    before = set(story.files())
    erase(story, "A")
    compact(story)
    short = SnapshotLimits(max_count=1, min_to_keep=1)
    story.put("E")
    story.run(story.consolidation("E", snapshots=short))
    assert not any(Path(local(f)).exists() for f in before)

    result = story.vacuum()

    check_closed(story, result)
    assert names_of(before) < names_of(f["path"] for f in the_record(result)["files"])


@pytest.mark.long
def test_an_erasure_waits_again_for_a_batch_that_another_writer_adds_again(story: Story) -> None:
    tag(story)
    erase(story, "A")
    story.vacuum()
    story.append_as_foreign_writer("A")
    story.consolidate()  # stamps the head, and arms the tombstone again

    reopened = check_erasures(story)
    story.table().manage_snapshots().remove_tag("audit").commit()
    result = story.vacuum(key="2")

    assert (the_outcome(reopened).vacuum_snapshot_id, reopened.erasures_open) == (None, 1)
    check_closed(story, result)
    story.check_reads(of_batches("B", "D"))


@pytest.mark.long
def test_a_restatement_that_commits_while_the_storage_is_asked_changes_nothing(story: Story) -> None:
    erase(story, "A")

    result = story.vacuum(after_storage_asked=lambda: story.revert("B", name="between"))

    check_closed(story, result)
    story.check_reads(of_batches("D"))


STEPS = [
    "after-commit",
    "after-purged-noted",
    "before-erasure-expiry",
    "after-erasure-expiry",
    "after-storage-asked",
    "after-record",
]


@pytest.mark.parametrize("step", some(STEPS, "after-commit"))
def test_a_vacuum_killed_at_any_step_is_made_up_for_by_its_next_attempt(story: Story, step: str) -> None:
    before = set(story.files())
    erase(story, "A")
    with pytest.raises(Killed):
        story.vacuum(**{step.replace("-", "_"): die})

    result = story.run(next_attempt(story.vacuuming()))

    check_closed(story, result)
    assert names_of(f["path"] for f in the_record(result)["files"]) == names_of(before)
    story.check_reads(of_batches("B", "D"))


def test_files_that_an_expiry_did_not_delete_are_deleted(story: Story) -> None:
    """Iceberg drops snapshots first and deletes their files afterwards: whoever dies in between leaves them."""
    erase(story, "A")
    (first, *_) = sorted(story.files())
    content = Path(local(first)).read_bytes()

    result = story.vacuum(after_erasure_expiry=lambda: Path(local(first)).write_bytes(content))

    check_closed(story, result)


@pytest.mark.parametrize(("hours", "gone"), tuples([(30, True), (1, False)], (30, True)))
def test_files_of_runs_that_came_to_nothing_go_once_no_run_can_commit_them(
    story: Story, hours: int, gone: bool
) -> None:
    """Files of other writers that cannot hold the rows are no concern."""
    data = Path(local(story.table().location()), "data")
    lost, others = data / ("0" * 32) / "day=1" / "lost.parquet", data / "somebodys" / "own.parquet"
    leave(lost, hours)
    leave(others, hours, a_data_file(story, "B", "D"))
    erase(story, "A")

    result = story.vacuum()

    assert (lost.exists(), others.exists()) == (not gone, True)
    if gone:
        check_closed(story, result)
        assert the_record(result)["verified"]["leftovers-removed"] == 1
    else:
        (blocker,) = the_erasure(story).blockers
        assert (blocker.kind, blocker.name.endswith("/day=*/lost.parquet")) == ("Object", True)
        assert blocker.until is not None


def test_a_check_of_a_table_without_erasures_changes_nothing(story: Story) -> None:
    story.revert("A")
    before = story.head().snapshot_id

    result = check_erasures(story)

    assert (result.outcome, result.erasures, story.head().snapshot_id) == ("NothingToDo", (), before)
    assert story.rows_at() == of_batches("B", "D")
    assert Counter(t.id for t in story.ledger().tombstones.values()) == Counter({"A": 1})
