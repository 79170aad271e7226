"""Reads the facts of a table with PyIceberg. The only reader of table metadata in this package.

I/O: `data_files` and `files_added_…` read manifests; `observe` uses only the loaded metadata.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from pyiceberg.avro.file import AvroFile
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DEFAULT_READ_VERSION,
    MANIFEST_ENTRY_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot
from pyiceberg.types import StringType

from lethe.base import names
from lethe.base.errors import InputError
from lethe.files.bounds import FileBounds, partition_text
from lethe.iceberg.column_path import BatchColumn
from lethe.iceberg.native_deletes import native_deletes
from lethe.ledger.lineage import Snapshot, ledgers_begin_after, parent_of

_known_partition = lru_cache(maxsize=10_000)(partition_text)
"""Cached, so that the many files of a partition share one text."""


@dataclass(frozen=True)
class TableFacts:
    """The facts of a table at one moment."""

    name: str
    """For messages."""
    uuid: str
    location: str
    format_version: int
    head_id: int | None
    """The current snapshot; None: the table is empty."""
    head_time: datetime | None
    """The time of the current snapshot, in UTC; None: the table is empty."""
    metadata_location: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    snapshots: Mapping[int, Snapshot] = field(default_factory=dict)
    """Retained, by id."""
    refs: Mapping[str, int] = field(default_factory=dict)
    """Branches and tags -> snapshot id."""
    columns: tuple[str, ...] = ()
    batch_field_id: int | None = None
    """The field id of the batch column; None: the table has no batch column, or it was dropped."""
    sorted_by_batch: bool = False
    """The sort order begins with the batch column."""
    metrics_full: bool = False
    """The metrics mode of the batch column is `full`."""
    last_sequence_number: int = 0

    @property
    def ledger_since(self) -> int | None:
        """The last sequence number before the first ledger; None: the table property is not set."""
        since = self.properties.get(names.LEDGER_SINCE, "")
        return int(since) if since.isdigit() else None

    @property
    def beginning(self) -> Mapping[str, str]:
        """The table properties for the beginning of ledgers, which Lethe's first commit sets; empty: they are set."""
        if self.properties.get(names.LEDGER_BEGUN) == self.uuid:
            return {}
        carriers = [s.sequence_number for s in self.snapshots.values() if s.ledger is not None]
        if not carriers:
            since = self.last_sequence_number
        else:  # the first commit did not set them: keep what is known about the snapshots before it
            roots = (s.sequence_number for s in self.snapshots.values() if s.ledger is None and s.parent_id is None)
            since = max((self.ledger_since or 0, *(n for n in roots if n < min(carriers))))
        return {names.LEDGER_SINCE: str(since), names.LEDGER_BEGUN: self.uuid}

    @property
    def remembered_field_id(self) -> int | None:
        """The batch column's field id in the table property, even if the column was dropped; None: the property is not set."""
        return _property_field_id(self.properties)

    @property
    def claim(self) -> str | None:
        """`namespace/name` of the Dataset that may write the table; None: no Dataset has claimed it."""
        return self.properties.get(names.CLAIM)

    @property
    def prepared(self) -> bool:
        """Whether new data files get tight bounds of batch ids: sorted by the batch column, with its full metrics."""
        return self.sorted_by_batch and self.metrics_full


def observe(
    table: Table,
    batch_column: str,
    name: str | None = None,
    convert: Callable[[IcebergSnapshot], Snapshot] | None = None,
) -> TableFacts:
    """Collect the facts of a loaded table. Messages call it `name`.

    Args:
        convert: Returns what `snapshot_of` does, of each snapshot. None: `snapshot_of` itself.

    Raises:
        InputError: `BatchColumnType`, if the batch column is not a string. `UnsupportedCatalog`, if the catalog hides the
            table's history.
    """
    metadata = table.metadata
    head = metadata.current_snapshot()
    _require_history(metadata, name or ".".join(table.name()))
    name = name or ".".join(table.name())
    field_id = _batch_field(table, batch_column, name)
    column = table.schema().find_column_name(field_id) if field_id is not None else batch_column
    order = table.sort_order()
    return TableFacts(
        name=name,
        uuid=str(metadata.table_uuid),
        location=metadata.location,
        format_version=metadata.format_version,
        head_id=head.snapshot_id if head else None,
        head_time=datetime.fromtimestamp(head.timestamp_ms / 1000, UTC) if head else None,
        metadata_location=table.metadata_location,
        properties=dict(metadata.properties),
        snapshots=_snapshots(metadata, convert or snapshot_of),
        refs={k: r.snapshot_id for k, r in metadata.refs.items()},
        columns=tuple(table.schema().column_names),
        batch_field_id=field_id,
        sorted_by_batch=bool(order.fields) and order.fields[0].source_id == field_id,
        metrics_full=metadata.properties.get(names.METRICS_MODE.format(column=column)) == "full",
        last_sequence_number=getattr(metadata, "last_sequence_number", 0),  # format version 1 has none
    )


def _require_history(metadata: TableMetadata, name: str) -> None:
    """Require the whole history of a table. The metadata log shows that there was one, also after an expiry.

    Raises:
        InputError: `UnsupportedCatalog`, if the catalog shows only the newest snapshot and no metadata log, although there
            was an earlier snapshot.
    """
    head = metadata.current_snapshot()
    alone = head is not None and len(metadata.snapshots) == 1 and head.parent_snapshot_id is not None
    if alone and not metadata.metadata_log:
        raise InputError(
            "UnsupportedCatalog",
            f"{name}: the catalog shows only one snapshot of the table, without its parent and without a metadata log. Lethe "
            "needs the history of a table to find its ledger. Move the table to a catalog that keeps the history.",
        )


def _property_field_id(properties: Mapping[str, str]) -> int | None:
    text = properties.get(names.BATCH_COLUMN, "")
    return int(text) if text.isdigit() else None


def column_dropped(facts: TableFacts, what: str) -> InputError:
    """The error for `what` (a snapshot, or the table), which lacks its batch column."""
    return InputError(
        "BatchColumnDropped",
        f"{facts.name}: {what} lacks the batch column (table property {names.BATCH_COLUMN}: field "
        f"{facts.remembered_field_id}), so Lethe cannot match tombstones with rows. Make a schema with that field the table's "
        "current schema again. A new column cannot replace it, whatever its name.",
    )


def _batch_field(table: Table, batch_column: str, name: str) -> int | None:
    """The field id of the batch column: that of the table property, so that renames have no effect; else by name.

    If the property is set, no other column counts: the tombstones do not refer to a new column of the same name.
    """
    remembered = _property_field_id(table.metadata.properties)
    schema = table.schema()
    column: Any = None
    if remembered is not None:
        column = next((f for f in schema.fields if f.field_id == remembered), None)
    else:
        column = next((f for f in schema.fields if f.name == batch_column), None)
    if column is None:
        return None
    if not isinstance(column.field_type, StringType):
        raise InputError(
            "BatchColumnType", f"{name}: the batch column {column.name} is {column.field_type}, expected string."
        )
    return int(column.field_id)


def _snapshots(metadata: TableMetadata, convert: Callable[[IcebergSnapshot], Snapshot]) -> dict[int, Snapshot]:
    converted = [convert(s) for s in metadata.snapshots]
    carriers = (s.sequence_number for s in converted if s.ledger is not None)
    after = ledgers_begin_after(metadata.properties, str(metadata.table_uuid), carriers)
    return {s.id: _with_parent(s, after) for s in converted}


def _with_parent(s: Snapshot, ledgers_after: int | None) -> Snapshot:
    parent_id = parent_of(s.parent_id, s.summary, s.sequence_number, ledgers_after)
    return s if parent_id == s.parent_id else replace(s, parent_id=parent_id)


def snapshot_of(s: IcebergSnapshot) -> Snapshot:
    """The part of a snapshot that Lethe uses, with the parent that the metadata names."""
    # Not `if s.summary`: a summary is a mapping, whose length is slow to find.
    summary = {} if s.summary is None else {**s.summary.additional_properties, "operation": s.summary.operation.value}
    return Snapshot(s.snapshot_id, s.parent_snapshot_id, s.sequence_number or 0, s.timestamp_ms, summary)


def data_files(table: Table, snapshot_id: int | None, field_id: int) -> list[FileBounds]:
    """Every live data file of a snapshot with the bounds of one string column. Reads the manifests, no data."""
    return list(_live(table, snapshot_id, field_id))


def files_added_by(
    table: Table, snapshot_ids: tuple[int, ...], of_snapshot: int | None, field_id: int
) -> list[FileBounds]:
    """The live data files of `of_snapshot` that one of `snapshot_ids` added."""
    added_by = frozenset(snapshot_ids)
    return [f for f in _live(table, of_snapshot, field_id) if f.added_by in added_by] if added_by else []


def files_added_after(
    table: Table, sequence_number: int | None, of_snapshot: int | None, field_id: int
) -> list[FileBounds]:
    """The live data files of `of_snapshot` that were, or may have been, added after this sequence number.

    Args:
        sequence_number: None: every live file.
    """
    if sequence_number is None:
        return list(_live(table, of_snapshot, field_id))
    return list(_live(table, of_snapshot, field_id, after=sequence_number))


def _live(table: Table, snapshot_id: int | None, field_id: int, after: int = -1) -> Iterator[FileBounds]:
    """The bounds of the live data files of a snapshot.

    Args:
        after: Only files that were added after this sequence number.
    """
    snapshot = table.metadata.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
    if snapshot is None:
        return
    manifests = snapshot.manifests(table.io)
    deletes = native_deletes(table.io, manifests)
    column = BatchColumn.of(table.specs(), field_id)
    for manifest in manifests:
        for entry in live_entries(table.io, manifest):
            if (manifest.sequence_number if (n := entry.file_sequence_number) is None else n) <= after:
                continue
            names_of_deletes = deletes.on(entry.data_file.file_path, manifest.partition_spec_id)
            yield bounds_of(entry.data_file, column, names_of_deletes, entry.snapshot_id)


def live_entries(io: FileIO, manifest: ManifestFile) -> Iterator[ManifestEntry]:
    """Yield the live data files of a manifest, which may be tens of thousands. None for a manifest of deletes."""
    if manifest.content != ManifestContent.DATA:
        return
    with AvroFile[ManifestEntry](
        io.new_input(manifest.manifest_path),
        MANIFEST_ENTRY_SCHEMAS[DEFAULT_READ_VERSION],
        read_types={-1: ManifestEntry, 2: DataFile},
        read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    ) as entries:
        for entry in entries:
            # Manifests of format version 1 do not say that they are of data, and PyIceberg puts a number there.
            if entry.status == ManifestEntryStatus.DELETED or entry.data_file.content != DataFileContent.DATA:
                continue
            if entry.snapshot_id is None and manifest.added_snapshot_id is not None:
                entry.snapshot_id = manifest.added_snapshot_id
            entry.data_file.spec_id = manifest.partition_spec_id
            yield entry


def bounds_of(
    f: DataFile, column: BatchColumn, deletes: frozenset[str] = frozenset(), added_by: int | None = None
) -> FileBounds:
    """The metadata of a data file: the bounds of the column or, if it has none, the value of the partition."""
    field_id = -1 if column.field_id is None else column.field_id
    lower, upper = _text((f.lower_bounds or {}).get(field_id)), _text((f.upper_bounds or {}).get(field_id))
    null_count = (f.null_value_counts or {}).get(field_id)
    if lower is None and upper is None and (value := column.partition_value(f)) is not None:
        lower, upper, null_count = value, value, 0
    return FileBounds(
        path=f.file_path,
        records=f.record_count,
        size=f.file_size_in_bytes,
        lower=lower,
        upper=upper,
        null_count=null_count,
        deletes=deletes,
        partition=_partition(f.spec_id, tuple(f.partition[n] for n in range(len(f.partition)))),
        added_by=added_by,
    )


def _partition(spec_id: int, values: tuple[Any, ...]) -> str | None:
    """The text of a partition tuple of physical values: days and hours are numbers."""
    if all(v is None or type(v) in (int, str) for v in values):
        return _known_partition(spec_id, values)
    return partition_text(
        spec_id, values
    )  # not cached: the cache would confuse a boolean or a float with an equal number


def _text(bound: bytes | None) -> str | None:
    """The text of a bound, which Iceberg stores as UTF-8; None: unknown, because it may be cut within a character."""
    try:
        return None if bound is None else bound.decode()
    except UnicodeDecodeError:
        return None
