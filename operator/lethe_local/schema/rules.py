"""The CEL rules of a schema (x-kubernetes-validations), evaluated as the Kubernetes API server does. Pure.

A rule that names `oldSelf` applies only to an update, and only where the old document has a value at the same path.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import celpy
from celpy import celtypes
from celpy.adapter import json_to_cel
from lethe_operator.resources.quantity import parse_quantity

from lethe_local.schema.problems import path_of

Json = Mapping[str, Any]
_MISSING = object()


def broken_rules(schema: Json, document: Json, old: Json | None) -> list[str]:
    """The problems that the rules find in a valid document.

    Args:
        old: The stored document; None: the document is new.
    """
    return list(_walk(schema, document, _MISSING if old is None else old, []))


def _walk(schema: Json, value: Any, old: Any, path: list[str | int]) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations") or ():
        compares = re.search(r"\boldSelf\b", rule["rule"]) is not None
        if (compares and old is _MISSING) or _holds(rule["rule"], value, old if compares else None):
            continue
        where = (path_of(path) + rule.get("fieldPath", "")).removeprefix(".") or "<nil>"
        yield f"{where}: Invalid value: {_shown(value)}: {rule.get('message') or 'failed rule: ' + rule['rule']}"
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


def _shown(value: Any) -> str:
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
