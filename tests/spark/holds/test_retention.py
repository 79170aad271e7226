"""Retention under holds: rows that a hold covers stay although they are too old, and leave when it has ended."""

from datetime import timedelta
from typing import Any

import pytest
from lethe.contract.dataset import HoldSpec
from lethe.contract.result import RetentionOutcome, VacuumResult
from lethe.contract.settings import Deletes
from lethe_spark.jobs.vacuum import job
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.aging import AgingStory, numbers, old, young
from tests.support.lake import Lake

DAILY = ("days(booked_at)",)


def age(story: AgingStory, hold: str = "", key: str = "1", **asked: Any) -> tuple[VacuumResult, RetentionOutcome]:
    """A vacuum that removes what is too old, under a hold with this filter; "": under none."""
    holds = (HoldSpec(name="case-7", filter=hold),) if hold else ()
    result = story.run(story.aging(key, **asked).model_copy(update={"holds": holds}))
    assert isinstance(result, VacuumResult)
    assert result.retention is not None
    return result, result.retention


@pytest.mark.parametrize("format_version", some([2, 3], 2))
def test_an_old_file_with_a_covered_row_is_not_dropped_until_the_hold_ends(
    spark: SparkSession, lake: Lake, format_version: int
) -> None:
    """The hold covers one of the two rows of a day. The other old day goes. Another vacuum has nothing to do."""
    story = AgingStory.begin(spark, lake, DAILY, format_version=format_version)
    story.promoted(A=(old(), old(), old(1), young(5)))

    planned, _ = age(story, "v = 1", key="0", plan_only=True)
    result, found = age(story, "v = 1")
    again, found_again = age(story, "v = 1", key="2")

    assert planned.plan is not None
    assert (planned.plan.whole_files, planned.plan.files_held) == (2, 1)
    assert (result.files_deleted, result.files_held, result.holds) == (1, 1, ("case-7",))
    assert "1 data files keep rows that are too old, because some are covered by hold case-7" in result.message
    assert (again.outcome, again.files_held) == ("NothingToDo", 1)
    assert [(f.left, f.files_held, str(f.next_cutoff)) for f in (found, found_again)] == [(False, 1, "2024-06-07")] * 2
    assert story.rows() == numbers("A", 0, 1, 3)

    free, found = age(story, key="3")

    assert (free.files_deleted, free.files_held, found.files_held) == (1, 0, 0)
    assert story.rows() == numbers("A", 3)


NO_METRICS = {"write.metadata.metrics.column.booked_at": "none"}
MIXED: dict[str, tuple[dict[str, Any], str, tuple[int, ...]]] = {
    "an old row": ({}, "v = 0", (0, 1, 2, 3)),
    "an old row, format version 3": ({"format_version": 3}, "v = 0", (0, 1, 2, 3)),
    "only a young row": ({}, "v = 1", (1, 2)),
    "only a row without a time": ({}, "booked_at IS NULL", (1, 2)),
    "an old row of a date": ({"type": "DATE"}, "v = 3", (0, 1, 2, 3)),
    "only a young row of a struct": ({"nested": True}, "v = 1", (1, 2)),
    "an old row of an unknown time": ({"properties": NO_METRICS}, "v = 0", (0, 1, 2, 3)),
    "only a young row, of unknown times": ({"properties": NO_METRICS}, "v = 1", (1, 2)),
    "perhaps a row of a file that only Spark reads": (
        {"properties": {"write.format.default": "avro"}},
        "v = 1",
        (0, 1, 2, 3),
    ),
}


QUICK = ("an old row", "only a young row", "only a young row, of unknown times")


@pytest.mark.parametrize("what", some(MIXED, *QUICK))
def test_a_file_with_old_and_young_rows_stays_as_it_is_if_a_hold_covers_one_that_would_leave(
    spark: SparkSession, lake: Lake, what: str
) -> None:
    """Two old rows, a young one, and one without a time. Files that stay make no vacuum due on the next day."""
    shape, hold, left = MIXED[what]
    story = AgingStory.begin(spark, lake, (), **shape)
    story.promoted(A=(old(), young(), None, old(5)))

    result, found = age(story, hold)

    is_held = len(left) == 4
    assert (result.files_rewritten, result.files_held, found.files_held) == ((0, 1, 1) if is_held else (1, 0, 0))
    assert (found.left, found.next_cutoff is None) == (False, is_held)
    assert story.rows() == numbers("A", *left)

    age(story, key="2")

    assert story.rows() == numbers("A", 1, 2)


@pytest.mark.parametrize("deletes", [Deletes.LEDGER, Deletes.POSITION_DELETES, Deletes.DELETION_VECTORS])
def test_a_hold_on_old_rows_does_not_keep_the_rows_that_tombstones_hide(
    spark: SparkSession, lake: Lake, deletes: Deletes
) -> None:
    """They would leave without retention, too, because the rewrite keeps the covered row. So no erasure has to wait."""
    story = AgingStory.begin(spark, lake, (), deletes=deletes)
    story.promoted(A=(old(), young()), B=(old(), young()), C=(old(1), young()))
    story.revert("A", evict_by_seconds=60)

    result, found = age(story, "batch_id = 'B' AND v = 0", expire_snapshots=True)

    assert (result.files_rewritten, result.tombstones_purged, result.rows_purged) == (1, 1, 2)
    assert (result.files_held, found.files_held, found.left) == (1, 1, False)
    assert story.rows() == numbers("B", 0, 1) + numbers("C", 0, 1)
    assert [b for e in story.ledger().open_erasures for b in e.blockers if str(b.kind) == "Hold"] == []
    assert story.keys().get("lethe.retention-cutoff") is None

    free, _ = age(story, key="2")

    assert (free.files_rewritten, free.files_held) == (1, 0)
    assert story.rows() == numbers("B", 1) + numbers("C", 1)


@pytest.mark.parametrize("format_version", some([2, 3], 3))
def test_covered_rows_that_a_tombstone_hides_keep_their_file_with_its_old_rows(
    spark: SparkSession, lake: Lake, format_version: int
) -> None:
    """A file of only hidden and old rows, which is not dropped either."""
    story = AgingStory.begin(spark, lake, DAILY, format_version=format_version)
    story.promoted(A=(old(), young()), B=(old(), young()))
    story.revert("A")

    result, found = age(story, "batch_id = 'A' AND v = 0")

    assert (result.files_deleted, result.files_rewritten, result.files_held, found.left) == (0, 1, 1, False)
    assert (story.tombstones(), story.rows()) == ({"A"}, numbers("B", 0, 1))
    assert sum(f.record_count for f in story.live().values()) == 3  # the hidden row of the old file is there


@pytest.mark.parametrize("format_version", some([2, 3], 2))
def test_old_batches_stay_in_the_files_of_which_a_hold_covers_a_row_and_leave_the_others(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, format_version: int
) -> None:
    """A and B share a file, D has one of its own, and another writer has added rows of A. E was taken back."""
    story = AgingStory.begin(spark, lake, (), format_version=format_version)
    story.promoted(A=(young(),), B=(young(), young()), E=(young(),))
    story.promoted(D=(young(),))
    story.sql(
        "INSERT INTO {t} (v, booked_at, batch_id) VALUES (7, current_timestamp(), 'X'), (8, current_timestamp(), 'A')"
    )
    story.revert("E")
    by_age: dict[str, Any] = {
        "by_batches": True,
        "cutoff": story.ledger().batches["B"].time.date() + timedelta(days=5),
    }
    original = job.retention_for
    monkeypatch.setattr(
        job, "retention_for", lambda *args: original(*args[:4], args[4] + timedelta(days=10), *args[5:])
    )

    result, found = age(story, "batch_id = 'B' AND v = 1", **by_age)

    assert (result.files_deleted, result.files_rewritten, result.tombstones_purged) == (1, 2, 1)
    assert (result.files_held, found.files_held, found.left) == (1, 1, False)
    assert story.rows() == numbers("A", 0) + numbers("B", 0, 1) + numbers("X", 7)

    age(story, key="2", **by_age)

    assert story.rows() == numbers("X", 7)
