"""Batches into a table and out of it again, from Spark alone: write, replace, revert, undo, read.

Run `python examples/sdk/batch.py [folder]`; the folder gets a catalog (SQLite) and the table's files.
"""

import sys
import tempfile
from pathlib import Path

import lethe
import lethe_spark
from lake import open_lake
from pyspark.sql import DataFrame

TABLE = "local.shop.orders"


def main(home: Path) -> None:
    spark = open_lake(home)
    spark.sql(f"CREATE TABLE IF NOT EXISTS {TABLE} (id BIGINT, amount DOUBLE, batch_id STRING) USING iceberg")

    def orders(*rows: tuple[int, float]) -> DataFrame:
        return spark.createDataFrame(rows, "id BIGINT, amount DOUBLE")

    def show(what: str) -> None:
        rows = lethe_spark.read(spark, TABLE).orderBy("id").collect()
        print(f"{what}: " + ", ".join(f"{r.id}={r.amount:g} ({r.batch_id})" for r in rows))

    # A batch is written once, however often this line runs.
    monday = lethe_spark.write(orders((1, 10.0), (2, 20.0)), TABLE, batch_id="2026-03-02")
    lethe_spark.write(orders((3, 30.0)), TABLE, batch_id="2026-03-03")
    again = lethe_spark.write(orders((1, 10.0), (2, 20.0)), TABLE, batch_id="2026-03-02")
    print(f"written again: {again.already and again.snapshot_id == monday.snapshot_id}")
    show("two batches")

    # Corrected rows replace the wrong ones in a single commit: no reader sees both, or neither.
    lethe_spark.write(
        orders((1, 11.0), (2, 21.0)),
        TABLE,
        batch_id="2026-03-02.corrected",
        batch_ids_to_replace=["2026-03-02"],
        batch_replacing_reason="prices without tax",
    )
    show("replaced")

    # A revert writes a few hundred bytes, whatever the batch's size; until a vacuum it can be undone.
    reverted = lethe_spark.revert(spark, TABLE, ["2026-03-03"], reason="loaded too early")
    show("reverted")
    lethe_spark.undo(spark, TABLE, reverted.restatement)
    show("undone")

    # Every snapshot can still be read as it was, with Spark and without.
    then = lethe.scan(TABLE, snapshot_id=reverted.snapshot_id).to_arrow()
    print(f"at the revert: {sorted(then['id'].to_pylist())}")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="lethe-")))
