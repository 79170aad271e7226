"""Finds the rows that were appended or deleted between two snapshots. I/O: reads manifests and ledgers;
`lethe.files.increment` decides.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Generic, Literal, TypeAlias, TypeVar, assert_never

from pyiceberg.table import Table

from lethe.base import names
from lethe.base.errors import InputError
from lethe.files.bounds import FileBounds, IdIndex
from lethe.files.increment import Range, Rows, SnapshotFiles, Tombstoned, appended, deleted, plan_range
from lethe.files.read_plan import covered_by
from lethe.iceberg.facts import TableFacts
from lethe.iceberg.snapshot_files import PlannedFile, SnapshotView
from lethe.iceberg.snapshots import resolve_snapshot
from lethe.ledger.parts import Ranges
from lethe.ledger.tombstone import Tombstone
from lethe.ledger_store import store as ledger_store

SnapshotOrTime: TypeAlias = int | datetime
Which: TypeAlias = Literal["appended", "deleted"]
WHICH: Final = ("appended", "deleted")


F = TypeVar("F", PlannedFile, FileBounds)


@dataclass(frozen=True)
class FoundRows(Generic[F]):
    """Rows to read, and the files that may hold them."""

    rows: Rows
    files: tuple[F, ...]


def resolve_range(facts: TableFacts, table: Table, since: SnapshotOrTime, until: SnapshotOrTime | None) -> Range | None:
    """Resolve the ends of a range; None: the table has no snapshots. Raises: InputError, as `plan_range`."""
    start = _resolve(facts, table, since, "since")
    end = _resolve(facts, table, until, "until")
    return None if start is None or end is None else plan_range(facts.snapshots, start, end, facts.name)


def find_rows(
    view: SnapshotView,
    facts: TableFacts,
    within: Range,
    which: Which,
    files_of: Callable[[SnapshotFiles, int], list[F]],
) -> tuple[FoundRows[F], ...]:
    """Find the rows that were appended or deleted in a range.

    Args:
        files_of: `view.files` or `view.bounds`.
    Raises: InputError (InvalidRead); LedgerError, if a ledger of the range is unreadable.
    """
    if which not in WHICH:
        raise InputError("InvalidRead", f"rows={which!r}: expected one of {', '.join(WHICH)}.")
    if view.field_id is None:
        added = tuple(Rows(SnapshotFiles.ADDED, a, frozenset(), of_ids=False) for a in within.appends)
        return tuple(FoundRows(r, tuple(files_of(r.files, r.snapshot_id))) for r in added if which == "appended")
    files = {w: files_of(*w) for w in _involved(within, which)}
    tombstoned = _tombstoned(view, facts, within, [_bounds(f) for found in files.values() for f in found])
    match which:
        case "appended":
            rows = appended(within, tombstoned)
        case "deleted":
            rows = deleted(within, tombstoned)
        case _:
            assert_never(which)
    found: list[FoundRows[F]] = []
    for r in rows:
        index = IdIndex(r.ids)
        matching = [f for f in files[r.files, r.snapshot_id] if not r.of_ids or index.might_hold(_bounds(f))]
        if matching:
            found.append(FoundRows(r, tuple(matching)))
    return tuple(found)


def _involved(within: Range, which: Which) -> list[tuple[SnapshotFiles, int]]:
    """The files that the rows may be in, whatever the ledgers say."""
    if which == "deleted":
        before = [(SnapshotFiles.LIVE, parent) for parent in within.position_changes.values()]
        removed = [(SnapshotFiles.REMOVED, v) for v in within.vacuums]
        return [(SnapshotFiles.LIVE, within.until), *removed, *before]
    added = [(SnapshotFiles.ADDED, a) for a in within.appends]
    again = [(SnapshotFiles.LIVE, within.since), *((SnapshotFiles.LIVE, m) for m in within.position_changes)]
    return [*added, *again] if within.undoes else added


def _tombstoned(view: SnapshotView, facts: TableFacts, within: Range, files: Sequence[FileBounds]) -> Tombstoned:
    """Load the tombstones within the bounds of the files: others hide no row of them."""
    assert view.field_id is not None
    intervals = covered_by(files)
    ranges = Ranges(intervals)

    def at(snapshot_id: int) -> list[Tombstone]:
        ledger = ledger_store.load(view.io, facts, snapshot_id).ledger
        assert view.field_id is not None
        return ledger.tombstones_within(view.field_id, intervals)

    def applied(snapshot_id: int) -> frozenset[str]:
        uri = facts.snapshots[snapshot_id].summary.get(names.TOMBSTONE_VACUUM_FILE)
        named = ledger_store.read_tombstones(view.io, facts, uri) if uri is not None else []
        return frozenset(t.id for t in named if t.namespace == view.field_id and t.id in ranges)

    def lifted(snapshot_id: int, before: int) -> frozenset[str]:
        if facts.snapshots[snapshot_id].summary.get(names.TOMBSTONE_DELETED, "0") == "0":
            return frozenset()
        return _masked(at(before)) - _ids(at(snapshot_id))

    since = at(within.since)
    return Tombstoned(
        _ids(since),
        _ids(at(within.until)),
        {v: applied(v) for v in within.vacuums},
        {m: applied(m) for m in within.position_changes},
        {m: ids for m, before in within.position_changes.items() if (ids := lifted(m, before))},
        _masked(since),
    )


def _ids(tombstones: Iterable[Tombstone]) -> frozenset[str]:
    return frozenset(t.id for t in tombstones)


def _masked(tombstones: Iterable[Tombstone]) -> frozenset[str]:
    return _ids(t for t in tombstones if t.mask is not None)


def _bounds(file: PlannedFile | FileBounds) -> FileBounds:
    return file.bounds if isinstance(file, PlannedFile) else file


def _resolve(facts: TableFacts, table: Table, end: SnapshotOrTime | None, parameter: str) -> int | None:
    if isinstance(end, datetime):
        return resolve_snapshot(facts, table, None, end, parameters=(parameter, parameter))
    return resolve_snapshot(facts, table, end, None)
