"""Names and conditions for Spark SQL, where PySpark has none.

Conditions by which Iceberg may skip files of columns with NaN and zeros.

Iceberg's bounds leave NaN out, although Spark orders it above all numbers, and they tell -0.0 from 0.0, although Spark does not.
So a condition such as `x >= 0.0` that is pushed down skips files with rows for which it is true. A weaker condition skips none.
"""

from collections.abc import Collection, Iterator
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession

from lethe_spark.jvm.errors import JvmError
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


_FLOATS: Final = ("float", "double")
_NUMBERS: Final = (*_FLOATS, "decimal", "byte", "short", "integer", "long", "tinyint", "smallint", "int", "bigint")


def for_skipping(frame: DataFrame, condition: str) -> str | None:
    """A condition that is also true for the rows whose values Iceberg's bounds do not show. None: that is the condition itself.

    Args:
        condition: On the rows of the frame, as SQL text.

    Raises:
        AnalysisException: It is none.
        ParseException: It is none.
    """
    tree = frame.filter(condition)._jdf.queryExecution().analyzed().condition()
    columns = dict(_floats(tree))
    if not columns:
        return None
    terms = [f"{name} = {kind}('NaN')" for name, kind in columns.items()]
    if _has_zero(tree):
        terms += [f"{name} = {kind}('{zero}')" for name, kind in columns.items() for zero in ("0.0", "-0.0")]
    # The line break ends a comment.
    return f"({condition}\n) OR {' OR '.join(terms)}"


def _floats(expression: Any) -> Iterator[tuple[str, str]]:
    """The columns and fields of structs with floating-point numbers that an expression names: their SQL text and type."""
    path = _path(expression)
    kind = str(expression.dataType().typeName())
    if path is not None and kind in _FLOATS:
        yield ".".join(map(quoted, path)), kind
    else:
        for child in _children(expression):
            yield from _floats(child)


def _path(expression: Any) -> tuple[str, ...] | None:
    match str(expression.nodeName()):
        case "AttributeReference":
            return (str(expression.name()),)
        case "GetStructField":
            parent = _path(expression.child())
            return None if parent is None else (*parent, str(expression.extractFieldName()))
    return None


def _has_zero(expression: Any) -> bool:
    """Whether an expression has a number that is zero, or a constant of which that is unknown."""
    if bool(expression.foldable()):
        if str(expression.dataType().typeName()).partition("(")[0] not in _NUMBERS:
            return False
        try:
            value = expression.eval(None)
            return value is not None and float(str(value)) == 0
        except (ValueError, *JvmError):
            return True
    return any(_has_zero(child) for child in _children(expression))


def _children(expression: Any) -> Iterator[Any]:
    children = expression.children()
    return (children.apply(n) for n in range(int(children.size())))
