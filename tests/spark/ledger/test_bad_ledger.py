"""What Spark's reader and the jobs make of damaged ledgers and of a batch column that is not what it was."""

import json
from collections.abc import Callable
from pathlib import Path

import lethe
import lethe_spark
import pytest
from lethe.base.errors import LedgerError
from pyspark.sql import SparkSession

from tests.spark.support.built_once import built_once
from tests.spark.support.story import Story, of_batches
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
