"""Promises that hold across several requests, runs, people and clusters; each docstring tells what would break it.

What one job does by itself is told beside it, in `test_jobs_restate`, `..._group`, `..._undo`, `..._erase`, `..._id_lists`;
what happens between a plan and its commit in `test_races_*`; what becomes of the objects that ask for it in
tests/unit/operator.
"""

import itertools

import pytest
from lethe.errors import TableError
from lethe.run import RestatementRequest, RunSpec
from pyspark.sql import SparkSession

from tests.builders import a_request
from tests.spark.jobs_support import Story, of_batches
from tests.spark.lake import Lake


@pytest.fixture
def story(spark: SparkSession, lake: Lake) -> Story:
    """Batches A, B and D are in the table."""
    story = Story.begin(spark, lake)
    story.put("A", "B", "D")
    story.consolidate("A", "B", "D")
    return story


# --- taken back, shown again, purged --------------------------------------------------------------------------------


def test_a_batch_shown_again_and_taken_back_again_while_a_vacuum_worked_is_purged_as_it_is_then(story: Story) -> None:
    """A is reverted, and a vacuum writes its files without A. Meanwhile an Undo shows A, somebody appends a row of it, and
    another Revert takes it back. The same ids are deleted as before, and yet what the vacuum wrote is not what has to go: by
    ids alone it would end the tombstone, and the appended row would be seen."""
    story.revert("A")

    def meanwhile() -> None:
        assert story.undo().succeeded
        story.append_as_a_stranger("A")
        assert story.revert("A", name="again").succeeded

    story.vacuum(before_commit=meanwhile)

    story.check_reads(of_batches("B", "D"))
    assert "A" not in itertools.chain(*story.files().values())
    refused = story.undo("again", "undo-again")
    assert (refused.succeeded, refused.reason) == (False, "AlreadyPurged")
    story.check_reads(of_batches("B", "D"))


def test_an_id_restated_again_and_again_is_hidden_once_and_each_says_so(story: Story) -> None:
    """By another Revert, by a list and by a Replay: each succeeds, and none counts what was not left to do."""
    ids = story.lake.home / f"{story.name}.ids"
    ids.write_text("A\nB\nB\nnobody\n")
    story.revert("A", "B", "nobody")

    inline = story.revert("A", "B", "nobody", name="inline")
    listed = story.restate(a_request("listed", batch_ids=(), batch_ids_uri=f"file://{ids}"))
    replay = story.replay("A", by="A2")

    told = [(r.succeeded, r.already_deleted_batch_ids_count) for r in (inline, listed, replay)]
    assert told == [(True, 3), (True, 3), (True, 1)]
    assert {(r.rows_deleted, r.tombstones_added, r.unknown_batch_ids_count) for r in (inline, listed, replay)} == {
        (0, 0, 0)
    }
    story.check_reads(of_batches("D") + of_batches("A2", rows=3))


# --- who comes first ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [("first", "second"), ("second", "first")], ids=" then ".join)
def test_of_a_chain_of_replays_only_the_last_batch_is_seen_whichever_run_comes_first(
    story: Story, order: tuple[str, str]
) -> None:
    """A is replaced by B2, and B2 by C2; both were created in one second, and each has a run of its own. If the second comes
    first, B2 must not come in after it was replaced, and A must go all the same, or two of them would be seen."""
    requests = {
        "first": story.a_replay("A", by="B2", name="first"),
        "second": story.a_replay("B2", by="C2", name="second"),
    }

    results = {name: story.restate(requests[name]) for name in order}

    assert all(r.succeeded for r in results.values())
    came = order[0] == "first"
    assert (results["first"].rows_added, results["first"].replacement_withheld) == (3, None) if came else (0, True)
    story.check_reads(of_batches("B", "D") + of_batches("C2", rows=3))
    story.put("B2")  # nor by the buffer
    assert story.consolidate("B2").batches_promoted == 0
    story.check_reads(of_batches("B", "D") + of_batches("C2", rows=3))


# --- rolled back by somebody else -----------------------------------------------------------------------------------


def seeing_the_head(story: Story, *requests: RestatementRequest) -> RunSpec:
    head = story.head()
    return story.restatement(*requests, seen_snapshot_id=head.snapshot_id, seen_sequence_number=head.sequence_number)


@pytest.mark.parametrize("step", ["", "after_write", "before_commit"], ids=["before", "while written", "at the end"])
def test_a_group_changes_nothing_on_a_table_that_was_rolled_back_under_it(story: Story, step: str) -> None:
    """The operator decides on a group, and then, or while the run works, somebody takes the table back to before E came. Rows
    would be replaced that nobody expects there. None of the group is refused for that: once the head is accepted, all are
    carried out on the table as it is then, once."""
    story.put("E")
    story.consolidate("E")
    replay, revert = story.a_replay("A", by="A2"), a_request("revert", batch_ids=["E"])
    spec, files = seeing_the_head(story, replay, revert), story.data_folder()

    def roll_back() -> None:
        before = story.snapshots()[1].snapshot_id
        story.spark.sql(f"CALL {story.catalog}.system.set_current_snapshot('{story.name}', {before})")

    if not step:
        roll_back()
    with pytest.raises(TableError, match=r"TableRolledBack: .* does not descend from snapshot .* Accept the head"):
        story.run(spec, **({step: roll_back} if step else {}))

    assert story.states() == {"A": "promoted", "B": "promoted", "D": "promoted"}
    assert (story.rows_at(), story.data_folder()) == (of_batches("A", "B", "D"), files)
    accepted = story.run(seeing_the_head(story, replay, revert))
    assert [(r.succeeded, r.group_size) for r in accepted.requests] == [(True, 2)] * 2
    assert story.consolidate("E").batches_withheld == 1
    story.check_reads(of_batches("B", "D") + of_batches("A2", rows=3))
