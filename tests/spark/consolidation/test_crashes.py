"""A consolidation dies in its commit, or before it can tell of it, or others go on with the table before it is repeated: each
batch's rows are in the table once, or not at all if it was taken back.

Deaths at the named steps are in test_crash_steps.py.
"""

import pytest
from lethe.base import names
from lethe_spark.apps.session import make_session
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.built_once import built_once
from tests.spark.support.driver import Driver
from tests.spark.support.story import Story, avro, of_batches
from tests.support.lake import CATALOG, Lake
from tests.support.servers.faults import Fault, Switch
from tests.support.steps import Killed, die

STEPS = ["after-list", "after-write", "after-stage", "before-commit", "after-commit"]
SECONDS = 180


@built_once
def begin(spark: SparkSession, lake: Lake, catalog: str = CATALOG) -> Story:
    """Batches A, B and D are in the table; E, F and G wait in the buffer."""
    story = Story.begin(spark, lake, catalog=catalog)
    story.put("A", "B", "D", "E", "F", "G")
    story.consolidate("A", "B", "D")
    return story


@pytest.fixture
def story(spark: SparkSession, lake: Lake) -> Story:
    return begin(spark, lake)


def dies(story: Story, *batch_ids: str, step: str) -> None:
    with pytest.raises(Killed):
        story.consolidate(*batch_ids, **{step.replace("-", "_"): die})


def commits_of(story: Story, run_id: str) -> int:
    """How many snapshots of the head's history this run made."""
    return sum(story.keys(s).get(names.RUN_ID) == run_id for s in story.snapshots())


def staged_by(story: Story, run_id: str) -> int:
    return sum((s.summary or {}).get(names.WAP_ID) == run_id for s in story.table().snapshots())


# --- in the commit, and after it ----------------------------------------------------------------------------------------

IN_COMMIT = [
    pytest.param(0, True, id="staging that landed", marks=pytest.mark.long),
    pytest.param(1, True, id="publication that landed"),
    pytest.param(1, False, id="publication that did not", marks=pytest.mark.long),
]


@pytest.mark.parametrize(("commits_before", "landed"), IN_COMMIT)
def test_a_process_killed_while_it_waits_for_the_answer_to_its_commit(
    spark: SparkSession, lake: Lake, pg: Switch, driver: Driver, commits_before: int, landed: bool
) -> None:
    """The catalog has carried it out, or has not, and nobody lives who could know: the repetition looks in the table."""
    make_session("pg")
    story = begin(spark, lake, catalog="pg")
    run = story.consolidation("E", "F")
    pg.arm(Fault(landed, hold=True), commits_before)

    process = driver.start(run)
    assert pg.held.wait(SECONDS), driver.log()
    process.kill()
    process.communicate()

    published = landed and commits_before == 1
    assert (commits_of(story, run.run_id), staged_by(story, run.run_id)) == (int(published), 1)
    assert story.rows_at() == of_batches("A", "B", "D", *("EF" if published else ""))
    result = story.run(run)
    assert result.outcome == ("AlreadyCommitted" if published else "Committed")
    assert commits_of(story, run.run_id) == 1
    story.check_reads(of_batches("A", "B", "D", "E", "F"))


@pytest.mark.long
def test_a_process_killed_before_it_could_report_has_committed_and_is_not_repeated(
    story: Story, driver: Driver
) -> None:
    run = story.consolidation("E", "F")

    killed = driver.run(run, crash_at="before-result")

    assert (killed.code, killed.result) == (137, None)
    assert commits_of(story, run.run_id) == 1
    assert driver.run(run).result.outcome == "AlreadyCommitted"  # type: ignore[union-attr]
    assert commits_of(story, run.run_id) == 1
    story.check_reads(of_batches("A", "B", "D", "E", "F"))


# --- taken back between the death and the repetition --------------------------------------------------------------------


@pytest.mark.parametrize("step", some(STEPS[:-1], "after-stage"))
def test_a_batch_taken_back_after_the_death_is_dropped_by_the_repetition_and_counted(story: Story, step: str) -> None:
    """Also out of files that it shares with a batch that is wanted."""
    dies(story, "E", "F", step=step)
    story.revert("E")

    result = story.consolidate("E", "F")

    assert (result.outcome, result.batches_promoted, result.batches_withheld) == ("Committed", 1, 1)
    assert story.states().items() >= {"E": "reverted", "F": "promoted"}.items()
    story.check_reads(of_batches("A", "B", "D", "F"))


def test_a_batch_reverted_after_an_unreported_commit_stays_deleted(story: Story) -> None:
    dies(story, "E", "F", step="after-commit")
    story.revert("E")

    result = story.consolidate("E", "F")

    assert (result.outcome, result.batches_withheld) == ("AlreadyCommitted", 1)
    story.check_reads(of_batches("A", "B", "D", "F"))


def test_the_commit_that_publishes_staged_files_carries_the_whole_ledger_on(story: Story) -> None:
    """Iceberg's own publishing would make a snapshot of the keys that were staged: without tombstones, without batches."""
    story.revert("A", name="before")
    dies(story, "E", "F", step="after-stage")
    story.revert("B", name="meanwhile")
    before = story.keys()

    result = story.consolidate("E", "F")

    keys = story.keys()
    assert result.snapshot_id == story.head().snapshot_id
    ours = {k for k in before if k.startswith(("lethe.", "tombstone."))}
    assert {k for k in keys if k.startswith(("lethe.", "tombstone."))} == ours
    assert {t["id"] for t in avro(keys[names.TOMBSTONE_FILE])} == {"A", "B"}
    assert [keys[k] for k in (names.TOMBSTONE_ADDED, names.TOMBSTONE_TOTAL)] == ["0", "2"]
    assert keys[names.PUBLISHED_WAP_ID] == keys[names.RUN_ID]
    assert set(story.ledger().requests) == {"ns/before/0", "ns/meanwhile/0"}
    story.check_reads(of_batches("D", "E", "F"))


# --- another run, over some of the same batches ---------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("step", STEPS)
def test_runs_over_overlapping_batches_at_one_moment_promote_each_batch_once(story: Story, step: str) -> None:
    """Two operators that listed the buffer at different times ask for such runs."""
    story.run(story.consolidation("E", "F"), **{step.replace("-", "_"): lambda: story.consolidate("F", "G")})

    assert story.states() == dict.fromkeys("ABDEFG", "promoted")
    story.check_reads(of_batches("A", "B", "D", "E", "F", "G"))


def test_runs_over_overlapping_batches_that_both_died_staged_promote_each_batch_once(story: Story) -> None:
    """F lies in the staged files of both, beside a batch that only one of them has."""
    dies(story, "E", "F", step="after-stage")
    dies(story, "F", "G", step="after-stage")

    results = [story.consolidate("F", "G"), story.consolidate("E", "F")]

    assert [r.batches_promoted for r in results] == [2, 1]
    story.check_reads(of_batches("A", "B", "D", "E", "F", "G"))
