"""What the plugin of dbt-duckdb reads of a table. dbt itself is not installed here."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import lethe
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.types import IntegerType

from tests.support.tables import new_table, revert, rows

Changes = Callable[[str, int | None], Path]


@pytest.fixture
def changes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Changes]:
    """The folder with what changed in `air.flights` since a snapshot, by the name of the batch column."""
    for name in ("dbt", "dbt.adapters", "dbt.adapters.duckdb", "dbt.adapters.duckdb.plugins"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(BasePlugin=object))
    plugin = importlib.import_module("lethe.integrations.dbt").Plugin()
    plugin.initialize({})
    yield lambda column, since: Path(plugin.changes("lite.air.flights", column, since, f"{column} {since}"))
    del sys.modules["lethe.integrations.dbt"]


def test_changes_have_the_columns_that_the_table_has_now(catalog: Catalog, changes: Changes) -> None:
    """Also if no snapshot came after the columns were changed."""
    table = new_table(catalog, **{"lethe.batch-column-id": "2"})
    table.append(rows("A", "B"))
    since = lethe.scan("lite.air.flights").snapshot_id
    table.append(rows("C", start=2))
    revert(table, "A")
    with table.update_schema() as columns:
        columns.rename_column("batch_id", "load")
        columns.add_column("note", IntegerType())

    folder = changes("load", since)

    assert pq.read_table(folder / "rows.parquet").to_pylist() == [{"v": 2, "load": "C", "note": None}]
    assert pq.read_table(folder / "batches.parquet")["batch_id"].to_pylist() == ["A", "C"]
    assert pq.read_table(changes("load", None) / "rows.parquet").sort_by("v")["load"].to_pylist() == ["B", "C"]
