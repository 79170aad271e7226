"""Running the health checks that Argo CD runs, without a Lua interpreter: the few forms of Lua that they use, as Python."""

import re
from collections.abc import Callable, Mapping
from typing import Any

_CONDITION = re.compile(r'[\w.]+ (==|~=) (nil|"[^"]*"|[\w.]+)')


class Table:
    """A Lua table: a field that is not there is nil."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def __getattr__(self, name: str) -> Any:
        return None


def as_lua(value: Any) -> Any:
    """A document as Argo CD hands it to a check."""
    if isinstance(value, Mapping):
        return Table(**{k: as_lua(v) for k, v in value.items()})
    return [as_lua(v) for v in value] if isinstance(value, list) else value


def translated(lua: str) -> str:
    """The body of a check as a Python function `check(obj)`. Raises: ValueError, for a form that is not known here."""
    lines, depth = ["def check(obj):"], 1
    for number, line in enumerate(lua.splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("--"):
            continue
        opens, closes = False, text == "end" or text.startswith("else")
        depth -= closes
        if text == "end":
            continue
        if found := re.fullmatch(r"(else)?if (.+) then", text):
            for term in re.split(r" and | or ", found[2]):
                if not _CONDITION.fullmatch(term):
                    raise ValueError(f"line {number}: {term}")
            python, opens = f"{'elif' if found[1] else 'if'} {_expression(found[2])}:", True
        elif text == "else":
            python, opens = "else:", True
        elif found := re.fullmatch(r"for _, (\w+) in ipairs\(([\w.]+)\) do", text):
            python, opens = f"for {found[1]} in {found[2]}:", True
        elif found := re.fullmatch(r'(local \w+|[\w.]+) = (\{.*\}|"[^"]*"|[\w.]+)', text):
            python = f"{found[1].removeprefix('local ')} = {_expression(found[2])}"
        elif found := re.fullmatch(r"return (\w+)", text):
            python = text
        else:
            raise ValueError(f"line {number}: {text}")
        lines.append("    " * depth + python)
        depth += opens
    if depth != 1:
        raise ValueError(f"{depth - 1} blocks have no end")
    return "\n".join(lines)


def check_of(lua: str) -> Callable[[Mapping[str, Any]], tuple[str, str]]:
    """A check: the resource -> status and message."""
    names: dict[str, Any] = {"Table": Table}
    exec(translated(lua), names)

    def check(resource: Mapping[str, Any]) -> tuple[str, str]:
        found = names["check"](as_lua(resource))
        return found.status, found.message

    return check


def _expression(lua: str) -> str:
    """Strings are left as they are."""
    parts = re.split(r'("[^"]*")', lua)
    for n in range(0, len(parts), 2):
        parts[n] = re.sub(r"\bnil\b", "None", parts[n].replace("~=", "!=").replace("{", "Table(").replace("}", ")"))
    return "".join(parts)
