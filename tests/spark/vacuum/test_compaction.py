"""Small files become larger ones, sorted; nothing comes back, nothing goes, whoever else is at work and wherever a run dies.

Arrow merges them, without Spark's rows. The result is that of a merge by Spark.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import lethe
import pyarrow.parquet as pq
import pytest
from lethe.contract.run import SnapshotLimits
from lethe_spark.jobs.vacuum import compaction
from lethe_spark.jobs.vacuum.compaction import MergedBins, compact_small_files
from pyspark.sql import SparkSession

from tests.spark.parameters import named
from tests.spark.support.all_types import (
    COLUMNS,
    ROWS_OF_ALL_TYPES,
    data_file,
    differences,
    ids_of,
    metrics,
    rows_of,
)
from tests.spark.support.built_once import built_once
from tests.spark.support.maintenance import below, by_day, maintain, maintaining, table_of
from tests.spark.support.native_deletes import Native
from tests.spark.support.story import Row, Story, local, of_batches
from tests.support.lake import Lake
from tests.support.steps import Killed, SteppedContext, die

MERGED = {f"day={day}": [["A", "A", "B", "B", "D", "D"]] for day in (1, 2)}
NEIGHBOURS = ("id < 700", "id BETWEEN 700 AND 1250", "id > 1250")
OVERLAPPING = ("id % 3 = 0", "id % 3 = 1", "id % 3 = 2")


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake) -> Story:
    """Batches A, B and D are in the table, each in files of its own on two days."""
    return Story.begin(spark, lake).filled("D", "A", "B")


@pytest.fixture
def merged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the files that Arrow has merged."""
    paths: list[str] = []
    original = compaction.merge_bins

    def remembered(*arguments: Any) -> MergedBins:
        done = original(*arguments)
        paths.extend(f.path for f in done.removed)
        return done

    monkeypatch.setattr(compaction, "merge_bins", remembered)
    return paths


def test_small_files_of_a_partition_become_one_in_batch_order_and_no_reader_notices(
    story: Story, merged: list[str]
) -> None:
    since = story.head().snapshot_id
    ledger = story.ledger()

    result = maintain(story, compact_small_files=True, expire_snapshots=False)

    assert (result.outcome, result.small_files_compacted, result.message) == ("Committed", 6, "")
    assert (result.snapshot_id, len(merged)) == (story.head().snapshot_id, 6)
    assert by_day(story) == MERGED
    keys = story.keys()
    assert (story.operation(), keys["lethe.run-kind"], "tombstone.vacuum.file" in keys) == ("replace", "Vacuum", False)
    assert dict(story.ledger().batches) == dict(ledger.batches)
    assert lethe.scan(story.full_name, since=since).to_arrow().num_rows == 0
    story.check_reads(of_batches("A", "B", "D"))
    assert maintain(story, key="2", compact_small_files=True).outcome == "NothingToDo"


@pytest.mark.long
def test_files_that_may_hold_rows_to_purge_are_left_to_the_purge(story: Story) -> None:
    """Merged, their survivors would be written twice."""
    story.filled("C", "E")
    story.revert("B")
    context = story.context(maintaining(story))

    done = compact_small_files(context, table_of(story), None, lambda: "")

    assert done.merged == 6  # of C, D and E; A has no neighbour left
    assert by_day(story)["day=1"].count(["A", "A"]) == by_day(story)["day=1"].count(["B", "B"]) == 1
    story.check_reads(of_batches("A", "C", "D", "E"))


def test_what_is_purged_first_makes_neighbours_of_the_others(story: Story) -> None:
    story.revert("B")

    result = maintain(story, compact_small_files=True)

    assert (result.files_deleted, result.small_files_compacted) == (2, 4)
    assert by_day(story) == {day: [["A", "A", "D", "D"]] for day in MERGED}
    story.check_reads(of_batches("A", "D"))


@pytest.mark.long
def test_the_budget_of_a_run_holds_for_the_purge_and_the_compaction_together(story: Story) -> None:
    assert maintain(story, compact_small_files=True, max_bytes=1).small_files_compacted == 0
    one_day = sum(p.stat().st_size for path, p in below(story).items() if "day=1" in path)

    assert maintain(story, key="2", compact_small_files=True, max_bytes=one_day).small_files_compacted == 3


@pytest.mark.long
def test_each_step_is_a_commit_of_its_own(story: Story) -> None:
    before = len(story.snapshots())

    result = maintain(story, compact_small_files=True, step_bytes=1, expire_snapshots=False)

    assert (result.small_files_compacted, len(story.snapshots()) - before) == (6, 2)
    assert by_day(story) == MERGED
    story.check_reads(of_batches("A", "B", "D"))


@pytest.mark.long
def test_no_step_begins_when_the_time_is_over_and_what_was_committed_stays(story: Story) -> None:
    assert maintain(story, compact_small_files=True, max_seconds=0).stopped == "MaxRunSeconds"
    assert {len(files) for files in by_day(story).values()} == {3}
    answers = iter(["", "WindowClosed"])

    done = compact_small_files(
        story.context(maintaining(story, step_bytes=1)), table_of(story), None, lambda: next(answers)
    )

    assert (done.merged, done.stopped) == (3, True)
    assert sorted(map(len, by_day(story).values())) == [1, 3]
    story.check_reads(of_batches("A", "B", "D"))


@pytest.mark.long
def test_files_with_native_deletes_are_left_alone_and_the_others_keep_their_row_ids(
    spark: SparkSession, lake: Lake
) -> None:
    """An Undo takes rows out of deletion vectors: the rows have to be there."""
    story = Native.begin(spark, lake).filled("AB", "C", "D")
    story.revert("A")
    ids = ids_of(story)
    context = story.context(maintaining(story))

    done = compact_small_files(context, table_of(story), None, lambda: "")

    assert done.merged == 4  # of C and D
    assert ids_of(story) == ids
    story.check_native(of_batches("B", "C", "D"))
    assert story.undo().succeeded
    story.check_native(of_batches("A", "B", "C", "D"))


# --- as Spark merges -------------------------------------------------------------------------------------------------


def by_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "merge_bins", lambda *arguments: MergedBins((), (), tuple(arguments[3])))


def in_files(spark: SparkSession, lake: Lake, parts: tuple[str, ...], version: int, group_bytes: int) -> Story:
    """Twenty batches of a hundred rows with columns of many types, in one file for each part."""
    story = Story.begin(spark, lake, format_version=version)
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {story.catalog}.air")
    wanted = {"format-version": version, "write.parquet.row-group-size-bytes": group_bytes}
    wanted |= {f"write.parquet.row-group-check-{which}-record-count": 100 for which in ("min", "max")}
    wanted |= {"write.metadata.metrics.column.batch_id": "full"}
    properties = ", ".join(f"'{k}' = '{v}'" for k, v in wanted.items())
    spark.sql(f"CREATE TABLE {story.full_name} ({COLUMNS}) USING iceberg TBLPROPERTIES ({properties})")
    spark.sql(f"ALTER TABLE {story.full_name} WRITE ORDERED BY batch_id NULLS FIRST")
    for part in parts:
        rows = spark.sql(f"SELECT * FROM ({ROWS_OF_ALL_TYPES}) WHERE {part} ORDER BY id").coalesce(1)
        options = {"use-table-distribution-and-ordering": "false", "output-sort-order-id": "1"}
        rows.writeTo(story.full_name).options(**options).append()
    return story


@pytest.mark.long
@pytest.mark.parametrize("format_version", [2, 3])
@pytest.mark.parametrize(
    ("parts", "group_bytes"), [(NEIGHBOURS, 20_000), (NEIGHBOURS, 16 << 20), (OVERLAPPING, 20_000)]
)
def test_rows_order_ids_and_metrics_of_all_types_are_those_of_a_merge_by_spark(
    spark: SparkSession,
    lake: Lake,
    merged: list[str],
    monkeypatch: pytest.MonkeyPatch,
    parts: tuple[str, ...],
    group_bytes: int,
    format_version: int,
) -> None:
    stories = [in_files(spark, lake, parts, format_version, group_bytes) for _ in range(2)]
    before = ids_of(stories[0], "id") if format_version == 3 else {}
    for story in stories:
        assert maintain(story, compact_small_files=True).small_files_compacted == 3
        assert len(merged) == 3
        by_spark(monkeypatch)

    files = [data_file(story) for story in stories]
    contents = [pq.ParquetFile(local(f.file_path)) for f in files]
    assert rows_of(stories[0]) == rows_of(stories[1])
    assert contents[0].read()["batch_id"] == contents[1].read()["batch_id"]
    if parts == NEIGHBOURS:
        assert contents[0].read()["id"].to_pylist() == list(range(2000))
    assert differences(metrics(files[0]), metrics(files[1])) == {}
    assert contents[0].schema.names == contents[1].schema.names
    offsets = [contents[0].metadata.row_group(n).column(0) for n in range(contents[0].num_row_groups)]
    assert files[0].split_offsets == [c.dictionary_page_offset or c.data_page_offset for c in offsets]
    assert (len(offsets) > 1) == (group_bytes == 20_000)
    if format_version == 3:
        assert ids_of(stories[0], "id") == ids_of(stories[1], "id") == before


@pytest.mark.long
def test_what_arrow_does_not_write_is_merged_by_spark(spark: SparkSession, lake: Lake, merged: list[str]) -> None:
    story = Story.begin(spark, lake).filled("A", "B")
    spark.sql(
        f"ALTER TABLE {story.full_name} SET TBLPROPERTIES ('write.parquet.bloom-filter-enabled.column.v' = 'true')"
    )

    assert maintain(story, compact_small_files=True).small_files_compacted == 4

    assert merged == []
    story.check_reads(of_batches("A", "B"))


@pytest.mark.long
def test_an_error_in_a_task_leaves_no_file_and_the_table_as_it_was(
    spark: SparkSession, lake: Lake, merged: list[str]
) -> None:
    story = Story.begin(spark, lake).filled("A", "B")
    head = story.head().snapshot_id
    lost = next(path for name, path in below(story).items() if "day=2" in name and name.endswith(".parquet"))
    kept = lost.rename(lost.with_suffix(".away"))
    before = story.data_folder()

    result = maintain(story, compact_small_files=True, expire_snapshots=False)

    assert "small files were not compacted" in result.message
    assert (merged, story.head().snapshot_id, story.data_folder()) == ([], head, before)
    kept.rename(lost)
    assert maintain(story, key="2", compact_small_files=True).small_files_compacted == 4
    story.check_reads(of_batches("A", "B"))


@pytest.mark.long
def test_a_table_that_is_upgraded_in_the_meantime_is_planned_again(
    spark: SparkSession, lake: Lake, merged: list[str]
) -> None:
    """The rows have got ids since their new file was written without them."""
    story = Story.begin(spark, lake).filled("A", "B")
    ids: dict[Any, tuple[int, int, str]] = {}

    def upgrade() -> None:
        if not ids:
            spark.sql(f"ALTER TABLE {story.full_name} SET TBLPROPERTIES ('format-version' = '3')")
            spark.sql(f"INSERT INTO {story.full_name} VALUES (900, 3, 'E')")
            ids.update(ids_of(story))

    result = maintain(story, {"after_compact": upgrade}, compact_small_files=True)

    assert (result.small_files_compacted, len(merged)) == (4, 8)
    assert ids_of(story) == ids


# --- races ----------------------------------------------------------------------------------------------------------


class Race(NamedTuple):
    """What others do once the files are merged, how many of these count, what lies in each partition, and what is seen."""

    act: Callable[[Story], object]
    compacted: int
    files: dict[str, list[list[str]]]
    rows: Counter[Row]


def purged(story: Story) -> None:
    story.revert("A")
    assert story.vacuum(key="theirs").tombstones_purged == 1


MEANWHILE = {
    "a revert": Race(lambda s: s.revert("A"), 6, MERGED, of_batches("B", "D")),
    "a purge": Race(purged, 4, {day: [["B", "B", "D", "D"]] for day in MERGED}, of_batches("B", "D")),
    "a compaction by another engine": Race(Story.compact, 0, MERGED, of_batches("A", "B", "D")),
}


@pytest.mark.parametrize("case", named({k: (v,) for k, v in MEANWHILE.items()}, *MEANWHILE))
def test_what_others_commit_while_files_are_merged_holds_and_no_row_returns(story: Story, case: Race) -> None:
    """The tombstone of purged rows is gone by then: nothing would hide them any more."""
    result = maintain(story, {"after_compact": lambda: case.act(story)}, compact_small_files=True)

    assert result.small_files_compacted == case.compacted
    assert {day: [sorted(map(str, ids)) for ids in files] for day, files in by_day(story).items()} == case.files
    story.check_reads(case.rows)
    if not case.compacted:
        assert not [p for p in story.data_folder() if maintaining(story).run_id in p], "what it wrote in vain is left"
    if story.ledger().tombstones:
        assert story.undo().succeeded
        story.check_reads(of_batches("A", "B", "D"))


@pytest.mark.long
def test_rows_that_another_writer_brought_of_a_purged_batch_are_hidden_in_the_merged_file(story: Story) -> None:
    """Nothing hides them yet when they are merged: their tombstone comes with the compaction's own commit."""
    story.revert("A")
    story.vacuum()
    story.append_as_foreign_writer("A")

    result = maintain(story, key="2", compact_small_files=True)

    assert result.small_files_compacted == 5
    assert by_day(story)["day=1"] == [["A", "B", "B", "D", "D"]]
    assert story.tombstones() == {"A"}
    story.check_reads(of_batches("B", "D"))


@dataclass(frozen=True)
class Repeating(SteppedContext):
    """Something happens each time that files were merged."""

    happening: Callable[[], object] = die

    def step(self, name: str) -> None:
        if name == "after-compact":
            self.happening()


@pytest.mark.long
def test_files_that_keep_changing_under_it_are_left_for_later(story: Story) -> None:
    story.filled("E")
    gone = iter("ABD")

    def drop() -> None:
        """Somebody takes a batch out of the table, by whole files."""
        batch = next(gone)
        story.table().delete(f"batch_id = '{batch}'")

    context = story.context(maintaining(story))
    repeating = Repeating(context.spec, context.reporter, context.catalog_properties, spark=story.spark, happening=drop)

    done = compact_small_files(repeating, table_of(story), None, lambda: "")

    assert (done.merged, "kept replacing the small files" in done.why) == (0, True)
    story.check_reads(of_batches("E"))


# --- deaths ----------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("step", ["after_compact", "before_commit", "after_commit"])
def test_a_compaction_that_dies_loses_nothing_and_its_repetition_finishes_it(story: Story, step: str) -> None:
    run = maintaining(story, compact_small_files=True, limits=SnapshotLimits())
    with pytest.raises(Killed):
        story.run(run, **{step: die})
    story.check_reads(of_batches("A", "B", "D"))

    result = story.run(run)

    assert result.small_files_compacted == (0 if step == "after_commit" else 6)
    assert by_day(story) == MERGED
    story.check_reads(of_batches("A", "B", "D"))


def test_a_vacuum_that_dies_over_its_maintenance_loses_nothing(story: Story) -> None:
    """What it had purged stays purged."""
    story.revert("B")
    run = maintaining(story, compact_small_files=True, rewrite_manifests=True, remove_orphan_files=True)

    with pytest.raises(Killed):
        story.run(run, after_compact=die)

    assert story.ledger().tombstones == {}
    story.check_reads(of_batches("A", "D"))
    assert story.run(run).small_files_compacted == 4
    story.check_reads(of_batches("A", "D"))
