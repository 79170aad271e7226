"""Runs the commands on resources, or only parses them. I/O."""

import copy
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner
from lethe.cli.main import cli

from tests.support.documents import read_yaml

CRDS = Path(__file__).parents[2] / "crds"


def definitions(change: Callable[[dict[str, Any]], None] = lambda _: None) -> list[dict[str, Any]]:
    found = [copy.deepcopy(read_yaml(f)) for f in sorted(CRDS.glob("*.yaml"))]
    for document in found:
        change(document)
    return found


def lethe(kubeconfig: Path, *arguments: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    """Run a command.

    Args:
        environ: Further variables.
    """
    return in_this_process([*arguments, "--kubeconfig", str(kubeconfig)], environ)


def in_this_process(
    arguments: Sequence[str], environ: Mapping[str, str], told: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Run a command here: a process of its own would take seconds to import it.

    Args:
        environ: Further variables.
        told: The text on its standard input.
    """
    before = {"PYICEBERG_HOME": os.environ.get("PYICEBERG_HOME")}  # commands set it
    done = CliRunner().invoke(
        cli, arguments, input=told, env={**before, "KUBECONFIG": None, "LETHE_DEBUG": None, **environ}
    )
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)


def one_line(ended: "subprocess.CompletedProcess[str]", code: int, *parts: str) -> None:
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (code, "", 1), ended.stdout + ended.stderr
    for part in parts:
        assert part in ended.stderr


def parsed(words: list[str]) -> None:
    """Parse the arguments of `lethe`, with the real commands, and run nothing.

    Raises: click.UsageError
    """
    command: click.Command = cli
    name, arguments = words[0], words[1:]
    if not arguments:  # a variable of the environment says what it does
        return
    parent: click.Context | None = None
    while True:
        try:
            context = _without_files(command).make_context(name, list(arguments), parent=parent)
        except click.exceptions.Exit:  # --help
            return
        if not isinstance(command, click.Group):
            return
        called, found, arguments = command.resolve_command(context, [*context._protected_args, *context.args])
        assert found is not None
        name, command, parent = str(called), found, context


def _without_files(command: click.Command) -> click.Command:
    """The same, but it does not look whether the files that it names exist."""
    made = copy.copy(command)
    made.params = [copy.copy(p) for p in command.params]
    for parameter in made.params:
        if isinstance(parameter.type, click.Path | click.File):
            parameter.type = click.STRING
        parameter.callback = None
    return made


def lethes(words: list[str]) -> list[str]:
    """The command line of `lethe`, also as a plugin of kubectl; empty: it is another program's."""
    if words[:2] == ["kubectl", "lethe"]:
        return words[1:]
    return words if words[0] == "lethe" else []
