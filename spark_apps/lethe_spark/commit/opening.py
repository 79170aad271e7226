"""Opening a run's table: made when it is not there, claimed and prepared. I/O."""

from lethe.base import names
from lethe.base.errors import InputError

from lethe_spark.commit.table_checks import is_settled, look_over, says_its_beginning
from lethe_spark.commit.table_state import check_table
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import RunContext
from lethe_spark.sql.folder_server import require_served


def open_table(context: RunContext, prepare: bool = True) -> SparkTable:
    """The run's table: made when it is not there, claimed, and prepared where the Dataset allows it.

    Args:
        prepare: False: it is only looked at, and left as it is.
    Raises: InputError: TableNotFound, TableHoldsBatches, TableClaimed, TableNotPrepared, BatchColumnMissing,
        BufferOverlapsTable, FormatVersionTooOld, InvalidTableDefinition. TableError (TableReplaced).
    """
    wanted = context.spec.table
    require_served(context.spark, wanted.catalog, wanted.name, context.catalog_properties)
    claim = {names.CLAIM: context.spec.dataset.claim}
    table = SparkTable.load(context.spark, wanted.catalog, wanted.name)
    if table is None:
        check_table(context, None)
        if wanted.create is None or not prepare:
            raise InputError(
                "TableNotFound",
                f"catalog {wanted.catalog} has no table {wanted.name}"
                + (", and spec.table.create does not say how to make it." if prepare else "."),
            )
        born = claim | {names.LEDGER_SINCE: "0"}
        table = SparkTable.create(
            context.spark, wanted.catalog, wanted.name, wanted.create, born, context.spec.batch_column
        )
    facts = look_over(context, table)
    ours = facts.claim == context.claim
    if not facts.prepared and not ours and not wanted.adopt:
        raise InputError(
            "TableNotPrepared",
            f"{wanted.name} is not sorted by {context.spec.batch_column} or keeps truncated metrics of it. Set "
            "spec.table.adopt: true to let Lethe set its sort order and metrics mode (data files stay as they are).",
        )
    if prepare and not is_settled(context, facts):
        if not says_its_beginning(facts):
            claim |= {names.LEDGER_SINCE: str(facts.last_sequence_number)}
        assert facts.batch_field_id is not None
        # By its name of today
        table.ensure_layout(table.column_name(facts.batch_field_id) or context.spec.batch_column, claim)
    return table
