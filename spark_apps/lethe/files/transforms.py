"""Parses the definition of a new table in a Dataset: partition fields and properties. Pure.

A partition field is one transform of Iceberg over one column.

    field      = column | transform "(" column ")" | sized "(" number "," column ")"
    transform  = identity | year | years | month | months | day | days | hour | hours       in upper or lower case
    sized      = bucket | truncate
    column     = part { "." part }                                                          the parts of a nested column
    part       = letters, digits and underscores, or anything between backticks; a backtick is written twice

Nothing else is a field: no comment, no string, no other text.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from lethe.base.errors import InputError
from lethe.contract.settings import COLUMN_PATTERN, PART_PATTERN, WIDTH_PATTERN

RESERVED: Final = frozenset({"location", "provider", "owner", "external", "is_managed_location"})
"""Spark reserves these for the clauses of its statements. As table properties they have no effect."""
_SINGULAR: Final = {"year": "years", "month": "months", "day": "days", "hour": "hours"}

_FIELD: Final = re.compile(
    rf"(?:(?P<plain>{COLUMN_PATTERN})"
    rf"|(?P<name>[A-Za-z]+) *\( *(?P<of>{COLUMN_PATTERN}) *\)"
    rf"|(?P<sized>[A-Za-z]+) *\( *(?P<number>{WIDTH_PATTERN}) *, *(?P<sized_of>{COLUMN_PATTERN}) *\))",
    re.DOTALL,
)


class TransformKind(StrEnum):
    """Iceberg's transforms by which a Dataset may partition a new table. `parse_transform` also reads the singular."""

    IDENTITY = "identity"
    YEARS = "years"
    MONTHS = "months"
    DAYS = "days"
    HOURS = "hours"
    BUCKET = "bucket"
    TRUNCATE = "truncate"


@dataclass(frozen=True)
class Transform:
    """One partition field: a transform over one column of the table, which may be nested."""

    kind: TransformKind
    column: tuple[str, ...]
    """The parts of its name, from the outermost."""
    number: int | None = None
    """The number of buckets, or the width of a truncation; None: the kind has none."""


_SIZED: Final = (TransformKind.BUCKET, TransformKind.TRUNCATE)


def parse_transform(text: str) -> Transform:
    """Read one partition field.

    Raises:
        InputError: `InvalidTableDefinition`, which quotes the field.
    """
    match = _FIELD.fullmatch(text.strip(" "))
    if match is None:
        raise _invalid(text)
    if match["plain"]:
        return Transform(TransformKind.IDENTITY, _parts(match["plain"]))
    name = (match["name"] or match["sized"]).lower()
    try:
        kind = TransformKind(_SINGULAR.get(name, name))
    except ValueError:
        raise _invalid(text) from None
    if (kind in _SIZED) is not (match["number"] is not None):
        raise _invalid(text)
    if match["number"] is not None:
        return Transform(kind, _parts(match["sized_of"]), int(match["number"]))
    return Transform(kind, _parts(match["of"]))


def _parts(column: str) -> tuple[str, ...]:
    parts = re.findall(PART_PATTERN, column, re.DOTALL)
    return tuple(p[1:-1].replace("``", "`") if p.startswith("`") else p for p in parts)


def _invalid(text: str) -> InputError:
    return InputError(
        "InvalidTableDefinition",
        f"spec.table.create.partitionBy: {text[:100]!r} is not a partition field. Expected a column; identity, years, months, "
        "days or hours of a column; bucket(16, column); or truncate(4, column). Put a column name with characters other "
        "than letters, digits and underscores between backticks.",
    )


def parse_transforms(texts: Iterable[str]) -> tuple[Transform, ...]:
    """Parse partition fields.

    Raises:
        InputError: `InvalidTableDefinition`, for the first invalid one.
    """
    return tuple(parse_transform(t) for t in texts)


def check_properties(properties: Mapping[str, str]) -> None:
    """Check the properties of a new table.

    Raises:
        InputError: `InvalidTableDefinition`, for a property that would have no effect.
    """
    reserved = sorted(RESERVED & properties.keys())
    if reserved:
        raise InputError(
            "InvalidTableDefinition",
            f"spec.table.create.properties: {', '.join(reserved)} cannot be set. The catalog chooses the table's location; leave "
            "the property out.",
        )
