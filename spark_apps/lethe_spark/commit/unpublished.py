"""Data files that this process wrote and did not publish. I/O."""

import logging
from collections.abc import Iterable

from lethe.base.errors import LetheError

from lethe_spark.commit.ledger_commit import Attempts
from lethe_spark.jvm.data_files import DataFile
from lethe_spark.jvm.removal import remove_files
from lethe_spark.jvm.table import IcebergTable

log = logging.getLogger(__name__)


def discard(table: IcebergTable, files: Iterable[DataFile | str], attempts: Attempts) -> None:
    """Delete files, or those with these paths, of which it is certain that no snapshot names them, or will.

    That is so of files that this very process wrote, never staged, and tried to commit only in attempts that were refused.
    After an attempt in doubt they stay: it may land yet. What is left lying goes with the orphan files, when it is old.
    """
    paths = [f if isinstance(f, str) else f.path for f in files]
    if not paths:
        return
    if attempts.in_doubt:
        log.warning("%d files of a commit of which nobody knows whether it landed stay in storage", len(paths))
        return
    try:
        remove_files(table, paths)
    except LetheError as e:
        log.warning("%d unpublished files stay in storage: %s", len(paths), e)
