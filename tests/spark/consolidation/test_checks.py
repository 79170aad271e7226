"""A bad day: batches that fail a check are refused or held, and the others go in with the same run."""

import pytest
from lethe.base.errors import InputError
from lethe.contract.checks import CheckSpec
from lethe.contract.result import RunResult
from lethe.contract.run import RunSpec
from lethe.contract.settings import ConsolidationMode
from pyspark.sql import SparkSession

from tests.spark.support.story import Story, of_batches
from tests.support.builders import a_request
from tests.support.lake import Lake

CHECKS = [
    CheckSpec.model_validate(c)
    for c in (
        {"name": "key", "unique": ["v"]},
        {"name": "whole", "notNull": ["v", "day"]},
        {"name": "days", "range": {"column": "day", "min": 0, "max": 400}},
        {"name": "usual", "rowCount": {"atMostPercent": 300}, "onFailure": "Hold"},
        {"name": "early", "condition": "v < 1000000000", "onFailure": "Hold"},
    )
]


@pytest.fixture
def story(spark: SparkSession, lake: Lake) -> Story:
    return Story.begin(spark, lake)


def checked(story: Story, *batch_ids: str, **changes: object) -> RunSpec:
    run = story.consolidation(*batch_ids, **changes)
    assert run.consolidation is not None
    return run.model_copy(update={"consolidation": run.consolidation.model_copy(update={"checks": tuple(CHECKS)})})


def consolidate(story: Story, *batch_ids: str, key: str = "") -> RunResult:
    spec = checked(story, *batch_ids)
    return story.run(spec.model_copy(update={"run_id": spec.run_id[: -len(key)] + key} if key else {}))


def repeat(story: Story, batch_id: str) -> None:
    """Write the first file of a batch twice, so that each of its keys is there twice."""
    file = story.folder(batch_id) / "part-0.parquet"
    (story.folder(batch_id) / "part-9.parquet").write_bytes(file.read_bytes())


def test_one_batch_is_refused_one_is_held_and_the_others_are_promoted_in_the_same_run(story: Story) -> None:
    story.put("A", "B", files=2)
    consolidate(story, "A", "B")
    story.put("C", "D")
    story.put("many", rows=40)
    story.put("twice", files=2)
    repeat(story, "twice")

    result = consolidate(story, "C", "D", "many", "twice")

    assert (result.outcome, result.batches_promoted, result.refused_count, result.held_count) == ("Committed", 2, 1, 1)
    assert result.files_read == 6, "also those of batches that are refused or held"
    assert story.states() == {**dict.fromkeys("ABCD", "promoted"), "many": "held", "twice": "refused"}
    entries = story.ledger().batches
    refused, held = entries["twice"].refusal, entries["many"].refusal
    assert refused is not None
    assert held is not None
    assert refused.reason == held.reason == "CheckFailed"
    assert refused.message.startswith("check key (unique): 2 of 6 rows fail, first rows 0, 1 of file://")
    assert refused.message.endswith("/part-9.parquet")
    assert held.message == (
        "check usual (rowCount): the batch has 40 rows, expected at most 300 % of 4, the median of the last 2 promoted batches"
    )
    assert story.folder("many").exists(), "a held batch stays in the buffer"
    assert not (story.folder("twice") / "_SUCCESS").exists(), "a refused batch is moved to _refused/"
    story.check_reads(of_batches("A", "B", "C", "D"))


def test_an_approved_batch_is_promoted_and_its_history_says_who_approved_it(story: Story) -> None:
    story.put("A")
    consolidate(story, "A")
    story.put("many", rows=40)
    consolidate(story, "many")

    refused = story.restate(a_request("approve-a", "Approve", batch_ids=("A",)))
    approved = story.restate(a_request("approve-many", "Approve", batch_ids=("many",)))
    consolidate(story, "many", key="2")

    assert (refused.succeeded, refused.reason) == (False, "NotHeld")
    assert "batch 'A' is promoted" in refused.message
    assert approved.succeeded
    entry = story.ledger().batches["many"]
    assert (entry.state, entry.refusal, entry.restatement, entry.rows) == ("promoted", None, approved.key, 40)


def test_other_files_under_the_id_of_an_approved_batch_are_checked_again(story: Story) -> None:
    story.put("A")
    consolidate(story, "A")
    story.put("many", rows=40)
    consolidate(story, "many")
    story.restate(a_request("approve-many", "Approve", batch_ids=("many",)))
    story.put("many", rows=80)

    consolidate(story, "many", key="2")

    entry = story.ledger().batches["many"]
    assert (entry.state, entry.restatement) == ("held", None)
    story.put("many", rows=5)
    consolidate(story, "many", key="3")
    assert story.states() == {"A": "promoted", "many": "promoted"}


def test_a_reverted_batch_that_was_held_is_never_promoted(story: Story) -> None:
    story.put("A")
    consolidate(story, "A")
    story.put("many", rows=40)
    consolidate(story, "many")

    story.revert("many")
    result = consolidate(story, "many", key="2")

    assert result.batches_withheld == 1
    entry = story.ledger().batches["many"]
    assert (entry.state, entry.objects, entry.refusal) == ("reverted", (), None)
    story.check_reads(of_batches("A"))


def test_a_check_on_a_column_that_the_table_lacks_stops_the_run_before_anything_is_written(story: Story) -> None:
    story.put("A")
    spec = checked(story, "A")
    assert spec.consolidation is not None
    wrong = CheckSpec.model_validate({"name": "c", "notNull": ["dya"]})
    spec = spec.model_copy(update={"consolidation": spec.consolidation.model_copy(update={"checks": (wrong,)})})

    with pytest.raises(
        InputError,
        match=r"check c \(notNull\): it names the column dya, .* the nearest names are day",
    ):
        story.run(spec)

    assert story.states() == {}


def test_checks_are_not_left_out_of_a_registration(story: Story) -> None:
    story.put("A")
    spec = checked(story, "A")
    assert spec.consolidation is not None
    registers = spec.consolidation.model_copy(update={"mode": ConsolidationMode.REGISTER})

    with pytest.raises(InputError, match="ChecksNeedRewrite"):
        story.run(spec.model_copy(update={"consolidation": registers}))
