"""An Undo meets others: its rows are all there, or it is refused; nobody loses a row that was said to be back."""

import pytest
from lethe.base.errors import UnknownCommitState
from lethe.contract.result import RequestResult
from lethe_spark.commit import ledger_commit
from pyspark.sql import SparkSession

from tests.spark.support.built_once import built_once
from tests.spark.support.story import Story, local, of_batches
from tests.support.builders import a_request
from tests.support.lake import Lake


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake) -> Story:
    """Batches A, B and D are in the table; A was reverted."""
    story = Story.begin(spark, lake)
    story.put("A", "B", "D")
    story.consolidate("A", "B", "D")
    story.revert("A")
    return story


def test_a_vacuum_that_has_written_its_files_without_the_rows_does_not_commit_them_after_an_undo(story: Story) -> None:
    """The ledger is then as empty as the vacuum meant to leave it; its files would lose the rows for good."""
    undone: list[RequestResult] = []

    vacuumed = story.vacuum(before_commit=lambda: undone.append(story.undo()))

    assert (undone[0].succeeded, vacuumed.outcome, vacuumed.rows_purged) == (True, "NothingToDo", 0)
    story.check_reads(of_batches("A", "B", "D"))
    assert story.data_folder() == {local(p) for p in story.files()}  # what the vacuum wrote in vain is gone


def test_an_undo_that_a_vacuum_overtakes_is_refused(story: Story) -> None:
    """The Undo was planned while A's rows were there; when it commits they are purged, and it would only say that they are
    back."""
    undone = story.undo(before_commit=lambda: story.vacuum())

    assert (undone.succeeded, undone.reason) == (False, "AlreadyPurged")
    story.check_reads(of_batches("B", "D"))


@pytest.mark.long
def test_an_undo_that_a_partial_vacuum_overtakes_is_refused(story: Story) -> None:
    """The tombstone is still active; half of its rows are gone."""
    undone = story.undo(before_commit=lambda: story.vacuum(max_bytes=1))

    assert (undone.succeeded, undone.reason) == (False, "AlreadyPurged")
    story.check_reads(of_batches("B", "D"))


def test_an_undo_does_not_overrule_a_second_revert_that_came_first(story: Story) -> None:
    """Between its plan and its commit somebody else takes A back as well: to remove the tombstone would undo both."""
    undone = story.undo(before_commit=lambda: story.revert("A", name="second"))

    assert (undone.succeeded, undone.reason) == (False, "HeldByAnother")
    assert "ns/second" in undone.message
    story.check_reads(of_batches("B", "D"))


@pytest.mark.long
def test_an_undo_does_not_double_a_batch_that_was_replaced_meanwhile(story: Story) -> None:
    """Between its plan and its commit A2 takes the place of A: both would be seen."""
    undone = story.undo(before_commit=lambda: story.replay("A", by="A2"))

    assert (undone.succeeded, undone.reason) == (False, "AlreadyReplaced")
    story.check_reads(of_batches("B", "D") + of_batches("A2", rows=3))


@pytest.mark.long
def test_one_undo_by_two_runs_at_one_moment_is_done_once(story: Story) -> None:
    theirs: list[RequestResult] = []

    mine = story.undo(before_commit=lambda: theirs.append(story.undo()))

    assert mine == theirs[0]
    story.check_reads(of_batches("A", "B", "D"))


@pytest.mark.long
def test_two_undos_of_one_revert_take_it_back_once(story: Story) -> None:
    mine = story.undo(name="mine", before_commit=lambda: story.undo(name="theirs"))

    assert (mine.succeeded, mine.reason) == (False, "NotUndoable")
    story.check_reads(of_batches("A", "B", "D"))


@pytest.mark.long
def test_rows_that_arrive_during_an_undo_are_seen(story: Story) -> None:
    """The appended rows are no reason to arm the tombstone that is being taken away."""
    story.undo(before_commit=lambda: story.append_as_foreign_writer("A"))

    assert story.rows_at()[("A", 500, 1)] == 1
    story.check_reads()


@pytest.mark.long
def test_the_rows_that_a_replay_wrote_in_vain_leave_the_storage(story: Story) -> None:
    """Another replay of the same batch came first."""
    mine = story.a_replay("D", by="M", name="mine")
    theirs = story.a_replay("D", by="T", name="theirs")

    refused = story.restate(mine, before_commit=lambda: story.restate(theirs))

    assert refused.reason == "AlreadyReplaced"
    assert story.data_folder() == {local(p) for p in story.files()}
    story.check_reads(of_batches("B") + of_batches("T", rows=3))


@pytest.mark.long
def test_files_of_a_commit_in_doubt_stay_in_storage(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog's answer to the commit is lost and the table's history cannot be read: nobody knows whether it landed.
    It did."""
    really, lost = ledger_commit.commit, []

    def commit_and_lose_the_answer(*arguments: object, **named: object) -> int:
        snapshot_id = really(*arguments, **named)  # type: ignore[arg-type]
        if not lost:
            lost.append(snapshot_id)
            raise UnknownCommitState("CommitStateUnknown", "the answer is lost")
        return snapshot_id

    monkeypatch.setattr(ledger_commit, "commit", commit_and_lose_the_answer)

    result = story.restate(a_request("mine", "Replay", batch_ids=("D",), replacement=story.replacement("M")))

    assert (result.succeeded, result.snapshot_id) == (True, lost[0])
    story.check_reads(of_batches("B") + of_batches("M", rows=3))


def test_files_of_a_refused_request_stay_if_an_attempt_to_commit_them_is_in_doubt(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit may still arrive at the catalog, which then accepts it if it does not see the other one."""
    mine = story.a_replay("D", by="M", name="mine")
    theirs = story.a_replay("D", by="T", name="theirs")
    really, lost = ledger_commit.commit, []

    def another_commits_and_the_answer_is_lost(*arguments: object, **named: object) -> int:
        if not lost:
            lost.append(True)
            story.restate(theirs)
            raise UnknownCommitState("CommitStateUnknown", "the answer is lost")
        return really(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(ledger_commit, "commit", another_commits_and_the_answer_is_lost)

    refused = story.restate(mine)

    assert refused.reason == "AlreadyReplaced"
    assert story.data_folder() > {local(p) for p in story.files()}
    story.check_reads(of_batches("B") + of_batches("T", rows=3))
