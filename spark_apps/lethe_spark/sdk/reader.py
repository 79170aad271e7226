"""Read a table with Spark without its tombstoned rows, or the rows that were added or deleted between two snapshots.

I/O: reads metadata and ledgers. Spark reads the rows later.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from lethe import ledger_store
from lethe.base.errors import InputError
from lethe.files.bounds import split_by_bounds
from lethe.files.increment import ReadPlan, SnapshotFiles, covered_by, plan_read, skipped_ranges, unsure_of
from lethe.iceberg import catalogs
from lethe.iceberg.facts import TableFacts, column_dropped, observe
from lethe.iceberg.snapshot_files import SnapshotView, resolve_snapshot, schema_of
from lethe.read.scan import SnapshotOrTime, Which, find_rows, resolve_range
from lethe.storage.properties import require_safe_table
from pyiceberg.table import Table
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from lethe_spark.jvm.scan_tasks import Tasks, plan_tasks, stage
from lethe_spark.jvm.spark_table import SparkTable, for_skipping, quoted_path
from lethe_spark.sql.rest_servers import require_served
from lethe_spark.sql.searching import anti_join, named, outside, semi_join

RUNS_AT_MOST: Final = 8
"""Conditions on the batch column keep Spark from opening files that hold only deleted rows.

Each row is compared with each condition, so there are at most this many.
"""
SPLIT_FROM: Final = 0.3
"""Files of only deleted rows that no condition covers are read and filtered.

If they are at least this fraction of the bytes, the read names the files to open instead. Then filters that users add to the
frame later can no longer skip files.
"""
_VIEWS: Final[dict[str, DataFrame]] = {}
"""Keeps the frame of each view alive: a temporary view of Spark refers to the files of its read by name only."""


def read(
    spark: SparkSession,
    table: str,
    *,
    snapshot_id: int | None = None,
    as_of: datetime | None = None,
    filter: str | None = None,
    since: SnapshotOrTime | None = None,
    until: SnapshotOrTime | None = None,
    rows: Which | None = None,
    batch_column: str = "batch_id",
) -> DataFrame:
    """Read the rows of a table without the tombstoned ones, or, with `since`, the rows that were added or deleted.

    The frame is of one snapshot and its ledger. Later commits to the table do not change it.

    Example: `lethe_spark.read(spark, "main.air.flights", filter="day = DATE '2026-03-02'")`

    Args:
        spark: The session to read with.
        table: `catalog.namespace.table`. The catalog must be configured in this session and in `.pyiceberg.yaml`.
        snapshot_id: The snapshot to read; the head by default.
        as_of: Read the snapshot that was the head at this time, an aware datetime. Excludes `snapshot_id`.
        filter: A condition on the rows, as SQL text. Unlike a filter on the frame, it also limits the files to read, and only
            the tombstones for these files are loaded.
        since: Read the increment after this snapshot (id) or time (aware datetime). Excludes `snapshot_id` and `as_of`.
        until: The last snapshot or time of the increment, inclusive; the head by default. Requires `since`.
        rows: Which rows of the increment: `"appended"` (the default) or `"deleted"`. Requires `since`.
        batch_column: The column of batch ids, for a table that Lethe has not prepared. A prepared table stores its own.

    Returns:
        A frame with the columns of the table.

    Raises:
        InputError: UnknownCatalog, CatalogNotServed, SnapshotNotFound, InvalidRead, NotAnAncestor, ForeignChange,
            ErasedBetween, RetentionBetween, ColumnGone, BatchColumnDropped, UnsafeProperty.
        LedgerError: A ledger cannot be read.
    """
    catalog, dot, name = table.partition(".")
    if not dot or "." not in name:
        raise InputError("InvalidRead", f"{table!r}: expected catalog.namespace.table.")
    require_served(spark, catalog, name, catalogs.properties(catalog))
    loaded = catalogs.load(catalog).load_table(name)
    require_safe_table(table, loaded.location(), loaded.properties)
    source = _Source(spark, catalog, name, loaded, observe(loaded, batch_column, name=name))
    if since is not None:
        if snapshot_id is not None or as_of is not None:
            raise InputError(
                "InvalidRead", "since reads an increment, and cannot be combined with snapshot_id or as_of."
            )
        frame = _increment(source, since, until, rows or "appended")
        return _filtered(frame, filter)
    if until is not None or rows is not None:
        raise InputError("InvalidRead", "until and rows need since, the start of the increment.")
    chosen = resolve_snapshot(source.facts, loaded, snapshot_id, as_of)
    if chosen is None:
        return _filtered(source.empty(), filter)
    return _snapshot(source, chosen, snapshot_id is not None or as_of is not None, filter)


def create_view(spark: SparkSession, view: str, table: str, **how: Any) -> None:
    """Create or replace a temporary view, for SQL, of the rows that `read` returns.

    The view shows one snapshot, by default the head at the time of this call. Create it again to see newer rows.

    Args:
        spark: The session of the view.
        view: The name of the view.
        table: `catalog.namespace.table`.
        how: Options of `read`.

    Raises:
        Exception: As `read`.
    """
    frame = read(spark, table, **how)
    frame.createOrReplaceTempView(view)
    _VIEWS[view] = frame


@dataclass(frozen=True)
class _Source:
    """A table, as PyIceberg and Spark see it."""

    spark: SparkSession
    catalog: str
    name: str
    table: Table
    facts: TableFacts

    def empty(self) -> DataFrame:
        return self.spark.table(self._quoted).limit(0)

    def at(self, snapshot_id: int) -> DataFrame:
        """All rows of a snapshot, including tombstoned ones, with the columns of the snapshot."""
        return self.spark.read.option("versionAsOf", str(snapshot_id)).table(self._quoted)

    def has_current_columns(self, snapshot_id: int) -> bool:
        return schema_of(self.table, snapshot_id).schema_id == self.table.schema().schema_id

    def has_current_names(self, snapshot_id: int) -> bool:
        """Whether each column of the snapshot still exists under the same name."""
        now = self.table.schema()
        return all(now.find_column_name(f.field_id) == f.name for f in schema_of(self.table, snapshot_id).fields)

    @property
    def field_id(self) -> int | None:
        """The field id of the batch column, also if the column was dropped: older snapshots have it."""
        return self.facts.remembered_field_id or self.facts.batch_field_id

    def column_at(self, snapshot_id: int | None) -> str | None:
        """The name of the batch column in a snapshot. Found by field id, because columns can be renamed."""
        schema = schema_of(self.table, snapshot_id)
        return schema.find_column_name(self.field_id) if self.field_id is not None else None

    def java(self) -> SparkTable:
        loaded = SparkTable.load(self.spark, self.catalog, self.name)
        if loaded is None:
            raise InputError("TableNotFound", f"Spark's catalog {self.catalog} has no table {self.name}.")
        return loaded

    @property
    def _quoted(self) -> str:
        return quoted_path(self.catalog, self.name)


def _snapshot(source: _Source, chosen: int, past: bool, filter: str | None) -> DataFrame:
    current = source.has_current_columns(chosen)
    java: SparkTable | None = None
    tasks: Tasks | None = None
    if not past and not current:
        # The head is read with the current columns. With versionAsOf, Spark would use the columns of its commit.
        java = source.java()
        tasks = plan_tasks(java, chosen)
        frame = stage(java, [(tasks, frozenset(tasks.paths))]) if tasks.paths else source.empty()
    else:
        frame = source.at(chosen)
    column = source.column_at(chosen if past else None)
    filtered = _filtered(frame, filter, pushed=not past or source.has_current_names(chosen))
    loaded = ledger_store.load(source.table.io, source.facts, chosen)
    if not loaded.ledger.tombstones:
        return filtered
    if source.field_id is None or column is None:
        raise column_dropped(source.facts, f"the schema that snapshot {chosen} is read with")
    view = SnapshotView.on(source.table, source.field_id)
    files = view.bounds(SnapshotFiles.LIVE, chosen)
    if filter is not None and current:
        java = java or source.java()
        tasks = plan_tasks(java, chosen, for_skipping(source.at(chosen), filter) or filter)
        planned = frozenset(tasks.paths)
        files = [f for f in files if f.path in planned]
    with ledger_store.naming(source.facts, chosen):
        tombstones = loaded.ledger.tombstones_within(source.field_id, covered_by(files))
    foreign = view.foreign(chosen, loaded.resolution, source.facts.snapshots)
    plan = plan_read(unsure_of(files, foreign), tombstones)
    if not plan.filtered and not plan.skipped:
        return filtered
    runs = skipped_ranges(plan, RUNS_AT_MOST if current else 0)
    left = sum(f.size for f in plan.skipped) - sum(r.size for r in runs)
    if not current or left < SPLIT_FROM * sum(f.size for f in files):
        return anti_join(outside(filtered, column, [(r.lower, r.upper) for r in runs]), column, plan.hidden_ids)
    java = java or source.java()
    tasks = tasks or plan_tasks(java, chosen)
    return _split(java, tasks, plan, column, filter) or filtered.limit(0)


def _split(table: SparkTable, tasks: Tasks, plan: ReadPlan, column: str, filter: str | None) -> DataFrame | None:
    """Files without tombstoned rows are read whole, the others filtered. None: there is no file to read."""
    frames: list[DataFrame] = []
    for files, ids in ((plan.plain, frozenset[str]()), (plan.filtered, plan.ids)):
        if files:
            frame = stage(table, [(tasks, frozenset(f.path for f in files))])
            frames.append(anti_join(_filtered(frame, filter), column, ids))
    return _union(frames)


def _increment(source: _Source, since: SnapshotOrTime, until: SnapshotOrTime | None, which: Which) -> DataFrame:
    within = resolve_range(source.facts, source.table, since, until)
    if within is None:
        return source.empty()
    column = source.column_at(None)
    if column is None and source.field_id is not None:
        raise column_dropped(source.facts, "the table")
    view = SnapshotView.on(source.table, source.field_id)
    rows = find_rows(view, source.facts, within, which, view.bounds)
    end = within.until if until is not None else None
    # Files, grouped by the rows to read from them: all rows, those of some batches, or those of all other batches.
    groups: dict[tuple[frozenset[str], bool], list[tuple[int, frozenset[str]]]] = {}
    for f in rows:
        split = split_by_bounds(f.files, f.rows.ids)
        snapshot_id = f.rows.snapshot_id
        if f.rows.files is SnapshotFiles.REMOVED:
            snapshot_id = source.facts.snapshots[snapshot_id].parent_id or snapshot_id
        whole = split.all_rows_deleted if f.rows.of_ids else split.cannot
        for files, key in (
            (whole, (frozenset[str](), False)),
            (split.may_contain_deleted_rows, (f.rows.ids, f.rows.of_ids)),
        ):
            if files:
                groups.setdefault(key, []).append((snapshot_id, frozenset(x.path for x in files)))
    if not groups:
        return _in_columns_of(source, source.empty(), end)
    java = source.java()

    def plan(snapshot_id: int) -> Tasks:
        return plan_tasks(java, snapshot_id)

    planned: dict[int, Tasks] = {within.until: plan(within.until)}
    frames: list[DataFrame] = []
    for (ids, of_ids), parts in groups.items():
        frame = stage(java, _tasks_of(plan, planned, within.until, parts, as_of=bool(within.position_changes)))
        frames.append(semi_join(frame, column or "", ids) if of_ids else anti_join(frame, column or "", ids))
    union = _union(frames)
    assert union is not None
    return _in_columns_of(source, union, end)


def _tasks_of(
    plan: Callable[[int], Tasks],
    planned: dict[int, Tasks],
    until: int,
    parts: list[tuple[int, frozenset[str]]],
    as_of: bool,
) -> list[tuple[Tasks, Collection[str]]]:
    """The tasks of these paths.

    A file that is still part of the table is planned at the end of the range, because no other writer's deletes can apply to it
    in between; any other file is planned at the snapshot it is wanted at.

    Args:
        as_of: Plan every file at its snapshot, because native deletes by position were added in the range.
    """
    if as_of:
        planned |= {
            snapshot_id: plan(snapshot_id) for snapshot_id in {snapshot_id for snapshot_id, _ in parts} - planned.keys()
        }
        return [(planned[snapshot_id], paths) for snapshot_id, paths in parts]
    live = frozenset(planned[until].paths)
    chosen: list[tuple[Tasks, Collection[str]]] = [
        (planned[until], frozenset(p for _, paths in parts for p in paths) & live)
    ]
    for snapshot_id, paths in parts:
        gone = paths - live
        if gone and snapshot_id not in planned:
            planned[snapshot_id] = plan(snapshot_id)
        if gone:
            chosen.append((planned[snapshot_id], gone))
    return chosen


def _in_columns_of(source: _Source, frame: DataFrame, snapshot_id: int | None) -> DataFrame:
    """Rows that were read with the current columns, with the columns of a snapshot.

    Raises:
        InputError: ColumnGone.
    """
    then = schema_of(source.table, snapshot_id)
    if then.schema_id == source.table.schema().schema_id:
        return frame
    columns = []
    for f in then.fields:
        now = source.table.schema().find_column_name(f.field_id)
        if now is None:
            raise InputError(
                "ColumnGone",
                f"{source.facts.name}: column {f.name} of snapshot {snapshot_id} was dropped later, and Spark cannot read an "
                "increment with it. Omit `until`, or read with lethe.scan.",
            )
        columns.append(named(now).alias(f.name))
    return frame.select(*columns)


def _filtered(frame: DataFrame, filter: str | None, pushed: bool = True) -> DataFrame:
    """The rows that satisfy a condition.

    Raises:
        InputError: InvalidRead, if the text is not a condition on the rows.

    Args:
        pushed: Whether Spark may push the condition down to Iceberg, which resolves names in the current schema.
    """
    if filter is None:
        return frame
    try:
        if not pushed:
            return _judged(frame, filter)
        weaker = for_skipping(frame, filter)
        return frame.filter(filter) if weaker is None else _judged(frame.filter(weaker), filter)
    except (AnalysisException, ParseException) as e:
        first = str(e).strip().splitlines()[0][:300]
        raise InputError("InvalidRead", f"filter={filter!r} is not a condition on the table's rows: {first}") from e


def _judged(frame: DataFrame, filter: str) -> DataFrame:
    """The rows that satisfy a condition, which Spark does not push down to Iceberg."""
    return frame.filter(F.coalesce(F.expr(filter), F.lit(False)))


def _union(frames: list[DataFrame]) -> DataFrame | None:
    result: DataFrame | None = None
    for frame in frames:
        result = frame if result is None else result.unionByName(frame)
    return result
