"""Label selectors of requests: `a=b,c!=d,e,!f,g in (x,y)`. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

_SET: Final = re.compile(r"\s*(\S+)\s+(in|notin)\s+\(([^)]*)\)\s*")
_COMMA: Final = re.compile(r",(?![^(]*\))")


def matches(selector: str, labels: Mapping[str, str]) -> bool:
    """Whether labels match all parts of a selector. An empty one matches everything."""
    return all(_matches(part, labels) for part in _parts(selector))


def _parts(selector: str) -> Iterator[str]:
    return (p.strip() for p in _COMMA.split(selector) if p.strip())


def _matches(part: str, labels: Mapping[str, str]) -> bool:
    if found := _SET.fullmatch(part):
        key, operator, values = found.groups()
        is_in = key in labels and labels[key] in {v.strip() for v in values.split(",")}
        return is_in if operator == "in" else not is_in
    if "!=" in part:
        key, _, value = part.partition("!=")
        return labels.get(key.strip()) != value.strip()
    if "=" in part:
        key, _, value = part.partition("=")
        return labels.get(key.strip()) == value.lstrip("=").strip()
    return part[1:].strip() not in labels if part.startswith("!") else part in labels
