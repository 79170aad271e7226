"""The same for engines that take minutes to fetch and to start: Trino and Flink."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.spark.engines.page import SERVERS
from tests.spark.engines.tables import Reading, check, compare, played
from tests.support.engines.processes import ROOT, last_line_of
from tests.support.environments import python_of
from tests.support.lake import Lake
from tests.support.servers import trino
from tests.support.servers.trino import Trino, TrinoError

TRINO, FLINK = "Trino", "Flink"
# Of Hadoop, which Iceberg for Flink needs and PySpark has.
HADOOP = "hadoop-client-*.jar"

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(trino.java_home() is None, reason="no JDK of version 25 or later: Debian 12 has none"),
]


def test_the_page_says_what_trino_and_flink_find(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    readings = played(spark, lake)
    with trino.running(tmp_path) as server:
        versions = {TRINO: server.version}
        read = {TRINO: [_by_trino(server, r) for r in readings]}
    found = _by_flink(lake, readings)
    versions[FLINK], read[FLINK] = f"{found['version']} (Iceberg {_iceberg_for_flink()})", found["tables"]

    matrix = {e: {r.place: r.cell(a) for r, a in zip(readings, answers, strict=True)} for e, answers in read.items()}

    check(matrix, readings)
    compare(SERVERS, matrix, versions)


def _by_trino(server: Trino, reading: Reading) -> dict[str, Any]:
    try:
        return {"rows": server.rows(reading.metadata, reading.location, ("batch_id", "v"), reading.snapshot_id)}
    except TrinoError as e:
        return {"error": str(e)}


def _by_flink(lake: Lake, readings: Sequence[Reading]) -> dict[str, Any]:
    jars = [*_jars().glob("flink/*.jar"), *_jars().glob("sqlite-jdbc-*.jar")]
    hadoop = (Path(pyspark.__file__).parent / "jars").glob(HADOOP)
    arguments = [f"{lake.home}/catalog.db", f"file://{lake.home}/warehouse", ":".join(map(str, jars))]
    tables = [argument for r in readings for argument in (r.name, str(r.snapshot_id or 0))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HADOOP_CLASSPATH": ":".join(map(str, hadoop))}
    command = [python_of("flink"), "-m", "tests.spark.engines.flink", *arguments, *tables]
    return last_line_of(command, env=environment)


def _iceberg_for_flink() -> str:
    (jar,) = _jars().glob("flink/iceberg-flink-runtime-*.jar")
    return jar.stem.rpartition("-")[2]


def _jars() -> Path:
    return Path(os.environ["LETHE_JARS"])
