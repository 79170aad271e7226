"""A group meets others, between its plan and its commit: each request is carried out once or refused, and the rest of the
group goes on, whatever was written for it in files that its replacements share.
"""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import lethe
import pytest
from lethe.base.errors import ConflictError
from lethe.contract.result import RunResult
from lethe.contract.run import RestatementRequest
from lethe_spark.commit import group_commit
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.built_once import built_once
from tests.spark.support.story import Story, local, of_batches
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


def group(story: Story, *requests: RestatementRequest, **at: Callable[[], object]) -> RunResult:
    return story.run(story.restatement(*requests), **at)


def reasons(result: RunResult) -> dict[str, str]:
    return {r.name.removeprefix("ns/"): r.reason for r in result.requests}


def nothing_is_left_over(story: Story) -> bool:
    """Whether every data file below the table is one of its live ones."""
    return {local(p) for p in story.files()} == story.data_folder()


@pytest.mark.long
def test_a_foreign_append_during_a_group_is_hidden_or_kept_by_what_it_holds(story: Story) -> None:
    requests = a_request("revert", batch_ids=["A"]), story.a_replay("B", by="B2")

    result = group(story, *requests, before_commit=lambda: story.append_as_foreign_writer("A", "B", "x"))

    assert {r.group_size for r in result.requests} == {2}
    story.check_reads(of_batches("D") + of_batches("B2", rows=3) + Counter({("x", 502, 1): 1}))


@pytest.mark.parametrize("step", some(["after_list", "after_write", "before_commit"], "before_commit"))
def test_two_groups_that_overlap_at_one_moment_carry_out_each_request_once(story: Story, step: str) -> None:
    """The files of the first hold rows of a replacement that the second has brought in: those rows must not come twice,
    and the others in the files must come."""
    only_mine, only_theirs = story.a_replay("A", by="A2", name="mine"), story.a_replay("D", by="D2", name="theirs")
    both = story.a_replay("B", by="B2", name="both")
    theirs: list[RunResult] = []

    mine = group(story, only_mine, both, **{step: lambda: theirs.append(group(story, both, only_theirs))})

    assert set(reasons(mine).values()) | set(reasons(theirs[0]).values()) == {""}
    assert mine.requests[1] == theirs[0].requests[0]
    assert [r.group_size for r in (*mine.requests, *theirs[0].requests)] == [1, 2, 2, 2]
    assert len(story.snapshots()) == 3
    story.check_reads(of_batches("A2", "B2", "D2", rows=3))
    assert nothing_is_left_over(story)


@pytest.mark.long
def test_a_group_that_another_run_carries_out_at_the_same_moment_is_done_once(story: Story) -> None:
    requests = story.a_replay("A", by="A2", name="one"), a_request("two", batch_ids=["B"])
    theirs: list[RunResult] = []

    mine = group(story, *requests, before_commit=lambda: theirs.append(group(story, *requests)))

    assert (mine.outcome, mine.requests, len(story.snapshots())) == ("AlreadyCommitted", theirs[0].requests, 2)
    story.check_reads(of_batches("D") + of_batches("A2", rows=3))
    assert nothing_is_left_over(story)


def test_a_batch_that_another_run_replaces_meanwhile_is_refused_and_the_others_are_written_again(story: Story) -> None:
    """A union of both would show two replacements of A."""
    mine = story.a_replay("A", by="M", name="doubling"), story.a_replay("B", by="B2", name="fine")
    theirs = story.a_replay("A", by="T", name="theirs")

    result = group(story, *mine, before_commit=lambda: story.restate(theirs))

    assert reasons(result) == {"doubling": "AlreadyReplaced", "fine": ""}
    story.check_reads(of_batches("D") + of_batches("T", "B2", rows=3))
    assert nothing_is_left_over(story)


@pytest.mark.long
def test_a_consolidation_that_promotes_a_replaced_batch_meanwhile_does_not_double_it(story: Story) -> None:
    story.put("E")
    requests = story.a_replay("E", by="E2", name="one"), story.a_replay("A", by="A2", name="two")

    result = group(story, *requests, before_commit=lambda: story.consolidate("E"))

    assert [(r.rows_deleted, r.rows_added) for r in result.requests] == [(4, 3), (4, 3)]
    assert [r.unknown_batch_ids_count for r in result.requests] == [0, 0]
    story.check_reads(of_batches("B", "D") + of_batches("E2", "A2", rows=3))


@pytest.mark.long
def test_a_consolidation_that_promotes_the_id_of_a_replacement_meanwhile_sets_that_request_aside(story: Story) -> None:
    story.put("X")
    requests = story.a_replay("A", by="X", name="taken"), story.a_replay("B", by="B2", name="fine")

    result = group(story, *requests, before_commit=lambda: story.consolidate("X"))

    assert reasons(result) == {"taken": "ReplacementAlreadyPromoted", "fine": ""}
    story.check_reads(of_batches("A", "D", "X") + of_batches("B2", rows=3))


@pytest.mark.long
def test_a_replacement_that_was_reverted_before_it_came_stays_out_and_the_rest_comes_in(story: Story) -> None:
    requests = story.a_replay("A", by="A2", name="one"), story.a_replay("B", by="B2", name="two")

    result = group(story, *requests, before_commit=lambda: story.revert("A2"))

    assert [r.rows_added for r in result.requests] == [0, 3]
    story.check_reads(of_batches("D") + of_batches("B2", rows=3))
    assert nothing_is_left_over(story)


@pytest.mark.long
def test_an_undo_that_a_vacuum_overtakes_is_refused_and_the_rest_of_its_group_goes_on(story: Story) -> None:
    story.revert("A", name="before")
    undo = a_request("undo", "Undo", batch_ids=(), undoes="ns/before/0")

    result = group(story, undo, story.a_replay("B", by="B2"), before_commit=lambda: story.vacuum())

    assert reasons(result) == {"undo": "AlreadyPurged", "replay": ""}
    story.check_reads(of_batches("D") + of_batches("B2", rows=3))


@pytest.mark.long
def test_a_vacuum_that_a_group_overtakes_keeps_what_the_group_has_shown_again(story: Story) -> None:
    story.revert("A", "D", name="before")
    undo = a_request("undo", "Undo", batch_ids=(), undoes="ns/before/0")
    replay = story.a_replay("B", by="B2")

    story.vacuum(before_commit=lambda: group(story, undo, replay))

    story.check_reads(of_batches("A", "D") + of_batches("B2", rows=3))
    story.vacuum(key="2")
    story.check_reads(of_batches("A", "D") + of_batches("B2", rows=3))


@pytest.mark.long
def test_a_group_whose_files_are_outdated_again_and_again_gives_up_and_leaves_nothing(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again later, as after any lost race."""
    monkeypatch.setattr(group_commit, "WRITES", 1)
    mine = story.a_replay("A", by="M", name="doubling"), story.a_replay("B", by="B2", name="fine")
    theirs = story.a_replay("A", by="T", name="theirs")

    with pytest.raises(ConflictError, match="ReplacementsMoved"):
        group(story, *mine, before_commit=lambda: story.restate(theirs))

    story.check_reads(of_batches("B", "D") + of_batches("T", rows=3))
    assert nothing_is_left_over(story)


# --- a reader beside ------------------------------------------------------------------------------------------------


@dataclass
class Reader:
    """Reads the whole table again and again in a thread of its own, and keeps how many rows of each batch a reading found."""

    full_name: str
    seen: list[Counter[str]] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    news: threading.Condition = field(default_factory=threading.Condition)
    stopped: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Reader":
        self.thread = threading.Thread(target=self._work)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.thread.join(timeout=120)

    def _work(self) -> None:
        while not self.stopped.is_set():
            try:
                found = Counter(lethe.scan(self.full_name).to_arrow()["batch_id"].to_pylist())
            except Exception as e:
                self.failures.append(e)
            else:
                self.seen.append(found)
            with self.news:
                self.news.notify_all()
            if self.failures:
                return

    def wait_for(self, rows: Counter[str]) -> None:
        """Until a reading has found just these."""
        with self.news:
            there = self.news.wait_for(lambda: rows in self.seen[-1:] or self.failures, timeout=120)
        assert there
        assert not self.failures


@pytest.mark.long
def test_a_reader_in_a_loop_never_sees_both_versions_of_a_batch_or_neither(story: Story) -> None:
    """While groups replace every batch, again and again."""
    slots, versions = [f"s{n:02}" for n in range(6)], 3
    story.put(*(f"{s}.0" for s in slots))
    story.consolidate(*(f"{s}.0" for s in slots))

    def rows(version: int) -> Counter[str]:
        of_each = {f"{s}.{version}": 4 if version == 0 else 3 for s in slots}
        return Counter({"A": 4, "B": 4, "D": 4, **of_each})

    with Reader(story.full_name) as reader:
        for v in range(versions):
            reader.wait_for(rows(v))
            replays = (story.a_replay(f"{s}.{v}", by=f"{s}.{v + 1}", name=f"{s}-{v}") for s in slots)
            assert set(reasons(group(story, *replays)).values()) == {""}
        reader.wait_for(rows(versions))

    assert [found for found in reader.seen if found not in [rows(v) for v in range(versions + 1)]] == []
