"""Opens the table of a command. I/O."""

from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table

from lethe.base.errors import InputError
from lethe.iceberg import catalogs
from lethe.iceberg.facts import TableFacts, observe
from lethe.ledger.ledger import Ledger
from lethe.ledger_store import store as ledger_store


@dataclass(frozen=True)
class Opened:
    """An open table."""

    name: str  # catalog.namespace.table, as the user gave it
    table: Table
    facts: TableFacts
    properties: Mapping[str, str]  # of the catalog, as PyIceberg names them

    def load_ledger(self, snapshot_id: int | None = None) -> ledger_store.Loaded:
        """Load the ledger of a snapshot, by default of the head. Raises: InputError (SnapshotNotFound), LedgerError."""
        if snapshot_id is not None and snapshot_id not in self.facts.snapshots:
            raise InputError("SnapshotNotFound", f"{self.name} has no snapshot {snapshot_id}. It may have expired.")
        return ledger_store.load(self.table.io, self.facts, snapshot_id)

    def ledger(self, snapshot_id: int | None = None) -> Ledger:
        return self.load_ledger(snapshot_id).ledger


def open_table(name: str, batch_column: str = "batch_id") -> Opened:
    """Open `catalog.namespace.table`. Raises: InputError (InvalidRead, UnknownCatalog, TableNotFound, BatchColumnType)."""
    catalog, dot, table_name = name.partition(".")
    if not dot or "." not in table_name:
        raise InputError("InvalidRead", f"{name!r} is not a table name: expected catalog.namespace.table.")
    try:
        table = catalogs.load(catalog).load_table(table_name)
    except (NoSuchTableError, NoSuchNamespaceError) as e:
        raise InputError("TableNotFound", f"catalog {catalog} has no table {table_name}.") from e
    return Opened(name, table, observe(table, batch_column, name), catalogs.properties(catalog))
