"""Reads Avro files as Arrow tables, with fastavro. Only types that Arrow has are supported.

fastavro decodes the physical types, and Arrow converts them to the logical ones: fastavro would round decimals with too many
digits, and has no times outside the years 1 to 9999, so that the row and the column of such a value would be unknown.
"""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from itertools import islice
from typing import Any, Final

import fastavro
import pyarrow as pa

from lethe.base.avro import CODECS, reader
from lethe.ingest.buffer_store import BadFile, Damaged
from lethe.ingest.exact_values import Flaw, HybridCalendar, calendar_of, converted, first_flaw, nested, shown
from lethe.ingest.text_blocks import ROWS_PER_BATCH, OpenedFile

_PRIMITIVE: Final[Mapping[str, pa.DataType]] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: Final[Mapping[tuple[str, str], pa.DataType]] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    # In Avro, a timestamp is an instant, and a local-timestamp is a local time without a zone.
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}
_HEADER: Final = fastavro.parse_schema(
    {
        "type": "record",
        "name": "Header",
        "fields": [
            {"name": "magic", "type": {"type": "fixed", "name": "Magic", "size": 4}},
            {"name": "meta", "type": {"type": "map", "values": "bytes"}},
            {"name": "sync", "type": {"type": "fixed", "name": "Sync", "size": 16}},
        ],
    }
)
_SCHEMA: Final = "avro.schema"
_CODEC: Final = "avro.codec"
_DIGITS_AT_MOST: Final = 38
UNICODE_ERRORS: Final = "surrogateescape"
"""How a text that is not UTF-8 is decoded: with lone surrogates, which Arrow refuses, so that its column can be found."""


def open_avro(file: Any, table: pa.Schema, column: str | None = None) -> OpenedFile:
    """Open an Avro file.

    Args:
        column: The only one of its columns that is converted. None: all are.

    Raises:
        BadFile: Its schema is not a record, or Arrow does not have the type of a column.
    """
    stream = _UpToItsEnd(file)
    header: Any = fastavro.schemaless_reader(stream, _HEADER)
    meta: dict[str, bytes] = header["meta"]
    codec = meta.get(_CODEC, b"null").decode(errors="replace")
    if codec not in CODECS:
        raise BadFile(
            "UnreadableFile", f"its codec {shown(codec)} is not supported, expected one of {', '.join(CODECS)}"
        )
    written: Any = fastavro.parse_schema(json.loads(meta[_SCHEMA]))
    if not isinstance(written, dict) or written.get("type") != "record":
        raise BadFile(
            "SchemaMismatch", "its Avro schema is not a record, expected a record with the table's columns as fields"
        )
    records = Records.of(written, table)
    if column is not None:
        records = records.of_column(column)
    head = io.BytesIO()
    plain = {_SCHEMA: json.dumps(records.physical).encode()}
    fastavro.schemaless_writer(head, _HEADER, {**header, "meta": {**meta, **plain}})
    calendar = calendar_of({k.encode(): v for k, v in meta.items()})
    return OpenedFile(records.schema, _tables(_Joined(head.getvalue(), stream), records, calendar))


def _tables(stream: Any, records: "Records", calendar: HybridCalendar | None) -> Iterator[pa.Table]:
    """The rows of the file as Arrow tables.

    Raises:
        BadFile: The file cannot be used, and reading it again does not change that.
        Damaged: What was read is not a whole file.
    """
    row = 0
    try:
        left = iter(reader(stream, handle_unicode_errors=UNICODE_ERRORS))
        while found := list(islice(left, ROWS_PER_BATCH)):
            rows = records.rows(found, row)
            if calendar is not None and calendar.datetimes:
                calendar.check(rows, row)
            yield rows
            row += len(found)
    except (BadFile, Damaged, MemoryError, pa.ArrowException, GeneratorExit):
        raise
    except Exception as e:  # of any kind: the bytes are someone else's
        raise Damaged(f"a block after row {row} is damaged or cut off" if row else "it is damaged or cut off") from e


# --- Types ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Records:
    """The records of one Avro schema, as rows."""

    schema: pa.Schema
    """The columns."""
    physical: Any
    """The schema for fastavro, without logical types."""
    _raw: pa.Schema
    """The columns as fastavro decodes them."""

    @classmethod
    def of(cls, written: Mapping[str, Any], table: pa.Schema) -> "Records":
        """The columns of a record that fastavro has parsed.

        Raises:
            BadFile: Arrow does not have a type.
        """
        names = set(table.names)
        fields = [
            (f, f["name"] if f["name"] in names else _of_file(f["name"], n)) for n, f in enumerate(written["fields"], 1)
        ]
        of_types, of_raw = _Types(logical=True), _Types(logical=False)
        schema = pa.schema([pa.field(f["name"], of_types.of(f["type"], column)) for f, column in fields])
        raw = pa.schema([pa.field(f["name"], of_raw.of(f["type"], column)) for f, column in fields])
        return cls(schema, _physical(written), raw)

    def of_column(self, name: str) -> "Records":
        """The same records, as rows of one of the columns."""
        raw = pa.schema([self._raw.field(name)])
        return replace(self, schema=pa.schema([self.schema.field(name)]), _raw=raw)

    def rows(self, records: Sequence[Any], first_row: int = 0) -> pa.Table:
        """Records as fastavro decodes them with the schema `physical`, as rows of these columns.

        Raises:
            BadFile: The file cannot be used, and reading it again does not change that.

        Args:
            first_row: Of these records, for messages.
        """
        try:
            raw = pa.Table.from_pylist(records, schema=self._raw)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError):
            raise _refusal(self._flaw(records), first_row) from None
        columns = [
            self._column(values, field, first_row) for values, field in zip(raw.columns, self.schema, strict=True)
        ]
        return pa.table(columns, schema=self.schema)

    def _column(self, values: pa.ChunkedArray, field: pa.Field, first_row: int) -> pa.ChunkedArray:
        if values.type == field.type:
            return values
        try:
            return pa.chunked_array([converted(chunk, field.type, _logical) for chunk in values.chunks], field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise _refusal(first_flaw(values, lambda some: _problem(some, field)), first_row) from None

    def _flaw(self, records: Sequence[Any]) -> Flaw:
        """The first value that Arrow cannot hold."""
        for row, record in enumerate(records):
            for field in self._raw:
                try:
                    pa.array([record[field.name]], field.type)
                except UnicodeEncodeError:
                    path = _path_of_text(record[field.name], field.type, field.name)
                    return Flaw(row, path, "holds text that is not UTF-8")
                except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
                    return Flaw(row, field.name, f"holds a value that is not of type {field.type}")
        return Flaw(0, "", "holds a value that cannot be read")


def _refusal(flaw: Flaw, first_row: int) -> BadFile:
    return BadFile("SchemaMismatch", f"row {flaw.row + first_row}: column {flaw.path} {flaw.problem}")


def _of_file(name: str, number: int) -> str:
    """A column that the table does not have, for messages."""
    return name if shown(name) == name else f"number {number}"


class _Types:
    """The Arrow types of one Avro schema: with the logical types, or without."""

    def __init__(self, logical: bool) -> None:
        self._logical = logical
        self._known: dict[str, pa.DataType] = {}  # the named types that were defined before

    def of(self, avro: Any, column: str) -> pa.DataType:
        """`column`: its path, for error messages."""
        if isinstance(avro, list):
            others = [t for t in avro if t != "null"]
            if len(others) > 1:
                raise BadFile(
                    "SchemaMismatch", f"column {column} is a union of several Avro types, expected one type or null"
                )
            return self.of(others[0], column) if others else pa.null()
        if isinstance(avro, str):
            if avro not in _PRIMITIVE and avro not in self._known:
                raise BadFile("SchemaMismatch", f"column {column} has a recursive Avro type")
            return _PRIMITIVE.get(avro) or self._known[avro]
        return self._complex(avro, column)

    def _complex(self, avro: Mapping[str, Any], column: str) -> pa.DataType:
        kind, logical = avro["type"], avro.get("logicalType") if self._logical else None
        if kind == "array":
            return pa.list_(self.of(avro["items"], f"{column}.element"))
        if kind == "map":
            return pa.map_(pa.string(), self.of(avro["values"], f"{column}.value"))
        if kind == "record":
            made: pa.DataType = self._struct(avro, column)
        elif logical == "decimal" and kind in ("bytes", "fixed"):
            made = _decimal(avro, column)
        elif logical and isinstance(kind, str) and (kind, logical) in _LOGICAL:
            made = _local(avro) or _LOGICAL[kind, logical]
        elif kind == "fixed":
            made = pa.binary(avro["size"])
        elif kind == "enum":
            made = pa.string()
        else:  # readers must ignore unknown logical types
            made = self.of(kind, column)
        if "name" in avro:
            self._known[avro["name"]] = made
        return made

    def _struct(self, avro: Mapping[str, Any], column: str) -> pa.DataType:
        if not avro["fields"]:
            raise BadFile(
                "SchemaMismatch", f"column {column} is an Avro record without fields, which a table cannot have"
            )
        return pa.struct([(f["name"], self.of(f["type"], f"{column}.{shown(f['name'])}")) for f in avro["fields"]])


def _decimal(avro: Mapping[str, Any], column: str) -> pa.DataType:
    precision, scale = avro["precision"], avro.get("scale", 0)
    if not 0 <= scale <= precision <= _DIGITS_AT_MOST or precision < 1:
        raise BadFile(
            "SchemaMismatch",
            f"column {column} is decimal({precision},{scale}), expected at most {_DIGITS_AT_MOST} digits",
        )
    return pa.decimal128(precision, scale)


def _local(avro: Mapping[str, Any]) -> pa.DataType | None:
    """The type of a timestamp with `adjust-to-utc: false`, which Iceberg and Spark write for a local time. None: another type."""
    unit = {"timestamp-millis": "ms", "timestamp-micros": "us", "timestamp-nanos": "ns"}.get(avro["logicalType"])
    return pa.timestamp(unit) if unit and avro.get("adjust-to-utc") is False else None


def _physical(avro: Any) -> Any:
    """A parsed schema without its logical types."""
    if isinstance(avro, list):
        return [_physical(t) for t in avro]
    if not isinstance(avro, dict):
        return avro
    plain = {k: v for k, v in avro.items() if k in ("name", "aliases", "symbols", "size", "default")}
    plain["type"] = _physical(avro["type"])
    for key in ("items", "values"):
        if key in avro:
            plain[key] = _physical(avro[key])
    if "fields" in avro:
        plain["fields"] = [{"name": f["name"], "type": _physical(f["type"])} for f in avro["fields"]]
    return plain


def _logical(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Physical values as those of a logical type."""
    if not pa.types.is_decimal(target):
        return array.cast(target)
    context = Context(prec=_DIGITS_AT_MOST + 1)
    return pa.array(
        [
            None if v is None else Decimal(int.from_bytes(v, "big", signed=True)).scaleb(-target.scale, context)
            for v in array.to_pylist()
        ],
        target,
    )


def _problem(array: pa.Array, field: pa.Field) -> tuple[str, str] | None:
    try:
        converted(array, field.type, _logical)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return _path(array, field.type, field.name)
    return None


def _path(array: pa.Array, target: pa.DataType, path: str) -> tuple[str, str]:
    """The first part of a value that is not of its logical type."""
    if pa.types.is_nested(target):
        for name, field, part, _ in nested(array, target):
            try:
                converted(part, field.type, _logical)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                return _path(part, field.type, f"{path}.{name}")
    if pa.types.is_decimal(target):
        return path, f"holds a number with too many digits, expected decimal({target.precision},{target.scale})"
    return path, f"holds a value that is not of type {target}"


def _path_of_text(value: Any, t: pa.DataType, path: str) -> str:
    """The path of the first text that is not UTF-8."""
    if pa.types.is_struct(t) and isinstance(value, dict):
        parts = [(value[f.name], f.type, f"{path}.{f.name}") for f in t]
    elif pa.types.is_map(t) and isinstance(value, dict):
        parts = [(k, t.key_type, f"{path}.key") for k in value] + [
            (v, t.item_type, f"{path}.value") for v in value.values()
        ]
    elif pa.types.is_list(t) and isinstance(value, list):
        parts = [(v, t.value_type, f"{path}.element") for v in value]
    else:
        return path
    for part, of_type, name in parts:
        try:
            pa.array([part], of_type)
        except UnicodeEncodeError:
            return _path_of_text(part, of_type, name)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            continue
    return path


# --- Streams ----------------------------------------------------------------------------------------------------------


class _UpToItsEnd:
    """A file that is never asked for more bytes than it has.

    Arrow allocates what it is asked for, and a damaged length may be larger than the memory.
    """

    def __init__(self, file: Any) -> None:
        self._file, start = file, file.tell()
        self._left: int = file.seek(0, io.SEEK_END) - start
        file.seek(start)

    def read(self, size: int = -1) -> bytes:
        content: bytes = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(content)
        return content


class _Joined:
    """Some bytes, and then those of a stream."""

    def __init__(self, head: bytes, stream: Any) -> None:
        self._head = io.BytesIO(head)
        self._rest = stream

    def read(self, size: int = -1) -> bytes:
        content = self._head.read(size)
        if size >= 0 and len(content) == size:
            return content
        return content + bytes(self._rest.read(size if size < 0 else size - len(content)))
