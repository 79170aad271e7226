"""The table of batches, after a commit of a run or of a user's own Spark job. I/O; kept in `lethe.batches_table.table`."""

import logging
from collections.abc import Sequence

from lethe.base.errors import LetheError
from lethe.batches_table import table as tracking
from lethe.buffer.batch_rows import BatchRow
from lethe.iceberg import catalogs

from lethe_spark.jvm.table import IcebergTable
from lethe_spark.run.context import Committer

log = logging.getLogger(__name__)


def keep_up(context: Committer, table: IcebergTable, *, create: bool, waiting: Sequence[BatchRow] | None = None) -> str:
    """Let the table of batches show what was committed. Never raises: the commit stands, and the next one makes up for it.

    Args:
        create: Make the table of batches if it is not there.
        waiting: What waits in the buffer; None when nobody looked.
    Returns: Why it does not show it, "" when it does or there is no such table.
    """
    try:
        done = tracking.bring_up_to_date(
            catalogs.load(table.catalog),
            table.name,
            context.batch_column,
            create=create,
            waiting=waiting,
            step=context.step,
        )
    except Exception as e:
        log.warning("%s is left to the next run: %s", tracking.name_of(table.full_name), said(e))
        return said(e)
    if done is not None and done.snapshot_id is not None:
        log.info("%s shows version %d of the ledger", done.name, done.shown.version)
    return ""


def said(error: Exception) -> str:
    """The text of our own errors; a foreign one may hold a secret."""
    return str(error) if isinstance(error, LetheError) else type(error).__name__
