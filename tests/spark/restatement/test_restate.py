"""Restatement: batches are taken back or replaced in one snapshot, once, and for ever."""

from collections import Counter
from pathlib import Path

import pytest
from lethe.base.errors import LedgerError
from lethe.contract.run import Replacement
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.built_once import built_once
from tests.spark.support.story import Story, avro, local, of_batches
from tests.support.builders import a_request
from tests.support.lake import Lake


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake) -> Story:
    """Batches A, B and D are in the table."""
    story = Story.begin(spark, lake)
    story.put("A", "B", "D")
    story.consolidate("A", "B", "D")
    return story


def test_a_revert_takes_its_batches_out_of_sight_and_touches_no_data_file(story: Story) -> None:
    before = story.files()

    result = story.revert("A", "D", reason="late", evict_by_seconds=60)

    assert (result.succeeded, result.rows_deleted, result.tombstones_added) == (True, 8, 2)
    assert result.snapshot_id == story.head().snapshot_id
    assert len(story.snapshots()) == 2
    assert story.files() == before
    story.check_reads(of_batches("B"))
    tombstones = {t["id"]: t for t in avro(story.keys()["tombstone.file"])}
    assert set(tombstones) == {"A", "D"}
    batch_column = story.table().schema().find_field("batch_id").field_id
    assert {t["namespace"] for t in tombstones.values()} == {batch_column}
    assert {t["meta"]["reason"] for t in tombstones.values()} == {"late"}
    assert {(t["evictBy"] - t["addedOn"]).total_seconds() for t in tombstones.values()} == {60}
    keys = story.keys()
    assert [keys[f"tombstone.metrics.{k}.count"] for k in ("added", "deleted", "total")] == ["2", "0", "2"]


def test_a_replay_shows_the_new_batch_and_hides_the_old_one_in_one_and_the_same_snapshot(story: Story) -> None:
    """There is no moment at which a reader sees both, or neither."""
    result = story.replay("A", by="A2")

    assert (result.rows_deleted, result.rows_added) == (4, 3)
    after, before = story.snapshots()
    assert result.snapshot_id == after.snapshot_id
    story.check_reads(of_batches("B", "D") + of_batches("A2", rows=3))
    assert story.rows_at(before.snapshot_id) == of_batches("A", "B", "D")
    assert story.states() == {"A": "replaced", "A2": "promoted", "B": "promoted", "D": "promoted"}
    assert (
        story.ledger().batches["A2"].objects == ()
    )  # the replacement's folder is its producer's, retention has no say


def test_unknown_ids_are_reported_even_if_they_sort_between_two_others(story: Story) -> None:
    """The bounds of the files say that C might be there; the files say that it is not."""
    story.append_as_foreign_writer("foreign")

    result = story.revert("A", "C", "foreign", "zzz")

    assert (result.succeeded, result.unknown_batch_ids) == (True, ("C", "zzz"))
    assert story.states().items() >= {"C": "reverted", "zzz": "reverted", "foreign": "reverted"}.items()
    story.check_reads(of_batches("B", "D"))


@pytest.mark.long
def test_a_batch_reverted_before_it_arrived_is_not_promoted_and_counted_as_withheld(story: Story) -> None:
    """It waited in the buffer, or comes later: either way its rows were taken back before anybody saw them."""
    story.revert("late")
    story.put("late", "E")

    result = story.consolidate("late", "E")

    assert (result.batches_promoted, result.batches_withheld) == (1, 1)
    story.check_reads(of_batches("A", "B", "D", "E"))
    alone = story.consolidate("late")
    assert (alone.outcome, alone.batches_withheld) == ("AlreadyCommitted", 1)


def test_a_batch_replaced_while_it_waited_in_the_buffer_is_not_doubled_by_its_replacement(story: Story) -> None:
    """E2 is added in its place while the table does not know E yet; promoted afterwards, both would be seen."""
    story.put("E")
    story.replay("E", by="E2")

    story.consolidate("E")

    story.check_reads(of_batches("A", "B", "D") + of_batches("E2", rows=3))


@pytest.mark.long
def test_a_request_applied_again_returns_its_first_result_and_commits_nothing(story: Story) -> None:
    """GitOps creates a finished Restatement again after its TTL; even under another run id."""
    request = story.a_replay("A", by="A2")
    first = story.restate(request)

    again = story.run(story.restatement(request, run_id="f" * 32))

    assert (again.outcome, again.requests, again.snapshot_id) == ("AlreadyCommitted", (first,), None)
    assert first.snapshot_id == story.head().snapshot_id
    assert len(story.snapshots()) == 2


@pytest.mark.long
def test_a_request_that_is_refused_adds_nothing_and_does_not_hold_up_the_next(story: Story) -> None:
    """A second replacement of A would double its rows."""
    story.replay("A", by="A2")
    doubling, fine = story.a_replay("A", by="A3", name="doubling"), a_request("fine", batch_ids=["B"])

    result = story.run(story.restatement(doubling, fine))

    refused, done = result.requests
    assert (refused.succeeded, refused.reason, refused.snapshot_id) == (False, "AlreadyReplaced", None)
    assert "Replay 'A2' instead" in refused.message
    assert (done.succeeded, result.outcome) == (True, "Committed")
    story.check_reads(of_batches("D") + of_batches("A2", rows=3))
    assert "A3" not in story.states()


def test_rows_without_a_batch_id_stay_through_every_restatement(story: Story) -> None:
    story.append_as_foreign_writer("A", None, None)

    story.revert("A")

    story.check_reads(of_batches("B", "D") + Counter({(None, 501, 1): 1, (None, 502, 1): 1}))


REPLACEMENTS = {
    "in the buffer": ("ReplacementInBuffer", "Put it elsewhere"),
    "not finished": ("ReplacementIncomplete", "_SUCCESS"),
    "damaged": ("UnreadableFile", "part-0.parquet"),
    "of another kind of storage": ("UnsupportedScheme", "expected an s3://, gs://, abfss:// or file:// URI"),
}


@pytest.mark.parametrize("what", some(REPLACEMENTS, "in the buffer"))
def test_a_replacement_that_cannot_be_used_takes_nothing_back(story: Story, what: str) -> None:
    """Hiding A without showing its replacement would be half a replay."""
    request = story.a_replay("A", by="A2")
    assert request.replacement is not None
    folder = request.replacement.uri
    match what:
        case "in the buffer":
            folder = f"{story.buffer.uri}/batch_id=A2"
        case "not finished":
            (Path(local(folder)) / "_SUCCESS").unlink()
        case "damaged":
            (Path(local(folder)) / "part-0.parquet").write_bytes(b"PAR1")
        case _:
            folder = "hdfs://lake/restated/A2"
    request = request.model_copy(update={"replacement": Replacement(batch_id="A2", uri=folder)})

    result = story.restate(request)

    reason, text = REPLACEMENTS[what]
    assert (result.succeeded, result.reason, len(story.snapshots())) == (False, reason, 1)
    assert text in result.message
    assert result.message.startswith("Restatement ns/replay: spec.replacement.uri ") or reason == "UnsupportedScheme"
    story.check_reads(of_batches("A", "B", "D"))


@pytest.mark.long
def test_a_damaged_ledger_fails_the_run_and_not_the_request(story: Story) -> None:
    """The request is as good as ever: it is carried out once the ledger is mended."""
    path = Path(local(story.keys()["lethe.ledger"]))
    content = path.read_bytes()
    path.write_bytes(content[:50])

    with pytest.raises(LedgerError, match="LedgerUnreadable"):
        story.revert("A")

    path.write_bytes(content)
    assert story.revert("A").succeeded
