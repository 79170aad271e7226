"""What docstrings say about errors is true as far as the code and the tests show it."""

import ast
import builtins
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

from tests.support.documented_errors import public_names

ROOT = Path(__file__).resolve().parents[3]
SECTION = re.compile(r"Raises:\n((?:    .*\n?|\n)+)")
INDENTED = re.compile(r"^( *)Raises:\n(?:\1    .*\n|\n)+", re.MULTILINE)
CLASS = re.compile(r"^ *class (\w+)\(([^)]*)\)", re.MULTILINE)
# Of packages whose errors pass through.
FOREIGN = {
    "AirflowFailException", "AnalysisException", "ArrowException", "ArrowInvalid", "ArrowNotImplementedError",
    "BadParameter", "CommitFailedException", "ConfigException", "DestinationTerminalException",
    "DestinationTransientException", "HTTPError", "HTTPException", "JSONDecodeError", "JvmError",
    "NoSuchTableError",
    "Error", "ParseException", "PySparkRuntimeError", "UsageError", "ValidationError",
}  # fmt: skip


class Definition(NamedTuple):
    """A class or a function, and the class or the module that it is in."""

    path: Path
    owner: str
    node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

    @property
    def docstring(self) -> str:
        return ast.get_docstring(self.node) or ""


@cache
def texts() -> dict[Path, str]:
    return {path: path.read_text() for folder in ("operator", "spark_apps") for path in (ROOT / folder).rglob("*.py")}


@cache
def product() -> list[Definition]:
    """Of the files with such a section: no other is parsed, since that is most of the time of these tests."""
    return [
        definition
        for path, text in texts().items()
        if re.search("Raises:.*?InputError: ", text, re.DOTALL)
        for definition in definitions(path, "", ast.parse(text))
    ]


def definitions(path: Path, owner: str, parent: ast.AST) -> Iterator[Definition]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield Definition(path, owner, node)
            yield from definitions(path, node.name, node)
        elif isinstance(node, ast.stmt):
            yield from definitions(path, owner, node)


def entries(docstring: str) -> Iterator[tuple[str, str]]:
    """The names and the texts of a section Raises."""
    found = SECTION.search(docstring)
    for entry in re.findall(r"^    (\S.*(?:\n     .*)*)", found[1] if found else "", re.MULTILINE):
        name, _, text = entry.partition(":")
        yield name.rpartition(".")[2], text


def test_each_name_in_a_section_raises_is_an_exception() -> None:
    classes = {name: bases for text in texts().values() for name, bases in CLASS.findall(text)}

    def is_exception(name: str) -> bool:
        known = getattr(builtins, name, None)
        if name in FOREIGN or (isinstance(known, type) and issubclass(known, BaseException)):
            return True
        bases = [base.strip().rpartition(".")[2] for base in classes.get(name, "").split(",")]
        return any(is_exception(base) for base in bases if base)

    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, text in texts().items()
        for section in INDENTED.finditer(text)
        for name, _ in entries(dedent(section[0]))
        if not is_exception(name)
    ]

    assert wrong == []


def test_a_test_provokes_each_reason_that_the_python_api_documents() -> None:
    """`tests/support/documented_errors.py` looks at the other direction."""
    tests = set(re.findall(r"\w+", "\n".join(p.read_text() for p in (ROOT / "tests").rglob("test_*.py"))))
    public = public_names()
    reasons = {
        (d.path.stem, d.node.name, reason)
        for d in product()
        if isinstance(d.node, ast.FunctionDef)
        and any(module.endswith(d.path.stem) and name in (d.node.name, d.owner) for module, name in public)
        for name, text in entries(d.docstring)
        if name == "InputError"
        for reason in re.findall(r"\b[A-Z][a-z]+[A-Z]\w+", text)
    }

    assert len(reasons) > 40
    assert sorted(r for r in reasons if r[2] not in tests) == []
