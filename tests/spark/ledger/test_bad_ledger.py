"""What Spark's reader and the jobs make of damaged ledgers and of a batch column that is not what it was."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import lethe
import lethe_spark
import pytest
from lethe.base.errors import InputError, LedgerError
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.built_once import built_once
from tests.spark.support.story import Story, of_batches, of_spark
from tests.support.lake import Lake


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake) -> Story:
    """A is taken back and purged, B taken back."""
    begun = Story.begin(spark, lake).filled("ABC")
    begun.revert("A", name="revert-a")
    begun.vacuum()
    begun.revert("B", name="revert-b")
    return begun


def newer(content: bytes) -> bytes:
    return json.dumps({**json.loads(content), "format-version": 99}).encode()


def of_another_table(content: bytes) -> bytes:
    return json.dumps({**json.loads(content), "table-uuid": "0-0"}).encode()


def halved(content: bytes) -> bytes:
    return content[: len(content) // 2]


def test_neither_reader_nor_any_job_goes_on_without_its_ledger(story: Story) -> None:
    """One file after the other is damaged, in one way after the other, and mended again."""
    root = Path(story.keys()["lethe.ledger"].removeprefix("file://"))
    tombstones = Path(story.keys()["tombstone.file"].removeprefix("file://"))
    before = story.head().snapshot_id
    ways: list[tuple[Path, Callable[[bytes], bytes] | None, str]] = [
        (root, None, "LedgerMissing"),
        (root, halved, "LedgerUnreadable"),
        (root, newer, "LedgerTooNew"),
        (root, of_another_table, "LedgerOfAnotherTable"),
        (tombstones, None, "LedgerMissing"),
        (tombstones, halved, "LedgerUnreadable"),
    ]
    story.put("Z")
    for path, damage, reason in ways:
        whole = path.read_bytes()
        path.unlink()
        if damage is not None:
            path.write_bytes(damage(whole))
        for read in (
            lambda: lethe.scan(story.full_name).to_arrow(),
            lambda: lethe_spark.read(story.spark, story.full_name).collect(),
        ):
            with pytest.raises(LedgerError) as refused:
                read()
            assert refused.value.reason == reason
            assert f"snapshot {before}" in refused.value.message
            assert path.name in refused.value.message
        with pytest.raises(LedgerError, match=reason):
            story.vacuum(key="2")
        path.write_bytes(whole)
    assert story.head().snapshot_id == before
    story.check_reads(of_batches("C"))


def test_a_renamed_batch_column_changes_nothing(story: Story) -> None:
    """By any engine, in the middle of everything: reads and jobs go by its field id."""
    past = story.snapshots()[-1].snapshot_id
    story.spark.sql(f"ALTER TABLE {story.full_name} RENAME COLUMN batch_id TO load_id")
    story.put("Z")

    assert story.consolidate("Z").batches_promoted == 1
    assert story.revert("C", name="revert-c").tombstones_added == 1

    def read(snapshot_id: int | None = None) -> Counter[str]:
        frame = lethe_spark.read(story.spark, story.full_name, snapshot_id=snapshot_id)
        arrow = lethe.scan(story.full_name, snapshot_id=snapshot_id).to_arrow()
        column = "load_id" if snapshot_id is None else "batch_id"
        found = Counter(r[column] for r in frame.collect())
        assert found == Counter(arrow[column].to_pylist())
        return found

    assert read() == {"Z": 4}
    assert story.vacuum(key="2").tombstones_purged == 2
    assert read() == {"Z": 4}
    assert read(past) == {"A": 4, "B": 4, "C": 4}


@pytest.mark.parametrize("again", some([None, "string", "int"], "string"))
def test_a_dropped_batch_column_stops_reads_and_jobs(story: Story, again: str | None) -> None:
    """Another column of that name is not the batch column, whatever its type."""
    past = story.head().snapshot_id
    story.spark.sql(f"ALTER TABLE {story.full_name} WRITE UNORDERED")  # Iceberg keeps a column that it sorts by
    story.spark.sql(f"ALTER TABLE {story.full_name} DROP COLUMN batch_id")
    if again:
        story.spark.sql(f"ALTER TABLE {story.full_name} ADD COLUMN batch_id {again}")
    before = story.table().metadata_location
    story.put("Z")

    for attempt in (
        lambda: lethe.scan(story.full_name).to_arrow(),
        lambda: lethe_spark.read(story.spark, story.full_name).collect(),
        lambda: story.consolidate("Z"),
        lambda: story.vacuum(key="2"),
        lambda: story.run(story.restatement()),
    ):
        with pytest.raises(InputError, match=story.name) as refused:
            attempt()
        assert refused.value.reason == "BatchColumnDropped"

    assert story.table().metadata_location == before  # nothing was prepared again, either
    assert of_spark(lethe_spark.read(story.spark, story.full_name, snapshot_id=past)) == of_batches("C")
