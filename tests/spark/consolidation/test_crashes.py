"""A consolidation dies in its commit, or before it can tell of it, or others go on with the table before it is repeated: each
batch's rows are in the table once, or not at all if it was taken back.

Deaths at the named steps are in test_crash_steps.py.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from lethe.base import names
from lethe_spark.apps.session import make_session
from lethe_spark.jvm.commit import CommitAttempt
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.built_once import built_once
from tests.spark.support.story import Story, avro, local, of_batches
from tests.support.builders import a_request
from tests.support.lake import CATALOG, Lake
from tests.support.steps import Killed, die

STEPS = ["after_list", "after_write", "after_stage", "before_commit"]


@built_once
def begin(spark: SparkSession, lake: Lake, catalog: str = CATALOG) -> Story:
    """Batches A, B and D are in the table; E, F and G wait in the buffer."""
    story = Story.begin(spark, lake, catalog=catalog)
    story.put("A", "B", "D", "E", "F", "G")
    story.consolidate("A", "B", "D")
    return story


@pytest.fixture
def story(spark: SparkSession, lake: Lake) -> Story:
    return begin(spark, lake)


def dies(story: Story, *batch_ids: str, step: str) -> None:
    with pytest.raises(Killed):
        story.consolidate(*batch_ids, **{step: die})


# --- taken back between the death and the repetition --------------------------------------------------------------------


@pytest.mark.parametrize("step", some(STEPS, "after_stage"))
def test_a_batch_taken_back_after_the_death_is_dropped_by_the_repetition_and_counted(story: Story, step: str) -> None:
    """Also out of files that it shares with a batch that is wanted."""
    dies(story, "E", "F", step=step)
    story.revert("E")

    result = story.consolidate("E", "F")

    assert (result.outcome, result.batches_promoted, result.batches_withheld) == ("Committed", 1, 1)
    assert story.states().items() >= {"E": "reverted", "F": "promoted"}.items()
    story.check_reads(of_batches("A", "B", "D", "F"))


def test_the_commit_that_publishes_staged_files_carries_the_whole_ledger_on(story: Story) -> None:
    """Iceberg's own publishing would make a snapshot of the keys that were staged: without tombstones, without batches."""
    story.revert("A", name="before")
    dies(story, "E", "F", step="after_stage")
    story.revert("B", name="meanwhile")
    before = story.keys()

    result = story.consolidate("E", "F")

    keys = story.keys()
    assert result.snapshot_id == story.head().snapshot_id
    ours = {k for k in before if k.startswith(("lethe.", "tombstone."))}
    assert {k for k in keys if k.startswith(("lethe.", "tombstone."))} == ours
    assert {t["id"] for t in avro(keys[names.TOMBSTONE_FILE])} == {"A", "B"}
    assert [keys[k] for k in (names.TOMBSTONE_ADDED, names.TOMBSTONE_TOTAL)] == ["0", "2"]
    assert keys[names.PUBLISHED_WAP_ID] == keys[names.RUN_ID]
    assert set(story.ledger().requests) == {"ns/before/0", "ns/meanwhile/0"}
    story.check_reads(of_batches("D", "E", "F"))


# --- another run, over some of the same batches ---------------------------------------------------------------------------


def test_runs_over_overlapping_batches_that_both_died_staged_promote_each_batch_once(story: Story) -> None:
    """F lies in the staged files of both, beside a batch that only one of them has."""
    dies(story, "E", "F", step="after_stage")
    dies(story, "F", "G", step="after_stage")

    results = [story.consolidate("F", "G"), story.consolidate("E", "F")]

    assert [r.batches_promoted for r in results] == [2, 1]
    story.check_reads(of_batches("A", "B", "D", "E", "F", "G"))


# --- snapshots of other engines --------------------------------------------------------------------------------------
# Rows of a batch become part of the table once, and only while their files are there, whatever other engines do with
# snapshots in between: rolling back, cherry-picking, expiring.


MakeStory = Callable[..., Story]


@pytest.fixture
def make_story(spark: SparkSession, lake: Lake, request: pytest.FixtureRequest) -> MakeStory:
    """A story on a catalog of that name. Batch A is in the table."""

    @built_once
    def begin(catalog: str = CATALOG, format_version: int = 2) -> Story:
        if catalog != CATALOG:
            request.getfixturevalue(catalog)
            make_session(catalog)
        story = Story.begin(spark, lake, catalog=catalog, format_version=format_version)
        story.put("A", "B", "C")
        story.consolidate("A")
        return story

    return begin


def call(story: Story, procedure: str, arguments: str) -> None:
    story.spark.sql(f"CALL {story.catalog}.system.{procedure}(table => '{story.name}', {arguments})")


def rolled_back_and_cherry_picked(story: Story, to: int) -> int:
    """The head's append as a copy on the snapshot `to`, after another writer's append: no fast-forward. Its source's id."""
    published = story.head().snapshot_id
    call(story, "rollback_to_snapshot", f"snapshot_id => {to}")
    story.spark.sql(f"INSERT INTO {story.full_name} VALUES (500, 1, 'X')")
    call(story, "cherrypick_snapshot", f"snapshot_id => {published}")
    return published


def expire_unreferenced(story: Story) -> None:
    """As another engine would: every snapshot that no branch or tag holds goes, with its files."""
    now = datetime.now(UTC) + timedelta(seconds=1)
    call(story, "expire_snapshots", f"older_than => TIMESTAMP '{now:%Y-%m-%d %H:%M:%S}', retain_last => 100")


def files_are_there(story: Story) -> bool:
    table = story.table()
    return all(Path(local(t.file.file_path)).exists() for t in table.scan().plan_files())


STRANGE = {("X", 500, 1): 1}


@pytest.mark.parametrize("catalog", [CATALOG, pytest.param("rest", marks=pytest.mark.long)])
def test_a_batch_that_a_cherry_pick_brought_back_is_not_loaded_a_second_time(
    make_story: MakeStory, catalog: str
) -> None:
    story = make_story(catalog)
    before = story.head().snapshot_id
    story.consolidate("B")
    rolled_back_and_cherry_picked(story, before)

    story.consolidate("B")
    story.consolidate("B", "C")

    wanted = of_batches("A", "B", "C")
    wanted.update(STRANGE)
    story.check_reads(wanted)
    assert story.states() == {"A": "promoted", "B": "promoted", "C": "promoted"}
    entry = story.ledger().batches["B"]
    assert (entry.rows, len(entry.objects) > 0) == (4, True)


def test_staged_files_that_another_tool_published_are_not_loaded_by_another_run(make_story: MakeStory) -> None:
    story = make_story()
    run = story.consolidation("B", "C")
    with pytest.raises(Killed):
        story.run(run, after_stage=die)
    (staged,) = [s for s in story.table().snapshots() if (s.summary or {}).get("wap.id") == run.run_id]
    story.append_as_foreign_writer("X")
    call(story, "cherrypick_snapshot", f"snapshot_id => {staged.snapshot_id}")

    story.consolidate("B")

    wanted = of_batches("A", "B", "C")
    wanted.update(STRANGE)
    story.check_reads(wanted)
    assert story.states() == {"A": "promoted", "B": "promoted", "C": "promoted"}


def test_a_batch_that_was_taken_back_after_the_rollback_stays_hidden_when_a_cherry_pick_brings_it(
    make_story: MakeStory,
) -> None:
    story = make_story()
    before = story.head().snapshot_id
    story.consolidate("B")
    published = story.head().snapshot_id
    call(story, "rollback_to_snapshot", f"snapshot_id => {before}")
    story.restate(a_request("revert-b", batch_ids=("B",)))
    call(story, "cherrypick_snapshot", f"snapshot_id => {published}")

    story.consolidate("B", "C")

    story.check_reads(of_batches("A", "C"))
    assert story.states() == {"A": "promoted", "B": "reverted", "C": "promoted"}


# --- staged files that go before they are published ---------------------------------------------------------------------


@pytest.mark.parametrize("catalog", some([CATALOG, "rest"], CATALOG))
@pytest.mark.parametrize("step", some(["after_stage", "before_commit"], "before_commit"))
def test_files_whose_staged_snapshot_another_engine_expired_are_written_again(
    make_story: MakeStory, catalog: str, step: str
) -> None:
    story = make_story(catalog)

    story.consolidate("B", "C", **{step: lambda: expire_unreferenced(story)})

    assert files_are_there(story)
    story.check_reads(of_batches("A", "B", "C"))


@pytest.mark.parametrize("catalog", [pytest.param(CATALOG, marks=pytest.mark.long), "rest"])
def test_an_expiry_between_the_check_and_the_catalogs_answer_is_noticed(
    make_story: MakeStory, catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A REST catalog compares only the head, which an expiry of staged snapshots does not move."""
    story = make_story(catalog)
    submit = CommitAttempt.submit
    expired: list[bool] = []

    def expire_first(attempt: CommitAttempt) -> None:
        publishes = attempt.made.currentSnapshot().snapshotId() != attempt.base.currentSnapshot().snapshotId()
        if publishes and not expired:
            expired.append(True)
            expire_unreferenced(story)
        submit(attempt)

    monkeypatch.setattr(CommitAttempt, "submit", expire_first)
    story.consolidate("B", "C")

    assert expired
    assert files_are_there(story)
    story.check_reads(of_batches("A", "B", "C"))
    assert [r for r in story.table().metadata.refs if r != "main"] == []
