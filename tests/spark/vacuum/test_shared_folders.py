"""Two tables in one folder. Nothing there is an orphan, and a new table gets a folder of its own."""

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from lethe.contract.settings import Deletes
from lethe_spark.jvm.spark_table import SparkTable
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.erases import Names, row
from tests.spark.support.maintenance import below, grow_old, maintain
from tests.spark.support.story import ALL_GONE, Row, Story, local
from tests.support.lake import Lake

ORPHANS = {"remove_orphan_files": True, "orphan_files_older_than_seconds": 86_400}


def renamed(story: Names) -> Names:
    """The table under another name. Its Dataset and buffer are gone."""
    moved = replace(story, name=f"{story.name}_renamed")
    story.sql(f"ALTER TABLE {{t}} RENAME TO {moved.name}")
    moved.sql("ALTER TABLE {t} UNSET TBLPROPERTIES ('lethe.dataset')")
    shutil.rmtree(story.buffer.path)
    return moved


def in_the_folder_of(old: Names, new: Names) -> Names:
    """Another table at the location of the old one, as engines create it under the name that is free again."""
    location = old.table().location()
    new.spark.sql(
        f"CREATE TABLE {new.full_name} (v BIGINT, day INT, name STRING, batch_id STRING) USING iceberg "
        f"PARTITIONED BY (day) LOCATION '{location}' TBLPROPERTIES ('write.metadata.metrics.column.batch_id' = 'full', "
        f"'format-version' = '{new.format_version}')"
    )
    new.sql("ALTER TABLE {t} WRITE ORDERED BY batch_id")
    return new


def rows_at_each(story: Story) -> dict[int, Counter[Row]]:
    return {s.snapshot_id: story.rows_at(s.snapshot_id) for s in story.snapshots()}


def let_time_pass(*stories: Story) -> None:
    for story in stories:
        grow_old(*below(story).values(), days=30)


@pytest.fixture(params=some(Deletes, Deletes.LEDGER))
def old(request: pytest.FixtureRequest, spark: SparkSession, lake: Lake) -> Names:
    """Batch A is reverted, a row of B is erased."""
    story = Names.of(Story.begin(spark, lake), deletes=request.param).filled()
    assert story.revert("A").succeeded
    assert story.erase(row("B", 1)).succeeded
    return story


def check_native(*stories: Names) -> None:
    """Readers without a ledger find the same rows in each table, if its rows are deleted natively."""
    for story in stories:
        if story.deletes != Deletes.LEDGER:
            assert story.physical() == story.rows_at()


def test_a_table_under_a_name_that_is_free_again_gets_a_folder_of_its_own(old: Names) -> None:
    moved, before = renamed(old), rows_at_each(replace(old, name=f"{old.name}_renamed"))

    new = old.filled()

    location = new.table().location()
    assert location.startswith(f"{moved.table().location()}-")
    assert new.revert("D").succeeded
    assert new.erase(row("A", 1)).succeeded
    let_time_pass(new, moved)
    result = maintain(new, key="1", limits=ALL_GONE, **ORPHANS)
    assert "FolderHoldsTable" not in result.message
    assert rows_at_each(moved) == before
    moved.check_reads()
    new.check_reads()
    check_native(moved, new)


def test_a_table_whose_location_has_no_files_is_where_the_catalog_puts_it(spark: SparkSession, lake: Lake) -> None:
    story = Names.of(Story.begin(spark, lake)).filled()

    assert story.table().location().endswith("/" + story.name.replace(".", "/"))


@pytest.mark.parametrize("old", some(Deletes, Deletes.LEDGER, Deletes.DELETION_VECTORS), indirect=True)
def test_nothing_below_a_location_of_two_tables_is_removed_and_the_vacuum_says_why(old: Names) -> None:
    """Both keep all their rows at each snapshot, also while the other one is restated and erased from."""
    moved = renamed(old)
    before = rows_at_each(moved)
    new = in_the_folder_of(moved, old).filled()
    assert new.revert("D").succeeded
    assert new.erase(row("A", 1)).succeeded
    let_time_pass(new)
    ledgers = set(moved.ledger_files())
    check_native(moved, new)

    planned = maintain(new, key="0", plan_only=True, **ORPHANS)
    result = maintain(new, key="1", limits=ALL_GONE, **ORPHANS)
    of_old = maintain(moved, key="2", **ORPHANS)

    for message in (planned.message, result.message, of_old.message):
        assert "FolderHoldsTable" in message
        assert "another table uses the same location" in message
    assert result.orphan_files_removed == of_old.orphan_files_removed == 0
    assert ledgers <= set(moved.ledger_files())
    assert rows_at_each(moved).items() >= before.items()
    moved.check_reads()
    new.check_reads()
    check_native(moved, new)


def test_the_other_table_is_noticed_by_its_ledger_if_its_metadata_is_elsewhere(old: Names, tmp_path: Path) -> None:
    elsewhere = f"file://{tmp_path}/metadata"
    old.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('write.metadata.path' = '{elsewhere}')")
    assert old.revert("B", name="later").succeeded
    moved = renamed(old)
    for file in Path(local(moved.table().location()), "metadata").glob("*.metadata.json"):
        file.unlink()
    new = in_the_folder_of(moved, old).filled()
    let_time_pass(new)

    result = maintain(new, key="1", **ORPHANS)

    assert "FolderHoldsTable" in result.message
    assert SparkTable.load(new.spark, moved.catalog, moved.name) is not None
    assert moved.rows_at()
