"""The names of the properties that the clients of Iceberg know: PyIceberg, by its source, and Iceberg's Java library, by the
constants of its classes. And what was decided about them."""

import ast
import io
import re
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pyiceberg

from tests.support.documents import read_yaml

REVIEWED = Path(__file__).with_name("reviewed_properties.yaml")
_HELPERS = (
    "property_as_bool",
    "property_as_int",
    "property_as_float",
    "get_first_property_value",
    "_get_bool",
    "_get_int",
)
_OF_PROPERTIES = re.compile(r"propert|conf\b|config", re.IGNORECASE)
_NAME = re.compile(r"[a-zA-Z0-9_]+(?:[.-][a-zA-Z0-9_%-]+)*\.?")


def reviewed(client: str) -> dict[str, list[str]]:
    """The names of a client's properties, by the decision about them."""
    found: dict[str, dict[str, list[str] | None]] = read_yaml(REVIEWED)
    return {decision: names or [] for decision, names in found[client].items()}


def unreviewed(client: str, known: set[str]) -> str:
    """What to do about names that the list lacks, or has although the client does not know them. Empty: nothing."""
    listed = {name for names in reviewed(client).values() for name in names}
    parts = []
    if new := sorted(known - listed):
        parts.append(
            f"{client} reads properties that nobody has reviewed: {', '.join(new)}. Add them to {REVIEWED.name}, as it says"
        )
    if gone := sorted(listed - known):
        parts.append(f"{client} does not read {', '.join(gone)} any more. Remove them from {REVIEWED.name}")
    return "; ".join(parts)


def of_pyiceberg() -> set[str]:
    """Each string that PyIceberg's source looks up in a mapping of properties, and each constant of a module that defines such
    names."""
    nodes = [n for p in Path(pyiceberg.__path__[0]).rglob("*.py") for n in ast.walk(ast.parse(p.read_text()))]
    constants: dict[str, set[str]] = defaultdict(set)
    for node in nodes:
        for name, value in _assigned(node):
            constants[name].add(value)
    of_tables = {v for node in nodes for v in _of_class(node)}
    looked_up = {k for node in nodes for k in _looked_up(node, constants)}
    return {k for k in of_tables | looked_up if _NAME.fullmatch(k)}


def _of_class(node: ast.AST) -> Iterator[str]:
    """The names that a class of properties defines."""
    if isinstance(node, ast.ClassDef) and node.name.endswith("Properties"):
        for part in node.body:
            yield from (value for _, value in _assigned(part) if "." in value or "-" in value)


def _assigned(node: ast.AST) -> Iterator[tuple[str, str]]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    if (
        isinstance(node, (ast.Assign, ast.AnnAssign))
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ):
        for target in targets:
            if isinstance(target, ast.Name):
                yield target.id, node.value.value


def _looked_up(node: ast.AST, constants: dict[str, set[str]]) -> Iterator[str]:
    for key in _keys(node):
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key.value
        elif isinstance(key, (ast.Name, ast.Attribute)):
            yield from constants.get(_last_name(key), ())


def _last_name(expression: ast.expr) -> str:
    """`c` of `a.b.c`; empty if the expression is no name."""
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""


def _keys(node: ast.AST) -> list[ast.expr]:
    """The expressions that name properties."""
    match node:
        case ast.Call():
            called = _last_name(node.func)
            if called in _HELPERS:
                return [*node.args[1:], *(k.value for k in node.keywords)]
            if called in ("startswith", "removeprefix"):
                return node.args[:1]
            if called in ("get", "pop") and isinstance(node.func, ast.Attribute) and _of_properties(node.func.value):
                return node.args[:1]
        case ast.Subscript() if _of_properties(node.value):
            return [node.slice]
        case ast.Compare() if any(map(_of_properties, node.comparators)):
            return [node.left]
    return []


def _of_properties(expression: ast.expr) -> bool:
    return bool(_OF_PROPERTIES.search(ast.unparse(expression)))


# Of a class of properties: names with a dot or a hyphen, and those of one word that are no values.
_CONSTANT = re.compile(
    r"(?!org\.apache\.)[a-z][a-z0-9]*(?:[.-][a-zA-Z0-9%-]+)+\.?|audience|clients|comment|credential|prefix|resource|scope|token|uri|user"
    r"|warehouse"
)
# Constants of classes that are not named so: what a client or a class is configured with.
_ELSEWHERE = re.compile(
    r"(adls|auth|client|dynamodb|encryption|gcs|glue|http-client|io|jdbc|kms|lock|oauth2|oss|rest|s3|s3tables)[.-].+|[^/]*[.-](impl|class|factory|endpoint|uri)"
)


def of_java(jar: Path) -> dict[str, set[str]]:
    """The names of properties in the constants of Iceberg's classes, by the class that defines them."""
    found: dict[str, set[str]] = defaultdict(set)
    with zipfile.ZipFile(jar) as archive:
        for entry in archive.namelist():
            name = entry.removesuffix(".class").rpartition("/")[2]
            if not entry.startswith("org/apache/iceberg/") or "/relocated/" in entry or not entry.endswith(".class"):
                continue
            for value in _string_constants(io.BytesIO(archive.read(entry))):
                wanted = _CONSTANT if name.endswith("Properties") else _ELSEWHERE
                if wanted.fullmatch(value):
                    found[name].add(value)
    return found


def _string_constants(stream: BinaryIO) -> Iterator[str]:
    """The values of the constants of type String that a class file defines."""

    def number(size: int) -> int:
        return int.from_bytes(stream.read(size))

    stream.read(8)
    texts, strings = dict[int, str](), dict[int, int]()
    index, count = 1, number(2)
    while index < count:
        tag = number(1)
        match tag:
            case 1:
                texts[index] = stream.read(number(2)).decode("utf-8", "replace")
            case 8:
                strings[index] = number(2)
            case 5 | 6:
                stream.read(8)
                index += 1
            case 3 | 4 | 9 | 10 | 11 | 12 | 17 | 18:
                stream.read(4)
            case 7 | 16 | 19 | 20:
                stream.read(2)
            case 15:
                stream.read(3)
        index += 1
    stream.read(6)
    stream.read(2 * number(2))  # interfaces
    for _ in range(number(2)):  # fields
        stream.read(6)
        for _ in range(number(2)):
            attribute, length = texts.get(number(2)), number(4)
            if attribute == "ConstantValue" and (at := number(2)) in strings:
                yield texts[strings[at]]
            elif attribute != "ConstantValue":
                stream.read(length)
