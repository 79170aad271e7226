"""`kubectl_complete-lethe`, which kubectl's own shell completion runs for `kubectl lethe`. I/O: prints.

kubectl passes the words after `kubectl lethe`, the last one incomplete, and reads a name per line, each with a help text after a
tab, and then a directive. See "Plugin completion" in kubectl's documentation.
"""

import sys
from collections.abc import Sequence
from typing import Final

import click
from click.shell_completion import CompletionItem, ShellComplete

from lethe.cli.main import PLUGIN, cli

# Bits of cobra's ShellCompDirective.
_DEFAULT: Final = 0  # the shell completes names of files
_NO_FILES: Final = 4


def complete_plugin() -> None:
    """The program `kubectl_complete-lethe`. It never fails: a message would end up in the line that the user types."""
    words = sys.argv[1:] or [""]
    try:
        items = ShellComplete(cli, {}, PLUGIN, "").get_completions(words[:-1], words[-1])
    except Exception:
        items = []
    click.echo("\n".join(lines(items)))


def lines(items: Sequence[CompletionItem]) -> list[str]:
    """What kubectl reads."""
    names = [item for item in items if item.type == "plain"]
    shown = [f"{item.value}\t{item.help}" if item.help else str(item.value) for item in names]
    return [*shown, f":{_NO_FILES if len(names) == len(items) else _DEFAULT}"]
