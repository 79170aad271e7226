"""A real catalog on SQLite and local files, for reconciles."""

from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

from tests.support.tables import catalog_in


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    return catalog_in(tmp_path)
