"""A vacuum in steps: each is a commit, what was finished stays, and whatever comes between costs no row and brings none back."""

from collections import Counter
from collections.abc import Callable

import pytest
from lethe.contract.run import RunSpec
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.sdk.test_increments import by_spark, check_ranges, compact
from tests.spark.support.built_once import built_once
from tests.spark.support.story import ALL_GONE, Row, Story, avro, local, of_batches
from tests.support.lake import Lake
from tests.support.steps import Killed, die


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake) -> Story:
    """Batches A, B and D are in the table, in a common file for each of two days; A and D were reverted, each by itself."""
    story = Story.begin(spark, lake)
    story.put("A", "B", "D")
    story.consolidate("A", "B", "D")
    story.revert("A", name="revert-a")
    story.revert("D", name="revert-d")
    return story


def in_steps(story: Story, key: str = "1", **asked: object) -> RunSpec:
    """A file in each step."""
    return story.vacuuming_so(key, step_bytes=1, **asked)


def commits_of(story: Story, spec: RunSpec) -> list[str | None]:
    """The commits of a run, oldest first: whether each says that there is more to come."""
    keys = [story.keys(s) for s in reversed(story.snapshots())]
    return [k.get("lethe.unfinished") for k in keys if k.get("lethe.run-id") == spec.run_id]


def tombstones(story: Story) -> set[str]:
    return {t["id"] for t in avro(story.keys()["tombstone.file"])}


def in_files(story: Story) -> Counter[str | None]:
    """The rows of each batch that the data files hold, deleted or not."""
    return Counter(b for batches in story.files().values() for b in batches)


def test_each_step_is_a_commit_and_the_result_counts_all_of_them(story: Story) -> None:
    run = in_steps(story)

    result = story.run(run)

    assert (result.outcome, result.steps, result.files_rewritten, result.files_added) == ("Committed", 2, 2, 2)
    assert (result.tombstones_purged, result.rows_purged, result.files_left, result.files_in_vain) == (2, 8, 0, 0)
    assert (result.snapshot_id, commits_of(story, run)) == (story.head().snapshot_id, ["true", None])
    assert (result.purge_seconds > 0, result.bytes_rewritten > 0) == (True, True)
    assert result.plan is not None
    assert (result.plan.files, result.plan.tombstones, result.plan.rows) == (2, 2, 8)
    story.check_reads(of_batches("B"))
    assert in_files(story) == Counter({"B": 4})


# --- deaths ---------------------------------------------------------------------------------------------------------

DEATHS = {
    "step_1": 0,
    "after_write": 0,
    "before_commit": 0,
    "after_commit": 1,
    "step_2": 1,
    "after_write_2": 1,
    "before_commit_2": 1,
    "after_commit_2": 2,
}


@pytest.mark.parametrize("step", some(DEATHS, "after_write_2"))
def test_a_vacuum_that_died_at_any_step_keeps_what_it_finished_and_its_repetition_does_the_rest(
    story: Story, step: str
) -> None:
    run = in_steps(story)
    with pytest.raises(Killed):
        story.run(run, **{step: die})
    assert len(commits_of(story, run)) == DEATHS[step]
    assert in_files(story)["A"] == 4 - 2 * DEATHS[step]
    assert story.rows_at() == of_batches("B")

    result = story.run(run)

    assert result.steps == 2 - DEATHS[step]
    assert commits_of(story, run) == ["true", None]
    assert (in_files(story), tombstones(story)) == (Counter({"B": 4}), set())
    story.check_reads(of_batches("B"))


# --- races ----------------------------------------------------------------------------------------------------------


def a_consolidation(story: Story) -> Counter[Row]:
    story.put("C", "E")
    story.consolidate("C", "E")
    return of_batches("B", "C", "E")


def a_revert(story: Story) -> Counter[Row]:
    """Of rows that were written again by then, or are just being."""
    story.revert("B", name="revert-b")
    return Counter()


def a_compaction(story: Story) -> Counter[Row]:
    """Takes the files from under the vacuum, and puts what it has just purged beside what it has not."""
    compact(story)
    return of_batches("B")


def a_late_row(story: Story) -> Counter[Row]:
    """Of a batch that is being purged, and one of another."""
    story.append_as_foreign_writer("A", "x")
    return of_batches("B") + Counter({("x", 501, 1): 1})


def an_undo(story: Story) -> Counter[Row]:
    """Whole as long as no row of it is gone; from then on refused."""
    done = story.undo(of="revert-d")
    return of_batches("B", "D") if done.succeeded else of_batches("B")


def a_second_revert(story: Story) -> Counter[Row]:
    story.revert("A", name="again")
    return of_batches("B")


OTHERS = a_consolidation, a_revert, a_compaction, a_late_row, an_undo, a_second_revert
# It finds a batch of which some rows are gone.
QUICK = {(an_undo, "before_commit_2")}


@pytest.mark.parametrize(
    ("other", "when"),
    [
        pytest.param(f, when, marks=() if (f, when) in QUICK else pytest.mark.long, id=f"{f.__name__}-{when}")
        for f in OTHERS
        for when in ("before_commit", "before_commit_2")
    ],
)
def test_commits_of_others_during_a_step_lose_nothing_and_no_deleted_row_returns(
    story: Story, other: Callable[[Story], Counter[Row]], when: str
) -> None:
    """Whatever is left of tombstones afterwards, another vacuum ends them."""
    wanted: list[Counter[Row]] = []

    result = story.run(in_steps(story), **{when: lambda: wanted.append(other(story))})

    assert result.outcome == "Committed"
    story.check_reads(wanted[0])
    story.vacuum(key="after")
    assert tombstones(story) == set()
    assert set(in_files(story)) == {b for b, _, _ in wanted[0]}
    story.check_reads(wanted[0])


@pytest.mark.long
def test_the_next_step_goes_by_what_has_become_of_the_table_since_the_one_before(story: Story) -> None:
    """A compaction between two steps: its file is found instead of the one it replaced, and nothing is looked for in vain."""
    result = story.run(in_steps(story), step_2=lambda: compact(story))

    assert (result.steps, in_files(story), tombstones(story)) == (2, Counter({"B": 4}), set())
    story.check_reads(of_batches("B"))


# --- increments -----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_rows_purged_by_three_vacuums_are_still_reported_as_deleted(story: Story) -> None:
    """Partial ones and one in steps, and rows that came in between, under old ids and new ones."""
    first = story.snapshots()[2].snapshot_id  # before either revert
    assert story.rows_at(first) == of_batches("A", "B", "D")
    story.vacuum(key="1", max_bytes=1)
    story.put("C")
    story.consolidate("C")
    story.revert("C", name="revert-c")
    story.append_as_foreign_writer("A", start=700)
    story.run(in_steps(story, "2", max_bytes=3000))
    story.revert("B", name="revert-b")
    story.run(in_steps(story, "3"))

    assert (tombstones(story), story.rows_at()) == (set(), Counter())
    late = Counter({("A", 700, 1): 1})  # which came and went, as C did
    assert by_spark(story, first, None, "deleted") == of_batches("A", "B", "C", "D") + late
    assert by_spark(story, first, None, "appended") == of_batches("C") + late
    check_ranges(story, any_two=True)


@pytest.mark.long
def test_snapshots_between_the_steps_expire_like_others_and_their_files_with_them(story: Story) -> None:
    result = story.run(in_steps(story, snapshots=ALL_GONE))

    assert (result.steps, len(story.snapshots())) == (2, 1)
    assert result.expiry_seconds > 0
    assert story.data_folder() == {local(p) for p in story.files()}
    story.check_reads(of_batches("B"))
