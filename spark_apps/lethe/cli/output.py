"""Prints tables for people, JSON for programs, and progress on stderr. I/O.

Arguments and options that several commands share, and the types of their values.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import click
import yaml
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from lethe.cli import layout

STYLES: Final = {
    **dict.fromkeys(("Failed", "NotReady", "refused", "blocked", "problem", "error"), "bold red"),
    **dict.fromkeys(
        ("Pending", "buffered", "unknown", "rows in table", "not verified", "warning", "Warning"), "yellow"
    ),
}
"""The styles of states that need attention."""

WATCH_SECONDS: Final = 2
V = TypeVar("V")

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
output_option = click.option(
    "-o", "--output", type=click.Choice(["table", "wide", "json", "yaml", "name"]), default="table", show_default=True
)
watch_option = click.option(
    "-w", "--watch", is_flag=True, help="Show changes until Ctrl-C; a terminal is cleared before each."
)


def working(what: str) -> AbstractContextManager[Any]:
    """Show a spinner on a terminal, until the context ends."""
    return Console(stderr=True).status(escape(what))


def progress() -> Progress:
    """A progress bar on stderr, removed at the end; nothing if stderr is not a terminal."""
    err = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    )


def print_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Iterable[str] = (),
    optional: Sequence[str] = (),
    styles: Mapping[str, str] = STYLES,
) -> None:
    """Print rows below their headers; on a narrow terminal as `layout.table` says.

    Args:
        headers: One for each column.
        rows: One cell for each header.
        right: The columns that are aligned to the right.
        optional: The columns that a narrow terminal leaves out, the least important first.
        styles: The styles of cells, by their whole text.
    """
    width = _width()
    shown = layout.table(headers, list(rows), width, frozenset(right), optional, styles)
    print_lines(shown.lines)
    if shown.left_out:
        names = ", ".join(shown.left_out)
        click.echo(f"no room in {width} columns for {names}: a wider terminal or a pipe shows all", err=True)


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Print one name and value per line; leave out pairs without a value."""
    print_lines(layout.record(list(pairs), _width()))


def print_text(text: str) -> None:
    """Print a sentence; on a terminal in lines between words."""
    print_lines(map(Text, layout.wrapped(text, _width())))


def print_lines(lines: Iterable[Text]) -> None:
    """Print styled lines as they are. They have colours on a terminal only, and with NO_COLOR none."""
    out = Console(highlight=False)
    if not out.is_terminal or out.no_color:
        click.echo("".join(f"{line.plain}\n" for line in lines), nl=False)
        return
    for line in lines:
        out.print(line, soft_wrap=True)


def watched(load: Callable[[], V], show: Callable[[V], object], again: bool) -> V:
    """Show a value and return it; with `again`, until Ctrl-C. A pipe gets only values that differ from the one before.

    Args:
        load: Reads the value.
        show: Prints it. On a terminal it replaces what was shown before.
        again: Go on.
    """
    before, is_terminal = None, Console().is_terminal
    while True:
        value = load()
        if is_terminal and again:
            click.clear()
        if is_terminal or value != before:
            show(value)
        if not again:
            return value
        before = value
        time.sleep(WATCH_SECONDS)


def _width() -> int | None:
    """The characters of a line of the terminal; None: the output is a pipe or a file."""
    out = Console()
    return out.width if out.is_terminal else None


def print_json(value: Any) -> None:
    """Print a value on stdout, indented by two spaces, with times as `time_text` writes them.

    Raises:
        TypeError: JSON has no form for a value that is not a time.
    """
    click.echo(json.dumps(value, indent=2, default=_plain))


def print_document(value: Any, output: str) -> None:
    """Print JSON, or YAML with the same content.

    Args:
        output: json or yaml.
    """
    if output == "json":
        print_json(value)
        return
    plain = json.loads(json.dumps(value, default=_plain))
    click.echo(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True), nl=False)


def time_text(time: datetime | None) -> str:
    """ISO 8601 to the second, with Z: the time must be in UTC. None gives an empty text."""
    return "" if time is None else f"{time:%Y-%m-%dT%H:%M:%SZ}"


def number_text(value: int | None) -> str:
    """The decimal digits, without separators of thousands. None gives an empty text, and 0 does not."""
    return "" if value is None else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return time_text(value)
    raise TypeError(f"no JSON for {type(value).__name__}")


class Time(click.ParamType):
    """An ISO 8601 time with a time zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """A text with a time zone as a time in UTC; a time stays as it is.

        Raises:
            click.BadParameter: The text is no ISO 8601 time, or it has no time zone.
        """
        if isinstance(value, datetime):
            return value
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not an ISO 8601 time, for example 2026-03-01T12:00:00Z", param, ctx)
        if time.tzinfo is None:
            self.fail(f"{value!r} has no time zone. For UTC, write {value}Z", param, ctx)
        return time.astimezone(UTC)


class SnapshotOrTime(Time):
    """A snapshot id, or a time."""

    name = "snapshot|time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """An int for a text of digits only, which is a snapshot id; a time in UTC for any other text.

        Raises:
            click.BadParameter: The text is neither, or the time has no time zone.
        """
        if isinstance(value, int):
            return value
        if isinstance(value, str) and value.isdigit():
            return int(value)
        return super().convert(value, param, ctx)
