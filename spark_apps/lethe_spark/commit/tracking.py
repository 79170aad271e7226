"""Update the table of batches after a commit of a run or of a user's Spark job. I/O; see `lethe.batches_table.table`."""

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
    """Update the table of batches. Never raises: the commit is done, and the next update includes it.

    Args:
        create: Create the table of batches if it does not exist.
        waiting: The batches in the buffer. None: unknown.
    Returns: why the update failed; empty if it succeeded, or the table of batches does not exist.
    """
    try:
        done = tracking.bring_up_to_date(
            catalogs.load(table.catalog),
            table.name,
            context.batch_column,
            tracking.TrackingUpdate(create, waiting),
            context.step,
        )
    except Exception as e:
        log.warning("%s was not updated; the next run updates it: %s", tracking.name_of(table.full_name), safe_text(e))
        return safe_text(e)
    if done is not None and done.snapshot_id is not None:
        log.info("%s shows version %d of the ledger", done.name, done.shown.version)
    return ""


def safe_text(error: Exception) -> str:
    """The text of a LetheError. Of other errors only the type, because their text may contain a secret."""
    return str(error) if isinstance(error, LetheError) else type(error).__name__
