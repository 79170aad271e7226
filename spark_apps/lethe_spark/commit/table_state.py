"""Reads a table and its ledger at one snapshot, and checks that a Dataset's runs can work on it. I/O: reads."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Final
from weakref import WeakKeyDictionary

from lethe import ledger_store
from lethe.base import names
from lethe.base.errors import InputError, LedgerError, TableError
from lethe.files.bounds import FileBounds, Partitioned, partitions_of_batches, spec_of, widened
from lethe.files.native_deletes import AddedFiles, restore_tombstones
from lethe.guards.boundary import require_table_within
from lethe.iceberg import metadata_file
from lethe.iceberg.facts import TableFacts, column_dropped, data_files, files_added_after, files_added_by, observe
from lethe.ledger.ledger import BatchEntry, Delta, Ledger, get_many
from lethe.ledger.lineage import is_gapless, is_rolled_back, knows_files_up_to
from lethe.ledger.overlay import Folding
from lethe.search.candidates import Head, head_of, held_ids
from lethe.search.strays import cherry_picked_batches
from lethe.uri import as_file_uri, overlap
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import StaticTable

from lethe_spark.jvm.commit import Expectation
from lethe_spark.jvm.table import IcebergTable
from lethe_spark.run.context import Committer, Run, table_properties


@dataclass(frozen=True)
class ParsedMetadata:
    """One version of a table's metadata, and what was found in it."""

    static: StaticTable
    version: metadata_file.CachedMetadata
    updated_ms: int
    """When this version was written, in milliseconds since 1970. A catalog on folders counts the names of its files, so a table
    that was dropped and created again has the same names.
    """
    facts: dict[tuple[str, str], TableFacts] = field(default_factory=dict)
    """The facts, by the name of the batch column, and the name of the table in messages."""


_newest: Final[WeakKeyDictionary[IcebergTable, ParsedMetadata]] = WeakKeyDictionary()


def static_table(table: IcebergTable, properties: Mapping[str, str]) -> StaticTable:
    """PyIceberg's view of the metadata that the JVM holds.

    A metadata file never changes, so the newest one is read once per handle, however many steps of a run look at it.
    `lethe.iceberg.metadata_file` parses only the snapshots that are new in it.

    Args:
        properties: PyIceberg's properties of the catalog, with the credentials for this table.
    """
    return _parsed(table, properties).static


def facts_of(table: IcebergTable, properties: Mapping[str, str], batch_column: str, name: str) -> TableFacts:
    """What `lethe.iceberg.facts.observe` finds in that metadata.

    Raises:
        InputError: As `observe` does.
    """
    parsed = _parsed(table, properties)
    key = (batch_column, name)
    if key not in parsed.facts:
        parsed.facts[key] = observe(parsed.static, batch_column, name, parsed.version.snapshot_of)
    return parsed.facts[key]


def _parsed(table: IcebergTable, properties: Mapping[str, str]) -> ParsedMetadata:
    current = table.java.operations().current()
    updated_ms, location = int(current.lastUpdatedMillis()), str(current.metadataFileLocation())
    location = as_file_uri(location)  # Java writes local paths as `file:/x`, which PyIceberg would not open
    newest = _newest.get(table)
    if newest is None or (newest.static.metadata_location, newest.updated_ms) != (location, updated_ms):
        newest = ParsedMetadata(*metadata_file.read(location, properties), updated_ms)
        _newest[table] = newest
    return newest


@dataclass(frozen=True)
class Base:
    """A table and its ledger at one snapshot: the base of a plan."""

    iceberg: StaticTable
    """PyIceberg's view of the metadata file that the JVM holds. Python reads manifests much faster than py4j does."""
    facts: TableFacts
    loaded: ledger_store.Loaded
    field_id: int
    """The field id of the batch column."""

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger of the head, with the batches that snapshots without a ledger brought back. The next commit records them."""
        if not self._brought_back:
            return self.loaded.ledger
        folding = Folding(self.loaded.ledger, "")
        folding.add(Delta("", set_batches=tuple(self._brought_back.values())))
        return replace(folding.ledger, recorded=self.loaded.ledger.recorded)

    @cached_property
    def _brought_back(self) -> Mapping[str, BatchEntry]:
        """Batches of snapshots without a ledger that the ledger knows neither as promoted nor as reverted."""
        if not self.loaded.resolution.bare:
            return {}
        batches = cherry_picked_batches(self.iceberg, self.facts, self.loaded, self.field_id)
        entries = get_many(self.loaded.ledger.batches, batches)
        return {i: e for i, e in batches.items() if i not in entries or not entries[i].blocks_promotion}

    @property
    def batch_column(self) -> str:
        """The current name. A column can be renamed; its field id does not change."""
        return self.iceberg.schema().find_column_name(self.field_id) or ""

    @property
    def expectation(self) -> Expectation:
        """What must be true at the commit: the same pointer, and no further snapshot without a ledger."""
        resolution = self.loaded.resolution
        expired = resolution.carrier_id is not None and resolution.carrier_id not in self.facts.snapshots
        return Expectation(resolution.pointer, frozenset(resolution.bare), expired)

    def files(self) -> list[FileBounds]:
        """The live data files of the head."""
        return data_files(self.iceberg, self.facts.head_id, self.field_id)

    def head(self) -> Head | None:
        """The head, to find files that may hold tombstoned rows. None: the table is empty."""
        return head_of(self.iceberg, self.facts, self.loaded.resolution, self.field_id)

    def manifests(self) -> list[ManifestFile]:
        """The manifests of the head."""
        head = self.iceberg.metadata.snapshot_by_id(self.facts.head_id) if self.facts.head_id is not None else None
        return head.manifests(self.iceberg.io) if head is not None else []

    @property
    def _bare_moves_only(self) -> bool:
        """Whether the snapshots without a ledger below the head added no rows: compactions, and deletes of whole files."""
        resolution = self.loaded.resolution
        operations = {self.facts.snapshots[i].summary.get("operation") for i in resolution.bare}
        return operations <= {"replace", "delete"} and is_gapless(self.facts.snapshots, resolution)

    @property
    def knows_partitions(self) -> bool:
        """Whether the ledger knows the partitions of its batches: it has taken note of all files of other writers."""
        resolution = self.loaded.resolution
        return not resolution.bare and is_gapless(self.facts.snapshots, resolution)

    @property
    def has_foreign_files(self) -> bool:
        """Whether another writer may have added rows at any time. The summary of each commit records it."""
        resolution = self.loaded.resolution
        if not self._bare_moves_only:
            return True
        if resolution.pointer is None:
            return self.facts.ledger_since != 0
        carrier = self.facts.snapshots.get(resolution.carrier_id) if resolution.carrier_id is not None else None
        return carrier is None or carrier.summary.get(names.FOREIGN_FILES) != "false"

    @property
    def is_masked(self) -> bool:
        """Whether native deletes mask every active tombstone, as of the newest ledger."""
        if not self.ledger.tombstones:
            return True
        carrier = self.facts.snapshots.get(self.loaded.resolution.carrier_id or 0)
        return carrier is not None and carrier.summary.get(names.MASKED) == "true"

    def partitions_of(
        self,
        written: Sequence[Partitioned],
        batch_ids: Collection[str],
        written_partitions: Mapping[str, tuple[str, ...] | None] | None = None,
    ) -> dict[str, tuple[str, ...] | None]:
        """The partitions in which new batches may have rows.

        Those of the written files, and, if another writer may have used an id before, those of each file that could
        hold it.

        Args:
            written_partitions: By batch id, the partitions that the written rows are in; None: those of each file that could
                hold the batch.
        """
        others: Sequence[Partitioned] = self.files() if self.has_foreign_files else ()
        if written_partitions is None:
            return partitions_of_batches([*written, *others], batch_ids)
        mine = {i: written_partitions[i] for i in batch_ids}
        return {**mine, **widened(mine, others)}

    def restore_tombstones(self, delta: Delta) -> Delta:
        """The change, extended for the files of snapshots without a ledger.

        See `lethe.files.native_deletes` and `lethe.search.strays`.
        """
        now, resolution, head_id = datetime.now(UTC), self.loaded.resolution, self.facts.head_id
        delta = self._with_brought_back(delta)
        if is_gapless(self.facts.snapshots, resolution):
            added = files_added_by(self.iceberg, resolution.bare, head_id, self.field_id)
            return restore_tombstones(self.ledger, delta, AddedFiles(added, self.field_id, self._bare_moves_only), now)
        # Snapshots have expired, so the sequence numbers of the files tell which ones were added without a ledger.
        after = knows_files_up_to(self.facts.snapshots, resolution)
        since = files_added_after(self.iceberg, after, head_id, self.field_id)
        files = AddedFiles(since, self.field_id, holds=lambda ids: self._held(ids, since))
        return restore_tombstones(self.ledger, delta, files, now)

    def _with_brought_back(self, delta: Delta) -> Delta:
        """The change, which also records the batches that snapshots without a ledger brought back."""
        settled = {b.id for b in delta.set_batches} | delta.forget_batches
        back = tuple(e for i, e in self._brought_back.items() if i not in settled)
        return replace(delta, set_batches=(*delta.set_batches, *back)) if back else delta

    def _held(self, ids: Collection[str], files: Collection[FileBounds]) -> frozenset[str]:
        """The ids of which the files hold rows."""
        assert self.facts.head_id is not None
        paths = frozenset(f.path for f in files)
        return held_ids(self.iceberg, self.facts.head_id, self.field_id, sorted(ids), paths=paths)

    def moved(self, delta: Delta, before: Iterable[str | None], added: Sequence[Partitioned]) -> Delta:
        """The change, with new partitions for batches whose rows it rewrites with another partition spec.

        Args:
            before: Partitions of the replaced files. None in it: an unknown one.
            added: The files that replace them.
        """
        specs = {p and spec_of(p) for p in before}
        if not added or specs == {f.partition and spec_of(f.partition) for f in added}:
            return delta
        return restore_tombstones(
            self.ledger, delta, AddedFiles(added, self.field_id, only_moved=True), datetime.now(UTC)
        )


def observe_base(context: Committer, table: IcebergTable, seen: Base | None = None) -> Base:
    """Read the newest state of the table and its ledger.

    Args:
        seen: An earlier base. It is returned if the table has not changed since.

    Raises:
        InputError: TableClaimed, BatchColumnMissing.
        TableError: TableReplaced, TableRolledBack.
        LedgerError: A ledger file is unusable.
    """
    table.refresh()
    if seen is not None and seen.iceberg.metadata_location == as_file_uri(table.metadata_location):
        return seen
    properties = table_properties(context)
    iceberg = static_table(table, properties)
    facts = facts_of(table, properties, context.batch_column, context.table_name)
    check_table(context, facts.uuid)
    check_claim(context, facts.claim)
    _check_head(context, facts)
    if facts.batch_field_id is None and facts.remembered_field_id is not None:
        raise column_dropped(facts, "the table")
    if facts.batch_field_id is None:
        raise no_batch_column(context, facts.columns)
    return Base(iceberg, facts, _loaded(context, iceberg, facts), facts.batch_field_id)


def _loaded(context: Committer, iceberg: StaticTable, facts: TableFacts) -> ledger_store.Loaded:
    """The ledger of the head. If the head has lost its ledger and was accepted: the ledger to continue with."""
    try:
        return ledger_store.load(iceberg.io, facts)
    except LedgerError as e:
        accepts = context.accepts
        if e.reason != "LedgerLost" or accepts is None or accepts.head_id != facts.head_id:
            raise
        return ledger_store.load_accepted(iceberg.io, facts, accepts.ledger)


def _check_head(context: Committer, facts: TableFacts) -> None:
    """Require that the head was not rolled back since the operator saw it.

    Raises:
        TableError: `TableRolledBack`, if the table was rolled back since this run was started.
    """
    seen = context.seen_snapshot_id
    if is_rolled_back(facts.snapshots, facts.head_id, seen, context.seen_sequence_number):
        raise TableError(
            "TableRolledBack",
            f"{context.table_name} was rolled back or created again: its head is snapshot {facts.head_id or 'none'}, which "
            f"does not descend from snapshot {seen}, the head when this run was started. Nothing was committed. Accept the "
            "head (the Dataset's condition Ready says how), or roll the table forward to that snapshot.",
        )


def refuse_batches(table: IcebergTable) -> None:
    """Refuse a table of batches as the table of a run.

    Raises:
        InputError: `TableHoldsBatches`, for a table of batches, whose rows Lethe derives from another table's ledger.
    """
    if names.TRACKS in table.properties:
        raise InputError(
            "TableHoldsBatches",
            f"{table.full_name} is the table of batches of another table (table property {names.TRACKS}), and Lethe rewrites it. "
            "Name the table that holds the data.",
        )


def check_table(context: Committer, uuid: str | None) -> None:
    """Require the table that the operator saw.

    Raises:
        TableError: `TableReplaced`, if the table is not the one for which the run was started.

    Args:
        uuid: Of the current table. None: the table does not exist.
    """
    if context.seen_table_uuid in (None, uuid):
        return
    difference = "no table has this name now" if uuid is None else f"the table of this name is {uuid}"
    raise TableError(
        "TableReplaced",
        f"{context.table_name} was dropped, created again or renamed: {difference}, and this run was started for table "
        f"{context.seen_table_uuid}. Nothing was committed. Restore that table, or accept the change (the Dataset's condition "
        "Ready says how).",
    )


def check_claim(context: Committer, claim: str | None) -> None:
    """Require that no other Dataset has claimed the table.

    Raises:
        InputError: TableClaimed, for a table of another Dataset.
    """
    if claim is not None and context.claim not in (None, claim):
        raise InputError(
            "TableClaimed",
            f"{context.table_name} belongs to Dataset {claim} (table property {names.CLAIM}). Use another table "
            f"for this Dataset, or, if {claim} was deleted, unset that property.",
        )


def no_batch_column(context: Committer, columns: tuple[str, ...]) -> InputError:
    """The error for a table that has these columns and not the batch column."""
    return InputError(
        "BatchColumnMissing",
        f"{context.table_name} has no column {context.batch_column} (spec.batchColumn); its columns are "
        f"{', '.join(columns)}. Add a string column of that name, or correct spec.batchColumn.",
    )


def check_and_observe(context: Run, table: IcebergTable) -> TableFacts:
    """Check that the run may work on the table, prepared or not. Returns the facts of the table.

    TableError (TableReplaced).

    Raises:
        InputError: TableHoldsBatches, TableClaimed, BatchColumnMissing, BatchColumnDropped, BatchColumnType,
            BufferOverlapsTable, FormatVersionTooOld, OutsideBoundary.
    """
    require_table_within(context.spec, table.location, table.properties)
    refuse_batches(table)
    check_table(context, table.uuid)
    check_claim(context, table.properties.get(names.CLAIM))
    if table.field_id(context.spec.batch_column) is None and names.BATCH_COLUMN not in table.properties:
        raise no_batch_column(context, table.schema_names)
    if overlap(context.spec.buffer.uri, table.location):
        raise InputError(
            "BufferOverlapsTable",
            f"the buffer {context.spec.buffer.uri} and the table's location {table.location} overlap. A clean-up of "
            "one would delete the other. Set spec.buffer.uri to another location.",
        )
    facts = facts_of(table, table_properties(context), context.batch_column, context.table_name)
    if facts.batch_field_id is None:
        # Checked before preparing, which would make a new column of the old name the batch column.
        raise column_dropped(facts, "the table")
    if facts.format_version < 2:
        raise InputError(
            "FormatVersionTooOld",
            f"{context.table_name} has Iceberg format version 1, which does not number its commits. Set the table property "
            "format-version to 2.",
        )
    return facts


def has_recorded_start(facts: TableFacts) -> bool:
    """Whether the table records where its ledgers begin. Rows from before are readable, also after their snapshots expired."""
    return facts.ledger_since is not None or any(s.ledger for s in facts.snapshots.values())


def is_settled(context: Run, facts: TableFacts) -> bool:
    """Whether the Dataset has claimed the table and it is prepared, so that a run need not change its properties."""
    return facts.claim == context.claim and facts.prepared and has_recorded_start(facts)
