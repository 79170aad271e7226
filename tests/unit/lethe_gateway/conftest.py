"""A table with a table of batches, on SQLite and local files."""

from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

from tests.support.tables import catalog_in


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path / "home"))
    return catalog_in(tmp_path / "home")
