"""Objects as rows, with the columns that their definition names (additionalPrinterColumns). Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from lethe_local.api.kinds import Kind

_PART: Final = re.compile(r"\.(\w+)|\[(\d+)\]|\[\?\(@\.(\w+)==\"([^\"]*)\"\)\]")
# Cells are text already.
_TABLE_TYPES: Final = {"date": "string", "integer": "string"}
_AGE: Final = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}


@dataclass(frozen=True)
class Rows:
    """A table of objects."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: frozenset[str]  # headers of numbers


def rows_of(kind: Kind, objects: Iterable[Mapping[str, Any]], now: datetime, wide: bool = False) -> Rows:
    """The name of each object, and its columns.

    Args:
        wide: Whether columns with a priority above 0 are shown.
    """
    columns = kind.definition.columns if kind.definition is not None else (_AGE,)
    shown = [c for c in columns if wide or not c.get("priority")]
    rows = [[o["metadata"]["name"], *(_cell(c, o, now) for c in shown)] for o in objects]
    headers = ["NAME", *(c["name"].upper() for c in shown)]
    return Rows(headers, rows, frozenset(c["name"].upper() for c in shown if c["type"] == "integer"))


def table_of(
    kind: Kind, objects: Sequence[Mapping[str, Any]], metadata: Mapping[str, Any], now: datetime
) -> dict[str, Any]:
    """The objects as a Table of meta.k8s.io, which kubectl asks for.

    Args:
        metadata: Of the list.
    """
    columns = kind.definition.columns if kind.definition is not None else (_AGE,)
    plain = {"format": "", "description": "", "priority": 0}
    shown = [{**plain, **c, "type": _TABLE_TYPES.get(c["type"], c["type"])} for c in columns]
    of_all = {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata"}
    rows = zip(rows_of(kind, objects, now, wide=True).rows, objects, strict=True)
    return {
        "apiVersion": "meta.k8s.io/v1",
        "kind": "Table",
        "metadata": metadata,
        "columnDefinitions": [
            {**plain, "name": "Name", "type": "string", "format": "name"},
            *({k: v for k, v in c.items() if k != "jsonPath"} for c in shown),
        ],
        "rows": [{"cells": cells, "object": {**of_all, "metadata": o["metadata"]}} for cells, o in rows],
    }


def value_at(document: Any, path: str) -> Any:
    """The value at a JSONPath of the kinds `.a.b`, `[0]` and `[?(@.type=="Ready")]`; None: there is none."""
    value = document
    for name, index, key, wanted in _PART.findall(path):
        if name:
            value = value.get(name) if isinstance(value, Mapping) else None
        elif index:
            value = value[int(index)] if isinstance(value, list) and int(index) < len(value) else None
        else:
            value = next((v for v in value or () if v.get(key) == wanted), None)
    return value


def age(since: datetime, now: datetime) -> str:
    """How long ago something was, as kubectl shows it: 45s, 12m, 3h, 9d."""
    seconds = max(int((now - since) / timedelta(seconds=1)), 0)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _cell(column: Mapping[str, Any], document: Mapping[str, Any], now: datetime) -> str:
    value = value_at(document, column["jsonPath"])
    if value is None:
        return ""
    return age(datetime.fromisoformat(value), now) if column["type"] == "date" else str(value)
