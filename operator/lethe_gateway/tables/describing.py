"""What a page shows of a table itself: columns, partitions, snapshots, and the deletes of its files. I/O: catalog, manifests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from lethe import ledger_store
from lethe.base import names
from lethe.base.errors import InputError
from lethe.contract.hold import HoldSpec
from lethe.contract.result import VacuumPlanned
from lethe.contract.run import RetentionSpec, VacuumSpec
from lethe.iceberg import catalogs
from lethe.iceberg.facts import live_entries, observe, snapshot_of
from lethe.iceberg.holds import Holds
from lethe.iceberg.metadata_file import is_required, type_of
from lethe.iceberg.native_deletes import deleted_rows
from lethe.ledger.ledger import BatchState, Ledger, within
from lethe.ledger.lineage import Snapshot
from lethe.search.candidates import plan_now
from lethe.search.covered import HeldTable
from pyiceberg.manifest import ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from lethe_gateway.tables.looking import claimed, problem_of
from lethe_gateway.tables.records import TableTarget, time_of

SNAPSHOTS_SHOWN: Final = 20
FILES_SHOWN: Final = 100
ENTRIES_AT_MOST: Final = 20_000
"""Files in manifests that are read for a page."""
BATCHES_AT_MOST: Final = 20_000
"""Batches that are counted for a page."""


@dataclass(frozen=True)
class Column:
    """A column of the table's schema."""

    name: str
    type: str
    is_required: bool
    doc: str


@dataclass(frozen=True)
class ShownSnapshot:
    """A snapshot that the table retains."""

    id: int
    time: datetime
    operation: str
    added_rows: str
    """As its summary says it; "": it does not."""
    added_files: str
    removed_files: str
    run_id: str
    """Of the run of Lethe that committed it; "": another writer did."""
    refs: tuple[str, ...]
    """Branches and tags that name it."""


@dataclass(frozen=True)
class FileWithDeletes:
    """A data file, some rows of which native deletes hide."""

    path: str
    rows: int | None
    """All of its rows; None: unknown."""
    deleted: int


@dataclass(frozen=True)
class HeadDeletes:
    """The native deletes of the table's head."""

    files: tuple[FileWithDeletes, ...]
    """The data files with the most deleted rows."""
    files_count: int
    """All data files with deletes of their own."""
    rows: int
    """Deleted rows in these."""
    of_several: int
    """Rows in delete files that may apply to several data files."""


@dataclass(frozen=True)
class RowsOfHolds:
    """What the active holds may cover in the table's head, by bounds and partitions: at least what they do cover."""

    holds: tuple[str, ...]
    """Their names."""
    files: int
    """Data files that may have covered rows."""
    rows: int
    """All rows of these files."""
    batches: int | None
    """Promoted batches that may be in these files; None: the table has too many batches to count them for a page."""


@dataclass(frozen=True)
class TableDescription:
    """A table at one moment."""

    name: str
    format_version: int
    columns: tuple[Column, ...]
    partitions: tuple[str, ...]
    """Such as day(time); empty: the table has none."""
    sort_order: tuple[str, ...]
    snapshots: tuple[ShownSnapshot, ...]
    """The newest first."""
    snapshots_count: int
    deletes: HeadDeletes | None
    """None: the head has too many files to read them for a page."""
    files_count: int
    """Data files and delete files of the head."""
    vacuum: VacuumPlanned | None = None
    """What a vacuum would do now without a policy's limits; None: nothing, or the head has too many files."""
    held: RowsOfHolds | str | None = None
    """A text: why it is unknown what the holds cover. None: no hold is active, or the head has too many files."""


def describe(
    target: TableTarget, retention: RetentionSpec | None = None, holds: Sequence[HoldSpec] = ()
) -> TableDescription:
    """Describe the table of a Dataset.

    Args:
        retention: Which rows are too old. None: no row is.
        holds: The active ones.

    Raises:
        Problem: `no-table`, `table-unreadable`, `catalog-away`.
    """
    try:
        return _described(claimed(catalogs.load(target.catalog), target), target, retention, holds)
    except Exception as e:
        raise problem_of(e, target) from e


def _described(
    table: Table, target: TableTarget, retention: RetentionSpec | None, holds: Sequence[HoldSpec]
) -> TableDescription:
    schema, metadata, head = table.schema(), table.metadata, table.current_snapshot()
    manifests = head.manifests(table.io) if head is not None else []
    entries = sum((m.added_files_count or 0) + (m.existing_files_count or 0) for m in manifests)
    refs = {name: ref.snapshot_id for name, ref in metadata.refs.items()}
    newest = sorted(metadata.snapshots, key=lambda s: s.timestamp_ms, reverse=True)[:SNAPSHOTS_SHOWN]
    vacuum, held = _planned(table, target, retention, holds) if entries <= ENTRIES_AT_MOST else (None, None)
    return TableDescription(
        name=str(target),
        format_version=metadata.format_version,
        columns=tuple(Column(f.name, type_of(f), is_required(f), f.doc or "") for f in schema.fields),
        partitions=tuple(_transformed(schema, f) for f in table.spec().fields),
        sort_order=tuple(_transformed(schema, f) for f in table.sort_order().fields),
        snapshots=tuple(_shown(snapshot_of(s), refs) for s in newest),
        snapshots_count=len(metadata.snapshots),
        deletes=_deletes(table, manifests) if entries <= ENTRIES_AT_MOST else None,
        files_count=entries,
        vacuum=vacuum,
        held=held,
    )


def _planned(
    table: Table, target: TableTarget, retention: RetentionSpec | None, holds: Sequence[HoldSpec]
) -> tuple[VacuumPlanned | None, RowsOfHolds | str | None]:
    """What a vacuum would do, and what the holds may cover. With an invalid hold, no vacuum starts, and the plan has none."""
    facts = observe(table, target.batch_column, str(target))
    loaded = ledger_store.load(table.io, facts)
    held: HeldTable | None = None
    shown: RowsOfHolds | str | None = None
    if holds and facts.head_id is not None and facts.batch_field_id is not None:
        try:
            held = HeldTable(table, facts.head_id, facts.batch_field_id, Holds.of(holds, table.schema()))
        except InputError as e:
            shown = e.message
        else:
            shown = _covered(held, loaded.ledger)
    spec = VacuumSpec(policy="", retention=retention)
    now, count = datetime.now(UTC), held.count if held is not None else None
    return plan_now(table, facts, loaded.resolution, loaded.ledger, spec, now, count), shown


def _covered(held: HeldTable, ledger: Ledger) -> RowsOfHolds | str:
    found = held.may_cover()
    if found is None:
        return "Another engine wrote equality deletes, so any data file may have rows that holds cover."
    bounds = [f.bounds for f in found.values()]
    batches = None
    if len(ledger.batches) <= BATCHES_AT_MOST:
        near = within(ledger.batches, [(f.lower, f.upper) for f in bounds], str)
        batches = sum(b.state is BatchState.PROMOTED for b in near)
    return RowsOfHolds(tuple(sorted(held.holds.names)), len(bounds), sum(f.records for f in bounds), batches)


def _shown(snapshot: Snapshot, refs: Mapping[str, int]) -> ShownSnapshot:
    summary = snapshot.summary
    return ShownSnapshot(
        id=snapshot.id,
        time=time_of(snapshot.timestamp_ms * 1000),
        operation=summary.get("operation", ""),
        added_rows=summary.get("added-records", ""),
        added_files=summary.get("added-data-files", ""),
        removed_files=summary.get("deleted-data-files", ""),
        run_id=summary.get(names.RUN_ID, ""),
        refs=tuple(sorted(name for name, id in refs.items() if id == snapshot.id)),
    )


def _transformed(schema: Schema, field: Any) -> str:
    """A field of partitions or of a sort order, such as day(time)."""
    column, transform = schema.find_column_name(field.source_id) or f"field {field.source_id}", str(field.transform)
    return column if transform == "identity" else f"{transform}({column})"


def _deletes(table: Table, manifests: list[ManifestFile]) -> HeadDeletes:
    deleted = deleted_rows(table.io, manifests)
    rows = (
        {f.file_path: f.record_count for m in manifests for e in live_entries(table.io, m) if (f := e.data_file)}
        if deleted.of_file
        else {}
    )
    most = sorted(deleted.of_file.items(), key=lambda item: (-item[1], item[0]))
    return HeadDeletes(
        files=tuple(FileWithDeletes(path, rows.get(path), count) for path, count in most[:FILES_SHOWN]),
        files_count=len(most),
        rows=sum(deleted.of_file.values()),
        of_several=deleted.of_several,
    )
