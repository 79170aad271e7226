"""Random conditions on the rows of random tables, with the three-valued logic of SQL. Pure: they can be judged here, and written
for Spark and for PyIceberg."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Context, Decimal
from typing import Any

from pyiceberg.expressions import (
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    NotEqualTo,
    NotIn,
    NotNull,
    Or,
)

from tests.model.shapes import Field, Kind, Maker

OPERATORS: dict[str, tuple[Callable[[Any, Any], bool], Any]] = {
    "=": (lambda a, b: a == b, EqualTo),
    "<>": (lambda a, b: a != b, NotEqualTo),
    "<": (lambda a, b: a < b, LessThan),
    "<=": (lambda a, b: a <= b, LessThanOrEqual),
    ">": (lambda a, b: a > b, GreaterThan),
    ">=": (lambda a, b: a >= b, GreaterThanOrEqual),
}
COMPARED = ("int", "long", "float", "double", "string", "date", "decimal")


@dataclass(frozen=True)
class Place:
    """A column, or a field of nested structs."""

    names: tuple[str, ...]
    keys: tuple[int, ...]
    kind: Kind

    def of(self, row: dict[int, Any]) -> Any:
        value: Any = row
        for key in self.keys:
            if value is None:
                return None
            value = value[key]
        return value

    @property
    def sql(self) -> str:
        return ".".join("`" + n.replace("`", "``") + "`" for n in self.names)

    @property
    def name(self) -> str:
        return ".".join(self.names)


def places_of(fields: Sequence[Field], names: tuple[str, ...] = (), keys: tuple[int, ...] = ()) -> Iterator[Place]:
    for f in fields:
        here = Place((*names, f.name), (*keys, f.key), f.kind)
        yield here
        if f.kind.name == "struct":
            yield from places_of(f.kind.fields, here.names, here.keys)


@dataclass(frozen=True)
class Condition:
    """For a row it is true, false, or None for unknown."""

    judge: Callable[[dict[int, Any]], bool | None]
    sql: str
    expression: BooleanExpression

    @property
    def negated(self) -> "Condition":
        def judge(row: dict[int, Any]) -> bool | None:
            found = self.judge(row)
            return None if found is None else not found

        return Condition(judge, f"NOT ({self.sql})", Not(self.expression))

    def both(self, other: "Condition") -> "Condition":
        def judge(row: dict[int, Any]) -> bool | None:
            found = (self.judge(row), other.judge(row))
            return False if False in found else None if None in found else True

        return Condition(judge, f"({self.sql}) AND ({other.sql})", And(self.expression, other.expression))

    def either(self, other: "Condition") -> "Condition":
        def judge(row: dict[int, Any]) -> bool | None:
            found = (self.judge(row), other.judge(row))
            return True if True in found else None if None in found else False

        return Condition(judge, f"({self.sql}) OR ({other.sql})", Or(self.expression, other.expression))


def ordered(kind: Kind, value: Any) -> Any:
    """A value as one that compares as SQL's values do: NaN is greater than all numbers, and -0.0 equals 0.0."""
    if kind.name in ("float", "double"):
        return (1, 0.0) if math.isnan(value) else (0, value + 0.0)
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


def compare(place: Place, operator: str, value: Any) -> Condition:
    judge, made = OPERATORS[operator]
    kind = place.kind

    def judged(row: dict[int, Any]) -> bool | None:
        found = place.of(row)
        return None if found is None else judge(ordered(kind, found), ordered(kind, value))

    return Condition(judged, f"{place.sql} {operator} {sql_of(kind, value)}", made(place.name, plain(kind, value)))


def one_of(place: Place, values: Sequence[Any], wanted: bool = True) -> Condition:
    kind = place.kind
    known = {ordered(kind, v) for v in values}

    def judged(row: dict[int, Any]) -> bool | None:
        found = place.of(row)
        return None if found is None else (ordered(kind, found) in known) is wanted

    word, made = ("IN", In) if wanted else ("NOT IN", NotIn)
    listed = ", ".join(sql_of(kind, v) for v in values)
    return Condition(judged, f"{place.sql} {word} ({listed})", made(place.name, [plain(kind, v) for v in values]))


def null(place: Place, wanted: bool = True) -> Condition:
    word, made = ("IS NULL", IsNull) if wanted else ("IS NOT NULL", NotNull)
    return Condition(lambda row: (place.of(row) is None) is wanted, f"{place.sql} {word}", made(place.name))


def some_conditions(maker: Maker, fields: Sequence[Field], number: int) -> Iterator[Condition]:
    places = list(places_of(fields))
    compared = [p for p in places if p.kind.name in COMPARED]

    def leaf() -> Condition:
        if not compared or maker.luck.random() < 0.25:
            return null(maker.luck.choice(places), maker.luck.random() < 0.5)
        place = maker.luck.choice(compared)
        if maker.luck.random() < 0.4:
            return one_of(place, [maker.one(place.kind) for _ in range(3)], maker.luck.random() < 0.5)
        return compare(place, maker.luck.choice(tuple(OPERATORS)), maker.one(place.kind))

    for _ in range(number):
        found = leaf()
        if maker.luck.random() < 0.4:
            found = found.negated
        if maker.luck.random() < 0.4:
            found = found.both(leaf()) if maker.luck.random() < 0.5 else found.either(leaf())
        yield found


# --- literals -------------------------------------------------------------------------------------------------------


def plain(kind: Kind, value: Any) -> Any:
    """As PyIceberg takes it."""
    if kind.name == "date":
        return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
    if kind.name == "decimal":
        return Decimal(value).quantize(Decimal(f"1E-{kind.digits[1]}"), context=Context(prec=60))
    if kind.name in ("float", "double") and math.isnan(value):
        return "NaN"  # PyIceberg makes no literal of the number
    return value


def sql_of(kind: Kind, value: Any) -> str:
    match kind.name:
        case "float" | "double":
            text = "NaN" if math.isnan(value) else repr(value).replace("inf", "Infinity")
            return f"{kind.name}('{text}')"
        case "date":
            return f"DATE '{plain(kind, value)}'"
        case "string":
            escaped = value.replace("\\", "\\\\").replace("'", "\\'")
            return f"'{escaped}'"
        case "decimal":
            precision, scale = kind.digits
            return f"CAST('{value:f}' AS DECIMAL({precision},{scale}))"
        case "long":
            return f"CAST('{value}' AS BIGINT)"
    return f"CAST('{value}' AS INT)"
