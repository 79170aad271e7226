"""Finds the batches in files of Lethe that another tool made part of the table without a ledger.

I/O: reads ledgers, lists of staged batches and, if the snapshots that name them have expired, the batch column of the files.

Example: after a rollback, `cherrypick_snapshot` copies an append of Lethe. Its files are live, but their batches are not in the
ledger, so a consolidation would load them a second time.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow.compute as pc
from pyiceberg.table import Table

from lethe.base import names
from lethe.base.errors import LedgerError
from lethe.files.increment import SnapshotFiles
from lethe.iceberg.facts import TableFacts
from lethe.iceberg.snapshot_files import SnapshotView
from lethe.ledger.ledger import BatchEntry, BatchState, BufferedObject
from lethe.ledger.lineage import Snapshot, picked
from lethe.ledger_store.chunks import read_file
from lethe.ledger_store.diff import TooDifferent, all_batches, changed_batches
from lethe.ledger_store.store import Loaded, load_root
from lethe.read import arrow
from lethe.uri import local_path

log = logging.getLogger(__name__)

# A data file in the folder of the run that wrote it.
_RUN: Final = re.compile(r"/([0-9a-f]{32})/")


def picked_batches(table: Table, facts: TableFacts, loaded: Loaded, field_id: int) -> dict[str, BatchEntry]:
    """The batches that these commits brought in, by id, with the entries that a commit of Lethe would have written.

    Args:
        table: The table of `facts`, in the same state.
        loaded: The ledger of the head.
        field_id: Of the batch column.
    Raises: LedgerError, if a ledger or a list of staged batches that a retained snapshot names is unreadable.
    """
    bare = loaded.resolution.bare
    found: dict[str, BatchEntry] = {}
    for source in picked(facts.snapshots, bare):
        of = _committed(table, facts, loaded, source) if source.ledger is not None else _staged(table, facts, source)
        found |= {e.id: e for e in of}
    for copy in bare:
        snapshot = facts.snapshots[copy]
        if names.SOURCE_SNAPSHOT_ID in snapshot.summary and not picked(facts.snapshots, [copy]):
            found = {**_in_files(table, snapshot, field_id), **found}
    if found:
        log.info("%s: snapshots without a ledger brought back %d batches", facts.name, len(found))
    return found


def _committed(table: Table, facts: TableFacts, loaded: Loaded, source: Snapshot) -> Iterable[BatchEntry]:
    """The batches that a commit of Lethe added."""
    assert source.ledger is not None
    batches = load_root(table.io, facts, source.ledger, source.id).batches
    try:
        changed: Iterable[BatchEntry] = changed_batches(loaded.ledger.batches, batches, lambda e: e)[0]
    except TooDifferent:
        changed = (e for some in all_batches(batches) for e in some)
    return [e for e in changed if e.snapshot_id == source.id and e.rows is not None]


def _staged(table: Table, facts: TableFacts, source: Snapshot) -> Iterable[BatchEntry]:
    """The batches that a run has staged."""
    uri = source.summary[names.STAGE]
    folder = f"{facts.location.rstrip('/')}/{names.RUNS_FOLDER}"
    if local_path(uri).rpartition("/")[0] != local_path(folder):
        raise LedgerError("LedgerOutside", f"{facts.name}, snapshot {source.id}: the list {uri} is not in {folder}.")
    document: Mapping[str, Any] = json.loads(read_file(table.io, uri))
    time, run = datetime.fromtimestamp(source.timestamp_ms / 1000, UTC), source.summary.get(names.RUN_ID, "")
    return [
        BatchEntry(
            b["id"],
            BatchState.PROMOTED,
            run,
            time,
            rows=b["rows"],
            bytes=b["bytes"],
            objects=tuple(BufferedObject(*fields) for fields in b["objects"]),
        )
        for b in document["batches"]
    ]


def _in_files(table: Table, copy: Snapshot, field_id: int) -> dict[str, BatchEntry]:
    """The batches in files of a run's folder, found by reading the rows. Their objects in the buffer are unknown, so retention
    does not delete them."""
    view = SnapshotView.on(table, field_id)
    column = view.schema.find_column_name(field_id)
    time = datetime.fromtimestamp(copy.timestamp_ms / 1000, UTC)
    rows: Counter[str] = Counter()
    runs: dict[str, str] = {}
    for file in view.files(SnapshotFiles.ADDED, copy.id):
        run = _RUN.search(file.bounds.path)
        if run is None or column is None:
            continue
        for batch in arrow.read(view, [arrow.ReadPart((file,))], (column,)):
            for counted in pc.value_counts(batch.column(column)).to_pylist():
                if counted["values"] is not None:
                    rows[counted["values"]] += counted["counts"]
                    runs[counted["values"]] = run[1]
    return {i: BatchEntry(i, BatchState.PROMOTED, runs[i], time, rows=n) for i, n in rows.items()}
