"""DataFrame in, DataFrame out. Takes no session, touches no table; nothing runs until somebody asks for rows."""

from collections.abc import Collection

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

_ID = "_lethe_id"


def anti_join(frame: DataFrame, column: str, ids: Collection[str]) -> DataFrame:
    """The rows whose `column` is none of `ids`. Rows with a null there stay: a null is never tombstoned."""
    return _joined(frame, column, ids, "left_anti") if ids else frame


def semi_join(frame: DataFrame, column: str, ids: Collection[str]) -> DataFrame:
    """The rows whose `column` is one of `ids`."""
    return _joined(frame, column, ids, "left_semi")


def _joined(frame: DataFrame, column: str, ids: Collection[str], how: str) -> DataFrame:
    wanted = frame.sparkSession.createDataFrame([(i,) for i in sorted(ids)], f"{_ID} string")
    return frame.join(F.broadcast(wanted), named(column) == F.col(_ID), how)


def named(column: str) -> Column:
    """The column of exactly this name, dots included."""
    return F.col("`" + column.replace("`", "``") + "`")
