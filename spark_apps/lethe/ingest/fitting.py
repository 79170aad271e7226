"""Converts the rows of files to rows of the table: its columns, their types, the batch id. Pure: Arrow in, Arrow out.

Invariant: a value is never changed. If a value cannot be converted exactly, the file is not used.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lethe.ingest.buffer_store import BadFile, FileTask
from lethe.ingest.exact_values import Flaw, exact
from lethe.ingest.path_limits import too_long

# The type of the batch column in converted rows. A text for each row would take more space and time.
BATCH_IDS: Final = pa.dictionary(pa.int32(), pa.string())


@dataclass(frozen=True)
class Piece:
    """Some or all rows of one file."""

    task: FileTask
    rows: pa.Table
    # The number of the first row in the file, from 0, for messages. None: the rows do not follow one another in the file.
    first_row: int | None = 0

    @property
    def bytes(self) -> int:
        """The size in memory. `nbytes` would read every buffer, which takes as long as decoding a column."""
        return int(self.rows.get_total_buffer_size())


class BadValue(BadFile):
    """A value that cannot be stored exactly."""

    def __init__(self, flaw: Flaw) -> None:
        super().__init__("SchemaMismatch", str(flaw))
        self.flaw = flaw


@dataclass(frozen=True)
class Fitting:
    """How rows of files are converted."""

    batch_column: str
    required: frozenset[str]  # columns that must not contain nulls
    null_is_absent: bool  # True: a null in the batch column of a file is accepted, as if the column were missing
    target: pa.Schema  # the columns of the table
    finite: bool = (
        False  # True: the format has no NaN and no infinite numbers, so that one shows a number that is too large
    )

    # Columns whose values become names of folders, each with the maximum length of its part of the name, in bytes.
    path_columns: tuple[tuple[str, int], ...] = ()

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of converted rows: those of the table, with the batch column of type `BATCH_IDS`."""
        at = self.target.get_field_index(self.batch_column)
        return self.target.set(at, self.target.field(at).with_type(BATCH_IDS)) if at >= 0 else self.target

    def fitted(self, pieces: Sequence[Piece]) -> pa.Table:
        """Convert the rows of all pieces, which must have the same columns.

        Raises: BadFile, if a value in any piece cannot be converted. To find the piece, call this with one piece at a time.
        """
        first = pieces[0]
        try:
            return self._fitted(pa.concat_tables(p.rows for p in pieces), _ids(pieces), first.task.batch_id)
        except BadValue as e:
            if first.first_row is None:
                raise BadFile("SchemaMismatch", f"column {e.flaw.path} {e.flaw.problem}") from e
            raise BadFile("SchemaMismatch", str(replace(e.flaw, row=e.flaw.row + first.first_row))) from e
        except pa.ArrowInvalid as e:
            raise BadFile("UnreadableFile", f"its values cannot be read ({type(e).__name__})") from e

    def _fitted(self, rows: pa.Table, ids: pa.DictionaryArray, first_id: str) -> pa.Table:
        at = {name: n for n, name in enumerate(rows.column_names)}
        if self.batch_column in at:
            self._check_batch_id(rows.column(self.batch_column), ids, first_id)
        columns: list[Any] = []
        for field in self.target:
            if field.name == self.batch_column:
                columns.append(ids)
            elif field.name not in at:
                columns.append(pa.nulls(rows.num_rows, field.type))
            else:
                columns.append(self.column(rows.column(at[field.name]), field))
        fitted = pa.Table.from_arrays(columns, schema=self.schema)
        for name, limit in self.path_columns:
            if flaw := too_long(fitted, name, limit):
                raise BadValue(flaw)
        return fitted

    def column(self, values: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
        """Convert one column to the table's type. Raises: BadValue."""
        found = exact(values, field.with_nullable(field.name not in self.required), self.finite)
        if isinstance(found, Flaw):
            raise BadValue(found)
        return found

    def _check_batch_id(self, values: pa.ChunkedArray, ids: pa.DictionaryArray, first_id: str) -> None:
        same = pc.equal(values.cast(pa.string()), ids.cast(pa.string()))
        if self.null_is_absent:
            same = same.drop_null()
        if same.null_count or not pc.all(same, min_count=0).as_py():
            raise BadFile(
                "BatchIdMismatch", f"column {self.batch_column} holds values other than the batch's id {first_id!r}"
            )


def _ids(pieces: Sequence[Piece]) -> pa.DictionaryArray:
    """The batch id of every row."""
    codes: dict[str, int] = {}
    of_pieces = [codes.setdefault(p.task.batch_id, len(codes)) for p in pieces]
    of_rows = np.repeat(np.array(of_pieces, np.int32), [p.rows.num_rows for p in pieces])
    return pa.DictionaryArray.from_arrays(of_rows, pa.array(list(codes), pa.string()))
