"""Checks the files of a batch as a consolidation would, before the batch is complete. Without Spark. I/O: reads the files.

It finds what the files alone show. A consolidation also compares batches with each other, and the table may change meanwhile.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.schema import Schema

from lethe.base.errors import InputError
from lethe.contract.result import RefusedBatch
from lethe.iceberg.unknown_types import is_required, unknown_columns
from lethe.ingest.arrow_types import as_column
from lethe.ingest.buffer_files import (
    COLUMNS_WANTED,
    FileError,
    FileOutcome,
    Reader,
    ReadSettings,
    decode_columns,
    refusal_of,
)
from lethe.ingest.buffer_store import FileTask
from lethe.ingest.schema_fit import of_unknown_type, plan_evolution, unknown_type


@dataclass(frozen=True)
class Whole:
    """Which files are read completely."""

    file_bytes: int  # the largest of them
    all_bytes: int  # of all of them together


@dataclass(frozen=True)
class Checked:
    """What the files of a batch show."""

    rows: int | None  # of all files; None: not all were read
    refusal: RefusedBatch | None  # with what a consolidation would refuse the batch; None: with nothing


def columns_of(schema: Schema) -> pa.Schema:
    """The columns of a table as runs read them. Raises: InputError (`UnsupportedColumn`)."""
    found = []
    for column in with_unknown_types(schema.as_arrow(), schema):
        if unknown_type(column) is not None:
            found.append(column)
            continue
        fixed = pa.types.is_fixed_size_binary(column.type)
        type_ = pa.binary() if fixed else as_column(column.type, keep_required=True)
        if type_ is None:
            raise InputError(
                "UnsupportedColumn",
                f"the table has a column {column.name} of type {column.type}, which cannot be checked here",
            )
        found.append(pa.field(column.name, type_, column.nullable))
    return pa.schema(found)


def with_unknown_types(columns: pa.Schema, schema: Schema) -> pa.Schema:
    """The columns of a table, those with types that Lethe does not know as `of_unknown_type` makes them.

    Args:
        columns: Of the same table.
    """
    unknown = unknown_columns(schema)
    required = {f.name: is_required(f) for f in schema.fields}
    return pa.schema(
        [of_unknown_type(f.name, unknown[f.name], required[f.name]) if f.name in unknown else f for f in columns]
    )


def check_files(
    columns: pa.Schema,
    tasks: Sequence[FileTask],
    settings: ReadSettings,
    whole: Whole | None = None,
    on_file: Callable[[], object] = lambda: None,
) -> Checked:
    """Check the files of one batch.

    Args:
        columns: Of the table, see `columns_of`.
        whole: Of other files only the columns are compared; None: all rows of all files are read.
        on_file: Called after each file.
    Raises: BufferAway, if the store fails; NoDecoder.
    """
    outcomes: dict[tuple[str, str], FileOutcome] = {}
    reader = Reader(columns, settings)
    completely: list[FileTask] = []
    others: list[FileTask] = []
    read_bytes = 0
    for task in tasks:
        if whole is not None and (task.size > whole.file_bytes or read_bytes + task.size > whole.all_bytes):
            others.append(task)
        else:
            read_bytes += task.size
            completely.append(task)
    for _ in reader.tables(completely, outcomes, on_file, rows=False):
        pass
    reader.compare_columns(others, outcomes, on_file)
    errors = [o.error for o in outcomes.values() if o.error is not None]
    refusal = _refusal(reader.target, tasks[0].batch_id, errors) if errors else None
    rows = None if others or refusal is not None else sum(o.rows for o in outcomes.values())
    return Checked(rows, refusal)


def _refusal(target: pa.Schema, batch_id: str, errors: list[FileError]) -> RefusedBatch | None:
    """None: the files fit once the columns that they want are added."""
    if any(e.reason != COLUMNS_WANTED for e in errors):
        return refusal_of(batch_id, errors)
    wanted = [(e.uri, decode_columns(e.message)) for e in errors]
    refused = plan_evolution(target, {batch_id: wanted}).refused
    return (
        refusal_of(batch_id, [FileError(uri, "SchemaMismatch", text) for uri, text in refused.values()])
        if refused
        else None
    )
