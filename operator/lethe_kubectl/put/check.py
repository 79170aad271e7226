"""Reads the local files as a consolidation would, and refuses what it would refuse. I/O: reads the files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from lethe.base.errors import InputError
from lethe.contract.settings import FileFormat
from lethe_spark.ingest.buffer_files import COLUMNS_WANTED, FileError, FileOutcome, Reader, ReadSettings, decode_columns
from lethe_spark.ingest.buffer_store import FileTask
from lethe_spark.ingest.ingest import refusal_of
from lethe_spark.ingest.schema_fit import plan_evolution
from pyiceberg.schema import Schema
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType


@dataclass
class _Outcomes:
    """Collects the outcomes of files."""

    found: dict[tuple[str, str], FileOutcome] = field(default_factory=dict)

    def add(self, outcomes: Mapping[tuple[str, str], FileOutcome]) -> None:
        self.found.update(outcomes)


def check_files(
    schema: Schema,
    batch_column: str,
    batch_id: str,
    files: list[Path],
    format_: FileFormat,
    add_columns: bool,
    on_file: Callable[[], object],
) -> int:
    """Read all rows, with the code of consolidations. Returns: their number.

    Args:
        schema: Of the table.
        add_columns: `spec.schemaEvolution` is AddColumns.
        on_file: Called after each file.
    Raises: InputError, with the reason and the message with which the batch would be refused.
    """
    settings = ReadSettings(batch_column, {}, format_, add_columns)
    outcomes = _Outcomes()
    columns = spark_columns(schema)
    reader = Reader(columns, settings, outcomes)
    for path in files:
        task = FileTask(batch_id, f"file://{path}", path.stat().st_size)
        request = pa.RecordBatch.from_pydict({"files": [FileTask.encode([task])]})
        for _ in reader.read([request]):
            pass  # reading is the check
        on_file()
    errors = [o.error for o in outcomes.found.values() if o.error is not None]
    _refuse(batch_id, [e for e in errors if e.reason != COLUMNS_WANTED])
    wanted = [(e.uri, decode_columns(e.message)) for e in errors]
    evolution = plan_evolution(to_arrow_schema(columns), {batch_id: wanted} if wanted else {})
    _refuse(batch_id, [FileError(uri, "SchemaMismatch", text) for uri, text in evolution.refused.values()])
    return sum(o.rows for o in outcomes.found.values())


def spark_columns(schema: Schema) -> StructType:
    """The columns as Spark names their types. Raises: InputError (`UnsupportedColumn`)."""
    try:
        found = from_arrow_schema(schema.as_arrow(), prefer_timestamp_ntz=True)
    except PySparkException as e:
        raise InputError(
            "UnsupportedColumn",
            f"the table has a column of a type that cannot be checked here ({e.getCondition()}). Put the files with --no-check.",
        ) from None
    for column, own in zip(schema.fields, found.fields, strict=True):
        own.nullable = not column.required
    return found


def _refuse(batch_id: str, errors: list[FileError]) -> None:
    if not errors:
        return
    refused = refusal_of(batch_id, errors)
    raise InputError(refused.reason, f"{refused.message}. Nothing was put into the buffer.")
