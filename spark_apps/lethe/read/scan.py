"""Reads a table without Spark, with PyIceberg and Arrow, and leaves out tombstoned rows. I/O.

`scan` plans the files first, then loads only the tombstones within the bounds of these files. It filters only files that might
hold tombstoned rows, and does not open files in which all rows are tombstoned.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table

from lethe.base.errors import InputError
from lethe.files.increment import Range, SnapshotFiles
from lethe.files.read_plan import covered_by, plan_read, unsure_of
from lethe.iceberg.facts import TableFacts, column_dropped, observe
from lethe.iceberg.snapshot_files import SnapshotView
from lethe.iceberg.snapshots import load_table, resolve_snapshot, schema_of
from lethe.iceberg.unknown_types import require_known
from lethe.ledger_store import store as ledger_store
from lethe.read import arrow
from lethe.read.arrow import ReadPart
from lethe.read.increment import SnapshotOrTime, Which, find_rows, resolve_range

__all__ = ["Scan", "resolve_snapshot", "scan", "schema_of"]


@dataclass(frozen=True)
class Scan:
    """A resolved read. Later changes of the table do not change its rows."""

    table: Table
    facts: TableFacts
    snapshot_id: int | None  # the snapshot to read, or the end of the increment; None: the table has no snapshots
    columns: tuple[str, ...]  # in the order of the result
    view: SnapshotView = field(repr=False)
    plan: Callable[[], tuple[ReadPart, ...]] = field(repr=False)

    @cached_property
    def parts(self) -> tuple[ReadPart, ...]:
        """The files to read, planned at the first use. Raises: LedgerError."""
        return self.plan()

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        found = schema_to_pyarrow(self.view.schema.select(*self.columns), include_field_ids=False)
        return pa.schema([found.field(name) for name in self.columns])

    def to_arrow(self) -> pa.Table:
        """All rows, as one Arrow table."""
        tables = [pa.Table.from_batches([b]) for b in self.to_batches()]
        return pa.concat_tables(tables, promote_options="permissive") if tables else self.schema.empty_table()

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as record batches, none empty, in no particular order; the table need not fit into memory."""
        for batch in arrow.read(self.view, self.parts, self.columns):
            if batch.num_rows:
                yield batch.select(list(self.columns))

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as a stream for engines such as DuckDB. It can be read once."""
        schema = self.schema
        return pa.RecordBatchReader.from_batches(schema, (b.cast(schema) for b in self.to_batches()))

    def count(self) -> int:
        """The number of rows. Does not open files that need no filter."""
        return arrow.count(self.view, self.parts)


def scan(
    table: str | Table,
    *,
    columns: Sequence[str] | None = None,
    filter: str | BooleanExpression | None = None,
    snapshot_id: int | None = None,
    as_of: datetime | None = None,
    since: SnapshotOrTime | None = None,
    until: SnapshotOrTime | None = None,
    rows: Which | None = None,
    catalog: Catalog | None = None,
) -> Scan:
    """Read an Iceberg table without the rows that its ledger says are deleted; or, with `since`, the rows that were
    appended or deleted.

    Args:
        table: `catalog.namespace.table`, with a catalog of PyIceberg's configuration; with `catalog` given,
            `namespace.table`; or a loaded PyIceberg table.
        columns: Names; all columns by default.
        filter: A condition on rows, in PyIceberg's expression syntax.
        snapshot_id: Read this snapshot; the head by default. Not with `as_of`.
        as_of: Read the snapshot that was the head at this time (aware datetime).
        since: Read the increment after this snapshot (id) or time (aware datetime). Not with `snapshot_id` or `as_of`.
        until: The end of the increment, inclusive; the head by default.
        rows: Of an increment, `"appended"` (the default) or `"deleted"`.
    Raises: InputError (SnapshotNotFound, InvalidRead, NotAnAncestor, ForeignChange, ErasedBetween, BatchColumnDropped,
        UnknownType);
        LedgerError, if a ledger is unreadable.
    """
    loaded = table if isinstance(table, Table) else load_table(table, catalog)
    facts = observe(loaded, batch_column="batch_id")
    if since is not None:
        if snapshot_id is not None or as_of is not None:
            raise InputError(
                "InvalidRead",
                "since reads an increment; snapshot_id and as_of read a whole table. Give one of them.",
            )
        within = resolve_range(facts, loaded, since, until)
        of = within.until if within is not None and until is not None else None
        view = SnapshotView.on(loaded, facts.remembered_field_id or facts.batch_field_id, of, filter)
        if view.field_id is not None and _lacks_batch_column(view):
            raise column_dropped(facts, "the table" if of is None else f"snapshot {of}")
        wanted: Which = rows or "appended"
        end = within.until if within is not None else None
        return Scan(loaded, facts, end, _columns(view, columns), view, _of_range(view, facts, within, wanted))
    if until is not None or rows is not None:
        raise InputError("InvalidRead", "until and rows need since, the start of the increment.")
    chosen = resolve_snapshot(facts, loaded, snapshot_id, as_of)
    past = snapshot_id is not None or as_of is not None
    view = SnapshotView.on(loaded, facts.remembered_field_id or facts.batch_field_id, chosen if past else None, filter)
    return Scan(loaded, facts, chosen, _columns(view, columns), view, _of_snapshot(view, facts, chosen))


def _columns(view: SnapshotView, columns: Sequence[str] | None) -> tuple[str, ...]:
    """Raises: InputError (`UnknownType`), if Lethe does not know the type of one of the columns."""
    chosen = tuple(f.name for f in view.schema.fields) if columns is None else tuple(columns)
    require_known(view.schema, chosen, "lethe.scan")
    return chosen


def _lacks_batch_column(view: SnapshotView) -> bool:
    """Whether the table has no batch column, or the schema of the read lacks it."""
    return view.field_id is None or view.schema.find_column_name(view.field_id) is None


def _of_snapshot(view: SnapshotView, facts: TableFacts, snapshot_id: int | None) -> Callable[[], tuple[ReadPart, ...]]:
    if snapshot_id is None:
        return tuple
    loaded = ledger_store.load(view.io, facts, snapshot_id)
    if _lacks_batch_column(view) and loaded.ledger.tombstones:
        raise column_dropped(facts, f"the schema of snapshot {snapshot_id}")

    def plan() -> tuple[ReadPart, ...]:
        files = view.files(SnapshotFiles.LIVE, snapshot_id)
        if view.field_id is None or not files:
            return arrow.all_of(files)
        with ledger_store.naming(facts, snapshot_id):
            tombstones = loaded.ledger.tombstones_within(view.field_id, covered_by(f.bounds for f in files))
        if not tombstones:
            return arrow.all_of(files)
        foreign = view.foreign(snapshot_id, loaded.resolution, facts.snapshots)
        return arrow.filtered(files, plan_read(unsure_of([f.bounds for f in files], foreign), tombstones))

    return plan


def _of_range(
    view: SnapshotView, facts: TableFacts, within: Range | None, which: Which
) -> Callable[[], tuple[ReadPart, ...]]:
    if within is None:
        return tuple
    found = find_rows(view, facts, within, which, view.files)

    def plan() -> tuple[ReadPart, ...]:
        parts: list[ReadPart] = []
        for f in found:
            if f.rows.of_ids:
                parts += arrow.of_batches(f.files, f.rows.ids)
            else:
                parts += arrow.without_batches(f.files, f.rows.ids)
        return tuple(parts)

    return plan
