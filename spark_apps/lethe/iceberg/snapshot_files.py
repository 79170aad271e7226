"""Opens a table at a snapshot, and lists its data files, or those of all retained snapshots. I/O: reads manifests, no data.

Manifests are immutable, and snapshots share most of them: each is read once.
"""

import math
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Final, TypeVar, assert_never

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import ResidualEvaluator, residual_evaluator_of
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import ManifestGroupPlanner, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.transforms import TruncateTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, IntegerType, LongType

from lethe.base.avro import reader
from lethe.base.errors import InputError
from lethe.erasure.progress import DATA, DELETES, HeldFile, History
from lethe.erasure.record import Ref
from lethe.files.bounds import FileBounds
from lethe.files.increment import SnapshotFiles
from lethe.iceberg.column_path import BatchColumn
from lethe.iceberg.conditions import RowCondition
from lethe.iceberg.facts import TableFacts, bounds_of
from lethe.iceberg.native_deletes import (
    DELETED,
    PositionDeletes,
    holds_values,
    is_unpartitioned,
    native_deletes,
    referenced,
    vectors,
)
from lethe.ledger.lineage import Resolution, Snapshot, is_gapless
from lethe.ledger.tombstone import BlockerKind
from lethe.vacuum.housekeeping import DataManifest

PARALLEL_READS = 8
_UNREADABLE: Final = (ValueError, TypeError, ArithmeticError, struct.error)
"""What PyIceberg raises for values that it cannot read or convert."""
EQUALITY_DELETES: Final = "EqualityDeletes"
"""The reason of the error if equality deletes may hide rows that are read."""

Judged = TypeVar("Judged", ManifestFile, DataFile)


def schema_of(table: Table, snapshot_id: int | None) -> Schema:
    """The schema of a snapshot; the current schema, if it is None or names no schema."""
    snapshot = table.metadata.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
    if snapshot is None or snapshot.schema_id is None:
        return table.schema()
    return table.schemas().get(snapshot.schema_id, table.schema())


def resolve_snapshot(
    facts: TableFacts,
    table: Table,
    snapshot_id: int | None,
    as_of: datetime | None,
    parameters: tuple[str, str] = ("snapshot_id", "as_of"),
) -> int | None:
    """The snapshot to read; None: the table has none.

    Args:
        parameters: The names of the two parameters, for errors.

    Raises:
        InputError: InvalidRead, SnapshotNotFound.
    """
    if snapshot_id is not None and as_of is not None:
        raise InputError("InvalidRead", f"give {parameters[0]} or {parameters[1]}, not both.")
    if snapshot_id is not None:
        if snapshot_id not in facts.snapshots:
            raise InputError("SnapshotNotFound", f"{facts.name} has no snapshot {snapshot_id}. It may have expired.")
        return snapshot_id
    if as_of is None:
        return facts.head_id
    if as_of.tzinfo is None:
        raise InputError("InvalidRead", f"{parameters[1]} needs a time zone.")
    time_ms = as_of.timestamp() * 1000
    past = [e for e in table.metadata.snapshot_log if e.timestamp_ms <= time_ms]
    if not past or past[-1].snapshot_id not in facts.snapshots:
        raise InputError("SnapshotNotFound", f"{facts.name} has no snapshot at or before {as_of.isoformat()}.")
    return past[-1].snapshot_id


@dataclass
class Manifests:
    """The content of the manifests read so far, by their paths."""

    files_by_manifest: dict[str, tuple[HeldFile, ...]] = field(default_factory=dict)
    """Live files."""
    gone: dict[str, tuple[HeldFile, ...]] = field(default_factory=dict)
    """Removed files."""

    def history(self, table: Table, facts: TableFacts, field_id: int) -> History:
        """The retained snapshots and their files.

        Args:
            field_id: Of the batch column.
        """
        listed = self._listed(table)
        manifests = {m.manifest_path: m for found in listed.values() for m in found}
        column = BatchColumn.of(table.specs(), field_id)
        partitioned = frozenset(i for i, spec in table.specs().items() if not is_unpartitioned(spec))
        self._read(
            table.io, [m for path, m in manifests.items() if path not in self.files_by_manifest], column, partitioned
        )
        head = listed.get(facts.head_id, ()) if facts.head_id is not None else ()
        deletes = native_deletes(table.io, head)
        files = {f.path: f for path in manifests for f in self.files_by_manifest[path]}
        for m in head:
            for f in self.files_by_manifest[m.manifest_path]:
                if f.content == DATA and deletes.on(f.path, m.partition_spec_id):
                    files[f.path] = HeldFile(
                        f.path, f.size, f.content, f.sequence_number, f.lower, f.upper, deletes=True
                    )
        named = {path: tuple(f.path for f in self.files_by_manifest[path]) for path in manifests}
        return History(
            facts.snapshots,
            facts.head_id,
            files,
            frozenset(p for m in head for p in named[m.manifest_path]),
            {i: tuple(m.manifest_path for m in found) for i, found in listed.items()},
            named,
            {path: self.gone[path] for path in manifests if self.gone[path]},
        )

    def _listed(self, table: Table) -> dict[int, tuple[ManifestFile, ...]]:
        snapshots = table.metadata.snapshots
        with ThreadPoolExecutor(PARALLEL_READS) as pool:
            found = pool.map(lambda s: tuple(s.manifests(table.io)), snapshots)
        return {s.snapshot_id: manifests for s, manifests in zip(snapshots, found, strict=True)}

    def _read(
        self, io: FileIO, manifests: Iterable[ManifestFile], column: BatchColumn, partitioned: Collection[int]
    ) -> None:
        def read(manifest: ManifestFile) -> tuple[str, list[tuple[bool, HeldFile]]]:
            if manifest.content == ManifestContent.DATA:
                return manifest.manifest_path, list(_data(io, manifest, column))
            return manifest.manifest_path, list(_deletes(io, manifest, manifest.partition_spec_id in partitioned))

        with ThreadPoolExecutor(PARALLEL_READS) as pool:
            for path, entries in pool.map(read, manifests):
                self.files_by_manifest[path] = tuple(f for is_live, f in entries if is_live)
                self.gone[path] = tuple(f for is_live, f in entries if not is_live)


def refs_of(table: Table, facts: TableFacts) -> tuple[Ref, ...]:
    """All tags, and all branches except main."""
    refs: list[Ref] = []
    for name, ref in table.metadata.refs.items():
        if name == "main":
            continue
        kind = BlockerKind.TAG if ref.snapshot_ref_type is SnapshotRefType.TAG else BlockerKind.BRANCH
        snapshot = facts.snapshots.get(ref.snapshot_id)
        until = None
        if ref.max_ref_age_ms is not None and snapshot is not None:
            made = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
            until = made + timedelta(milliseconds=min(ref.max_ref_age_ms, 10**14))
        refs.append(Ref(name, kind, ref.snapshot_id, until))
    return tuple(refs)


def _data(io: FileIO, manifest: ManifestFile, column: BatchColumn) -> Iterator[tuple[bool, HeldFile]]:
    """The files of a manifest, and whether each is live. The others were removed."""
    for entry in manifest.fetch_manifest_entry(io, discard_deleted=False):
        if entry.data_file.content != DataFileContent.DATA:
            continue
        f = bounds_of(entry.data_file, column)
        is_live = entry.status != ManifestEntryStatus.DELETED
        yield is_live, HeldFile(f.path, f.size, DATA, entry.file_sequence_number, f.lower, f.upper)


def _deletes(io: FileIO, manifest: ManifestFile, in_partition: bool) -> Iterator[tuple[bool, HeldFile]]:
    """The delete files of a manifest, and whether each is live. The others were removed.

    Args:
        in_partition: The partition spec of the manifest has partitions.
    """
    with io.new_input(manifest.manifest_path).open() as stream:
        entries = list(reader(stream))
    for entry in entries:
        file, sequence_number = entry["data_file"], entry.get("file_sequence_number")
        path = str(file["file_path"])
        added = manifest.sequence_number if sequence_number is None else int(sequence_number)
        held = HeldFile(
            path,
            int(file["file_size_in_bytes"]),
            DELETES,
            added,
            data_path=referenced(file),
            values=holds_values(file),
            in_partition=in_partition,
        )
        yield entry["status"] != DELETED, held


@dataclass(frozen=True)
class PlannedFile:
    """A data file to read."""

    bounds: FileBounds
    data_file: DataFile
    delete_files: frozenset[DataFile] = frozenset()
    """Files of deletes by position that may apply to it, of any writer."""
    vectors: frozenset[PositionDeletes] = frozenset()
    """Its deletion vector. A Puffin file may keep other vectors of the data file, which no longer apply."""


@dataclass(frozen=True)
class SnapshotView:
    """A table with the schema of one snapshot and a filter."""

    metadata: TableMetadata
    io: FileIO
    field_id: int | None
    """The field id of the batch column; None: there is none."""
    condition: RowCondition

    @classmethod
    def on(
        cls,
        table: Table,
        field_id: int | None,
        columns_of: int | None = None,
        filter: str | BooleanExpression | None = None,
    ) -> "SnapshotView":
        """`columns_of`: the snapshot whose schema the filter and the rows have; None: the current schema.

        Raises:
            InputError: InvalidRead, if the filter is not a condition on the rows.
        """
        schema = schema_of(table, columns_of)
        # PyIceberg binds filters to the current schema, even when it reads an older snapshot.
        metadata = table.metadata.model_copy(update={"current_schema_id": schema.schema_id})
        return cls(metadata, table.io, field_id, RowCondition.of(schema, filter))

    @property
    def schema(self) -> Schema:
        """The schema of rows and filter: the table's current one, or that of the snapshot given to `of`."""
        return self.metadata.schema()

    @cached_property
    def _column(self) -> BatchColumn:
        return BatchColumn.of(self.metadata.specs(), self.field_id)

    @cached_property
    def _planner(self) -> ManifestGroupPlanner:
        return _CarefulPlanner(self.metadata, self.io, self.condition.pruning)

    def files(self, which: SnapshotFiles, snapshot_id: int) -> list[PlannedFile]:
        """The files that the filter does not exclude. Removed files are as they were before the snapshot.

        Raises:
            InputError: `EqualityDeletes`.
        """
        match which:
            case SnapshotFiles.LIVE:
                return self._planned(self._manifests(snapshot_id))
            case SnapshotFiles.ADDED:
                manifests = self._manifests(snapshot_id)
                own = [m for m in manifests if _is_data(m) and m.added_snapshot_id == snapshot_id]
                deletes = [m for m in manifests if not _is_data(m)] if own else []
                return self._planned(own + deletes, lambda e: e.snapshot_id == snapshot_id)
            case SnapshotFiles.REMOVED:
                gone = frozenset(e.data_file.file_path for e in self._removed_by(snapshot_id))
                before = self._parent(snapshot_id)
                if not gone or before is None:
                    return []
                return self._planned(self._manifests(before), lambda e: e.data_file.file_path in gone)
            case _:
                assert_never(which)

    def bounds(self, which: SnapshotFiles, snapshot_id: int) -> list[FileBounds]:
        """The bounds of all files, without the filter and without deletes of other engines, for callers that plan with Spark."""
        match which:
            case SnapshotFiles.LIVE:
                entries = (
                    e for m in self._manifests(snapshot_id) if _is_data(m) for e in m.fetch_manifest_entry(self.io)
                )
                return [bounds_of(e.data_file, self._column, added_by=e.snapshot_id) for e in entries]
            case SnapshotFiles.ADDED:
                added = (
                    e
                    for m in self._manifests(snapshot_id)
                    if _is_data(m) and m.added_snapshot_id == snapshot_id
                    for e in m.fetch_manifest_entry(self.io)
                    if e.snapshot_id == snapshot_id
                )
                return [bounds_of(e.data_file, self._column, added_by=e.snapshot_id) for e in added]
            case SnapshotFiles.REMOVED:
                return [bounds_of(e.data_file, self._column) for e in self._removed_by(snapshot_id)]
            case _:
                assert_never(which)

    def foreign(
        self, snapshot_id: int, resolution: Resolution, snapshots: Mapping[int, Snapshot]
    ) -> frozenset[str] | None:
        """The paths of the files that other writers added after the ledger of the snapshot; None: any file may be one.

        Args:
            snapshots: All retained snapshots.
        """
        if not is_gapless(snapshots, resolution):
            return None
        if not resolution.bare:
            return frozenset()
        bare = frozenset(resolution.bare)
        return frozenset(
            e.data_file.file_path
            for m in self._manifests(snapshot_id)
            if _is_data(m) and m.added_snapshot_id in bare
            for e in m.fetch_manifest_entry(self.io)
            if e.snapshot_id in bare
        )

    def _removed_by(self, snapshot_id: int) -> Iterator[ManifestEntry]:
        for m in self._manifests(snapshot_id):
            if _is_data(m) and m.added_snapshot_id == snapshot_id:
                for e in m.fetch_manifest_entry(self.io, discard_deleted=False):
                    if e.status == ManifestEntryStatus.DELETED and e.snapshot_id == snapshot_id:
                        yield e

    def _parent(self, snapshot_id: int) -> int | None:
        snapshot = self.metadata.snapshot_by_id(snapshot_id)
        return snapshot.parent_snapshot_id if snapshot is not None else None

    def _manifests(self, snapshot_id: int) -> list[ManifestFile]:
        snapshot = self.metadata.snapshot_by_id(snapshot_id)
        return snapshot.manifests(self.io) if snapshot is not None else []

    def _planned(
        self, manifests: Iterable[ManifestFile], is_selected: Callable[[ManifestEntry], bool] = lambda _: True
    ) -> list[PlannedFile]:
        def is_read(entry: ManifestEntry) -> bool:
            return entry.data_file.content != DataFileContent.DATA or is_selected(entry)

        manifests = list(manifests)
        try:
            tasks = list(self._planner.plan_files(manifests, is_read))
        except ValueError as e:
            if "equality deletes" not in str(e):
                raise
            raise InputError(
                EQUALITY_DELETES,
                "another engine wrote equality deletes to this table, which PyIceberg cannot read. Use lethe_spark.read, or let "
                "that engine compact the table first.",
            ) from e
        has_vectors = any(d.file_format == FileFormat.PUFFIN for t in tasks for d in t.delete_files)
        of_file = vectors(self.io, manifests) if has_vectors else {}
        return [
            PlannedFile(
                bounds_of(t.file, self._column),
                t.file,
                frozenset(t.delete_files),
                of_file.get(t.file.file_path, frozenset()),
            )
            for t in tasks
        ]


class _CarefulPlanner(ManifestGroupPlanner):
    """Skips files only where PyIceberg can tell that they have no row of the filter.

    Bounds that PyIceberg cannot read, such as a text that is cut within a character, skip no file. What is left of a filter for
    a file is never asked: PyIceberg compares the nulls of partitions, and fails.

    Files of deletes are skipped only by the columns that they compare with rows. What they store of others may be anything.

    Deletes of a partition apply to its data files, also if a value of the partition is NaN.
    """

    def plan_manifest_entries(self, manifests: Iterable[ManifestFile]) -> Iterator[list[ManifestEntry]]:
        for entries in super().plan_manifest_entries(manifests):
            for entry in entries:
                _share_nan(entry.data_file.partition)
            yield entries

    def _build_partition_projection(self, spec_id: int) -> BooleanExpression:
        spec, schema = self.table_metadata.specs()[spec_id], self.table_metadata.schema()
        # PyIceberg reads doubles in partitions as floats, so they may be other numbers.
        if any(isinstance(f.field_type, DoubleType) for f in spec.partition_type(schema).fields):
            return AlwaysTrue()
        try:
            return super()._build_partition_projection(spec_id)
        except _UNREADABLE:  # the first moment after, or the last before, has no year in Python
            return AlwaysTrue()

    def _build_manifest_evaluator(self, spec_id: int) -> Callable[[ManifestFile], bool]:
        may_match, widths = _or_else_true(super()._build_manifest_evaluator(spec_id)), self._widths(spec_id)

        def or_wrapped(manifest: ManifestFile) -> bool:
            summaries = manifest.partitions or []
            uppers = [(summaries[n].upper_bound, width) for n, width in widths.items() if n < len(summaries)]
            wrapped = (
                _is_wrapped(int.from_bytes(u, "little", signed=True), width) for u, width in uppers if u is not None
            )
            return any(wrapped) or may_match(manifest)

        return or_wrapped if widths else may_match

    def _build_partition_evaluator(self, spec_id: int) -> Callable[[DataFile], bool]:
        may_match, widths = _or_else_true(super()._build_partition_evaluator(spec_id)), self._widths(spec_id)

        def or_wrapped(file: DataFile) -> bool:
            return any(_is_wrapped(file.partition[n], width) for n, width in widths.items()) or may_match(file)

        return or_wrapped if widths else may_match

    def _widths(self, spec_id: int) -> dict[int, int]:
        """The widths of truncated whole numbers in the partitions of a spec, by position."""
        spec, schema = self.table_metadata.specs()[spec_id], self.table_metadata.schema()
        return {
            n: f.transform.width
            for n, f in enumerate(spec.fields)
            if isinstance(f.transform, TruncateTransform)
            and f.source_id in schema.field_ids
            and isinstance(schema.find_type(f.source_id), (IntegerType, LongType))
        }

    def _build_metrics_evaluator(self) -> Callable[[DataFile], bool]:
        may_match = _or_else_true(super()._build_metrics_evaluator())
        return lambda file: may_match(file if file.content == DataFileContent.DATA else _compared(file))

    def _build_residual_evaluator(self, spec_id: int) -> Callable[[DataFile], ResidualEvaluator]:  # noqa: ARG002
        nothing_left = residual_evaluator_of(
            UNPARTITIONED_PARTITION_SPEC, AlwaysTrue(), self.case_sensitive, self.table_metadata.schema()
        )
        return lambda _: nothing_left


def _or_else_true(may_match: Callable[[Judged], bool]) -> Callable[[Judged], bool]:
    def careful(judged: Judged) -> bool:
        try:
            return may_match(judged)
        except _UNREADABLE:
            return True

    return careful


def _is_wrapped(value: Any, width: int) -> bool:
    """Whether a truncated number is not the one that PyIceberg computes.

    Truncated, the smallest numbers of a type would be less than all of the type, and writers let them wrap around to the largest.
    All other truncated numbers are multiples of the width.
    """
    return isinstance(value, int) and value % width != 0


def _share_nan(partition: Record) -> None:
    """Let equal partitions be equal for PyIceberg: two NaNs are not, but an object is always equal to itself."""
    for n in range(len(partition)):
        if isinstance(partition[n], float) and math.isnan(partition[n]):
            partition[n] = math.nan


def _compared(deletes: DataFile) -> DataFile:
    """A file of deletes with the metrics of the columns whose values it deletes. Deletes by position have none."""
    ids = frozenset(deletes.equality_ids or ())

    def of_ids(metrics: Mapping[int, Any] | None) -> dict[int, Any]:
        return {i: m for i, m in (metrics or {}).items() if i in ids}

    return DataFile.from_args(
        record_count=deletes.record_count,
        value_counts=of_ids(deletes.value_counts),
        null_value_counts=of_ids(deletes.null_value_counts),
        nan_value_counts=of_ids(deletes.nan_value_counts),
        lower_bounds=of_ids(deletes.lower_bounds),
        upper_bounds=of_ids(deletes.upper_bounds),
    )


def _is_data(manifest: ManifestFile) -> bool:
    # PyIceberg puts a number there, where lists of manifests of format version 1 say nothing.
    return manifest.content == ManifestContent.DATA


def data_manifests(table: Table, snapshot_id: int | None, field_id: int) -> list[DataManifest]:
    """The manifests of data files of a snapshot, with bounds of the batch column. Reads all of them."""
    snapshot = table.metadata.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
    column = BatchColumn.of(table.specs(), field_id)
    manifests: list[DataManifest] = []
    for m in snapshot.manifests(table.io) if snapshot is not None else ():
        if not _is_data(m):
            continue
        entries = m.fetch_manifest_entry(table.io, discard_deleted=False)
        live = tuple(bounds_of(e.data_file, column) for e in entries if e.status != ManifestEntryStatus.DELETED)
        manifests.append(DataManifest(m.manifest_path, m.partition_spec_id, m.manifest_length, len(entries), live))
    return manifests
