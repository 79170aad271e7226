"""A run may die at any step, and again at its repetition: what was to happen has then happened once.

Most deaths here are an exception that no job catches, in this process; the last tests kill a real one.
"""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa
import pytest
from lethe.contract.result import RestatementGroupResult, RunResult
from lethe.contract.run import ColumnRedaction, Redaction, RunSpec
from lethe.contract.settings import RedactionMethod
from pyspark.sql import SparkSession

from tests.spark.parameters import tuples
from tests.spark.support import changes, erases
from tests.spark.support.built_once import built_once
from tests.spark.support.driver import Driver
from tests.spark.support.story import ALL_GONE, Row, Story, local, of_batches
from tests.support.builders import a_request
from tests.support.lake import ROWS, Lake
from tests.support.steps import Killed, die


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake, request: pytest.FixtureRequest) -> Story:
    """Batches A, B and D are in the table, of the format version that the test gives or 2; E and F wait in the buffer."""
    story = Story.begin(spark, lake, format_version=getattr(request, "param", 2)).filled()
    story.put("E", "F")
    return story


def dies(story: Story, spec: RunSpec, step: str) -> None:
    with pytest.raises(Killed):
        story.run(spec, **{step: die})


def runs_of(story: Story, spec: RunSpec) -> int:
    """How many snapshots of the head's history this run made."""
    return sum(story.keys(s).get("lethe.run-id") == spec.run_id for s in story.snapshots())


# --- runs of each kind ----------------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """A run, what is seen once it is done, its steps, and the rows that each of its requests adds and erases."""

    begin: Callable[[Story], RunSpec]
    rows: Counter[Row]
    steps: tuple[str, ...]
    results: tuple[tuple[int, int], ...] = ()


def a_group(story: Story) -> RunSpec:
    """A revert and two replays, one of the other's batch."""
    return story.restatement(
        a_request("revert", batch_ids=["A"]),
        story.a_replay("B", by="B2", name="first"),
        story.a_replay("B2", by="B3", name="second", rows=2),
    )


ERASED = [erases.row("B", n) for n in (0, 1)]


def an_erasure(story: Story) -> RunSpec:
    """Some records erased, and a batch."""
    values = (str(v) for _, v, _ in ERASED)
    records = story.seen_as(erases.Names).an_erase(*values, name="records", column="v")
    return story.restatement(records, a_request("batches", "Erase", batch_ids=["A"]))


def a_redaction(story: Story) -> RunSpec:
    """A column of some records redacted."""
    values = (str(v) for _, v, _ in ERASED)
    rows = story.seen_as(erases.Names).an_erase(*values, column="v").rows
    column = ColumnRedaction(column="v", method=RedactionMethod.CONSTANT, value="7")
    return story.restatement(
        a_request("redact", "Redact", batch_ids=(), rows=rows, redact=Redaction(columns=(column,)))
    )


def changes_by_keys(story: Story) -> RunSpec:
    """Rows of several batches changed, and a batch taken back."""
    rows = pa.Table.from_pylist(
        [{"v": v, "day": day, "op": op} for op, (_, v, day) in changes.SOME],
        pa.schema([*ROWS, ("op", pa.string())]),
    )
    replacement = story.seen_as(changes.Changing).put_changes("C1", rows)
    return story.restatement(a_request("change", "Replay", batch_ids=["D"], replacement=replacement))


def a_vacuum(story: Story) -> RunSpec:
    story.revert("A")
    return story.vacuuming(ALL_GONE)


CONSOLIDATION = Kind(
    lambda s: s.consolidation("E", "F"),
    of_batches("A", "B", "D", "E", "F"),
    ("after_list", "after_write", "after_stage", "before_commit", "after_commit"),
)
KINDS = {
    "consolidation": CONSOLIDATION,
    "group": Kind(
        a_group,
        of_batches("D") + of_batches("B3", rows=2),
        ("after_list", "after_write", "before_commit", "after_commit"),
        ((0, 0), (3, 0), (2, 0)),
    ),
    "erase": Kind(
        an_erasure,
        of_batches("B", "D") - Counter(ERASED),
        ("after_search", "after_erase", "before_commit", "after_commit"),
        ((0, 2), (0, 0)),
    ),
    "redact": Kind(
        a_redaction,
        of_batches("A", "B", "D") - Counter(ERASED) + Counter((batch, 7, day) for batch, _, day in ERASED),
        ("after_search", "after_erase", "before_commit", "after_commit"),
        ((0, 0),),
    ),
    "changes": Kind(
        changes_by_keys,
        changes.changed(changes.SOME, "C1", ("A", "B")),
        ("after_list", "after_write", "after_search", "after_erase", "before_commit", "after_commit"),
        ((3, 3),),
    ),
    "vacuum": Kind(a_vacuum, of_batches("B", "D"), ("step_1", "after_write", "before_commit", "after_commit")),
}
QUICK = {
    ("group", 3, "before_commit"),
    ("erase", 3, "after_erase"),
    ("erase", 2, "after_commit"),
    ("redact", 3, "after_erase"),
    ("redact", 2, "before_commit"),
    ("changes", 2, "before_commit"),
    ("vacuum", 2, "after_commit"),
}
DEATHS = [
    pytest.param(k, v, s, marks=() if (k, v, s) in QUICK else pytest.mark.long, id=f"{k}-v{v}-{s}")
    for k in KINDS
    for v in (2, 3)
    for s in KINDS[k].steps
]


@pytest.mark.parametrize(("kind", "story", "step"), DEATHS, indirect=["story"])
def test_a_run_that_died_is_finished_by_its_repetition_and_carried_out_once(story: Story, kind: str, step: str) -> None:
    """Nothing of it is seen before all of it is. Repeated after their commit, changes do not take their own rows for older."""
    wanted = KINDS[kind]
    run = wanted.begin(story)
    before = story.rows_at()
    dies(story, run, step)
    story.check_reads(wanted.rows if step == "after_commit" else before)

    result = story.run(run)

    if kind != "vacuum":
        assert result.outcome == ("AlreadyCommitted" if step == "after_commit" else "Committed")
    assert runs_of(story, run) == 1
    check_results(story, result, wanted)
    story.check_reads(wanted.rows)
    if kind == "vacuum":
        assert story.tombstones() == set()
        assert {local(p) for p in story.files()} <= story.data_folder()


def check_results(story: Story, result: RunResult, wanted: Kind) -> None:
    """Each request was carried out, by the commit that is the head now."""
    requests = result.requests if isinstance(result, RestatementGroupResult) else ()
    assert [(r.rows_added, r.rows_erased) for r in requests] == list(wanted.results)
    size, head = len(wanted.results), story.head().snapshot_id
    assert all((r.succeeded, r.group_size, r.snapshot_id) == (True, size, head) for r in requests)


# --- what was staged, and other runs --------------------------------------------------------------------------------


def test_what_was_staged_before_the_death_is_published_and_not_written_again(story: Story) -> None:
    """A crash late in a run of hours must not cost those hours."""
    run = story.consolidation("E", "F")
    dies(story, run, "after_stage")
    before = story.data_folder()
    story.put_file("E", b"the buffer changed meanwhile")

    result = story.run(run)

    assert (result.batches_promoted, story.data_folder()) == (2, before)
    story.check_reads(of_batches("A", "B", "D", "E", "F"))


@pytest.mark.long
def test_a_run_that_died_staged_without_a_reverted_batch_promotes_it_too_once_the_revert_is_undone(
    story: Story,
) -> None:
    story.revert("E", unknown="Allow")
    run = story.consolidation("E", "F")
    dies(story, run, "after_stage")
    story.undo()

    result = story.run(run)

    assert (result.batches_promoted, runs_of(story, run)) == (2, 1)
    story.check_reads(of_batches("A", "B", "D", "E", "F"))


def test_a_run_that_dies_at_each_step_in_turn_still_promotes_once(story: Story) -> None:
    run = story.consolidation("E", "F")
    for step in CONSOLIDATION.steps:
        dies(story, run, step)

    assert story.run(run).outcome == "AlreadyCommitted"
    assert runs_of(story, run) == 1
    story.check_reads(of_batches("A", "B", "D", "E", "F"))


def test_requests_of_a_group_that_died_after_its_commit_are_not_carried_out_again_by_another_group(
    story: Story,
) -> None:
    """Nobody heard the result, and the next group is put together again: another run, some of the same requests."""
    run = a_group(story)
    dies(story, run, "after_commit")
    assert run.restatement is not None
    new = a_request("new", batch_ids=["D"])

    result = story.run(story.restatement(new, *run.restatement.requests[1:]))

    assert [(r.name, r.group_size) for r in result.requests] == [("ns/new", 1), ("ns/first", 3), ("ns/second", 3)]
    story.check_reads(of_batches("B3", rows=2))


# --- real processes -------------------------------------------------------------------------------------------------

PROCESSES = [(kind, step) for kind in KINDS for step in (*KINDS[kind].steps, "before_result")]


@pytest.mark.parametrize(("kind", "step"), tuples(PROCESSES, ("group", "before_result")))
def test_any_process_killed_at_any_step_is_finished_by_the_next(
    story: Story, driver: Driver, kind: str, step: str
) -> None:
    """The operator learns of a commit from the table. When the run is repeated, it does the rest and reports the results."""
    wanted = KINDS[kind]
    run = wanted.begin(story)
    before = story.rows_at()

    killed = driver.run(run, crash_at=step.replace("_", "-"), within_seconds=300)

    assert (killed.code, killed.result) == (137, None), killed.log
    assert story.rows_at() == (wanted.rows if step in ("after_commit", "before_result") else before)
    result = story.run(run)
    assert runs_of(story, run) == 1
    check_results(story, result, wanted)
    story.check_reads(wanted.rows)
