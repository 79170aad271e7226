"""A catalog, a table in it, and a record of the files that are opened."""

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from tests.support.tables import catalog_in, new_table


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    return catalog_in(tmp_path)


@pytest.fixture
def table(catalog: Catalog) -> Table:
    return new_table(catalog)


@pytest.fixture
def opened(table: Table, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every file that is opened from now on."""
    seen: list[str] = []
    new_input = PyArrowFileIO.new_input

    def noting(self: PyArrowFileIO, location: str) -> Any:
        seen.append(location)
        return new_input(self, location)

    assert isinstance(table.io, PyArrowFileIO)
    monkeypatch.setattr(PyArrowFileIO, "new_input", noting)
    return seen
