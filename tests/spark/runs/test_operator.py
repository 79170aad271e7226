"""What the operator decides on, a run carries out, and the operator sees that it is done."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from lethe.base.errors import TableError
from lethe.buffer.digest import BufferDigest
from lethe.contract.run import RunSpec
from lethe.iceberg import catalogs
from lethe.iceberg.facts import observe
from lethe_operator.actions import Actions
from lethe_operator.dataset.tables import Lookup, asked_by, view_of
from lethe_operator.resources.dataset import Dataset, parse_dataset
from lethe_operator.resources.observed import Observation, TableView
from lethe_operator.resources.restatement import Restatement, parse_restatement
from lethe_operator.settings import Settings
from pyspark.sql import SparkSession

from tests.spark.support.built_once import built_once
from tests.spark.support.story import Story, of_batches
from tests.support.lake import Lake
from tests.support.statuses import decide


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake) -> Story:
    """Batches A and B are in the table."""
    return Story.begin(spark, lake).filled("AB")


def the_dataset(story: Story, status: Any = None) -> Dataset:
    return parse_dataset({**story.dataset_resource(), "status": status or {}})


def a_restatement(story: Story, name: str, **spec: Any) -> Restatement:
    meta = {"namespace": "air", "name": name, "uid": name, "creationTimestamp": datetime.now(UTC).isoformat()}
    return parse_restatement({"metadata": meta, "spec": {"datasetRef": {"name": story.name}, **spec}})


def seen(story: Story) -> TableView:
    table = catalogs.load(story.catalog).load_table(story.name)
    return view_of(observe(table, "batch_id"), table.io)


def decided(story: Story, *restatements: Restatement, status: Any = None) -> Actions:
    """A minute from now, with nothing in the buffer."""
    view, buffer = seen(story), BufferDigest()
    known = Lookup().known(view.ledger, asked_by(the_dataset(story, status), restatements, (), buffer))
    world = Observation(restatements, (), (), _with(view, ledger=known), buffer)
    return decide(the_dataset(story, status), world, datetime.now(UTC) + timedelta(minutes=1), Settings())


def _with(view: TableView, **changes: Any) -> TableView:
    return TableView(**{**vars(view), **changes})


def started(actions: Actions) -> list[RunSpec]:
    return [launch.run for launch in actions.launches]


def test_a_revert_and_its_undo(story: Story) -> None:
    before = story.rows_at()
    revert = a_restatement(story, "revert-a", operation="Revert", batchIds=["A"])
    undo = a_restatement(story, "undo", operation="Undo", undoes={"name": "revert-a"})

    (first,) = started(decided(story, revert, undo))
    story.run(first)
    reverted = story.rows_at()
    (second,) = started(decided(story, revert, undo))
    story.run(second)
    done = decided(story, revert, undo)

    assert reverted == of_batches("B")
    assert story.rows_at() == before
    assert started(done) == []
    undo = done.restatement_statuses["undo"]
    assert (undo["phase"], undo["result"]["rowsRestored"], undo["result"]["tombstonesRemoved"]) == ("Succeeded", 4, 1)
    assert "undid it later" in done.restatement_statuses["revert-a"]["conditions"][0]["message"]


def test_a_rollback_is_seen_and_the_run_that_was_decided_before_it_refuses(story: Story) -> None:
    revert = a_restatement(story, "revert-a", operation="Revert", batchIds=["A"])
    story.filled("C")
    before = decided(story, revert)
    (run,) = started(before)
    older = story.snapshots()[1].snapshot_id
    story.spark.sql(f"CALL {story.catalog}.system.set_current_snapshot('{story.name}', {older})")

    stopped = decided(story, revert, status=before.dataset_status)
    with pytest.raises(TableError, match="does not descend"):
        story.run(run)

    assert started(stopped) == []
    assert stopped.dataset_status["conditions"][0]["reason"] == "TableRolledBack"  # type: ignore[index]
    assert story.head().snapshot_id == older
