"""Open a run's table: create, claim and prepare it if necessary. I/O."""

from lethe.base import names
from lethe.base.errors import InputError
from lethe.iceberg import catalogs
from lethe.iceberg.catalogs import require_no_view

from lethe_spark.commit.table_state import check_and_observe, check_table, has_recorded_start, is_settled
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import RunContext
from lethe_spark.sql.rest_servers import require_served


def open_table(context: RunContext, prepare: bool = True) -> SparkTable:
    """Open the run's table. Create it if it does not exist, claim it, and prepare it if the Dataset allows that.

    Args:
        prepare: False: only check the table, and change nothing.

    TableError (TableReplaced).

    Raises:
        InputError: TableNotFound, TableIsView, TableHoldsBatches, TableClaimed, TableNotPrepared, BatchColumnMissing,
            BufferOverlapsTable, FormatVersionTooOld, InvalidTableDefinition.
    """
    table_spec = context.spec.table
    require_served(context.spark, table_spec.catalog, table_spec.name, context.catalog_properties)
    claim = {names.CLAIM: context.spec.dataset.claim}
    table = SparkTable.load(context.spark, table_spec.catalog, table_spec.name)
    if table is None:
        require_no_view(catalogs.load(table_spec.catalog), table_spec.name)
        check_table(context, None)
        if table_spec.create is None or not prepare:
            raise InputError(
                "TableNotFound",
                f"catalog {table_spec.catalog} has no table {table_spec.name}"
                + (", and spec.table.create is not set." if prepare else "."),
            )
        initial = claim | {names.LEDGER_SINCE: "0"}
        table = SparkTable.create(
            context.spark,
            table_spec.catalog,
            table_spec.name,
            table_spec.create,
            initial,
            context.spec.batch_column,
            own_folder=not catalogs.is_folder(context.catalog_properties),  # there the name is the location
        )
    facts = check_and_observe(context, table)
    ours = facts.claim == context.claim
    if not facts.prepared and not ours and not table_spec.adopt:
        raise InputError(
            "TableNotPrepared",
            f"{table_spec.name} is not sorted by {context.spec.batch_column} or has truncated metrics of it. Set "
            "spec.table.adopt: true to let Lethe set its sort order and metrics mode (data files stay as they are).",
        )
    if prepare and not is_settled(context, facts):
        if not has_recorded_start(facts):
            claim |= {names.LEDGER_SINCE: str(facts.last_sequence_number)}
        assert facts.batch_field_id is not None
        table.ensure_layout(table.column_name(facts.batch_field_id) or context.spec.batch_column, claim)
    return table
