"""A run may die at any step, and again at its repetition: what was to happen has then happened once.

Most deaths here are an exception that no job catches, in this process; the last tests kill a real one.
"""

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from lethe.contract.run import RunSpec
from pyspark.sql import SparkSession

from tests.spark.parameters import moments, some
from tests.spark.support import changes as change_support
from tests.spark.support import erases as erase_support
from tests.spark.support.built_once import built_once
from tests.spark.support.driver import Driver
from tests.spark.support.story import ALL_GONE, Row, Story, avro, local, of_batches
from tests.support.builders import a_request
from tests.support.lake import ROWS, Lake
from tests.support.steps import Killed, die

CONSOLIDATION = ["after-list", "after-write", "after-stage", "before-commit", "after-commit"]
REPLAY = ["after-write", "before-commit", "after-commit"]
GROUP = ["after-list", "after-write", "before-commit", "after-commit"]
VACUUM = ["step-1", "after-write", "before-commit", "after-commit"]
ERASE = ["after-search", "after-erase", "before-commit", "after-commit"]
CHANGES = ["after-list", "after-write", "after-search", "after-erase", "before-commit", "after-commit"]


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake, request: pytest.FixtureRequest) -> Story:
    """Batches A, B and D are in the table, of the format version that the test gives or 2; E and F wait in the buffer."""
    story = Story.begin(spark, lake, format_version=getattr(request, "param", 2))
    story.put("A", "B", "D", "E", "F")
    story.consolidate("A", "B", "D")
    return story


def dies(story: Story, spec: RunSpec, step: str) -> None:
    with pytest.raises(Killed):
        story.run(spec, **{step.replace("-", "_"): die})


def runs_of(story: Story, spec: RunSpec) -> int:
    """How many snapshots of the head's history this run made."""
    return sum(story.keys(s).get("lethe.run-id") == spec.run_id for s in story.snapshots())


@pytest.mark.parametrize("step", some(CONSOLIDATION))
def test_a_consolidation_that_died_is_finished_by_its_repetition_and_every_row_is_there_once(
    story: Story, step: str
) -> None:
    run = story.consolidation("E", "F")
    dies(story, run, step)

    result = story.run(run)

    assert runs_of(story, run) == 1
    assert result.outcome == ("AlreadyCommitted" if step == "after-commit" else "Committed")
    assert story.states().items() >= {"E": "promoted", "F": "promoted"}.items()
    story.check_reads(of_batches("A", "B", "D", "E", "F"))


def test_what_was_staged_before_the_death_is_published_and_not_written_again(story: Story) -> None:
    """A crash late in a run of hours must not cost those hours."""
    run = story.consolidation("E", "F")
    dies(story, run, "after-stage")
    before = story.data_folder()
    story.put_file("E", b"the buffer changed meanwhile")

    result = story.run(run)

    assert (result.batches_promoted, story.data_folder()) == (2, before)
    story.check_reads(of_batches("A", "B", "D", "E", "F"))


@pytest.mark.long
def test_a_run_that_died_staged_and_whose_batch_another_run_promoted_writes_the_rest(story: Story) -> None:
    """Its files hold E and F together: published they would double E, dropped they would lose F."""
    run = story.consolidation("E", "F")
    dies(story, run, "after-stage")
    story.consolidate("E")

    story.run(run)

    story.check_reads(of_batches("A", "B", "D", "E", "F"))


@pytest.mark.long
def test_a_run_that_died_staged_without_a_reverted_batch_promotes_it_too_once_the_revert_is_undone(
    story: Story,
) -> None:
    story.revert("E")
    run = story.consolidation("E", "F")
    dies(story, run, "after-stage")
    story.undo()

    result = story.run(run)

    assert (result.batches_promoted, runs_of(story, run)) == (2, 1)
    story.check_reads(of_batches("A", "B", "D", "E", "F"))


def test_a_run_that_dies_at_each_step_in_turn_still_promotes_once(story: Story) -> None:
    run = story.consolidation("E", "F")
    for step in CONSOLIDATION:
        dies(story, run, step)

    assert story.run(run).outcome == "AlreadyCommitted"
    assert runs_of(story, run) == 1
    story.check_reads(of_batches("A", "B", "D", "E", "F"))


@pytest.mark.parametrize("step", some(REPLAY, "before-commit"))
def test_a_replay_that_died_is_finished_by_its_repetition_and_adds_its_rows_once(story: Story, step: str) -> None:
    run = story.restatement(story.a_replay("A", by="A2"))
    dies(story, run, step)

    (result,) = story.run(run).requests

    assert (result.succeeded, result.rows_added, result.rows_deleted) == (True, 3, 4)
    assert result.snapshot_id == story.head().snapshot_id
    assert runs_of(story, run) == 1
    story.check_reads(of_batches("B", "D") + of_batches("A2", rows=3))


def a_group(story: Story) -> tuple[RunSpec, Counter[Row]]:
    """A revert and two replays, one of the other's batch, and the rows that are seen afterwards."""
    requests = (
        a_request("revert", batch_ids=["A"]),
        story.a_replay("B", by="B2", name="first"),
        story.a_replay("B2", by="B3", name="second", rows=2),
    )
    return story.restatement(*requests), of_batches("D") + of_batches("B3", rows=2)


@pytest.mark.parametrize("step", some(GROUP, "after-commit"))
def test_a_group_that_died_is_finished_by_its_repetition_and_each_request_is_carried_out_once(
    story: Story, step: str
) -> None:
    """Nothing of it is seen before all of it is."""
    run, wanted = a_group(story)
    dies(story, run, step)
    story.check_reads(wanted if step == "after-commit" else of_batches("A", "B", "D"))

    result = story.run(run)

    assert result.outcome == ("AlreadyCommitted" if step == "after-commit" else "Committed")
    assert [(r.succeeded, r.group_size, r.rows_added) for r in result.requests] == [(True, 3, n) for n in (0, 3, 2)]
    assert {r.snapshot_id for r in result.requests} == {story.head().snapshot_id}
    assert runs_of(story, run) == 1
    story.check_reads(wanted)


def test_requests_of_a_group_that_died_after_its_commit_are_not_carried_out_again_by_another_group(
    story: Story,
) -> None:
    """Nobody heard the result, and the next group is put together again: another run, some of the same requests."""
    run, wanted = a_group(story)
    dies(story, run, "after-commit")
    assert run.restatement is not None
    new = a_request("new", batch_ids=["D"])

    result = story.run(story.restatement(new, *run.restatement.requests[1:]))

    assert [(r.name, r.group_size) for r in result.requests] == [("ns/new", 1), ("ns/first", 3), ("ns/second", 3)]
    story.check_reads(wanted - of_batches("D"))


def an_erasure(story: Story) -> tuple[RunSpec, Counter[Row]]:
    """Some records erased, and a batch, and the rows that are seen afterwards."""
    names = erase_support.Names.of(story)
    gone = [erase_support.row("B", n) for n in (0, 1)]
    records = names.an_erase(*(str(v) for _, v, _ in gone), name="records", column="v")
    batches = a_request("batches", "Erase", batch_ids=["A"])
    return story.restatement(records, batches), of_batches("B", "D") - Counter(gone)


@moments(ERASE, (3, "after-erase"), (2, "after-commit"))
def test_an_erase_that_died_is_finished_by_its_repetition_and_its_rows_are_counted_once(
    story: Story, step: str
) -> None:
    """Until then nothing of it is seen, and afterwards nobody asks again who was meant."""
    run, wanted = an_erasure(story)
    dies(story, run, step)
    story.check_reads(wanted if step == "after-commit" else of_batches("A", "B", "D"))

    result = story.run(run)

    assert result.outcome == ("AlreadyCommitted" if step == "after-commit" else "Committed")
    assert [(r.succeeded, r.group_size, r.rows_erased, r.rows_deleted) for r in result.requests] == [
        (True, 2, 2, 0),
        (True, 2, 0, 4),
    ]
    assert {r.snapshot_id for r in result.requests} == {story.head().snapshot_id}
    assert runs_of(story, run) == 1
    assert len(story.ledger().erasures) == 2
    story.check_reads(wanted)


def changes_by_keys(story: Story) -> tuple[RunSpec, Counter[Row]]:
    """Rows of several batches changed, and a batch taken back, and the rows that are seen afterwards."""
    found = change_support.Changing(story.spark, story.lake, story.name, story.partition_by, story.catalog)
    rows = pa.Table.from_pylist(
        [{"v": v, "day": day, "op": op} for op, (_, v, day) in change_support.SOME],
        pa.schema([*ROWS, ("op", pa.string())]),
    )
    request = a_request("change", "Replay", batch_ids=["D"], replacement=found.put_changes("C1", rows))
    return story.restatement(request), change_support.changed(change_support.SOME, "C1", ("A", "B"))


@moments(CHANGES, (2, "before-commit"), (3, "after-commit"))
def test_changes_that_died_are_finished_by_their_repetition_and_made_once(story: Story, step: str) -> None:
    """Repeated after their commit, they do not take their own rows for older ones."""
    run, wanted = changes_by_keys(story)
    dies(story, run, step)
    story.check_reads(wanted if step == "after-commit" else of_batches("A", "B", "D"))

    (result,) = story.run(run).requests

    assert (result.succeeded, result.rows_added, result.rows_erased, result.rows_deleted) == (True, 3, 3, 4)
    assert result.snapshot_id == story.head().snapshot_id
    assert runs_of(story, run) == 1
    story.check_reads(wanted)


@pytest.mark.parametrize("step", some(VACUUM, "after-commit"))
def test_a_vacuum_that_died_is_finished_by_its_repetition(story: Story, step: str) -> None:
    story.revert("A")
    run = story.vacuuming(ALL_GONE)
    dies(story, run, step)
    story.check_reads(of_batches("B", "D"))

    story.run(run)

    assert runs_of(story, run) == 1
    assert avro(story.keys()["tombstone.file"]) == []
    story.check_reads(of_batches("B", "D"))
    assert {local(p) for p in story.files()} <= story.data_folder()


# --- real processes -------------------------------------------------------------------------------------------------


def killed(driver: Driver, spec: RunSpec, step: str) -> None:
    """Carry a run out in a process of its own, which is killed at a step, so that it prints no result."""
    ended = driver.run(spec, crash_at=step, within_seconds=300)
    assert (ended.code, ended.result) == (137, None), ended.log


@pytest.mark.long
def test_a_process_killed_before_its_commit_leaves_nothing_in_sight_and_its_successor_finishes(
    story: Story, driver: Driver
) -> None:
    run = story.consolidation("E", "F")

    killed(driver, run, "after-stage")

    assert story.rows_at() == of_batches("A", "B", "D")
    result = story.run(run)
    assert (result.outcome, result.batches_promoted) == ("Committed", 2)
    story.check_reads(of_batches("A", "B", "D", "E", "F"))


def test_after_a_kill_before_the_report_the_next_attempt_reports_the_results_of_the_group(
    story: Story, driver: Driver
) -> None:
    """The operator learns of the commit from the table. When the run is repeated, it does nothing and reports the results."""
    run, wanted = a_group(story)

    killed(driver, run, "before-result")

    result = story.run(run)
    assert (result.outcome, runs_of(story, run)) == ("AlreadyCommitted", 1)
    assert [(r.succeeded, r.group_size, r.rows_added) for r in result.requests] == [(True, 3, n) for n in (0, 3, 2)]
    story.check_reads(wanted)


EVERY: list[Any] = [
    *(pytest.param("consolidation", s, id=f"consolidation {s}") for s in (*CONSOLIDATION, "before-result")),
    *(pytest.param("replay", s, id=f"replay {s}") for s in REPLAY),
    *(pytest.param("group", s, id=f"group {s}") for s in (*GROUP, "before-result")),
    *(pytest.param("vacuum", s, id=f"vacuum {s}") for s in VACUUM),
    *(pytest.param("erase", s, id=f"erase {s}") for s in (*ERASE, "before-result")),
    *(pytest.param("changes", s, id=f"changes {s}") for s in (*CHANGES, "before-result")),
]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "step"), EVERY)
def test_any_process_killed_at_any_step_is_finished_by_the_next(
    story: Story, driver: Driver, kind: str, step: str
) -> None:
    match kind:
        case "consolidation":
            run, wanted = story.consolidation("E", "F"), of_batches("A", "B", "D", "E", "F")
        case "replay":
            run = story.restatement(story.a_replay("A", by="A2"))
            wanted = of_batches("B", "D") + of_batches("A2", rows=3)
        case "group":
            run, wanted = a_group(story)
        case "erase":
            run, wanted = an_erasure(story)
        case "changes":
            run, wanted = changes_by_keys(story)
        case _:
            story.revert("A")
            run, wanted = story.vacuuming(ALL_GONE), of_batches("B", "D")

    killed(driver, run, step)
    ended = driver.run(run, within_seconds=300)

    assert (ended.code, ended.result is not None) == (0, True), ended.log
    assert runs_of(story, run) == 1
    story.check_reads(wanted)
