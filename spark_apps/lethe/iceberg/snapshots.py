"""Resolves the table, the snapshot and the schema of a read. I/O: loads tables by name."""

from datetime import datetime

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from lethe.base.errors import InputError
from lethe.iceberg import catalogs
from lethe.iceberg.facts import TableFacts
from lethe.iceberg.views import require_no_view


def load_table(name: str, catalog: Catalog | None = None) -> Table:
    """Load `catalog.namespace.table`, or `namespace.table` of the given catalog.

    Raises: InputError (InvalidRead, UnknownCatalog, TableIsView); what the catalog raises if unavailable.
    """
    if catalog is not None:
        try:
            return catalog.load_table(name)
        except NoSuchTableError:
            require_no_view(catalog, name)
            raise
    catalog_name, dot, rest = name.partition(".")
    if not dot or "." not in rest:
        raise InputError("InvalidRead", f"{name!r} is not a table name: expected catalog.namespace.table.")
    return catalogs.load(catalog_name).load_table(rest)


def schema_of(table: Table, snapshot_id: int | None) -> Schema:
    """The schema of a snapshot; the current schema, if it is None or names no schema."""
    snapshot = table.metadata.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
    if snapshot is None or snapshot.schema_id is None:
        return table.schema()
    return table.schemas().get(snapshot.schema_id, table.schema())


def resolve_snapshot(
    facts: TableFacts,
    table: Table,
    snapshot_id: int | None,
    as_of: datetime | None,
    parameters: tuple[str, str] = ("snapshot_id", "as_of"),
) -> int | None:
    """The snapshot to read; None: the table has none.

    Args:
        parameters: The names of the two parameters, for errors.
    Raises: InputError (InvalidRead, SnapshotNotFound).
    """
    if snapshot_id is not None and as_of is not None:
        raise InputError("InvalidRead", f"give {parameters[0]} or {parameters[1]}, not both.")
    if snapshot_id is not None:
        if snapshot_id not in facts.snapshots:
            raise InputError("SnapshotNotFound", f"{facts.name} has no snapshot {snapshot_id}. It may have expired.")
        return snapshot_id
    if as_of is None:
        return facts.head_id
    if as_of.tzinfo is None:
        raise InputError("InvalidRead", f"{parameters[1]} needs a time zone.")
    time_ms = as_of.timestamp() * 1000
    past = [e for e in table.metadata.snapshot_log if e.timestamp_ms <= time_ms]
    if not past or past[-1].snapshot_id not in facts.snapshots:
        raise InputError("SnapshotNotFound", f"{facts.name} has no snapshot at or before {as_of.isoformat()}.")
    return past[-1].snapshot_id
