"""One running `lethe local` for all files, and a Dataset on it."""

import signal
from collections.abc import Iterator

import pytest

from tests.local.lake import Lake, a_lake, with_two_batches


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """Starting one takes longer than most tests, so they share it. A test leaves it running, and what it changes has names of
    its own. A test that cannot has a lake of its own. This one has an inlet; test_inlet.py tells it where its broker is."""
    lake = a_lake(tmp_path_factory.mktemp("local"))
    lake.home.mkdir(parents=True)
    lake.kafka_cluster("127.0.0.1:9")
    lake.up()
    yield lake
    assert lake.end(signal.SIGINT) == 0
    assert lake.processes() == []


@pytest.fixture(scope="session")
def dataset(lake: Lake) -> Lake:
    """With two promoted batches."""
    return with_two_batches(lake)
