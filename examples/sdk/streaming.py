"""Writes a stream into a table, each epoch exactly once, even if the job crashes at any moment.

Structured Streaming promises `foreachBatch` at least once: it calls the function, and only after it has returned notes in
its checkpoint that the epoch is done. A job that dies in between sees the epoch again when it starts next time, with the same
rows. Named after the epoch, it is the same batch: the table knows it, and nothing is written twice.

The name must hold the id of the stream as well. It lies in the checkpoint (`metadata`) and lives as long: a new checkpoint
begins again with epoch 0, and that is other rows. With the name of the query alone, `clicks-0` would be taken for the old one
and left out. So: keep the checkpoint for as long as the stream goes on, and never share one between two tables' streams.

Run `python examples/sdk/streaming.py <folder>`; it takes in what lies in `<folder>/landing/*.json` and ends. Put more files
there and run it again.
"""

import sys
from pathlib import Path

import lethe_spark
from lake import open_lake
from pyspark.sql import DataFrame, SparkSession

TABLE = "local.shop.clicks"
QUERY = "clicks"


def batch_id_of(spark: SparkSession, epoch: int) -> str:
    """The name of this epoch of this stream, the same for every attempt. Padded, so that names sort like epochs."""
    stream = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    return f"{QUERY}-{stream}-{epoch:09d}"


def write_epoch(rows: DataFrame, epoch: int) -> None:
    batch_id = batch_id_of(rows.sparkSession, epoch)
    done = lethe_spark.write(rows, TABLE, batch_id=batch_id)
    print(f"epoch {epoch}: {done.rows} rows{', written before' if done.already else ''}", flush=True)


def main(home: Path) -> None:
    spark = open_lake(home)
    spark.sql(f"CREATE TABLE IF NOT EXISTS {TABLE} (id BIGINT, page STRING, batch_id STRING) USING iceberg")
    landing = home / "landing"
    landing.mkdir(exist_ok=True)
    clicks = spark.readStream.schema("id BIGINT, page STRING").option("maxFilesPerTrigger", 1).json(str(landing))
    query = (
        clicks.writeStream.queryName(QUERY)
        .foreachBatch(write_epoch)
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
