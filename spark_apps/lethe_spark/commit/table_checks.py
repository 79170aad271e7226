"""Check that a table is one that the runs of a Dataset can work on. I/O: reads its metadata."""

from lethe.base import names
from lethe.base.errors import InputError
from lethe.guards.boundary import require_table_within
from lethe.iceberg.facts import TableFacts, column_dropped
from lethe.uri import overlap

from lethe_spark.commit.parsed_metadata import facts_of
from lethe_spark.commit.table_state import check_claim, check_table, no_batch_column, refuse_batches
from lethe_spark.jvm.table import IcebergTable
from lethe_spark.run.context import Run, table_properties


def check_and_observe(context: Run, table: IcebergTable) -> TableFacts:
    """Check that the run may work on the table, prepared or not. Returns the facts of the table.

    Raises: InputError: TableHoldsBatches, TableClaimed, BatchColumnMissing, BatchColumnDropped, BatchColumnType,
        BufferOverlapsTable, FormatVersionTooOld, OutsideBoundary. TableError (TableReplaced).
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
