"""How tables and scans look in a notebook: short, and without I/O. Pure."""

from collections.abc import Sequence
from html import escape
from typing import Final, TypeAlias

import pyarrow as pa

Column: TypeAlias = tuple[str, str]
"""The name and the type."""

TEXT_AT_MOST: Final = 500
"""Characters of a repr."""
COLUMNS_AT_MOST: Final = 50
"""Rows of the HTML table."""
_NAME_AT_MOST: Final = 100
_TITLE_AT_MOST: Final = 300


def columns_of(schema: pa.Schema) -> list[Column]:
    """The names and types of a schema."""
    return [(field.name, str(field.type)) for field in schema]


def text(kind: str, title: str, columns: Sequence[Column]) -> str:
    """One line. Columns that do not fit are counted."""
    shown = f"{kind}({_cut(title, _TITLE_AT_MOST)}: "
    for number, (name, of_type) in enumerate(columns):
        column = f"{_cut(name, _NAME_AT_MOST)} {_cut(of_type, _NAME_AT_MOST)}, "
        if len(shown) + len(column) > TEXT_AT_MOST:
            return f"{shown}and {len(columns) - number} more columns)"
        shown += column
    return f"{shown.removesuffix(', ')})"


def html(kind: str, title: str, columns: Sequence[Column]) -> str:
    """A table of the columns. Names are data, so all text is escaped."""
    rows = "".join(
        f"<tr><td>{escape(_cut(name, _NAME_AT_MOST))}</td><td>{escape(_cut(of_type, _TITLE_AT_MOST))}</td></tr>"
        for name, of_type in columns[:COLUMNS_AT_MOST]
    )
    more = len(columns) - COLUMNS_AT_MOST
    rest = f'<tr><td colspan="2">and {more} more columns</td></tr>' if more > 0 else ""
    return (
        f"<div><b>{escape(kind)}</b> {escape(_cut(title, _TITLE_AT_MOST))}"
        f"<table><thead><tr><th>column</th><th>type</th></tr></thead><tbody>{rows}{rest}</tbody></table></div>"
    )


def _cut(words: str, size: int) -> str:
    return words if len(words) <= size else f"{words[: size - 1]}…"
