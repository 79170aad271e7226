"""A table with columns of many types, its purge, and what its only data file and its manifest say."""

import struct
from collections.abc import Iterator
from typing import Any

from pyiceberg.manifest import DataFile
from pyspark.sql import SparkSession

from tests.spark.support.story import Story
from tests.support.lake import Lake

COLUMNS = """id BIGINT NOT NULL, batch_id STRING, flag BOOLEAN, small INT, ratio FLOAT, price DOUBLE, amount DECIMAL(9,2),
  large DECIMAL(18,4), huge DECIMAL(30,5), name STRING, blob BINARY, day DATE, at TIMESTAMP, wall TIMESTAMP_NTZ, never STRING,
  tags ARRAY<STRING>, counts MAP<STRING, DOUBLE>, deep STRUCT<v: FLOAT, w: ARRAY<STRUCT<z: STRING, n: INT>>>"""

ROWS_OF_ALL_TYPES = """
SELECT id, concat('B', lpad(CAST(id DIV 100 AS STRING), 3, '0')) batch_id, id % 3 = 0 flag,
  CAST(if(id % 7 = 0, NULL, id) AS INT) small, CAST(if(id % 11 = 0, 'NaN', id / 3) AS FLOAT) ratio,
  CAST(if(id % 13 = 0, NULL, -id / 7) AS DOUBLE) price, CAST(id / 8 AS DECIMAL(9,2)) amount,
  CAST(id * 1.5 AS DECIMAL(18,4)) large, CAST(id * 1234567.25 AS DECIMAL(30,5)) huge,
  repeat(concat('name-', CAST(id AS STRING)), 5) name, CAST(concat('blob', CAST(id AS STRING)) AS BINARY) blob,
  date_add(DATE'2026-01-01', CAST(id % 400 AS INT)) day, timestamp_seconds(1700000000 + id) at,
  TIMESTAMP_NTZ'2026-01-01 10:00:00.123456' + make_dt_interval(0, 0, 0, id) wall, CAST(NULL AS STRING) never,
  if(id % 5 = 0, NULL, array('a', NULL, CAST(id AS STRING))) tags, map('x', id / 2D, 'y', NULL) counts,
  named_struct('v', CAST(id + 1 AS FLOAT), 'w', array(named_struct('z', CAST(id AS STRING), 'n', CAST(id AS INT)))) deep
FROM range(2000) ORDER BY id"""


def all_types(spark: SparkSession, lake: Lake, format_version: int = 2) -> Story:
    """Twenty batches of a hundred rows with columns of many types, in one file. Three batches are deleted."""
    story = Story.begin(spark, lake, format_version=format_version)
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {story.catalog}.air")
    groups = {
        "row-group-size-bytes": 20_000,
        "row-group-check-min-record-count": 100,
        "row-group-check-max-record-count": 100,
    }
    wanted = {"write.metadata.metrics.column.batch_id": "full", "format-version": format_version}
    wanted |= {f"write.parquet.{k}": v for k, v in groups.items()}
    properties = ", ".join(f"'{k}' = '{v}'" for k, v in wanted.items())
    spark.sql(f"CREATE TABLE {story.full_name} ({COLUMNS}) USING iceberg TBLPROPERTIES ({properties})")
    spark.sql(f"ALTER TABLE {story.full_name} WRITE ORDERED BY batch_id")
    spark.sql(ROWS_OF_ALL_TYPES).coalesce(1).writeTo(story.full_name).append()
    story.revert("B003", "B004", "B019")
    return story


def alone(story: Story, key: str = "1", **asked: Any) -> Any:
    """A vacuum for which any file is large, so that it purges each file one by one if it can."""
    return story.run(story.vacuuming_so(key, target_file_size_bytes=1, **asked))


def data_files(story: Story) -> Iterator[DataFile]:
    """Those of the head, as its manifests describe them."""
    table = story.table()
    for manifest in story.head().manifests(table.io):
        yield from (entry.data_file for entry in manifest.fetch_manifest_entry(table.io))


def data_file(story: Story) -> DataFile:
    """The only one."""
    (file,) = data_files(story)
    return file


def metrics(file: DataFile) -> dict[str, Any]:
    """All that the manifest says of a file, but its path and its sizes."""
    names = ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
    known = {name: dict(getattr(file, name) or {}) for name in names}
    return known | {
        "rows": file.record_count,
        "sort": file.sort_order_id,
        "spec": file.spec_id,
        "columns": len(file.column_sizes),
    }


def rows_of(story: Story) -> list[str]:
    return [
        str(row) for row in story.spark.table(story.full_name).orderBy("id").collect()
    ]  # NaN is not equal to itself


def differences(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """What differs, by field id. Where a column has NaNs, an upper bound of `one` may be larger, or missing: parquet-java's
    footers then do not show the largest number, so that of the old file is kept, unless it is of a row that left."""
    found: dict[str, Any] = {}
    for name in one:
        a, b = one[name], other[name]
        if isinstance(a, dict):
            for i in a.keys() | b.keys():
                has_nans = name == "upper_bounds" and one["nan_value_counts"].get(i)
                looser = has_nans and (i not in a or _number(a[i]) >= _number(b[i]))
                if a.get(i) != b.get(i) and not looser:
                    found[f"{name} {i}"] = (a.get(i), b.get(i))
        elif a != b:
            found[name] = (a, b)
    return found


def _number(bound: bytes) -> float:
    value: float = struct.unpack("<f" if len(bound) == 4 else "<d", bound)[0]
    return value


def ids_of(story: Story, key: str = "v") -> dict[Any, tuple[int, int, str]]:
    """The row id, the sequence number of the last update, and the batch of each row that Spark reads, by a column."""
    story.spark.catalog.clearCache()
    wanted = f"SELECT {key}, _row_id, _last_updated_sequence_number, batch_id FROM {story.full_name}"
    found = {row[0]: (row[1], row[2], row[3]) for row in story.spark.sql(wanted).collect()}
    assert len({row_id for row_id, _, _ in found.values()}) == len(found)
    return found
