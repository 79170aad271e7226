"""DataFrame in, DataFrame out. Touches no table; nothing runs until somebody asks for rows."""

from collections.abc import Collection
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from lethe_spark.jvm.columns import in_set
from lethe_spark.jvm.sql_names import quoted

_ID = "_lethe_id"
# Up to so many ids are looked up in a set that goes with each task; more are joined, so that each executor gets them once.
IN_SET_AT_MOST: Final = 100_000


def anti_join(frame: DataFrame, column: str, ids: Collection[str]) -> DataFrame:
    """The rows whose `column` is none of `ids`. Rows with a null there stay: a null is never tombstoned."""
    if not ids:
        return frame
    if len(ids) > IN_SET_AT_MOST:
        return _joined(frame, column, ids, "left_anti")
    return frame.filter(~_is_one_of(frame, column, ids))


def outside(frame: DataFrame, column: str, runs: Collection[tuple[str, str]]) -> DataFrame:
    """The rows whose `column` lies in none of the runs (both ends inclusive), or is null.

    Written so that Spark hands it down to Iceberg, which then does not open files that lie within a run.
    """
    for lower, upper in runs:
        frame = frame.filter((named(column) < lower) | (named(column) > upper) | named(column).isNull())
    return frame


def semi_join(frame: DataFrame, column: str, ids: Collection[str]) -> DataFrame:
    """The rows whose `column` is one of `ids`."""
    if 0 < len(ids) <= IN_SET_AT_MOST:
        return frame.filter(_is_one_of(frame, column, ids))
    return _joined(frame, column, ids, "left_semi")


def _is_one_of(frame: DataFrame, column: str, ids: Collection[str]) -> Column:
    """Never null. Two comparisons spare most rows the look-up when the ids lie together, as batches of one time do.

    `coalesce` also keeps Spark from handing the whole set down to the files' own filters, which would look it up in each
    dictionary as well.
    """
    id = named(column)
    return F.coalesce((id >= min(ids)) & (id <= max(ids)) & in_set(frame.sparkSession, id, ids), F.lit(False))


def _joined(frame: DataFrame, column: str, ids: Collection[str], how: str) -> DataFrame:
    wanted = frame.sparkSession.createDataFrame(pa.table({_ID: pa.array(sorted(ids), pa.string())}))
    return frame.join(F.broadcast(wanted), named(column) == F.col(_ID), how)


def named(column: str) -> Column:
    """The column of exactly this name, dots included."""
    return F.col(quoted(column))
