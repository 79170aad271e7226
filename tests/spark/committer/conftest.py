"""A committer as a process with a small JVM, and Datasets for it. Spark makes the tables in this process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.committer.runs import begun
from tests.spark.support.built_once import built_once
from tests.spark.support.mailbox import Process, serving
from tests.spark.support.story import Story
from tests.support import api_server
from tests.support.api_server import ApiServer
from tests.support.lake import Lake
from tests.support.mailbox import Namespace


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with api_server.running(tmp_path_factory.mktemp("account")) as running:
        yield running


@pytest.fixture(scope="package")
def namespace(server: ApiServer) -> Namespace:
    return Namespace.make(server)


@pytest.fixture(scope="package")
def process(
    namespace: Namespace, lake: Lake, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Process]:
    """One committer for this folder; the session is there first, and with it the SQL catalog's tables."""
    _ = spark
    with serving(namespace.server, lake, tmp_path_factory.mktemp("committer") / "log") as running:
        yield running


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake, process: Process) -> Story:
    """A, B and C are in the table."""
    assert process.is_up()
    return begun(Story.begin(spark, lake))


@pytest.fixture
def another(tmp_path: Path) -> Iterator[Namespace]:
    """A namespace of one test, which starts and ends the committers in it."""
    folder = tmp_path / "account"
    folder.mkdir()
    with api_server.running(folder) as running:
        yield Namespace.make(running)


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    return tmp_path / "committer.log"
