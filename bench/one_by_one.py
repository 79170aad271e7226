"""What it costs to commit each batch by itself: Spark and PyIceberg appending small files one after the other."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from lethe.base.ids import batch_folder
from lethe.contract.run import CreateTable
from lethe.iceberg import catalogs
from lethe_spark.jvm.spark_table import SparkTable
from pyspark.sql import functions as F  # noqa: N812

from bench import producer
from bench.consolidation_scales import ConsolidationScale
from bench.lake import CATALOG, Lake
from bench.timing import failure, say

SPARK: Final = "Spark, one commit per batch"
PYICEBERG: Final = "PyIceberg, one commit per batch"


def measure(lake: Lake, scale: ConsolidationScale) -> dict[str, Any]:
    """Both in turns, batch by batch, in a warm session. Reports the rates of all, of the first and of the last fifth."""
    buffer = lake.home / "buffer"
    shutil.rmtree(buffer, ignore_errors=True)
    producer.fill(buffer, 0, scale.sample + 1)
    files = [_file(buffer, n) for n in range(scale.sample + 1)]
    acts = {SPARK: _by_spark(lake), PYICEBERG: _by_pyiceberg(lake)}
    seconds: dict[str, list[float]] = {name: [] for name in acts}
    errors: dict[str, str] = {}
    for n, file in enumerate(files):
        for name, act in acts.items():
            if name in errors:
                continue
            since = time.perf_counter()
            try:
                act(producer.batch_id(n), file)
            except Exception as e:
                errors[name] = failure(e)
                say(f"  {name}: FAILED, {errors[name]}")
                continue
            if n:  # the first one is the warm-up
                seconds[name].append(time.perf_counter() - since)
        if n and n % max(1, scale.sample // 4) == 0:
            say("  " + ", ".join(f"{name}: {_rate(s):.0f} a minute" for name, s in seconds.items()))
    return {"batches": scale.sample, "results": [_result(name, seconds[name], errors.get(name)) for name in acts]}


def _result(kind: str, seconds: list[float], error: str | None) -> dict[str, Any]:
    if error is not None:
        return {"kind": kind, "error": error}
    fifth = max(1, len(seconds) // 5)
    return {
        "kind": kind,
        "per_minute": round(_rate(seconds), 1),
        "per_minute_first": round(_rate(seconds[:fifth]), 1),
        "per_minute_last": round(_rate(seconds[-fifth:]), 1),
        "all": [round(s, 4) for s in seconds],
    }


def _rate(seconds: list[float]) -> float:
    return 60 * len(seconds) / sum(seconds) if seconds else 0.0


def _file(buffer: Path, number: int) -> Path:
    return buffer / batch_folder(producer.BATCH_COLUMN, producer.batch_id(number)) / "part-0.parquet"


def _table(lake: Lake, name: str) -> SparkTable:
    wanted = CreateTable(table_schema=producer.SCHEMA, partition_by=(producer.PARTITION,))
    return SparkTable.create(lake.spark, CATALOG, name, wanted, {})


def _by_spark(lake: Lake) -> Callable[[str, Path], None]:
    table = _table(lake, "run.by_spark")

    def append(batch_id: str, file: Path) -> None:
        frame = lake.spark.read.parquet(str(file)).withColumn(producer.BATCH_COLUMN, F.lit(batch_id))
        frame.writeTo(table.full_name).append()

    return append


def _by_pyiceberg(lake: Lake) -> Callable[[str, Path], None]:
    name = _table(lake, "run.by_pyiceberg").name
    table = catalogs.load(CATALOG).load_table(name)

    def append(batch_id: str, file: Path) -> None:
        rows = pq.ParquetFile(file).read()
        ids = pa.repeat(pa.scalar(batch_id, pa.string()), rows.num_rows)
        table.append(rows.append_column(producer.BATCH_COLUMN, ids))

    return append
