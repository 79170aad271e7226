"""Rows of a purged batch that came in by a snapshot without a ledger are hidden by Lethe's next commit, also if that snapshot has
expired by then and no metadata says any more which files it added."""

from collections.abc import Callable

import lethe
import pytest
from lethe.ledger.tombstone import META_PURGED_BY
from pyspark.sql import SparkSession

from tests.spark.support.built_once import built_once
from tests.spark.support.story import Story
from tests.support.lake import Lake


@pytest.fixture
@built_once
def story(request: pytest.FixtureRequest, spark: SparkSession, lake: Lake) -> Story:
    """A and C were taken back and purged; B is live."""
    story = Story.begin(spark, lake, format_version=request.param)
    story.put("A", "B", "C", "Z")
    story.consolidate("A", "B", "C")
    story.revert("A", "C")
    story.vacuum()
    assert not story.ledger().tombstones
    return story


def append(story: Story, *batch_ids: str) -> int:
    """By Spark as a foreign writer, one row of each batch in one file."""
    rows = ", ".join(f"({500 + n}L, 1, '{b}')" for n, b in enumerate(batch_ids))
    story.spark.sql(f"INSERT INTO {story.full_name} SELECT /*+ COALESCE(1) */ * FROM VALUES {rows}")
    return story.head().snapshot_id


def append_and_append(story: Story) -> tuple[int, int]:
    return append(story, "A", "X"), append(story, "Y")


def append_and_compact(story: Story) -> tuple[int, int]:
    """The rows are in a file of the compaction now, which brought none."""
    late = append(story, "A", "X")
    story.spark.sql(
        f"CALL {story.catalog}.system.rewrite_data_files(table => '{story.name}', options => map('rewrite-all', 'true'))"
    )
    return late, story.head().snapshot_id


def call(story: Story, what: str) -> None:
    story.spark.sql(f"CALL {story.catalog}.system.{what}")


def expire(story: Story, *snapshots: int) -> None:
    ids = ", ".join(map(str, snapshots))
    call(story, f"expire_snapshots(table => '{story.name}', snapshot_ids => array({ids}))")


def batches_read(story: Story) -> set[str]:
    return set(lethe.scan(story.full_name).to_arrow()["batch_id"].to_pylist())


@pytest.mark.parametrize(
    ("story", "foreign_commits"),
    [
        pytest.param(2, append_and_append, id="v2-append_and_append", marks=pytest.mark.long),
        pytest.param(2, append_and_compact, id="v2-append_and_compact"),
        pytest.param(3, append_and_append, id="v3-append_and_append", marks=pytest.mark.long),
        pytest.param(3, append_and_compact, id="v3-append_and_compact", marks=pytest.mark.long),
    ],
    indirect=["story"],
)
def test_after_a_rollback_to_a_tag_the_rows_of_older_commits_are_searched_in_the_files(
    story: Story, foreign_commits: Callable[[Story], tuple[int, int]]
) -> None:
    """A commit of Lethe after the foreign commits hid the rows. The rollback removes it, and the snapshot that added the rows has
    expired."""
    carrier = story.head().snapshot_id
    late, tagged = foreign_commits(story)
    story.spark.sql(f"ALTER TABLE {story.full_name} CREATE TAG kept AS OF VERSION {tagged}")
    story.consolidate("Z")
    assert "A" not in batches_read(story)
    expire(story, late, carrier)
    call(story, f"set_current_snapshot('{story.name}', {tagged})")

    story.consolidate("Z")

    assert {"B", "X", "Z"} <= batches_read(story) <= {"B", "X", "Y", "Z"}
    # C lies within the bounds of the late file, and has no row there.
    assert [(t.id, META_PURGED_BY in t.meta) for t in story.ledger().tombstones.values()] == [("A", True)]
