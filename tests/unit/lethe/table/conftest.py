"""A catalog, a table in it, and a record of the files that are opened."""

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from tests.unit.lethe.table.lake import SCHEMA


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    (tmp_path / ".pyiceberg.yaml").write_text(
        f"catalog:\n  lite:\n    type: sql\n    uri: sqlite:///{tmp_path}/c.db\n    warehouse: file://{tmp_path}/wh\n"
    )
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    made = load_catalog("lite", type="sql", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/wh")
    made.create_namespace("air")
    return made


@pytest.fixture
def table(catalog: Catalog) -> Table:
    return catalog.create_table(
        "air.flights", SCHEMA, properties={"write.metadata.metrics.column.batch_id": "full", "format-version": "2"}
    )


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
