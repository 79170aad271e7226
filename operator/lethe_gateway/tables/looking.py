"""Looks at a table, its table of batches and its ledger, and lets an index show what they say. I/O.

What the errors of tables mean for a caller. Pure.
"""

import gc
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from lethe import batches_table as tracking
from lethe import ledger_store
from lethe.base import names
from lethe.base.errors import InputError, LetheError, TransientError
from lethe.batches_table import TrackingFile, files_of
from lethe.iceberg import catalogs
from lethe.iceberg.catalogs import TableIsView
from lethe.iceberg.facts import TableFacts, observe
from lethe.ledger.ledger import Ledger
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.table import Table

from lethe_gateway.problems import Kind, Problem
from lethe_gateway.tables import reading
from lethe_gateway.tables import reading as writing
from lethe_gateway.tables.records import IndexState, TableTarget


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
    shown = tracking.shown(batches) if batches is not None else None
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
        return tracking.find(catalog, target.name), None
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
                with writing.changing(path) as connection:
                    _write(connection, seen, live, progress)
                _release()
                return path
    with writing.new_index(new_path) as connection:
        _write(connection, seen, files_of(seen.batches), progress)
    _release()
    return new_path


def _write(
    connection: sqlite3.Connection, seen: SeenTable, files: list[TrackingFile] | None, progress: Callable[[int], None]
) -> None:
    """Write into an index what has changed in the table.

    Args:
        files: Of the table of batches; None: they have not changed.
    """
    if files is not None:
        writing.sync_files(connection, seen.batches.io, files, progress)
    writing.sync_ledger(connection, seen.io, seen.facts, seen.ledger)
    writing.set_state(connection, seen.state)


def _known(path: Path | None) -> tuple[IndexState, dict[str, int]] | None:
    """What an index shows, and the files that it has read. None: it cannot be used."""
    if path is None:
        return None
    try:
        with reading.opened(path) as connection:
            state = reading.state_of(connection)
            return (state, writing.known_files(connection)) if state is not None else None
    except (sqlite3.Error, ValueError):
        return None


def _release() -> None:
    """Give memory back to the system."""
    gc.collect()
    pa.default_memory_pool().release_unused()
