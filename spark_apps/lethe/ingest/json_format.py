"""Reads JSON, one object per line, as Arrow tables, each column with the type of the table's column.

Arrow parses blocks of lines. What Arrow would accept and change is searched for in the block and in the result. Only if something
is wrong, Python parses the lines again, to find the row and the column. A time without a zone offset is not read as an instant,
and a time with one is not read as a local time. Errors name the row and the column, but never contain a value.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json

from lethe.base.errors import Verdict
from lethe.decoder.limits import TOO_COSTLY
from lethe.ingest.buffer_store import BadFile
from lethe.ingest.exact_values import (
    converted_column,
    has_decimals,
    is_too_fine,
    kind_of,
    may_be_too_fine,
    shown,
)
from lethe.ingest.text_blocks import BLOCK_BYTES, JoinedFiles, OpenedFile, TextFile, whole_lines

_OBJECT: Final = re.compile(rb"^[ \t\r]*\{", re.MULTILINE)
_LINE: Final = re.compile(rb"^[ \t\r]*[^ \t\r\n]", re.MULTILINE)
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"')
_ESCAPED_NUMBER: Final = re.compile(rb"\\u00(?:2[eEdD]|3[0-9]|[46]5)")
"""A point, a minus, a digit or an exponent as an escape: a decimal may have quotes."""
_NO_BRACKETS: Final = bytes(b for b in range(256) if b not in b"[]{}\n")
"""All bytes but the brackets and the ends of lines."""


def open_json(file: Any, table: pa.Schema, ignore_unknown: bool = False) -> OpenedFile:
    """Open a JSON file. A missing key is null.

    Args:
        ignore_unknown: Keys that the table does not have are dropped. False: those of the object itself become columns with an
            inferred type, for the error message, and those of nested objects raise BadFile.

    Raises:
        BadFile: The file cannot be used, and reading it again does not change that.
    """
    lines = _JsonLines(file if isinstance(file, TextFile) else TextFile(file), _columns_of(table, ignore_unknown))
    tables = lines.tables()
    first = next(tables, None)
    if first is None:
        raise BadFile("UnreadableFile", "it holds no JSON object, expected one per line")

    def rest() -> Iterator[pa.Table]:
        yield first
        for rows in tables:
            if rows.schema.names != first.schema.names and not set(rows.schema.names) <= set(first.schema.names):
                lines.refuse_unknown(first.schema.names)
            yield rows

    return OpenedFile(first.schema, rest())


def join_json(files: Sequence[bytes], table: pa.Schema, nesting: int) -> JoinedFiles | None:
    """Read several files at once. None: they have to be read one by one."""
    parts = [whole_lines(f) for f in files]
    block = b"".join(parts)
    content = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(content == ord("\n"))
    # If each line begins and ends an object, it holds at least one. If there are as many rows as lines, none holds two.
    if (content[ends - 1] != ord("}")).any():
        return None
    rows = _JsonLines(TextFile(None, nesting=nesting), _columns_of(table, ignore_unknown=False)).rows(block)
    lines = np.searchsorted(ends, np.cumsum([len(p) for p in parts]))
    return None if rows is None else JoinedFiles(rows, np.diff(lines, prepend=0).tolist())


class _Columns:
    """What follows from the columns of a table."""

    def __init__(self, table: pa.Schema, ignore_unknown: bool) -> None:
        self.table = table
        self.ignore_unknown = ignore_unknown
        # Of the table's columns, those that JSON can hold. Dates and times are read as text, as Arrow does not check zone
        # offsets.
        self.read = pa.schema([pa.field(f.name, _read_type(f.type)) for f in table if _in_json(f.type)])
        self.parse = pa_json.ParseOptions(
            explicit_schema=self.read, unexpected_field_behavior="ignore" if ignore_unknown else "infer"
        )
        self.has_decimals = any(has_decimals(f.type) for f in self.read)
        # Those that are read with another type.
        self.parsed = [table.field(f.name) for f in self.read if table.field(f.name).type != f.type]


_last: list[_Columns] = []
"""The columns of the last table, because a worker reads many files of one table."""


def _columns_of(table: pa.Schema, ignore_unknown: bool) -> _Columns:
    last = _last[0] if _last else None
    if last is None or last.table is not table or last.ignore_unknown is not ignore_unknown:
        last = _Columns(table, ignore_unknown)
        _last[:] = [last]
    return last


class _JsonLines:
    """The lines of a file, block by block."""

    def __init__(self, file: TextFile, columns: "_Columns") -> None:
        self._file = file
        self._columns = columns
        self._block = b""
        self._row = 0  # of the first line of the block

    def tables(self) -> Iterator[pa.Table]:
        for block in _whole_lines(self._file):
            self._block = block
            if rows := self.rows(block):
                yield rows
                self._row += rows.num_rows

    def rows(self, block: bytes) -> pa.Table | None:
        """The rows of whole lines. None: all are blank.

        Raises:
            BadFile: The file cannot be used, and reading it again does not change that.
        """
        lines = self._checked_lines(block)
        if not lines:
            return None
        if self._columns.has_decimals and (may_be_too_fine(block) or _ESCAPED_NUMBER.search(block)):
            self._check_decimals(block)
        options = pa_json.ReadOptions(use_threads=False, block_size=len(block) + 1)
        try:
            # One batch. `read_json` would take longer.
            reader = pa_json.open_json(pa.BufferReader(block), read_options=options, parse_options=self._columns.parse)
            rows = pa.Table.from_batches([reader.read_next_batch()])
        except pa.ArrowInvalid as e:
            self._refuse(str(e))
        if rows.num_rows != lines:
            self._refuse()
        read = self._columns.read
        if not rows.schema.equals(read) and any(
            f.name in read.names and f.type != read.field(f.name).type for f in rows.schema
        ):
            self._refuse()  # a key within a struct that the table does not have
        return self._parsed(rows)

    def _checked_lines(self, block: bytes) -> int:
        """The number of lines that are not blank.

        Raises:
            BadFile: For lines that are not objects, or that Arrow cannot read.
        """
        if not block.isascii():
            try:
                block.decode()
            except UnicodeDecodeError as e:
                self._refuse_line(block[: e.start], "it is not UTF-8")
        lines = block.count(b"\n") + (not block.endswith(b"\n"))
        if not block.startswith(b"{") or block.count(b"\n{") != lines - 1:
            lines = len(_LINE.findall(block))
            if len(_OBJECT.findall(block)) != lines:
                self._refuse()
        content = np.frombuffer(block, np.uint8)
        brackets = sum(np.count_nonzero(content == ord(c)) for c in "{[")
        if brackets > lines + self._file.nesting:
            self._check_depth(block)
        return lines

    def _check_decimals(self, block: bytes) -> None:
        """Refuse decimals with more digits after the point than Arrow can read."""
        for row, line in enumerate((line for line in block.split(b"\n") if line.strip()), self._row):
            if not (may_be_too_fine(line) or _ESCAPED_NUMBER.search(line)):
                continue
            problem = _line_problem(line, self._columns.table, self._columns.ignore_unknown)
            if problem is not None:
                raise BadFile(problem.reason, f"row {row}: {problem.message}")

    def _check_depth(self, block: bytes) -> None:
        """Arrow needs a level of its stack for each level of nesting."""
        most = self._file.nesting
        brackets = block.translate(None, _NO_BRACKETS)
        for _ in range(most):  # each time the innermost pairs disappear
            shorter = brackets.replace(b"[]", b"").replace(b"{}", b"")
            if len(shorter) == len(brackets):
                break
            brackets = shorter
        if all(len(line) <= most for line in brackets.split(b"\n")):
            return
        start = 0
        for line in block.splitlines(keepends=True):
            if _depth_of(line) > most:
                self._refuse_line(block[:start], f"it nests deeper than {most} levels", TOO_COSTLY)
            start += len(line)

    def _parsed(self, rows: pa.Table) -> pa.Table:
        """Dates and times in the types of the table."""
        columns: dict[str, Any] = dict(zip(rows.column_names, rows.columns, strict=True))
        try:
            for field in self._columns.parsed:
                columns[field.name] = converted_column(columns[field.name], field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            self._refuse()
        return pa.table(columns)

    def _refuse_line(self, before: bytes, problem: str, reason: str = "UnreadableFile") -> NoReturn:
        row = self._row + len(_LINE.findall(before[: before.rfind(b"\n") + 1]))
        raise BadFile(reason, f"row {row}: {problem}")

    def refuse_unknown(self, column_names: list[str]) -> NoReturn:
        """Refuse the block of the last table, which has a column that the first block did not have."""
        self._refuse_other_columns(column_names)
        self._refuse()

    def _refuse_other_columns(self, column_names: list[str]) -> None:
        for row, line in self._lines():
            if any(key not in column_names for key, _ in _pairs(line)):
                raise BadFile(
                    "SchemaMismatch",
                    f"row {row}: the line has a column that the table does not have; the table has "
                    + ", ".join(self._columns.table.names),
                )

    def _refuse(self, arrow: str = "") -> NoReturn:
        """Find the first line that is not a row of the table.

        Args:
            arrow: Arrow's message, if it found a problem.
        """
        for row, line in self._lines():
            problem = _line_problem(line, self._columns.table, self._columns.ignore_unknown)
            if problem is not None:
                raise BadFile(problem.reason, f"row {row}: {problem.message}")
        if not self._columns.ignore_unknown:
            self._refuse_other_columns(self._columns.table.names)
        number = re.search(r"in row (\d+)", arrow)
        where = f" (row {self._row + int(number[1])})" if number else ""
        raise BadFile("UnreadableFile", f"it is not readable as JSON, one object per line{where}")

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        lines = (line for line in self._block.split(b"\n") if line.strip())
        return enumerate(lines, self._row)


def _whole_lines(file: TextFile) -> Iterator[bytes]:
    """The file in blocks that end where lines end."""
    incomplete = b""
    for block in file.blocks():
        end = block.rfind(b"\n") + 1
        if end == 0 and len(incomplete) + len(block) <= BLOCK_BYTES:
            incomplete += block
            continue
        if end == 0:
            raise BadFile("UnreadableFile", f"it is not readable as JSON (a line is longer than {BLOCK_BYTES} bytes)")
        yield incomplete + block[:end] if incomplete else block[:end]
        incomplete = block[end:]
    if incomplete:
        yield incomplete


def _depth_of(line: bytes) -> int:
    brackets = np.frombuffer(_STRING.sub(b"", line), np.uint8)
    steps = np.isin(brackets, (ord("["), ord("{"))).astype(np.int64) - np.isin(brackets, (ord("]"), ord("}")))
    return int(steps.cumsum().max(initial=0))


def _read_type(target: pa.DataType) -> pa.DataType:
    """The type to read a column with."""
    if pa.types.is_temporal(target):
        return pa.string()
    if pa.types.is_struct(target):
        return pa.struct([pa.field(f.name, _read_type(f.type)) for f in target])
    if pa.types.is_list(target):
        return pa.list_(_read_type(target.value_type))
    return target


def _in_json(target: pa.DataType) -> bool:
    """Whether values of this type can be read from JSON."""
    if pa.types.is_struct(target):
        return all(_in_json(f.type) for f in target)
    if pa.types.is_list(target):
        return _in_json(target.value_type)
    return not (pa.types.is_map(target) or pa.types.is_binary(target))


def refuse_other_value(line: bytes) -> NoReturn:
    """Say what a line is that is not an object.

    Raises:
        BadFile: The file cannot be used, and reading it again does not change that.
    """
    problem = _line_problem(line, pa.schema([]), ignore_unknown=True)
    problem = problem or Verdict("UnreadableFile", "it is not readable as JSON, expected one object per line")
    raise BadFile(problem.reason, problem.message)


class _Number(str):
    """A number as it is written."""


class _JsonConstant(str):
    """NaN, Infinity or -Infinity, which JSON does not have."""


class _Pairs(list[tuple[str, Any]]):
    """The keys and values of an object, as often as they are written."""


def _pairs(line: bytes) -> _Pairs:
    try:
        document = _loads(line)
    except (ValueError, RecursionError):
        return _Pairs()
    return document if isinstance(document, _Pairs) else _Pairs()


def _loads(line: bytes) -> Any:
    return json.loads(
        line.decode(), object_pairs_hook=_Pairs, parse_int=_Number, parse_float=_Number, parse_constant=_JsonConstant
    )


def _line_problem(line: bytes, table: pa.Schema, ignore_unknown: bool) -> Verdict | None:
    unreadable = "UnreadableFile"
    try:
        document = _loads(line)
    except RecursionError:
        return Verdict(TOO_COSTLY, "it nests too deep")
    except json.JSONDecodeError as e:
        if e.msg == "Extra data" and line.decode()[e.pos :].lstrip().startswith(("{", "[", ",")):
            return Verdict(unreadable, "the line holds several JSON values, expected one object per line")
        if line.lstrip().startswith(b"["):
            return Verdict(unreadable, "it is a JSON array, expected one object per line")
        return Verdict(unreadable, "it is not readable as JSON, expected one object per line")
    except ValueError:
        return Verdict(unreadable, "it is not readable as JSON, expected one object per line")
    if not isinstance(document, _Pairs):
        return Verdict(unreadable, f"it is {_kind(document)}, expected one JSON object per line")
    fields = {f.name: f.type for f in table}
    for key, value in document:
        if sum(k == key for k, _ in document) > 1:
            return Verdict(unreadable, f"column {shown(key)} is given twice")
        target = fields.get(key)
        if target is None:
            if not ignore_unknown and (problem := _constant_in(value, shown(key))):
                return problem
        elif problem := _problem(value, target, key, ignore_unknown):
            return problem
    return None


def _constant_in(value: Any, path: str) -> Verdict | None:
    """A problem of JSON itself in a value that the table has no type for."""
    if isinstance(value, _JsonConstant):
        return Verdict("UnreadableFile", f"column {path} holds {value}, which JSON does not have")
    if isinstance(value, _Pairs):
        keys = [k for k, _ in value]
        for key, part in value:
            if keys.count(key) > 1:
                return Verdict("UnreadableFile", f"column {path}.{shown(key)} is given twice")
            if place := _constant_in(part, f"{path}.{shown(key)}"):
                return place
    elif isinstance(value, list):
        return next((p for part in value if (p := _constant_in(part, f"{path}.element"))), None)
    return None


def _problem(value: Any, target: pa.DataType, path: str, ignore_unknown: bool) -> Verdict | None:
    """Why a value is not of a type."""
    if value is None:
        return None
    if place := _constant_in(value, path):
        return place
    if pa.types.is_struct(target) and isinstance(value, _Pairs):
        fields = {f.name: f.type for f in target}
        for key, part in value:
            if key not in fields:
                if ignore_unknown:
                    continue
                return Verdict(
                    "SchemaMismatch", f"column {path}.{shown(key)} is only in the file, expected no such field"
                )
            if problem := _problem(part, fields[key], f"{path}.{key}", ignore_unknown):
                return problem
        return None
    if pa.types.is_list(target) and isinstance(value, list) and not isinstance(value, _Pairs):
        parts = (_problem(part, target.value_type, f"{path}.element", ignore_unknown) for part in value)
        return next((p for p in parts if p), None)
    text = _leaf_problem(value, target)
    return Verdict("SchemaMismatch", f"column {path} {text}") if text else None


def _leaf_problem(value: Any, target: pa.DataType) -> str | None:
    expected = f"expected {kind_of(target)}"
    if pa.types.is_boolean(target):
        return None if isinstance(value, bool) else f"holds {_kind(value)}, {expected}"
    if pa.types.is_string(target):
        if not isinstance(value, str) or isinstance(value, _Number):
            return f"holds {_kind(value)}, {expected}"
        return None if _is_unicode(value) else "holds half of a surrogate pair, expected text in UTF-8"
    if pa.types.is_temporal(target):
        if not isinstance(value, str) or isinstance(value, _Number):
            return f"holds {_kind(value)}, {expected} as text"
        return time_problem(value, target)
    if pa.types.is_decimal(target):
        is_number = isinstance(value, str)  # Arrow reads decimals from texts, too
    else:
        is_number = isinstance(value, _Number)
    if not is_number or pa.types.is_nested(target):
        return f"holds {_kind(value)}, {expected}"
    return None if _in_range(value, target) else f"holds a value that is not of type {kind_of(target)}"


def _in_range(text: str, target: pa.DataType) -> bool:
    if pa.types.is_integer(target):
        bits = target.bit_width - 1
        return bool(re.fullmatch(r"-?\d{1,20}", text)) and -(2**bits) <= int(text) < 2**bits
    try:
        number = Decimal(text)
    except InvalidOperation:
        return False
    if pa.types.is_floating(target):
        with np.errstate(over="ignore"):
            return bool(np.isfinite(np.float32(text) if pa.types.is_float32(target) else np.float64(text)))
    if is_too_fine(text):
        return False
    try:
        pa.scalar(number, target)
    except (pa.ArrowException, ValueError):
        return False
    return True


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def time_problem(text: str, target: pa.DataType) -> str | None:
    """Why a text is not a date or a timestamp of this type."""
    try:
        pa.scalar(text).cast(target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeEncodeError) as e:
        return f"holds a value that is not of type {target}{zone_hint(str(e))}"
    return None


def zone_hint(arrow: str) -> str:
    """What Arrow's message says of zone offsets, in our words."""
    if "no zone offset" in arrow:
        return ": expected a local time, without a zone offset"
    if "a zone offset" in arrow:
        return ": expected an instant, with a zone offset such as Z"
    return ""


_KINDS: Final[Mapping[type, str]] = {
    bool: "a boolean",
    _Number: "a number",
    str: "a string",
    _Pairs: "an object",
    list: "an array",
    type(None): "null",
}


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "a value")
