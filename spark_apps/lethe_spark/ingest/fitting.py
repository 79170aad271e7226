"""Rows as files hold them, made rows of the table: its columns, their types, the batch's id. Pure: Arrow in, Arrow out.

Invariant: a value arrives as it was written or not at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lethe_spark.ingest import calendar_limits
from lethe_spark.ingest.buffer_store import BadFile, FileTask
from lethe_spark.ingest.schema_fit import kind_of


@dataclass(frozen=True)
class Piece:
    """Rows of one file, some or all of them."""

    task: FileTask
    rows: pa.Table

    @property
    def bytes(self) -> int:
        """In memory. `nbytes` would look into every buffer, which takes as long as decoding a column."""
        return int(self.rows.get_total_buffer_size())


@dataclass(frozen=True)
class Fitting:
    """Into which columns rows go.

    Args:
        required: Columns that must hold no nulls.
        null_is_absent: A file without batch ids in its batch column is one without that column.
        target: The columns of the table.
    """

    batch_column: str
    required: frozenset[str]
    null_is_absent: bool
    target: pa.Schema

    def fitted(self, pieces: Sequence[Piece]) -> pa.Table:
        """The rows of all pieces, which have the same columns, in the table's. Raises: BadFile, if a value in any of
        them cannot be had; of which it is, only a call with that one tells."""
        try:
            return self._fitted(pa.concat_tables(p.rows for p in pieces), _ids(pieces), pieces[0].task.batch_id)
        except pa.ArrowInvalid as e:
            raise BadFile("UnreadableFile", f"its values cannot be read ({type(e).__name__})") from e

    def _fitted(self, rows: pa.Table, ids: pa.ChunkedArray, first_id: str) -> pa.Table:
        if self.batch_column in rows.column_names:
            self._check_batch_id(rows.column(self.batch_column), ids, first_id)
        columns: list[Any] = []
        for field in self.target:
            if field.name == self.batch_column:
                columns.append(ids.cast(field.type))
            elif field.name not in rows.column_names:
                columns.append(pa.nulls(rows.num_rows, field.type))
            else:
                columns.append(self.column(rows.column(field.name), field))
        return pa.Table.from_arrays(columns, schema=self.target)

    def column(self, values: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
        """One column as the table has it. Raises: BadFile."""
        if field.name in self.required and values.null_count:
            raise BadFile("SchemaMismatch", f"column {field.name} holds nulls, the table requires values")
        try:
            fitting = values if values.type == field.type else values.cast(field.type, safe=True)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
            raise BadFile(
                "SchemaMismatch",
                f"column {field.name} is {kind_of(values.type)} and holds a value that {field.type} cannot hold as it is",
            ) from e
        if not _within_calendar(fitting):
            raise BadFile("SchemaMismatch", f"column {field.name} holds a {field.type} outside the years 1 to 9999")
        return fitting

    def _check_batch_id(self, values: pa.ChunkedArray, ids: pa.ChunkedArray, first_id: str) -> None:
        same = pc.equal(values.cast(pa.string()), ids)
        if self.null_is_absent:
            same = same.drop_null()
        if same.null_count or not pc.all(same, min_count=0).as_py():
            raise BadFile(
                "BatchIdMismatch", f"column {self.batch_column} holds values other than the batch's id {first_id!r}"
            )


def _ids(pieces: Sequence[Piece]) -> pa.ChunkedArray:
    """The batch's id for every row."""
    return pa.chunked_array([pa.repeat(p.task.batch_id, p.rows.num_rows) for p in pieces], pa.string())


def _within_calendar(values: pa.ChunkedArray) -> bool:
    if pa.types.is_timestamp(values.type):
        within, plain = calendar_limits.allow_microseconds, pa.int64()
    elif pa.types.is_date32(values.type):
        within, plain = calendar_limits.allow_days, pa.int32()
    else:
        return True
    found = pc.min_max(values.cast(plain)).as_py()
    return found["min"] is None or within(found["min"], found["max"])
