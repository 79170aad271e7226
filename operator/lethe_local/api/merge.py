"""Merge patches. Pure."""

from collections.abc import Mapping
from typing import Any


def merged(old: Any, patch: Any) -> Any:
    """The result of a JSON merge patch (RFC 7396): null removes, lists are replaced."""
    if not isinstance(patch, Mapping):
        return patch
    found = dict(old) if isinstance(old, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), value)
    return found
