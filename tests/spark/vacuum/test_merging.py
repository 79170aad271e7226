"""Small files are merged by Arrow, without Spark's rows. The result is that of a merge by Spark."""

from typing import Any

import pyarrow.parquet as pq
import pytest
from lethe_spark.jobs.vacuum import compaction
from lethe_spark.jobs.vacuum.compaction import MergedBins
from pyspark.sql import SparkSession

from tests.spark.support.all_types import COLUMNS, ROWS_OF_ALL_TYPES, data_file, differences, metrics, rows_of
from tests.spark.support.maintenance import below, by_day, maintain
from tests.spark.support.story import Story, local, of_batches
from tests.spark.vacuum.test_row_ids import ids_of
from tests.support.lake import Lake

NEIGHBOURS = ("id < 700", "id BETWEEN 700 AND 1250", "id > 1250")
OVERLAPPING = ("id % 3 = 0", "id % 3 = 1", "id % 3 = 2")


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


def test_files_of_consolidations_are_merged_by_arrow(spark: SparkSession, lake: Lake, merged: list[str]) -> None:
    story = Story.begin(spark, lake)
    story.put("A", "B", "D")
    for batch_id in ("D", "A", "B"):
        story.consolidate(batch_id)

    assert maintain(story, compact_small_files=True).small_files_compacted == 6

    assert len(merged) == 6
    assert by_day(story) == {f"day={day}": [["A", "A", "B", "B", "D", "D"]] for day in (1, 2)}
    story.check_reads(of_batches("A", "B", "D"))


@pytest.mark.long
def test_what_arrow_does_not_write_is_merged_by_spark(spark: SparkSession, lake: Lake, merged: list[str]) -> None:
    story = Story.begin(spark, lake)
    story.put("A", "B")
    story.consolidate("A")
    story.consolidate("B")
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
    story = Story.begin(spark, lake)
    story.put("A", "B")
    story.consolidate("A")
    story.consolidate("B")
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
    story = Story.begin(spark, lake)
    story.put("A", "B")
    story.consolidate("A")
    story.consolidate("B")
    ids: dict[Any, tuple[int, int, str]] = {}

    def upgrade() -> None:
        if not ids:
            spark.sql(f"ALTER TABLE {story.full_name} SET TBLPROPERTIES ('format-version' = '3')")
            spark.sql(f"INSERT INTO {story.full_name} VALUES (900, 3, 'E')")
            ids.update(ids_of(story))

    result = maintain(story, {"after_compact": upgrade}, compact_small_files=True)

    assert (result.small_files_compacted, len(merged)) == (4, 8)
    assert ids_of(story) == ids
