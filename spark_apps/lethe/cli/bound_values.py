"""Encodes values as the bounds of columns in manifests have them. Pure.

A manifest has the least and the greatest value of each column of a file, as bytes of a form that depends on the column's type. So
a number or a date has no text there.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

from pyiceberg.conversions import to_bytes
from pyiceberg.expressions.literals import StringLiteral
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampType,
)

# Types that a column may have had before it was widened, besides those in the table's schemas.
_NARROWER: Final[Mapping[type[PrimitiveType], PrimitiveType]] = {
    LongType: IntegerType(),
    DoubleType: FloatType(),
    TimestampType: DateType(),
}


def bound_values(texts: Iterable[str], schemas: Iterable[Schema]) -> dict[int, frozenset[bytes]]:
    """By field id, the values as bounds have them. Only of fields whose type has such values.

    Args:
        texts: The values, as a person writes them.
        schemas: All schemas of the table.
    """
    types: dict[int, set[PrimitiveType]] = {}
    for schema in schemas:
        for i, of_field in index_by_id(schema).items():
            if isinstance(of_field.field_type, PrimitiveType):
                narrower = _NARROWER.get(type(of_field.field_type))
                types.setdefault(i, set()).update(t for t in (of_field.field_type, narrower) if t is not None)
    known = tuple(texts)
    of_type = {
        t: frozenset(_encoded(known, t)) for t in {t for bytes_by_field in types.values() for t in bytes_by_field}
    }
    bytes_by_field = {i: frozenset[bytes]().union(*(of_type[t] for t in of_field)) for i, of_field in types.items()}
    return {i: values for i, values in bytes_by_field.items() if values}


def _encoded(texts: Iterable[str], kind: PrimitiveType) -> Iterator[bytes]:
    for text in texts:
        try:
            yield to_bytes(kind, _value(text, kind))
        except (ValueError, TypeError, ArithmeticError, NotImplementedError, struct.error):
            continue  # the type has no such value


def _value(text: str, kind: PrimitiveType) -> Any:
    if isinstance(kind, StringType):
        return text
    if isinstance(kind, BooleanType):
        raise TypeError  # each column of this type has such bounds
    if isinstance(kind, (IntegerType, LongType)):
        return int(text)
    if isinstance(kind, DecimalType):
        exact = Decimal(text)
        scaled = exact.quantize(Decimal((0, (1,), -kind.scale)))
        if scaled != exact:
            raise ValueError
        return scaled
    return StringLiteral(text).to(kind).value
