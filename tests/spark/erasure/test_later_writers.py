"""An erasure stays open as long as somebody may still bring its rows back, and a run that read them before does not."""

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from lethe.contract.result import RunResult
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.erasures import blockers, check_closed, check_erasures, erase, tag, three_batches
from tests.spark.support.story import Story, local, of_batches
from tests.support.lake import Lake


@pytest.fixture
def story(spark: SparkSession, lake: Lake) -> Story:
    return three_batches(spark, lake)


def holding(story: Story, batch: str) -> list[str]:
    """Every data file below the table with a row of the batch, whether or not a snapshot names it."""
    root = Path(local(story.table().location()))
    files = [p for p in root.rglob("*.parquet") if "batch_id" in pq.read_schema(p).names]
    return [p.name for p in files if batch in pq.read_table(p, partitioning=None)["batch_id"].to_pylist()]


def retained_holding(story: Story, batch: str) -> list[int]:
    """Retained snapshots, of whatever ref, that name a data file with rows of the batch."""
    table, names = story.table(), set(holding(story, batch))
    found = []
    for snapshot in table.metadata.snapshots:
        entries = (e for m in snapshot.manifests(table.io) for e in m.fetch_manifest_entry(table.io))
        if any(e.data_file.file_path.rpartition("/")[2] in names for e in entries):
            found.append(snapshot.snapshot_id)
    return found


def test_a_branch_made_after_the_purge_that_copies_the_batch_from_a_tag_holds_the_erasure(story: Story) -> None:
    tag(story)
    erase(story, "A")
    held = story.vacuum()
    story.spark.sql(f"ALTER TABLE {story.full_name} CREATE BRANCH copy")
    rows = f"SELECT * FROM {story.full_name} VERSION AS OF 'audit' WHERE batch_id = 'A'"
    story.spark.sql(f"INSERT INTO {story.full_name}.branch_copy {rows}")
    story.table().manage_snapshots().remove_tag("audit").commit()

    copied = check_erasures(story)
    story.spark.sql(f"ALTER TABLE {story.full_name} DROP BRANCH copy")
    free = check_erasures(story)

    assert (blockers(held), blockers(copied)) == (["tag audit"], ["branch copy"])
    check_closed(story, free)
    assert (holding(story, "A"), retained_holding(story, "A")) == ([], [])
    story.check_reads(of_batches("B", "D"))


def test_a_copy_that_is_made_while_the_storage_is_asked_is_seen_before_the_erasure_is_closed(story: Story) -> None:
    erase(story, "A")

    def copy() -> None:
        story.spark.sql(f"ALTER TABLE {story.full_name} CREATE BRANCH copy")
        story.spark.sql(f"INSERT INTO {story.full_name}.branch_copy VALUES (CAST(1 AS BIGINT), 1, 'A')")

    held = story.vacuum(after_storage_asked=copy)

    assert blockers(held) == ["branch copy"]


@pytest.mark.long
def test_the_check_reopens_an_erasure_if_another_writer_restores_its_rows(story: Story) -> None:
    """Nothing of Lethe's has committed since, so that no ledger knows of them yet."""
    tag(story)
    erase(story, "A")
    story.vacuum()
    rows = f"SELECT * FROM {story.full_name} VERSION AS OF 'audit' WHERE batch_id = 'A'"
    story.spark.sql(f"INSERT INTO {story.full_name} {rows}")
    story.table().manage_snapshots().remove_tag("audit").commit()

    reopened = check_erasures(story)
    purged = story.vacuum(key="2")

    assert reopened.erasures_open == 1
    check_closed(story, purged)
    assert holding(story, "A") == []
    story.check_reads(of_batches("B", "D"))


@pytest.mark.parametrize("step", some(["after_list", "after_write", "after_stage", "before_commit"], "before_commit"))
def test_a_batch_that_is_erased_while_a_run_writes_it_is_gone_when_the_erasure_is_verified(
    story: Story, step: str
) -> None:
    """The run has listed it, written it or staged it before; what it holds is thrown away, and the other batch goes in."""
    story.put("X", "Y")
    looks: list[RunResult] = []

    def erased() -> None:
        erase(story, "X")
        looks.append(story.vacuum())

    at: dict[str, Callable[[], object]] = {step: erased}
    story.consolidate("X", "Y", **at)
    free = check_erasures(story)

    assert looks[0].erasures_open == 1
    check_closed(story, free)
    assert (holding(story, "X"), retained_holding(story, "X")) == ([], [])
    story.check_reads(of_batches("A", "B", "D", "Y"))
