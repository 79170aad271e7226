"""Filter frames by sets of ids. Builds frames only: Spark computes nothing until rows are requested."""

from collections.abc import Collection
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from lethe_spark.jvm.sql_expressions import in_set, quoted

_ID = "_lethe_id"
# At most this many ids are sent with each task as a set, which each task deserializes. More are joined, so that each executor
# receives them once.
IN_SET_AT_MOST: Final = 10_000


def anti_join(frame: DataFrame, column: str, ids: Collection[str]) -> DataFrame:
    """The rows whose `column` is none of `ids`, including rows with a null: a null is never tombstoned."""
    if not ids:
        return frame
    if len(ids) > IN_SET_AT_MOST:
        return _joined(frame, column, ids, "left_anti")
    return frame.filter(~_has_one_of(frame, column, ids))


def outside(frame: DataFrame, column: str, runs: Collection[tuple[str, str]]) -> DataFrame:
    """The rows whose `column` is in none of the runs (both ends inclusive), or is null.

    Spark pushes these conditions down to Iceberg, which then does not open files whose values are all within a run.
    """
    for lower, upper in runs:
        frame = frame.filter((named(column) < lower) | (named(column) > upper) | named(column).isNull())
    return frame


def semi_join(frame: DataFrame, column: str, ids: Collection[str]) -> DataFrame:
    """The rows whose `column` is one of `ids`."""
    if 0 < len(ids) <= IN_SET_AT_MOST:
        return frame.filter(_has_one_of(frame, column, ids))
    return _joined(frame, column, ids, "left_semi")


def _has_one_of(frame: DataFrame, column: str, ids: Collection[str]) -> Column:
    """Whether a row has one of the ids; never null. If the ids are close together, as those of batches of one time are, two
    comparisons save the look-up for most rows.

    `coalesce` also keeps Spark from pushing the whole set down to the filters of the files, which would look up each value
    in each dictionary.
    """
    id = named(column)
    return F.coalesce((id >= min(ids)) & (id <= max(ids)) & in_set(frame.sparkSession, id, ids), F.lit(False))


def _joined(frame: DataFrame, column: str, ids: Collection[str], how: str) -> DataFrame:
    wanted = frame.sparkSession.createDataFrame(pa.table({_ID: pa.array(sorted(ids), pa.string())}))
    return frame.join(F.broadcast(wanted), named(column) == F.col(_ID), how)


def named(column: str) -> Column:
    """The column of exactly this name, which may contain dots."""
    return F.col(quoted(column))
