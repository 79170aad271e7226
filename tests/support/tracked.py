"""The table of batches of a table that is called `air.flights`, as any reader finds it, and what it should say."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lethe import batches_table, ledger_store
from lethe.buffer.batch_rows import row_of
from lethe.iceberg.facts import observe
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

NAME = "air.flights"
BATCHES = "air.flights_batches"


def update(catalog: Catalog, step: Callable[[str], None] = lambda _: None, **how: Any) -> batches_table.Tracked:
    """As a run does at its end."""
    wanted = batches_table.TrackingUpdate(**{"create": True, **how})
    done = batches_table.bring_up_to_date(catalog, NAME, "batch_id", wanted, step)
    assert done is not None
    return done


class Overtaken:
    """A step of an update: each time that it comes to it, the next of these happens first."""

    def __init__(self, *by: Callable[[], object]) -> None:
        self.by = by
        self.count = 0

    def __call__(self, step: str) -> None:  # noqa: ARG002
        self.count += 1
        if self.count <= len(self.by):
            self.by[self.count - 1]()


def rows(catalog: Catalog) -> list[dict[str, Any]]:
    """By batch."""
    return by_id(catalog.load_table(BATCHES).scan().to_arrow().to_pylist())


def states(catalog: Catalog) -> dict[str, str]:
    return {r["batch_id"]: r["state"] for r in rows(catalog)}


def wanted(table: Table) -> list[dict[str, Any]]:
    """What the ledger of the head says."""
    table.refresh()
    ledger = ledger_store.load(table.io, observe(table, "batch_id")).ledger
    return by_id(batches_table.as_arrow(row_of(b) for b in ledger.batches.values()).to_pylist())


def by_id(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda r: str(r["batch_id"]))


def paths(catalog: Catalog) -> set[str]:
    """The data files that it has now."""
    return {f.file.file_path for f in batches_table.files_of(catalog.load_table(BATCHES))}


def stored_files(table: Table) -> set[str]:
    """All data files in the table's folder, also those that no snapshot names."""
    return {f"file://{p}" for p in folder(table, "data").rglob("*.parquet")}


def folder(table: Table, name: str) -> Path:
    return Path(table.location().removeprefix("file://")) / name
