"""Checks the files of a batch as a consolidation would, before the batch is complete. Without Spark. I/O: reads the files.

It finds what the files alone show. A consolidation also compares batches with each other, and the table may change meanwhile.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.schema import Schema

from lethe.base.errors import InputError
from lethe.contract.result import RefusedBatch
from lethe.decoder.process import OnWait
from lethe.iceberg.metadata_file import is_required, unknown_columns
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
from lethe.ingest.exact_values import as_column
from lethe.ingest.schema_fit import of_unknown_type, plan_evolution, unknown_type, with_stored_type


@dataclass(frozen=True)
class Whole:
    """Which files are read completely."""

    file_bytes: int
    """The largest of them."""
    all_bytes: int
    """Of all of them together."""


@dataclass(frozen=True)
class Checked:
    """What the files of a batch show."""

    rows: int | None
    """The rows of all files; None: not all were read."""
    refusal: RefusedBatch | None
    """How a consolidation would refuse the batch; None: it would not."""
    hold: RefusedBatch | None = None
    """How a check would hold the batch; None: it would not."""


def columns_of(schema: Schema) -> pa.Schema:
    """The columns of a table as runs read them.

    Raises:
        InputError: `UnsupportedColumn`.
    """
    columns = []
    for column in with_unknown_types(pa.schema([f.remove_metadata() for f in schema.as_arrow()]), schema):
        if unknown_type(column) is not None:
            columns.append(column)
            continue
        type_ = as_column(column.type, of_table=True)
        if type_ is None:
            raise InputError(
                "UnsupportedColumn",
                f"the table has a column {column.name} of type {column.type}, which cannot be checked here",
            )
        columns.append(column.with_type(type_))
    return pa.schema(columns)


def with_unknown_types(columns: pa.Schema, schema: Schema) -> pa.Schema:
    """The columns of a table, those with types that Lethe does not know as `of_unknown_type` makes them.

    Args:
        columns: Of the same table. Others say which values they hold, where their types in Arrow do not (`with_stored_type`).
    """
    unknown, fields = unknown_columns(schema), {f.name: f for f in schema.fields}
    return pa.schema(
        [
            of_unknown_type(f.name, unknown[f.name], is_required(fields[f.name]))
            if f.name in unknown
            else with_stored_type(f, fields[f.name])
            for f in columns
        ]
    )


def check_files(
    columns: pa.Schema,
    tasks: Sequence[FileTask],
    settings: ReadSettings,
    whole: Whole | None = None,
    on_file: Callable[[], object] = lambda: None,
    on_wait: OnWait | None = None,
) -> Checked:
    """Check the files of one batch.

    Args:
        columns: Of the table, see `columns_of`.
        settings: Its checks apply to the rows that are read.
        whole: Of other files only the columns are compared; None: all rows of all files are read.
        on_file: Called after each file.
        on_wait: Called often while a decoder works, with its processor time so far, in seconds. If it raises,
            the decoder is ended.

    Raises:
        BufferAway: The store fails.
        NoDecoder: No decoder can be started, or decoders end before they decode anything.
        Exception: What the functions raise.
    """
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
    outcomes = _read(reader, completely, on_file, on_wait)
    reader.compare_columns(others, outcomes, on_file, on_wait)
    errors = _errors(outcomes)
    if errors and all(e.reason == COLUMNS_WANTED for e in errors):
        # As a run does it: the table gets the columns, and then the files are read.
        evolution = plan_evolution(
            reader.target, {tasks[0].batch_id: [(e.uri, decode_columns(e.message)) for e in errors]}
        )
        errors = [FileError(uri, "SchemaMismatch", text) for uri, text in evolution.refused.values()]
        if not errors:
            wanting = [t for t in completely if outcomes[t.batch_id, t.uri].error is not None]
            evolved = Reader(_evolved(columns, evolution.columns), settings)
            outcomes |= _read(evolved, wanting, lambda: None, on_wait)
            errors = _errors({(t.batch_id, t.uri): outcomes[t.batch_id, t.uri] for t in completely})
    if errors:
        return Checked(None, refusal_of(tasks[0].batch_id, errors))
    rows = None if others else sum(o.rows for o in outcomes.values())
    failure = settings.checks.judge(rows, {uri: o.failed for (_, uri), o in outcomes.items()})
    if failure is None:
        return Checked(rows, None)
    named = RefusedBatch.of(tasks[0].batch_id, failure.verdict)
    return Checked(rows, None, named) if failure.is_held else Checked(None, named)


def _read(
    reader: Reader,
    tasks: Sequence[FileTask],
    on_file: Callable[[], object],
    on_wait: OnWait | None,
) -> dict[tuple[str, str], FileOutcome]:
    """Read all rows of files.

    Returns:
        The outcome of each, by batch id and URI.
    """
    outcomes: dict[tuple[str, str], FileOutcome] = {}
    for _ in reader.tables(tasks, outcomes, on_file, rows=False, on_wait=on_wait):
        pass
    return outcomes


def _errors(outcomes: Mapping[tuple[str, str], FileOutcome]) -> list[FileError]:
    return [o.error for o in outcomes.values() if o.error is not None]


def _evolved(columns: pa.Schema, added: pa.Schema) -> pa.Schema:
    """The columns of a table after some are added or widened: new ones are optional, widened ones stay required."""
    columns_by_name = {f.name: f for f in columns}
    for column in added:
        existing = columns_by_name.get(column.name)
        columns_by_name[column.name] = column.with_nullable(existing is None or existing.nullable)
    return pa.schema(list(columns_by_name.values()))
