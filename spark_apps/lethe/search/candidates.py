"""Finds the data files that might hold given values or tombstoned rows, and plans the SCAN of a vacuum. I/O: reads manifests.

Manifests are immutable, and each is read once: observing a new head reads only new manifests. For a file that cannot hold
tombstoned rows, only the bounds are kept, and only during the call.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from typing import Any, Final, TypeAlias

import pyarrow.compute as pc
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.table import Table

from lethe.base.ahead import ahead
from lethe.base.errors import InputError
from lethe.contract.result import VacuumPlanned
from lethe.contract.run import VacuumSpec
from lethe.files.bounds import Age, FileBounds, IdIndex, Suspects, partition_text
from lethe.files.increment import SnapshotFiles
from lethe.files.values import Values
from lethe.iceberg.column_path import BatchColumn, identity_positions
from lethe.iceberg.facts import TableFacts, bounds_of, live_entries
from lethe.iceberg.native_deletes import NativeDeleteFiles, native_deletes
from lethe.iceberg.snapshot_files import PlannedFile, SnapshotView
from lethe.ledger.ledger import Ledger, get_many
from lethe.ledger.lineage import Resolution, is_gapless
from lethe.ledger.tombstone import Tombstone
from lethe.read import data_file
from lethe.read.data_file import ReadPart
from lethe.search.positions import AnyWanted, Wanted, columns_of
from lethe.search.retention import Retention, retention_of
from lethe.vacuum.plan import (
    SMALL_PART,
    AgedRows,
    Drift,
    Estimate,
    ExpectedBytes,
    PurgeDeadlines,
    ScannedSnapshot,
    SmallPurge,
    TableTraits,
    VacuumPlan,
    by_priority,
    earliest_deadline,
    expected_bytes,
    in_vain_percent,
    one_by_one,
    plan_vacuum,
    target_bytes,
    tombstones_to_purge,
    unpurged_record_erasures,
)

log = logging.getLogger(__name__)

_PARALLEL_READS: Final = 4
_MAX_SMALL_FILES: Final = 10_000
"""Small files without tombstoned rows are kept, because a vacuum can merge them with others; at most this many."""

_Read: TypeAlias = "tuple[list[Suspect], list[Suspect], list[FileBounds]]"
"""What is read of a manifest: its suspects, its other small files, and the bounds of all its files."""

HeldCount: TypeAlias = Callable[[Collection[str]], int]
"""Says how many of the data files with these paths holds may keep, as `lethe.search.covered.HeldTable.count`."""

BATCHES: Final = "batches"
"""The key of a search for batches."""
MAX_READ_BYTES: Final = 64 * 1024 * 1024
_BYTES_PER_ROW: Final = 4
"""Memory for one row of a dictionary-encoded column: its index."""

_LOOKED_UP_AT_ONCE: Final = 5_000


@dataclass(frozen=True)
class CandidateFile:
    """A data file that might hold such rows."""

    path: str
    size: int
    """Bytes."""
    format_name: str
    """PARQUET, ORC or AVRO."""
    partition: str | None
    """The text of the partition, as `lethe.files.bounds` writes it; None: unknown."""
    deletes: frozenset[str]
    """Names of the native deletes that may apply to it."""
    keys: frozenset[str]
    """The keys of the searches that have to read it."""
    if_absent: frozenset[str]
    """The keys of the searches that match every row if the file lacks their column."""
    bytes_to_search: int = 0
    """Stored bytes of the columns to read; those of the file if its metadata does not say."""
    absent: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)
    """By search, for each of its columns: the index of the value that all rows hold if the file lacks that column; None: no
    wanted value.
    """
    spec_id: int | None = None
    """The id of the partition spec. None: unknown."""
    sort_order_id: int | None = None
    """The id of the sort order. None: unknown, or the file's entry names none."""


def candidates(table: Table, snapshot_id: int | None, searches: Mapping[str, AnyWanted]) -> list[CandidateFile]:
    """The live data files of a snapshot that at least one search has to read, by their metrics. `searches`: searches by key."""
    snapshot = table.metadata.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
    if snapshot is None or not searches:
        return []
    manifests = snapshot.manifests(table.io)
    deletes = native_deletes(table.io, manifests)
    found = (
        _candidate(table, entry.data_file, searches, deletes)
        for manifest in manifests
        for entry in live_entries(table.io, manifest)
    )
    return [c for c in found if c is not None]


def _candidate(
    table: Table, file: DataFile, searches: Mapping[str, AnyWanted], deletes: NativeDeleteFiles
) -> CandidateFile | None:
    """The file, if a search has to read it."""
    keys = frozenset(key for key, w in searches.items() if all(_might_hold(file, c) for c in columns_of(w)))
    if not keys:
        return None
    held = {
        k: tuple(c.values.index_of(_absent(table, file, c.field_id)) for c in columns_of(searches[k])) for k in keys
    }
    return CandidateFile(
        path=file.file_path,
        size=file.file_size_in_bytes,
        format_name=file.file_format.value,
        partition=partition_text(file.spec_id, [file.partition[n] for n in range(len(file.partition))]),
        deletes=deletes.on(file.file_path, file.spec_id),
        keys=keys,
        if_absent=frozenset(k for k in keys if None not in held[k]),
        bytes_to_search=_stored(file, {c.field_id for k in keys for c in columns_of(searches[k])}),
        absent=held,
        spec_id=file.spec_id,
        sort_order_id=file.sort_order_id,
    )


@dataclass(frozen=True)
class BatchFiles:
    """The live data files of a snapshot that might hold rows of batches."""

    whole: tuple[FileBounds, ...]
    """All their rows are of one of the batches, by their metadata."""
    mixed: tuple[tuple[CandidateFile, FileBounds], ...]
    """Those to search. Without the native deletes that apply to them."""


def files_of_batches(
    table: Table, snapshot_id: int | None, field_id: int, ids: Values, might_hold: Callable[[FileBounds], bool]
) -> BatchFiles:
    """Find the data files that might hold rows of batches. Reads each manifest of data files once, and none of deletes.

    Args:
        field_id: Of the batch column.
        ids: Of the batches. The candidates have the search for them under BATCHES.
        might_hold: Whether a file might, by its bounds and its partition.
    """
    snapshot = table.metadata.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
    index, column = IdIndex(ids.items), BatchColumn.of(table.specs(), field_id)
    searches, no_deletes = {BATCHES: Wanted.of(field_id, ids)}, NativeDeleteFiles({}, {})
    whole: list[FileBounds] = []
    mixed: list[tuple[CandidateFile, FileBounds]] = []
    for manifest in snapshot.manifests(table.io) if snapshot is not None else ():
        for entry in live_entries(table.io, manifest):
            bounds = bounds_of(entry.data_file, column)
            if index.must_hold(bounds):
                whole.append(bounds)
            elif (
                might_hold(bounds)
                and (candidate := _candidate(table, entry.data_file, searches, no_deletes)) is not None
            ):
                mixed.append((candidate, bounds))
    return BatchFiles(tuple(whole), tuple(mixed))


def _stored(file: DataFile, field_ids: Iterable[int]) -> int:
    sizes = [(file.column_sizes or {}).get(i) for i in field_ids]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else file.file_size_in_bytes


def values_if_absent(files: Iterable[CandidateFile], key: str, values: Values) -> dict[str, Any]:
    """By path of a file: the value that its rows hold if it lacks the column of a search. Only wanted values."""
    held = {c.path: c.absent[key][0] for c in files if key in c.absent}
    return {path: values.items[index] for path, index in held.items() if index is not None}


def _might_hold(file: DataFile, search: Wanted) -> bool:
    field_id = search.field_id
    values, nulls = (file.value_counts or {}).get(field_id), (file.null_value_counts or {}).get(field_id)
    if values is not None and values == nulls == file.record_count:
        return False
    return search.values.might_be_in((file.lower_bounds or {}).get(field_id), (file.upper_bounds or {}).get(field_id))


def _absent(table: Table, file: DataFile, field_id: int) -> Any:
    """The value of a column that a file lacks, as Iceberg stores it; None: null.

    That is the value of the file's partition, if the table is partitioned by the column itself (files that were added as they
    are). Otherwise it is the initial default of the column.
    """
    position = identity_positions(table.specs(), field_id).get(file.spec_id)
    if position is not None:
        return file.partition[position]
    # A field of a struct has none: `lethe_spark` refuses to search for a field with a default.
    return next((f.initial_default for f in table.schema().fields if f.field_id == field_id), None)


@dataclass(frozen=True)
class Head:
    """A snapshot to observe."""

    io: FileIO
    snapshot_id: int
    manifests: Sequence[ManifestFile]
    column: BatchColumn
    foreign: frozenset[int] | None = frozenset()
    """Ids of the snapshots that no ledger covers yet: their files may hold rows of a batch in a partition that its tombstone does
    not list. None: any file may be such a file.
    """


def head_of(table: Table, facts: TableFacts, resolution: Resolution, field_id: int) -> Head | None:
    """The head of a table; None: the table is empty. Reads its list of manifests.

    Args:
        resolution: How the ledger of the head was found.
        field_id: Of the batch column.
    """
    head = table.metadata.snapshot_by_id(facts.head_id) if facts.head_id is not None else None
    if head is None:
        return None
    foreign = frozenset(resolution.bare) if is_gapless(facts.snapshots, resolution) else None
    column = BatchColumn.of(table.specs(), field_id)
    return Head(table.io, head.snapshot_id, head.manifests(table.io), column, foreign)


@dataclass(frozen=True, slots=True)
class Suspect:
    """A live data file that might hold rows to purge: tombstoned ones, or ones that are too old."""

    bounds: FileBounds
    all_rows_deleted: bool
    """All its rows are tombstoned, or all are too old."""
    format_name: str
    """The name of the file's format, as Iceberg writes it."""
    spec_id: int
    manifest: str
    groups: int = 0
    """Row groups; 0: its entry does not say where they begin."""
    sort_order_id: int | None = None
    """The id of the sort order; None: the file's entry names none."""
    age: Age = Age.YOUNG
    """By its times. YOUNG also if the ages of batches decide."""


class LiveSuspects:
    """Observes heads of one table, each the same as the one before or a descendant of it.

    Args:
        erasing: Files with native deletes are suspects too, whatever their bounds.
        small_bytes: `small` keeps smaller files that hold no rows to purge.
        retention: Says which rows are too old. The batches that are too old are among the tombstones. None: no row is.
    """

    def __init__(
        self,
        tombstones: Iterable[Tombstone],
        erasing: bool = False,
        small_bytes: int = 0,
        retention: Retention | None = None,
    ) -> None:
        self.erasing = erasing
        self.retention = retention
        self._small_bytes = small_bytes
        self._known = {t.key: t for t in tombstones}
        self.suspects = Suspects(self._known.values())
        self._forget()

    def _forget(self) -> None:
        self.found: dict[str, Suspect] = {}
        self.small: dict[str, Suspect] = {}
        self.sort_drift: float | None = None
        self._read: frozenset[str] = frozenset()
        self._deletes_read: frozenset[str] = frozenset()
        self._deletes = NativeDeleteFiles({}, {})
        self._next_cutoffs: dict[str, date] = {}

    @property
    def next_cutoff(self) -> date | None:
        """The first cutoff at which other rows of the files are too old; None: unknown, or none will be."""
        known = self.retention.next_cutoff if self.retention is not None else None
        return min((*self._next_cutoffs.values(), *([known] if known is not None else [])), default=None)

    def use(self, tombstones: Iterable[Tombstone]) -> None:
        """Use these tombstones from now on.

        If one of them may have rows in more files than before, the next `observe` reads all manifests again.
        """
        new = {t.key: t for t in tombstones}
        before = {k: t.partitions for k, t in self._known.items()}
        if {k: t.partitions for k, t in new.items()} == before:
            return
        self._known = new
        self.suspects = Suspects(new.values())
        if any(k not in before or before[k] != t.partitions for k, t in new.items()):
            self._forget()
            return
        assessed = ((p, s, self._must(s.bounds, s.age)) for p, s in self.found.items())
        self.found = {
            p: replace(s, all_rows_deleted=all_rows_deleted)
            for p, s, all_rows_deleted in assessed
            if all_rows_deleted is not None
        }

    def _must(self, file: FileBounds, age: Age) -> bool | None:
        """True: all rows are tombstoned or too old; False: some might be; None: no row can be."""
        if self.suspects.must_hold(file) or age is Age.OLD:
            return True
        is_suspect = self.suspects.might_hold(file) or (self.erasing and file.deletes) or age is not Age.YOUNG
        return False if is_suspect else None

    def observe(self, head: Head) -> None:
        """Update `found` (by path), `small` and, the first time, `sort_drift`.

        Raises:
            Exception: What the storage raises.
        """
        if head.foreign is None:
            self._forget()
        data = [m for m in head.manifests if m.content == ManifestContent.DATA]
        paths = frozenset(m.manifest_path for m in data)
        self._observe_deletes(head)
        gone = self._read - paths
        if gone:
            self.found = {p: s for p, s in self.found.items() if s.manifest not in gone}
            self.small = {p: s for p, s in self.small.items() if s.manifest not in gone}
            self._next_cutoffs = {m: day for m, day in self._next_cutoffs.items() if m not in gone}
        first, drift = not self._read, Drift()
        new = [m for m in data if m.manifest_path not in self._read]

        def read(manifest: ManifestFile) -> _Read:
            return self._read_manifest(head, manifest, keep_all=first)

        for _, (found, small, every) in ahead(read, new, _PARALLEL_READS):
            self.found |= {s.bounds.path: s for s in found}
            self.small |= {s.bounds.path: s for s in small[: _MAX_SMALL_FILES - len(self.small)]}
            for f in every:
                drift.add(f)
        if first:
            self.sort_drift = drift.mean_depth()
        self._read = paths

    def _observe_deletes(self, head: Head) -> None:
        manifests = [m for m in head.manifests if m.content == ManifestContent.DELETES]
        paths = frozenset(m.manifest_path for m in manifests)
        if paths == self._deletes_read:
            return
        self._deletes = native_deletes(head.io, manifests)
        self._deletes_read = paths
        for files in (self.found, self.small):
            for path, s in files.items():
                now = self._deletes.on(path, s.spec_id)
                if now != s.bounds.deletes:
                    files[path] = replace(s, bounds=replace(s.bounds, deletes=now))

    def _read_manifest(self, head: Head, manifest: ManifestFile, keep_all: bool) -> _Read:
        files: list[Suspect] = []
        small: list[Suspect] = []
        every: list[FileBounds] = []
        spec_id = manifest.partition_spec_id
        for entry in live_entries(head.io, manifest):
            deletes = self._deletes.on(entry.data_file.file_path, spec_id)
            f = bounds_of(entry.data_file, head.column, deletes, entry.snapshot_id)
            if keep_all:
                every.append(f)
            if head.foreign is None or f.added_by in head.foreign:
                f = replace(f, partition=None)
            age = self._age_of(entry.data_file, f, manifest)
            all_rows_deleted = self._must(f, age)
            if all_rows_deleted is None and f.size >= self._small_bytes:
                continue
            data = entry.data_file
            groups, order = len(data.split_offsets or ()), data.sort_order_id
            file = Suspect(
                f, bool(all_rows_deleted), data.file_format.value, spec_id, manifest.manifest_path, groups, order, age
            )
            (small if all_rows_deleted is None else files).append(file)
        return files, small, every

    def _age_of(self, file: DataFile, bounds: FileBounds, manifest: ManifestFile) -> Age:
        """The age of a file. Remembers when the rows of one without too old rows will be too old."""
        if self.retention is None:
            return Age.YOUNG
        age = self.retention.age_of(file, bounds)
        day = self.retention.next_cutoff_of(file) if age is Age.YOUNG else None
        if day is not None:
            known = self._next_cutoffs.get(manifest.manifest_path)
            self._next_cutoffs[manifest.manifest_path] = day if known is None else min(day, known)
        return age


def held_ids(
    table: Table,
    snapshot_id: int,
    field_id: int,
    ids: Sequence[str],
    max_bytes: int = MAX_READ_BYTES,
    paths: Collection[str] | None = None,
) -> frozenset[str]:
    """The ids of which the snapshot's data files hold rows, tombstoned or not.

    It reads the batch column of the files whose bounds allow one of the ids. Above a limit, the bounds alone decide: then every
    id between the bounds of a file counts as present.

    Args:
        field_id: Of the batch column.
        max_bytes: Limit for reading that column: stored size or memory, whichever is larger.
        paths: Of the data files to search; None: all of the snapshot.
    """
    index = IdIndex(ids)

    def is_wanted(file: FileBounds) -> bool:
        return (paths is None or file.path in paths) and index.might_hold(file)

    view = SnapshotView.on(table, field_id)
    column = view.schema.find_column_name(field_id)
    try:
        files = [f for f in view.files(SnapshotFiles.LIVE, snapshot_id) if is_wanted(f.bounds)]
    except InputError as e:  # equality deletes, which PyIceberg does not read
        log.info("searching for batch ids by bounds alone: %s", e.reason)
        return _within(index, [f for f in view.bounds(SnapshotFiles.LIVE, snapshot_id) if is_wanted(f)])
    sure = {f.bounds.lower for f in files if index.must_hold(f.bounds) and not f.bounds.deletes}
    found = frozenset(i for i in sure if i is not None)
    unread_ids = IdIndex(frozenset(ids) - found)
    read = [f for f in files if unread_ids.might_hold(f.bounds)]
    size = sum(_bytes(f, field_id) for f in read)
    if column is None or size > max_bytes:
        log.info("searching for batch ids by bounds alone: %d files, %d bytes of the batch column", len(read), size)
        return found | _within(unread_ids, [f.bounds for f in read])
    for f in read:
        ids_in_file = frozenset(unread_ids.within(f.bounds)) - found
        if not ids_in_file:
            continue
        for batch in data_file.read(view, [ReadPart((f,), ids_in_file, of_ids=True)], (column,)):
            found |= frozenset(pc.unique(batch.column(column)).to_pylist())
    return found


def _within(index: IdIndex, files: Collection[FileBounds]) -> frozenset[str]:
    return frozenset(index.covered(files))


def _bytes(file: PlannedFile, field_id: int) -> int:
    """The bytes to read or hold for the batch column of a file."""
    stored = (file.data_file.column_sizes or {}).get(field_id, file.bounds.size)
    return max(int(stored), _BYTES_PER_ROW * file.bounds.records)


@dataclass(frozen=True)
class Survey:
    """The tombstones and the too old batches at the start of a run, and the files that might hold rows to purge."""

    tombstones: tuple[Tombstone, ...]
    """Without the batches that are too old."""
    live: LiveSuspects
    """These files; the run updates it to later heads."""
    rows: Mapping[str, int]
    """The number of rows by batch id; missing: the ledger does not know it."""
    due_by: datetime
    """Only deadlines up to this time count."""
    erase_by: datetime | None
    """The deadline of rows under native deletes; None: there is none."""
    plan: VacuumPlan
    """The plan of the whole run, by bounds."""
    planned: VacuumPlanned
    """The plan as the run's result reports it."""
    problem: str = ""
    """Why no row is removed for its age, although the run was asked to; "": nothing prevents it."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to purge."""
        return not (self.tombstones or self.plan.touched or self.plan.postponed)

    @property
    def retention(self) -> Retention | None:
        """Which rows are too old; None: no row is."""
        return self.live.retention

    @property
    def expired(self) -> tuple[Tombstone, ...]:
        """The batches that are too old, in the form of tombstones."""
        return self.retention.batches if self.retention is not None else ()

    def in_order(self, files: Sequence[FileBounds]) -> list[FileBounds]:
        """The files by priority: the vacuum purges the first ones first."""
        suspects = self.live.suspects
        estimate = Estimate(suspects, files, self.rows)
        aged = aged_files(self.live, [self.live.found[f.path] for f in files])
        return by_priority(files, suspects, estimate, PurgeDeadlines(self.due_by, self.erase_by), aged)


def aged_files(live: LiveSuspects, files: Iterable[Suspect]) -> frozenset[str]:
    """The paths of the files that might hold rows that are too old."""
    expired = Suspects(live.retention.batches if live.retention is not None else ())
    return frozenset(s.bounds.path for s in files if s.age is not Age.YOUNG or expired.might_hold(s.bounds))


def survey(
    head: Head,
    ledger: Ledger,
    field_id: int,
    table: TableTraits,
    spec: VacuumSpec,
    now: datetime,
    retention: Retention | InputError | None = None,
    held: HeldCount | None = None,
) -> Survey | None:
    """Survey the head.

    Args:
        ledger: Of the head.
        field_id: Of the batch column.
        retention: Which rows are too old, or why this cannot be said. None: the run was not asked to remove rows for their age.
        held: None: there are no holds.

    Returns:
        None, if no tombstone is active, no erasure has rows left to purge, and no row can be too old.
    """
    tombstones = tombstones_to_purge(ledger, field_id, spec.batch_ids)
    erasures = () if spec.batch_ids else unpurged_record_erasures(ledger, field_id)
    if not tombstones and not erasures and retention is None:
        return None
    target = target_bytes(spec.target_file_size_bytes, table.properties)
    rule = retention if isinstance(retention, Retention) else None
    expired = rule.batches if rule is not None else ()
    live = LiveSuspects((*tombstones, *expired), bool(erasures), target // SMALL_PART, rule)
    live.observe(head)
    rows = _rows_of(ledger, [t.id for t in (*tombstones, *expired)])
    may_contain_deleted_rows = [s.bounds for s in live.found.values() if not s.all_rows_deleted]
    all_rows_deleted = [s.bounds for s in live.found.values() if s.all_rows_deleted]
    estimate, erase_by = Estimate(live.suspects, may_contain_deleted_rows, rows), earliest_deadline(erasures)
    due_by = now + timedelta(seconds=spec.evict_by_lead_seconds)
    aged = aged_files(live, live.found.values())
    scanned = ScannedSnapshot(
        head.snapshot_id,
        tombstones,
        live.suspects,
        all_rows_deleted,
        may_contain_deleted_rows,
        AgedRows(rule.cutoff, rule.spec.rule, field_id, aged) if rule is not None else None,
    )
    plan = plan_vacuum(scanned, estimate, PurgeDeadlines(due_by, erase_by), spec.max_bytes)
    if not tombstones and not plan.rewrite and retention is None:
        return None
    expected = _expected(table, [live.found[f.path] for f in plan.rewrite], estimate, target, aged)
    planned = _planned(plan, estimate, live.sort_drift, rows, erase_by)
    counts = {
        "bytes_to_copy": expected.copied,
        "bytes_to_encode": expected.encoded,
        "files_held": held(plan.touched) if held is not None and plan.touched else 0,
    }
    planned = planned.model_copy(update=counts)
    problem = str(retention) if isinstance(retention, InputError) else ""
    return Survey(tombstones, live, rows, due_by, erase_by, plan, planned, problem)


def retention_for(
    table: Table, ledger: Ledger, field_id: int, spec: VacuumSpec, now: datetime, name: str
) -> Retention | InputError | None:
    """Which rows of a table are too old, or why this cannot be said.

    Args:
        ledger: Of the head.
        field_id: Of the batch column.
        name: Of the table, for messages.

    Returns:
        None, if the run is not asked to remove rows for their age.
    """
    if spec.retention is None or spec.batch_ids:
        return None
    try:
        return retention_of(spec.retention, table.schema(), table.specs(), ledger, field_id, now, name)
    except InputError as e:
        return e


def plan_now(
    table: Table,
    facts: TableFacts,
    resolution: Resolution,
    ledger: Ledger,
    spec: VacuumSpec,
    now: datetime,
    held: HeldCount | None = None,
) -> VacuumPlanned | None:
    """What a vacuum of a table would do now. Reads manifests and the ledger; None: nothing.

    Args:
        ledger: Of the head, as the resolution found it.
        held: None: there are no holds, or they are not known.
    """
    field_id = facts.batch_field_id
    head = head_of(table, facts, resolution, field_id) if field_id is not None else None
    if head is None or field_id is None:
        return None
    retention = retention_for(table, ledger, field_id, spec, now, facts.name)
    found = survey(head, ledger, field_id, traits_of(table, field_id), spec, now, retention, held)
    return found.planned if found is not None and not found.is_empty else None


def _expected(
    table: TableTraits, files: Sequence[Suspect], estimate: Estimate, target: int, aged: frozenset[str]
) -> ExpectedBytes:
    """Estimate what becomes of the bytes of the files to rewrite. Those with times that are too old are left to Spark."""
    files_with_rows = [candidate(s, round(estimate.rows_in(s.bounds))) for s in files]
    by_spark = {s.bounds.path for s in files if s.age is not Age.YOUNG}
    filtered = one_by_one(table, [f for f in files_with_rows if f.bounds.path not in by_spark], target)
    return expected_bytes(estimate, files_with_rows, filtered, aged)


def _rows_of(ledger: Ledger, ids: list[str]) -> dict[str, int]:
    """The number of rows of the batches, if the ledger knows it. Reads some entries at a time to save memory."""
    rows: dict[str, int] = {}
    for start in range(0, len(ids), _LOOKED_UP_AT_ONCE):
        entries = get_many(ledger.batches, ids[start : start + _LOOKED_UP_AT_ONCE])
        rows |= {i: b.rows for i, b in entries.items() if b.rows is not None}
    return rows


def _planned(
    plan: VacuumPlan, estimate: Estimate, sort_drift: float | None, rows: Mapping[str, int], erase_by: datetime | None
) -> VacuumPlanned:
    aged = plan.aged.files if plan.aged is not None else frozenset()
    whole = [f for f in plan.delete if f.path in aged]
    vain = in_vain_percent(estimate, plan.rewrite, aged)
    deadlines = [t.evict_by for t in plan.applied if t.evict_by is not None]
    if erase_by is not None and any(f.deletes for f in plan.rewrite):
        deadlines.append(erase_by)
    return VacuumPlanned(
        digest=plan.digest,
        snapshot_id=plan.snapshot_id,
        files=len(plan.rewrite),
        bytes=_size(plan.rewrite),
        whole_files=len(plan.delete),
        tombstones=len(plan.applied),
        rows=sum(rows.get(t.id, 0) for t in plan.applied),
        files_left=len(plan.postponed),
        bytes_left=_size(plan.postponed),
        in_vain_percent=None if vain is None else round(vain, 1),
        sort_drift=None if sort_drift is None else round(sort_drift, 2),
        next_evict_by=min(deadlines, default=None),
        retention_cutoff=plan.aged.cutoff if plan.aged is not None and plan.losing_aged else None,
        retention_whole_files=len(whole),
        retention_bytes=_size(whole),
        retention_rows=sum(f.records for f in whole),
        retention_files=sum(f.path in aged for f in plan.rewrite),
        retention_files_left=sum(f.path in aged for f in plan.postponed),
    )


def _size(files: Sequence[FileBounds]) -> int:
    return sum(f.size for f in files)


def traits_of(table: Table, field_id: int) -> TableTraits:
    """What decides whether files of a table are purged one by one.

    Args:
        field_id: Of the batch column.
    """
    metadata = table.metadata
    names = table.schema().column_names
    by_batch = {o.order_id for o in metadata.sort_orders if [f.source_id for f in o.fields[:1]] == [field_id]}
    return TableTraits(
        metadata.format_version, metadata.default_spec_id, frozenset(names), metadata.properties, frozenset(by_batch)
    )


def candidate(file: Suspect, loses: int | None) -> SmallPurge:
    """A file that might be purged one by one, and the rows that it loses. None: unknown."""
    return SmallPurge(file.bounds, file.format_name, file.spec_id, loses, file.groups, file.sort_order_id)
