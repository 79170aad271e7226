"""A group of Restatements is one commit; each has its own result, and a bad one is set aside."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.base.errors import TransientError
from lethe.contract.result import RunResult
from lethe.contract.run import Replacement, RestatementRequest
from pyspark.sql import SparkSession

from tests.spark.support.built_once import built_once
from tests.spark.support.story import Story, local, of_batches, results_by_name
from tests.support.builders import a_request, ago
from tests.support.lake import Lake


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake) -> Story:
    """Batches A, B, C and D are in the table."""
    story = Story.begin(spark, lake)
    story.put("A", "B", "C", "D")
    story.consolidate("A", "B", "C", "D")
    return story


def group(story: Story, *requests: RestatementRequest, **at: Callable[[], object]) -> RunResult:
    return story.run(story.restatement(*requests), **at)


def reasons(result: RunResult) -> dict[str, str]:
    return {name: r.reason for name, r in results_by_name(result).items()}


def file_of(request: RestatementRequest) -> Path:
    assert request.replacement is not None
    return Path(local(request.replacement.uri)) / "part-0.parquet"


def an_undo(of: str, name: str = "undo") -> RestatementRequest:
    return a_request(name, "Undo", batch_ids=(), undoes=f"ns/{of}/0")


def test_a_group_is_one_snapshot_with_all_its_replacements_in_files_that_they_share(story: Story) -> None:
    requests = [
        a_request("revert", batch_ids=["A"]),
        story.a_replay("B", by="B2", name="first"),
        story.a_replay("C", by="C2", name="second", rows=2),
    ]

    result = group(story, *requests)

    assert len(story.snapshots()) == 2
    assert (result.outcome, result.snapshot_id, result.rows_added) == ("Committed", story.head().snapshot_id, 5)
    assert [r.name for r in result.requests] == ["ns/revert", "ns/first", "ns/second"]
    counts = [(r.rows_deleted, r.rows_added, r.group_size, r.snapshot_id) for r in result.requests]
    assert counts == [(4, n, 3, result.snapshot_id) for n in (0, 3, 2)]
    story.check_reads(of_batches("D") + of_batches("B2", rows=3) + of_batches("C2", rows=2))
    assert {"B2", "C2"} in [set(ids) for ids in story.files().values()]
    for request in requests:
        assert story.ledger().requests[request.key].result["groupSize"] == 3
        assert story.ledger().requests[request.key].result["snapshotId"] == result.snapshot_id


def test_a_replay_of_a_replay_and_an_undo_of_a_revert_are_carried_out_in_their_order(story: Story) -> None:
    """Whatever the order in which they are listed, and in which second they were made."""
    third = story.a_replay("B3", by="B4", name="third", creation_time=ago(hours=2))
    second = story.a_replay("B2", by="B3", name="second", creation_time=ago(hours=1))

    result = group(
        story,
        an_undo("revert", "a-undo"),
        third,
        second,
        story.a_replay("B", by="B2", name="first"),
        a_request("revert", batch_ids=["A"]),
    )

    assert set(reasons(result).values()) == {""}
    assert len(story.snapshots()) == 2
    story.check_reads(of_batches("A", "C", "D") + of_batches("B4", rows=3))
    states = {"A": "promoted", "B": "replaced", "B2": "replaced", "B3": "replaced", "B4": "promoted"}
    assert story.states() == states | {"C": "promoted", "D": "promoted"}


def test_bad_requests_are_set_aside_each_with_its_own_reason_and_the_others_go_on(story: Story) -> None:
    story.put("E", "F", "G", "H")
    story.consolidate("E", "F", "G", "H")
    story.replay("D", by="D2", name="before")
    damaged, incomplete, empty, other, good = (
        story.a_replay(batch, by=f"{batch}2", name=name)
        for batch, name in zip("EFGHA", ("damaged", "incomplete", "empty", "other", "good"), strict=True)
    )
    file_of(damaged).write_bytes(b"PAR1")
    (file_of(incomplete).parent / "_SUCCESS").unlink()
    file_of(empty).unlink()
    pq.write_table(pa.table({"v": ["a text"], "day": pa.array([1], pa.int32())}), file_of(other))

    result = group(
        story,
        damaged,
        incomplete,
        empty,
        other,
        story.a_replay("I", by="B", name="in the table"),
        story.a_replay("D", by="D3", name="replaced"),
        an_undo("nobody"),
        good,
        a_request("revert", batch_ids=["C", "unknown"]),
    )

    assert reasons(result) == {
        "damaged": "UnreadableFile",
        "incomplete": "ReplacementIncomplete",
        "empty": "ReplacementEmpty",
        "other": "SchemaMismatch",
        "in the table": "ReplacementAlreadyPromoted",
        "replaced": "AlreadyReplaced",
        "undo": "UnknownRestatement",
        "good": "",
        "revert": "",
    }
    assert result.outcome == "Committed"
    assert not any(r.again for r in result.requests)
    assert [results_by_name(result)[n].group_size for n in ("good", "revert", "damaged")] == [2, 2, 0]
    assert results_by_name(result)["damaged"].message.startswith("Restatement ns/damaged: spec.replacement.uri file://")
    assert results_by_name(result)["revert"].unknown_batch_ids == ("unknown",)
    assert len(story.snapshots()) == 4
    story.check_reads(of_batches("B", "E", "F", "G", "H") + of_batches("D2", "A2", rows=3))
    assert {local(p) for p in story.files()} == story.data_folder()  # no row of a bad one was left anywhere


@pytest.mark.long
def test_the_ids_of_a_whole_group_are_searched_in_the_files_of_other_writers_in_one_pass(story: Story) -> None:
    story.append_as_foreign_writer("foreign", "other")

    result = group(
        story,
        a_request("one", batch_ids=["foreign", "nobody"]),
        a_request("two", batch_ids=["other", "nobody"]),
        story.a_replay("A", by="A2", name="three"),
        a_request("four", batch_ids=["A2"]),
    )

    assert [r.unknown_batch_ids for r in result.requests] == [("nobody",), (), (), ()]
    assert [r.already_deleted_batch_ids_count for r in result.requests] == [0, 1, 0, 0]
    story.check_reads(of_batches("B", "C", "D"))


@pytest.mark.long
def test_a_group_of_nothing_but_refused_requests_commits_nothing(story: Story) -> None:
    result = group(story, an_undo("nobody"), story.a_replay("A", by="B"))

    assert (result.outcome, result.reason, len(story.snapshots())) == ("Failed", "UnknownRestatement", 1)


# --- not now --------------------------------------------------------------------------------------------------------


def test_a_replacement_that_cannot_be_had_now_waits_with_what_builds_on_it_and_the_others_go_on(story: Story) -> None:
    """C2 alone would be seen beside A, which is still there for the replacement that did not come."""
    first, second = story.a_replay("A", by="A2", name="first"), story.a_replay("A2", by="C2", name="second")
    other, revert = story.a_replay("B", by="B2", name="other"), a_request("revert", batch_ids=["D"])
    content = file_of(first).read_bytes()

    result = group(story, second, first, other, revert, after_list=file_of(first).unlink)

    assert reasons(result) == {"first": "ObjectGone", "second": "WaitingForRestatement", "other": "", "revert": ""}
    assert [r.again for r in result.requests] == [True, True, False, False]
    assert (result.outcome, len(story.snapshots())) == ("Committed", 2)
    story.check_reads(of_batches("A", "C") + of_batches("B2", rows=3))
    file_of(first).write_bytes(content)
    again = group(story, second, first, other, revert)
    assert [r.succeeded for r in again.requests] == [True] * 4
    assert [r.group_size for r in again.requests] == [2] * 4
    story.check_reads(of_batches("C") + of_batches("B2", "C2", rows=3))


@pytest.mark.long
def test_a_group_of_which_nothing_can_be_carried_out_now_is_tried_again_as_a_whole(story: Story) -> None:
    replay = story.a_replay("A", by="A2")

    with pytest.raises(TransientError, match=r"ObjectGone: Restatement ns/replay: spec\.replacement\.uri file://.*A2"):
        group(story, replay, after_list=file_of(replay).unlink)

    assert len(story.snapshots()) == 1


# --- the same id, the same request ----------------------------------------------------------------------------------


@pytest.mark.long
def test_of_two_replays_by_one_id_the_older_is_carried_out(story: Story) -> None:
    older = story.a_replay("A", by="X", name="older", creation_time=ago(hours=1))
    younger = a_request("younger", "Replay", batch_ids=["B"], replacement=older.replacement)

    result = group(story, younger, older)

    assert reasons(result) == {"younger": "ReplacementAlreadyPromoted", "older": ""}
    story.check_reads(of_batches("B", "C", "D") + of_batches("X", rows=3))


@pytest.mark.long
def test_of_many_replays_of_one_batch_the_oldest_is_carried_out_that_can_be_used(story: Story) -> None:
    """However many before it cannot."""
    replays = [story.a_replay("A", by=f"A{n}", name=f"r{n}") for n in range(8)]
    for bad in replays[:6]:
        file_of(bad).write_bytes(b"PAR1")

    result = group(story, *replays)

    assert list(reasons(result).values()) == ["UnreadableFile"] * 6 + ["", "AlreadyReplaced"]
    story.check_reads(of_batches("B", "C", "D") + of_batches("A6", rows=3))
    assert {local(p) for p in story.files()} == story.data_folder()


@pytest.mark.long
def test_of_two_replays_by_one_id_the_younger_is_carried_out_if_the_older_cannot_be(story: Story) -> None:
    """What was written for the group before that was known holds no row of the younger one's."""
    nowhere = Replacement(batch_id="X", uri=f"file://{story.lake.home}/nothing")
    older = a_request("older", "Replay", batch_ids=["A"], replacement=nowhere, creation_time=ago(hours=1))
    other = story.a_replay("C", by="C2", name="other")

    result = group(story, story.a_replay("B", by="X", name="younger"), older, other)

    assert reasons(result) == {"younger": "", "older": "ReplacementIncomplete", "other": ""}
    assert len(story.snapshots()) == 2
    story.check_reads(of_batches("A", "D") + of_batches("X", "C2", rows=3))
    assert {local(p) for p in story.files()} == story.data_folder()


@pytest.mark.long
def test_a_group_that_overlaps_with_an_earlier_one_does_the_rest(story: Story) -> None:
    """Each run may group the requests differently. A repeated request gets its first result."""
    one, two, three = (story.a_replay(b, by=f"{b}2", name=f"replay-{b}") for b in "ABC")
    first = group(story, one, two)

    second = group(story, two, three)

    assert results_by_name(second)["replay-B"] == results_by_name(first)["replay-B"]
    assert [r.group_size for r in second.requests] == [2, 1]
    assert second.requests[1].snapshot_id == second.snapshot_id == story.head().snapshot_id
    assert group(story, one, two, three).outcome == "AlreadyCommitted"
    story.check_reads(of_batches("D") + of_batches("A2", "B2", "C2", rows=3))


@pytest.mark.long
def test_rows_of_every_replacement_of_a_large_group_come_in_once(story: Story) -> None:
    batches = [f"b{n:02}" for n in range(40)]
    story.put(*batches)
    story.consolidate(*batches)

    result = group(story, *(story.a_replay(b, by=f"{b}-2", name=b) for b in batches))

    assert {r.group_size for r in result.requests} == {40}
    wanted = sum((of_batches(f"{b}-2", rows=3) for b in batches), Counter())
    story.check_reads(of_batches("A", "B", "C", "D") + wanted)
