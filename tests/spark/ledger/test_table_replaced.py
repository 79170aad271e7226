"""A run works on the table that was there when it was asked for: never on another one that has its name now."""

from collections.abc import Callable
from uuid import uuid4

import lethe_spark
import pytest
from lethe.base.errors import TableError
from lethe.contract.run import RunSpec
from lethe_spark.apps.session import make_session
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.sdk import batch_writer
from pyspark.sql import SparkSession

from tests.spark.support.built_once import built_once
from tests.spark.support.story import Story
from tests.support.builders import a_request
from tests.support.lake import SCHEMA, Lake
from tests.support.servers import faults


@pytest.fixture
def story(spark: SparkSession, lake: Lake) -> Story:
    """A was taken back; it still lies in the buffer, as B does, which is live."""
    return begun(spark, lake)


@built_once
def begun(spark: SparkSession, lake: Lake, catalog: str = "lite", format_version: int = 2) -> Story:
    story = Story.begin(spark, lake, catalog=catalog, format_version=format_version)
    story.put("A", "B", "C")
    story.consolidate("A", "B")
    story.revert("A")
    return story


def drop(story: Story) -> None:
    story.spark.sql(f"DROP TABLE {story.full_name}")


def drop_and_create(story: Story) -> None:
    drop(story)
    story.spark.sql(f"CREATE TABLE {story.full_name} ({SCHEMA}) USING iceberg")


def rename_and_create(story: Story) -> None:
    # A name of its own: the story of another test has the same name.
    story.spark.sql(f"ALTER TABLE {story.full_name} RENAME TO {story.name}_{uuid4().hex}")
    story.spark.sql(f"CREATE TABLE {story.full_name} ({SCHEMA}) USING iceberg")


def snapshots_of(story: Story) -> int | None:
    """None: there is no table."""
    table = SparkTable.load(story.spark, story.catalog, story.name)
    return None if table is None else table.snapshot_count


def consolidation(story: Story, uuid: str) -> RunSpec:
    return story.consolidation("A", "C", seen_table_uuid=uuid)


def restatement(story: Story, uuid: str) -> RunSpec:
    return story.restatement(a_request("another", batch_ids=("B",)), seen_table_uuid=uuid)


def vacuuming(story: Story, uuid: str) -> RunSpec:
    return story.vacuuming(seen_table_uuid=uuid)


CHANGES = [(drop, None), (drop_and_create, 0), (rename_and_create, 0)]
QUICK = {(restatement, drop_and_create)}


@pytest.mark.parametrize(
    ("asked", "change", "left"),
    [
        pytest.param(
            asked,
            change,
            left,
            id=f"{change.__name__}-{asked.__name__}",
            marks=() if (asked, change) in QUICK else pytest.mark.long,
        )
        for change, left in CHANGES
        for asked in (consolidation, restatement, vacuuming)
    ],
)
def test_a_run_refuses_another_table_of_the_name_and_creates_none(
    story: Story, asked: Callable[[Story, str], RunSpec], change: Callable[[Story], None], left: int | None
) -> None:
    spec = asked(story, str(story.table().metadata.table_uuid))
    change(story)

    with pytest.raises(TableError, match=rf"TableReplaced: {story.name} was dropped, created again or renamed"):
        story.run(spec)

    assert snapshots_of(story) == left


@pytest.mark.parametrize("version", [2, pytest.param(3, marks=pytest.mark.long)])
def test_a_table_that_is_replaced_between_plan_and_commit_gets_nothing(
    spark: SparkSession, lake: Lake, version: int
) -> None:
    story = begun(spark, lake, format_version=version)
    uuid = str(story.table().metadata.table_uuid)

    with pytest.raises(TableError, match="TableReplaced"):
        story.run(consolidation(story, uuid), before_commit=lambda: rename_and_create(story))

    assert snapshots_of(story) == 0


@pytest.mark.long
def test_so_it_is_behind_a_rest_catalog(spark: SparkSession, lake: Lake, rest: faults.Switch) -> None:  # noqa: ARG001
    assert make_session("rest") == spark
    story = begun(spark, lake, catalog="rest")
    uuid = str(story.table().metadata.table_uuid)

    with pytest.raises(TableError, match="TableReplaced"):
        story.run(consolidation(story, uuid), before_commit=lambda: drop_and_create(story))

    assert snapshots_of(story) == 0


def test_the_sdk_commits_to_the_table_that_it_began_with(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is replaced while the rows are written."""
    written = batch_writer.write_rows

    def write_rows(*of: object) -> object:
        files = written(*of)  # type: ignore[arg-type]
        rename_and_create(story)
        return files

    monkeypatch.setattr(batch_writer, "write_rows", write_rows)

    with pytest.raises(TableError, match="TableReplaced"):
        lethe_spark.write(story.spark.sql("SELECT 1L AS v, 1 AS day"), story.full_name, batch_id="S")

    assert snapshots_of(story) == 0
