"""Lays out tables and records for a terminal. Names, ids and paths stay whole: only spaces become ends of lines. Pure.

If a table is too wide, its longest texts are wrapped. If that is not enough, optional columns are left out, and then each row
becomes a record: a line for each column.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from rich.cells import cell_len
from rich.text import Text

GAP: Final = "  "
_READABLE: Final = 24
"""Texts are not wrapped to fewer characters than this."""
_HEADER_STYLE: Final = "bold"
_CONTROL: Final = {c: repr(chr(c))[1:-1] for c in (*range(32), *range(127, 160))} | dict.fromkeys(b"\t\n\r", " ")
"""Values of rows must not move the cursor."""


@dataclass(frozen=True)
class PrintedTable:
    """A table as lines."""

    lines: tuple[Text, ...]
    left_out: tuple[str, ...] = ()
    """The headers of the columns for which there is no room."""


@dataclass(frozen=True)
class PrintedColumn:
    """A column with its cells."""

    header: str
    cells: tuple[str, ...]
    is_right: bool
    """Aligned to the right."""

    @property
    def width(self) -> int:
        """Of the longest cell."""
        return max(map(cell_len, (self.header, *self.cells)))

    @property
    def least_width(self) -> int:
        """Of the longest word, or what is still easy to read."""
        return max(min(self.width, _READABLE), _longest_word(self.header, *self.cells))


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int | None,
    right: frozenset[str] = frozenset(),
    optional: Sequence[str] = (),
    styles: Mapping[str, str] | None = None,
) -> PrintedTable:
    """Lay out rows below their headers.

    Args:
        headers: One for each column.
        rows: One cell for each header; an empty one has no value.
        width: The characters of a line; None: as many as there are.
        right: The columns that are aligned to the right.
        optional: The columns that can be left out, the least important first.
        styles: The styles of cells, by their whole text.
    """
    printable = [[cell.translate(_CONTROL) for cell in row] for row in rows]
    columns = [
        PrintedColumn(h, tuple(row[n] for row in printable), h in right) for n, h in enumerate(headers)
    ]  # fmt: skip
    if width is None:
        return PrintedTable(tuple(_lines(columns, [c.width for c in columns], styles or {})))
    least = {c.header: c.least_width for c in columns}
    for count in range(len(optional) + 1):
        left_out = optional[:count]
        shown = [c for c in columns if c.header not in left_out]
        if sum(least[c.header] for c in shown) + len(GAP) * (len(shown) - 1) <= width:
            widths = _shrunk([c.width for c in shown], [least[c.header] for c in shown], width)
            return PrintedTable(tuple(_lines(shown, widths, styles or {})), tuple(h for h in headers if h in left_out))
    return PrintedTable(tuple(_records(headers, printable, width, styles or {})))


def record(pairs: Sequence[tuple[str, str]], width: int | None, styles: Mapping[str, str] | None = None) -> list[Text]:
    """A line for each name and its value, without the pairs that have no value."""
    indent = max((cell_len(name) for name, _ in pairs), default=0) + len(GAP)
    lines = []
    for name, value in ((n, v.translate(_CONTROL)) for n, v in pairs if v):
        style = (styles or {}).get(value, "")
        if width is None or indent + _longest_word(value) <= width:
            head, begin = Text(_padded(name, indent)), " " * indent
            room = None if width is None else width - indent
        else:  # the word gets a line of its own
            lines.append(Text(name))
            head, begin, room = Text(""), "", width
        for n, line in enumerate(wrapped(value, room)):
            lines.append((head if n == 0 else Text(begin)).append(line, style))
    return lines


def wrapped(text: str, width: int | None) -> list[str]:
    """The text in lines of at most this width. A longer word gets a line of its own."""
    if width is None or cell_len(text) <= width:
        return [text]
    lines: list[str] = []
    words = text.split(" ")
    ends = list(accumulate(cell_len(word) + 1 for word in words))
    begin, start = 0, 0
    for n, end in enumerate(ends):
        if n > begin and end - 1 - start > width:
            lines.append(" ".join(words[begin:n]))
            begin, start = n, ends[n - 1]
    return [*lines, " ".join(words[begin:])]


def _lines(columns: Sequence[PrintedColumn], widths: Sequence[int], styles: Mapping[str, str]) -> Iterator[Text]:
    """The header, and one or more lines for each row."""
    yield _line([c.header for c in columns], columns, widths, [_HEADER_STYLE] * len(columns))
    for cells in zip(*(c.cells for c in columns), strict=True):
        parts = [wrapped(cell, width) for cell, width in zip(cells, widths, strict=True)]
        for n in range(max(map(len, parts))):
            line = [part[n] if n < len(part) else "" for part in parts]
            yield _line(line, columns, widths, [styles.get(cell, "") for cell in cells])


def _line(cells: Sequence[str], columns: Sequence[PrintedColumn], widths: Sequence[int], styles: Sequence[str]) -> Text:
    line = Text()
    for n, (cell, column, width, style) in enumerate(zip(cells, columns, widths, styles, strict=True)):
        space = " " * (width - cell_len(cell))
        line.append(GAP if n else "").append(space if column.is_right else "")
        line.append(cell, style).append("" if column.is_right else space)
    line.rstrip()
    return line


def _records(
    headers: Sequence[str], rows: Sequence[Sequence[str]], width: int, styles: Mapping[str, str]
) -> Iterator[Text]:
    for n, row in enumerate(rows):
        if n:
            yield Text()
        yield from record(list(zip(headers, row, strict=True)), width, styles)


def _shrunk(wanted: Sequence[int], least: Sequence[int], width: int) -> list[int]:
    """Widths that fit: the widest columns give way first."""
    widths = [max(min(w, width), m) for w, m in zip(wanted, least, strict=True)]
    too_many = sum(widths) + len(GAP) * (len(widths) - 1) - width
    for _ in range(too_many):
        widest = max((n for n, w in enumerate(widths) if w > least[n]), key=lambda n: widths[n])
        widths[widest] -= 1
    return widths


def _longest_word(*texts: str) -> int:
    return max((cell_len(word) for text in texts for word in text.split(" ")), default=0)


def _padded(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))
