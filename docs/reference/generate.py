"""Write the reference from what is authoritative: resource definitions, the list of reasons, the types of status events, and the
gateway's OpenAPI document.

Run `python docs/reference/generate.py` after changing either; a test fails while the pages differ. The rendering is pure.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NOTE = "<!-- Made by docs/reference/generate.py. Edit what it reads, then run it. -->"


def resources_page(definitions: Iterable[dict[str, Any]]) -> str:
    """All three resources, field by field."""
    parts = [
        NOTE,
        "# Resources",
        "Users write `spec`, only the operator writes `status`. `kubectl explain dataset.spec` shows the same texts. Sizes are "
        "Kubernetes quantities such as `128Mi` or plain numbers of bytes. A field without a type is an object.",
        "Each entry of `status.conditions` has a `type`, a `status` (`True`, `False` or `Unknown`), a `reason` (one word of "
        "[a fixed list](reasons.md)), a `message`, `observedGeneration`, and `lastTransitionTime`, when `status` last changed.",
    ]
    for definition in definitions:
        parts += list(_resource(definition))
    return "\n\n".join(parts) + "\n"


def reasons_page(reasons: Iterable[tuple[str, str]]) -> str:
    parts = [
        NOTE,
        "# Reasons",
        "The reasons of conditions and events that the operator gives by itself. A run's own reasons are passed on as they "
        "come, with a message that says what to do.",
        "\n".join(f"- `{name}`: {text}" for name, text in reasons),
    ]
    return "\n\n".join(parts) + "\n"


def _resource(definition: dict[str, Any]) -> Iterator[str]:
    names, (version,) = definition["spec"]["names"], definition["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    yield f"## {names['kind']}"
    yield schema["description"]
    short = ", ".join(f"`{name}`" for name in (names["plural"], *names["shortNames"]))
    yield f"`apiVersion: {definition['spec']['group']}/{version['name']}`; for kubectl: {short}."
    yield "### Spec"
    yield _list(_fields(schema["properties"]["spec"], "", True))
    rules = _grouped_rules(_rules(schema, ""))
    if rules:
        yield "The API server refuses what breaks one of these rules:\n\n" + "\n".join(rules)
    yield "### Status"
    yield _list(_fields(schema["properties"]["status"], "", False))


def _list(fields: Iterable[tuple[str, str, str]]) -> str:
    return "\n".join(f"- `{path}`{f' ({notes})' if notes else ''}: {meaning}" for path, notes, meaning in fields)


def _fields(schema: dict[str, Any], path: str, with_requirements: bool) -> Iterator[tuple[str, str, str]]:
    required = schema.get("required", ()) if with_requirements else ()
    for name, field in schema.get("properties", {}).items():
        here = f"{path}.{name}".lstrip(".")
        is_required = name in required
        notes = [*([_type(field)] if "properties" not in field else []), *(["required"] if is_required else [])]
        yield here, ", ".join(notes), _meaning(field, is_required)
        if here == "conditions":
            continue  # described once, in the head of the page
        items = field.get("items", {})
        if items.get("type") == "object":
            yield from _fields(items, f"{here}[]", with_requirements)
        else:
            yield from _fields(field, here, with_requirements)


def _type(field: dict[str, Any]) -> str:
    if field.get("x-kubernetes-int-or-string"):
        return "quantity" if "x-kubernetes-validations" in field else "integer or text"
    if "enum" in field:
        return "one of " + ", ".join(f"`{value}`" if value != "" else '`""`' for value in field["enum"])
    if field.get("format") == "date-time":
        return "time"
    if field["type"] == "array":
        inner = field["items"]
        one = inner.get("type", "value")
        return f"list of {one}s"
    if "additionalProperties" in field:
        return "map of strings"
    return str(field["type"])


def _meaning(field: dict[str, Any], required: bool) -> str:
    text = field["description"]
    if "default" in field and field["default"] != {}:
        default = field["default"]
        text += f" Default: `{str(default).lower() if isinstance(default, bool) else default}`."
    if "minimum" in field and field["type"] == "integer" and "maximum" in field:
        text += f" From {field['minimum']} to {field['maximum']}."
    if "maxItems" in field and "x-kubernetes-list-type" in field and required is False and field["maxItems"] >= 1000:
        text += f" At most {field['maxItems']}."
    return text


def _rules(schema: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """Each CEL rule: the field that it is about, and its message."""
    for rule in schema.get("x-kubernetes-validations", ()):
        yield path, rule["message"]
    for name, field in schema.get("properties", {}).items():
        if name != "status":
            yield from _rules(field, f"{path}.{name}".lstrip("."))
            if "items" in field:
                yield from _rules(field["items"], f"{path}.{name}[]".lstrip("."))


def _grouped_rules(rules: Iterable[tuple[str, str]]) -> list[str]:
    """A line for each rule. Fields with one message share a line."""
    paths: dict[str, list[str]] = {}
    for path, message in rules:
        field, _, rest = message.partition(" ")
        if rest.startswith("is immutable"):
            path, message = f"{path}.{field}", rest
        paths.setdefault(message, []).append(path)
    return [
        f"- {', '.join(f'`{path}`' for path in found)}: {message}." if any(found) else f"- {message}."
        for message, found in paths.items()
    ]


def pages() -> dict[str, str]:
    """File name -> content."""
    sys.path.insert(0, str(ROOT / "operator"))
    sys.path.insert(0, str(ROOT / "spark_apps"))
    from lethe_gateway.app import openapi, routes
    from lethe_operator.reasons import Reason

    definitions = [
        yaml.safe_load((ROOT / "crds" / f"{name}.yaml").read_text())
        for name in ("dataset", "restatement", "vacuumpolicy")
    ]
    return {
        "resources.md": resources_page(definitions),
        "reasons.md": reasons_page((reason.value, reason.meaning) for reason in Reason),
        "gateway.openapi.json": json.dumps(openapi(routes()), indent=1) + "\n",
    }


def schemas() -> dict[str, str]:
    """The JSON Schema of each type of status events: file name -> content."""
    sys.path[:0] = [str(ROOT / "operator"), str(ROOT / "spark_apps")]
    from lethe_operator.publish.events import EventType, schema_file, schema_of

    return {f"events/{schema_file(t)}": json.dumps(schema_of(t), indent=2) + "\n" for t in EventType}


if __name__ == "__main__":
    (HERE / "events").mkdir(exist_ok=True)
    for file, content in (pages() | schemas()).items():
        (HERE / file).write_text(content)
        print(f"wrote {HERE / file}")
