"""Looks at a table, its table of batches and its ledger, for an index and for pages. I/O: catalogs, manifests.

A page shows the table's columns, partitions and snapshots, and the deletes of its files.
"""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from lethe import batches_table, ledger_store
from lethe.base import names
from lethe.base.errors import InputError, LetheError, TransientError
from lethe.batches_table import TrackingFile, files_of
from lethe.contract.dataset import HoldSpec
from lethe.contract.result import VacuumPlanned
from lethe.contract.run import RetentionSpec, VacuumSpec
from lethe.iceberg import catalogs
from lethe.iceberg.catalogs import TableIsView
from lethe.iceberg.facts import TableFacts, live_entries, observe, snapshot_of
from lethe.iceberg.holds import Holds
from lethe.iceberg.metadata_file import is_required, type_of
from lethe.iceberg.native_deletes import deleted_rows
from lethe.ledger.ledger import BatchState, Ledger, within
from lethe.ledger.lineage import Snapshot
from lethe.process import return_memory
from lethe.search.candidates import plan_now
from lethe.search.covered import HeldTable
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from lethe_gateway.problems import Kind, Problem
from lethe_gateway.tables import reading
from lethe_gateway.tables.records import IndexState, TableTarget, time_of


def problem_of(error: Exception, target: TableTarget) -> Problem:
    """Errors of catalogs and stores appear with their type only: their messages may contain credentials."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, NoSuchTableError | NoSuchNamespaceError | TableIsView):
        return no_table(target)
    if isinstance(error, InputError) and error.reason == "UnknownCatalog":  # its message names all others
        return Problem(
            Kind.TABLE_UNREADABLE,
            f"The gateway has no catalog {target.catalog!r}. Correct spec.table.catalog, or ask the administrator to add it.",
        )
    if isinstance(error, InputError):
        return Problem(Kind.TABLE_UNREADABLE, str(error))
    if isinstance(error, LetheError) and not isinstance(error, TransientError):
        return Problem(Kind.TABLE_UNREADABLE, str(error))
    return Problem(
        Kind.CATALOG_AWAY,
        f"The catalog or the store of {target} does not answer ({type(error).__name__}). Try again later.",
        retry_after_seconds=5,
    )


def no_table(target: TableTarget) -> Problem:
    """The same for a table that does not exist and for that of another Dataset: the author of a Dataset may name any table."""
    return Problem(
        Kind.NO_TABLE,
        f"The table {target} does not exist, or does not belong to this Dataset (table property lethe.dataset). It does after "
        "the first run of the Dataset; the condition Ready of the Dataset says what prevents one.",
    )


def not_tracked(target: TableTarget, why: str) -> Problem:
    """The problem for a Dataset without a usable table of batches. `why` is the first sentence of the detail."""
    return Problem(
        Kind.NOT_TRACKED,
        f"{why} The runs of the Dataset create and update {target}_batches, unless spec.batchTracking.enabled is false. "
        f"`lethe track {target}` does it at once.",
    )


def building(rows: int) -> Problem:
    """The problem for a request that comes while the index is built, which asks the client to try again in 5 s."""
    return Problem(
        Kind.INDEX_BUILDING,
        f"The first request for a table builds an index of its batches; {rows:,} are in it so far. Try again soon.",
        retry_after_seconds=5,
    )


# With so many new rows, building the index again is faster than changing it.
REBUILD_ROWS: Final = 400_000


@dataclass(frozen=True)
class SeenTable:
    """A table at one moment."""

    batches: Table
    """The table of batches."""
    io: FileIO
    """Of the table."""
    facts: TableFacts
    ledger: Ledger
    state: IndexState


def look(target: TableTarget) -> SeenTable:
    """Look at a table, its table of batches and its ledger.

    Raises:
        Problem: `no-table`, `not-tracked`.
        NoSuchTableError: There is no such table.
        LetheError: Another error of Lethe; its reason says which.
        Exception: What catalogs and stores raise.
    """
    catalog = catalogs.load(target.catalog)
    # Load the table after the table of batches, so that its ledger is not older than the one shown.
    batches, wrong = _table_of_batches(catalog, target)
    table = claimed(catalog, target)
    if wrong is not None:
        raise wrong
    facts = observe(table, target.batch_column, str(target))
    shown = batches_table.shown(batches) if batches is not None else None
    if batches is None or shown is None:
        raise not_tracked(target, "There is no table of the batches of this Dataset.")
    if shown.table_uuid != facts.uuid:
        raise not_tracked(target, "The table of batches shows another table, which had the same name.")
    loaded = ledger_store.load(table.io, facts)
    head = batches.current_snapshot()
    state = IndexState(
        table_uuid=facts.uuid,
        batch_field_id=facts.batch_field_id,
        tracking_snapshot=head.snapshot_id if head is not None else None,
        ledger_version=shown.version,
        shown_ledger=shown.ledger,
        ledger=loaded.resolution.pointer or "",
        head_ledger_version=loaded.ledger.version,
        location=facts.location,
        metadata_location=facts.metadata_location,
        listed_time=shown.listed,
        data_files=_total(table, "total-data-files"),
        data_bytes=_total(table, "total-files-size"),
    )
    return SeenTable(batches, table.io, facts, loaded.ledger, state)


def claimed(catalog: Catalog, target: TableTarget) -> Table:
    """Load a table, if it belongs to the Dataset. Call it before anything is said about the table.

    Raises:
        Problem: `no-table`.
        Exception: What catalogs and stores raise.
    """
    table = catalog.load_table(target.name)
    if table.properties.get(names.CLAIM) != target.claim:
        raise no_table(target)
    return table


def _total(table: Table, of: str) -> int | None:
    """A total in the summary of the head. None: unknown."""
    head = table.current_snapshot()
    if head is None or head.summary is None:
        return None
    text = head.summary.additional_properties.get(of, "")
    return int(text) if text.isdecimal() else None


def _table_of_batches(catalog: Catalog, target: TableTarget) -> tuple[Table | None, InputError | None]:
    """The table, if there is one; and what is wrong with it."""
    try:
        return batches_table.find(catalog, target.name), None
    except InputError as e:
        return None, e


def bring_up_to_date(path: Path | None, new_path: Path, seen: SeenTable, progress: Callable[[int], None]) -> Path:
    """Let an index show what was seen. Returns its path: `path` if that index could be changed, else `new_path`.

    Args:
        path: The index; None: there is none.
        progress: Called with numbers of rows, as they are read.
    """
    known = _known(path)
    if path is not None and known is not None:
        state, files = known
        if state == seen.state:
            return path
        if state.table_uuid == seen.state.table_uuid and state.batch_field_id == seen.state.batch_field_id:
            live = files_of(seen.batches) if state.tracking_snapshot != seen.state.tracking_snapshot else None
            if live is None or sum(f.records for f in live if f.file.file_path not in files) < REBUILD_ROWS:
                with reading.changing(path) as connection:
                    _write(connection, seen, live, progress)
                return_memory()
                return path
    with reading.new_index(new_path) as connection:
        _write(connection, seen, files_of(seen.batches), progress)
    return_memory()
    return new_path


def _write(
    connection: sqlite3.Connection, seen: SeenTable, files: list[TrackingFile] | None, progress: Callable[[int], None]
) -> None:
    """Write into an index what has changed in the table.

    Args:
        files: Of the table of batches; None: they have not changed.
    """
    if files is not None:
        reading.sync_files(connection, seen.batches.io, files, progress)
    reading.sync_ledger(connection, seen.io, seen.facts, seen.ledger)
    reading.set_state(connection, seen.state)


def _known(path: Path | None) -> tuple[IndexState, dict[str, int]] | None:
    """What an index shows, and the files that it has read. None: it cannot be used."""
    if path is None:
        return None
    try:
        with reading.opened(path) as connection:
            state = reading.state_of(connection)
            return (state, reading.known_files(connection)) if state is not None else None
    except (sqlite3.Error, ValueError):
        return None


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
