"""One ledger, one pointer: whoever meets whom, nothing that one of them recorded is lost, and nothing ended comes back."""

from collections import Counter
from types import SimpleNamespace

import pytest
from lethe.base.errors import ConflictError
from lethe_spark.commit import ledger_commit
from lethe_spark.jobs.restatement import job as restate
from pyspark.sql import SparkSession

from tests.spark.support.built_once import built_once
from tests.spark.support.story import Story, avro, of_batches
from tests.support.builders import a_request
from tests.support.lake import Lake
from tests.support.steps import Killed, die

MIN_SECONDS = 6.0


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake) -> Story:
    """Batches A and B are in the table."""
    return Story.begin(spark, lake).filled("AB")


def test_two_consolidations_at_one_moment_are_both_remembered(story: Story) -> None:
    """Were only tombstones compared, the second would land and the first one's batches be promoted again later."""
    story.put("E", "F")

    story.consolidate("E", before_commit=lambda: story.consolidate("F"))

    assert story.states() == dict.fromkeys("ABEF", "promoted")
    assert story.consolidate("E", "F").outcome == "AlreadyCommitted"
    story.check_reads(of_batches("A", "B", "E", "F"))


def test_an_emptied_ledger_is_an_empty_file_and_does_not_fall_back_to_the_one_before(story: Story) -> None:
    """A walk that looked for the nearest tombstones, past a ledger without any, would hide A again."""
    story.revert("A")
    story.undo()
    story.append_as_foreign_writer("x")

    assert avro(story.keys(story.snapshots()[1])["tombstone.file"]) == []
    story.check_reads(of_batches("A", "B") + Counter({("x", 500, 1): 1}))


def test_staged_files_of_a_reverted_batch_that_another_tool_publishes_under_a_vacuum_stay_hidden(story: Story) -> None:
    """They were staged before the revert; no file of the table holds the batch when the vacuum is planned."""
    story.put("E")
    run = story.consolidation("E")
    with pytest.raises(Killed):
        story.run(run, after_stage=die)
    story.revert("A", "E")
    (staged,) = [s for s in story.table().snapshots() if (s.summary or {}).get("wap.id") == run.run_id]

    result = story.vacuum(
        before_commit=lambda: story.spark.sql(
            f"CALL {story.catalog}.system.cherrypick_snapshot('{story.name}', {staged.snapshot_id})"
        )
    )

    assert result.tombstones_purged == 1  # A's; E's has to stay
    story.check_reads(of_batches("B"))
    assert story.vacuum(key="2").rows_purged == 4
    story.check_reads(of_batches("B"))


def test_a_run_that_loses_every_race_reports_it_and_does_not_change_the_table(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer commits before each of its attempts. It gives up after enough attempts and enough time."""
    now = 0.0
    monkeypatch.setattr(ledger_commit, "ATTEMPTS", 2)
    monkeypatch.setattr(ledger_commit, "MIN_SECONDS", MIN_SECONDS)
    monkeypatch.setattr(ledger_commit, "time", SimpleNamespace(monotonic=lambda: now))
    turns = iter(range(1000))

    spec = story.restatement(a_request("mine", batch_ids=("A",)))
    context = story.context(spec)

    def overtake() -> None:
        nonlocal now
        now += 2.0  # so that the second attempt is too early to be the last
        story.revert(f"x{next(turns)}", name=f"theirs-{next(turns)}", unknown="Allow")
        context.at["before-commit"] = overtake

    context.at["before-commit"] = overtake
    with pytest.raises(ConflictError, match="LedgerMoved"):
        restate.run(context)

    assert next(turns) >= 2 * 2
    assert now >= MIN_SECONDS
    assert story.states()["A"] == "promoted"
    story.check_reads(of_batches("A", "B"))
