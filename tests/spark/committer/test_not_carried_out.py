"""Runs that the committer leaves to a Job, refuses, or drops."""

import json
from pathlib import Path

import pytest
from lethe.base import names
from lethe.contract.run import TableRef
from lethe_spark.jvm.spark_table import SparkTable
from pyspark.sql import SparkSession

from tests.spark.committer.runs import a_revert, an_undo, begun
from tests.spark.parameters import some
from tests.spark.support.mailbox import Process
from tests.spark.support.story import Story
from tests.support.builders import a_request
from tests.support.lake import CATALOG, Lake
from tests.support.mailbox import COMMITTER, Namespace


def a_table(story: Story, format_version: int = 2, **properties: str) -> None:
    create = story.consolidation().table.create
    assert create is not None
    made = create.model_copy(update={"format_version": format_version})
    SparkTable.create(story.spark, CATALOG, story.name, made, properties)


@pytest.mark.parametrize(
    "case",
    some(
        ["not there", "not claimed", "not prepared", "version 1", "folder", "no catalog", "replay"],
        "not prepared",
        "folder",
        "replay",
    ),
)
def test_a_request_that_needs_spark_is_refused_with_the_reason_and_nothing_is_changed(
    spark: SparkSession, lake: Lake, namespace: Namespace, process: Process, tmp_path: Path, case: str
) -> None:
    """The operator then launches a Job, which says for good what it says."""
    assert process.is_up()
    story = Story.begin(spark, lake)
    claim = {names.CLAIM: f"air/{story.name}"}
    spec = a_revert(story, "A")
    match case:
        case "not claimed":
            a_table(story)
        case "not prepared":
            a_table(story, **claim)
        case "version 1":
            a_table(story, 1, **claim)
        case "folder":
            lake.add_catalog("folder", type="hadoop", warehouse=f"file://{tmp_path}")
            spec = spec.model_copy(update={"table": TableRef(catalog="folder", name=story.name)})
        case "no catalog":
            spec = spec.model_copy(update={"table": TableRef(catalog="nowhere", name=story.name)})
        case "replay":
            begun(story)
            spec = story.restatement(a_request("r", batch_ids=("A",)), story.a_replay("B", by="B2"))
    before = story.table().metadata_location if case not in ("not there", "folder", "no catalog") else ""

    result = namespace.carried_out(spec)

    assert (result.outcome, result.reason, result.permanent) == ("Failed", "NeedsSpark", False)
    assert result.message.endswith("Nothing was changed. A Job carries out the run.")
    assert before in ("", story.table().metadata_location if before else "")


def test_a_table_of_another_dataset_is_refused_for_good(story: Story, namespace: Namespace) -> None:
    spec = a_revert(story, "A")
    other_dataset = spec.dataset.model_copy(update={"name": "other"})

    result = namespace.carried_out(spec.model_copy(update={"dataset": other_dataset}))

    assert (result.reason, result.permanent) == ("TableClaimed", True)


def test_a_run_that_has_ended_the_process_again_and_again_is_left_to_a_job(story: Story, namespace: Namespace) -> None:
    """One bad run must not take the committer from everybody else for ever."""
    spec = a_revert(story, "A")
    begun_before = {"runId": spec.run_id, "phase": "Committing", "begun": 3, "updatedTime": "2026-03-01T12:00:00Z"}
    namespace.server.create(namespace.config_map(spec))
    namespace.server.put(namespace.config_map(spec), **{f"{spec.run_id[:12]}.progress.json": json.dumps(begun_before)})

    result = namespace.carried_out(spec)

    assert (result.reason, result.permanent) == ("NeedsSpark", False)
    assert "ended 3 times during this run" in result.message
    assert namespace.carried_out(spec.model_copy(update={"attempt": 2})).outcome == "Committed"


def test_runs_of_a_dataset_that_is_gone_and_runs_that_were_replaced_are_dropped(
    story: Story, namespace: Namespace
) -> None:
    server, head = namespace.server, story.head().snapshot_id
    deleted, replaced, forgotten = (a_revert(story, "A", name=n) for n in ("deleted", "replaced", "forgotten"))
    deleted = deleted.model_copy(update={"dataset": deleted.dataset.model_copy(update={"name": "gone", "uid": "gone"})})
    newer = replaced.model_copy(update={"attempt": 2})
    with server.news:  # before anybody looks
        namespace.ask(deleted)
        server.delete(namespace.config_map(deleted))
        namespace.ask(replaced, document=newer.to_json())
        namespace.ask(forgotten)
        server.put(namespace.config_map(forgotten), **{f"{forgotten.run_id[:12]}.run.json": None})
        server.put(COMMITTER, unreadable="{}")

    namespace.wait_until_done(deleted, replaced, forgotten)

    server.wait_for(lambda: "unreadable" not in server.data(COMMITTER), 30)
    assert [namespace.document(s, "result.json") for s in (replaced, forgotten)] == [None, None]
    assert story.head().snapshot_id == head


def test_a_run_that_is_called_off_before_its_turn_is_not_carried_out(story: Story, namespace: Namespace) -> None:
    """Two of one Dataset: the second waits for the first, and is gone when that is done."""
    first, second = a_revert(story, "A", name="first"), a_revert(story, "B", name="second")
    with story.lake.locked_catalog():
        namespace.ask(first)
        namespace.server.wait_for(lambda: namespace.progress(first) is not None, 60)
        key = namespace.ask(second)
        namespace.server.put(COMMITTER, **{key: None})

    assert namespace.result(first).outcome == "Committed"
    assert namespace.carried_out(an_undo(story, of="first")).outcome == "Committed"
    assert "ns/second/0" not in story.ledger().requests
