"""Reading what came or went between two snapshots. I/O: reads manifests and ledgers; what counts is decided in
`lethe.files.increment`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Generic, Literal, TypeAlias, TypeVar

from pyiceberg.table import Table

from lethe.base import names
from lethe.base.errors import InputError
from lethe.files.bounds import FileBounds, IdIndex
from lethe.files.increment import Files, Range, Rows, Tombstoned, appended, deleted, plan_range
from lethe.files.native_deletes import DELETION_VECTORS, EQUALITY_DELETES
from lethe.files.read_plan import covered_by
from lethe.iceberg.facts import TableFacts
from lethe.iceberg.snapshot_files import Lens, Planned
from lethe.iceberg.snapshots import resolve_snapshot
from lethe.ledger.parts import Ranges
from lethe.ledger.tombstone import Tombstone
from lethe.ledger_store import store as ledger_store

Moment: TypeAlias = int | datetime
Which: TypeAlias = Literal["appended", "deleted"]
WHICH: Final = ("appended", "deleted")


F = TypeVar("F", Planned, FileBounds)


@dataclass(frozen=True)
class FoundRows(Generic[F]):
    """Rows to read, and the files that may hold them."""

    rows: Rows
    files: tuple[F, ...]


def resolve_range(facts: TableFacts, table: Table, since: Moment, until: Moment | None) -> Range | None:
    """The range that a read means; None of a table without snapshots. Raises: InputError, as `plan_range`."""
    start = _resolve(facts, table, since, "since")
    end = _resolve(facts, table, until, "until")
    return None if start is None or end is None else plan_range(facts.snapshots, start, end, facts.name)


def find_rows(
    lens: Lens, facts: TableFacts, within: Range, which: Which, files_of: Callable[[Files, int], list[F]]
) -> tuple[FoundRows[F], ...]:
    """The rows that were appended, or deleted, in a range.

    Args:
        files_of: `lens.files` or `lens.bounds`.
    Raises: InputError (InvalidRead), LedgerError, if one of the ledgers of the range cannot be read.
    """
    if which not in WHICH:
        raise InputError("InvalidRead", f"rows={which!r}: expected one of {', '.join(WHICH)}.")
    if lens.field_id is None:
        added = tuple(Rows(Files.ADDED, a, frozenset(), of_ids=False) for a in within.appends)
        return tuple(FoundRows(r, tuple(files_of(r.files, r.snapshot_id))) for r in added if which == "appended")
    files = {w: files_of(*w) for w in _involved(within, which)}
    tombstoned = _tombstoned(lens, facts, within, [_bounds(f) for found in files.values() for f in found])
    rows = appended(within, tombstoned) if which == "appended" else deleted(within, tombstoned)
    found: list[FoundRows[F]] = []
    for r in rows:
        index = IdIndex(r.ids)
        there = [f for f in files[r.files, r.snapshot_id] if not r.of_ids or index.might_hold(_bounds(f))]
        if there:
            found.append(FoundRows(r, tuple(there)))
    return tuple(found)


def _involved(within: Range, which: Which) -> list[tuple[Files, int]]:
    """The files that any row may be in, whatever the ledgers say."""
    if which == "deleted":
        before = [(Files.LIVE, parent) for parent in within.masks.values()]
        removed = [(Files.REMOVED, v) for v in (*within.vacuums, *within.rewrites)]
        return [(Files.LIVE, within.until), *removed, *before]
    added = [(Files.ADDED, a) for a in (*within.appends, *within.rewrites)]
    again = [(Files.LIVE, within.since), *((Files.LIVE, m) for m in within.masks)]
    return [*added, *again] if within.undoes else added


def _tombstoned(lens: Lens, facts: TableFacts, within: Range, files: Sequence[FileBounds]) -> Tombstoned:
    """The tombstones that lie within the bounds of the files: others cannot matter."""
    assert lens.field_id is not None
    intervals = covered_by(files)
    ranges = Ranges(intervals)

    def at(snapshot_id: int) -> list[Tombstone]:
        ledger = ledger_store.load(lens.io, facts, snapshot_id).ledger
        assert lens.field_id is not None
        return ledger.tombstones_within(lens.field_id, intervals)

    def applied(snapshot_id: int) -> frozenset[str]:
        uri = facts.snapshots[snapshot_id].summary.get(names.TOMBSTONE_VACUUM_FILE)
        named = ledger_store.read_tombstones(lens.io, facts, uri) if uri is not None else []
        return frozenset(t.id for t in named if t.namespace == lens.field_id and t.id in ranges)

    def lifted(snapshot_id: int, before: int) -> frozenset[str]:
        if facts.snapshots[snapshot_id].summary.get(names.TOMBSTONE_DELETED, "0") == "0":
            return frozenset()
        return _under(DELETION_VECTORS, at(before)) - _ids(at(snapshot_id))

    since = at(within.since)
    return Tombstoned(
        _ids(since),
        _ids(at(within.until)),
        {v: applied(v) for v in within.vacuums},
        {m: applied(m) for m in within.masks},
        {m: ids for m, before in within.masks.items() if (ids := lifted(m, before))},
        _under(DELETION_VECTORS, since),
        {r: _under(EQUALITY_DELETES, at(r)) for r in within.rewrites},
    )


def _ids(tombstones: Iterable[Tombstone]) -> frozenset[str]:
    return frozenset(t.id for t in tombstones)


def _under(deletes: str, tombstones: Iterable[Tombstone]) -> frozenset[str]:
    return frozenset(t.id for t in tombstones if t.mask is not None and t.mask.by == deletes)


def _bounds(file: Planned | FileBounds) -> FileBounds:
    return file.bounds if isinstance(file, Planned) else file


def _resolve(facts: TableFacts, table: Table, moment: Moment | None, called: str) -> int | None:
    if isinstance(moment, datetime):
        return resolve_snapshot(facts, table, None, moment, called=(called, called))
    return resolve_snapshot(facts, table, moment, None)
