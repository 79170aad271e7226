"""A real catalog on SQLite and local files, for reconciles."""

from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog, load_catalog


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    uri, warehouse = f"sqlite:///{tmp_path}/c.db", f"file://{tmp_path}/wh"
    (tmp_path / ".pyiceberg.yaml").write_text(
        f"catalog:\n  lite:\n    type: sql\n    uri: {uri}\n    warehouse: {warehouse}\n"
    )
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    made = load_catalog("lite", type="sql", uri=uri, warehouse=warehouse)
    made.create_namespace("air")
    return made
