"""Runs the commands on resources. I/O."""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner
from lethe.cli.main import cli

CRDS = Path(__file__).parents[2] / "crds"


def definitions(change: Callable[[dict[str, Any]], None] = lambda _: None) -> list[dict[str, Any]]:
    found = [yaml.safe_load(f.read_text()) for f in sorted(CRDS.glob("*.yaml"))]
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
