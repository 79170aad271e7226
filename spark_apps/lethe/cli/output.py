"""What commands print: tables for people, JSON for programs, progress on stderr. I/O; row values only where asked for."""

import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

# A pipe or a file has no width of its own: lines are never folded there.
UNFOLDED = 100_000


def console() -> Console:
    """Standard output as it is now. Tests and pipes get plain lines of any length."""
    made = Console(highlight=False)
    return made if made.is_terminal else Console(highlight=False, width=UNFOLDED)


def working(what: str) -> AbstractContextManager[Any]:
    """A spinner while `what` goes on, only on a terminal."""
    return Console(stderr=True).status(escape(what))


def progress() -> Progress:
    """A bar on stderr that is gone when the work is done; nothing where stderr is no terminal."""
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


def print_table(headers: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[str] = ()) -> None:
    """Rows under their headers; those named in `right` hold numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    numbers = frozenset(right)
    for header in headers:
        table.add_column(header, justify="right" if header in numbers else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    console().print(table)


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Names and values, one pair a line; those without a value are left out."""
    known = list(pairs)
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        if value:
            click.echo(f"{name:<{width}}  {value}")


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, default=_plain))


def moment(time: datetime | None) -> str:
    return "" if time is None else f"{time:%Y-%m-%dT%H:%M:%SZ}"


def number(value: int | None) -> str:
    return "" if value is None else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return moment(value)
    raise TypeError(f"no JSON for {type(value).__name__}")
