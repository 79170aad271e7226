"""Checks that a rewrite reads every row of its files, before it is committed. I/O through Spark.

The metadata of a file says how many rows it has. Read without native deletes, a file must have exactly these rows. Otherwise
something leaves out rows, for example a plan or a filter of somebody else, and a commit of the new files would delete them for
good.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from lethe.base.errors import ConflictError
from pyspark.sql import DataFrame

from lethe_spark.jvm.data_files import DataFile, with_deletes
from lethe_spark.jvm.errors import reading
from lethe_spark.jvm.scan_tasks import ScannedFiles, scan_tasks
from lethe_spark.sql.searching import named


@dataclass(frozen=True)
class RowCounts:
    """Rows of data files."""

    read: int
    """Also those that native deletes hide."""
    kept: int
    """Those that a rewrite writes."""


def count_without_batches(scanned: ScannedFiles, column: str, ids: Collection[str]) -> RowCounts:
    """Count the rows of the files, and those of them that neither native deletes hide nor have one of the ids in this column."""
    counts = {r[0]: int(r[1]) for r in scanned.frame.groupBy(named(column)).count().collect()}
    gone = frozenset(ids)
    return RowCounts(_every_row(scanned, sum(counts.values())), sum(n for i, n in counts.items() if i not in gone))


def count_of(scanned: ScannedFiles, kept: DataFrame) -> RowCounts:
    """Count the rows of the files.

    Args:
        kept: Those that a rewrite writes.
    """
    return RowCounts(_every_row(scanned), kept.count())


@reading("counting the rows of data files")
def _every_row(scanned: ScannedFiles, visible: int | None = None) -> int:
    """The number of rows that Spark reads if no native deletes apply.

    Args:
        visible: The number of rows that native deletes do not hide. None: not known.
    """
    if any(not task.deletes().isEmpty() for task in scanned.tasks):
        with scan_tasks(scanned.table, [with_deletes(scanned.table, task, ()) for task in scanned.tasks]) as every:
            return int(every.frame.count())
    return int(scanned.frame.count()) if visible is None else visible


def require_every_row(table: str, files: Iterable[DataFile], counts: RowCounts) -> None:
    """Check that all rows of the files were read.

    Raises:
        ConflictError: `RowsDiffer`.
    """
    named_rows = sum(f.records for f in files)
    if counts.read != named_rows:
        raise ConflictError(
            "RowsDiffer",
            f"{table}: the data files to rewrite have {named_rows} rows by the table's metadata, and Spark read {counts.read}. "
            "Nothing was committed. Check that nothing between Spark and the table's storage leaves out rows, and that the "
            "files are those that their writer has written.",
        )


def require_written(table: str, expected: int, added: Iterable[DataFile]) -> None:
    """Check that the new files have as many rows as should be left.

    Raises:
        ConflictError: `RowsDiffer`.
    """
    written = sum(f.records for f in added)
    if written != expected:
        raise ConflictError(
            "RowsDiffer",
            f"{table}: {expected} rows of the data files to rewrite should be left, and {written} were written. Nothing was "
            "committed. The run tries again.",
        )
