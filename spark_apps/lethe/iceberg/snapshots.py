"""Which table and which of its snapshots a read means, and the columns it had then. I/O: loads tables by name."""

from datetime import datetime

from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from lethe.base.errors import InputError
from lethe.iceberg import catalogs
from lethe.iceberg.facts import TableFacts


def load_table(name: str, catalog: Catalog | None = None) -> Table:
    """A table by `catalog.namespace.table`, or by `namespace.table` in the catalog given.

    Raises: InputError (InvalidRead, UnknownCatalog); whatever the catalog raises when it is away.
    """
    if catalog is not None:
        return catalog.load_table(name)
    catalog_name, dot, rest = name.partition(".")
    if not dot or "." not in rest:
        raise InputError("InvalidRead", f"{name!r}: expected catalog.namespace.table.")
    return catalogs.load(catalog_name).load_table(rest)


def schema_of(table: Table, snapshot_id: int | None) -> Schema:
    """The columns of a snapshot; of now when it is None, or does not say."""
    snapshot = table.metadata.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
    if snapshot is None or snapshot.schema_id is None:
        return table.schema()
    return table.schemas().get(snapshot.schema_id, table.schema())


def resolve_snapshot(
    facts: TableFacts,
    table: Table,
    snapshot_id: int | None,
    as_of: datetime | None,
    called: tuple[str, str] = ("snapshot_id", "as_of"),
) -> int | None:
    """The snapshot that a read means; None of a table without any.

    Args:
        called: What the reader calls the two, for messages.
    Raises: InputError (InvalidRead, SnapshotNotFound).
    """
    if snapshot_id is not None and as_of is not None:
        raise InputError("InvalidRead", f"give {called[0]} or {called[1]}, not both.")
    if snapshot_id is not None:
        if snapshot_id not in facts.snapshots:
            raise InputError("SnapshotNotFound", f"{facts.name} has no snapshot {snapshot_id}; it may have expired.")
        return snapshot_id
    if as_of is None:
        return facts.head_id
    if as_of.tzinfo is None:
        raise InputError("InvalidRead", f"{called[1]} needs a time zone.")
    moment = as_of.timestamp() * 1000
    past = [e for e in table.metadata.snapshot_log if e.timestamp_ms <= moment]
    if not past or past[-1].snapshot_id not in facts.snapshots:
        raise InputError("SnapshotNotFound", f"{facts.name} has no snapshot of {as_of.isoformat()} or before.")
    return past[-1].snapshot_id
