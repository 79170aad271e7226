"""Opening a run's table: made when it is not there, claimed and prepared. I/O."""

from lethe import names
from lethe.errors import InputError
from lethe.plan.places import overlap
from lethe.run import CreateTable
from lethe.table.facts import column_dropped, observe
from pyspark.sql.types import StructType

from lethe_spark.base import check_claim, no_batch_column, refuse_batches, static_table
from lethe_spark.context import RunContext
from lethe_spark.folder_server import require_served
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.sql_names import quoted


def open_table(context: RunContext, prepare: bool = True) -> SparkTable:
    """The run's table: made when it is not there, claimed, and prepared where the Dataset allows it.

    Args:
        prepare: False: it is only looked at, and left as it is.
    Raises: InputError: TableNotFound, TableHoldsBatches, TableClaimed, TableNotPrepared, BatchColumnMissing,
        BufferOverlapsTable, FormatVersionTooOld.
    """
    wanted = context.spec.table
    require_served(context.spark, wanted.catalog, wanted.name, context.catalog_properties)
    claim = {names.CLAIM: context.spec.dataset.claim}
    table = SparkTable.load(context.spark, wanted.catalog, wanted.name)
    if table is None:
        if wanted.create is None or not prepare:
            raise InputError(
                "TableNotFound",
                f"catalog {wanted.catalog} has no table {wanted.name}"
                + (", and spec.table.create does not say how to make it." if prepare else "."),
            )
        born = claim | {names.LEDGER_SINCE: "0"}
        table = SparkTable.create(context.spark, wanted.catalog, wanted.name, _with_batch_column(context), born)
    refuse_batches(table)
    check_claim(context, table.properties.get(names.CLAIM))
    ours = table.properties.get(names.CLAIM) == context.spec.dataset.claim
    if table.field_id(context.spec.batch_column) is None and names.BATCH_COLUMN not in table.properties:
        raise no_batch_column(context, table.schema_names)
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
    if not prepare:
        return table
    if facts.ledger_since is None and not any(s.ledger for s in facts.snapshots.values()):
        # What is there now was written before any ledger: it is read as it is, though its ancestors expired long ago.
        claim |= {names.LEDGER_SINCE: str(facts.last_sequence_number)}
    if not prepared or not ours or names.LEDGER_SINCE in claim:
        # By its name of today
        table.ensure_layout(table.column_name(facts.batch_field_id) or context.spec.batch_column, claim)
    return table


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
