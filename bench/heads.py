"""What the head of a table says about its contents and its history."""

from collections.abc import Iterator

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot


def total_records(table: Table) -> int:
    """The rows of its data files, by the head's summary; 0 without a head."""
    head = table.current_snapshot()
    return int(head.summary["total-records"] or 0) if head is not None and head.summary is not None else 0


def ancestors_of(table: Table) -> Iterator[Snapshot]:
    """The head and what it was made of, as far as it is retained."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        snapshot = table.snapshot_by_id(snapshot.parent_snapshot_id) if snapshot.parent_snapshot_id else None
