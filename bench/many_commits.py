"""Ten thousand commits on one table, one batch each: what a commit costs at their end."""

import json
import statistics
import time
from pathlib import Path
from typing import Any

from lethe.ledger.ledger import BatchState, Delta
from lethe.run import CreateTable, RunKind, SnapshotLimits
from lethe_spark.context import RunContext
from lethe_spark.jobs.tidying import tidy
from lethe_spark.jvm.commit import Append
from lethe_spark.jvm.data_files import DataFile
from lethe_spark.jvm.gateway import jvm
from lethe_spark.jvm.rewrite import write_uncommitted
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.ledger_commit import Intent, commit_on_ledger

from bench import producer
from bench.consolidation_scales import Scale
from bench.lake import CATALOG, METRICS, Lake, entry, our_properties
from bench.timing import say

LIMITS = SnapshotLimits()  # as a Dataset has them when it says nothing


def measure(lake: Lake, scale: Scale) -> dict[str, Any]:
    """Each commit adds a data file and a batch through the product's commit path, and tidies up as every run does."""
    wanted = CreateTable(table_schema=producer.SCHEMA, partition_by=(producer.PARTITION,))
    table = SparkTable.create(lake.spark, CATALOG, "run.commits", wanted, METRICS | our_properties())
    table.ensure_layout(producer.BATCH_COLUMN)
    file = _a_file(lake, table)
    commits: list[float] = []
    tidying: list[float] = []
    results: list[dict[str, Any]] = []
    for n in range(scale.commits):
        copy = _named(lake, table, file, n)
        with lake.context(RunKind.CONSOLIDATION, table.name) as context:
            since = time.perf_counter()
            _commit(context, table, copy, n)
            between = time.perf_counter()
            tidy(context, table, committed=True)
            tidying.append(time.perf_counter() - between)
            commits.append(between - since)
        if (n + 1) % scale.window == 0:
            results.append(_window(table, commits, tidying, n + 1, scale.window))
            say(f"  {n + 1:,} commits: {results[-1]['seconds']['median']:.3f} s each")
    return {"window": scale.window, "results": results}


def _window(table: SparkTable, commits: list[float], tidying: list[float], count: int, size: int) -> dict[str, Any]:
    last = [round(s, 4) for s in commits[-size:]]
    metadata = Path("/" + table.metadata_location.removeprefix("file:").lstrip("/"))
    document = json.loads(metadata.read_text())
    return {
        "commits": count,
        "seconds": {"min": min(last), "median": statistics.median(last), "max": max(last)},
        "tidying_seconds": round(sum(tidying[-size:]), 1),
        "metadata_bytes": metadata.stat().st_size,
        "snapshots": len(document["snapshots"]),
    }


def _commit(context: RunContext, table: SparkTable, file: DataFile, number: int) -> None:
    delta = Delta(context.run_id, set_batches=(entry(producer.batch_id(number), BatchState.PROMOTED, file.records),))
    commit_on_ledger(context, table, lambda _: Intent(delta, Append((file,)), None))


def _a_file(lake: Lake, table: SparkTable) -> DataFile:
    rows = producer.rows_of(0).append_column(producer.BATCH_COLUMN, [["x"] * producer.rows_of(0).num_rows])
    return write_uncommitted(table, lake.spark.createDataFrame(rows.to_pandas(), producer.SCHEMA), "bench")[0]


def _named(lake: Lake, table: SparkTable, file: DataFile, number: int) -> DataFile:
    """The same file under a name of its own; nobody reads it."""
    builder = jvm(lake.spark).org.apache.iceberg.DataFiles.builder(table.java.spec()).copy(file.java)
    return DataFile.of(builder.withPath(file.path.replace(".parquet", f"-{number}.parquet")).build())
