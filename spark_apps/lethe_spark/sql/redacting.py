"""Replaces values of columns in chosen rows of a DataFrame. Builds plans; Spark computes them.

The key of hashes is in no plan: it is part of a Python function, of which plans, event logs and messages have only the name.
"""

import hashlib
import hmac
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from lethe.base.names import ROW_ID_COLUMNS
from lethe.contract.settings import RedactionMethod
from lethe.iceberg.column_path import ColumnPath
from lethe.search.columns import RedactableColumn
from pyiceberg.types import StructType
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, DataType
from pyspark.sql.types import StructType as SparkStruct

from lethe_spark.jvm.spark_table import quoted
from lethe_spark.sql.searching import named

_LAST_UPDATED: Final = ROW_ID_COLUMNS[1]
Steps: TypeAlias = Sequence[str | None]
"""From a column to a part of it: the name of a field of a struct; None: the elements of a list."""


@dataclass(frozen=True)
class RowRedaction:
    """What one Redact writes."""

    columns: tuple[RedactableColumn, ...]
    hash_key: bytes = field(default=b"", repr=False)


def redacted(frame: DataFrame, chosen: str, redactions: Iterable[tuple[RowRedaction, Collection[int]]]) -> DataFrame:
    """The rows with new values in the chosen ones. Does not change which rows there are.

    Args:
        frame: As `lethe_spark.jvm.scan_tasks.scan_files` reads files.
        chosen: The column with the number of a choice, or null for a row that stays as it is.
        redactions: Each with the choices that it is for. Applied in this order.
    """
    for redaction, numbers in redactions:
        for column in redaction.columns:
            frame = _with(frame, column, F.col(chosen).isin(*numbers), redaction.hash_key)
    if _LAST_UPDATED in frame.columns:  # null: Iceberg reads the sequence number of the commit that changes the row
        unchanged = F.when(F.col(chosen).isNull(), F.col(_LAST_UPDATED))
        frame = frame.withColumn(_LAST_UPDATED, unchanged)
    return frame


def _with(frame: DataFrame, column: RedactableColumn, condition: Column, hash_key: bytes) -> DataFrame:
    top, steps = column.path.top.name, _steps(column.path)
    now, of = named(top), _type_at(frame.schema[top].dataType, steps)
    match column.method:
        case RedactionMethod.SET_NULL | RedactionMethod.CONSTANT:
            new = _put(now, steps, lambda _: F.lit(column.constant).cast(of))
        case RedactionMethod.KEYED_HASH:
            lists = sum(step is None for step in steps)
            leaves = F.when(condition, _leaves(now, steps))
            keyed_hash = F.udf(_KeyedHash(hash_key).keyed_hash, _in_lists(of, lists), useArrow=False)
            new = _put_each(now, steps, keyed_hash(leaves))
    value = F.when(condition, new).otherwise(now).alias(top)
    return frame.select(*(value if name == top else named(name) for name in frame.columns))


@dataclass(frozen=True)
class _KeyedHash:
    key: bytes = field(repr=False)

    def keyed_hash(self, value: Any) -> Any:
        """The hash of a text or of bytes, as the same type; of lists, the hashes of their elements. Of null, null."""
        if value is None:
            return None
        if isinstance(value, list):
            return [self.keyed_hash(element) for element in value]
        if isinstance(value, str):
            return self._hex(value.encode())
        return self._hex(bytes(value)).encode()

    def _hex(self, value: bytes) -> str:
        return hmac.new(self.key, value, hashlib.sha256).hexdigest()


def _steps(path: ColumnPath) -> Steps:
    parents = zip(path.fields, path.fields[1:], strict=False)
    return [f.name if isinstance(parent.field_type, StructType) else None for parent, f in parents]


def _type_at(of: DataType, steps: Steps) -> DataType:
    for step in steps:
        if step is None:
            assert isinstance(of, ArrayType)
            of = of.elementType
        else:
            assert isinstance(of, SparkStruct)
            of = of[step].dataType
    return of


def _in_lists(of: DataType, depth: int) -> DataType:
    return of if not depth else ArrayType(_in_lists(of, depth - 1))


def _put(value: Column, steps: Steps, new: Callable[[Column], Column]) -> Column:
    """The value with new parts. A part of a null stays null."""
    if not steps:
        return new(value)
    step, rest = steps[0], steps[1:]
    if step is None:
        return F.transform(value, lambda element: _put(element, rest, new))
    return value.withField(quoted(step), _put(value.getField(step), rest, new))


def _leaves(value: Column, steps: Steps) -> Column:
    """The parts; behind a step to the elements of a list, a list of them."""
    if not steps:
        return value
    step, rest = steps[0], steps[1:]
    if step is None:
        return F.transform(value, lambda element: _leaves(element, rest))
    return _leaves(value.getField(step), rest)


def _put_each(value: Column, steps: Steps, new: Column) -> Column:
    """As `_put`, with a new value for each part, in the form of `_leaves`."""
    if not steps:
        return new
    step, rest = steps[0], steps[1:]
    if step is None:
        return F.zip_with(value, new, lambda element, one: _put_each(element, rest, one))
    return value.withField(quoted(step), _put_each(value.getField(step), rest, new))
