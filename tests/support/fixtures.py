"""Fixtures that the tiers share. A `conftest.py` imports the ones that its tests use."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.lake import BufferFolder, Lake
from tests.support.servers import kafka, sqs
from tests.support.servers.s3 import S3, running
from tests.support.servers.stores import Stores


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """A catalog on SQLite, a warehouse and buffers on local files. PyIceberg is configured for it."""
    made = Lake.make(tmp_path_factory.mktemp("lake"))
    before = os.environ.get("PYICEBERG_HOME")
    os.environ.update(made.environment)
    yield made
    if before is None:
        del os.environ["PYICEBERG_HOME"]
    else:
        os.environ["PYICEBERG_HOME"] = before


@pytest.fixture
def buffer(lake: Lake, request: pytest.FixtureRequest) -> BufferFolder:
    """A buffer for one test."""
    node: Any = request.node
    return lake.buffer(node.name)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kafka.Broker]:
    """A Kafka broker. Each test has topics of its own."""
    with kafka.running(tmp_path_factory.mktemp("kafka")) as made:
        yield made


@pytest.fixture(scope="session")
def queues(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqs.Sqs]:
    """A queue server. Each test has queues of its own."""
    with sqs.running(tmp_path_factory.mktemp("sqs")) as server:
        yield server


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    """A store of each kind, in which each test has a place of its own."""
    with ExitStack() as stack:
        yield Stores(tmp_path_factory.mktemp("stores"), stack)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    """An S3 server for the tests of one module."""
    with running() as server:
        yield server
