"""What docstrings say about errors is true as far as the code and the tests show it."""

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.documented_errors import public_names

ROOT = Path(__file__).resolve().parents[3]
SECTION = re.compile(r"Raises:\n((?:    .*\n?|\n)+)")
# Of packages whose errors pass through.
FOREIGN = {
    "AnalysisException", "ArrowException", "ArrowInvalid", "ArrowNotImplementedError", "BadParameter",
    "CommitFailedException", "ConfigException", "HTTPError", "HTTPException", "JSONDecodeError", "JvmError",
    "NoSuchTableError",
    "Error", "ParseException", "PySparkRuntimeError", "UsageError", "ValidationError",
}  # fmt: skip


def product() -> Iterator[tuple[Path, ast.Module]]:
    for folder in ("operator", "spark_apps"):
        for path in (ROOT / folder).rglob("*.py"):
            yield path, ast.parse(path.read_text())


def entries(docstring: str) -> Iterator[tuple[str, str]]:
    """The names and the texts of a section Raises."""
    found = SECTION.search(docstring)
    for entry in re.findall(r"^    (\S.*(?:\n     .*)*)", found[1] if found else "", re.MULTILINE):
        name, _, text = entry.partition(":")
        yield name.rpartition(".")[2], text


def test_each_name_in_a_section_raises_is_an_exception() -> None:
    modules = list(product())
    classes = {n.name: n for _, tree in modules for n in ast.walk(tree) if isinstance(n, ast.ClassDef)}

    def is_exception(name: str) -> bool:
        known = getattr(builtins, name, None)
        if name in FOREIGN or (isinstance(known, type) and issubclass(known, BaseException)):
            return True
        bases = classes[name].bases if name in classes else ()
        return any(is_exception(base.id if isinstance(base, ast.Name) else base.attr) for base in bases
                   if isinstance(base, ast.Name | ast.Attribute))  # fmt: skip

    wrong = [
        f"{path.relative_to(ROOT)}: {node.name} raises {name}"
        for path, tree in modules
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
        for name, _ in entries(ast.get_docstring(node) or "")
        if not is_exception(name)
    ]

    assert wrong == []


def test_a_test_provokes_each_reason_that_the_python_api_documents() -> None:
    """`tests/support/documented_errors.py` looks at the other direction."""
    tests = set(re.findall(r"\w+", "\n".join(p.read_text() for p in (ROOT / "tests").rglob("test_*.py"))))
    public = public_names()
    reasons = {
        (path.stem, node.name, reason)
        for path, tree in product()
        for owner in ast.walk(tree)
        if isinstance(owner, ast.Module | ast.ClassDef)
        for node in owner.body
        if isinstance(node, ast.FunctionDef)
        and any(module.endswith(path.stem) and n in (node.name, getattr(owner, "name", "")) for module, n in public)
        for name, text in entries(ast.get_docstring(node) or "")
        if name == "InputError"
        for reason in re.findall(r"\b[A-Z][a-z]+[A-Z]\w+", text)
    }

    assert len(reasons) > 40
    assert sorted(r for r in reasons if r[2] not in tests) == []
