"""Names and conditions for Spark SQL, where PySpark has none."""

from collections.abc import Collection
from typing import Final

from pyspark.sql import Column, SparkSession

from lethe_spark.jvm.gateway import jvm

# Characters without a meaning in regular expressions.
_SEPARATORS: Final = "\x01\x02\x03\x04\x05\x06\x07"


def quoted(name: str) -> str:
    """One name, which may contain any characters; a dot is part of the name."""
    return "`" + name.replace("`", "``") + "`"


def quoted_path(*names: str) -> str:
    """Names whose parts are separated by dots, such as a catalog and `namespace.table`."""
    return ".".join(quoted(part) for name in names for part in name.split("."))


def in_set(spark: SparkSession, column: Column, values: Collection[str]) -> Column:
    """Whether a string column is one of `values`; null where it is null. A hash look-up per row.

    Equivalent to `isin`, but it needs only a few calls into the JVM instead of several per value, and makes one expression
    instead of one per value, which each rule of the optimizer would visit.
    """
    separator = next((c for c in _SEPARATORS if not any(c in v for v in values)), None)
    if separator is None or not values:
        return column.isin(*values)
    java = jvm(spark)
    text = java.org.apache.spark.unsafe.types.UTF8String.fromString
    array = text(separator.join(values)).split(text(separator), -1)
    found = java.scala.runtime.ScalaRunTime.genericWrapArray(array).toSet()
    utils = java.org.apache.spark.sql.classic.ExpressionUtils
    return Column(
        utils.column(java.org.apache.spark.sql.catalyst.expressions.InSet(utils.expression(column._jc), found))
    )
