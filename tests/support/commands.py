"""Runs the commands on resources as processes. I/O."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

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
    command = [sys.executable, "-m", "lethe.cli", *arguments, "--kubeconfig", str(kubeconfig)]
    environ = {k: v for k, v in os.environ.items() if k not in ("KUBECONFIG", "LETHE_DEBUG")} | environ
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)


def one_line(ended: "subprocess.CompletedProcess[str]", code: int, *parts: str) -> None:
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (code, "", 1), ended.stdout + ended.stderr
    for part in parts:
        assert part in ended.stderr
