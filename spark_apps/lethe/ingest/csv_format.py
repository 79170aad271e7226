"""Reads CSV as Arrow tables, each column with the type of the table's column.

The default is RFC 4180 with a header, in UTF-8; `CsvDialect` describes other dialects. Arrow parses blocks of whole records.
Before that every quote is checked: Arrow would also accept text after a closing quote and a quote without end, and change the
values around it. Errors name the row and the column, but never contain a value, or a name that only the file has.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from lethe.contract.settings import RFC_4180, CsvDialect
from lethe.ingest.buffer_store import BadFile
from lethe.ingest.exact_values import Flaw, is_too_fine, kind_of, may_be_too_fine
from lethe.ingest.json_format import zone_hint
from lethe.ingest.text_blocks import BLOCK_BYTES, JoinedFiles, OpenedFile, TextFile, whole_lines

_TRUE, _FALSE = ["true", "True", "TRUE"], ["false", "False", "FALSE"]
_INFINITY: Final = r"^\s*[+-]?(?i:inf|infinity)\s*$"
_HEX: Final = r"^\s*[+-]?0[xX]"
_DELIMITERS: Final = {",": "comma", ";": "semicolon", "\t": "tab", "|": "vertical bar", ":": "colon"}


def open_csv(file: Any, table: pa.Schema, dialect: CsvDialect = RFC_4180, positional: Sequence[str] = ()) -> OpenedFile:
    """Open a CSV file. An empty field is null, or an empty text in a text column, unless the dialect has a text for nulls.

    Args:
        positional: The columns of files without a header.

    Raises:
        BadFile: The file cannot be used, and reading it again does not change that.
    """
    records = _Records(file if isinstance(file, TextFile) else TextFile(file), dialect)
    blocks = records.blocks()
    first = next(blocks, b"")
    if dialect.header:
        names, first = records.header(first)
        _check_header(names, table, dialect)
    else:
        names = list(positional)
    reader = _CsvReader(records, names, table, dialect)
    rows = reader.table(first)

    def tables() -> Iterator[pa.Table]:
        yield rows
        for block in blocks:
            yield reader.table(block)

    return OpenedFile(rows.schema, tables())


def join_csv(files: Sequence[bytes], table: pa.Schema, dialect: CsvDialect) -> JoinedFiles | None:
    """Read several files with the same header at once. None: they have to be read one by one.

    Raises:
        BadFile: Any of them cannot be used.
    """
    if not dialect.header:
        return None
    records = _Records(TextFile(None), dialect)
    names, records_part = records.header(files[0])
    _check_header(names, table, dialect)
    head = files[0].removesuffix(records_part)
    # A header without an end of its line may be the beginning of another one.
    if not head.endswith(b"\n") or not all(f.startswith(head) for f in files):
        return None
    bodies = [whole_lines(f.removeprefix(head)) for f in files]
    counts: list[int] = []
    for body in bodies:
        count = records.count(body)
        if count is None:
            return None
        counts.append(count)
    return JoinedFiles(_CsvReader(records, names, table, dialect).table(b"".join(bodies)), counts)


def _check_header(names: list[str], table: pa.Schema, dialect: CsvDialect) -> None:
    kept = [n for n in names if n not in dialect.ignore_columns]
    if "" in kept:
        raise BadFile(
            "SchemaMismatch",
            f"column number {names.index('') + 1} is unnamed; give it a name, or ignore it: "
            'spec.buffer.csv.ignoreColumns: [""]',
        )
    if len(names) == 1 and names[0] not in table.names:
        for delimiter, name in _DELIMITERS.items():
            if delimiter != dialect.delimiter and set(names[0].split(delimiter)) & set(table.names):
                raise BadFile(
                    "SchemaMismatch",
                    f"its header is separated by the character {name}, expected {_named(dialect.delimiter)}; set "
                    f"spec.buffer.csv.delimiter: {delimiter!r}",
                )


def _named(delimiter: str) -> str:
    return _DELIMITERS.get(delimiter, repr(delimiter))


# --- Records ----------------------------------------------------------------------------------------------------------


class _Records:
    """The file in blocks that end where records end, in RFC 4180 with the dialect's delimiter and quote."""

    def __init__(self, file: TextFile, dialect: CsvDialect) -> None:
        self._file = file
        self.dialect = dialect
        self.row = -1 if dialect.header else 0  # the first of the next block; of a header -1

    @cached_property
    def _grammar(self) -> "_Grammar":
        return _Grammar.of(self.dialect)

    def blocks(self) -> Iterator[bytes]:
        """The blocks of the file, each of whole records.

        Raises:
            BadFile: A quote is not where the dialect allows one.
        """
        incomplete = b""
        for block in self._file.blocks():
            if len(block) < BLOCK_BYTES:
                incomplete += block  # probably the last
                if len(incomplete) < BLOCK_BYTES:
                    continue
                block, incomplete = incomplete, b""
            elif incomplete:
                block, incomplete = incomplete + block, b""
            end, found = self._records(block, is_last=False)
            if end == 0 and len(block) > 2 * BLOCK_BYTES:
                raise BadFile("UnreadableFile", f"it is not readable as CSV (a row is longer than {BLOCK_BYTES} bytes)")
            incomplete = block[end:]
            if end:
                yield found
        if incomplete:
            yield self._records(incomplete, is_last=True)[1]

    def _records(self, block: bytes, is_last: bool) -> tuple[int, bytes]:
        """Where the last whole record of a block ends, and the whole records in RFC 4180."""
        quote, escape = self.dialect.quote.encode(), self.dialect.escape.encode()
        if not quote:
            return _end_of_lines(block, is_last)
        if not (escape and escape in block):
            end = self._end_if_regular(block, quote, is_last)
            if end is not None:
                return end, block[:end]
        end = self._end_of_records(block, is_last)
        records = block[:end]
        return end, self._grammar.as_rfc(records) if escape and escape in records else records

    def count(self, block: bytes) -> int | None:
        """The number of records and blank lines. None: it takes longer to find out."""
        quote, escape = self.dialect.quote.encode(), self.dialect.escape.encode()
        if (escape and escape in block) or block.count(b"\r") != block.count(b"\r\n"):
            return None
        if not quote or quote not in block:
            return block.count(b"\n")
        if self._end_if_regular(block, quote, is_last=True) is None:
            return None
        content = np.frombuffer(block, np.uint8)
        quotes, ends = (np.flatnonzero(content == ord(c)) for c in (quote, b"\n"))
        return int(np.count_nonzero(np.searchsorted(quotes, ends) % 2 == 0))

    def _end_if_regular(self, block: bytes, quote: bytes, is_last: bool) -> int | None:
        """Where the last whole record ends. None: not every quote begins or ends a field, or belongs to a pair within one."""
        if quote not in block:
            return _end_of_lines(block, is_last)[0]
        content = np.frombuffer(block, np.uint8)
        quote_positions = np.flatnonzero(content == quote[0])
        if len(quote_positions) % 2 and is_last:
            return None
        begins, ends = quote_positions[0::2], quote_positions[1::2]
        outside = np.zeros(256, bool)
        outside[[ord("\n"), ord("\r"), ord(self.dialect.delimiter)]] = True
        before = np.append(True, outside[content])[begins]
        after = np.append(outside[content], True)[ends + 1]
        pairs = begins[1:] == ends[: len(begins) - 1] + 1
        before[1:] |= pairs
        after[: len(pairs)] |= pairs
        if not (before.all() and after.all()):
            return None
        if is_last:
            return len(block)
        end = len(block)
        while (end := block.rfind(b"\n", 0, end)) >= 0:
            within = int(np.searchsorted(quote_positions, end))
            if within % 2 == 0:
                return end + 1
            end = int(quote_positions[within - 1])
        return 0

    def _end_of_records(self, block: bytes, is_last: bool) -> int:
        """Where the last whole record ends, by reading each.

        Raises:
            BadFile: The file cannot be used, and reading it again does not change that.
        """
        grammar, end, row = self._grammar, 0, self.row
        while end < len(block):
            record = grammar.record.match(block, end)
            if record is None:
                if not is_last and grammar.is_open(block, end):
                    return end
                raise BadFile(
                    "UnreadableFile", f"{_where(row)}it is not readable as CSV ({grammar.problem(block, end)})"
                )
            if not record[1] and not is_last:
                return end  # the record goes on in the next block
            if record[1] == b"\r" and record.end() == len(block) and not is_last:
                return end
            row += record.end() > record.start() + len(record[1])
            end = record.end()
        return end

    def header(self, block: bytes) -> tuple[list[str], bytes]:
        """The names of the columns, and the rest of the block.

        Raises:
            BadFile: The file cannot be used, and reading it again does not change that.
        """
        self.row = 0
        block = block.lstrip(b"\r\n")
        if not block:
            raise BadFile("UnreadableFile", "it is not readable as CSV (it has no header)")
        record = self._grammar.record.match(block)
        if record is None:
            raise BadFile(
                "UnreadableFile", f"{_where(-1)}it is not readable as CSV ({self._grammar.problem(block, 0)})"
            )
        head = block[: record.end()]
        if b"\0" in head:
            raise BadFile("UnreadableFile", "it is not readable as CSV (its header holds NUL bytes; expected UTF-8)")
        try:
            text = head.decode()
        except UnicodeDecodeError:
            raise BadFile("UnreadableFile", "it is not readable as CSV (its header is not UTF-8)") from None
        quote = self.dialect.quote
        options = {"quotechar": quote} if quote else {"quoting": csv.QUOTE_NONE}
        try:
            lines = io.StringIO(text, newline="")
            names = next(csv.reader(lines, delimiter=self.dialect.delimiter, **options), [])
        except csv.Error:
            raise BadFile("UnreadableFile", "it is not readable as CSV (check the header)") from None
        return names, block[len(head) :]


def _end_of_lines(block: bytes, is_last: bool) -> tuple[int, bytes]:
    """Where the last whole line ends, in a block without quotes."""
    if is_last:
        return len(block), block
    # A \r at the end may be the first half of \r\n.
    end = (block.rfind(b"\n") if b"\n" in block else block.rfind(b"\r", 0, -1)) + 1
    return end, block[:end]


@dataclass(frozen=True)
class _Grammar:
    """Regular expressions for one dialect."""

    field: re.Pattern[bytes]
    """The field, and the delimiter or the end of the line behind it."""
    record: re.Pattern[bytes]
    """Group 1: the end of the line; empty at the end of the block."""
    quoted: re.Pattern[bytes]
    """A quoted field."""
    quote: bytes
    escape: bytes

    @classmethod
    def of(cls, dialect: CsvDialect) -> "_Grammar":
        delimiter, quote, escape = (re.escape(c.encode()) for c in (dialect.delimiter, dialect.quote, dialect.escape))
        if escape:
            quoted = rb"%(q)b(?:[^%(q)b%(e)b]++|%(e)b[\s\S]|%(q)b%(q)b)*+%(q)b" % {b"q": quote, b"e": escape}
        elif quote:
            quoted = rb"%(q)b(?:[^%(q)b]++|%(q)b%(q)b)*+%(q)b" % {b"q": quote}
        else:
            quoted = rb"(?!)"
        no_quote = rb"(?!%b)" % quote if quote else b""
        field = rb"(?:%b|%b[^%b\r\n]*+)" % (quoted, no_quote, delimiter)
        ends = rb"(\r\n|\n|\r|\Z)"
        return cls(
            re.compile(rb"(%b)(%b|%b)" % (field, delimiter, ends)),
            re.compile(rb"(?:%b%b)*+%b%b" % (field, delimiter, field, ends)),
            re.compile(quoted),
            dialect.quote.encode(),
            dialect.escape.encode(),
        )

    def as_rfc(self, records: bytes) -> bytes:
        """The records without escapes: RFC 4180 writes a quote within a quoted field twice.

        Only a quote and the escape itself are escaped; elsewhere, the escape is an ordinary character, as for Spark.
        """
        pair = re.compile(rb"%b([%b%b])" % (re.escape(self.escape), re.escape(self.escape), re.escape(self.quote)))

        def plain(found: re.Match[bytes]) -> bytes:
            field: bytes = found[1]
            if not field.startswith(self.quote) or self.escape not in field:
                return found[0]
            doubled = lambda m: self.quote * 2 if m[1] == self.quote else m[1]  # noqa: E731
            return self.quote + pair.sub(doubled, field[1:-1]) + self.quote + found[2]

        return self.field.sub(plain, records)

    def _fault(self, block: bytes, start: int) -> int:
        """Where the first field begins that is not well-formed."""
        while (field := self.field.match(block, start)) is not None and field[3] is None and field.end() > start:
            start = field.end()
        return start

    def is_open(self, block: bytes, start: int) -> bool:
        """Whether the record has a quoted field that may end in the next block."""
        match = self.quoted.match(block, self._fault(block, start))
        return match is None or match.end() >= len(block) - 1

    def problem(self, block: bytes, start: int) -> str:
        """Why the record that begins here is not well-formed."""
        match = self.quoted.match(block, self._fault(block, start))
        if match is None:
            return "a quoted field has no end: a quote is missing, or the file was cut off"
        hint = ""
        if not self.escape and match[0][:-1].endswith(b"\\"):
            hint = "; if its producer escapes quotes by a backslash, as Spark does, set spec.buffer.csv.escape"
        return (
            "there is text after a closing quote; expected RFC 4180, in which a quote within a quoted field is written "
            f"twice{hint}"
        )


def _where(row: int) -> str:
    return f"row {row}: " if row >= 0 else "the header: "


# --- Columns ----------------------------------------------------------------------------------------------------------


class _CsvReader:
    """Converts records to columns."""

    def __init__(self, records: _Records, names: list[str], table: pa.Schema, dialect: CsvDialect) -> None:
        self._names = names
        self._dialect = dialect
        self._table = table
        self._records = records
        self._row = 0  # of the next record
        counts, types_by_name = Counter(names), {f.name: f.type for f in table}
        self._kept = [n for n in counts if n not in dialect.ignore_columns]
        # Of a table's column that CSV cannot hold, only empty fields are accepted.
        self._unreadable = [
            n
            for n in self._kept
            if n in types_by_name and (pa.types.is_nested(types_by_name[n]) or pa.types.is_binary(types_by_name[n]))
        ]
        self._types = {n: types_by_name.get(n, pa.string()) for n in self._kept} | dict.fromkeys(
            self._unreadable, pa.string()
        )
        twice = next((n for n in self._kept if counts[n] > 1), None)
        if twice is not None:
            which = f"column {twice}" if twice in types_by_name else f"column number {names.index(twice) + 1}"
            raise BadFile("SchemaMismatch", f"{which} is in the file {counts[twice]} times")

    def table(self, block: bytes) -> pa.Table:
        """The columns of whole records.

        Raises:
            BadFile: The file cannot be used, and reading it again does not change that.
        """
        if len(self._names) == 1:
            self._check_blank_lines(block)
        decimals = [n for n, t in self._types.items() if pa.types.is_decimal(t)]
        if decimals and may_be_too_fine(block):
            self._check_decimals(block, decimals)
        rows = self._read(block, self._types) if block.strip(b"\r\n") else self._empty()
        if b"0x" in block or b"0X" in block:
            self._check_numbers(block, [n for n, t in self._types.items() if pa.types.is_integer(t)], _HEX)
        if infinite := [n for n in self._kept if _has_infinity(rows.column(n))]:
            self._check_infinity(block, rows, infinite)
        for name in self._unreadable:
            rows = self._without_texts(rows, name)
        self._row += rows.num_rows
        self._records.row = self._row
        return rows

    def _empty(self) -> pa.Table:
        return pa.schema(list(self._types.items())).empty_table()

    def _read(self, block: bytes, types: dict[str, pa.DataType], **parse: Any) -> pa.Table:
        """These columns, in these types.

        Raises:
            BadFile: The file cannot be used, and reading it again does not change that.
        """
        null, quote = self._dialect.null_text, self._dialect.quote
        options = pa_csv.ConvertOptions(
            column_types=types,
            include_columns=list(types),
            null_values=[""] if null is None else [null],
            strings_can_be_null=null is not None,
            quoted_strings_can_be_null=null is None,
            true_values=_TRUE,
            false_values=_FALSE,
        )
        try:
            return pa_csv.read_csv(
                pa.BufferReader(block),
                pa_csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=self._names),
                pa_csv.ParseOptions(
                    delimiter=self._dialect.delimiter, quote_char=quote or False, newlines_in_values=True, **parse
                ),
                options,
            )
        except pa.ArrowInvalid as e:
            raise self._refusal(str(e)) from e

    def _refusal(self, text: str) -> BadFile:
        match = re.search(r"Row #(\d+)", text)
        where = f"row {self._row + int(match[1]) - 1}: " if match else ""
        if column := re.search(r"In CSV column #(\d+)", text):
            name = self._names[int(column[1])]
            which = f"column {name}" if name in self._table.names else f"column number {int(column[1]) + 1}"
            if "UTF8" in text:
                return BadFile("UnreadableFile", f"{where}{which} holds text that is not UTF-8")
            type_name = kind_of(self._types[name])
            return BadFile(
                "SchemaMismatch", f"{where}{which} holds a value that is not of type {type_name}{zone_hint(text)}"
            )
        if counted := re.search(r"Expected (\d+) columns, got (\d+)", text):
            expected = "the header has" if self._dialect.header else "the table without the batch column has"
            return BadFile(
                "UnreadableFile",
                f"{where}it has {counted[2]} fields, but {expected} {counted[1]}; expected CSV (RFC 4180)",
            )
        return BadFile("UnreadableFile", f"{where}it is not readable as CSV")

    def _check_numbers(self, block: bytes, names: list[str], pattern: str) -> None:
        """Refuse numbers that Arrow reads and other readers do not."""
        if not names:
            return
        for name, texts in self._texts(block, names).items():
            self._refuse_first(name, pc.match_substring_regex(texts, pattern))

    def _check_decimals(self, block: bytes, names: list[str]) -> None:
        """Refuse decimals with more digits after the point than Arrow can read."""
        for name, texts in self._texts(block, names).items():
            fine = [text is not None and is_too_fine(text) for text in texts.to_pylist()]
            self._refuse_first(name, pa.chunked_array([pa.array(fine, pa.bool_())]))

    def _check_infinity(self, block: bytes, rows: pa.Table, names: list[str]) -> None:
        """Refuse numbers that are too large for their type, which Arrow reads as infinite."""
        for name, texts in self._texts(block, names).items():
            is_infinite = pc.is_inf(rows.column(name))
            self._refuse_first(name, pc.and_(is_infinite, pc.invert(pc.match_substring_regex(texts, _INFINITY))))

    def _texts(self, block: bytes, names: list[str]) -> dict[str, pa.ChunkedArray]:
        texts = self._read(block, dict.fromkeys(names, pa.string()))
        return {n: texts.column(n) for n in names}

    def _refuse_first(self, name: str, is_wrong: pa.ChunkedArray) -> None:
        row = pc.index(is_wrong, True).as_py()
        if row >= 0:
            problem = f"holds a value that is not of type {kind_of(self._types[name])}"
            raise BadFile("SchemaMismatch", str(Flaw(self._row + row, name, problem)))

    def _without_texts(self, rows: pa.Table, name: str) -> pa.Table:
        """The rows with nulls of the type null in a column that CSV cannot hold.

        Raises:
            BadFile: It holds a text.
        """
        index, expected = self._kept.index(name), kind_of(self._table.field(name).type)
        is_text = pc.not_equal(pc.fill_null(rows.column(index), ""), "")
        if (row := pc.index(is_text, True).as_py()) >= 0:
            raise BadFile(
                "SchemaMismatch",
                str(Flaw(self._row + row, name, f"holds text, expected {expected}, which CSV cannot hold")),
            )
        return rows.set_column(index, pa.field(name, pa.null()), pa.chunked_array([pa.nulls(rows.num_rows)]))

    def _check_blank_lines(self, block: bytes) -> None:
        """Refuse blank lines between the records of a single column: they may be empty fields."""
        within = block.rstrip(b"\r\n")
        if not re.search(rb"\A[\r\n]|\n\r?\n|\r\r", within):
            return
        types = {self._names[0]: pa.string()}
        if self._read(within, types).num_rows != self._read(within, types, ignore_empty_lines=False).num_rows:
            raise BadFile(
                "UnreadableFile",
                "it is not readable as CSV (a line is blank, and in a file with one column it may be an empty field; write "
                'an empty field as "")',
            )


def _has_infinity(values: pa.ChunkedArray) -> bool:
    return pa.types.is_floating(values.type) and bool(pc.any(pc.is_inf(values), min_count=0).as_py())
