"""Reading what came or went between two snapshots. I/O: reads manifests and ledgers; what counts is decided in
`lethe.plan.since`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, TypeAlias

from pyiceberg.table import Table

from lethe import names
from lethe.errors import InputError
from lethe.ledger.parts import Ranges
from lethe.plan.bounds import IdIndex
from lethe.plan.reading import covered_by
from lethe.plan.since import Files, Range, Rows, Tombstoned, appended, deleted, plan_range
from lethe.table import ledger_store
from lethe.table.facts import TableFacts
from lethe.table.files import Lens, Planned
from lethe.table.snapshots import resolve_snapshot

Moment: TypeAlias = int | datetime
Which: TypeAlias = Literal["appended", "deleted"]
WHICH: Final = ("appended", "deleted")


@dataclass(frozen=True)
class FoundRows:
    """Rows to read, and the files that may hold them. Without `of_ids`, and no id within the files: all their rows."""

    rows: Rows
    files: tuple[Planned, ...]


def resolve_range(facts: TableFacts, table: Table, since: Moment, until: Moment | None) -> Range | None:
    """The range that a read means; None of a table without snapshots. Raises: InputError, as `plan_range`."""
    start = _resolve(facts, table, since, "since")
    end = _resolve(facts, table, until, "until")
    return None if start is None or end is None else plan_range(facts.snapshots, start, end, facts.name)


def find_rows(lens: Lens, facts: TableFacts, within: Range, which: Which) -> tuple[FoundRows, ...]:
    """The rows that were appended, or deleted, in a range.

    Raises: LedgerError, if one of the ledgers of the range cannot be read.
    """
    if which not in WHICH:
        raise InputError("InvalidRead", f"rows={which!r}: expected one of {', '.join(WHICH)}.")
    if lens.field_id is None:
        added = tuple(Rows(Files.ADDED, a, frozenset(), of_ids=False) for a in within.appends)
        return _found(lens, added, {}) if which == "appended" else ()
    wanted = _involved(within, which)
    files = {w: lens.files(*w) for w in wanted}
    tombstoned = _tombstoned(lens, facts, within, [f for found in files.values() for f in found])
    rows = appended(within, tombstoned) if which == "appended" else deleted(within, tombstoned)
    return _found(lens, rows, files)


def _involved(within: Range, which: Which) -> list[tuple[Files, int]]:
    """The files that any row may be in, whatever the ledgers say."""
    if which == "deleted":
        return [(Files.LIVE, within.until), *((Files.REMOVED, v) for v in within.vacuums)]
    added = [(Files.ADDED, a) for a in within.appends]
    return [*added, (Files.LIVE, within.since)] if within.undoes else added


def _tombstoned(lens: Lens, facts: TableFacts, within: Range, files: Sequence[Planned]) -> Tombstoned:
    """The tombstones that lie within the bounds of the files: others cannot matter."""
    assert lens.field_id is not None
    intervals = covered_by(f.bounds for f in files)
    ranges = Ranges(intervals)

    def at(snapshot_id: int) -> frozenset[str]:
        ledger = ledger_store.load(lens.io, facts, snapshot_id).ledger
        assert lens.field_id is not None
        return frozenset(t.id for t in ledger.tombstones_within(lens.field_id, intervals))

    vacuumed: dict[int, frozenset[str]] = {}
    for v in within.vacuums:
        uri = facts.snapshots[v].summary[names.TOMBSTONE_VACUUM_FILE]
        applied = ledger_store.read_tombstones(lens.io, facts, uri)
        vacuumed[v] = frozenset(t.id for t in applied if t.namespace == lens.field_id and t.id in ranges)
    return Tombstoned(at(within.since), at(within.until), vacuumed)


def _found(lens: Lens, rows: Sequence[Rows], files: dict[tuple[Files, int], list[Planned]]) -> tuple[FoundRows, ...]:
    found: list[FoundRows] = []
    for r in rows:
        of = files.get((r.files, r.snapshot_id))
        there = lens.files(r.files, r.snapshot_id) if of is None else of
        index = IdIndex(r.ids)
        if r.of_ids:
            there = [f for f in there if index.might_hold(f.bounds)]
        if there:
            found.append(FoundRows(r, tuple(there)))
    return tuple(found)


def _resolve(facts: TableFacts, table: Table, moment: Moment | None, called: str) -> int | None:
    if isinstance(moment, datetime):
        return resolve_snapshot(facts, table, None, moment, called=(called, called))
    return resolve_snapshot(facts, table, moment, None)
