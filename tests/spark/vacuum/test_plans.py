"""What a vacuum is asked for, what it says beforehand, and which files it leaves alone."""

import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from lethe.base.errors import InputError
from lethe.contract.result import RunResult
from lethe.uri import without_values
from lethe_spark.jobs.vacuum import job as vacuum
from lethe_spark.jobs.vacuum import searches
from lethe_spark.sql.searching import search_few_here
from pyspark.sql import SparkSession

from tests.spark.support.built_once import built_once
from tests.spark.support.story import Story, local, of_batches
from tests.support.lake import Lake


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake) -> Story:
    """A and E lie in a common file for each of two days, B and D in another, so that the bounds of both cover B."""
    story = Story.begin(spark, lake)
    story.put("A", "B", "D", "E")
    story.consolidate("A", "E")
    story.consolidate("B", "D")
    story.revert("B")
    return story


def plan(story: Story, **asked: object) -> RunResult:
    return story.run(story.vacuuming_so("plan", plan_only=True, **asked))


def test_files_that_might_hold_rows_by_bounds_but_hold_none_are_searched_and_not_rewritten(story: Story) -> None:
    """The tombstone ends all the same, since nothing of it is left, whatever the bounds of the other files say."""
    others = {p for p, batches in story.files().items() if "A" in batches}

    result = story.run(story.vacuuming_so())

    assert result.plan is not None
    assert (result.plan.files, result.plan.in_vain_percent, result.plan.sort_drift) == (
        4,
        pytest.approx(50, abs=2),
        1.5,
    )
    assert (result.files_rewritten, result.files_in_vain, result.tombstones_purged, result.rows_purged) == (2, 0, 1, 4)
    assert others < story.files().keys()
    story.check_reads(of_batches("A", "D", "E"))


def test_an_approved_plan_is_carried_out_and_a_plan_that_changed_is_only_reported(story: Story) -> None:
    approved = plan(story).plan
    assert approved is not None
    story.revert("D", name="more")

    stale = story.run(story.vacuuming_so("stale", approved_plan=approved.digest))
    assert (stale.outcome, story.tombstones()) == ("Planned", {"B", "D"})
    assert "differs from the approved plan" in stale.message
    assert stale.plan is not None
    result = story.run(story.vacuuming_so("good", approved_plan=stale.plan.digest))

    assert (result.outcome, result.tombstones_purged, story.tombstones()) == ("Committed", 2, set())
    story.check_reads(of_batches("A", "E"))


def test_a_vacuum_of_some_batches_leaves_the_others_deleted_and_in_the_files(story: Story) -> None:
    story.revert("D", name="more")

    result = story.run(story.vacuuming_so(batch_ids=("B", "unknown")))

    assert (result.tombstones_purged, story.tombstones()) == (1, {"D"})
    assert story.in_files() == Counter({"A": 4, "D": 4, "E": 4})
    story.check_reads(of_batches("A", "E"))


def test_no_step_begins_when_the_time_is_up(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first, nothing happens; before the second, the first stays, and what is left is counted."""
    closed = story.run(story.vacuuming_so("closed", stop_by=datetime.now(UTC) - timedelta(seconds=1)))
    assert (closed.outcome, closed.stopped, closed.steps, closed.files_left) == ("NothingToDo", "WindowClosed", 0, 4)
    spent = story.run(story.vacuuming_so("spent", max_seconds=0))
    assert (spent.outcome, spent.stopped, spent.steps) == ("NothingToDo", "MaxRunSeconds", 0)

    class Later(datetime):
        @classmethod
        def now(cls, tz: object = UTC) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(days=1)  # type: ignore[arg-type]

    soon = datetime.now(UTC) + timedelta(hours=1)
    cut = story.run(
        story.vacuuming_so("cut", step_bytes=1, stop_by=soon),
        after_commit=lambda: monkeypatch.setattr(vacuum, "datetime", Later),
    )

    assert (cut.outcome, cut.stopped, cut.steps, cut.files_rewritten) == ("Committed", "WindowClosed", 1, 1)
    assert cut.files_left > 0
    assert story.tombstones() == {"B"}
    story.check_reads(of_batches("A", "D", "E"))


def test_a_file_that_is_not_in_storage_is_set_aside_and_named_and_the_rest_goes_on(story: Story) -> None:
    """Its tombstone stays: what is in a file that nobody can read, nobody knows."""
    gone = next(p for p, batches in story.files().items() if "B" in batches)
    content = Path(local(gone)).read_bytes()
    Path(local(gone)).unlink()

    result = story.vacuum()

    assert (result.outcome, result.files_rewritten, result.rows_purged, story.tombstones()) == (
        "Committed",
        1,
        2,
        {"B"},
    )
    assert without_values(gone) in result.message
    with pytest.raises(InputError, match=re.escape(without_values(gone))) as refused:
        story.vacuum(key="2")
    assert refused.value.reason == "DataFileMissing"
    Path(local(gone)).write_bytes(content)
    assert story.vacuum(key="3").tombstones_purged == 1
    story.check_reads(of_batches("A", "D", "E"))


def test_files_that_another_engine_replaced_and_deleted_while_they_were_searched_are_not_missing(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vacuum looks again at the files that are there instead."""

    def search(*asked: Any) -> Any:
        monkeypatch.setattr(searches, "search_few_here", search_few_here)
        story.compact()
        story.filled("C")  # the newest snapshot names the ledger
        story.sql("CALL {catalog}.system.expire_snapshots(table => '{name}', older_than => now(), retain_last => 1)")
        return search_few_here(*asked)

    monkeypatch.setattr(searches, "search_few_here", search)

    result = story.vacuum()

    assert (result.outcome, result.message, result.rows_purged, story.tombstones()) == ("Committed", "", 4, set())
    story.check_reads(of_batches("A", "C", "D", "E"))
