"""What users were promised about the API: dev/api.json has every field of its version, and what a field may not become. Pure.

docs/api-versions.md has the promise in words. `make generate` adds new fields and wider limits to the file, and nothing else: a
test fails on a change that breaks the promise. It does not compare rules in CEL.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

Field = Mapping[str, Any]
Fields = Mapping[str, Field]
"""By path, such as `Dataset.spec.buffer.uri`. `[]` is an item of a list, `{}` a value of a map."""

KINDS_OF_LISTS: Final = ("x-kubernetes-list-type", "x-kubernetes-list-map-keys")
AT_LEAST: Final = ("minimum", "minLength", "minItems")
AT_MOST: Final = ("maximum", "maxLength", "maxItems", "maxProperties")
KEPT: Final = ("type", "format", "enum", "default", "pattern", *AT_LEAST, *AT_MOST, *KINDS_OF_LISTS)
RELEASES: Final = 2
"""A deprecated field is served in so many minor releases after the one that deprecated it."""

DEPRECATED: Final = re.compile(r"Deprecated since (\d+)\.(\d+): ")


def fields_of(kind: str, schema: Mapping[str, Any]) -> dict[str, Field]:
    """The fields of a resource below `spec` and `status`.

    Args:
        schema: Of the whole resource, as in its definition.
    """
    found: dict[str, Field] = {}
    for part in ("spec", "status"):
        if part in schema["properties"]:
            found |= _below(f"{kind}.{part}", schema["properties"][part], part in schema.get("required", ()))
    return found


def _below(path: str, schema: Mapping[str, Any], required: bool) -> Iterator[tuple[str, Field]]:
    field = {name: schema[name] for name in KEPT if name in schema} | ({"required": True} if required else {})
    if deprecated := DEPRECATED.match(schema.get("description", "")):
        field["deprecated"] = f"{deprecated[1]}.{deprecated[2]}"
    yield path, field
    for name, inner in schema.get("properties", {}).items():
        yield from _below(f"{path}.{name}", inner, name in schema.get("required", ()))
    if isinstance(schema.get("items"), Mapping):
        yield from _below(f"{path}[]", schema["items"], required=False)
    if isinstance(schema.get("additionalProperties"), Mapping):
        yield from _below(f"{path}{{}}", schema["additionalProperties"], required=False)


def broken(promised: Fields, now: Fields, version: str) -> dict[str, str]:
    """Which fields break the promise, each with the reason.

    Args:
        promised: The fields of the last release, as in dev/api.json.
        now: The fields of this code.
        version: Of this code, such as `0.3.1`.
    """
    found = {path: _breach(path, field, now.get(path), version) for path, field in promised.items()}
    for path, field in now.items():
        if path not in promised and field.get("required") and path.rpartition(".")[0] in promised and _is_spec(path):
            found[path] = "is new and required: objects without it would be refused"
    return {path: why for path, why in found.items() if why}


def promised_next(promised: Fields, now: Fields, version: str) -> dict[str, Field]:
    """The fields to promise from now on: those of this code, except where it breaks a promise that was given."""
    breaches = broken(promised, now, version)
    kept = {path: field for path, field in promised.items() if path in breaches}
    return dict(sorted({**{path: field for path, field in now.items() if path not in breaches}, **kept}.items()))


def _breach(path: str, before: Field, after: Field | None, version: str) -> str:
    """Why a field breaks the promise; "": it keeps it."""
    if after is None:
        since = before.get("deprecated", "")
        if since and _minor(version) >= _minor(since) + RELEASES:
            return ""
        return f"is gone. First deprecate it: begin its docstring with 'Deprecated since {version}: '"
    for name in ("type", "format", *KINDS_OF_LISTS):
        if before.get(name) != after.get(name):
            return f"had {name} {before.get(name)}, and has {after.get(name)}"
    if not _is_spec(path):
        return ""
    if before.get("default") != after.get("default"):
        return f"had the default {before.get('default')}, and has {after.get('default')}"
    if after.get("required") and not before.get("required"):
        return "is required now"
    if "enum" in after and (lost := [v for v in before.get("enum", ()) if v not in after["enum"]]):
        return f"does not allow {', '.join(map(str, lost))} any more"
    if after.get("pattern") not in (before.get("pattern"), None):
        return "has another pattern"
    if "enum" in after and "enum" not in before:
        return "allows only some values now"
    for names, is_narrower in ((AT_LEAST, _is_above), (AT_MOST, _is_below)):
        for name in names:
            if name in after and is_narrower(after[name], before.get(name)):
                return f"had {name} {before.get(name)}, and has {after[name]}"
    return ""


def _is_above(limit: float, before: float | None) -> bool:
    return before is None or limit > before


def _is_below(limit: float, before: float | None) -> bool:
    return before is None or limit < before


def _is_spec(path: str) -> bool:
    return ".spec" in path


def _minor(version: str) -> int:
    """The number of a minor release. Those before 1.0 and after it are counted together."""
    major, minor = version.split(".")[:2]
    return 1000 * int(major) + int(minor)
