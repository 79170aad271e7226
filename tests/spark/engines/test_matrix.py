"""What engines that do not know Lethe find in its tables, in each stage, at the head and at the snapshot before.

`make docs-engines` writes what is measured into docs/engines.md. This test fails if the page says something else.
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import lethe
import pytest
from pyspark.sql import SparkSession

from tests.spark.engines.page import LIBRARIES
from tests.spark.engines.tables import Reading, check, compare, played
from tests.support.engines.processes import ICEBERG_GO, read_with
from tests.support.engines.readers import READERS
from tests.support.lake import CATALOG, Lake

SPARK, SCAN = "Spark SQL", "lethe.scan"
COLUMNS = ["batch_id", "v"]

pytestmark = pytest.mark.long


def test_the_page_says_what_each_engine_finds(spark: SparkSession, lake: Lake) -> None:
    readings = played(spark, lake)
    read: dict[str, Iterable[Mapping[str, Any]]] = {
        SCAN: [_by_lethe(r) for r in readings],
        SPARK: [_by_spark(spark, r) for r in readings],
    }
    versions = {SCAN: "", SPARK: f"{spark.version} (Iceberg {_iceberg(spark)})"}
    tables = [(r.metadata, r.snapshot_id) for r in readings]
    engines = [*READERS, ICEBERG_GO]
    with ThreadPoolExecutor(2) as pool:
        for engine, found in zip(
            engines, pool.map(lambda e: read_with(e, tables, home=lake.home), engines), strict=True
        ):
            versions[engine], read[engine] = found["version"], found["tables"]

    matrix = {e: {r.place: r.cell(a) for r, a in zip(readings, found, strict=True)} for e, found in read.items()}

    check(matrix, readings, knows_ledgers=SCAN)
    compare(LIBRARIES, matrix, versions)


def _by_lethe(reading: Reading) -> dict[str, Any]:
    found = lethe.scan(f"{CATALOG}.{reading.name}", snapshot_id=reading.snapshot_id).to_arrow().select(COLUMNS)
    return {"rows": [list(row.values()) for row in found.to_pylist()]}


def _by_spark(spark: SparkSession, reading: Reading) -> dict[str, Any]:
    at = f" VERSION AS OF {reading.snapshot_id}" if reading.snapshot_id else ""
    found = spark.sql(f"SELECT {', '.join(COLUMNS)} FROM {CATALOG}.{reading.name}{at}").collect()
    return {"rows": [list(row) for row in found]}


def _iceberg(spark: SparkSession) -> str:
    assert spark.sparkContext._jvm is not None
    return str(spark.sparkContext._jvm.org.apache.iceberg.IcebergBuild.version())
