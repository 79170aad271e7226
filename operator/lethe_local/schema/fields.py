"""Unknown fields and defaults of a document, by its structural schema. Pure."""

import copy
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

Json = Mapping[str, Any]
# The API server knows these fields of every object; a schema does not describe them.
_OF_ALL = frozenset({"apiVersion", "kind", "metadata"})


def unknown_fields(schema: Json, document: Json) -> list[str]:
    """The paths of fields that the schema does not have, each with the name of a similar field, if there is one."""
    body = {k: v for k, v in document.items() if k not in _OF_ALL}
    return list(_unknown(schema, body, ""))


def _unknown(schema: Json, value: Any, path: str) -> Iterator[str]:
    if isinstance(value, list):
        for n, item in enumerate(value):
            yield from _unknown(schema.get("items") or {}, item, f"{path}[{n}]")
        return
    if not isinstance(value, Mapping) or schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    known, rest = schema.get("properties") or {}, schema.get("additionalProperties")
    for name, inner in value.items():
        inside = f"{path}.{name}".removeprefix(".")
        if name in known:
            yield from _unknown(known[name], inner, inside)
        elif isinstance(rest, Mapping):
            yield from _unknown(rest, inner, inside)
        elif known or not rest:
            similar = get_close_matches(name, known, n=1)
            yield f'unknown field "{inside}"' + (f' (did you mean "{similar[0]}"?)' if similar else "")


def defaulted(schema: Json, value: Any) -> Any:
    """A copy of a value with the defaults of its schema. A null of a field with a default becomes the default."""
    if isinstance(value, list):
        return [defaulted(schema.get("items") or {}, item) for item in value]
    if not isinstance(value, Mapping):
        return value
    known, rest = schema.get("properties") or {}, schema.get("additionalProperties")
    found: dict[str, Any] = {}
    for name, inner in value.items():
        of = known.get(name) or (rest if isinstance(rest, Mapping) else {})
        if inner is None and not of.get("nullable"):
            if "default" in of:
                continue  # it is set below
            if name in known:
                continue  # the API server drops it
        found[name] = defaulted(of, inner)
    for name, of in known.items():
        if name not in found and "default" in of:
            found[name] = defaulted(of, copy.deepcopy(of["default"]))
    return found
