"""Prints tables for people, JSON for programs, and progress on stderr. I/O.

Arguments and options that several commands share, and the types of their values.
"""

import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any, Literal

import click
import yaml
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

UNWRAPPED_WIDTH = 100_000
"""A pipe or a file has no width: do not wrap lines there."""

table_argument = click.argument("table")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
output_option = click.option(
    "-o", "--output", type=click.Choice(["table", "wide", "json", "yaml", "name"]), default="table", show_default=True
)
batch_column_option = click.option(
    "--batch-column",
    default="batch_id",
    show_default=True,
    help="The batch column, for a table that Lethe has not prepared. A prepared table has it in a table property.",
)


def console() -> Console:
    """Standard output. Where it is not a terminal, lines are plain and of any length."""
    terminal = Console(highlight=False)
    return terminal if terminal.is_terminal else Console(highlight=False, width=UNWRAPPED_WIDTH)


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
    headers: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[str] = (), wrapped: Iterable[str] = ()
) -> None:
    """Print rows below their headers.

    The columns named in `right` are aligned to the right, and those in `wrapped` are wrapped on a terminal.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    right_aligned, may_wrap = frozenset(right), frozenset(wrapped)
    for header in headers:
        justify: Literal["left", "right"] = "right" if header in right_aligned else "left"
        table.add_column(header, justify=justify, no_wrap=header not in may_wrap)
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    console().print(table)


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Print one name and value per line; leave out pairs without a value."""
    lines = list(pairs)
    width = max((len(name) for name, _ in lines), default=0)
    for name, value in lines:
        if value:
            click.echo(f"{name:<{width}}  {value}")


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
