"""A vacuum in steps: each is a commit, what was finished stays, and whatever comes between costs no row and brings none back."""

from collections import Counter
from collections.abc import Callable

import pytest
from lethe.base.errors import InputError
from lethe.contract.run import RunSpec
from pyspark.sql import SparkSession

from tests.spark.parameters import pairs, some
from tests.spark.support.built_once import built_once
from tests.spark.support.story import Row, Story, local, of_batches
from tests.support.lake import Lake
from tests.support.steps import Killed, die


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake) -> Story:
    """Batches A, B and D are in the table, in a common file for each of two days; A and D were reverted, each by itself."""
    story = Story.begin(spark, lake).filled()
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
    assert story.in_files() == Counter({"B": 4})


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
    assert story.in_files()["A"] == 4 - 2 * DEATHS[step]
    assert story.rows_at() == of_batches("B")

    result = story.run(run)

    assert result.steps == 2 - DEATHS[step]
    assert commits_of(story, run) == ["true", None]
    assert (story.in_files(), story.tombstones()) == (Counter({"B": 4}), set())
    story.check_reads(of_batches("B"))


# --- races ----------------------------------------------------------------------------------------------------------

Act = Callable[[Story], object]
OTHERS: dict[str, tuple[Act, Counter[Row]]] = {
    "a consolidation": (lambda s: s.filled("CE"), of_batches("B", "C", "E")),
    "a revert of rows that are written again": (lambda s: s.revert("B", name="revert-b"), Counter()),
    "a compaction": (Story.compact, of_batches("B")),
    "late rows": (
        lambda s: s.append_as_foreign_writer("A", "x"),
        of_batches("B") + Counter({("x", 501, 1): 1}),
    ),
    "an undo": (lambda s: s.undo(of="revert-d"), of_batches("B", "D")),
    "a second revert": (lambda s: s.revert("A", name="again"), of_batches("B")),
}


@pytest.mark.parametrize(
    ("other", "when"), pairs(OTHERS, ("before_commit", "before_commit_2"), ("an undo", "before_commit_2"))
)
def test_commits_of_others_during_a_step_lose_nothing_and_no_deleted_row_returns(
    story: Story, other: str, when: str
) -> None:
    """An Undo is refused once a row is gone. Whatever is left of tombstones afterwards, another vacuum ends them."""
    act, wanted = OTHERS[other]
    if (other, when) == ("an undo", "before_commit_2"):
        wanted = of_batches("B")

    result = story.run(in_steps(story), **{when: lambda: act(story)})

    assert result.outcome == "Committed"
    story.check_reads(wanted)
    story.vacuum(key="after")
    assert story.tombstones() == set()
    assert story.in_files().keys() == {b for b, _, _ in wanted}
    story.check_reads(wanted)


def test_a_step_whose_files_others_changed_is_followed_by_smaller_ones(story: Story) -> None:
    """Otherwise a step that takes minutes would never be committed beside Restatements that mark rows in files."""
    story.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    run = story.vacuuming_so()

    result = story.run(run, after_write=lambda: story.sql("DELETE FROM {t} WHERE batch_id = 'B'"))

    assert (result.outcome, result.steps, commits_of(story, run)) == ("Committed", 2, ["true", None])
    assert (story.in_files(), story.tombstones()) == (Counter(), set())
    story.check_reads(Counter())


def test_files_that_came_in_the_meantime_are_searched_before_the_run_ends(story: Story) -> None:
    """By their bounds they might hold rows of the tombstones, which would stay, vacuum after vacuum, beside consolidations."""
    result = story.run(story.vacuuming_so(), before_commit=lambda: story.filled("CE"))

    assert (result.tombstones_purged, result.files_left, story.tombstones()) == (2, 0, set())
    assert story.in_files() == Counter({"B": 4, "C": 4, "E": 4})
    story.check_reads(of_batches("B", "C", "E"))


@pytest.mark.parametrize("when", some(["before_commit", "before_commit_2"], "before_commit"))
def test_a_step_whose_snapshot_has_expired_is_planned_again(story: Story, when: str) -> None:
    """The runs of hundreds of commits, or an engine, may expire it while the files of a step are written."""

    def expire() -> None:
        story.filled("C")
        story.sql("CALL {catalog}.system.expire_snapshots(table => '{name}', older_than => now(), retain_last => 1)")

    run = in_steps(story)
    result = story.run(run, **{when: expire})

    assert (result.outcome, result.files_rewritten) == ("Committed", 2)
    assert story.tombstones() == set()
    written = {p for p in story.data_folder() if run.run_id in p}
    assert written == {local(p) for p in story.files() if run.run_id in p}, "what it wrote in vain is left"
    story.check_reads(of_batches("B", "C"))


def test_what_a_step_has_written_is_deleted_if_the_table_has_another_owner_then(story: Story) -> None:
    files = story.data_folder()

    with pytest.raises(InputError, match="TableClaimed"):
        story.run(in_steps(story), after_write=lambda: story.set_properties({"lethe.dataset": "other/dataset"}))

    assert story.data_folder() == files
