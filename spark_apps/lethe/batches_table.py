"""Maintains the table of batches beside a table: a plain Iceberg table that shows the ledger. I/O, through PyIceberg.

Each commit names the ledger that it shows, and is a compare-and-set on the head of the table of batches. The ledger is read after
that head, so a commit never replaces a newer ledger by an older one.
"""

import logging
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, In
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzType

from lethe import ledger_store
from lethe.base import names
from lethe.base.errors import ConflictError, InputError, LedgerError
from lethe.buffer.batch_rows import BUFFERED, BatchRow, Sizes, Total, Totals, row_of, to_merge
from lethe.files.bounds import IdIndex
from lethe.iceberg import catalogs
from lethe.iceberg.column_path import BatchColumn
from lethe.iceberg.facts import TableFacts, bounds_of, observe
from lethe.ledger.ledger import BatchEntry, RequestEntry, apart, get_many
from lethe.ledger_chunks import TooDifferent, all_batches, changed_batches
from lethe.restatement.plan import provenances
from lethe.storage.properties import require_safe_table

log = logging.getLogger(__name__)

BATCH_ID: Final = 1
STATE: Final = 2
PARALLEL: Final = 4
SCHEMA: Final = Schema(
    NestedField(BATCH_ID, "batch_id", StringType(), required=True),
    NestedField(STATE, "state", StringType(), required=True),
    NestedField(3, "state_time", TimestamptzType(), required=True),
    NestedField(4, "rows", LongType()),
    NestedField(5, "bytes", LongType()),
    NestedField(6, "objects", IntegerType()),
    NestedField(7, "snapshot_id", LongType()),
    NestedField(8, "run_id", StringType()),
    NestedField(9, "restatement", StringType()),
    NestedField(10, "replaced_by", StringType()),
    NestedField(11, "refusal_reason", StringType()),
    NestedField(12, "refusal_message", StringType()),
    NestedField(13, "evict_by", TimestamptzType()),
    NestedField(14, "reason", StringType()),
    NestedField(15, "ticket", StringType()),
    NestedField(16, "requested_by", StringType()),
    NestedField(17, "reference", StringType()),
    identifier_field_ids=[BATCH_ID],
)
"""The columns of the table of batches, in the order of BatchRow's fields."""
ARROW: Final = SCHEMA.as_arrow()
REQUESTED: Final = ("reason", "ticket", "requested_by")
"""The columns about the Restatement of a batch."""
ADDED: Final = (*REQUESTED, "reference")
"""The columns that tables of earlier builds lack."""
_VALUES: Final = attrgetter(*ARROW.names)
SPEC: Final = PartitionSpec(PartitionField(STATE, 1000, IdentityTransform(), "state"))
ORDER: Final = SortOrder(SortField(BATCH_ID, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_FIRST))

SIZES: Final = Sizes()
_GROUP_ROWS: Final = 50_000
"""Rows that are Python objects at one time."""

# With more than MAX_SNAPSHOTS, expire all but KEPT_SNAPSHOTS. A reader may take as long as KEPT_SNAPSHOTS commits.
MAX_SNAPSHOTS: Final = 40
KEPT_SNAPSHOTS: Final = 20

MAX_ATTEMPTS: Final = 6
LOST_RACES_ENOUGH: Final = 2
"""After this many lost races, another update has shown this ledger."""
_PROPERTIES: Final = {
    "format-version": "2",
    "write.metadata.metrics.column.batch_id": "full",
    "write.parquet.compression-codec": "zstd",
    # Plan again after a lost race. A retry by PyIceberg would add the same rows to those of the winner.
    "commit.retry.num-retries": "0",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
}


@dataclass(frozen=True)
class TrackingFile:
    """A live data file."""

    file: DataFile
    state: str
    """The state of all rows of the file."""
    records: int
    lower: str | None
    """Bound of the batch ids; None: unknown."""
    upper: str | None
    """Bound of the batch ids; None: unknown."""


def files_of(table: Table) -> list[TrackingFile]:
    """The live data files of the loaded table. Reads manifests.

    Each file contains rows of one state, sorted by batch id, so that its bounds exclude other batches.
    """
    head = table.current_snapshot()
    files: list[TrackingFile] = []
    for manifest in head.manifests(table.io) if head is not None else ():
        if manifest.content != ManifestContent.DATA:
            continue
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            bounds = bounds_of(entry.data_file, BatchColumn(BATCH_ID))
            files.append(
                TrackingFile(
                    entry.data_file, str(entry.data_file.partition[0]), bounds.records, bounds.lower, bounds.upper
                )
            )
    return files


def as_arrow(rows: Iterable[BatchRow]) -> pa.Table:
    """The rows in their order, with the Arrow schema of the table of batches even if there are none."""
    columns = list(zip(*map(_VALUES, rows), strict=True)) or [()] * len(ARROW)
    return pa.Table.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, ARROW, strict=True)], schema=ARROW
    )


def ids_in(io: FileIO, file: TrackingFile) -> pa.ChunkedArray:
    """The batch ids of a file, in its order. Reads no other column."""
    with io.new_input(file.file.file_path).open(seekable=True) as stream:
        return pq.read_table(stream, columns=["batch_id"])["batch_id"]


def rows_in(io: FileIO, files: Sequence[TrackingFile]) -> list[pa.Table]:
    """The rows of each file."""

    def read(file: TrackingFile) -> pa.Table:
        with io.new_input(file.file.file_path).open(seekable=True) as stream:
            rows = pq.read_table(stream)
        for name in ADDED:
            if name not in rows.column_names:
                rows = rows.append_column(ARROW.field(name), pa.nulls(rows.num_rows, ARROW.field(name).type))
        return rows.select(ARROW.names).cast(ARROW)

    with ThreadPoolExecutor(max_workers=PARALLEL) as pool:
        return list(pool.map(read, files))


def among(rows: pa.Table, ids: pa.Array) -> pa.ChunkedArray:
    """For each row, whether its batch is one of these."""
    return pc.is_in(rows["batch_id"], value_set=ids.cast(ARROW.field("batch_id").type))


def totals_of(rows: pa.Table) -> Totals:
    """Count the batches of each state that occurs, and add up their rows and bytes; unknown numbers count as 0."""
    grouped = rows.group_by("state").aggregate([("batch_id", "count"), ("rows", "sum"), ("bytes", "sum")]).to_pylist()
    return Totals({g["state"]: Total(g["batch_id_count"], g["rows_sum"] or 0, g["bytes_sum"] or 0) for g in grouped})


def by_state(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Split rows by their state. Yields only states that occur, in the order of their first row."""
    for state in pc.unique(rows["state"]).to_pylist():
        yield state, rows.filter(pc.equal(rows["state"], state))


def pieces(rows: pa.Table, cap: int) -> Iterator[pa.Table]:
    """Divide rows of one state into the contents of files: sorted, at most `cap` rows each."""
    in_order = rows.sort_by("batch_id")
    for start in range(0, in_order.num_rows, cap):
        yield in_order.slice(start, cap)


def write(table: Table, contents: Sequence[pa.Table]) -> list[DataFile]:
    """Write a data file for each. A commit must add them to the table."""
    with ThreadPoolExecutor(max_workers=PARALLEL) as pool:
        written = pool.map(lambda rows: list(_dataframe_to_data_files(table.metadata, rows, table.io)), contents)
        return [file for files in written for file in files]


def read_rows(table: Table, states: Collection[str] = (), ids: Collection[str] = ()) -> Iterator[BatchRow]:
    """The rows with these batch ids and states; empty means all. Opens no file of another state."""
    chosen: BooleanExpression = AlwaysTrue()
    if states:
        chosen = And(chosen, _one_of("state", states))
    if ids:
        chosen = And(chosen, _one_of("batch_id", ids))
    present = tuple(name for name in ARROW.names if name in table.schema().column_names)
    rows = table.scan(row_filter=chosen, selected_fields=present).to_arrow()
    for row in rows.to_pylist():
        yield BatchRow(**row)


def _one_of(column: str, values: Collection[str]) -> BooleanExpression:
    return In(column, frozenset(values))  # type: ignore[call-arg]  # mypy's plugin sees only pydantic's fields


@dataclass(frozen=True)
class BatchesTableChange:
    """A change of the table of batches."""

    removed: tuple[TrackingFile, ...]
    contents: tuple[pa.Table, ...]
    """The rows of each file to write."""
    totals: Totals
    """Totals of the table after the change."""

    @property
    def is_empty(self) -> bool:
        """Whether no file is written or removed. A commit may follow all the same, to show another ledger."""
        return not self.removed and not self.contents


def plan_change(
    tracking: Table,
    before: Totals | None,
    rows: Iterable[BatchRow],
    gone: Collection[str],
    waiting: Sequence[BatchRow] | None,
) -> BatchesTableChange:
    """Plan how to make the table show these rows.

    It opens the files whose bounds allow one of the changed batches, and rewrites those that contain one; it merges small files.
    Changes are copy-on-write, so any engine reads plain files without deletes.

    Args:
        before: The table's totals; None: replace all rows except those of waiting batches.
        rows: Of the batches that changed, or of all batches.
        gone: Ids of batches that the ledger no longer has.
        waiting: The batches that wait in the buffer; None: those that the table shows, except batches in `rows`.
    """
    new = _arrow(rows)
    files = files_of(tracking)
    kept = [f for f in files if f.state != BUFFERED]
    removed: list[TrackingFile] = []
    contents: list[pa.Table] = []
    if before is None:
        removed += kept
        totals = totals_of(new)
        for _, part in by_state(new):
            contents += pieces(part, SIZES.cap)
    else:
        touched = pa.concat_arrays([*new["batch_id"].chunks, pa.array(sorted(gone), ARROW.field("batch_id").type)])
        replaced, contents, old = _settled(tracking, kept, new, touched)
        removed += replaced
        totals = before.without(BUFFERED).minus(old).plus(totals_of(new))
    buffered, shown = _buffered(tracking, [f for f in files if f.state == BUFFERED], new["batch_id"], waiting)
    if buffered is not None:
        removed += buffered
        contents += pieces(shown, SIZES.cap)
    return BatchesTableChange(tuple(removed), tuple(contents), totals.plus(totals_of(shown)))


def _settled(
    tracking: Table, files: Sequence[TrackingFile], new: pa.Table, touched: pa.Array
) -> tuple[list[TrackingFile], list[pa.Table], Totals]:
    """The files to remove, the content of the new files, and the totals of the removed rows."""
    affected = _holding(tracking, files, touched)
    old = Totals()
    stay: dict[int, pa.Table] = {}  # the rows to keep of files with a touched batch
    for index, content in zip(affected, rows_in(tracking.io, [files[index] for index in affected]), strict=True):
        mask = among(content, touched)
        old = old.plus(totals_of(content.filter(mask)))
        stay[index] = content.filter(pc.invert(mask))
    contents: list[pa.Table] = []
    gone = set(affected)
    new_by_state = dict(by_state(new))
    for state in dict.fromkeys([*new_by_state, *(f.state for f in files)]):
        own = [index for index, f in enumerate(files) if f.state == state]
        records = [stay[index].num_rows if index in stay else files[index].records for index in own]
        fresh = new_by_state.get(state, ARROW.empty_table())
        chosen = [own[n] for n in to_merge(records, fresh.num_rows, SIZES)] if fresh.num_rows or gone & set(own) else []
        unread = [index for index in chosen if index not in stay]
        read = dict(zip(unread, rows_in(tracking.io, [files[index] for index in unread]), strict=True))
        gone.update(chosen)
        contents += pieces(
            pa.concat_tables([fresh, *(stay.pop(index, read.get(index)) for index in chosen)]), SIZES.cap
        )
        contents += [
            rows for index in own if index not in chosen and (rows := stay.get(index)) is not None and rows.num_rows
        ]
    return [files[index] for index in sorted(gone)], contents, old


def _holding(tracking: Table, files: Sequence[TrackingFile], ids: pa.Array) -> list[int]:
    """The positions of the files that contain one of the batches: first by bounds, then by their ids."""
    index = IdIndex(ids.to_pylist())
    near = [number for number, f in enumerate(files) if index.might_hold(f)]

    def holds(number: int) -> bool:
        return bool(pc.any(pc.is_in(ids_in(tracking.io, files[number]).cast(ids.type), value_set=ids)).as_py())

    with ThreadPoolExecutor(max_workers=PARALLEL) as pool:
        return [number for number, held in zip(near, pool.map(holds, near), strict=True) if held]


def _buffered(
    tracking: Table, files: Sequence[TrackingFile], settled: pa.ChunkedArray, waiting: Sequence[BatchRow] | None
) -> tuple[Sequence[TrackingFile] | None, pa.Table]:
    """The files of buffered batches to remove, and the rows to show. None: the files do not change."""
    was = pa.concat_tables([ARROW.empty_table(), *rows_in(tracking.io, files)])
    if waiting is None:
        now = was.filter(pc.invert(among(was, settled.combine_chunks())))
    else:
        now = as_arrow(waiting)
    same = was.num_rows == now.num_rows and was.sort_by("batch_id").equals(now.sort_by("batch_id"))
    return (None if same else files), now


def _arrow(rows: Iterable[BatchRow]) -> pa.Table:
    """Converts in groups, because a row is ten times as large as a Python object."""
    source = iter(rows)
    parts = [ARROW.empty_table()]
    while some := list(islice(source, _GROUP_ROWS)):
        parts.append(as_arrow(some))
    return pa.concat_tables(parts)


def expire_old(table: Table) -> int:
    """Expire the oldest snapshots, except those that tags and branches name.

    Returns their number. Never raises: the next update tries again.

    PyIceberg expires snapshots without deleting their files, so this function deletes the files that only expired snapshots name.
    """
    try:
        return _expire(table)
    except Exception as e:
        log.warning(
            "%s: old snapshots were not expired; the next update tries again: %s",
            ".".join(table.name()),
            type(e).__name__,
        )
        return 0


def _expire(table: Table) -> int:
    snapshots = sorted(table.metadata.snapshots, key=lambda s: s.timestamp_ms, reverse=True)
    if len(snapshots) <= MAX_SNAPSHOTS:
        return 0
    named = {r.snapshot_id for r in table.metadata.refs.values()}
    expired = [s for s in snapshots[KEPT_SNAPSHOTS:] if s.snapshot_id not in named]
    if not expired:
        return 0
    ids = {s.snapshot_id for s in expired}
    kept = [s for s in snapshots if s.snapshot_id not in ids]
    table.maintenance.expire_snapshots().by_ids(sorted(ids)).commit()
    for uri in _only_of(table, expired, kept):
        try:
            table.io.delete(uri)
        except FileNotFoundError:
            continue
    return len(expired)


def _only_of(table: Table, expired: Iterable[Snapshot], kept: Iterable[Snapshot]) -> list[str]:
    """The files that only expired snapshots name. After a crash, Iceberg's remove_orphan_files finds the rest."""
    kept_manifests = _manifests(table, kept)
    kept_files = {f for m in kept_manifests.values() for f in _data_files(table, m)}
    gone = {path: m for path, m in _manifests(table, expired).items() if path not in kept_manifests}
    data = {f for m in gone.values() for f in _data_files(table, m)} - kept_files
    return [*data, *gone, *(s.manifest_list for s in expired if s.manifest_list)]


def _manifests(table: Table, snapshots: Iterable[Snapshot]) -> dict[str, ManifestFile]:
    return {m.manifest_path: m for s in snapshots for m in s.manifests(table.io)}


def _data_files(table: Table, manifest: ManifestFile) -> list[str]:
    return [e.data_file.file_path for e in manifest.fetch_manifest_entry(table.io, discard_deleted=True)]


@dataclass(frozen=True)
class Shown:
    """What a table of batches shows."""

    table_uuid: str
    """The UUID of the tracked table."""
    ledger: str
    """URI of the root of the ledger; empty: the empty ledger."""
    carrier_id: int | None
    """The snapshot that carries the ledger; None: the empty ledger."""
    version: int
    """The version of the ledger."""
    totals: Totals
    listed: datetime | None = None
    """When the buffer was listed; None: it was not."""

    def as_summary(self) -> dict[str, str]:
        """The summary of the snapshot that shows this; without a time of listing if the buffer was not listed."""
        keys = {
            names.TRACKING_LEDGER: self.ledger,
            names.TRACKING_CARRIER: str(self.carrier_id) if self.carrier_id is not None else "",
            names.TRACKING_VERSION: str(self.version),
            **self.totals.as_summary(),
        }
        return keys | ({names.TRACKING_LISTED: self.listed.isoformat()} if self.listed is not None else {})


@dataclass(frozen=True)
class Tracked:
    """The result of an update."""

    name: str
    """The name of the table of batches."""
    shown: Shown
    rebuilt: bool = False
    """The whole table was made from the ledger."""
    files: int = 0
    """Written."""
    snapshot_id: int | None = None
    """The snapshot of the commit; None: the table was current."""


@dataclass(frozen=True)
class TrackingUpdate:
    """What an update of a table of batches does."""

    create: bool
    """Create the table if it does not exist."""
    waiting: Sequence[BatchRow] | None = (
        None  # the batches in the buffer, just listed; None: not listed, keep those shown
    )
    rebuild: bool = False
    """Rewrite the whole table from the ledger."""


def name_of(table_name: str) -> str:
    """The name of the table of batches of `namespace.table`."""
    return f"{table_name}{names.BATCHES_SUFFIX}"


def find(catalog: Catalog, table_name: str) -> Table | None:
    """The table of batches of `namespace.table`; None: there is none.

    Raises:
        InputError: `BatchesTableTaken`, if Lethe did not make the table of that name.
    """
    name = name_of(table_name)
    try:
        table = catalog.load_table(name)
    except NoSuchTableError:
        return None
    if names.TRACKS not in table.properties:
        raise InputError(
            "BatchesTableTaken",
            f"Lethe did not make the table {name} (it lacks the property {names.TRACKS}), so there is no table of the batches of "
            f"{table_name}. Rename one of the two tables, or set spec.batchTracking.enabled: false.",
        )
    return table


def shown(table: Table) -> Shown | None:
    """What a table of batches shows; None: it has no head, or Lethe did not commit its head."""
    head = table.current_snapshot()
    keys: Mapping[str, str] = head.summary.additional_properties if head is not None and head.summary else {}
    if names.TRACKING_LEDGER not in keys:
        return None
    try:
        listed = keys.get(names.TRACKING_LISTED)
        return Shown(
            table_uuid=table.properties.get(names.TRACKS, ""),
            ledger=keys[names.TRACKING_LEDGER],
            carrier_id=int(keys[names.TRACKING_CARRIER]) if keys.get(names.TRACKING_CARRIER) else None,
            version=int(keys[names.TRACKING_VERSION]),
            totals=Totals.of_summary(keys),
            listed=datetime.fromisoformat(listed) if listed else None,
        )
    except (KeyError, ValueError):
        return None


def bring_up_to_date(
    catalog: Catalog,
    table_name: str,
    batch_column: str,
    update: TrackingUpdate,
    step: Callable[[str], None] = lambda _: None,
) -> Tracked | None:
    """Update the table of batches to the current ledger of `namespace.table`. Safe to repeat, and to run concurrently.

    The ledger overrides `update.waiting`.

    It compares the ledger that is shown with the newest one, and rewrites only the affected files; if the old ledger is gone, it
    rewrites the whole table.

    Returns:
        None, if there is no table of batches and `update.create` is False.

    Raises:
        InputError: BatchesTableTaken, UnsupportedCatalog, UnsafeProperty.
        LedgerError: A ledger file is unusable.
        ConflictError: The table moved between plan and commit.
        Exception: What the catalog raises.
    """
    if catalogs.is_folder(catalog.properties) and not update.create:
        return None
    if catalogs.is_folder(catalog.properties):
        raise InputError(
            "UnsupportedCatalog",
            f"catalog {catalog.name} is a folder without a catalog service. PyIceberg, which writes the table "
            f"{name_of(table_name)}, cannot commit there. Use `lethe batches`, which reads the ledger.",
        )
    heads: set[int] = set()  # of the table of batches, during these attempts
    for attempt in range(MAX_ATTEMPTS):
        tracking = find(catalog, table_name)
        if tracking is None and not update.create:
            return None
        if tracking is not None:
            require_safe_table(name_of(table_name), tracking.location(), tracking.properties)
        head = tracking.current_snapshot() if tracking is not None else None
        heads |= {head.snapshot_id} if head is not None else set()
        only_ledger = update.waiting is None and not update.rebuild
        if len(heads) > LOST_RACES_ENOUGH and only_ledger and tracking and (seen := shown(tracking)):
            # The writer of the third head loaded the second head, which is newer than the first that this update saw, and
            # read the tracked table after that.
            return Tracked(name_of(table_name), seen)
        # Load the table after the table of batches, so that its ledger is not older than the one shown.
        table = catalog.load_table(table_name)
        facts = observe(table, batch_column, table_name)
        loaded = ledger_store.load(table.io, facts)
        tracking = tracking or _create(catalog, table_name, facts)
        if tracking is None:
            continue
        try:
            return _update(tracking, _Tracking(table, facts, loaded), update, step)
        except CommitFailedException:
            log.info("another writer updated %s in the meantime; trying again", name_of(table_name))
            time.sleep(random.uniform(0, 0.2) * 2**attempt)
    raise ConflictError(
        "BatchesTableMoved",
        f"{name_of(table_name)}: other writers updated it at each attempt. The next run tries again.",
    )


def _create(catalog: Catalog, table_name: str, facts: TableFacts) -> Table | None:
    """Create the table of batches; None: another writer created it first."""
    try:
        return catalog.create_table(
            name_of(table_name),
            SCHEMA,
            partition_spec=SPEC,
            sort_order=ORDER,
            properties={
                **_PROPERTIES,
                names.TRACKS: facts.uuid,
                "comment": f"The batches of {table_name}, kept by Lethe.",
            },
        )
    except TableAlreadyExistsError:
        return None


@dataclass(frozen=True)
class _Tracking:
    """The tracked table, with the ledger of its head."""

    table: Table
    facts: TableFacts
    loaded: ledger_store.Loaded


def _update(tracking: Table, tracked: _Tracking, update: TrackingUpdate, step: Callable[[str], None]) -> Tracked:
    facts, loaded, waiting = tracked.facts, tracked.loaded, update.waiting
    name = ".".join(tracking.name())
    seen = shown(tracking)
    pointer = loaded.resolution.pointer or ""
    base = None if update.rebuild or seen is None or seen.table_uuid != facts.uuid else seen
    batches = loaded.ledger.batches
    if base is not None and base.ledger == pointer and waiting is None:
        return Tracked(name, base)
    if waiting is not None:
        promoted_entries = get_many(batches, [r.batch_id for r in waiting])
        waiting = [r for r in waiting if r.batch_id not in promoted_entries]
    if _add_columns(tracking):
        base = None  # all rows get their values
    requests = apart(loaded.ledger.requests)
    change: BatchesTableChange | None = None
    if base is not None:
        try:
            changed, gone = changed_batches(_ledger_shown(tracked.table, facts, base), batches, row_of)
            change = plan_change(tracking, base.totals, _rows(requests, changed), gone, waiting)
        except (LedgerError, TooDifferent) as e:
            log.info("%s is rebuilt from the ledger: %s", name, e if isinstance(e, LedgerError) else "too many changes")
        if change is not None and not change.totals.agree_with(loaded.ledger.states):
            log.warning("the totals of %s differ from the ledger; it is rebuilt", name)
            change = None
    rebuilt = change is None
    if change is None:
        every = (row for some in all_batches(batches) for row in _rows(requests, some))
        change = plan_change(tracking, None, every, (), waiting)
    when = datetime.now(UTC) if waiting is not None else seen.listed if seen is not None else None
    showing = Shown(facts.uuid, pointer, loaded.resolution.carrier_id, loaded.ledger.version, change.totals, when)
    if base is not None and base.ledger == pointer and not rebuilt and change.is_empty:
        return Tracked(name, base)
    written = write(tracking, change.contents)
    step("before-tracking")
    try:
        _commit(tracking, facts.uuid, change, written, showing)
    except CommitFailedException:
        _discard(tracking, written)
        raise
    head = tracking.current_snapshot()
    expire_old(tracking)
    return Tracked(name, showing, rebuilt, len(written), head.snapshot_id if head is not None else None)


def _add_columns(tracking: Table) -> bool:
    """Add the columns that a table of an earlier build lacks. Returns whether there were any.

    Raises:
        CommitFailedException: Another writer changed the table.
    """
    lacking = [field for field in SCHEMA.fields if field.name not in tracking.schema().column_names]
    if lacking:
        with tracking.update_schema() as update:
            for field in lacking:
                update.add_column(field.name, field.field_type)
    return bool(lacking)


def _rows(requests: Mapping[str, RequestEntry], entries: Sequence[BatchEntry]) -> list[BatchRow]:
    """The rows of batches, with who asked for their Restatements."""
    asked = provenances(requests, [e.restatement for e in entries if e.restatement is not None])
    return [row_of(e, asked.get(e.restatement or "")) for e in entries]


def _ledger_shown(table: Table, facts: TableFacts, base: Shown) -> Mapping[str, BatchEntry]:
    """The batches of the ledger that the table of batches shows.

    Raises:
        LedgerError: For example if a vacuum deleted the old ledger.
    """
    if not base.ledger:
        return {}
    return ledger_store.load_root(table.io, facts, base.ledger, base.carrier_id).batches


def _commit(
    tracking: Table, table_uuid: str, change: BatchesTableChange, written: Sequence[Any], showing: Shown
) -> None:
    """Commit the change and its totals to the table of batches.

    Raises:
        CommitFailedException: The head is not the one that the change was planned on.
    """
    with tracking.transaction() as transaction:
        if tracking.properties.get(names.TRACKS) != table_uuid:
            transaction.set_properties({names.TRACKS: table_uuid})
        with transaction.update_snapshot(snapshot_properties=showing.as_summary()).overwrite() as overwrite:
            for file in change.removed:
                overwrite.delete_data_file(file.file)
            for file in written:
                overwrite.append_data_file(file)


def _discard(tracking: Table, written: Sequence[Any]) -> None:
    """Delete the files of a commit that failed."""
    for file in written:
        try:
            tracking.io.delete(file.file_path)
        except Exception as e:
            log.warning("a file of a failed commit was not deleted: %s", type(e).__name__)
