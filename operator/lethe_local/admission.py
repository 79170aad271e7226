"""Admits a document of a resource definition, or says what is wrong with it, in the words of the Kubernetes API server. Pure.

It reads of a definition (CRD) what says which documents are valid. The OpenAPI part of the schema gives types, defaults and
unknown fields. CEL rules (x-kubernetes-validations) are evaluated as the API server does: one that names `oldSelf` applies only
to an update, and only where the old document has a value at the same path.
"""

import copy
import json
import re
from calendar import monthrange
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import celpy
from celpy import celtypes
from celpy.adapter import json_to_cel
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend
from lethe.base import names
from lethe.contract.kubernetes import GROUP, USER_ANNOTATIONS, parse_quantity

Json = Mapping[str, Any]


def problems(schema: Json, document: Json) -> list[str]:
    """All problems of a document with defaults, ordered by path."""
    errors = sorted(_Validator(schema).iter_errors(document), key=lambda e: [str(p) for p in e.absolute_path])
    return [text for error in errors for text in _texts(error)]


def _of_list_type(_: Any, kind: str, value: Any, schema: Json) -> Iterator[ValidationError]:
    if not isinstance(value, list) or kind not in ("set", "map"):
        return
    keys = schema.get("x-kubernetes-list-map-keys") or ()
    seen: list[Any] = []
    for n, item in enumerate(value):
        identity = {k: item.get(k) for k in keys} if kind == "map" and isinstance(item, Mapping) else item
        if identity in seen:
            yield ValidationError(f"Duplicate value: {_shown(identity)}", path=[n], validator="duplicate")
        seen.append(identity)


def _of_int_or_string(_: Any, wanted: bool, value: Any, __: Json) -> Iterator[ValidationError]:
    if wanted and (isinstance(value, bool) or not isinstance(value, int | str)):
        yield ValidationError("must be an integer or a string", validator="int-or-string", instance=value)


def _of_pattern(_: Any, pattern: str, value: Any, __: Json) -> Iterator[ValidationError]:
    """As the API server reads it: classes such as that of blanks are of ASCII, and a line break is part of the text."""
    if not isinstance(value, str):
        return
    match = re.search(pattern, value, re.ASCII)
    if match is None or (pattern.endswith("$") and match.end() < len(value)):
        yield ValidationError("does not match", validator="pattern", instance=value, validator_value=pattern)


_DATE_TIME: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[tT ]([0-9]{2}):([0-9]{2}):([0-9]{2})(\.[0-9]+)?([zZ]|[+-][0-9]{2}:[0-9]{2})"
)
_LEAP_YEAR: Final = 4  # as the year 0, which Python does not have


def _of_format(_: Any, name: str, value: Any, __: Json) -> Iterator[ValidationError]:
    """Of the formats that Lethe's schemas have, those of numbers have limits of their own."""
    if name == "date-time" and isinstance(value, str) and not _is_date_time(value):
        yield ValidationError("is no time", validator="format", instance=value, validator_value=name)


def _is_date_time(text: str) -> bool:
    found = _DATE_TIME.fullmatch(text)
    if found is None:
        return False
    year, month, day, hour, minute, second = (int(number) for number in found.groups()[:6])
    is_date = 1 <= month <= 12 and 1 <= day <= monthrange(year or _LEAP_YEAR, month)[1]
    return is_date and hour < 24 and minute < 60 and second < 60


_Validator = extend(
    Draft202012Validator,
    {
        "format": _of_format,
        "pattern": _of_pattern,
        "x-kubernetes-list-type": _of_list_type,
        "x-kubernetes-int-or-string": _of_int_or_string,
    },
)


def _texts(error: ValidationError) -> list[str]:
    path, value, wanted = path_of(error.absolute_path), error.instance, error.validator_value
    body = f"{path} in body"
    match error.validator:
        case "required":
            missing = [name for name in wanted if name not in value]
            # jsonschema reports each missing field by itself
            name = next(n for n in missing if repr(n) in error.message)
            return [f"{path}.{name}".removeprefix(".") + ": Required value"]
        case "enum":
            return [f"{path}: Unsupported value: {_shown(value)}: supported values: {', '.join(map(_shown, wanted))}"]
        case "pattern":
            return [f"{path}: Invalid value: {_shown(value)}: {body} should match '{wanted}'"]
        case "format":
            return [f"{path}: Invalid value: {_shown(value)}: {body} must be of type {wanted}: {_shown(value)}"]
        case "minimum":
            return [f"{path}: Invalid value: {_shown(value)}: {body} should be greater than or equal to {wanted}"]
        case "maximum":
            return [f"{path}: Invalid value: {_shown(value)}: {body} should be less than or equal to {wanted}"]
        case "minLength":
            return [f"{path}: Invalid value: {_shown(value)}: {body} should be at least {wanted} chars long"]
        case "maxLength":
            return [f"{path}: Too long: may not be more than {wanted} bytes"]
        case "minItems":
            return [f"{path}: Invalid value: {len(value)}: {body} should have at least {wanted} items"]
        case "maxItems":
            return [f"{path}: Too many: {len(value)}: must have at most {wanted} items"]
        case "maxProperties":
            return [f"{path}: Too many: {len(value)}: must have at most {wanted} items"]
        case "type":
            return [
                f"{path}: Invalid value: {_shown(_type(value))}: {body} must be of type {wanted}: {_shown(_type(value))}"
            ]
        case "duplicate":
            return [f"{path}: {error.message}"]
        case _:
            return [f"{path}: Invalid value: {_shown(value)}: {error.message}"]


def path_of(parts: Any) -> str:
    """A path as the API server writes it: spec.batchIds[0]."""
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


_MISSING = object()


def broken_rules(schema: Json, document: Json, old: Json | None) -> list[str]:
    """The problems that the rules find in a valid document.

    Args:
        old: The stored document; None: the document is new.
    """
    return list(_walk(schema, document, _MISSING if old is None else old, []))


def _walk(schema: Json, value: Any, old: Any, path: list[str | int]) -> Iterator[str]:
    if value == old:  # the rules held when it was stored, and those that compare forbid changes
        return
    for rule in schema.get("x-kubernetes-validations") or ():
        compares = re.search(r"\boldSelf\b", rule["rule"]) is not None
        if (compares and old is _MISSING) or _holds(rule["rule"], value, old if compares else None):
            continue
        where = (path_of(path) + rule.get("fieldPath", "")).removeprefix(".") or "<nil>"
        yield f"{where}: Invalid value: {_shown_rule(value)}: {rule.get('message') or 'failed rule: ' + rule['rule']}"
    if isinstance(value, list):
        items = schema.get("items") or {}
        for n, item in enumerate(value):
            yield from _walk(items, item, _same_item(schema, item, old), [*path, n])
    elif isinstance(value, Mapping):
        known, rest = schema.get("properties") or {}, schema.get("additionalProperties")
        for name, inner in value.items():
            of = known.get(name) or (rest if isinstance(rest, Mapping) else None)
            if of is not None:
                before = old.get(name, _MISSING) if isinstance(old, Mapping) else _MISSING
                yield from _walk(of, inner, before, [*path, name])


def _shown_rule(value: Any) -> str:
    """As the API server shows a value that a rule rejects: only the type of objects and lists."""
    return '"object"' if isinstance(value, Mapping) else '"array"' if isinstance(value, list) else json.dumps(value)


def _same_item(schema: Json, item: Any, old: Any) -> Any:
    """The item with the same keys in the old list. Items of other lists than maps have no earlier value."""
    keys = schema.get("x-kubernetes-list-map-keys")
    if not keys or not isinstance(old, list) or not isinstance(item, Mapping):
        return _MISSING
    return next((o for o in old if all(o.get(k) == item.get(k) for k in keys)), _MISSING)


def _holds(rule: str, value: Any, old: Any) -> bool:
    variables = {"self": json_to_cel(value), "oldSelf": json_to_cel(old)}
    try:
        return bool(_program(rule).evaluate(variables))
    except celpy.CELEvalError:
        return False


@cache
def _program(rule: str) -> celpy.Runner:
    environment = celpy.Environment()
    functions: dict[str, Any] = {"isQuantity": _is_quantity, "quantity": _quantity, "isGreaterThan": _is_greater_than}
    return environment.program(environment.compile(rule), functions=functions)


def _is_quantity(text: celtypes.StringType) -> celtypes.BoolType:
    try:
        parse_quantity(str(text))
    except ValueError:
        return celtypes.BoolType(False)
    return celtypes.BoolType(True)


def _quantity(text: celtypes.StringType) -> celtypes.DoubleType:
    return celtypes.DoubleType(float(parse_quantity(str(text))))


def _is_greater_than(one: celtypes.DoubleType, other: celtypes.DoubleType) -> celtypes.BoolType:
    return celtypes.BoolType(one > other)


# The API server knows these fields of every object; a schema does not describe them.
_OF_ALL = frozenset({"apiVersion", "kind", "metadata"})
_METADATA: Final = (
    "annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers", "generateName",
    "generation", "labels", "managedFields", "name", "namespace", "ownerReferences", "resourceVersion", "selfLink", "uid",
)  # fmt: skip


def unknown_fields(schema: Json, document: Json) -> list[str]:
    """The paths of fields that the schema does not have, each with the name of a similar field, if there is one."""
    metadata = document.get("metadata")
    of_metadata = metadata if isinstance(metadata, Mapping) else {}
    unknown = [names.unknown("field", str(n), _METADATA, "metadata.") for n in of_metadata if n not in _METADATA]
    body = {k: v for k, v in document.items() if k not in _OF_ALL}
    return [*unknown, *_unknown(schema, body, "")]


_NAME_PART: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_DOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.IGNORECASE)
_MARK: Final = re.compile(rf"([^/]+/)?{_NAME_PART.pattern}")


def problem_of_mark(key: str, value: str) -> str:
    """What is wrong with the key of a label or an annotation, or with the value of a label; "": nothing."""
    domain, slash, _ = key.rpartition("/")
    if _MARK.fullmatch(key) is None or len(domain) > 253 or (slash and _DOMAIN.fullmatch(domain) is None):
        return (
            f'"{key}": a key has at most 63 characters, alphanumeric or one of -_., after a domain and a slash if any'
        )
    if value and _NAME_PART.fullmatch(value) is None:
        return f'"{value}": the value of a label has at most 63 characters, alphanumeric or one of -_.'
    return ""


def unknown_annotations(kind: str, document: Json) -> list[str]:
    """The annotations of Lethe that resources of a kind do not have. The API server accepts them, and nothing reads them."""
    annotations = (document.get("metadata") or {}).get("annotations") or {}
    known = USER_ANNOTATIONS.get(kind, ())
    return [
        names.unknown("annotation", name, known)
        for name in annotations
        if str(name).startswith(f"{GROUP}/") and name not in known
    ]


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
            yield names.unknown("field", str(name), known, inside.removesuffix(str(name)))


def defaulted(schema: Json, value: Any) -> Any:
    """A copy of a value with the defaults of its schema. A null of a field with a default becomes the default."""
    if isinstance(value, list):
        return [defaulted(schema.get("items") or {}, item) for item in value]
    if not isinstance(value, Mapping):
        return value
    known, rest = schema.get("properties") or {}, schema.get("additionalProperties")
    document: dict[str, Any] = {}
    for name, inner in value.items():
        of = known.get(name) or (rest if isinstance(rest, Mapping) else {})
        if inner is None and not of.get("nullable"):
            if "default" in of:
                continue  # it is set below
            if name in known:
                continue  # the API server drops it
        document[name] = defaulted(of, inner)
    for name, of in known.items():
        if name not in document and "default" in of:
            document[name] = defaulted(of, copy.deepcopy(of["default"]))
    return document


@dataclass(frozen=True)
class Definition:
    """One version of a definition."""

    group: str
    version: str
    kind: str
    plural: str
    short_names: tuple[str, ...]
    schema: Json
    """`openAPIV3Schema`."""
    columns: tuple[Json, ...]
    """`additionalPrinterColumns`."""

    @property
    def api_version(self) -> str:
        """Group and version with a slash between them, as in the field apiVersion of a document."""
        return f"{self.group}/{self.version}"


def definition_of(document: Json) -> Definition:
    """The stored version of a CustomResourceDefinition."""
    spec = document["spec"]
    version = next(v for v in spec["versions"] if v["storage"])
    names = spec["names"]
    return Definition(
        group=spec["group"],
        version=version["name"],
        kind=names["kind"],
        plural=names["plural"],
        short_names=tuple(names.get("shortNames") or ()),
        schema=version["schema"]["openAPIV3Schema"],
        columns=tuple(version.get("additionalPrinterColumns") or ()),
    )


_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_UNCHECKED: Final = (
    '<nil>: Invalid value: "null": some validation rules were not checked because the object was invalid; correct the existing '
    "errors to complete validation"
)


class NotAdmitted(Exception):
    """The document breaks the definition: status 422."""


class Undecodable(Exception):
    """The document has fields that the definition does not have: status 400."""


def admitted(definition: Definition, document: Json, old: Json | None = None, strict: bool = True) -> dict[str, Any]:
    """The document with defaults.

    Args:
        old: The stored document; None: the document is new.
        strict: Whether unknown fields are an error, as with kubectl; otherwise they stay.

    Raises:
        NotAdmitted: The document breaks the definition: status 422.
        Undecodable: The messages list all problems.
    """
    if strict:
        require_known_fields(definition, document)
    complete: dict[str, Any] = defaulted(definition.schema, document)
    faults = [*_of_name(complete), *problems(definition.schema, complete)]
    if faults:
        faults.append(_UNCHECKED)
    else:
        faults = broken_rules(definition.schema, complete, old)
    if faults:
        listed = faults[0] if len(faults) == 1 else f"[{', '.join(faults)}]"
        name = complete["metadata"].get("name")
        raise NotAdmitted(f'{definition.kind}.{definition.group} "{name}" is invalid: {listed}')
    return complete


def require_known_fields(definition: Definition, document: Json) -> None:
    """Require that all fields are known.

    Raises:
        Undecodable: The message lists all fields that the definition does not have.
    """
    _require_none(definition, unknown_fields(definition.schema, document))


def require_known_names(definition: Definition, document: Json) -> None:
    """Require that all fields and all annotations of Lethe are known.

    Raises:
        Undecodable: The message lists all names that are not known.
    """
    unknown = unknown_fields(definition.schema, document)
    _require_none(definition, [*unknown, *unknown_annotations(definition.kind, document)])


def _require_none(definition: Definition, unknown: list[str]) -> None:
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
