"""A running `lethe local` for each module, and a Dataset on it."""

from collections.abc import Iterator

import pytest

from tests.local.lake import Lake, a_lake, orders


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    lake = a_lake(tmp_path_factory.mktemp("local"))
    lake.up()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYICEBERG_HOME", str(lake.home))
        yield lake
    lake.stop()


@pytest.fixture(scope="module")
def dataset(lake: Lake) -> Lake:
    """With two promoted batches."""
    lake.put("monday", 1, 2)
    lake.put("tuesday", 3)
    assert "dataset/orders created" in lake.apply(orders(lake.buffer))
    lake.wait_until("promoted", lambda: lake.promoted(2))
    return lake
