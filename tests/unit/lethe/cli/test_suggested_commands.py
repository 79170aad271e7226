"""The commands of `lethe` that messages suggest: each can be parsed, with any word for what is filled in."""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
from lethe.cli.main import cli

from tests.support.commands import lethes, parsed

ROOT = Path(__file__).parents[4]
FILLED_IN = "x"
QUOTED = re.compile(r"`((?:kubectl )?lethe [^`]+)`")
AFTER_A_COLON = re.compile(r"(?:next|Start it|See|committer|exists|next +):? +(lethe [^.;`]+)")


@cache
def suggested() -> frozenset[tuple[str, str]]:
    """Each command with the file that has it."""
    return frozenset(_suggested())


def _suggested() -> Iterator[tuple[str, str]]:
    for folder in ("operator", "spark_apps"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in _texts(ast.parse(path.read_text())):
                text = _text(node)
                for found in (*QUOTED.findall(text), *AFTER_A_COLON.findall(text)):
                    yield path.relative_to(ROOT).as_posix(), found.strip()


def _texts(tree: ast.Module) -> Iterator[ast.JoinedStr | ast.Constant]:
    """The texts that are no docstrings, each as a whole."""
    nodes = list(ast.walk(tree))
    others = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    others |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    yield from (n for n in nodes if isinstance(n, ast.JoinedStr | ast.Constant) and id(n) not in others)


def _text(node: ast.JoinedStr | ast.Constant) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return "".join(_text(v) if isinstance(v, ast.Constant) else FILLED_IN for v in node.values)


def exists(command: str) -> bool:
    words = lethes(shlex.split(command))
    if len(words) <= 2:  # only the name of a command
        return words[1] == FILLED_IN or cli.get_command(click.Context(cli), words[1]) is not None
    try:
        parsed(words)
    except click.UsageError:
        return False
    return True


def test_a_suggested_command_can_be_parsed() -> None:
    assert [(file, command) for file, command in sorted(suggested()) if not exists(command)] == []


def test_suggestions_are_found() -> None:
    assert len(suggested()) > 20
    assert ("spark_apps/lethe/cli/diagnosis.py", "lethe track x --rebuild") in suggested()


def test_a_command_that_does_not_exist_is_found() -> None:
    assert not exists("lethe track x --rebuilt")
