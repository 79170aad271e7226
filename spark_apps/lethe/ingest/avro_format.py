"""Reads Avro files as Arrow tables, with fastavro. Only types that Arrow has are supported."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import fastavro
import pyarrow as pa

from lethe.ingest.buffer_store import BadFile
from lethe.ingest.opened_file import ROWS_PER_BATCH, OpenedFile

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
    ("string", "uuid"): pa.string(),
}


def open_avro(file: Any, table: pa.Schema) -> OpenedFile:
    """Open an Avro file. Raises: BadFile, if its schema is not a record, or Arrow does not have the type of a column."""
    reader = fastavro.reader(_UpToItsEnd(file))
    written: Any = reader.writer_schema
    if not isinstance(written, dict) or written.get("type") != "record":
        raise BadFile(
            "SchemaMismatch", "its Avro schema is not a record, expected a record with the table's columns as fields"
        )
    schema, uuids = columns_of_record(written, table)
    return OpenedFile(schema, _tables(reader, schema, uuids))


def columns_of_record(written: Mapping[str, Any], table: pa.Schema) -> tuple[pa.Schema, list[str]]:
    """The Arrow columns of an Avro record, and which of them are UUIDs. Raises: BadFile, if Arrow does not have a type."""
    known: dict[str, Any] = {}
    fields = enumerate(written["fields"], 1)
    schema = pa.schema([_field(f, known, f["name"] if f["name"] in table.names else f"number {n}") for n, f in fields])
    return schema, [f["name"] for f in written["fields"] if _is_uuid(f["type"])]


def rows_of_records(records: list[Any], schema: pa.Schema, uuids: Sequence[str]) -> pa.Table:
    """Records as fastavro decodes them, as rows of these columns. Changes the records."""
    for name in uuids:
        for record in records:
            record[name] = None if record[name] is None else str(record[name])
    return pa.Table.from_pylist(records, schema=schema)


class _UpToItsEnd:
    """A file that is never asked for more bytes than it has. Arrow allocates what it is asked for, and a damaged length may be
    larger than the memory."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._left: int = file.size() - file.tell()

    def read(self, size: int = -1) -> bytes:
        found: bytes = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(found)
        return found


def _tables(reader: Any, schema: pa.Schema, uuids: list[str]) -> Iterator[pa.Table]:
    records = iter(reader)
    while rows := list(islice(records, ROWS_PER_BATCH)):
        yield rows_of_records(rows, schema, uuids)


def _field(field: Mapping[str, Any], known: dict[str, Any], column: str) -> pa.Field:
    return pa.field(field["name"], _type(field["type"], known, column))


def _type(avro: Any, known: dict[str, Any], column: str) -> pa.DataType:
    """The Arrow type of an Avro type.

    Args:
        known: The named types that were defined before.
        column: For error messages.
    """
    if isinstance(avro, list):
        others = [t for t in avro if t != "null"]
        if len(others) > 1:
            raise BadFile(
                "SchemaMismatch", f"column {column} is a union of several Avro types, expected one type or null"
            )
        return _type(others[0], known, column) if others else pa.null()
    if isinstance(avro, str):
        if avro not in _PRIMITIVE and known.get(avro) is None:
            raise BadFile("SchemaMismatch", f"column {column} has a recursive Avro type")
        return _PRIMITIVE.get(avro) or known[avro]
    return _complex(avro, known, column)


def _complex(avro: Mapping[str, Any], known: dict[str, Any], column: str) -> pa.DataType:
    kind, logical = avro["type"], avro.get("logicalType")
    if kind == "array":
        return pa.list_(_type(avro["items"], known, column))
    if kind == "map":
        return pa.map_(pa.string(), _type(avro["values"], known, column))
    if kind == "record":
        made: pa.DataType = pa.struct([_field(f, known, column) for f in avro["fields"]])
    elif logical == "decimal":
        made = pa.decimal128(avro["precision"], avro.get("scale", 0))
    elif logical and (kind, logical) in _LOGICAL:
        made = _local(avro) or _LOGICAL[kind, logical]
    elif kind == "fixed":
        made = pa.binary(avro["size"])
    elif kind == "enum":
        made = pa.string()
    else:  # readers must ignore unknown logical types
        made = _type(kind, known, column)
    if "name" in avro:
        known[avro["name"]] = made
    return made


def _local(avro: Mapping[str, Any]) -> pa.DataType | None:
    """The type of a timestamp with `adjust-to-utc: false`, which Iceberg and Spark write for a local time. None: another type."""
    unit = {"timestamp-millis": "ms", "timestamp-micros": "us", "timestamp-nanos": "ns"}.get(avro["logicalType"])
    return pa.timestamp(unit) if unit and avro.get("adjust-to-utc") is False else None


def _is_uuid(avro: Any) -> bool:
    if isinstance(avro, list):
        return any(_is_uuid(t) for t in avro)
    return isinstance(avro, dict) and avro.get("logicalType") == "uuid" and avro["type"] == "string"
