"""Splits the rows of record-level change data into rows to add and keys of rows to delete. Pure: Arrow in, Arrow out.

Runs in Spark's Python workers, and finally on the driver. Invariant: no error message contains a value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lethe.iceberg.column_path import ColumnName, values_at
from lethe.ingest.buffer_store import BadFile
from lethe.ingest.exact_values import is_text, plain_type
from lethe.ingest.schema_fit import Fitting

KEYS_AT_MOST: Final = 1_000_000
"""The most keys of a replacement, because the driver and each worker keep them in memory."""
DELETE: Final = "D"
_ADD: Final = ("U", "I", "")
"""The other values, for rows to add. A null means the same, and in CSV a null is an empty text."""
_OF: Final = "_lethe_file"


@dataclass(frozen=True)
class Keyed:
    """The special columns of change data."""

    keys: tuple[ColumnName, ...]
    """The columns of the key, or fields of structs."""
    op: str = ""
    """The column with the operation of each row; "": all rows are added."""

    def to_read(self, table: pa.Schema) -> pa.Schema:
        """The columns of the table and `op`. Text formats need them, because their files contain no types."""
        return table.append(pa.field(self.op, pa.string())) if self.op else table

    def without_op(self, file: pa.Schema) -> pa.Schema:
        """The columns of a file without `op`.

        Raises:
            BadFile: It lacks a key column or `op`.
        """
        for column, *_ in self.keys:
            if column not in file.names:
                raise BadFile("SchemaMismatch", f"column {column}, one of spec.replacement.keyColumns, is missing")
        if not self.op:
            return file
        if file.names.count(self.op) != 1:
            raise BadFile(
                "SchemaMismatch", f"column {self.op}, spec.replacement.opColumn, must be in the file exactly once"
            )
        kind = file.field(self.op).type
        if not (pa.types.is_null(kind) or is_text(plain_type(kind))):
            raise BadFile("SchemaMismatch", f"column {self.op}, spec.replacement.opColumn, is {kind}, expected string")
        return file.remove(file.get_field_index(self.op))

    def parted(self, rows: pa.Table, fitting: Fitting) -> tuple[pa.Table, pa.Table]:
        """The rows to add, without `op`, and the keys of all rows, in the table's types.

        Raises:
            BadFile: NullInKey, UnknownOperation, SchemaMismatch.
        """
        keys = pa.table({".".join(name): self._key(rows, name, fitting) for name in self.keys})
        if not self.op:
            return rows, keys
        op = rows.column(self.op).cast(pa.string())
        is_operation = pc.or_(pc.is_null(op), pc.is_in(op, value_set=pa.array([*_ADD, DELETE])))
        if not pc.all(is_operation, min_count=0).as_py():
            raise BadFile(
                "UnknownOperation",
                f"column {self.op} holds values other than U, I, D and null, expected one of these",
            )
        adds = pc.fill_null(pc.not_equal(op, DELETE), True)
        return rows.drop_columns([self.op]).filter(adds), keys

    def _key(self, rows: pa.Table, name: ColumnName, fitting: Fitting) -> pa.ChunkedArray:
        values: pa.ChunkedArray = values_at(rows.column(name[0]), name[1:])
        full_name = ".".join(name)
        if values.null_count:
            raise BadFile("NullInKey", f"column {full_name}, one of spec.replacement.keyColumns, holds nulls")
        field = fitting.target.field(name[0])
        for part in name[1:]:
            field = field.type.field(part)
        return fitting.column(values, field.with_name(full_name))

    def judged(self, keys: Mapping[str, Sequence[bytes]]) -> pa.Table | tuple[str, BadFile]:
        """All keys of a replacement; or a file and why the keys cannot be used.

        Args:
            keys: Encoded by `encoded`, by the URI of their file.
        """
        uris = sorted(keys)
        tables = [
            t.append_column(_OF, pa.repeat(pa.scalar(n, pa.int32()), t.num_rows))
            for n, uri in enumerate(uris)
            for t in map(decoded, keys[uri])
        ]
        rows = pa.concat_tables(tables)
        if rows.num_rows > KEYS_AT_MOST:
            return uris[0], too_many(rows.num_rows)
        names = [".".join(name) for name in self.keys]
        counted = rows.group_by(names, use_threads=False).aggregate([(_OF, "count"), (_OF, "max")])
        twice = counted.filter(pc.greater(counted.column(f"{_OF}_count"), 1))
        if twice.num_rows:
            return uris[pc.max(twice.column(f"{_OF}_max")).as_py()], BadFile(
                "DuplicateKey",
                f"{twice.num_rows} keys ({', '.join(names)}) are in several rows of the replacement, one "
                "of them in this file, and Lethe does not know which row is the last. Keep one row for each "
                "key",
            )
        return rows.drop_columns([_OF])


def too_many(rows: int) -> BadFile:
    """The error for a replacement with more keys than Lethe keeps in memory.

    Args:
        rows: Counted so far.
    """
    return BadFile(
        "TooManyKeys",
        f"the replacement has at least {rows} rows, expected at most {KEYS_AT_MOST} with "
        "spec.replacement.keyColumns. Divide it among several Restatements",
    )


def encoded(keys: pa.Table) -> bytes:
    """Keys as a stream of Arrow's IPC format, to return from a worker. `decoded` reads it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, keys.schema) as stream:
        stream.write_table(keys)
    return bytes(sink.getvalue().to_pybytes())


def decoded(keys: bytes) -> pa.Table:
    """Keys that `encoded` made, with the types that their columns had."""
    return pa.ipc.open_stream(keys).read_all()
