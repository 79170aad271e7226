"""The commands of `lethe` that messages suggest: each can be parsed, with any word for what is filled in."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from lethe.cli.main import cli

from tests.support.commands import lethes, parsed

ROOT = Path(__file__).parents[4]
FILLED_IN = "x"
QUOTED = re.compile(r"`((?:kubectl )?lethe [^`]+)`")
AFTER_A_COLON = re.compile(r"(?:next|Start it|See|committer|exists|next +):? +(lethe [^.;`]+)")


def suggested() -> Iterator[tuple[str, str]]:
    """Each command with the file that has it."""
    for folder in ("operator", "spark_apps"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in _texts(ast.parse(path.read_text())):
                text = _text(node)
                for found in (*QUOTED.findall(text), *AFTER_A_COLON.findall(text)):
                    yield path.relative_to(ROOT).as_posix(), found.strip()


def _texts(tree: ast.Module) -> Iterator[ast.JoinedStr | ast.Constant]:
    """The texts that are no docstrings, each as a whole."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in docstrings | parts:
            yield node


def _text(node: ast.JoinedStr | ast.Constant) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return "".join(_text(v) if isinstance(v, ast.Constant) else FILLED_IN for v in node.values)


COMMANDS = sorted(set(suggested()))


@pytest.mark.parametrize(("file", "command"), COMMANDS, ids=[f"{f}: {c}" for f, c in COMMANDS])
def test_a_suggested_command_can_be_parsed(file: str, command: str) -> None:  # noqa: ARG001
    words = lethes(shlex.split(command))
    if len(words) > 2:
        parsed(words)
    elif words[1] != FILLED_IN:  # only the name of a command
        assert cli.get_command(click.Context(cli), words[1]) is not None


def test_suggestions_are_found() -> None:
    assert len(COMMANDS) > 20
    assert ("spark_apps/lethe/cli/diagnosis.py", "lethe track x --rebuild") in COMMANDS


def test_a_command_that_does_not_exist_is_found() -> None:
    with pytest.raises(click.UsageError):
        parsed(["lethe", "track", "x", "--rebuilt"])
