"""The table a run works on and its ledger, seen together at one moment. I/O: opens, claims and prepares the table."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from lethe import names
from lethe.errors import InputError, TableError
from lethe.ledger.ledger import Delta, Ledger
from lethe.ledger.lineage import is_rolled_back
from lethe.plan.bounds import FileBounds
from lethe.plan.partitions import Partitioned, partitions_of_batches
from lethe.plan.places import overlap
from lethe.plan.rearm import rearmed
from lethe.run import CreateTable
from lethe.table import ledger_store
from lethe.table.facts import TableFacts, column_dropped, data_files, files_added_by, observe
from pyiceberg.table import StaticTable
from pyspark.sql.types import StructType

from lethe_spark.context import Committer, RunContext
from lethe_spark.folder_server import require_served
from lethe_spark.jvm.ancestry import Expectation
from lethe_spark.jvm.table import IcebergTable
from lethe_spark.sql_names import quoted


@dataclass(frozen=True)
class Base:
    """What a plan is made on. `iceberg` is PyIceberg's view of the same metadata file that the JVM holds: Python reads
    manifests far faster than py4j does."""

    iceberg: StaticTable
    facts: TableFacts
    loaded: ledger_store.Loaded
    field_id: int

    @property
    def ledger(self) -> Ledger:
        return self.loaded.ledger

    @property
    def batch_column(self) -> str:
        """Its name of today: a column may be renamed, its field id stays."""
        return self.iceberg.schema().find_column_name(self.field_id) or ""

    @property
    def expectation(self) -> Expectation:
        """What must still hold when the commit lands: this pointer, and no bare snapshot that was not looked at."""
        return Expectation(self.loaded.resolution.pointer, frozenset(self.loaded.resolution.bare))

    def files(self) -> list[FileBounds]:
        """The live data files of the head."""
        return data_files(self.iceberg, self.facts.head_id, self.field_id)

    @property
    def _bare_moves_only(self) -> bool:
        """Whether the snapshots without a ledger below the head brought no new rows: compactions, deletes of whole files."""
        operations = {self.facts.snapshots[i].summary.get("operation") for i in self.loaded.resolution.bare}
        return operations <= {"replace", "delete"}

    @property
    def has_foreign_files(self) -> bool:
        """Whether another writer may have added rows, ever. Each commit hands the answer on in its summary."""
        found = self.loaded.resolution
        if not self._bare_moves_only:
            return True
        if found.pointer is None:
            return self.facts.ledger_since != 0
        carrier = self.facts.snapshots.get(found.carrier_id) if found.carrier_id is not None else None
        return carrier is None or carrier.summary.get(names.FOREIGN_FILES) != "false"

    def partitions_of(
        self, written: Sequence[Partitioned], batch_ids: Collection[str]
    ) -> dict[str, tuple[str, ...] | None]:
        """The partitions that new batches may have rows in: those of the written files and, where another writer may have
        used an id before, of every file that could hold it."""
        others: Sequence[Partitioned] = self.files() if self.has_foreign_files else ()
        return partitions_of_batches([*written, *others], batch_ids)

    def rearmed(self, delta: Delta) -> Delta:
        """The change with what files of bare snapshots make necessary: see `lethe.plan.rearm`."""
        added = files_added_by(self.iceberg, self.loaded.resolution.bare, self.facts.head_id, self.field_id)
        return rearmed(self.ledger, delta, added, self.field_id, datetime.now(UTC), self._bare_moves_only)


def observe_base(context: Committer, table: IcebergTable, seen: Base | None = None) -> Base:
    """The table's newest state and its ledger.

    Args:
        seen: A base from before. While the table has not moved it is the newest state still, and returned as it is: what
            was read of its ledger need not be read again.
    Raises: InputError (TableClaimed, BatchColumnMissing), TableError (TableRolledBack), LedgerError.
    """
    table.refresh()
    if seen is not None and seen.iceberg.metadata_location == _opened(table.metadata_location):
        return seen
    iceberg = static_table(table.metadata_location, context.catalog_properties)
    facts = observe(iceberg, context.batch_column, name=context.table_name)
    _check_claim(context, facts.claim)
    _check_head(context, facts)
    if facts.batch_field_id is None and facts.remembered_field_id is not None:
        raise column_dropped(facts, "the table")
    if facts.batch_field_id is None:
        raise _no_batch_column(context, facts.columns)
    return Base(iceberg, facts, ledger_store.load(iceberg.io, facts), facts.batch_field_id)


def static_table(metadata_location: str, properties: Mapping[str, str]) -> StaticTable:
    """PyIceberg's view of a metadata file."""
    return StaticTable.from_metadata(_opened(metadata_location), dict(properties))


def _opened(metadata_location: str) -> str:
    """Java writes local paths as `file:/x`, which PyIceberg would not open."""
    if metadata_location.startswith("file:"):
        return "file:///" + metadata_location.removeprefix("file:").lstrip("/")
    return metadata_location


def open_table(context: RunContext) -> IcebergTable:
    """The run's table: made when it is not there, claimed, and prepared where the Dataset allows it.

    Raises: InputError: TableNotFound, TableHoldsBatches, TableClaimed, TableNotPrepared, BatchColumnMissing,
        BufferOverlapsTable, FormatVersionTooOld.
    """
    wanted = context.spec.table
    require_served(context.spark, wanted.catalog, wanted.name, context.catalog_properties)
    claim = {names.CLAIM: context.spec.dataset.claim}
    table = IcebergTable.load(context.spark, wanted.catalog, wanted.name)
    if table is None:
        if wanted.create is None:
            raise InputError(
                "TableNotFound",
                f"catalog {wanted.catalog} has no table {wanted.name}, and spec.table.create does not say how to make it.",
            )
        born = claim | {names.LEDGER_SINCE: "0"}
        table = IcebergTable.create(context.spark, wanted.catalog, wanted.name, _with_batch_column(context), born)
    refuse_batches(table)
    _check_claim(context, table.properties.get(names.CLAIM))
    ours = table.properties.get(names.CLAIM) == context.spec.dataset.claim
    if table.field_id(context.spec.batch_column) is None and names.BATCH_COLUMN not in table.properties:
        raise _no_batch_column(context, table.schema_names)
    if overlap(context.spec.buffer.uri, table.location):
        raise InputError(
            "BufferOverlapsTable",
            f"the buffer {context.spec.buffer.uri} and the table's location {table.location} contain one another; "
            "clean-up of the one would delete the other. Move spec.buffer.uri elsewhere.",
        )
    facts = observe(
        static_table(table.metadata_location, context.catalog_properties), context.spec.batch_column, name=wanted.name
    )
    if facts.batch_field_id is None:
        # Before anything is prepared: that would make a new column of the old name the batch column.
        raise column_dropped(facts, "the table")
    if facts.format_version < 2:
        raise InputError(
            "FormatVersionTooOld",
            f"{wanted.name} has Iceberg format version 1, which does not number its commits. Upgrade it: set the table "
            "property format-version to 2.",
        )
    prepared = facts.prepared
    if not prepared and not ours and not wanted.adopt:
        raise InputError(
            "TableNotPrepared",
            f"{wanted.name} is not sorted by {context.spec.batch_column} or keeps truncated metrics of it. Set "
            "spec.table.adopt: true to let Lethe set its sort order and metrics mode (data files stay as they are).",
        )
    if facts.ledger_since is None and not any(s.ledger for s in facts.snapshots.values()):
        # What is there now was written before any ledger: it is read as it is, though its ancestors expired long ago.
        claim |= {names.LEDGER_SINCE: str(facts.last_sequence_number)}
    if not prepared or not ours or names.LEDGER_SINCE in claim:
        # By its name of today
        table.ensure_layout(table.column_name(facts.batch_field_id) or context.spec.batch_column, claim)
    return table


def refuse_batches(table: IcebergTable) -> None:
    """Raises: InputError (`TableHoldsBatches`), for a table of batches: its rows are made of another table's ledger."""
    if names.TRACKS in table.properties:
        raise InputError(
            "TableHoldsBatches",
            f"{table.full_name} is the table of the batches of another one (table property {names.TRACKS}), which Lethe writes "
            "anew as it sees fit. Name the table that holds the data.",
        )


def _with_batch_column(context: RunContext) -> CreateTable:
    """The table's definition with the batch column in it: data files need not hold it, so neither need the schema."""
    create = context.spec.table.create
    assert create is not None
    column = context.spec.batch_column
    try:
        known = {f.name.lower() for f in StructType.fromDDL(create.table_schema).fields}
    except Exception as e:
        raise InputError(
            "InvalidTableDefinition",
            f"spec.table.create.schema is not a Spark SQL column list: {str(e).strip().splitlines()[0][:300]}",
        ) from e
    if column.lower() in known:
        return create
    return create.model_copy(
        update={"table_schema": f"{create.table_schema.rstrip().rstrip(',')}, {quoted(column)} STRING"}
    )


def _check_claim(context: Committer, claim: str | None) -> None:
    if claim is not None and context.claim not in (None, claim):
        raise InputError(
            "TableClaimed",
            f"{context.table_name} belongs to Dataset {claim} (table property {names.CLAIM}). Point this Dataset at "
            f"another table, or, if {claim} is gone for good, unset that property.",
        )


def _check_head(context: Committer, facts: TableFacts) -> None:
    """Between the look of whoever asked for this run and now, the table may have been rolled back."""
    seen = context.seen_snapshot_id
    if is_rolled_back(facts.snapshots, facts.head_id, seen, context.seen_sequence_number):
        raise TableError(
            "TableRolledBack",
            f"{context.table_name} was rolled back or made anew: its head is snapshot {facts.head_id or 'none'}, which "
            f"does not descend from snapshot {seen}, the head when this run was asked for. Nothing was committed. Accept the "
            "head (the Dataset's condition Ready says how), or bring the table back to that snapshot.",
        )


def _no_batch_column(context: Committer, columns: tuple[str, ...]) -> InputError:
    return InputError(
        "BatchColumnMissing",
        f"{context.table_name} has no column {context.batch_column} (spec.batchColumn); its columns are "
        f"{', '.join(columns)}. Add a string column of that name, or correct spec.batchColumn.",
    )
