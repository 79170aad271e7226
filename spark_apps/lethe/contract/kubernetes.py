"""Kubernetes quantities as numbers, and the names that Lethe's resources have in the API. Pure."""

import math
import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation, Overflow
from typing import Annotated, Any, Final

from pydantic import BeforeValidator

from lethe.contract.schema import INT_OR_STRING, Rule, entries, length

GROUP: Final = "lethe.dev"
VERSION: Final = "v1beta1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

# Annotations that users set.
PAUSED: Final = "lethe.dev/paused"
VACUUM_NOW: Final = "lethe.dev/vacuum-now"
APPROVE: Final = "lethe.dev/approve"
ACCEPT_HEAD: Final = "lethe.dev/accept-head"
REQUESTED_BY: Final = "lethe.dev/requested-by"
"""Who created a Restatement."""
REQUESTED_BY_GROUPS: Final = "lethe.dev/requested-by-groups"
"""The groups of that user: a JSON list without spaces, in the order of the API server."""
USER_ANNOTATIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "Dataset": (PAUSED, VACUUM_NOW, APPROVE, ACCEPT_HEAD),
    "Restatement": (REQUESTED_BY, REQUESTED_BY_GROUPS),
}
"""By kind."""

MIB: Final = 1024 * 1024
GIB: Final = 1024 * MIB
_SUFFIXES: Final = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}
_QUANTITY: Final = re.compile(
    rf"([+-]?)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:([eE][+-]?[0-9]+)|({'|'.join(_SUFFIXES)}))", re.ASCII
)
_LARGEST: Final = Decimal(2**63 - 1)


def parse_quantity(text: Any) -> Decimal:
    """Parse a number, or a text such as `128Mi`, `500m` or `1e3`, as Kubernetes does: more than its largest is its largest.

    Raises:
        ValueError: The message quotes the text.
    """
    if isinstance(text, int | float):
        return Decimal(str(text))
    found = _QUANTITY.fullmatch(str(text))
    if found is None:
        raise ValueError(f"{text!r} is not a quantity; expected one such as 128Mi or 500m")
    sign, number, exponent, suffix = found.groups(default="")
    try:
        size = Decimal(number + exponent) * _SUFFIXES[suffix]
    except (InvalidOperation, Overflow):  # the exponent has many digits
        size = Decimal(0) if "-" in exponent else _LARGEST
    return min(size, _LARGEST) * (-1 if sign == "-" else 1)


def parse_bytes(text: Any) -> int:
    """The quantity in whole bytes, rounded up.

    Raises:
        ValueError: It is not a quantity. The message quotes the text.
    """
    return math.ceil(parse_quantity(text))


def written(size: int) -> str:
    """A size in bytes for messages, such as `12Mi` or `1.5Gi`."""
    value, suffix = float(size), ""
    for larger in ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"):
        if value < 1024:
            break
        value, suffix = value / 1024, larger
    return f"{value:.1f}".removesuffix(".0") + suffix


ObjectName = Annotated[str, length(1, 253, pattern="^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
Uri = Annotated[str, length(1, 1024, pattern="^[a-z][a-z0-9+.-]*:/.+")]
Labels = Annotated[Mapping[str, Annotated[str, length(maximum=63)]], entries(64)]
Bytes = Annotated[int, BeforeValidator(parse_bytes), INT_OR_STRING]
Cpus = Annotated[float, BeforeValidator(lambda v: float(parse_quantity(v))), INT_OR_STRING]


def above_zero(example: str) -> Rule:
    """The rule of a quantity that cannot be 0 or less.

    Args:
        example: A quantity for the message, such as 128Mi.
    """
    return Rule(
        "type(self) == int ? self > 0 : isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))",
        f"must be a quantity greater than 0, such as {example}",
    )
