"""What engines that do not know Lethe find in its tables, in each mode of deletes, before and after a vacuum.

`make docs-engines` writes what is measured into docs/engines.md. This test fails if the page says something else.
"""

import json
import os
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lethe
import pytest
from pyspark.sql import SparkSession

from tests.spark.engines.page import LIBRARIES, Cell, Kind, Outcome
from tests.spark.engines.readers import COLUMNS, READERS
from tests.spark.engines.tables import ROOT, Tables, cell_of, check, compare, measured
from tests.spark.support.native_deletes import Native
from tests.support.environments import python_of
from tests.support.lake import Lake

SPARK, SCAN, ICEBERG_GO = "Spark SQL", "lethe.scan", "iceberg-go"

pytestmark = pytest.mark.long


def test_the_page_says_what_each_engine_finds(spark: SparkSession, lake: Lake) -> None:
    versions = {SCAN: "", SPARK: f"{spark.version} (Iceberg {_iceberg(spark)})"}

    matrix = measured(spark, lake, lambda tables: _read(tables, versions, lake.home))

    assert all(c.outcome is Outcome.RIGHT for c in matrix[SCAN].values())
    check(matrix, but=SCAN)
    compare(LIBRARIES, matrix, versions)


def _read(tables: Tables, versions: dict[str, str], home: Path) -> Iterable[tuple[str, dict[Kind, Cell]]]:
    yield SCAN, {k: cell_of({"rows": _by_lethe(s)}) for k, s in tables.items()}
    yield SPARK, {k: cell_of({"rows": [row[:2] for row in s.plain().elements()]}) for k, s in tables.items()}
    metadata = [s.table().metadata_location for s in tables.values()]
    engines = [*READERS, ICEBERG_GO]
    with ThreadPoolExecutor(2) as pool:
        for engine, found in zip(engines, pool.map(lambda e: _in_a_process(e, metadata, home), engines), strict=True):
            versions[engine] = found["version"]
            yield engine, dict(zip(tables, map(cell_of, found["tables"]), strict=True))


def _by_lethe(story: Native) -> list[list[Any]]:
    found = lethe.scan(story.full_name).to_arrow().select(COLUMNS)
    return [list(row.values()) for row in found.to_pylist()]


def _in_a_process(engine: str, metadata: list[str], home: Path) -> dict[str, Any]:
    """What `readers` prints, or the program in dev/iceberg-go. ClickHouse reads only files below its working directory."""
    command = [python_of("engines"), "-m", "tests.spark.engines.readers", engine, *metadata]
    if engine == ICEBERG_GO:
        command = ["icebergreader", *metadata]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, f"{engine}: {done.stderr[-2000:]}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _iceberg(spark: SparkSession) -> str:
    assert spark.sparkContext._jvm is not None
    return str(spark.sparkContext._jvm.org.apache.iceberg.IcebergBuild.version())
