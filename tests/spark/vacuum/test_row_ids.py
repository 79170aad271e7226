"""In format version 3 rows have ids. Rows that stay keep theirs in files that are purged one by one, as in a rewrite by Spark."""

from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from lethe_spark import ingest
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.all_types import all_types, alone, data_file, differences, metrics, rows_of
from tests.spark.support.story import Story, local
from tests.support.lake import Lake

STORED = {"_row_id", "_last_updated_sequence_number"}


def ids_of(story: Story, key: str = "v") -> dict[Any, tuple[int, int, str]]:
    """The row id, the sequence number of the last update, and the batch of each row that Spark reads, by a column."""
    story.spark.catalog.clearCache()
    wanted = f"SELECT {key}, _row_id, _last_updated_sequence_number, batch_id FROM {story.full_name}"
    found = {row[0]: (row[1], row[2], row[3]) for row in story.spark.sql(wanted).collect()}
    assert len({row_id for row_id, _, _ in found.values()}) == len(found)
    return found


def without(ids: dict[Any, tuple[int, int, str]], *batches: str) -> dict[Any, tuple[int, int, str]]:
    return {key: one for key, one in ids.items() if one[2] not in batches}


def begun(spark: SparkSession, lake: Lake, format_version: int = 3) -> Story:
    """Batches A, B and D are in the table, and E to G in other files of a later commit. Each day has files of its own."""
    story = Story.begin(spark, lake, format_version=format_version)
    for batches in (("A", "B", "D"), ("E", "F", "G")):
        story.put(*batches)
        story.consolidate(*batches)
    return story


@pytest.mark.parametrize("format_version", some([2, 3], 3))
def test_rows_ids_and_metrics_of_all_types_are_those_of_a_rewrite_by_spark(
    spark: SparkSession, lake: Lake, filtered: list[str], format_version: int
) -> None:
    by_arrow, by_spark = (all_types(spark, lake, format_version) for _ in range(2))
    gone = ("B003", "B004", "B019")
    before = ids_of(by_arrow, "id") if format_version == 3 else {}

    old = pq.read_metadata(local(data_file(by_arrow).file_path))
    in_groups = sum(old.row_group(n).column(c).total_compressed_size for n in range(10) for c in range(old.num_columns))

    result = alone(by_arrow)
    assert len(filtered) == 1
    assert result.plan.bytes_to_copy + result.plan.bytes_to_encode == result.bytes_rewritten
    assert result.plan.bytes_to_copy / result.bytes_rewritten == pytest.approx(7 / 10, abs=0.001)
    assert result.bytes_copied / in_groups == pytest.approx(7 / 10, abs=0.02)
    by_spark.vacuum()
    assert len(filtered) == 1

    assert rows_of(by_arrow) == rows_of(by_spark)
    assert len(rows_of(by_arrow)) == 1700
    assert differences(metrics(data_file(by_arrow)), metrics(data_file(by_spark))) == {}
    if format_version == 3:
        assert ids_of(by_arrow, "id") == ids_of(by_spark, "id") == without(before, *gone)
        check_readers(by_arrow)


def check_readers(story: Story) -> None:
    """Arrow, DuckDB and PyIceberg read the rows and the ids that Spark reads."""
    ids = ids_of(story, "id")
    path = local(data_file(story).file_path)
    columns = ["id", "_row_id", "_last_updated_sequence_number", "batch_id"]
    by_arrow = pq.read_table(path, columns=columns)
    assert {key: tuple(rest) for key, *rest in zip(*(by_arrow[c].to_pylist() for c in columns), strict=True)} == ids
    assert {row[0]: row[1:] for row in duckdb.sql(f"SELECT {', '.join(columns)} FROM '{path}'").fetchall()} == ids
    everything = pq.read_table(path).drop_columns(sorted(STORED))
    by_pyiceberg = story.table().scan().to_arrow()
    assert str(everything.to_pylist()) == str(by_pyiceberg.to_pylist())
    assert {row["id"] for row in by_pyiceberg.to_pylist()} == ids.keys()


@pytest.mark.long
def test_rows_keep_their_ids_through_several_purges(spark: SparkSession, lake: Lake, filtered: list[str]) -> None:
    """The second purge finds files that store ids, and others that do not."""
    story = begun(spark, lake)
    before = ids_of(story)
    story.revert("A")
    alone(story)
    assert len(filtered) == 2
    assert ids_of(story) == without(before, "A")

    story.revert("D", "F", name="more")
    alone(story, key="2")

    assert len(filtered) == 6
    assert all(set(pq.read_schema(local(path)).names) >= STORED for path in story.files())
    assert ids_of(story) == without(before, "A", "D", "F")


@pytest.mark.long
def test_row_groups_that_a_consolidation_by_spark_wrote_are_copied(
    spark: SparkSession, lake: Lake, filtered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark writes both columns, and nulls into them."""
    monkeypatch.setattr(ingest, "layout_of", lambda *_: None)
    story = Story.begin(spark, lake, partition_by=(), format_version=3)
    story.put("A")
    story.consolidate("A")
    checks = {f"row-group-check-{which}-record-count": 100 for which in ("min", "max")}
    wanted = {f"write.parquet.{k}": v for k, v in (checks | {"row-group-size-bytes": 1000}).items()}
    properties = ", ".join(f"'{k}' = '{v}'" for k, v in wanted.items())
    spark.sql(f"ALTER TABLE {story.full_name} SET TBLPROPERTIES ({properties})")
    story.put("B", "C", "D", rows=400)
    story.consolidate("B", "C", "D")
    (path,) = (path for path, batches in story.files().items() if "B" in batches)
    assert pq.read_table(local(path))["_row_id"].null_count == pq.read_metadata(local(path)).num_rows
    before = ids_of(story)
    story.revert("C")

    result = alone(story)

    assert filtered == [path]
    assert result.bytes_copied > 0
    assert ids_of(story) == without(before, "C")


@pytest.mark.long
def test_updated_rows_keep_their_ids_and_the_number_of_their_update(
    spark: SparkSession, lake: Lake, filtered: list[str]
) -> None:
    """Spark's UPDATE stores ids of rows, and no number of their last update: they inherit that of the new file."""
    story = begun(spark, lake)
    some = min(v for v, (_, _, batch) in ids_of(story).items() if batch == "B")
    spark.sql(f"UPDATE {story.full_name} SET v = -1 WHERE v = {some}")
    before = ids_of(story)
    assert len({number for _, number, batch in before.values() if batch == "B"}) == 2
    storing = [path for path in story.files() if set(pq.read_schema(local(path)).names) >= STORED]
    numbers = {path: pq.read_table(local(path))["_last_updated_sequence_number"] for path in storing}
    updated = {path for path, found in numbers.items() if found.null_count == 1 < len(found)}
    story.revert("A", "B")

    alone(story)

    assert updated & set(filtered)
    assert ids_of(story) == without(before, "A", "B")


@pytest.mark.long
def test_rows_of_an_upgraded_table_get_ids_with_the_next_commit(
    spark: SparkSession, lake: Lake, filtered: list[str]
) -> None:
    story = begun(spark, lake, format_version=2)
    spark.sql(f"ALTER TABLE {story.full_name} SET TBLPROPERTIES ('format-version' = '3')")
    story.revert("A")
    before = ids_of(story)
    assert all(row_id is not None for row_id, _, _ in before.values())

    alone(story)

    assert len(filtered) == 2
    assert ids_of(story) == without(before, "A")


@pytest.mark.long
def test_files_whose_rows_have_no_ids_yet_are_left_to_spark(
    spark: SparkSession, lake: Lake, filtered: list[str]
) -> None:
    story = begun(spark, lake, format_version=2)
    story.revert("A")
    spark.sql(f"ALTER TABLE {story.full_name} SET TBLPROPERTIES ('format-version' = '3')")
    before = story.rows_at()

    result = alone(story)

    assert (filtered, result.outcome, result.rows_purged) == ([], "Committed", 4)
    story.check_reads(before)
    assert all(row_id is not None for row_id, _, _ in ids_of(story).values())


@pytest.mark.long
def test_a_table_that_is_upgraded_in_the_meantime_is_planned_again(
    spark: SparkSession, lake: Lake, filtered: list[str]
) -> None:
    """The rows have got ids since their file was written without them."""
    story = begun(spark, lake, format_version=2)
    story.revert("A")
    ids: dict[Any, tuple[int, int, str]] = {}

    def upgrade() -> None:
        spark.sql(f"ALTER TABLE {story.full_name} SET TBLPROPERTIES ('format-version' = '3')")
        spark.sql(f"INSERT INTO {story.full_name} VALUES (900, 1, 'E')")
        ids.update(ids_of(story))

    story.run(story.vacuuming_so(target_file_size_bytes=1), after_write=upgrade)

    assert len(filtered) == 4
    assert ids_of(story) == without(ids, "A")


@pytest.mark.long
def test_files_that_get_a_deletion_vector_in_the_meantime_are_purged_again_by_spark(
    spark: SparkSession, lake: Lake, filtered: list[str]
) -> None:
    story = begun(spark, lake)
    spark.sql(f"ALTER TABLE {story.full_name} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    story.revert("A")
    before = ids_of(story)
    run = story.vacuuming_so(target_file_size_bytes=1)

    story.run(run, after_write=lambda: spark.sql(f"DELETE FROM {story.full_name} WHERE batch_id = 'B'"))

    assert len(filtered) == 2
    assert ids_of(story) == without(before, "A", "B")


@pytest.mark.long
def test_an_encrypted_table_is_left_to_spark(spark: SparkSession, lake: Lake, filtered: list[str]) -> None:
    story = begun(spark, lake)
    story.revert("A")
    before = ids_of(story)
    spark.sql(f"ALTER TABLE {story.full_name} SET TBLPROPERTIES ('encryption.key-id' = 'k')")

    alone(story)

    assert filtered == []
    assert ids_of(story) == without(before, "A")
