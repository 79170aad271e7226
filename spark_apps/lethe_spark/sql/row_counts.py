"""Checks that a rewrite has read every row of its files, before it is committed. I/O through Spark.

The metadata of a file says how many rows it has. Spark's reader says of each row whether native deletes hide it. So a row that
neither is there nor is hidden was not read, for example because a plan or a filter of somebody else left it out, and a commit of
the new files would delete it for good.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lethe.base.errors import ConflictError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from lethe_spark.jvm.data_files import DataFile
from lethe_spark.jvm.rewrite import ScannedFiles
from lethe_spark.sql.frames import named

# Iceberg's column. If a frame has it, its rows include those that native deletes hide.
DELETED: Final = "_deleted"


@dataclass(frozen=True)
class RowCounts:
    """Rows of data files."""

    # Also those that native deletes hide.
    read: int
    # Those that a rewrite writes.
    kept: int


def count_without_batches(scanned: ScannedFiles, column: str, ids: Collection[str]) -> RowCounts:
    """Count the rows of the files, and those of them that neither native deletes hide nor have one of the ids in this column."""
    found: list[Any] = scanned.frame.groupBy(named(column), named(DELETED)).count().collect()
    gone = frozenset(ids)
    return RowCounts(sum(r[2] for r in found), sum(r[2] for r in found if not r[1] and r[0] not in gone))


def count_rows(frame: DataFrame) -> RowCounts:
    """Count the rows of a frame with the column `DELETED`."""
    found: Mapping[bool, int] = {r[0]: r[1] for r in frame.groupBy(F.col(DELETED)).count().collect()}
    return RowCounts(sum(found.values()), found.get(False, 0))


def require_every_row(table: str, files: Iterable[DataFile], counts: RowCounts, left_out: int = 0) -> None:
    """Check that all rows of the files were read.

    Args:
        left_out: How many rows of the files were not counted on purpose.
    Raises: ConflictError (`RowsDiffer`).
    """
    named_rows = sum(f.records for f in files) - left_out
    if counts.read != named_rows:
        raise ConflictError(
            "RowsDiffer",
            f"{table}: the data files to rewrite have {named_rows} rows by the table's metadata, and Spark read {counts.read}. "
            "Nothing was committed. Check that nothing between Spark and the table's storage leaves out rows, and that the "
            "files are those that their writer has written.",
        )


def require_written(table: str, expected: int, added: Iterable[DataFile]) -> None:
    """Check that the new files have as many rows as should be left. Raises: ConflictError (`RowsDiffer`)."""
    written = sum(f.records for f in added)
    if written != expected:
        raise ConflictError(
            "RowsDiffer",
            f"{table}: {expected} rows of the data files to rewrite should be left, and {written} were written. Nothing was "
            "committed. The run tries again.",
        )
