"""Random tables with columns of any type, their evolution, and a model of their rows. Pure.

The model knows fields by keys that never change. A row is a dict of the values that were written, by key; a struct is such a
dict, too. What a reader must find follows from the row and the columns of today: see `seen`.
"""

import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Context, Decimal
from itertools import count
from typing import Any

Value = Any

_EXACT = Context(prec=60)
NAN, OTHER_NAN = struct.unpack("<dd", bytes.fromhex("000000000000f87f010000000000f87f"))
INF = float("inf")
_DAYS = (-719162, 2932896)  # the years 1 and 9999
_DAY = 86_400_000_000
_LONG_TEXT = "long \U0001f600 text " * 30

# Values of each type that are special somewhere, as Arrow takes them: days, and microseconds.
SPECIAL: dict[str, tuple[Value, ...]] = {
    "boolean": (True, False),
    "int": (0, -1, 2**31 - 1, -(2**31)),
    "long": (0, 1, 2**63 - 1, -(2**63)),
    "float": (0.0, -0.0, 1.5, NAN, INF, -INF, 2.0**-126),
    "double": (0.0, -0.0, 3.0, 1.0, NAN, OTHER_NAN, INF, -INF, 2.0**-1022),
    "date": (0, -1, *_DAYS),
    "timestamptz": (0, -1, _DAYS[0] * _DAY, (_DAYS[1] + 1) * _DAY - 1),
    "timestamp": (0, -1, _DAYS[0] * _DAY, (_DAYS[1] + 1) * _DAY - 1),
    "string": ("", " ", "a", "é", "\ud7ff\ue000", "\U0001f600", _LONG_TEXT, "a'b\"c`d\\n", "NaN", "null"),
    "binary": (b"", b"\x00", b"\xff" * 40, b"a"),
    "decimal": (Decimal(0), Decimal(1), Decimal(-1)),
}
PRIMITIVES = (*SPECIAL,)
ODD_NAMES = ("plain", "with space", "a.b", "Ünï", "back`tick", 'quo"te', "UPPER", "select", "x-y", "日本")


@dataclass(frozen=True)
class Kind:
    """A type.

    Args:
        name: One of `PRIMITIVES`, or struct, list, map.
        digits: Precision and scale of a decimal.
        fields: Of a struct.
        parts: Of a list its element; of a map its key and its value.
    """

    name: str
    digits: tuple[int, int] = (0, 0)
    fields: "tuple[Field, ...]" = ()
    parts: "tuple[Kind, ...]" = ()

    @property
    def is_primitive(self) -> bool:
        return self.name in SPECIAL


@dataclass(frozen=True)
class Field:
    """A column, or a field of a struct.

    Args:
        default: What older rows have; None: null.
    """

    key: int
    name: str
    kind: Kind
    default: Value = None


@dataclass
class Maker:
    """Makes types and values."""

    luck: random.Random
    _keys: Iterator[int] = field(default_factory=lambda: count(1))
    _names: Iterator[int] = field(default_factory=lambda: count(1))

    def field(self, depth: int = 2, kind: Kind | None = None, name: str = "") -> Field:
        odd = self.luck.choice(ODD_NAMES) if self.luck.random() < 0.4 else "c"
        return Field(next(self._keys), name or f"{odd}{next(self._names)}", kind or self.kind(depth))

    def kind(self, depth: int = 2) -> Kind:
        if depth and self.luck.random() < 0.55:
            match self.luck.choice(("struct", "list", "map")):
                case "struct":
                    return Kind("struct", fields=tuple(self.field(depth - 1) for _ in range(self.luck.randint(1, 3))))
                case "list":
                    return Kind("list", parts=(self.kind(depth - 1),))
                case _:
                    return Kind("map", parts=(Kind(self.luck.choice(("string", "int", "date"))), self.kind(depth - 1)))
        return self.primitive()

    def primitive(self) -> Kind:
        name = self.luck.choice(PRIMITIVES)
        digits = self.luck.choice(((9, 2), (18, 0), (30, 10), (4, 4))) if name == "decimal" else (0, 0)
        return Kind(name, digits)

    def value(self, kind: Kind, nulls: float = 0.25) -> Value:
        if self.luck.random() < nulls:
            return None
        match kind.name:
            case "struct":
                return {f.key: self.value(f.kind) for f in kind.fields}
            case "list":
                return [self.value(kind.parts[0]) for _ in range(self.luck.choice((0, 1, 2)))]
            case "map":
                keys = {self.value(kind.parts[0], 0) for _ in range(self.luck.choice((0, 1, 2)))}
                return [(k, self.value(kind.parts[1])) for k in sorted(keys)]
        return self.one(kind)

    def one(self, kind: Kind) -> Value:
        """A primitive value."""
        if kind.name == "decimal":
            precision, scale = kind.digits
            largest = 10**precision - 1
            return Decimal(f"{self.luck.choice((0, 1, -1, largest, -largest))}E-{scale}")
        return self.luck.choice(SPECIAL[kind.name])

    def row(self, fields: Sequence[Field]) -> dict[int, Value]:
        return {f.key: self.value(f.kind) for f in fields}


# --- what readers must find -----------------------------------------------------------------------------------------


def seen(fields: Sequence[Field], row: dict[int, Value]) -> dict[int, Value]:
    """A row that was written earlier, in the columns of today."""
    return {f.key: _seen(f.kind, row[f.key]) if f.key in row else f.default for f in fields}


def _seen(kind: Kind, value: Value) -> Value:
    if value is None:
        return None
    match kind.name:
        case "struct":
            return seen(kind.fields, value)
        case "list":
            return [_seen(kind.parts[0], v) for v in value]
        case "map":
            return [(k, _seen(kind.parts[1], v)) for k, v in value]
    return value


def comparable(kind: Kind, value: Value) -> Value:
    """A value as a hashable one that is equal for equal values: NaN is one value, and -0.0 is not 0.0."""
    if value is None:
        return None
    match kind.name:
        case "struct":
            return tuple(comparable(f.kind, value[f.key]) for f in kind.fields)
        case "list":
            return ("list", *(comparable(kind.parts[0], v) for v in value))
        case "map":
            pairs = [(comparable(kind.parts[0], k), comparable(kind.parts[1], v)) for k, v in value]
            return ("map", *sorted(pairs, key=repr))
        case "float" | "double":
            return "NaN" if value != value else repr(float(value))
        case "decimal":
            return str(Decimal(value).quantize(Decimal(f"1E-{kind.digits[1]}"), context=_EXACT))
    return value


def comparable_row(fields: Sequence[Field], row: dict[int, Value]) -> tuple[Value, ...]:
    return tuple(comparable(f.kind, row[f.key]) for f in fields)


# --- evolution ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Add:
    """Add a field. `into`: a path of names to a struct, or none for a column."""

    into: tuple[str, ...]
    field: Field
    write_default: Value = None


@dataclass(frozen=True)
class Drop:
    path: tuple[str, ...]


@dataclass(frozen=True)
class Rename:
    path: tuple[str, ...]
    name: str


@dataclass(frozen=True)
class Widen:
    path: tuple[str, ...]
    kind: Kind


@dataclass(frozen=True)
class MoveFirst:
    path: tuple[str, ...]


Step = Add | Drop | Rename | Widen | MoveFirst


def steps(maker: Maker, fields: tuple[Field, ...], format_version: int, pinned: frozenset[str]) -> Iterator[Step]:
    """Steps that are possible now. `pinned`: names of columns that stay."""
    for names, kind in places(fields):
        if kind.name == "struct" or not names:
            default = write_default = None
            made = maker.field(1)
            if format_version >= 3 and maker.luck.random() < 0.6:
                made = replace(made, kind=maker.primitive())
                default, write_default = (maker.one(made.kind) for _ in range(2))
                if made.kind.name in ("float", "double") and default != default:
                    default = 2.5  # metadata has no NaN
                if made.kind.name in ("float", "double") and abs(default) == INF:
                    default = -1.5
                if made.kind.name in ("float", "double"):
                    write_default = 1.25
            yield Add(names, replace(made, default=default), write_default)
    for names, kind, siblings in named_fields(fields):
        if len(names) == 1 and names[0] in pinned:
            continue
        yield Rename(names, f"renamed {maker.luck.randint(0, 10**6)}")
        if siblings > 1:
            yield Drop(names)
            yield MoveFirst(names)
        match kind.name:
            case "int":
                yield Widen(names, Kind("long"))
            case "float":
                yield Widen(names, Kind("double"))
            case "decimal" if kind.digits[0] < 30:
                yield Widen(names, Kind("decimal", (kind.digits[0] + 8, kind.digits[1])))


def places(fields: Sequence[Field], within: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Kind]]:
    """Where fields can be added: the table itself, and each struct, with its path in the words of Iceberg."""
    if not within:
        yield (), Kind("struct", fields=tuple(fields))
    for f in fields:
        yield from _places(f.kind, (*within, f.name))


def _places(kind: Kind, at: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Kind]]:
    match kind.name:
        case "struct":
            yield at, kind
            yield from places(kind.fields, at)
        case "list":
            yield from _places(kind.parts[0], (*at, "element"))
        case "map":
            yield from _places(kind.parts[1], (*at, "value"))


def named_fields(fields: Sequence[Field]) -> Iterator[tuple[tuple[str, ...], Kind, int]]:
    """Each field that has a name of its own, and how many there are beside it."""
    for names, kind in places(fields):
        for f in kind.fields:
            yield (*names, f.name), f.kind, len(kind.fields)


def after(fields: tuple[Field, ...], step: Step) -> tuple[Field, ...]:
    """The columns after a step."""
    match step:
        case Add(into, added):
            return _at(fields, into, lambda fs: (*fs, added)) if into else (*fields, added)
        case Drop(path):
            return _at(fields, path[:-1], lambda fs: tuple(f for f in fs if f.name != path[-1]))
        case Rename(path, name):
            return _each(fields, path, lambda f: replace(f, name=name))
        case Widen(path, kind):
            return _each(fields, path, lambda f: replace(f, kind=kind))
        case MoveFirst(path):
            return _at(fields, path[:-1], lambda fs: tuple(sorted(fs, key=lambda f: f.name != path[-1])))


def _each(fields: tuple[Field, ...], path: tuple[str, ...], change: Any) -> tuple[Field, ...]:
    return _at(fields, path[:-1], lambda fs: tuple(change(f) if f.name == path[-1] else f for f in fs))


def _at(fields: tuple[Field, ...], path: tuple[str, ...], change: Any) -> tuple[Field, ...]:
    if not path:
        found: tuple[Field, ...] = change(fields)
        return found
    return tuple(replace(f, kind=_within(f.kind, path[1:], change)) if f.name == path[0] else f for f in fields)


def _within(kind: Kind, path: tuple[str, ...], change: Any) -> Kind:
    match kind.name:
        case "struct":
            return replace(kind, fields=_at(kind.fields, path, change))
        case "list":
            return replace(kind, parts=(_within(kind.parts[0], path[1:], change),))
        case _:
            return replace(kind, parts=(kind.parts[0], _within(kind.parts[1], path[1:], change)))
