"""Writes docs/cli.md from the help texts of the commands.

Run `python docs/generate_cli.py` after changing a command: a test fails until the page is current. The rendering is pure.
"""

from collections.abc import Iterator
from pathlib import Path

import click
from lethe.cli.main import cli

PAGE = Path(__file__).with_name("cli.md")
WIDTH = 100
HEAD = """<!-- Made by docs/generate_cli.py. Edit the commands' help, then run it. -->

# The command line

`pip install lethe` installs the command `lethe`. It inspects tables, and needs neither Spark nor Kubernetes. It changes no table;
`lethe track` writes the table of batches beside one. The catalogs are those of PyIceberg's `.pyiceberg.yaml`.

| Exit code | Meaning |
|---|---|
| 0 | done, no problem found |
| 1 | `ledger verify`, `erasures verify` or `doctor` found a problem |
| 2 | wrong arguments |
| 10 | change the input, the table or its ledger first: the line on stderr says how |
| 20 | the catalog or the storage is unavailable: try again later |

An error is one line on stderr, `lethe: <Reason>: <what to do>`; it never contains rows or credentials. Lists are for people;
`--json` prints them for programs. On a terminal, longer commands show their progress on stderr.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_sections(cli, click.Context(cli, info_name="lethe", **cli.context_settings))])


def _sections(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        own = click.Context(command, info_name=name, parent=context, terminal_width=WIDTH, max_content_width=WIDTH)
        if isinstance(command, click.Group):
            yield from _sections(command, own)
        else:
            yield f"## {own.command_path}\n\n```text\n{command.get_help(own)}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"wrote {PAGE}")
