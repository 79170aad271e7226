"""Thousands of commits on one table, one batch each: what a commit costs at their end."""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from lethe.contract.run import CreateTable, RunKind
from lethe.ledger.ledger import BatchState, Delta
from lethe_spark.commit.ledger_commit import Intent, commit_on_ledger
from lethe_spark.jobs.clean_up import anchor_and_expire
from lethe_spark.jvm.commit import Append
from lethe_spark.jvm.data_files import DataFile
from lethe_spark.jvm.gateway import jvm
from lethe_spark.jvm.scan_tasks import write_uncommitted
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import RunContext

from bench import producer
from bench.consolidation_scales import ConsolidationScale
from bench.lake import CATALOG, METRICS, Lake, entry, our_properties
from bench.timing import say, seconds_of

T = TypeVar("T")
# How fast the machine is while a window lasts, by work that is always the same: an hour is long, and others use it as well.
YARDSTICK: Final = json.dumps([{"id": n, "name": f"row {n}", "values": [n] * 5} for n in range(4_000)])
COMMITS_PER_YARDSTICK: Final = 5


def measure(lake: Lake, scale: ConsolidationScale) -> dict[str, Any]:
    """Each commit adds a data file and a batch through the product's commit path, and tidies up as every run does."""
    wanted = CreateTable(table_schema=producer.SCHEMA, partition_by=(producer.PARTITION,))
    table = SparkTable.create(lake.spark, CATALOG, "run.commits", wanted, METRICS | our_properties())
    table.ensure_layout(producer.BATCH_COLUMN)
    file = _a_file(lake, table)

    def add(context: RunContext, number: int, copy: DataFile) -> None:
        id = producer.batch_id(number)
        delta = Delta(context.run_id, set_batches=(entry(id, BatchState.PROMOTED, file.records),))
        commit_on_ledger(context, table, lambda _: Intent(delta, Append((copy,)), None))

    return in_windows(lake, table, scale.commits, scale.window, lambda n: _named(lake, table, file, n), add)


def in_windows(
    lake: Lake,
    table: SparkTable,
    commits: int,
    window: int,
    prepare: Callable[[int], T],
    commit: Callable[[RunContext, int, T], None],
) -> dict[str, Any]:
    """Commit so often, and tidy up after each; `prepare` is not timed. `pace_seconds` of a window: of the yardstick."""
    took: list[float] = []
    tidying: list[float] = []
    paces: list[float] = []
    results: list[dict[str, Any]] = []
    for n in range(commits):
        prepared = prepare(n)
        with lake.context(RunKind.CONSOLIDATION, table.name) as context:
            since = time.perf_counter()
            commit(context, n, prepared)
            between = time.perf_counter()
            anchor_and_expire(context, table, committed=True)
            tidying.append(time.perf_counter() - between)
            took.append(between - since)
        if n % COMMITS_PER_YARDSTICK == 0:
            paces.append(seconds_of(lambda: json.dumps(json.loads(YARDSTICK))))
        if (n + 1) % window == 0:
            results.append({**_window(table, took, tidying, n + 1, window), "pace_seconds": statistics.median(paces)})
            paces.clear()
            say(f"  {n + 1:,} commits: {results[-1]['seconds']['median']:.3f} s each")
    return {"window": window, "results": results}


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


def _a_file(lake: Lake, table: SparkTable) -> DataFile:
    rows = producer.rows_of(0).append_column(producer.BATCH_COLUMN, [["x"] * producer.rows_of(0).num_rows])
    return write_uncommitted(table, lake.spark.createDataFrame(rows.to_pandas(), producer.SCHEMA), "bench")[0]


def _named(lake: Lake, table: SparkTable, file: DataFile, number: int) -> DataFile:
    """The same file under another name. It is never read."""
    builder = jvm(lake.spark).org.apache.iceberg.DataFiles.builder(table.java.spec()).copy(file.java)
    return DataFile.of(builder.withPath(file.path.replace(".parquet", f"-{number}.parquet")).build())
