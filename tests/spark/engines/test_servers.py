"""The same for engines that take minutes to fetch and to start: Trino and Flink."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.spark.engines.page import SERVERS
from tests.spark.engines.tables import ROOT, Found, Tables, cell_of, check, compare, measured
from tests.spark.support.native_deletes import Native
from tests.support.environments import python_of
from tests.support.lake import Lake
from tests.support.servers import trino
from tests.support.servers.trino import Trino, TrinoError

TRINO, FLINK = "Trino", "Flink"
# Of Hadoop, which Iceberg for Flink needs and PySpark has.
HADOOP = "hadoop-client-*.jar"

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(trino.java_home() is None, reason="no JDK of version 24 or later: Debian 12 has none"),
]


def test_the_page_says_what_trino_and_flink_find(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    versions: dict[str, str] = {}
    with trino.running(tmp_path) as server:
        versions[TRINO] = server.version

        def read(tables: Tables) -> Found:
            yield TRINO, {k: cell_of(_by_trino(server, s)) for k, s in tables.items()}
            found = _by_flink(lake, list(tables.values()))
            versions[FLINK] = f"{found['version']} (Iceberg {_iceberg_for_flink()})"
            yield FLINK, dict(zip(tables, map(cell_of, found["tables"]), strict=True))

        matrix = measured(spark, lake, read)

    check(matrix)
    compare(SERVERS, matrix, versions)


def _by_trino(server: Trino, story: Native) -> dict[str, Any]:
    table = story.table()
    location, file = table.location(), table.metadata_location.rpartition("/")[2]
    name = f"t_{abs(hash(file))}"
    try:
        server.query(f"CALL lake.system.register_table('s', '{name}', '{location}', '{file}')")
        return {"rows": server.query(f"SELECT batch_id, v FROM lake.s.{name}")}
    except TrinoError as e:
        return {"error": str(e)}


def _by_flink(lake: Lake, stories: Sequence[Native]) -> dict[str, Any]:
    jars = [*_jars().glob("flink/*.jar"), *_jars().glob("sqlite-jdbc-*.jar")]
    hadoop = (Path(pyspark.__file__).parent / "jars").glob(HADOOP)
    arguments = [f"{lake.home}/catalog.db", f"file://{lake.home}/warehouse", ":".join(map(str, jars))]
    command = [python_of("flink"), "-m", "tests.spark.engines.flink", *arguments, *(s.name for s in stories)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HADOOP_CLASSPATH": ":".join(map(str, hadoop))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _iceberg_for_flink() -> str:
    (jar,) = _jars().glob("flink/iceberg-flink-runtime-*.jar")
    return jar.stem.rpartition("-")[2]


def _jars() -> Path:
    return Path(os.environ["LETHE_JARS"])
