"""Rows of a batch become part of the table once, and only while their files are there, whatever other engines do with
snapshots in between: rolling back, cherry-picking, expiring."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from lethe_spark.apps.session import make_session
from lethe_spark.jvm.commit import CommitAttempt
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.built_once import built_once
from tests.spark.support.story import Story, local, of_batches
from tests.support.builders import a_request
from tests.support.lake import CATALOG, Lake
from tests.support.steps import Killed, die

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


@pytest.mark.long
@pytest.mark.parametrize("format_version", [2, 3])
def test_it_is_known_by_its_files_when_the_snapshot_that_was_copied_is_gone(
    make_story: MakeStory, format_version: int
) -> None:
    """Nothing says any more which batches that commit brought: the rows do."""
    story = make_story(format_version=format_version)
    before = story.head().snapshot_id
    story.consolidate("B", "C")
    rolled_back_and_cherry_picked(story, before)
    expire_unreferenced(story)

    story.consolidate("C")
    story.consolidate("B")

    wanted = of_batches("A", "B", "C")
    wanted.update(STRANGE)
    story.check_reads(wanted)
    entries = story.ledger().batches
    assert [(i, str(e.state), e.rows, e.objects) for i, e in sorted(entries.items()) if i != "A"] == [
        ("B", "promoted", 4, ()),
        ("C", "promoted", 4, ()),
    ]


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


@pytest.mark.long
def test_a_replacement_that_a_cherry_pick_brought_back_is_not_added_again_when_its_replay_is(
    make_story: MakeStory,
) -> None:
    """The copied files hold the replacement; the tombstones of what it replaced went with the rollback."""
    story = make_story()
    before = story.head().snapshot_id
    replay = story.a_replay("A", by="A2")
    story.restate(replay)
    rolled_back_and_cherry_picked(story, before)

    result = story.restate(replay)

    assert (result.succeeded, result.replacement_withheld) == (True, None)
    wanted = of_batches("A2", rows=3)
    wanted.update(STRANGE)
    story.check_reads(wanted)
    assert story.states() == {"A": "replaced", "A2": "promoted"}


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
