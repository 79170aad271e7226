"""Replaces types of columns that PyIceberg does not know, such as `variant` or `geometry`, in the metadata of tables. Pure.

PyIceberg refuses the whole metadata if any schema, also an old one, has such a type. So they become `unknown`, a type of Iceberg
whose values are null, before PyIceberg sees them. The field's comment remembers the type.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

REMEMBERED: Final = "lethe.type: "
"""The beginning of a field's comment that names the type which the field really has."""
# Likewise, of a field that was required. The placeholder is optional, because its values are null.
REMEMBERED_REQUIRED: Final = "lethe.required-type: "
_PLACEHOLDER: Final = "unknown"
_KNOWN: Final = re.compile(
    r"boolean|int|long|float|double|date|time|timestamp|timestamptz|timestamp_ns|timestamptz_ns|string|uuid|binary|unknown"
    r"|fixed\[\d+\]|decimal\(\s*\d+\s*,\s*\d+\s*\)"
)
"""The primitive types that Lethe reads and writes.

Whatever else a schema names is unknown here, also if it is of a later version of Iceberg.
"""
_DEFAULTS: Final = ("initial-default", "write-default")
_WITHOUT_DEFAULTS: Final = ("timestamp_ns", "timestamptz_ns")
"""Types of which PyIceberg reads no default values."""
_TYPE: Final = re.compile(r'"(?:type|element|key|value)"\s*:\s*(?:"([^"\\]*)"|(?=\{))')
"""Metadata names the type of a field, an element, a key or a value in this way."""
_OTHER_WORDS: Final = frozenset({None, "struct", "list", "map", "branch", "tag"})
"""Other values of such names: nested types, and the kinds of refs. Further ones only cost time."""


def known_types_only(text: str) -> str:
    """The text of a table's metadata, or of an answer of a REST catalog with it, with only types that PyIceberg knows.

    Returns the same text if there are no others, or if it is not such a document.
    """
    if not _names_unknown_type(text):
        return text
    try:
        document = json.loads(text)
    except ValueError:
        return text  # the parser says what is wrong
    return json.dumps(document) if replace_unknown_types(document) else text


def replace_unknown_types(document: Any) -> bool:
    """Replace the unknown types in the schemas of a table's metadata, in place.

    Returns:
        Whether there were any.
    """
    if not isinstance(document, dict):
        return False
    metadata = document.get("metadata", document)
    if not isinstance(metadata, dict):
        return False
    schemas = metadata.get("schemas")
    schemas_with_unknown = [
        s for s in (metadata.get("schema"), *(schemas if isinstance(schemas, list) else ())) if _is_struct(s)
    ]
    return sum(_replace_in_struct(schema) for schema in schemas_with_unknown) > 0


def _names_unknown_type(text: str) -> bool:
    """Whether there might be an unknown type. Faster than parsing, and most tables have none."""
    kinds = {found[1] for found in _TYPE.finditer(text)} - _OTHER_WORDS
    has_defaults = any(name in text for name in _DEFAULTS)
    return any(not _KNOWN.fullmatch(kind) or (has_defaults and kind in _WITHOUT_DEFAULTS) for kind in kinds)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, dict) and isinstance(kind.get("fields"), list)


def _replace_in_struct(struct: dict[str, Any]) -> bool:
    return sum(_replace_in_field(f) for f in struct["fields"] if isinstance(f, dict) and "type" in f) > 0


def _replace_in_field(field: dict[str, Any]) -> bool:
    """Replace the type of a field, or of fields in it.

    A list or map of an unknown type is replaced as a whole: only fields have comments.
    """
    kind = field["type"]
    if _is_struct(kind):
        return _replace_in_struct(kind)
    has_default = any(field.get(name) is not None for name in _DEFAULTS)
    if _is_known(kind) and not (has_default and kind in _WITHOUT_DEFAULTS):
        # Structs within lists and maps have fields, too.
        return sum(_replace_in_struct(struct) for struct in _structs_in(kind)) > 0
    field["type"] = _PLACEHOLDER
    field["doc"] = (REMEMBERED_REQUIRED if field.get("required") else REMEMBERED) + _text(kind)
    field["required"] = False
    for name in _DEFAULTS:
        field.pop(name, None)
    return True


def _is_known(kind: Any) -> bool:
    """Whether a type is known but for the fields of structs in it."""
    if isinstance(kind, str):
        return _KNOWN.fullmatch(kind) is not None
    if not isinstance(kind, dict):
        return False
    match kind.get("type"):
        case "struct":
            return _is_struct(kind)
        case "list":
            return _is_known(kind.get("element"))
        case "map":
            return _is_known(kind.get("key")) and _is_known(kind.get("value"))
    return False


def _structs_in(kind: Any) -> Iterator[dict[str, Any]]:
    if _is_struct(kind):
        yield kind
    elif isinstance(kind, dict):
        for part in ("element", "key", "value"):
            yield from _structs_in(kind.get(part))


def _text(kind: Any) -> str:
    """The type as Iceberg's messages write it."""
    if not isinstance(kind, Mapping):
        return str(kind)
    match kind.get("type"):
        case "list":
            return f"list<{_text(kind.get('element'))}>"
        case "map":
            return f"map<{_text(kind.get('key'))}, {_text(kind.get('value'))}>"
    return str(kind.get("type"))
