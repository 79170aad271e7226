"""Admits a document of a resource definition, or says what is wrong with it, as the Kubernetes API server does. Pure."""

import re
from collections.abc import Mapping
from typing import Any, Final

from lethe_local.schema.definition import Definition
from lethe_local.schema.fields import defaulted, unknown_fields
from lethe_local.schema.problems import problems
from lethe_local.schema.rules import broken_rules

Json = Mapping[str, Any]
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_UNCHECKED: Final = (
    '<nil>: Invalid value: "null": some validation rules were not checked because the object was invalid; correct the existing '
    "errors to complete validation"
)


class Invalid(Exception):
    """The document breaks the definition: status 422."""


class Undecodable(Exception):
    """The document has fields that the definition does not have: status 400."""


def admitted(definition: Definition, document: Json, old: Json | None = None, strict: bool = True) -> dict[str, Any]:
    """The document with defaults.

    Args:
        old: The stored document; None: the document is new.
        strict: Whether unknown fields are an error, as with kubectl; otherwise they stay.
    Raises: Invalid, Undecodable; the messages list all problems.
    """
    if strict:
        require_known_fields(definition, document)
    complete: dict[str, Any] = defaulted(definition.schema, document)
    found = [*_of_name(complete), *problems(definition.schema, complete)]
    if found:
        found.append(_UNCHECKED)
    else:
        found = broken_rules(definition.schema, complete, old)
    if found:
        listed = found[0] if len(found) == 1 else f"[{', '.join(found)}]"
        name = complete["metadata"].get("name")
        raise Invalid(f'{definition.kind}.{definition.group} "{name}" is invalid: {listed}')
    return complete


def require_known_fields(definition: Definition, document: Json) -> None:
    """Raises: Undecodable; the message lists all fields that the definition does not have."""
    unknown = unknown_fields(definition.schema, document)
    if unknown:
        kind, version = definition.kind, definition.version
        raise Undecodable(
            f'{kind} in version "{version}" cannot be handled as a {kind}: strict decoding error: {", ".join(unknown)}'
        )


def _of_name(document: Json) -> list[str]:
    name = str((document.get("metadata") or {}).get("name") or "")
    if not name:
        return ["metadata.name: Required value: name or generateName is required"]
    if len(name) > 253 or _NAME.fullmatch(name) is None:
        return [
            f'metadata.name: Invalid value: "{name}": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric '
            "characters, '-' or '.', and must start and end with an alphanumeric character"
        ]
    return []
