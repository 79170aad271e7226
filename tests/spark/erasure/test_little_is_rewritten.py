"""An Erase of a person rewrites the row groups with the person's rows, and copies the others as they are.

In format version 2 the run of the Restatement writes files again, in version 3 the vacuum does.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.spark.parameters import pairs
from tests.spark.support.all_types import alone, data_file, data_files, ids_of
from tests.spark.support.built_once import built_once
from tests.spark.support.erases import Names
from tests.spark.support.story import local
from tests.spark.support.streaming_writer import delete_by_equality
from tests.support.lake import Lake

Make = Callable[..., Names]
PERSON = "the person"
GONE = (299, 300, 705)
"""The rows of the person. The first two are at both sides of a border of row groups."""
HELD = (2, 3, 7)
"""The row groups with these rows, which have a hundred rows each."""
IDS = "concat('B', lpad(CAST(id * 7 % 10 AS STRING), 3, '0'))"
BATCHES = {
    "ids": f"{IDS} batch_id",
    "null": "CAST(NULL AS STRING) batch_id",
    "mixed": f"if(id < 150 OR id % 3 = 0, NULL, {IDS}) batch_id",
    "added later": "",
}


@pytest.fixture
def make(spark: SparkSession, lake: Lake) -> Make:
    """A table that another engine has filled: a thousand rows in one file. Some prices are NaN."""

    @built_once
    def begin(format_version: int, batches: str = "ids", file_format: str = "parquet") -> Names:
        story = Names.begin(spark, lake, format_version=format_version)
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {story.catalog}.air")
        groups = {"min-record-count": 100, "max-record-count": 100}
        wanted = {f"write.parquet.row-group-check-{k}": v for k, v in groups.items()}
        wanted |= {"write.parquet.row-group-size-bytes": 1000, "write.format.default": file_format}
        wanted |= {"format-version": format_version}
        properties = ", ".join(f"'{k}' = '{v}'" for k, v in wanted.items())
        columns = "v bigint, day int, name string, price double" + (", batch_id string" if BATCHES[batches] else "")
        spark.sql(f"CREATE TABLE {story.full_name} ({columns}) USING iceberg TBLPROPERTIES ({properties})")
        name = f"if(id IN {GONE}, '{PERSON}', concat('passenger-', CAST(id AS STRING)))"
        price = "CAST(if(id % 11 = 0, 'NaN', id / 3) AS DOUBLE)"
        rows = f"SELECT id v, 1 day, {name} name, {price} price, {BATCHES[batches]}".rstrip(", ")
        spark.sql(f"{rows} FROM range(1000) ORDER BY id").coalesce(1).writeTo(story.full_name).append()
        if not BATCHES[batches]:
            spark.sql(f"ALTER TABLE {story.full_name} ADD COLUMN batch_id string")
        spark.sql(f"ALTER TABLE {story.full_name} WRITE ORDERED BY batch_id")
        story.set_properties({"write.metadata.metrics.column.batch_id": "full"})
        return story

    return begin


def erased(story: Names) -> None:
    """The person is erased, and no data file has a row of the person."""
    assert story.restate(story.an_erase(PERSON, evict_by_seconds=60)).succeeded
    if story.format_version == 3:
        assert alone(story).outcome == "Committed"
    left = [file for file in data_files(story) if file.content == 0]
    assert sum(file.record_count for file in left) == len(values(story))


def values(story: Names) -> Counter[int]:
    """What any engine reads."""
    story.spark.catalog.clearCache()
    found = Counter(row.v for row in story.spark.table(story.full_name).select("v").collect())
    assert Counter(story.table().scan(selected_fields=("v",)).to_arrow()["v"].to_pylist()) == found
    return found


EVERYBODY_ELSE = Counter(v for v in range(1000) if v not in GONE)


@pytest.mark.parametrize(
    ("version", "batches"), pairs([2, 3], BATCHES, (2, "ids"), (2, "added later"), (3, "null"), (3, "mixed"))
)
def test_only_row_groups_with_rows_of_the_person_are_encoded(
    make: Make, filtered: list[str], version: int, batches: str
) -> None:
    story = make(version, batches)
    old = data_file(story)
    before = columns_of(old.file_path)
    ids = ids_of(story) if version == 3 else {}

    erased(story)

    assert filtered == [old.file_path]
    assert values(story) == EVERYBODY_ELSE
    new = data_file(story)
    after = columns_of(new.file_path)
    assert [n for n in before if before[n] != after[n]] == [*HELD]
    assert new.nan_value_counts == {4: len([v for v in EVERYBODY_ELSE if v % 11 == 0])}
    if ids:
        assert ids_of(story) == {v: one for v, one in ids.items() if v not in GONE}


def columns_of(path: str) -> dict[int, list[bytes]]:
    """The bytes of the columns of each row group, without those of row ids."""
    found: dict[int, list[bytes]] = {}
    metadata = pq.read_metadata(local(path))
    with open(local(path), "rb") as file:
        for n in range(metadata.num_row_groups):
            for c in (metadata.row_group(n).column(i) for i in range(metadata.num_columns)):
                if c.path_in_schema.startswith("_"):
                    continue
                file.seek(min(o for o in (c.dictionary_page_offset, c.data_page_offset) if o))
                found.setdefault(n, []).append(file.read(c.total_compressed_size))
    assert len(found) == 10
    return found


def test_rows_that_another_engine_has_deleted_by_position_go_along(make: Make, filtered: list[str]) -> None:
    story = make(2)
    story.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    story.sql("DELETE FROM {t} WHERE v IN (5, 299)")

    erased(story)

    assert len(filtered) == 1
    assert values(story) == EVERYBODY_ELSE - Counter([5])
    assert not story.table().inspect.delete_files()


def deleted_by_value(story: Names) -> None:
    delete_by_equality(story, "name", "passenger-5", 0)


def anything(_: Names) -> None:
    pass


@pytest.mark.parametrize(
    ("file_format", "before", "gone"),
    [("parquet", deleted_by_value, [5]), ("orc", anything, []), ("avro", anything, [])],
    ids=["deletes by value", "ORC", "Avro"],
)
def test_what_cannot_be_filtered_is_written_by_spark(
    make: Make, filtered: list[str], file_format: str, before: Callable[[Names], None], gone: list[int]
) -> None:
    story = make(2, "ids", file_format)
    before(story)

    assert story.restate(story.an_erase(PERSON, evict_by_seconds=60)).succeeded

    assert not filtered
    story.spark.catalog.clearCache()
    found = Counter(row.v for row in story.spark.table(story.full_name).select("v").collect())
    assert found == EVERYBODY_ELSE - Counter(gone)


@pytest.mark.long
def test_rows_of_a_table_that_is_upgraded_in_the_meantime_keep_the_ids_that_they_got(make: Make) -> None:
    story = make(2)
    ids: dict[Any, tuple[int, int, str]] = {}

    def upgrade() -> None:
        story.sql("ALTER TABLE {t} SET TBLPROPERTIES ('format-version' = '3')")
        story.sql("INSERT INTO {t} VALUES (1000, 1, 'somebody', 1.0, 'E')")
        ids.update(ids_of(story))

    result = story.restate(story.an_erase(PERSON, evict_by_seconds=60), after_erase=upgrade)

    assert result.rows_erased == len(GONE)
    assert ids_of(story) == {v: one for v, one in ids.items() if v not in GONE}
