"""The value of the annotation lethe.dev/vacuum-now: any words, of which some may name batches. Pure.

The operator acts on each value once. A new vacuum needs a new value, such as the current time.
"""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

BATCHES: Final = "batches="
IDS_AT_MOST: Final = 1000
VALUE_AT_MOST: Final = 200  # characters of the value in the status
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


class InvalidVacuumNow(ValueError):
    """The list of batches in the value is not valid."""


@dataclass(frozen=True)
class VacuumNow:
    value: str
    batch_ids: tuple[str, ...] = ()  # purge only the rows of these batches; empty: of all tombstones


def parse_vacuum_now(value: str) -> VacuumNow:
    """Parse a value. `2026-03-01 batches=a,b%2Cc` names the batches `a` and `b,c`. Raises: InvalidVacuumNow."""
    lists = [word.removeprefix(BATCHES) for word in value.split() if word.startswith(BATCHES)]
    if not lists:
        return VacuumNow(value)
    ids = tuple(dict.fromkeys(_decoded(i) for part in lists for i in part.split(",")))
    if "" in ids:
        raise InvalidVacuumNow(f"{BATCHES} takes batch ids separated by commas, and one of them is empty")
    if len(ids) > IDS_AT_MOST:
        raise InvalidVacuumNow(f"{BATCHES} names {len(ids)} batches, at most {IDS_AT_MOST} are allowed")
    return VacuumNow(value, ids)


def _decoded(text: str) -> str:
    if _BAD_ESCAPE.search(text):
        raise InvalidVacuumNow(f"{text!r} has a % without two hexadecimal digits after it; write %25 for a %")
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise InvalidVacuumNow(f"{text!r} is not percent-encoded UTF-8") from None
