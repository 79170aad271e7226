"""Reads a table without Spark, with PyIceberg and Arrow, and leaves out tombstoned rows. I/O.

`scan` plans the files first, then loads only the tombstones within the bounds of these files. It filters only files that might
hold tombstoned rows, and does not open files in which all rows are tombstoned.

In a notebook, tables and scans look short, and showing them needs no I/O.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache, partial
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypeVar, assert_never

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table

from lethe import finding, ledger_store
from lethe.base import names
from lethe.base.errors import InputError
from lethe.files.bounds import FileBounds, IdIndex
from lethe.files.increment import (
    Rows,
    SnapshotFiles,
    SnapshotRange,
    Tombstoned,
    appended,
    covered_by,
    deleted,
    plan_range,
    plan_read,
    unsure_of,
)
from lethe.iceberg.conditions import RowCondition
from lethe.iceberg.facts import TableFacts, column_dropped, observe
from lethe.iceberg.metadata_file import require_known
from lethe.iceberg.snapshot_files import PlannedFile, SnapshotView, resolve_snapshot, schema_of
from lethe.ledger.ledger import Ranges
from lethe.ledger.tombstone import Tombstone
from lethe.read import data_file
from lethe.read.data_file import ReadPart

Column: TypeAlias = tuple[str, str]
"""The name and the type."""

TEXT_AT_MOST: Final = 500
"""Characters of a repr."""
COLUMNS_AT_MOST: Final = 50
"""Rows of the HTML table."""
_NAME_AT_MOST: Final = 100
_TITLE_AT_MOST: Final = 300


def columns_of(schema: pa.Schema) -> list[Column]:
    """The names and types of a schema."""
    return [(field.name, str(field.type)) for field in schema]


def text(kind: str, title: str, columns: Sequence[Column]) -> str:
    """One line. Columns that do not fit are counted."""
    shown = f"{kind}({_cut(title, _TITLE_AT_MOST)}: "
    for number, (name, of_type) in enumerate(columns):
        column = f"{_cut(name, _NAME_AT_MOST)} {_cut(of_type, _NAME_AT_MOST)}, "
        if len(shown) + len(column) > TEXT_AT_MOST:
            return f"{shown}and {len(columns) - number} more columns)"
        shown += column
    return f"{shown.removesuffix(', ')})"


def html(kind: str, title: str, columns: Sequence[Column]) -> str:
    """A table of the columns. Names are data, so all text is escaped."""
    rows = "".join(
        f"<tr><td>{escape(_cut(name, _NAME_AT_MOST))}</td><td>{escape(_cut(of_type, _TITLE_AT_MOST))}</td></tr>"
        for name, of_type in columns[:COLUMNS_AT_MOST]
    )
    more = len(columns) - COLUMNS_AT_MOST
    rest = f'<tr><td colspan="2">and {more} more columns</td></tr>' if more > 0 else ""
    return (
        f"<div><b>{escape(kind)}</b> {escape(_cut(title, _TITLE_AT_MOST))}"
        f"<table><thead><tr><th>column</th><th>type</th></tr></thead><tbody>{rows}{rest}</tbody></table></div>"
    )


def _cut(words: str, size: int) -> str:
    return words if len(words) <= size else f"{words[: size - 1]}…"


if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars

SnapshotOrTime: TypeAlias = int | datetime
Which: TypeAlias = Literal["appended", "deleted"]
WHICH: Final = ("appended", "deleted")
Plan: TypeAlias = Callable[[], tuple[ReadPart, ...]]


F = TypeVar("F", PlannedFile, FileBounds)

__all__ = ["Scan", "resolve_snapshot", "scan", "schema_of"]


@dataclass(frozen=True)
class FoundRows(Generic[F]):
    """Rows to read, and the files that may hold them."""

    rows: Rows
    files: tuple[F, ...]


def resolve_range(
    facts: TableFacts, table: Table, since: SnapshotOrTime, until: SnapshotOrTime | None
) -> SnapshotRange | None:
    """Resolve the ends of a range; None: the table has no snapshots.

    Raises:
        InputError: As `plan_range`.
    """
    start = _resolve(facts, table, since, "since")
    end = _resolve(facts, table, until, "until")
    return None if start is None or end is None else plan_range(facts.snapshots, start, end, facts.name)


def find_rows(
    view: SnapshotView,
    facts: TableFacts,
    within: SnapshotRange,
    which: Which,
    files_of: Callable[[SnapshotFiles, int], list[F]],
) -> tuple[FoundRows[F], ...]:
    """Find the rows that were appended or deleted in a range.

    Args:
        files_of: `view.files` or `view.bounds`.

    Raises:
        InputError: InvalidRead.
        LedgerError: A ledger of the range is unreadable.
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


def _involved(within: SnapshotRange, which: Which) -> list[tuple[SnapshotFiles, int]]:
    """The files that the rows may be in, whatever the ledgers say."""
    if which == "deleted":
        before = [(SnapshotFiles.LIVE, parent) for parent in within.position_changes.values()]
        removed = [(SnapshotFiles.REMOVED, v) for v in within.vacuums]
        return [(SnapshotFiles.LIVE, within.until), *removed, *before]
    added = [(SnapshotFiles.ADDED, a) for a in within.appends]
    again = [(SnapshotFiles.LIVE, within.since), *((SnapshotFiles.LIVE, m) for m in within.position_changes)]
    return [*added, *again] if within.undoes else added


def _tombstoned(
    view: SnapshotView, facts: TableFacts, within: SnapshotRange, files: Sequence[FileBounds]
) -> Tombstoned:
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


@dataclass(frozen=True, repr=False)
class Scan:
    """A resolved read. Later changes of the table do not change its rows.

    `select`, `filter` and `limit` return a new scan of the same snapshot. Libraries that take Arrow streams take a scan:
    `polars.DataFrame(scan)`, `pyarrow.table(scan)`, `duckdb.from_arrow(scan)`.
    """

    table: Table
    facts: TableFacts
    snapshot_id: int | None
    """The snapshot to read, or the end of the increment; None: the table has no snapshots."""
    columns: tuple[str, ...]
    """The names of the columns, in the order of the result."""
    view: SnapshotView
    plan_with: Callable[[SnapshotView], Plan]
    """Plans the same read with the filter of another view."""
    plan: Plan
    """The files to read. It is carried out at its first call."""
    row_limit: int | None = None
    """The largest number of rows; None: all."""

    @property
    def parts(self) -> tuple[ReadPart, ...]:
        """The files to read, planned at the first use.

        Raises:
            LedgerError: A ledger file is unusable.
        """
        return self.plan()

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        arrow = schema_to_pyarrow(self.view.schema.select(*self.columns), include_field_ids=False)
        return pa.schema([arrow.field(name) for name in self.columns])

    # --- other rows and columns ---

    def select(self, *columns: str) -> "Scan":
        """Only these columns, in this order.

        Raises:
            InputError: UnknownColumn, UnknownType, InvalidRead if there is no name.
        """
        return replace(self, columns=_columns(self.view, self.facts, columns))

    def filter(self, condition: str | BooleanExpression) -> "Scan":
        """Only rows for which the condition is true, beside those of earlier calls.

        Args:
            condition: In PyIceberg's expression syntax, or one of its expressions. It may name columns that are not selected.

        Raises:
            InputError: InvalidRead, UnknownType.
            LedgerError: A ledger is missing or cannot be read.
        """
        both = self.view.condition.both(RowCondition.of(self.view.schema, condition))
        view = replace(self.view, condition=both)
        return replace(self, view=view, plan=self.plan_with(view))

    def limit(self, rows: int) -> "Scan":
        """At most this number of rows, whichever come first. It applies after all filters, also those that are added later.

        Raises:
            InputError: `InvalidRead`, if the number is negative.
        """
        if rows < 0:
            raise InputError("InvalidRead", f"limit is {rows}: expected 0 or more.")
        return replace(self, row_limit=rows if self.row_limit is None else min(rows, self.row_limit))

    # --- results ---

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as record batches, none empty, in no particular order. At most 16 data files are in memory at a time.

        With a limit, one file is read at a time, and no further than needed.

        Raises:
            InputError: UnreadableFile, EqualityDeletes.
            LedgerError: A ledger is missing or cannot be read.
        """
        left = self.row_limit
        if left == 0:
            return
        for batch in data_file.read(self.view, self.parts, self.columns, several=left is None):
            if not batch.num_rows:
                continue
            rows = batch.select(list(self.columns))
            yield rows if left is None else rows.slice(0, left)
            if left is not None:
                left -= rows.num_rows
                if left <= 0:
                    return

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as a stream, with the types of `schema`. It can be read once.

        Arrow wraps errors that come while it is read.

        Raises:
            InputError: `EqualityDeletes`.
            LedgerError: A ledger is missing or cannot be read.
        """
        schema, _ = self.schema, self.parts
        return pa.RecordBatchReader.from_batches(schema, (b.cast(schema) for b in self.to_batches()))

    def to_arrow(self) -> pa.Table:
        """All rows, as one Arrow table.

        Raises:
            InputError: UnreadableFile, EqualityDeletes.
            LedgerError: A ledger is missing or cannot be read.
        """
        tables = [pa.Table.from_batches([b]) for b in self.to_batches()]
        return pa.concat_tables(tables, promote_options="permissive") if tables else self.schema.empty_table()

    def to_pandas(self) -> "pandas.DataFrame":
        """All rows, as a data frame of pandas.

        Raises:
            InputError: NotInstalled, UnreadableFile, EqualityDeletes.
            LedgerError: A ledger is missing or cannot be read.
        """
        _required("pandas")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> "polars.DataFrame":
        """All rows, as a data frame of Polars.

        Raises:
            InputError: NotInstalled, UnreadableFile, EqualityDeletes.
            LedgerError: A ledger is missing or cannot be read.
        """
        frame: polars.DataFrame = _required("polars").from_arrow(self.to_arrow())
        return frame

    def to_duckdb(self, connection: "duckdb.DuckDBPyConnection | None" = None) -> "duckdb.DuckDBPyRelation":
        """A relation of DuckDB. Each query on it reads the rows again, as a stream: they need not fit into memory.

        Args:
            connection: None: that of the module.

        Raises:
            InputError: NotInstalled, EqualityDeletes.
            LedgerError: A ledger is missing or cannot be read.
        """
        module, _ = _required("duckdb"), self.parts
        relation: duckdb.DuckDBPyRelation = (connection or module).from_arrow(self)
        return relation

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The rows as a stream of Arrow's PyCapsule interface. Each call reads them again."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def head(self, rows: int = 10) -> pa.Table:
        """Some rows, as an Arrow table. Opens no more files than it needs.

        Raises:
            InputError: UnreadableFile, EqualityDeletes, InvalidRead if the number is negative.
            LedgerError: A ledger is missing or cannot be read.
        """
        return self.limit(rows).to_arrow()

    def count(self) -> int:
        """The number of rows. Does not open files that need no filter.

        Raises:
            InputError: UnreadableFile, EqualityDeletes.
            LedgerError: A ledger is missing or cannot be read.
        """
        rows = data_file.count(self.view, self.parts)
        return rows if self.row_limit is None else min(rows, self.row_limit)

    def __repr__(self) -> str:
        return text("Scan", self._title, columns_of(self.schema))

    def _repr_html_(self) -> str:
        return html("Scan", self._title, columns_of(self.schema))

    @property
    def _title(self) -> str:
        """What is read, without the values of the filter."""
        at = f"snapshot {self.snapshot_id}" if self.snapshot_id is not None else "no snapshot"
        filtered = "" if self.view.condition.is_always_true else ", filtered"
        limit = "" if self.row_limit is None else f", at most {self.row_limit} rows"
        return f"{self.facts.name}, {at}{filtered}{limit}"


def _required(package: str) -> Any:
    """A package that Lethe does not need otherwise.

    Raises:
        InputError: `NotInstalled`.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError:
        raise InputError(
            "NotInstalled",
            f"{package} is not installed. Run: pip install {package}, or 'lethe-lake[notebook]' for pandas, Polars and DuckDB.",
        ) from None


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
    catalog: Catalog | str | None = None,
) -> Scan:
    """Read an Iceberg table without the rows that its ledger says are deleted.

    With `since`, the rows that were appended or deleted.

    Args:
        table: What `lethe.table` takes, or a loaded PyIceberg table.
        columns: Names; all columns by default.
        filter: A condition on rows, in PyIceberg's expression syntax.
        snapshot_id: Read this snapshot; the head by default. Not with `as_of`.
        as_of: Read the snapshot that was the head at this time (aware datetime).
        since: Read the increment after this snapshot (id) or time (aware datetime). Not with `snapshot_id` or `as_of`.
        until: The end of the increment, inclusive; the head by default.
        rows: Of an increment, `"appended"` (the default) or `"deleted"`.
        catalog: As of `lethe.table`.

    Raises:
        InputError: UnknownCatalog, UnsupportedCatalog, CatalogUnusable, TableNotFound, AmbiguousTable, TableIsView,
            UnsafeProperty, SnapshotNotFound, UnknownColumn, InvalidRead, NotAnAncestor, ForeignChange, ErasedBetween,
            RetentionBetween, BatchColumnType, BatchColumnDropped, UnknownType; of a Dataset NotInstalled, UnknownName,
            NoCluster and others.
        TransientError: CatalogUnavailable, ClusterAway.
        LedgerError: A ledger is missing or cannot be read.
    """
    if isinstance(table, Table):
        loaded, name = table, None
    else:
        found, loaded = finding.find(table, catalog)
        name = found.name
    facts = observe(loaded, "batch_id", name)
    if since is not None:
        if snapshot_id is not None or as_of is not None:
            raise InputError(
                "InvalidRead",
                "since reads an increment; snapshot_id and as_of read a whole table. Give one of them.",
            )
        within = resolve_range(facts, loaded, since, until)
        snapshot_of_view = within.until if within is not None and until is not None else None
        view = SnapshotView.on(loaded, facts.remembered_field_id or facts.batch_field_id, snapshot_of_view, filter)
        if view.field_id is not None and _lacks_batch_column(view):
            raise column_dropped(facts, "the table" if snapshot_of_view is None else f"snapshot {snapshot_of_view}")
        change: Which = rows or "appended"
        end = within.until if within is not None else None
        of_range = partial(_of_range, facts=facts, within=within, which=change)
        return Scan(loaded, facts, end, _columns(view, facts, columns), view, of_range, of_range(view))
    if until is not None or rows is not None:
        raise InputError("InvalidRead", "until and rows need since, the start of the increment.")
    chosen = resolve_snapshot(facts, loaded, snapshot_id, as_of)
    past = snapshot_id is not None or as_of is not None
    view = SnapshotView.on(loaded, facts.remembered_field_id or facts.batch_field_id, chosen if past else None, filter)
    of_snapshot = partial(_of_snapshot, facts=facts, snapshot_id=chosen)
    return Scan(loaded, facts, chosen, _columns(view, facts, columns), view, of_snapshot, of_snapshot(view))


def _columns(view: SnapshotView, facts: TableFacts, columns: Sequence[str] | None) -> tuple[str, ...]:
    """The columns of the read.

    Raises:
        InputError: InvalidRead, UnknownColumn; `UnknownType`, if Lethe does not know the type of one of the columns.
    """
    known = tuple(f.name for f in view.schema.fields)
    chosen = known if columns is None else tuple(columns)
    if not chosen:
        raise InputError("InvalidRead", f"no column of {facts.name} is chosen. Its columns are {', '.join(known)}.")
    if twice := [c for c in dict.fromkeys(chosen) if chosen.count(c) > 1]:
        raise InputError("InvalidRead", f"{', '.join(twice)} is chosen more than once. Name each column once.")
    if unknown := [c for c in chosen if c not in known]:
        raise InputError(
            "UnknownColumn",
            f"{facts.name} has no column {', '.join(unknown)}. Its columns are {', '.join(known)}.",
        )
    require_known(view.schema, chosen, "lethe.scan")
    return chosen


def _lacks_batch_column(view: SnapshotView) -> bool:
    """Whether the table has no batch column, or the schema of the read lacks it."""
    return view.field_id is None or view.schema.find_column_name(view.field_id) is None


def _of_snapshot(view: SnapshotView, facts: TableFacts, snapshot_id: int | None) -> Plan:
    if snapshot_id is None:
        return tuple
    loaded = ledger_store.load(view.io, facts, snapshot_id)
    if _lacks_batch_column(view) and loaded.ledger.tombstones:
        raise column_dropped(facts, f"the schema of snapshot {snapshot_id}")

    @cache
    def plan() -> tuple[ReadPart, ...]:
        files = view.files(SnapshotFiles.LIVE, snapshot_id)
        if view.field_id is None or not files:
            return data_file.all_of(files)
        with ledger_store.naming(facts, snapshot_id):
            tombstones = loaded.ledger.tombstones_within(view.field_id, covered_by(f.bounds for f in files))
        if not tombstones:
            return data_file.all_of(files)
        foreign = view.foreign(snapshot_id, loaded.resolution, facts.snapshots)
        return data_file.filtered(files, plan_read(unsure_of([f.bounds for f in files], foreign), tombstones))

    return plan


def _of_range(view: SnapshotView, facts: TableFacts, within: SnapshotRange | None, which: Which) -> Plan:
    if within is None:
        return tuple
    rows = find_rows(view, facts, within, which, view.files)

    @cache
    def plan() -> tuple[ReadPart, ...]:
        parts: list[ReadPart] = []
        for f in rows:
            if f.rows.of_ids:
                parts += data_file.of_batches(f.files, f.rows.ids)
            else:
                parts += data_file.without_batches(f.files, f.rows.ids)
        return tuple(parts)

    return plan
