"""A purge of random files of four writers: four readers find in each new file exactly the rows that stay, and the manifests say
of it what they say of a file that Spark writes with the same rows."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyspark.sql import SparkSession

from tests.spark.support.all_types import alone, data_files, differences, metrics
from tests.spark.support.story import Story, local
from tests.support.lake import Lake
from tests.support.random_files import TYPES, WRITERS, a_table, check_places, write

PARQUET_JAVA = "parquet-java"
BATCHES = ("A", "B", "C", "D", "E", None)
GONE = ("B", "E")
COLUMNS = """file INT, n BIGINT, `int` BIGINT, `float` DOUBLE, `text` STRING, flag BOOLEAN, `time` TIMESTAMP, money DECIMAL(12,2),
  `bytes` BINARY, `list` ARRAY<STRING>, `struct` STRUCT<a: BIGINT, b: ARRAY<STRUCT<c: STRING>>>, batch_id STRING"""
# Files of parquet-java are written in so many jobs, each with options of its own.
JOBS = 8


@dataclass(frozen=True)
class Case:
    """A random file: its number, who writes it, and its rows."""

    number: int
    writer: str
    rows: pa.Table

    @property
    def stays(self) -> pa.Table:
        return self.rows.filter(pc.invert(pc.is_in(self.rows["batch_id"], value_set=pa.array(GONE))))


def a_case(number: int, writer: str) -> Case:
    luck = random.Random(f"{writer} {number}")
    rows = a_table(luck, 2000)
    batches = [luck.choice(BATCHES) for _ in range(luck.randrange(1, 12))]
    if luck.random() < 0.5:
        batches.sort(key=lambda b: b or "")
    size = -(-rows.num_rows // len(batches))
    ids = [batches[i // size] for i in range(rows.num_rows)]
    files = pa.array([number] * rows.num_rows, pa.int32())
    return Case(number, writer, rows.add_column(0, "file", files).append_column("batch_id", pa.array(ids, pa.string())))


def a_story(spark: SparkSession, lake: Lake, format_version: int) -> Story:
    story = Story.begin(spark, lake, format_version=format_version)
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {story.catalog}.air")
    spark.sql(
        f"CREATE TABLE {story.full_name} ({COLUMNS}) USING iceberg TBLPROPERTIES ('format-version' = '{format_version}')"
    )
    spark.sql(f"ALTER TABLE {story.full_name} WRITE ORDERED BY batch_id")  # the files are not, and do not say so
    set_properties(story, {"write.metadata.metrics.column.batch_id": "full"})
    return story


def set_properties(story: Story, properties: dict[str, Any]) -> None:
    listed = ", ".join(f"'{k}' = '{v}'" for k, v in properties.items())
    story.spark.sql(f"ALTER TABLE {story.full_name} SET TBLPROPERTIES ({listed})")


def with_ids(story: Story, rows: pa.Table) -> pa.Table:
    """The rows with the table's types and field ids."""
    schema = schema_to_pyarrow(story.table().schema(), include_field_ids=True)
    return rows.cast(pa.schema([schema.field(name) for name in rows.column_names]))


def append(story: Story, folder: Path, cases: Sequence[Case]) -> None:
    """Files of writers that know no Iceberg, with the metrics that Iceberg's own reader of footers finds."""
    jvm = story.spark._jvm
    assert jvm is not None
    iceberg = jvm.org.apache.iceberg
    java = iceberg.spark.Spark3Util.loadIcebergTable(story.spark._jsparkSession, story.full_name)
    wanted, update = iceberg.MetricsConfig.forTable(java), java.newAppend()
    for case in cases:
        path = folder / f"{case.writer}-{case.number}.parquet"
        write(path, with_ids(story, case.rows), case.writer, random.Random(case.number))
        found = iceberg.parquet.ParquetUtil.fileMetrics(java.io().newInputFile(str(path)), wanted)
        file = iceberg.DataFiles.builder(java.spec()).withPath(str(path)).withFormat("parquet")
        update = update.appendFile(file.withFileSizeInBytes(path.stat().st_size).withMetrics(found).build())
    update.commit()


def append_by_spark(story: Story, folder: Path, tables: dict[int, pa.Table]) -> None:
    """One file of parquet-java for each of the tables, in one job."""
    folder.mkdir()
    for number, rows in tables.items():
        pq.write_table(rows, folder / f"{number}.parquet")
    spark, size = story.spark, str(2**30)
    spark.conf.set("spark.sql.files.maxPartitionBytes", size)
    spark.conf.set("spark.sql.files.openCostInBytes", size)  # so no two are read by one task
    frame = spark.read.schema(spark.table(story.full_name).schema).parquet(*(str(p) for p in folder.iterdir()))
    frame.writeTo(story.full_name).option("use-table-distribution-and-ordering", "false").append()


def options_of_parquet_java(luck: random.Random) -> dict[str, Any]:
    rows = luck.choice((200, 1000))
    return {
        "write.parquet.row-group-size-bytes": 10_000,
        "write.parquet.row-group-check-min-record-count": rows,
        "write.parquet.row-group-check-max-record-count": rows,
        "write.parquet.page-size-bytes": luck.choice((500, 100_000)),
        "write.parquet.dict-size-bytes": luck.choice((100, 100_000)),
        "write.parquet.compression-codec": luck.choice(("zstd", "snappy", "gzip", "uncompressed")),
        "write.parquet.bloom-filter-enabled.column.n": luck.choice(("true", "false")),
    }


def number_of(file: DataFile) -> int:
    """The number of its case: the lower bound of its first column."""
    return int.from_bytes(file.lower_bounds[1], "little")


def comparable(rows: pa.Table) -> pa.Table:
    """With a number that no column has for NaN, which is not equal to itself; and in one chunk."""
    if "float" in rows.column_names:
        floats = pc.if_else(pc.is_nan(rows["float"]), pa.scalar(-1.0), rows["float"])
        rows = rows.set_column(rows.column_names.index("float"), "float", floats)
    return rows.combine_chunks()


def plain(rows: pa.Table) -> pa.Table:
    """Rows that a reader has found, with the types of `Case.rows`."""
    schema = pa.schema([("file", pa.int32()), ("n", pa.int64()), *TYPES.items(), ("batch_id", pa.string())])
    return comparable(rows.cast(pa.schema([schema.field(name) for name in rows.column_names])))


def completed(rows: pa.Table) -> pa.Table:
    """With the columns that a file does not have."""
    for name, kind in TYPES.items():
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.nulls(len(rows), kind))
    return rows.select(["file", "n", *TYPES, "batch_id"])


@pytest.mark.long
@pytest.mark.parametrize(
    ("of_each", "format_version"),
    [(8, 2), (4, 3), (250, 2)],
    ids=["few", "v3", "many"],
)
def test_readers_find_what_stays_and_metrics_are_those_of_a_new_file(
    spark: SparkSession, lake: Lake, filtered: list[str], tmp_path: Path, of_each: int, format_version: int
) -> None:
    story, by_spark = (a_story(spark, lake, format_version) for _ in range(2))
    cases = [a_case(n * 4 + i, writer) for i, writer in enumerate((*WRITERS, PARQUET_JAVA)) for n in range(of_each)]
    append(story, tmp_path, [c for c in cases if c.writer != PARQUET_JAVA])
    for job in range(JOBS):
        set_properties(story, options_of_parquet_java(random.Random(job)))
        if own := [c for c in cases if c.writer == PARQUET_JAVA][job::JOBS]:
            append_by_spark(story, tmp_path / f"job-{job}", {c.number: c.rows for c in own})
    set_properties(story, {"write.parquet.bloom-filter-enabled.column.n": "false"})
    story.revert(*GONE)

    alone(story)

    stays = {c.number: c.stays for c in cases if len(c.stays)}
    writers = {c.number: c.writer for c in cases}
    touched = {c.number for c in cases if 0 < len(c.stays) < len(c.rows)}
    by_file: dict[int, DataFile] = {}
    for file in data_files(story):
        number = number_of(file)
        assert file.lower_bounds[1] == file.upper_bounds[1], "a file was merged with another one, by Spark"
        by_file[number] = file
    assert by_file.keys() == stays.keys()
    assert len(filtered) == len(touched)

    for number, rows in stays.items():
        check_file(Path(local(by_file[number].file_path)), rows, number in touched)
    check_table(story, stays)

    append_by_spark(by_spark, tmp_path / "by-spark", {n: stays[n] for n in touched & stays.keys()})
    for file in data_files(by_spark):
        number = number_of(file)
        found = differ(story, by_file[number], file, stays[number].column_names)
        assert found == {}, f"file {number} of {writers[number]}"


def check_file(path: Path, rows: pa.Table, is_new: bool) -> None:
    """Arrow and DuckDB read these rows, DuckDB also by a search with the statistics and indexes of the file."""
    expected = comparable(rows)
    columns = rows.column_names
    assert plain(pq.ParquetFile(path).read(columns)).equals(expected)
    quoted = ", ".join(f'"{c}"' for c in columns)
    assert plain(duckdb.sql(f"SELECT {quoted} FROM read_parquet('{path}')").to_arrow_table()).equals(expected)
    low, high = rows["n"][0].as_py(), rows["n"][-1].as_py()
    between = f"SELECT n FROM read_parquet('{path}') WHERE n > {low} AND n < {high}"
    assert [row[0] for row in duckdb.sql(between).fetchall()] == rows["n"].to_pylist()[1:-1]
    if is_new:
        check_places(path)


def check_table(story: Story, stays: dict[int, pa.Table]) -> None:
    """Spark and PyIceberg read these rows. Spark's reader of Parquet also searches with the page indexes of the files."""
    expected = comparable(pa.concat_tables([completed(rows) for _, rows in sorted(stays.items())]))
    columns, in_order = expected.column_names, [("file", "ascending"), ("n", "ascending")]
    found = story.table().scan().to_arrow().select(columns).sort_by(in_order)
    assert plain(found).equals(expected)
    spark = story.spark
    spark.catalog.clearCache()
    assert plain(spark.table(story.full_name).toArrow().select(columns).sort_by(in_order)).equals(expected)
    schema = spark.table(story.full_name).schema
    paths = [file.file_path for file in data_files(story)]
    some = spark.read.schema(schema).parquet(*paths).where("n BETWEEN 700 AND 720 OR n = 150").toArrow().select(columns)
    n = expected["n"]
    wanted = expected.filter(pc.or_(pc.and_(pc.greater_equal(n, 700), pc.less_equal(n, 720)), pc.equal(n, 150)))
    assert plain(some.sort_by(in_order)).equals(wanted.combine_chunks())


def differ(story: Story, one: DataFile, other: DataFile, columns: Sequence[str]) -> dict[str, Any]:
    """What the manifest of `one` says differently of the columns that it has. Its NaNs are unknown if they were before."""
    schema = story.table().schema().select(*columns)
    ids = set(schema.field_ids)
    ours, theirs = (
        {k: {i: x for i, x in v.items() if i in ids} if isinstance(v, dict) else v for k, v in metrics(file).items()}
        for file in (one, other)
    )
    ours["nan_value_counts"] = theirs["nan_value_counts"] | ours["nan_value_counts"]
    ours["columns"] = theirs["columns"]
    return differences(ours, theirs)
