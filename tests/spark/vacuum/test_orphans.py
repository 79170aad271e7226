"""Files that nobody needs go; whatever somebody may need stays, whoever is at work beside it and wherever it dies."""

import os
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import lethe
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.contract.settings import Deletes
from lethe_spark.apps.session import make_session
from lethe_spark.jvm.spark_table import SparkTable
from pyiceberg.table.statistics import StatisticsFile
from pyspark.sql import SparkSession

from tests.spark.parameters import MODES, some
from tests.spark.support.built_once import built_once
from tests.spark.support.erases import Names, row
from tests.spark.support.maintenance import below, grow_old, maintain, maintaining
from tests.spark.support.story import ALL_GONE, Row, Story, local, of_batches
from tests.support.builders import RUN
from tests.support.lake import Lake
from tests.support.servers.s3 import S3
from tests.support.steps import Killed, die

LITTER = (f"data/{RUN}/day=1/00000-1-a.parquet", "data/day=2/b.parquet", "metadata/snap-1-1-a.avro", "metadata/a.stats")
KEPT = (
    "_tombstones/notes.txt",
    "_erasures/record.json",
    "data/_hidden/a.parquet",
    "data/notes.txt",
    "elsewhere/a.parquet",
)


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake) -> Story:
    """Batches A and B are in the table; A is reverted, and B's first snapshot has a tag."""
    story = Story.begin(spark, lake).filled("A", "B")
    story.tag()
    story.revert("A")
    return story


def root(story: Story) -> Path:
    return Path(local(story.table().location()))


def put(story: Story, *paths: str) -> None:
    """Old files below the table that nobody names."""
    for path in paths:
        file = root(story) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"litter")
        grow_old(file)


def sweep(story: Story, key: str = "1") -> tuple[int, set[str]]:
    """How many files a vacuum that only sweeps says it removed, and which."""
    before = set(below(story))
    result = maintain(story, key=key, remove_orphan_files=True, max_bytes=0, expire_snapshots=False)
    gone = before - set(below(story))
    assert (result.orphan_files_found, result.message) == (result.orphan_files_removed, "")
    return result.orphan_files_removed, gone


def test_litter_goes_and_what_any_snapshot_needs_stays_however_old_it_is(story: Story) -> None:
    """Tags, staged snapshots, statistics, ledgers, older metadata: all of it looks four days old."""
    story.vacuum()
    statistics = "metadata/statistics.stats"
    put(story, statistics)
    with story.table().update_statistics() as update:
        path = f"{story.table().location()}/{statistics}"
        head = story.head().snapshot_id
        update.set_statistics(
            StatisticsFile(
                snapshot_id=head,
                statistics_path=path,
                file_size_in_bytes=6,
                file_footer_size_in_bytes=0,
                blob_metadata=[],
            )
        )
    grow_old(*below(story).values())
    put(story, *LITTER, *KEPT)

    removed, gone = sweep(story, "2")

    assert (removed, gone) == (len(LITTER), set(LITTER))
    assert set(below(story)) >= {statistics, *KEPT}
    story.check_reads(of_batches("B"))
    assert lethe.scan(story.full_name, snapshot_id=story.table().refs()["audit"].snapshot_id).to_arrow().num_rows == 8
    assert sweep(story, "3") == (0, set())


def test_a_run_that_only_plans_lists_what_would_go_and_removes_nothing(story: Story) -> None:
    story.vacuum()
    put(story, *LITTER)

    result = maintain(story, key="2", remove_orphan_files=True, plan_only=True)

    assert (result.orphan_files_found, result.orphan_files_removed, result.orphan_bytes_found) == (4, 0, 24)
    assert result.orphan_files == (
        f"data/{RUN}/day=…/00000-1-a.parquet",
        "data/day=…/b.parquet",
        "metadata/a.stats",
        "metadata/snap-1-1-a.avro",
    )
    assert set(below(story)) >= set(LITTER)


def test_nothing_goes_while_a_manifest_of_any_snapshot_cannot_be_read(story: Story) -> None:
    """What it lists would be taken for litter."""
    story.vacuum()
    put(story, *LITTER)
    table = story.table()
    tagged = table.snapshot_by_id(table.refs()["audit"].snapshot_id)
    assert tagged is not None
    of_head = {m.manifest_path for m in story.head().manifests(table.io)}
    damaged = Path(local(next(m.manifest_path for m in tagged.manifests(table.io) if m.manifest_path not in of_head)))
    content = damaged.read_bytes()
    damaged.write_bytes(content[:50])
    damaged.with_name(f".{damaged.name}.crc").unlink(missing_ok=True)
    before = set(below(story))

    result = maintain(story, key="2", remove_orphan_files=True, expire_snapshots=False)

    assert (result.orphan_files_removed, "orphan files were not removed" in result.message) == (0, True)
    assert before <= set(below(story))
    damaged.write_bytes(content)


def test_litter_stays_while_it_is_young_and_behind_the_end_of_the_window_and_where_the_table_says_so(
    story: Story,
) -> None:
    put(story, *LITTER)
    for path in LITTER:
        os.utime(root(story) / path)
    assert sweep(story) == (0, set())

    put(story, *LITTER)
    result = maintain(story, key="late", remove_orphan_files=True, max_seconds=0)
    assert (result.orphan_files_removed, result.stopped) == (0, "MaxRunSeconds")
    assert set(below(story)) >= set(LITTER)

    story.set_properties({"gc.enabled": "false"})
    kept = maintain(story, key="2", remove_orphan_files=True)
    assert (kept.orphan_files_removed, "the table property gc.enabled is not true" in kept.message) == (0, True)
    assert set(below(story)) >= set(LITTER)
    story.unset_properties("gc.enabled")
    assert set(LITTER) <= sweep(story, "3")[1]


# --- races ----------------------------------------------------------------------------------------------------------


def test_an_old_file_that_becomes_part_of_the_table_after_the_listing_stays(story: Story) -> None:
    """It was listed, and nobody named it yet. Who reads the metadata first would delete it."""
    path = "data/day=1/theirs.parquet"
    put(story, path, *LITTER)
    rows = pa.table({"v": [500], "day": pa.array([1], pa.int32()), "batch_id": ["x"]})
    pq.write_table(rows, root(story) / path)
    grow_old(root(story) / path)

    result = maintain(
        story,
        {"after_listing": lambda: story.table().add_files([f"{story.table().location()}/{path}"])},
        remove_orphan_files=True,
        expire_snapshots=False,
    )

    assert result.orphan_files_removed == len(LITTER)
    story.check_reads(of_batches("B") + Counter({("x", 500, 1): 1}))


def test_files_of_a_run_under_way_stay_though_its_first_ones_are_old(story: Story) -> None:
    """It has not staged or committed anything: only its folder tells."""
    put(story, *LITTER)

    def beside() -> None:
        (first, *_) = (p for path, p in below(story).items() if spec.run_id in path)
        grow_old(first)
        assert sweep(story) == (len(LITTER), set(LITTER))

    spec = story.restatement(story.a_replay("B", by="B2"))
    (done,) = story.run(spec, after_write=beside).requests

    assert done.succeeded
    story.check_reads(of_batches("B2", rows=3))


# --- deaths and stores ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", some(["after_listing", "before_orphans", "between_orphans"], "between_orphans"))
def test_a_sweep_that_dies_is_finished_by_the_next(story: Story, step: str) -> None:
    put(story, *LITTER)
    run = maintaining(story, remove_orphan_files=True, expire_snapshots=False)
    with pytest.raises(Killed):
        story.run(run, **{step: die})

    story.run(run)

    assert not set(LITTER) & set(below(story))
    story.check_reads(of_batches("B"))


def test_a_bucket_is_swept_as_a_folder_is(spark: SparkSession, lake: Lake, s3: S3, tmp_path: Path) -> None:
    bucket = s3.bucket("sweep")
    home = {"uri": f"sqlite:///{tmp_path}/s3.db", "warehouse": f"s3://{bucket}/wh"}
    lake.add_catalog("s3sweep", type="sql", **home, **s3.properties(), **{"s3.path-style-access": "true"})
    make_session("s3sweep")
    story = Story.begin(spark, lake, catalog="s3sweep").filled("A")
    below_bucket = story.table().location().removeprefix(f"s3://{bucket}/")
    for path in (*LITTER, *KEPT):
        s3.put(bucket, f"{below_bucket}/{path}", b"litter")
    s3.grow_old(bucket, days=4)
    before = set(s3.keys(bucket))

    result = maintain(story, remove_orphan_files=True, expire_snapshots=False)

    assert result.orphan_files_removed == len(LITTER)
    assert before - set(s3.keys(bucket)) == {f"{below_bucket}/{path}" for path in LITTER}
    assert lethe.scan(story.full_name).to_arrow().num_rows == 4


def test_a_folder_that_another_tables_metadata_is_in_loses_nothing(story: Story, spark: SparkSession) -> None:
    """By a rename, after which the old name was made again: to each of the two the other's files look like litter."""
    other = f"{story.name}_renamed"
    mine, theirs = f"{story.catalog}.{story.name}", f"{story.catalog}.{other}"
    spark.sql(f"CREATE TABLE {theirs} (v BIGINT) USING iceberg LOCATION '{story.table().location()}'")
    spark.sql(f"INSERT INTO {theirs} VALUES (1), (2)")
    put(story, *LITTER)
    grow_old(*below(story).values())
    before = set(below(story))

    result = maintain(story, key="shared", remove_orphan_files=True, max_bytes=0, expire_snapshots=False)

    assert "another table uses the same location" in result.message
    assert result.orphan_files_removed == 0
    assert before <= set(below(story))
    assert spark.table(theirs).count() == 2
    assert mine != theirs


# --- two tables in one folder ----------------------------------------------------------------------------------------
# Two tables in one folder. Nothing there is an orphan, and a new table gets a folder of its own.


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


@pytest.fixture(params=some(MODES, Deletes.LEDGER))
def old(request: pytest.FixtureRequest, spark: SparkSession, lake: Lake) -> Names:
    """Batch A is reverted, a row of B is erased."""
    story = Names.begin(spark, lake, deletes=request.param).filled()
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
    story = Names.begin(spark, lake).filled()

    assert story.table().location().endswith("/" + story.name.replace(".", "/"))


@pytest.mark.parametrize("old", some(MODES, Deletes.LEDGER, Deletes.DELETION_VECTORS), indirect=True)
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
