"""Parses the values that name the records of an Erase, and compares them with bounds of data files. Pure.

Invariant: no message and no `repr` contains a value, because it may be personal data.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from functools import partial
from typing import Any, Final, TypeAlias, assert_never
from uuid import UUID

from lethe.base.errors import InputError
from lethe.base.names import lines_of

MAX_VALUES: Final = 100_000
Value: TypeAlias = str | int | Decimal | UUID
"""A value as Iceberg stores it: a date is the number of days since 1970, a timestamp the number of microseconds."""

_TIMESTAMP: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?"


class ValueType(StrEnum):
    """The Iceberg types of columns that can name records, without the precision and scale of decimals."""

    STRING = "string"
    INT = "int"
    LONG = "long"
    DECIMAL = "decimal"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    UUID = "uuid"


@dataclass(frozen=True)
class ValueKind:
    """The type of a column that can name records."""

    type: ValueType
    precision: int = 0
    """The precision of a decimal."""
    scale: int = 0
    """The scale of a decimal."""

    @property
    def is_time(self) -> bool:
        """Whether its values are points in time."""
        return self.type in (ValueType.TIMESTAMP, ValueType.TIMESTAMPTZ)

    @property
    def is_uuid(self) -> bool:
        """Whether its values are UUIDs."""
        return self.type is ValueType.UUID

    @classmethod
    def of(cls, iceberg_type: str) -> "ValueKind | None":
        """The kind of a type; None: it is not supported, because equality of its values is not exact or not useful."""
        if digits := re.fullmatch(r"decimal\((\d+), ?(\d+)\)", iceberg_type):
            return cls(ValueType.DECIMAL, int(digits[1]), int(digits[2]))
        return cls(ValueType(iceberg_type)) if iceberg_type in _PARSERS else None


@dataclass(frozen=True)
class Values:
    """Distinct values of one kind, in order."""

    kind: ValueKind
    items: tuple[Any, ...] = field(repr=False)

    def might_lie_in(self, lower: Any, upper: Any) -> bool:
        """Whether one of the values is within these bounds, both inclusive; None is open."""
        index = 0 if lower is None else bisect_left(self.items, lower)
        return index < len(self.items) and (upper is None or self.items[index] <= upper)

    def index_of(self, value: Any) -> int | None:
        """The index of this value, as Iceberg stores it, as JSON, or as PyIceberg has defaults; None: it is none of them."""
        if isinstance(value, str) and self.kind.type is not ValueType.STRING:
            value = _PARSERS[self.kind.type](value, self.kind)
        if isinstance(value, bytes):
            value = UUID(bytes=value)
        if isinstance(value, datetime):
            value = micros_of(value)
        elif isinstance(value, date):
            value = (value - date(1970, 1, 1)).days
        if value is None or not self.might_lie_in(value, value):
            return None
        return bisect_left(self.items, value)

    def might_be_in(self, lower: bytes | None, upper: bytes | None) -> bool:
        """Whether a value may be between bounds in the binary form of manifests."""
        return self.might_lie_in(self._bound(lower), self._bound(upper))

    def _bound(self, stored: bytes | None) -> Any:
        """The value of a bound; None: unknown, or maybe not of this kind, because the file is older than the column's type."""
        if stored is None:
            return None
        match self.kind.type:
            case ValueType.STRING:
                return _decoded(stored)
            case ValueType.INT | ValueType.LONG:
                return int.from_bytes(stored, "little", signed=True)
            case ValueType.DATE:
                return int.from_bytes(stored, "little", signed=True) if len(stored) == 4 else None
            case ValueType.TIMESTAMP | ValueType.TIMESTAMPTZ:
                return int.from_bytes(stored, "little", signed=True) if len(stored) == 8 else None
            case ValueType.DECIMAL:
                return _of_unscaled(int.from_bytes(stored, "big", signed=True), self.kind)
            case ValueType.UUID:
                return None
            case _:
                assert_never(self.kind.type)


def _decoded(stored: bytes) -> str | None:
    """The text of a bound; None: it is not UTF-8, because a bound may be cut within a character."""
    try:
        return stored.decode("utf-8")
    except UnicodeDecodeError:
        return None


def parse_value(text: str, kind: ValueKind) -> Value:
    """Parse one value.

    Raises:
        ValueError: It is not of this kind. The text may contain the value.
        ArithmeticError: The same.
    """
    return _PARSERS[kind.type](text, kind)


def parse_values(content: bytes, kind: ValueKind, column: str, where: str, done: str = "erased") -> Values:
    """Parse a file with one value per line. Skips blank lines; spaces in a line belong to the value.

    Args:
        column: Its name, for errors.
        where: The Restatement and the list, for errors.
        done: What did not happen, for errors.

    Raises:
        InputError: `InvalidValues`: no values or too many, not UTF-8, or not of the column's type. Names the line.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError("InvalidValues", f"{where} are not UTF-8 text. Nothing was {done}.") from None
    numbered_lines = [(n, line) for n, line in enumerate(lines_of(text), 1) if line.strip()]
    if not numbered_lines:
        raise InputError("InvalidValues", f"{where} are empty. Write one value per line. Nothing was {done}.")
    if len(numbered_lines) > MAX_VALUES:
        raise InputError(
            "InvalidValues",
            f"{where}: found {len(numbered_lines)} values, expected at most {MAX_VALUES}. Divide them among several "
            f"Restatements. Nothing was {done}.",
        )
    values: set[Any] = set()
    for n, line in numbered_lines:
        try:
            values.add(parse_value(line, kind))
        except (ValueError, ArithmeticError):  # its text contains the value
            raise InputError(
                "InvalidValues",
                f"{where}: line {n} is not a value of column {column}: expected {described(kind)}. Nothing was {done}.",
            ) from None
    return Values(kind, tuple(sorted(values)))


def described(kind: ValueKind) -> str:
    """What values of this kind look like, for messages."""
    match kind.type:
        case ValueType.DATE:
            return "date such as 2026-03-01"
        case ValueType.TIMESTAMP:
            return "timestamp such as 2026-03-01T12:00:00, without a zone"
        case ValueType.TIMESTAMPTZ:
            return "timestamp such as 2026-03-01T12:00:00Z, with a zone"
        case ValueType.DECIMAL:
            return f"decimal({kind.precision}, {kind.scale})"
        case ValueType.STRING | ValueType.INT | ValueType.LONG | ValueType.UUID:
            return kind.type
        case _:
            assert_never(kind.type)


def conversion(source: ValueKind, target: ValueKind) -> Callable[[Any], Any] | None:
    """How values of one kind become the equal ones of another kind, exactly; None: such values are never equal.

    Numbers are equal as numbers. A text equals what it says as a line of a list, and a whole number the text of its digits.

    Returns:
        A function of a value. It returns None if no value of the other kind equals it. It raises ValueError or ArithmeticError,
        with the value in its text, for a text that is no value of the other kind.
    """
    if source == target:
        return lambda value: value
    if source.type is ValueType.STRING:
        return lambda text: _PARSERS[target.type](text, target)
    if target.type is ValueType.STRING and source.type in _WHOLE:
        return str
    if source.type in _NUMBERS and target.type in _NUMBERS:
        return partial(_as_number, kind=target)
    return None


def _as_number(value: int | Decimal, kind: ValueKind) -> Any:
    if isinstance(value, Decimal) and kind.type in _WHOLE:
        if value != int(value):
            return None
        value = int(value)
    try:
        return _PARSERS[kind.type](format(value, "f") if isinstance(value, Decimal) else str(value), kind)
    except ValueError:
        return None


def _text(line: str, _: ValueKind) -> str:
    return line


def _whole_number(bits: int) -> Callable[[str, ValueKind], int]:
    def parse(line: str, _: ValueKind) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", line):
            raise ValueError
        value = int(line)
        if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            raise ValueError
        return value

    return parse


def _decimal(line: str, kind: ValueKind) -> Decimal:
    if not re.fullmatch(r"[+-]?[0-9]{1,40}(\.[0-9]{1,40})?", line):
        raise ValueError
    whole, _, fraction = line.partition(".")
    fraction = fraction.rstrip("0")
    unscaled = int(whole + fraction.ljust(kind.scale, "0"))
    if len(fraction) > kind.scale or abs(unscaled) >= 10**kind.precision:
        raise ValueError
    return _of_unscaled(unscaled, kind)


def _of_unscaled(number: int, kind: ValueKind) -> Decimal:
    """Made from text, because arithmetic would round to 28 digits."""
    return Decimal(f"{number}E-{kind.scale}")


def _date(line: str, _: ValueKind) -> int:
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", line):
        raise ValueError
    return (date.fromisoformat(line) - date(1970, 1, 1)).days


def _timestamp(line: str, _: ValueKind) -> int:
    if not re.fullmatch(_TIMESTAMP, line):
        raise ValueError
    return micros_of(datetime.fromisoformat(line))


def _instant(line: str, _: ValueKind) -> int:
    if not re.fullmatch(_TIMESTAMP + r"(Z|[+-][0-9]{2}:?[0-9]{2})", line):
        raise ValueError
    return micros_of(datetime.fromisoformat(line))


def micros_of(time: datetime) -> int:
    """The microseconds since 1970, as Iceberg stores times. A time without a zone counts as one in UTC."""
    since = (time if time.tzinfo is not None else time.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return since // timedelta(microseconds=1)


def _uuid(line: str, _: ValueKind) -> UUID:
    if not re.fullmatch(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", line):
        raise ValueError
    return UUID(line)


_PARSERS: Final[Mapping[ValueType, Callable[[str, ValueKind], Value]]] = {
    ValueType.STRING: _text,
    ValueType.INT: _whole_number(32),
    ValueType.LONG: _whole_number(64),
    ValueType.DECIMAL: _decimal,
    ValueType.DATE: _date,
    ValueType.TIMESTAMP: _timestamp,
    ValueType.TIMESTAMPTZ: _instant,
    ValueType.UUID: _uuid,
}
_WHOLE: Final = (ValueType.INT, ValueType.LONG)
_NUMBERS: Final = (*_WHOLE, ValueType.DECIMAL)
