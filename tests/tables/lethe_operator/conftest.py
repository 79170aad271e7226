"""Real catalogs on SQLite and local files, for reconciles."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

from tests.support.small_lake import SmallLake
from tests.support.tables import catalog_in


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    return catalog_in(tmp_path)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallLake:
    """There is no table yet."""
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    return SmallLake.make(tmp_path)


@pytest.fixture
def lake(bare: SmallLake) -> SmallLake:
    """With an empty table."""
    bare.create_table()
    return bare


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], SmallLake]:
    """Makes another lake each time, with an empty table."""
    numbers = itertools.count()

    def make() -> SmallLake:
        home = tmp_path / str(next(numbers))
        monkeypatch.setenv("PYICEBERG_HOME", str(home))
        made = SmallLake.make(home)
        made.create_table()
        return made

    return make
