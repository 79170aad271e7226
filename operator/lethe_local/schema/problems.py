"""What is wrong with a document, by the OpenAPI part of its schema, in the words of the Kubernetes API server. Pure."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend

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


_Validator = extend(
    Draft202012Validator,
    {"x-kubernetes-list-type": _of_list_type, "x-kubernetes-int-or-string": _of_int_or_string},
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
