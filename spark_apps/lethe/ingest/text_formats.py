"""Reads JSON (one object per line) and CSV as Arrow tables, each column with the type of the table's column.

Invariants: a time without a zone offset is not read as an instant, and a time with one is not read as a local time. Errors name
the line, a column of the table and a type, but never contain a value, or a name that only the file has.
"""

import csv
import re
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json

from lethe.ingest.buffer_store import BadFile
from lethe.ingest.opened_file import OpenedFile

BLOCK_BYTES: Final = 8 * 1024 * 1024  # decoded at once; also the maximum length of a line
_HEAD_BYTES: Final = 64 * 1024
_UNKNOWN: Final = "a column that the table does not have"
_TRUE, _FALSE = ["true", "True", "TRUE"], ["false", "False", "FALSE"]


# --- JSON -------------------------------------------------------------------------------------------------------------


def open_json(file: Any, table: pa.Schema) -> OpenedFile:
    """Open a JSON file. A missing key is null. Keys that the table does not have get an inferred type, for the error message."""
    schema = pa.schema([pa.field(f.name, _read_type(f.type)) for f in table if _in_json(f.type)])
    try:
        reader = pa_json.open_json(
            file,
            read_options=pa_json.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
            parse_options=pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="infer"),
        )
    except pa.ArrowInvalid as e:
        raise _of_json(e, schema) from e
    fields = [table.field(f.name) if f.name in schema.names else f for f in reader.schema]
    return OpenedFile(pa.schema(fields), _json_tables(reader, schema, table))


def _json_tables(reader: Any, schema: pa.Schema, table: pa.Schema) -> Iterator[pa.Table]:
    while True:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            return
        except pa.ArrowInvalid as e:
            raise _of_json(e, schema) from e
        rows = pa.Table.from_batches([batch])
        for n, field in enumerate(rows.schema):
            if field.name in schema.names and field.type != (wanted := table.field(field.name).type):
                rows = rows.set_column(n, field.name, _parsed(rows.column(n), field.name, wanted))
        yield rows


def _read_type(wanted: pa.DataType) -> pa.DataType:
    """The type to read a column with. Dates and times are read as text, as Arrow's JSON reader does not check zone offsets."""
    if pa.types.is_temporal(wanted):
        return pa.string()
    if pa.types.is_struct(wanted):
        return pa.struct([pa.field(f.name, _read_type(f.type)) for f in wanted])
    if pa.types.is_list(wanted):
        return pa.list_(_read_type(wanted.value_type))
    return wanted


def _in_json(wanted: pa.DataType) -> bool:
    """Whether values of this type can be read from JSON."""
    if pa.types.is_struct(wanted):
        return all(_in_json(f.type) for f in wanted)
    if pa.types.is_list(wanted):
        return _in_json(wanted.value_type)
    return not (pa.types.is_map(wanted) or pa.types.is_binary(wanted))


def _parsed(values: pa.ChunkedArray, column: str, wanted: pa.DataType) -> pa.ChunkedArray:
    try:
        return values.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
        raise _not_of_type(column, f"type {wanted}", "", str(e)) from e


def _of_json(error: pa.ArrowInvalid, schema: pa.Schema) -> BadFile:
    text = str(error)
    if changed := re.search(r"Column\(/([^)]*)\) changed from (\w+) to (\w+)", text):
        path, expected, found = changed.groups()
        column = path.partition("/")[0]
        which = f"column {column}" if column in schema.names else _UNKNOWN
        return BadFile("SchemaMismatch", f"{which} holds a {found}, expected a {expected} in every row")
    if failed := re.search(r"Failed to convert JSON to (.+?)(?:, couldn't|: )", text):
        columns = [f.name for f in schema if str(f.type) == failed[1]]
        many = f"one of the columns {', '.join(columns)}" if columns else "a nested column"
        which = f"column {columns[0]}" if len(columns) == 1 else many
        return BadFile("SchemaMismatch", f"{which} holds a value that is not of type {failed[1]}")
    if "unexpected field" in text:
        return BadFile(
            "SchemaMismatch", f"a line has a column that is not in the table; the table has {', '.join(schema.names)}"
        )
    if "straddling" in text:
        return BadFile("UnreadableFile", f"it is not readable as JSON (a line is longer than {BLOCK_BYTES} bytes)")
    row = re.search(r"in row (\d+)", text)
    where = f" (row {row[1]})" if row else ""
    return BadFile("UnreadableFile", f"it is not readable as JSON, one object per line{where}")


# --- CSV --------------------------------------------------------------------------------------------------------------


def open_csv(file: Any, table: pa.Schema) -> OpenedFile:
    """Open a CSV file: RFC 4180 with a header, in UTF-8. An empty field is null, or an empty text in a text column."""
    watched = _Quotes(file)
    types = {f.name: f.type for f in table if not (pa.types.is_nested(f.type) or pa.types.is_binary(f.type))}
    try:
        reader = pa_csv.open_csv(
            pa.PythonFile(watched, mode="r"),
            read_options=pa_csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True),
            convert_options=pa_csv.ConvertOptions(
                column_types=types, null_values=[""], strings_can_be_null=False, true_values=_TRUE, false_values=_FALSE
            ),
        )
    except pa.ArrowInvalid as e:
        raise _of_csv(e, watched, table) from e
    return OpenedFile(reader.schema, _csv_tables(reader, watched, table))


def _csv_tables(reader: Any, watched: "_Quotes", table: pa.Schema) -> Iterator[pa.Table]:
    while True:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            break
        except pa.ArrowInvalid as e:
            raise _of_csv(e, watched, table) from e
        yield pa.Table.from_batches([batch])
    if watched.count % 2:
        raise BadFile("UnreadableFile", "it is not readable as CSV (a quoted field has no end: the file was cut off)")


class _Quotes:
    """A file that counts its quotes, because Arrow accepts an open quote at the end, and keeps its first bytes."""

    closed = False

    def __init__(self, file: Any) -> None:
        self.file = file
        self.count = 0
        self.head = b""

    def read(self, size: int = -1) -> bytes:
        content = bytes(self.file.read(None if size is None or size < 0 else size))
        self.count += content.count(b'"')
        if len(self.head) < _HEAD_BYTES:
            self.head += content[:_HEAD_BYTES]
        return content

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None: ...

    def column(self, number: int) -> str:
        """The name of a column by its number, from the first line, which may not be a header; "": it has no such field."""
        header = next(csv.reader(self.head.decode("utf-8-sig", errors="replace").splitlines(keepends=True)), [])
        return header[number] if number < len(header) else ""


def _of_csv(error: pa.ArrowInvalid, watched: _Quotes, table: pa.Schema) -> BadFile:
    text = str(error)
    row = re.search(r"Row #(\d+)", text)
    where = f"row {row[1]}: " if row else ""
    if (where_ := re.search(r"In CSV column #(\d+)", text)) and "UTF8" not in text:
        number = int(where_[1])
        name = watched.column(number)
        if name not in table.names:
            return _not_of_type(f"number {number + 1}", "the type in its first rows", where, text)
        return _not_of_type(name, f"type {table.field(name).type}", where, text)
    if counted := re.search(r"Expected (\d+) columns, got (\d+)", text):
        return BadFile(
            "UnreadableFile",
            f"{where}it has {counted[2]} fields, but the header has {counted[1]}; expected CSV (RFC 4180)",
        )
    known = "it is not UTF-8" if "UTF8" in text else "a row is too long" if "straddling" in text else "check the header"
    return BadFile("UnreadableFile", f"{where}it is not readable as CSV ({known})")


def _not_of_type(column: str, wanted: str, where: str, text: str) -> BadFile:
    offset = ""
    if "no zone offset" in text:
        offset = ": expected a local time, without a zone offset"
    elif "a zone offset" in text:
        offset = ": expected an instant, with a zone offset such as Z"
    return BadFile("SchemaMismatch", f"{where}column {column} holds a value that is not of {wanted}{offset}")
