"""Changes by keys meet others between their search and their commit: no older row with one of the keys is left, wherever it lies
by then, no newer one goes, and whoever reads sees all of the changes or none."""

from collections import Counter

import lethe
import pytest
from lethe.base.errors import ConflictError
from lethe.contract.result import RequestResult, RunResult
from lethe_spark.commit import group_commit
from pyspark.sql import SparkSession

from tests.spark.erasure.test_races import left_by
from tests.spark.parameters import VERSION_3, moments
from tests.spark.support.built_once import built_once
from tests.spark.support.changes import SOME, Changing, changed, delete, upsert
from tests.spark.support.erases import row
from tests.spark.support.story import Story, of_arrow, of_batches
from tests.support.builders import a_request
from tests.support.lake import Lake

STEPS = ["after_write", "after_search", "after_erase", "before_commit"]
LATE = ["after_search", "before_commit"]
# Rows that batch E brings, too, and one that it does not.
OF_E = (upsert(row("E", 0)), delete(row("E", 1)), upsert(row("A", 0)))


@pytest.fixture(params=[2, 3], ids=["v2", "v3"])
@built_once
def story(spark: SparkSession, lake: Lake, request: pytest.FixtureRequest) -> Changing:
    story = Story.begin(spark, lake)
    return Changing(story.spark, story.lake, story.name, story.partition_by, story.catalog, request.param).filled()


@moments(STEPS, (2, "before_commit"))
def test_rows_that_a_consolidation_promotes_meanwhile_are_older_and_go(story: Changing, step: str) -> None:
    """What is committed first is older."""
    story.put("E")

    result = story.change(*OF_E, **{step: lambda: story.consolidate("E")})

    assert (result.succeeded, result.rows_erased, result.rows_added) == (True, 3, 2)
    story.check_reads(changed(OF_E, "C1", ("A", "B", "D", "E")))


@moments(["after_write", "before_commit"])
def test_rows_that_a_consolidation_promotes_afterwards_are_newer_and_stay(story: Changing, step: str) -> None:
    """Though it had written them before."""
    story.put("E")

    story.consolidate("E", **{step: lambda: story.change(*OF_E)})

    story.check_reads(changed(OF_E, "C1") + of_batches("E"))


@pytest.mark.long
def test_a_batch_that_does_not_concern_them_costs_no_second_writing(
    story: Changing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "WRITES", 1)
    story.put("E")

    result = story.change(*SOME, before_commit=lambda: story.consolidate("E"))

    assert (result.rows_erased, result.rows_added) == (3, 3)
    story.check_reads(changed(SOME, "C1", ("A", "B", "D", "E")))


@moments(LATE, (3, "after_search"))
def test_rows_that_a_compaction_moves_meanwhile_are_found_where_they_are_then(story: Changing, step: str) -> None:
    result = story.change(*SOME, **{step: story.compact})

    assert result.rows_erased == 3
    assert story.physical() == changed(SOME, "C1")
    story.check_reads(changed(SOME, "C1"))


@moments(LATE)
def test_a_vacuum_that_comes_first_takes_its_rows_and_the_changes_the_others(story: Changing, step: str) -> None:
    story.revert("A")

    result = story.change(*SOME, **{step: story.vacuum})

    assert (result.succeeded, result.rows_erased) == (True, 2)
    assert story.physical() == changed(SOME, "C1", ("B", "D"))
    story.check_reads(changed(SOME, "C1", ("B", "D")))


@moments(["after_write", "before_commit"])
def test_a_vacuum_that_changes_overtake_does_not_bring_the_rows_back(story: Changing, step: str) -> None:
    """The files that it has written hold them."""
    story.revert("A")

    vacuumed = story.vacuum(**{step: lambda: story.change(*SOME)})

    assert vacuumed.outcome == "Committed"
    assert story.physical() == changed(SOME, "C1", ("B", "D"))
    story.check_reads(changed(SOME, "C1", ("B", "D")))


@moments(LATE, (3, "after_search"))
def test_of_two_changes_at_one_moment_the_later_commit_is_the_newer(story: Changing, step: str) -> None:
    key = row("A", 0)

    mine = story.change(upsert(key, day=1), by="C1", **{step: lambda: story.change(upsert(key, day=2), by="C2")})

    assert mine.rows_erased == 1  # that of the other
    story.check_reads(of_batches("A", "B", "D") - Counter([key]) + Counter([("C1", key[1], 1)]))


@moments(LATE, (2, "before_commit"))
def test_changes_that_another_run_carries_out_at_the_same_moment_are_made_once(story: Changing, step: str) -> None:
    """Else the second would take the rows of the first for older ones."""
    request = story.a_change(*SOME)
    theirs: list[RunResult] = []
    again = story.restatement(request).model_copy(update={"run_id": "f" * 32})

    mine = story.run(story.restatement(request), **{step: lambda: theirs.append(story.run(again))})

    assert (mine.outcome, mine.requests) == ("AlreadyCommitted", theirs[0].requests)
    assert left_by(story, story.restatement(request).run_id) == []
    story.check_reads(changed(SOME, "C1"))


@moments(LATE)
def test_a_concurrent_undo_restores_all_rows_except_those_with_their_keys(story: Changing, step: str) -> None:
    story.revert("A")
    undone: list[RequestResult] = []

    result = story.change(*SOME, **{step: lambda: undone.append(story.undo())})

    assert (result.succeeded, undone[0].succeeded) == (True, True)
    story.check_reads(changed(SOME, "C1"))


@VERSION_3
def test_a_reader_at_any_step_sees_all_of_the_changes_or_none(story: Changing) -> None:
    """Never a row and the one that stands for it, never neither: also not for one moment between two snapshots."""
    before, after = of_batches("A", "B", "D"), changed(SOME, "C1")
    seen = []

    def read() -> None:
        seen.append((of_arrow(lethe.scan(story.full_name).to_arrow()), story.physical()))

    at = dict.fromkeys(["after_list", *STEPS, "after_commit"], read)
    snapshots = len(story.snapshots())
    story.change(*SOME, **at)

    assert seen == [(before, before)] * 5 + [(after, after)]
    assert len(story.snapshots()) == snapshots + 1
    story.check_reads(after)


@pytest.mark.long
def test_rows_that_keep_moving_are_left_to_a_later_run_and_nothing_is_left_over(
    story: Changing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "WRITES", 1)
    request = story.a_change(*SOME)

    with pytest.raises(ConflictError, match="carried out requests of this group or replaced the files"):
        story.restate(request, before_commit=story.compact)

    assert left_by(story, story.restatement(request).run_id) == []
    story.check_reads(of_batches("A", "B", "D"))


@pytest.mark.long
def test_the_whole_group_is_planned_again(story: Changing) -> None:
    """A batch that another run replaces meanwhile is not replaced twice; the changes find the rows of that replacement."""
    requests = (story.a_change(upsert(row("A2", 0)), delete(row("B", 0))), a_request("revert", batch_ids=["D"]))

    result = story.run(story.restatement(*requests), before_commit=lambda: story.replay("A", by="A2"))

    assert {r.group_size for r in result.requests} == {2}
    wanted = of_batches("B") + of_batches("A2", rows=3) - Counter([row("A2", 0), row("B", 0)])
    story.check_reads(wanted + Counter([("C1", *row("A2", 0)[1:])]))
