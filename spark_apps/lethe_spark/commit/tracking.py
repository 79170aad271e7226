"""Update the table of batches after a commit of a run or of a user's Spark job. I/O; see `lethe.batches_table.table`."""

import logging
import time
from collections.abc import Sequence
from typing import Final

from lethe.base.errors import LetheError
from lethe.batches_table import table as tracking
from lethe.buffer.batch_rows import BatchRow
from lethe.iceberg import catalogs
from pyiceberg.catalog import Catalog

from lethe_spark.jvm.table import IcebergTable
from lethe_spark.run.context import Committer

log = logging.getLogger(__name__)

# How long an open catalog is used again: opening one costs requests, but what its server said when it was opened may change.
# The credentials for files are not part of it. The catalog vends them with each table that is loaded.
OPEN_SECONDS: Final = 60.0
# By name: the properties in the configuration, when the catalog was opened by time.monotonic(), and the catalog.
_open: Final[dict[str, tuple[dict[str, str], float, Catalog]]] = {}


def keep_up(context: Committer, table: IcebergTable, *, create: bool, waiting: Sequence[BatchRow] | None = None) -> str:
    """Update the table of batches. Never raises: the commit is done, and the next update includes it.

    Args:
        create: Create the table of batches if it does not exist.
        waiting: The batches in the buffer. None: unknown.
    Returns: why the update failed; empty if it succeeded, or the table of batches does not exist.
    """
    try:
        done = tracking.bring_up_to_date(
            _catalog(table.catalog),
            table.name,
            context.batch_column,
            tracking.TrackingUpdate(create, waiting),
            context.step,
        )
    except Exception as e:
        _open.pop(table.catalog, None)  # its connection or its token may be the reason
        log.warning("%s was not updated; the next run updates it: %s", tracking.name_of(table.full_name), safe_text(e))
        return safe_text(e)
    if done is not None and done.snapshot_id is not None:
        log.info("%s shows version %d of the ledger", done.name, done.shown.version)
    return ""


def _catalog(name: str) -> Catalog:
    """Open a catalog, or use one that was opened a moment ago. Raises: as `catalogs.load`."""
    properties, now = catalogs.properties(name), time.monotonic()
    kept = _open.get(name)
    if kept is None or kept[0] != properties or now - kept[1] >= OPEN_SECONDS:
        _open[name] = kept = (properties, now, catalogs.load(name))
    return kept[2]


def safe_text(error: Exception) -> str:
    """The text of a LetheError. Of other errors only the type, because their text may contain a secret."""
    return str(error) if isinstance(error, LetheError) else type(error).__name__
