"""Reading a table without Spark: PyIceberg and Arrow, tombstoned rows left out.

I/O. Files are planned first; then only those tombstones are loaded that lie within the bounds of the planned files. Only
files that may hold one pay for the filter; files of only tombstoned rows are not opened.
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
from lethe.files.increment import Files, Range
from lethe.files.read_plan import covered_by, plan_read, unsure_of
from lethe.iceberg.facts import TableFacts, column_dropped, observe
from lethe.iceberg.snapshot_files import Lens
from lethe.iceberg.snapshots import load_table, resolve_snapshot, schema_of
from lethe.ledger_store import store as ledger_store
from lethe.read import arrow
from lethe.read.arrow import Part
from lethe.read.increment import Moment, Which, find_rows, resolve_range

__all__ = ["Scan", "resolve_snapshot", "scan", "schema_of"]


@dataclass(frozen=True)
class Scan:
    """A read, resolved: what it returns does not change when the table does. `snapshot_id`: what is read, or up to which;
    None of a table without snapshots. `columns` in the order they are returned."""

    table: Table
    facts: TableFacts
    snapshot_id: int | None
    columns: tuple[str, ...]
    lens: Lens = field(repr=False)
    plan: Callable[[], tuple[Part, ...]] = field(repr=False)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """What is read, planned when it is first asked for. Raises: LedgerError."""
        return self.plan()

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        found = schema_to_pyarrow(self.lens.schema.select(*self.columns), include_field_ids=False)
        return pa.schema([found.field(name) for name in self.columns])

    def to_arrow(self) -> pa.Table:
        """All rows, as one Arrow table."""
        tables = [pa.Table.from_batches([b]) for b in self.to_batches()]
        return pa.concat_tables(tables, promote_options="permissive") if tables else self.schema.empty_table()

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows batch by batch, so that a table need not fit into memory; no empty ones. In no particular order."""
        for batch in arrow.read(self.lens, self.parts, self.columns):
            if batch.num_rows:
                yield batch.select(list(self.columns))

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as a stream of one schema, for engines that take one, such as DuckDB. It can be read once."""
        schema = self.schema
        return pa.RecordBatchReader.from_batches(schema, (b.cast(schema) for b in self.to_batches()))

    def count(self) -> int:
        """How many rows. Files that hold no tombstone and need no filter are not opened for it."""
        return arrow.count(self.lens, self.parts)


def scan(
    table: str | Table,
    *,
    columns: Sequence[str] | None = None,
    filter: str | BooleanExpression | None = None,
    snapshot_id: int | None = None,
    as_of: datetime | None = None,
    since: Moment | None = None,
    until: Moment | None = None,
    rows: Which | None = None,
    catalog: Catalog | None = None,
) -> Scan:
    """Read an Iceberg table without the rows that its ledger says are deleted; or, with `since`, what came or went.

    Args:
        table: `catalog.namespace.table`, the catalog as PyIceberg's configuration names it; with `catalog` given,
            `namespace.table`; or a loaded PyIceberg table.
        columns: Names; all of them by default.
        filter: Of rows, in PyIceberg's expression syntax.
        snapshot_id: Read this snapshot; the head by default. Excludes `as_of`.
        as_of: Read the head of this moment (aware datetime).
        since: Read the increment after this snapshot (id) or moment (aware datetime). Excludes the two above.
        until: Where the increment ends, with what that snapshot did; the head by default.
        rows: Of an increment, `"appended"` (the default) or `"deleted"`.
    Raises: InputError (SnapshotNotFound, InvalidRead, NotAnAncestor, ForeignChange, ErasedBetween,
        BatchColumnDropped), LedgerError if
        a ledger cannot be read.
    """
    loaded = table if isinstance(table, Table) else load_table(table, catalog)
    facts = observe(loaded, batch_column="batch_id")
    if since is not None:
        if snapshot_id is not None or as_of is not None:
            raise InputError("InvalidRead", "since reads an increment; snapshot_id and as_of read a whole table.")
        within = resolve_range(facts, loaded, since, until)
        of = within.until if within is not None and until is not None else None
        lens = Lens.on(loaded, facts.remembered_field_id or facts.batch_field_id, of, filter)
        if lens.field_id is not None and _lacks_batch_column(lens):
            raise column_dropped(facts, "the table" if of is None else f"snapshot {of}")
        wanted: Which = rows or "appended"
        end = within.until if within is not None else None
        return Scan(loaded, facts, end, _columns(lens, columns), lens, _of_range(lens, facts, within, wanted))
    if until is not None or rows is not None:
        raise InputError("InvalidRead", "until and rows belong to since: say from where on.")
    chosen = resolve_snapshot(facts, loaded, snapshot_id, as_of)
    past = snapshot_id is not None or as_of is not None
    lens = Lens.on(loaded, facts.remembered_field_id or facts.batch_field_id, chosen if past else None, filter)
    return Scan(loaded, facts, chosen, _columns(lens, columns), lens, _of_snapshot(lens, facts, chosen))


def _columns(lens: Lens, columns: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(f.name for f in lens.schema.fields) if columns is None else tuple(columns)


def _lacks_batch_column(lens: Lens) -> bool:
    """Whether the batch column is not known, or not among the columns that are read with."""
    return lens.field_id is None or lens.schema.find_column_name(lens.field_id) is None


def _of_snapshot(lens: Lens, facts: TableFacts, snapshot_id: int | None) -> Callable[[], tuple[Part, ...]]:
    if snapshot_id is None:
        return tuple
    loaded = ledger_store.load(lens.io, facts, snapshot_id)
    if _lacks_batch_column(lens) and loaded.ledger.tombstones:
        raise column_dropped(facts, f"the schema that snapshot {snapshot_id} is read with")

    def plan() -> tuple[Part, ...]:
        files = lens.files(Files.LIVE, snapshot_id)
        if lens.field_id is None or not files:
            return arrow.all_of(files)
        with ledger_store.naming(facts, snapshot_id):
            tombstones = loaded.ledger.tombstones_within(lens.field_id, covered_by(f.bounds for f in files))
        if not tombstones:
            return arrow.all_of(files)
        foreign = lens.foreign(snapshot_id, loaded.resolution, facts.snapshots)
        return arrow.others(files, plan_read(unsure_of([f.bounds for f in files], foreign), tombstones))

    return plan


def _of_range(lens: Lens, facts: TableFacts, within: Range | None, which: Which) -> Callable[[], tuple[Part, ...]]:
    if within is None:
        return tuple
    found = find_rows(lens, facts, within, which, lens.files)

    def plan() -> tuple[Part, ...]:
        parts: list[Part] = []
        for f in found:
            if f.rows.of_ids:
                parts += arrow.of_batches(f.files, f.rows.ids)
            else:
                parts += arrow.without_batches(f.files, f.rows.ids)
        return tuple(parts)

    return plan
