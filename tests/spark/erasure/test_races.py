"""An Erase meets others between its search and its commit: what it was to take is gone afterwards, wherever it lies by then, and
nothing else is; and nobody who wrote files meanwhile brings it back."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from lethe.base.errors import ConflictError, TransientError
from lethe.contract.result import RequestResult, RunResult
from lethe_spark.commit import group_commit
from pyspark.sql import SparkSession

from tests.spark.parameters import moments
from tests.spark.support.built_once import built_once
from tests.spark.support.erases import Names, but, name_of, row, table_folder
from tests.spark.support.story import Row, Story, of_batches
from tests.support.builders import a_request
from tests.support.lake import Lake

STEPS = ["after_search", "after_erase", "before_commit"]
LATE = STEPS[1:]
GONE = row("B", 1), row("D", 2)


@pytest.fixture(params=[2, 3], ids=["v2", "v3"])
@built_once
def story(spark: SparkSession, lake: Lake, request: pytest.FixtureRequest) -> Names:
    return Names.of(Story.begin(spark, lake), request.param).filled()


def left_by(story: Names, run_id: str) -> list[Path]:
    """The files that a run has written and that still lie in the storage."""
    return [p for p in table_folder(story).rglob(f"data/{run_id}/**/*") if p.is_file() and p.suffix != ".crc"]


@moments(["at_once", "after_search"], (2, "after_search"))
def test_an_erase_waits_for_a_listing_that_is_younger_than_the_last_undo(story: Names, step: str) -> None:
    """A batch lies in the buffer and was reverted before it came: the listing did not count it among those that the Erase waits
    for. The Undo lets it in, after the listing and before the Erase, or during its search."""
    somebody = row("late", 0)
    story.revert("late")
    story.put("late")
    assert story.consolidate("late").batches_withheld == 1
    listed = story.head().snapshot_id
    if step == "at_once":
        story.undo()
    at = {} if step == "at_once" else {step: story.undo}

    spec = story.restatement(story.an_erase(name_of(somebody[1])))
    assert spec.restatement is not None
    restatement = spec.restatement.model_copy(update={"listed_snapshot_id": listed})
    with pytest.raises(
        TransientError, match="an Undo may have allowed more batches to be promoted since the buffer was listed"
    ) as failed:
        story.run(spec.model_copy(update={"restatement": restatement}), **at)
    assert failed.value.reason == "BufferBeingListed"
    assert story.consolidate("late").batches_promoted == 1
    again = restatement.model_copy(update={"listed_snapshot_id": story.head().snapshot_id})
    (result,) = story.run(spec.model_copy(update={"restatement": again, "attempt": 2})).requests

    assert (result.succeeded, result.rows_erased) == (True, 1)
    story.check_reads(but(somebody, batches=("A", "B", "D", "late")))


@moments(STEPS)
def test_rows_that_a_compaction_moves_meanwhile_are_found_where_they_are_then(story: Names, step: str) -> None:
    result = story.erase(*GONE, **{step: story.compact})

    assert (result.succeeded, result.rows_erased) == (True, 2)
    story.check_reads(but(*GONE))


@moments(STEPS, (3, "before_commit"))
def test_rows_that_somebody_appends_meanwhile_are_erased_too_and_other_appends_are_kept(
    story: Names, step: str
) -> None:
    """Whoever asks for an Erase may not know of them."""
    new = ("x", GONE[0][1], 1), ("x", 1, 1)

    result = story.erase(*GONE, **{step: lambda: story.append_by_spark(*new)})

    assert result.rows_erased == 3
    story.check_reads(but(*GONE) + Counter([new[1]]))


@moments(LATE)
def test_an_append_that_does_not_concern_it_costs_no_second_writing(
    story: Names, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "WRITES", 1)

    result = story.erase(*GONE, **{step: lambda: story.append_by_spark(("x", GONE[0][1] + 500_000, 1), ("x", 1, 1))})

    assert result.rows_erased == 2


@moments(STEPS)
def test_a_vacuum_that_comes_first_takes_its_rows_and_the_erase_the_others(story: Names, step: str) -> None:
    story.revert("A")

    result = story.erase(*GONE, row("A", 1), **{step: story.vacuum})

    assert (result.succeeded, result.rows_erased) == (True, 2)
    assert story.physical() == but(*GONE, batches=("B", "D"))
    story.check_reads(but(*GONE, batches=("B", "D")))


@moments(["after_write", "before_commit"], (3, "before_commit"))
def test_a_vacuum_that_an_erase_overtakes_does_not_bring_the_rows_back(story: Names, step: str) -> None:
    """The files that it has written hold them."""
    story.revert("A")

    vacuumed = story.vacuum(**{step: lambda: story.erase(*GONE)})

    assert (vacuumed.outcome, vacuumed.rows_purged >= 4) == ("Committed", True)
    assert story.physical() == but(*GONE, batches=("B", "D"))
    story.check_reads(but(*GONE, batches=("B", "D")))


@pytest.mark.long
def test_a_vacuum_of_a_file_that_had_deletes_already_notices_that_it_got_more(story: Names) -> None:
    story.erase(row("B", 0), name="before")
    story.revert("A")

    story.vacuum(before_commit=lambda: story.erase(*GONE))

    assert story.physical() == but(row("B", 0), *GONE, batches=("B", "D"))


@moments(STEPS, (2, "before_commit"))
def test_an_undo_concurrent_with_an_erase_restores_all_rows_except_the_erased_ones(story: Names, step: str) -> None:
    story.revert("B")
    undone: list[RequestResult] = []

    result = story.erase(*GONE, **{step: lambda: undone.append(story.undo())})

    assert (result.rows_erased, undone[0].succeeded) == (2, True)
    story.check_reads(but(*GONE))


@pytest.mark.long
def test_an_erase_concurrent_with_an_undo_is_not_undone_by_it(story: Names) -> None:
    story.revert("B")

    assert story.undo(before_commit=lambda: story.erase(*GONE)).succeeded

    story.check_reads(but(*GONE))


@moments(STEPS, (3, "after_search"))
def test_a_consolidation_concurrent_with_an_erase_loses_nothing_and_its_rows_are_searched(
    story: Names, step: str
) -> None:
    story.put("E")
    gone = *GONE, row("E", 1)

    result = story.erase(*gone, **{step: lambda: story.consolidate("E")})

    assert result.rows_erased == 3
    story.check_reads(but(*gone, batches=("A", "B", "D", "E")))


@pytest.mark.long
def test_an_erase_does_not_delay_a_concurrent_consolidation(story: Names) -> None:
    story.put("E")

    assert story.consolidate("E", before_commit=lambda: story.erase(*GONE)).batches_promoted == 1

    story.check_reads(but(*GONE, batches=("A", "B", "D", "E")))


@moments(STEPS, (3, "after_search"))
def test_two_erases_at_one_moment_take_both_their_rows_each_counted_once(story: Names, step: str) -> None:
    """A file has one vector at the most: that of the second holds the rows of the first."""
    theirs: list[RequestResult] = []
    other = row("B", 3)

    mine = story.erase(*GONE, **{step: lambda: theirs.append(story.erase(GONE[0], other, name="theirs"))})

    assert (mine.rows_erased, theirs[0].rows_erased) == (1, 2)
    assert story.physical() == but(*GONE, other)
    story.check_reads(but(*GONE, other))


@moments(STEPS)
def test_an_erase_that_another_run_carries_out_at_the_same_moment_is_done_once(story: Names, step: str) -> None:
    request = story.an_erase(*(name_of(v) for _, v, _ in GONE))
    theirs: list[RunResult] = []
    again = story.restatement(request).model_copy(update={"run_id": "f" * 32})

    mine = story.run(story.restatement(request), **{step: lambda: theirs.append(story.run(again))})

    assert (mine.outcome, mine.requests) == ("AlreadyCommitted", theirs[0].requests)
    assert len(story.snapshots()) == 2
    assert left_by(story, story.restatement(request).run_id) == []  # what it wrote in vain
    assert left_by(story, again.run_id) != []
    story.check_reads(but(*GONE))


@moments(LATE)
def test_another_engine_that_deletes_in_the_same_file_meanwhile_is_not_undone(story: Names, step: str) -> None:
    story.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    theirs = row("B", 3)

    story.erase(*GONE, **{step: lambda: story.sql(f"DELETE FROM {{t}} WHERE v = {theirs[1]}")})

    assert story.physical() == but(*GONE, theirs)


@moments(STEPS)
def test_a_replay_concurrent_with_an_erase_adds_its_rows_once_and_its_files_are_searched(
    story: Names, step: str
) -> None:
    gone = *GONE, row("A2", 1)

    result = story.erase(*gone, **{step: lambda: story.replay("A", by="A2")})

    assert result.rows_erased == 3
    story.check_reads(of_batches("B", "D") + of_batches("A2", rows=3) - Counter(gone))


@pytest.mark.long
def test_rows_that_keep_moving_are_left_to_a_later_run_and_nothing_is_left_over(
    story: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "WRITES", 1)
    before = len(story.snapshots())

    with pytest.raises(ConflictError, match="replaced the files with the rows to erase"):
        story.erase(*GONE, before_commit=story.compact)

    assert len(story.snapshots()) == before + 1
    assert left_by(story, story.restatement(story.an_erase("x")).run_id) == []
    story.check_reads(of_batches("A", "B", "D"))


@pytest.mark.long
@pytest.mark.parametrize("format_version", [2, 3])
def test_survivors_written_by_another_partition_spec_are_hidden_by_tombstones_of_before(
    spark: SparkSession, lake: Lake, format_version: int
) -> None:
    """The ledger remembers in which partitions a batch lies; its rows have moved to others."""
    story = Names.of(Story.begin(spark, lake), format_version).filled()
    story.revert("A")
    story.sql("ALTER TABLE {t} ADD PARTITION FIELD bucket(3, v)")

    story.erase(*GONE)

    story.check_reads(but(*GONE, batches=("B", "D")))
    story.revert("B", name="second")
    story.check_reads(but(*GONE, batches=("D",)))


def a_group(story: Names) -> tuple[Callable[..., RunResult], Counter[Row]]:
    requests = (
        story.an_erase(*(name_of(v) for _, v, _ in GONE)),
        a_request("revert", batch_ids=["A"]),
    )
    return lambda **at: story.run(story.restatement(*requests), **at), but(*GONE, batches=("B", "D"))


@moments(STEPS)
def test_the_whole_group_of_an_erase_is_planned_again(story: Names, step: str) -> None:
    run, wanted = a_group(story)

    result = run(**{step: lambda: story.revert("D", name="theirs")})

    assert {r.group_size for r in result.requests} == {2}
    story.check_reads(wanted - of_batches("D"))
