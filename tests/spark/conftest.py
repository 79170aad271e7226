"""One Spark session for all tests here, real Iceberg on SQLite and local files. Jars: LETHE_JARS or ~/.cache/lethe/jars."""

import copy
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lethe_spark.apps.session import make_session
from lethe_spark.jobs.restatement import erase
from lethe_spark.jobs.rewriting import FilteredFiles, filter_files
from lethe_spark.jobs.vacuum import purge
from lethe_spark.run.launching import class_path, jar_folders
from pyiceberg.utils.config import Config
from pyspark.sql import SparkSession

from tests.spark.support.built_once import built_once
from tests.spark.support.driver import Driver
from tests.spark.support.flights import Flights
from tests.spark.support.story import Story
from tests.support.fixtures import buffer, lake, s3
from tests.support.lake import CATALOG, Lake
from tests.support.servers import faults, postgres, rest_catalog

__all__ = ["buffer", "lake", "s3"]

# No secret and no server: what the whole session needs must be in place before the JVM starts.
SPARK_CONFS = {
    "spark.master": "local[2]",
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.memory": "1g",
    # A client of a server that another test has stopped may connect to a port that Spark has taken since: the first bytes that it
    # sent were read as the length of a text.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
}


@pytest.fixture(scope="session", autouse=True)
def _configuration_parsed_once_per_change(lake: Lake) -> Iterator[None]:
    """PyIceberg parses its configuration file for each scan and commit: 30 ms with the catalogs that these tests add."""
    file, parse = lake.home / ".pyiceberg.yaml", Config._from_configuration_files
    parsed: dict[bytes, Any] = {}

    def once() -> Any:
        content = file.read_bytes() if os.environ.get("PYICEBERG_HOME") == str(lake.home) else b""
        if not content:
            return parse()
        if content not in parsed:
            parsed.clear()
            parsed[content] = parse()
        return copy.deepcopy(parsed[content])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Config, "_from_configuration_files", staticmethod(once))
        yield


@pytest.fixture(scope="session")
def spark(lake: Lake) -> Iterator[SparkSession]:
    jars = Path(os.environ.get("LETHE_JARS", "~/.cache/lethe/jars")).expanduser()
    assert list(jars.glob("iceberg-spark-runtime-*.jar")), f"no jars in {jars}: run `make jars`, or set LETHE_JARS"
    _ = lake.catalog  # the SQL catalog's tables are made by whoever comes first
    # The jars of other clouds are last. So the archive of classes still fits, and Spark has its own Arrow.
    path = class_path([*jar_folders(os.environ), f"{jars}/azure", f"{jars}/gcs"])
    session = make_session(CATALOG, {**SPARK_CONFS, "spark.driver.extraClassPath": os.pathsep.join(path)})
    yield session
    session.stop()


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake) -> Story:
    """Batches A, B and D are in the table, in a common file for each of two days."""
    return Story.begin(spark, lake).filled()


@pytest.fixture
def filtered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the files that were filtered one by one, without Spark's rows."""
    paths: list[str] = []

    def remembered(*arguments: Any) -> FilteredFiles:
        done = filter_files(*arguments)
        paths.extend(done.replaced)
        return done

    for module in (erase, purge):
        monkeypatch.setattr(module, "filter_files", remembered)
    return paths


@pytest.fixture
def flights(spark: SparkSession, lake: Lake) -> Flights:
    """A partitioned table, prepared and empty."""
    return Flights.make(spark, lake)


@pytest.fixture
def make_flights(spark: SparkSession, lake: Lake) -> Callable[..., Flights]:
    return lambda **changes: Flights.make(spark, lake, **changes)


@pytest.fixture
def driver(lake: Lake, tmp_path: Path) -> Driver:
    """Runs applications as processes of their own on the test's lake."""
    return Driver(lake, tmp_path)


@pytest.fixture(scope="session")
def pg(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[faults.Switch]:
    """The catalog `pg`, on a PostgreSQL of the tests' own. Spark reaches it through a proxy that can lose answers."""
    folder = tmp_path_factory.mktemp("pg")
    with postgres.running() as server, faults.before_tcp(server.port) as proxy:
        # A prepared statement would be sent without its text, by which the proxy knows a commit.
        jdbc = f"jdbc:postgresql://127.0.0.1:{proxy.port}/{postgres.DATABASE}?prepareThreshold=0"
        lake.add_catalog(
            "pg", **{"type": "sql", "uri": server.uri, "warehouse": f"file://{folder}/warehouse", "spark.uri": jdbc}
        )
        yield proxy.switch


@pytest.fixture(scope="session")
def rest(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[faults.Switch]:
    """The catalog `rest`, on Iceberg's own REST server. Spark reaches it through a proxy that can lose answers."""
    with (
        rest_catalog.running(tmp_path_factory.mktemp("rest") / "server") as server,
        faults.before_rest(server.port) as proxy,
    ):
        lake.add_catalog("rest", **{"type": "rest", "uri": server.uri, "spark.uri": f"http://127.0.0.1:{proxy.port}"})
        yield proxy.switch
