"""Conditions on rows, with the three-valued logic of SQL. Pure: schemas, expressions and Arrow arrays in, booleans out.

PyIceberg's own evaluation of expressions treats a null as a value in some places, and knows no order of NaN. So its expressions
are only parsed here, and used to skip files where that is right (`RowCondition.pruning`). A comparison with a null is unknown,
and only rows for which the condition is true are read. `-0.0` equals `0.0`. NaN equals NaN,
and is greater than all other numbers.
"""

import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal, localcontext
from functools import cached_property, reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    LiteralPredicate,
    Not,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    NotStartsWith,
    Or,
    Reference,
    SetPredicate,
    StartsWith,
    UnaryPredicate,
    UnboundPredicate,
    parser,
)
from pyiceberg.expressions.literals import (
    DateLiteral,
    DecimalLiteral,
    DoubleLiteral,
    FloatLiteral,
    Literal,
    LongLiteral,
    TimeLiteral,
    TimestampLiteral,
)
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    PrimitiveType,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from lethe.base.errors import InputError
from lethe.iceberg.column_path import ColumnPath, NoColumn, any_value, resolve_column
from lethe.iceberg.metadata_file import require_known

_ORDERED: Final = {LessThan: "<", LessThanOrEqual: "<=", GreaterThan: ">", GreaterThanOrEqual: ">="}
_OPPOSITE: Final = {"=": "!=", "!=": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_PREDICATES: Final[dict[str, type[LiteralPredicate]]] = {
    "=": EqualTo,
    "<": LessThan,
    "<=": LessThanOrEqual,
    ">": GreaterThan,
    ">=": GreaterThanOrEqual,
}
_COMPARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_FLOATS: Final = (FloatType, DoubleType)
_UNPRUNED: Final = (UUIDType, TimestampNanoType, TimestamptzNanoType)
"""Writers did not agree on the order of UUIDs. PyIceberg compares nothing with nanoseconds."""
_WHOLE: Final = {IntegerType: 32, LongType: 64}
_TIMES: Final[dict[type[IcebergType], int]] = {DateType: 32, TimeType: 64, TimestampType: 64, TimestamptzType: 64}
"""The bits of the numbers that Iceberg stores."""
_MICROS_OF_DAY: Final = 86_400_000_000
_LITERALS: Final[tuple[tuple[type[IcebergType], type[Literal[Any]]], ...]] = (
    (IntegerType, LongLiteral),
    (LongType, LongLiteral),
    (DateType, DateLiteral),
    (TimeType, TimeLiteral),
    (TimestampType, TimestampLiteral),
    (TimestamptzType, TimestampLiteral),
    (FloatType, FloatLiteral),
    (DoubleType, DoubleLiteral),
    (DecimalType, DecimalLiteral),
)
_F32: Final = struct.Struct("<f")
_BEYOND: Final = 2**64
"""Greater than any whole number of a column. What is greater still, such as 1e999999999, takes too long to be rounded."""


class _Node:
    """A part of a condition."""

    def columns(self) -> Iterator[ColumnPath]:
        raise NotImplementedError

    def true_in(self, rows: pa.RecordBatch) -> pa.Array:
        """For each row true, false, or null for unknown."""
        raise NotImplementedError

    def opposite(self) -> "_Node":
        """The condition that is true where this one is false, and unknown where this one is."""
        raise NotImplementedError

    def pruning(self) -> BooleanExpression:
        """A test for files that may have a row for which this is true. `AlwaysTrue`, if PyIceberg might skip such a file."""
        raise NotImplementedError

    def of_groups(self, exact: Callable[[ColumnPath], bool]) -> pc.Expression | None:  # noqa: ARG002
        """A test for row groups of a Parquet file that may have a row for which this is true; None: any group may.

        Args:
            exact: Whether the file has a top-level column, with the type that the table has.
        """
        return None


@dataclass(frozen=True)
class _Constant(_Node):
    value: bool

    def columns(self) -> Iterator[ColumnPath]:
        return iter(())

    def true_in(self, rows: pa.RecordBatch) -> pa.Array:
        return pa.repeat(pa.scalar(self.value), rows.num_rows)

    def opposite(self) -> _Node:
        return _Constant(not self.value)

    def pruning(self) -> BooleanExpression:
        return AlwaysTrue() if self.value else AlwaysFalse()


@dataclass(frozen=True)
class _Pair(_Node):
    """Two conditions, combined."""

    left: _Node
    right: _Node

    def columns(self) -> Iterator[ColumnPath]:
        yield from self.left.columns()
        yield from self.right.columns()


class _Both(_Pair):
    def true_in(self, rows: pa.RecordBatch) -> pa.Array:
        return pc.and_kleene(self.left.true_in(rows), self.right.true_in(rows))

    def opposite(self) -> _Node:
        return _Either(self.left.opposite(), self.right.opposite())

    def pruning(self) -> BooleanExpression:
        return And(self.left.pruning(), self.right.pruning())

    def of_groups(self, exact: Callable[[ColumnPath], bool]) -> pc.Expression | None:
        expressions = [e for e in (self.left.of_groups(exact), self.right.of_groups(exact)) if e is not None]
        return reduce(lambda a, b: a & b, expressions) if expressions else None


class _Either(_Pair):
    def true_in(self, rows: pa.RecordBatch) -> pa.Array:
        return pc.or_kleene(self.left.true_in(rows), self.right.true_in(rows))

    def opposite(self) -> _Node:
        return _Both(self.left.opposite(), self.right.opposite())

    def pruning(self) -> BooleanExpression:
        return Or(self.left.pruning(), self.right.pruning())

    def of_groups(self, exact: Callable[[ColumnPath], bool]) -> pc.Expression | None:
        left, right = self.left.of_groups(exact), self.right.of_groups(exact)
        return left | right if left is not None and right is not None else None


@dataclass(frozen=True)
class _IsNull(_Node):
    column: ColumnPath
    expected: bool = True

    def columns(self) -> Iterator[ColumnPath]:
        yield self.column

    def true_in(self, rows: pa.RecordBatch) -> pa.Array:
        values = self.column.of(rows)
        return values.is_null() if self.expected else values.is_valid()

    def opposite(self) -> _Node:
        return _IsNull(self.column, not self.expected)

    def pruning(self) -> BooleanExpression:
        # The counts of nested columns may be those of their elements, or leave out the rows in which a parent is null.
        if self.column.is_nested or not isinstance(self.column.type, PrimitiveType):
            return AlwaysTrue()
        return IsNull(self.column.name) if self.expected else NotNull(self.column.name)  # type: ignore[call-arg]


@dataclass(frozen=True)
class _IsNaN(_Node):
    """False for a null, as in Iceberg and Spark."""

    column: ColumnPath
    expected: bool = True

    def columns(self) -> Iterator[ColumnPath]:
        yield self.column

    def true_in(self, rows: pa.RecordBatch) -> pa.Array:
        values = self.column.of(rows)
        if not isinstance(self.column.type, _FLOATS):
            return pa.repeat(pa.scalar(not self.expected), rows.num_rows)
        mask = pc.fill_null(pc.is_nan(values), False)
        return mask if self.expected else pc.invert(mask)

    def opposite(self) -> _Node:
        return _IsNaN(self.column, not self.expected)

    def pruning(self) -> BooleanExpression:
        return IsNaN(self.column.name) if self.expected and not self.column.is_nested else AlwaysTrue()  # type: ignore[call-arg]


@dataclass(frozen=True)
class _Known(_Node):
    """A comparison with what is not among the values of the type: one result for every value, and unknown for a null."""

    column: ColumnPath
    value: bool

    def columns(self) -> Iterator[ColumnPath]:
        yield self.column

    def true_in(self, rows: pa.RecordBatch) -> pa.Array:
        return _where_valid(self.column.of(rows), pa.repeat(pa.scalar(self.value), rows.num_rows))

    def opposite(self) -> _Node:
        return _Known(self.column, not self.value)

    def pruning(self) -> BooleanExpression:
        return _IsNull(self.column, expected=False).pruning() if self.value else AlwaysFalse()


@dataclass(frozen=True)
class _Compare(_Node):
    """Compares with a value of the column's type."""

    column: ColumnPath
    op: str
    value: Any

    def columns(self) -> Iterator[ColumnPath]:
        yield self.column

    def true_in(self, rows: pa.RecordBatch) -> pa.Array:
        values = self.column.of(rows)
        if isinstance(self.column.type, _FLOATS):
            return self._of_floats(values)
        if pa.types.is_boolean(values.type):
            values = values.cast(pa.int8())
        value = int(self.value) if isinstance(self.value, bool) else self.value
        return _COMPARE[self.op](values, pa.scalar(value, values.type))

    def _of_floats(self, values: pa.Array) -> pa.Array:
        nan, op = pc.is_nan(values), self.op
        if math.isnan(self.value):
            if op in ("=", ">="):
                return nan
            if op in ("!=", "<"):
                return pc.invert(nan)
            return _where_valid(values, pa.repeat(pa.scalar(op == "<="), len(values)))
        mask = _COMPARE[op](values.cast(pa.float64()), pa.scalar(self.value, pa.float64()))
        return pc.or_kleene(mask, nan) if op in (">", ">=") else mask

    def opposite(self) -> _Node:
        return _Compare(self.column, _OPPOSITE[self.op], self.value)

    def pruning(self) -> BooleanExpression:
        name, kind = self.column.name, self.column.type
        if isinstance(kind, _FLOATS):
            if math.isnan(self.value):
                return _IsNaN(self.column).pruning() if self.op in ("=", ">=") else AlwaysTrue()
            if isinstance(kind, FloatType) and FloatType.max < abs(self.value) < math.inf:
                return AlwaysTrue()
            # Bounds leave NaN out.
            nan = _IsNaN(self.column).pruning() if self.op in (">", ">=") else AlwaysFalse()
        elif isinstance(kind, _UNPRUNED):
            return AlwaysTrue()
        else:
            nan = AlwaysFalse()
        if self.op == "!=":
            return AlwaysTrue()
        return Or(_PREDICATES[self.op](name, _literal(self.value, kind)), nan)

    def of_groups(self, exact: Callable[[ColumnPath], bool]) -> pc.Expression | None:
        if self.op == "!=" or not _has_trusted_statistics(self.column) or not exact(self.column):
            return None
        field = pc.field(self.column.top.name)
        return _COMPARE[self.op](field, pa.scalar(self.value, _arrow_type(self.column.type)))


@dataclass(frozen=True)
class _IsIn(_Node):
    """Whether the value is one of others of the column's type, of which none is NaN."""

    column: ColumnPath
    values: tuple[Any, ...]
    expected: bool = True

    def columns(self) -> Iterator[ColumnPath]:
        yield self.column

    def true_in(self, rows: pa.RecordBatch) -> pa.Array:
        values, accepted = self.column.of(rows), self.values
        if isinstance(self.column.type, _FLOATS):
            values = values.cast(pa.float64())
            # Arrow tells one zero from the other here.
            accepted = (*accepted, 0.0, -0.0) if 0.0 in accepted else accepted
        mask = pc.is_in(values, value_set=pa.array(accepted, values.type))
        return _where_valid(values, mask if self.expected else pc.invert(mask))

    def opposite(self) -> _Node:
        return _IsIn(self.column, self.values, not self.expected)

    def pruning(self) -> BooleanExpression:
        if not self.expected or isinstance(self.column.type, _UNPRUNED):
            return AlwaysTrue()
        return In(self.column.name, [_literal(v, self.column.type) for v in self.values])  # type: ignore[call-arg]

    def of_groups(self, exact: Callable[[ColumnPath], bool]) -> pc.Expression | None:
        if not self.expected or not _has_trusted_statistics(self.column) or not exact(self.column):
            return None
        kind = _arrow_type(self.column.type)
        return pc.field(self.column.top.name).isin(pa.array(self.values, kind))


@dataclass(frozen=True)
class _StartsWith(_Node):
    column: ColumnPath
    prefix: str
    expected: bool = True

    def columns(self) -> Iterator[ColumnPath]:
        yield self.column

    def true_in(self, rows: pa.RecordBatch) -> pa.Array:
        mask = pc.starts_with(self.column.of(rows), self.prefix)
        return mask if self.expected else pc.invert(mask)

    def opposite(self) -> _Node:
        return _StartsWith(self.column, self.prefix, not self.expected)

    def pruning(self) -> BooleanExpression:
        return StartsWith(self.column.name, self.prefix) if self.expected else AlwaysTrue()  # type: ignore[call-arg]


@dataclass(frozen=True)
class _Matches(_Node):
    """Whether a part of a text matches a regular expression of RE2."""

    column: ColumnPath
    pattern: str
    expected: bool = True

    def columns(self) -> Iterator[ColumnPath]:
        yield self.column

    def true_in(self, rows: pa.RecordBatch) -> pa.Array:
        mask = pc.match_substring_regex(self.column.of(rows), self.pattern)
        return mask if self.expected else pc.invert(mask)

    def opposite(self) -> _Node:
        return _Matches(self.column, self.pattern, not self.expected)

    def pruning(self) -> BooleanExpression:
        return AlwaysTrue()


@dataclass(frozen=True)
class _AnyElement(_Node):
    """Whether a condition is true for an element of a list. A null list has no elements, as an empty one."""

    column: ColumnPath
    condition: _Node
    """On the values of all elements, as a column."""
    expected: bool = True

    def columns(self) -> Iterator[ColumnPath]:
        yield self.column

    def true_in(self, rows: pa.RecordBatch) -> pa.Array:
        mask = any_value(self.column.of(rows), self._true_for)
        return mask if self.expected else pc.invert(mask)

    def _true_for(self, values: pa.Array) -> pa.Array:
        return self.condition.true_in(pa.RecordBatch.from_arrays([values], [self.column.value.top.name]))

    def opposite(self) -> _Node:
        return _AnyElement(self.column, self.condition, not self.expected)

    def pruning(self) -> BooleanExpression:
        return AlwaysTrue()  # PyIceberg has no predicates on elements


@dataclass(frozen=True)
class RowCondition:
    """A condition on the rows of a schema."""

    root: _Node
    schema: Schema

    @classmethod
    def of(cls, schema: Schema, expression: str | BooleanExpression | None) -> "RowCondition":
        """The condition that a filter says. Messages contain no values of it.

        Raises:
            InputError: InvalidRead, UnknownType, if it is not a condition on rows of the schema.
        """
        if expression is None:
            return cls(_Constant(True), schema)
        try:
            parsed = parser.parse(expression) if isinstance(expression, str) else expression
        except Exception as e:  # of pyparsing; its text repeats the condition
            raise InputError(
                "InvalidRead", "the filter is not a condition in PyIceberg's syntax. Write, for example, v > 3."
            ) from e
        return cls(_node(schema, parsed), schema)

    @classmethod
    def matching(cls, schema: Schema, name: str, pattern: str) -> "RowCondition":
        """The condition that a part of a text column matches a regular expression of RE2.

        Raises:
            InputError: InvalidRead, UnknownType, if the schema has no such column, it is no text, or the pattern is not valid.
        """
        column = _column(schema, name)
        if column.in_list or not isinstance(column.type, StringType):
            raise InputError("InvalidRead", f"the filter needs a text of {column.name}, a {_kind(column)}.")
        try:
            pc.match_substring_regex(pa.array([""]), pattern)
        except pa.ArrowInvalid:
            raise InputError("InvalidRead", "the filter has a regular expression that is not one of RE2.") from None
        return cls(_Matches(column, pattern), schema)

    def both(self, other: "RowCondition") -> "RowCondition":
        """The condition that both are true."""
        return other if self.is_always_true else RowCondition(_Both(self.root, other.root), self.schema)

    def either(self, other: "RowCondition") -> "RowCondition":
        """The condition that at least one of the two is true."""
        return RowCondition(_Either(self.root, other.root), self.schema)

    @property
    def is_always_true(self) -> bool:
        """Whether there is no filter, or only the constant true. Other conditions may be true for all rows as well."""
        return isinstance(self.root, _Constant) and self.root.value

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of the top-level columns that it needs."""
        return tuple(dict.fromkeys(c.top.name for c in self.root.columns()))

    @cached_property
    def pruning(self) -> BooleanExpression:
        """An expression for PyIceberg to skip files with: it is true for each file that has a row of the condition."""
        return self.root.pruning()

    def of_groups(self, exact: Callable[[ColumnPath], bool]) -> pc.Expression | None:
        """An expression for Arrow to skip row groups with. None: read all.

        Args:
            exact: Whether the file has a top-level column, with the type that the table has.
        """
        return self.root.of_groups(exact)

    def true_in(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """Whether the condition is true for each row."""
        return pc.fill_null(self.root.true_in(rows), False)

    def false_in(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """Whether the condition is false for each row. Where it is unknown, it is not."""
        return pc.fill_null(pc.invert(self.root.true_in(rows)), False)


# --- expressions ----------------------------------------------------------------------------------------------------


def _node(schema: Schema, expression: BooleanExpression) -> _Node:
    match expression:
        case AlwaysTrue():
            return _Constant(True)
        case AlwaysFalse():
            return _Constant(False)
        case And(left=left, right=right):
            return _Both(_node(schema, left), _node(schema, right))
        case Or(left=left, right=right):
            return _Either(_node(schema, left), _node(schema, right))
        case Not(child=child):
            return _node(schema, child).opposite()
        case UnboundPredicate():
            reference = expression.term
            assert isinstance(reference, Reference)
            column = _column(schema, reference.name)
            return _of_elements(column, expression) if column.in_list else _predicate(column, expression)
    raise InputError("InvalidRead", f"the filter has a {type(expression).__name__}, which is not supported.")


def _column(schema: Schema, name: str) -> ColumnPath:
    try:
        column = resolve_column(schema, name)
    except NoColumn as e:
        raise InputError("InvalidRead", f"the filter names the column {name}, {e}.") from None
    require_known(schema, [column.top.name], "the filter")
    return column


def _of_elements(column: ColumnPath, predicate: UnboundPredicate) -> _Node:
    """Whether one of the values of a row meets a predicate, or none does: `!=` is true where `=` is not."""
    match predicate:
        case EqualTo() | In() | StartsWith():
            return _AnyElement(column, _predicate(column.value, predicate))
        case NotEqualTo() | NotIn() | NotStartsWith():
            return _AnyElement(column, _predicate(column.value, predicate).opposite(), expected=False)
    # A row in which no value is between two others may have a greater value than one of them, and a smaller one than the other.
    raise InputError(
        "InvalidRead",
        f"the filter has a {type(predicate).__name__} of {column.name}, of which a row has several values. Only =, !=, in, "
        "not in, like and not like are supported for it.",
    )


def _predicate(column: ColumnPath, predicate: UnboundPredicate) -> _Node:
    match predicate:
        case IsNull() | NotNull():
            return _IsNull(column, isinstance(predicate, IsNull))
        case IsNaN() | NotNaN():
            return _IsNaN(column, isinstance(predicate, IsNaN))
        case UnaryPredicate():
            raise InputError("InvalidRead", f"the filter has a {type(predicate).__name__}, which is not supported.")
    if isinstance(column.type, (StructType, ListType, MapType)):
        raise InputError(
            "InvalidRead", f"the filter compares {column.name}, a {_kind(column)}. Only IS NULL is supported for it."
        )
    match predicate:
        case StartsWith() | NotStartsWith():
            if not isinstance(column.type, StringType):
                raise InputError("InvalidRead", f"the filter needs a prefix of {column.name}, a {_kind(column)}.")
            return _StartsWith(column, str(predicate.literal.value), isinstance(predicate, StartsWith))
        case SetPredicate():
            node = _any_of(column, list(predicate.literals))
            return node if isinstance(predicate, In) else node.opposite()
        case NotEqualTo():
            return _compared(column, "=", predicate.literal).opposite()
        case LiteralPredicate():
            return _compared(column, _ORDERED.get(type(predicate), "="), predicate.literal)
    raise InputError("InvalidRead", f"the filter has a {type(predicate).__name__}, which is not supported.")


def _any_of(column: ColumnPath, literals: list[Literal[Any]]) -> _Node:
    nodes = [_compared(column, "=", literal) for literal in literals]
    values = [n.value for n in nodes if isinstance(n, _Compare)]
    numbers = tuple(v for v in values if not (isinstance(v, float) and math.isnan(v)))
    node: _Node = _IsIn(column, numbers) if numbers else _Known(column, False)
    has_nan = len(numbers) < len(values)
    return _Either(node, _Compare(column, "=", math.nan)) if has_nan else node


def _compared(column: ColumnPath, op: str, literal: Literal[Any]) -> _Node:
    """A comparison that is exact also where the literal is not a value of the column's type."""
    kind, value = column.type, literal.value
    try:
        if isinstance(kind, (IntegerType, LongType)):
            # PyIceberg cuts the fraction off a text, and takes one that is too large for the greatest number.
            return _whole(column, op, Decimal(value) if isinstance(value, str) else value, _WHOLE[type(kind)])
        if isinstance(kind, DecimalType) and not isinstance(value, bool):
            return _decimal(column, op, Decimal(str(value)), kind)
        if isinstance(kind, _FLOATS):
            return _Compare(column, op, _float(value, kind))
        if isinstance(kind, (TimestampNanoType, TimestamptzNanoType)):
            plain = TimestamptzType() if isinstance(kind, TimestamptzNanoType) else TimestampType()
            return _whole(column, op, int(literal.to(plain).value) * 1000, 64)
        if isinstance(kind, DateType) and isinstance(literal, TimestampLiteral):
            day, rest = divmod(literal.value, _MICROS_OF_DAY)  # a date is the first moment of its day
            return _beside(column, op, day, False, False) if rest else _whole(column, op, day, 32)
        found = literal.to(kind)
        if type(kind) in _TIMES:
            return _whole(column, op, found.value, _TIMES[type(kind)])
    except (ValueError, TypeError, ArithmeticError):
        raise InputError(
            "InvalidRead", f"the filter compares {column.name}, a {_kind(column)}, with a value that is none."
        ) from None
    return _Compare(column, op, found.value)


def _kind(column: ColumnPath) -> str:
    return str(column.type).partition("<")[0]


def _whole(column: ColumnPath, op: str, value: Any, bits: int) -> _Node:
    if isinstance(value, bool):
        raise TypeError
    if not isinstance(value, int) and not -_BEYOND < value < _BEYOND:  # also infinite, or NaN
        return _Known(column, op in (("<", "<=") if math.isnan(value) or value > 0 else (">", ">=")))
    lower = math.floor(value)
    if lower == value and -(2 ** (bits - 1)) <= lower < 2 ** (bits - 1):
        return _Compare(column, op, lower)
    return _beside(column, op, lower, lower < -(2 ** (bits - 1)), lower >= 2 ** (bits - 1))


def _decimal(column: ColumnPath, op: str, value: Decimal, kind: DecimalType) -> _Node:
    if not value.is_finite():
        return _whole(column, op, float(value), 64)
    with localcontext(prec=1000):
        lower = value.quantize(Decimal((0, (1,), -kind.scale)), rounding=ROUND_FLOOR)
        too_large = abs(lower) >= Decimal(10) ** (kind.precision - kind.scale)
        if lower == value and not too_large:
            return _Compare(column, op, lower)
        return _beside(column, op, lower, too_large and lower < 0, too_large and lower > 0)


def _beside(column: ColumnPath, op: str, lower: Any, is_below: bool, is_above: bool) -> _Node:
    """A comparison with a value between two of the type, or outside of all of them.

    Args:
        lower: The largest value of the type that is less.
        is_below, is_above: Whether all values of the type are greater, or less.
    """
    if op == "=":
        return _Known(column, False)
    if is_below or is_above:
        return _Known(column, op in (("<", "<=") if is_above else (">", ">=")))
    return _Compare(column, "<=" if op in ("<", "<=") else ">", lower)


def _float(value: Any, kind: IcebergType) -> float:
    """The number as a column of floats has it, if it can have it."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal, str)):
        raise TypeError
    try:
        number = float(value)
    except OverflowError:  # of an int
        number = math.inf if value > 0 else -math.inf  # type: ignore[operator]
    if isinstance(kind, FloatType):
        try:
            return float(_F32.unpack(_F32.pack(number))[0])
        except OverflowError:  # all floats but the infinite ones are on the same side of it
            return number
    return number


# --- values ---------------------------------------------------------------------------------------------------------


def _arrow_type(kind: IcebergType) -> pa.DataType:
    arrow: Any = schema_to_pyarrow(kind, include_field_ids=False)
    return arrow.storage_type if isinstance(arrow, pa.BaseExtensionType) else arrow


def _where_valid(values: pa.Array, matches: pa.Array) -> pa.Array:
    return pc.if_else(values.is_valid(), matches, pa.scalar(None, pa.bool_()))


def _literal(value: Any, kind: IcebergType) -> Any:
    """The value as a literal that PyIceberg does not convert to another."""
    return next((literal(value) for iceberg_type, literal in _LITERALS if isinstance(kind, iceberg_type)), value)  # type: ignore[call-arg]


def _has_trusted_statistics(column: ColumnPath) -> bool:
    """Whether bounds in a footer of Parquet hold for all values of such a column."""
    kinds = (IntegerType, LongType, DateType, TimestampType, TimestamptzType, StringType, DecimalType)
    return not column.is_nested and isinstance(column.type, kinds)
