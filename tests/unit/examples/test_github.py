"""The example of a GitHub Action calls commands that exist, and gives the job no more than it needs."""

import re
import shlex
from pathlib import Path
from typing import Any

import click
import yaml
from lethe.cli.main import cli

WORKFLOW = Path(__file__).parents[3] / "examples/github/plan.yaml"


def steps() -> list[dict[str, Any]]:
    (job,) = yaml.safe_load(WORKFLOW.read_text())["jobs"].values()
    found: list[dict[str, Any]] = job["steps"]
    return found


def test_the_command_parses() -> None:
    """The options exist, and the job keeps the exit code."""
    (script,) = [s["run"] for s in steps() if "lethe plan" in s.get("run", "")]
    (line,) = re.findall(r"lethe (plan.*?) >", script)
    name, *arguments = shlex.split(line)
    parent = click.Context(cli, **cli.context_settings)
    command = cli.get_command(parent, name)
    assert command is not None

    folder = [a if a != "lake" else str(WORKFLOW.parent) for a in arguments]
    with command.make_context(name, folder, parent=parent) as context:
        assert context.params["files"] == (WORKFLOW.parent,)
    assert script.rstrip().endswith('exit "$code"')


def test_secrets_are_in_the_environment_of_one_step_only() -> None:
    """Never in a command line, which the log shows."""
    text = WORKFLOW.read_text()
    using = [s for s in steps() if "secrets." in str(s)]

    assert [s["name"] for s in using] == ["Write the credentials to files"]
    assert "secrets." not in using[0]["run"]
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
