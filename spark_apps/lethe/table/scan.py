"""Reading a table without Spark: PyIceberg and Arrow, tombstoned rows left out.

I/O. Only files whose bounds can hold a tombstone pay for the filter; files of only tombstoned rows are not opened.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, FileScanTask, Table

from lethe.errors import InputError
from lethe.ledger.ledger import Ledger
from lethe.plan.bounds import split_by_bounds
from lethe.table import catalogs, ledger_store
from lethe.table.facts import TableFacts, data_files, observe


@dataclass(frozen=True)
class Scan:
    """A read of one snapshot, resolved: what it returns does not change when the table does. `past`: a snapshot or time
    was asked for, so that the columns are those of then, too."""

    table: Table
    facts: TableFacts
    ledger: Ledger
    snapshot_id: int | None
    past: bool
    columns: tuple[str, ...]
    filter: str | BooleanExpression

    def to_arrow(self) -> pa.Table:
        """All rows, as one Arrow table."""
        tables = [pa.Table.from_batches([b]) for b in self._batches(self.columns) if b.num_rows]
        if not tables:
            return self._schema().empty_table()
        return pa.concat_tables(tables, promote_options="permissive").select(list(self.columns))

    def count(self) -> int:
        """Rows that are not deleted."""
        return sum(b.num_rows for b in self._batches(()))

    def _schema(self) -> pa.Schema:
        return schema_of(self.table, self.snapshot_id if self.past else None).select(*self.columns).as_arrow()

    def _batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if self.snapshot_id is None:
            return
        # PyIceberg reads a snapshot that is named with the columns of then, the current one with those of now.
        named = self.snapshot_id if self.past else None
        schema = schema_of(self.table, named)
        column = schema.find_column_name(self.facts.batch_field_id) if self.facts.batch_field_id is not None else None
        ids = self.ledger.ids(self.facts.batch_field_id) if self.facts.batch_field_id is not None else frozenset()
        wanted = tuple(dict.fromkeys((*columns, column))) if column else tuple(columns) or (schema.fields[0].name,)
        scan = self.table.scan(row_filter=self.filter, snapshot_id=named, selected_fields=wanted)
        tasks = list(scan.plan_files())
        if not ids or self.facts.batch_field_id is None or column is None:
            yield from self._read(scan, tasks)
            return
        split = split_by_bounds(data_files(self.table, self.snapshot_id, self.facts.batch_field_id), ids)
        whole = {f.path for f in split.must}
        candidates = {f.path for f in split.might}
        clean = [t for t in tasks if t.file.file_path not in whole and t.file.file_path not in candidates]
        yield from self._read(scan, clean)
        deleted = pa.array(sorted(ids), pa.string())
        for b in self._read(scan, [t for t in tasks if t.file.file_path in candidates]):
            values = b.column(column).cast(pa.string())
            # A null batch id is never tombstoned: is_in answers False for it.
            yield b.filter(pc.invert(pc.is_in(values, value_set=deleted)))

    def _read(self, scan: DataScan, tasks: Sequence[FileScanTask]) -> Iterator[pa.RecordBatch]:
        if not tasks:
            return
        reader = ArrowScan(
            self.table.metadata, self.table.io, scan.projection(), scan.row_filter, scan.case_sensitive, scan.limit
        )
        yield from reader.to_record_batches(tasks)


def scan(
    table: str | Table,
    *,
    columns: Sequence[str] | None = None,
    filter: str | BooleanExpression | None = None,
    snapshot_id: int | None = None,
    as_of: datetime | None = None,
    catalog: Catalog | None = None,
) -> Scan:
    """Read an Iceberg table without the rows that its ledger says are deleted.

    Args:
        table: `catalog.namespace.table`, the catalog as PyIceberg's configuration names it; with `catalog` given,
            `namespace.table`; or a loaded PyIceberg table.
        columns: Names; all of them by default.
        filter: Of rows, in PyIceberg's expression syntax.
        snapshot_id: Read this snapshot; the head by default. Excludes `as_of`.
        as_of: Read the head of this moment (aware datetime).
    Raises: InputError (SnapshotNotFound), LedgerError if the snapshot's ledger cannot be read.
    """
    loaded = table if isinstance(table, Table) else _load(table, catalog)
    facts = observe(loaded, batch_column="batch_id")
    chosen = resolve_snapshot(facts, loaded, snapshot_id, as_of)
    ledger = ledger_store.load(loaded.io, facts, chosen).ledger if chosen is not None else Ledger()
    past = snapshot_id is not None or as_of is not None
    known = schema_of(loaded, chosen if past else None)
    wanted = tuple(columns) if columns is not None else tuple(f.name for f in known.fields)
    return Scan(loaded, facts, ledger, chosen, past, wanted, filter if filter is not None else AlwaysTrue())


def schema_of(table: Table, snapshot_id: int | None) -> Schema:
    """The columns of a snapshot; of now when it is None, or does not say."""
    snapshot = table.metadata.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
    if snapshot is None or snapshot.schema_id is None:
        return table.schema()
    return table.schemas().get(snapshot.schema_id, table.schema())


def resolve_snapshot(facts: TableFacts, table: Table, snapshot_id: int | None, as_of: datetime | None) -> int | None:
    """The snapshot that a read means. Raises: InputError (`SnapshotNotFound`)."""
    if snapshot_id is not None and as_of is not None:
        raise InputError("InvalidRead", "give snapshot_id or as_of, not both.")
    if snapshot_id is not None:
        if snapshot_id not in facts.snapshots:
            raise InputError("SnapshotNotFound", f"{facts.name} has no snapshot {snapshot_id}; it may have expired.")
        return snapshot_id
    if as_of is None:
        return facts.head_id
    if as_of.tzinfo is None:
        raise InputError("InvalidRead", "as_of needs a time zone.")
    moment = as_of.timestamp() * 1000
    past = [e for e in table.metadata.snapshot_log if e.timestamp_ms <= moment]
    if not past or past[-1].snapshot_id not in facts.snapshots:
        raise InputError("SnapshotNotFound", f"{facts.name} has no snapshot of {as_of.isoformat()} or before.")
    return past[-1].snapshot_id


def _load(name: str, catalog: Catalog | None) -> Table:
    if catalog is not None:
        return catalog.load_table(name)
    catalog_name, dot, rest = name.partition(".")
    if not dot or "." not in rest:
        raise InputError("InvalidRead", f"{name!r}: expected catalog.namespace.table.")
    return catalogs.load(catalog_name).load_table(rest)
