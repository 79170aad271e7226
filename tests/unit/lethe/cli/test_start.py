"""The program starts quickly: a command's packages are imported when it is used."""

import subprocess
import sys

import click
import pytest
from lethe.cli.main import COMMANDS, cli


def test_help_imports_no_package_of_a_command() -> None:
    code = "import sys\nfrom lethe.cli.main import main\ntry: main(['--help'])\nfinally: print(*sys.modules, file=sys.stderr)"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr.split()

    assert "click" in loaded
    assert not {"pyiceberg", "pyarrow", "kubernetes", "rich", "numpy"} & set(loaded)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_each_command_exists_under_its_name(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)

    assert command is not None
    assert command.name == name
    assert (command.help or "").startswith("Needs") is False
