"""A catalog on SQLite, and a table with a buffer, on local files."""

from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

from tests.support import gateway_lake
from tests.support.tables import catalog_in
from tests.support.upload_site import Site


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path / "home"))
    return catalog_in(tmp_path / "home")


@pytest.fixture
def site(catalog: Catalog, tmp_path: Path) -> Site:
    table = gateway_lake.flights_table(catalog)
    (tmp_path / "buffer").mkdir()
    return Site(catalog, table, f"file://{tmp_path}/buffer")


@pytest.fixture
def sent(site: Site) -> Site:
    """Its upload is open, and all files are sent."""
    site.open()
    site.send()
    return site


@pytest.fixture
def completed(sent: Site) -> Site:
    sent.complete()
    return sent
