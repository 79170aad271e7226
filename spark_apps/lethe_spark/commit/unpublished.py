"""Delete data files that this process wrote and did not publish. I/O."""

import logging
from collections.abc import Iterable

from lethe.base.errors import LetheError

from lethe_spark.commit.ledger_commit import Attempts
from lethe_spark.jvm.data_files import DataFile
from lethe_spark.jvm.removal import remove_files
from lethe_spark.jvm.table import IcebergTable

log = logging.getLogger(__name__)


def discard(table: IcebergTable, files: Iterable[DataFile | str], attempts: Attempts) -> None:
    """Delete files, given by path or as data files, that certainly no snapshot names or will name.

    The caller must pass only files that this process wrote, did not stage, and tried to commit only in attempts that were
    refused. After an attempt in doubt the files stay, because it may still succeed. A vacuum removes them later as orphan files.
    """
    paths = [f if isinstance(f, str) else f.path for f in files]
    if not paths:
        return
    if attempts.in_doubt:
        log.warning("%d files were not deleted, because it is unknown whether their commit succeeded", len(paths))
        return
    try:
        remove_files(table, paths)
    except LetheError as e:
        log.warning("%d unpublished files could not be deleted: %s", len(paths), e)
