"""Writes batches into a table, and before that adds their new columns, if spec.schemaEvolution allows it. I/O.

Invariant: the schema changes before the rows that need it are written. It changes in a separate commit, which only adds optional
columns and widens types. After a crash, the next attempt finds the columns, still without values. If two runs do this at the same
time, the second finds the columns of the first.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from lethe.base.errors import TransientError
from lethe.contract.csv_dialect import RFC_4180
from lethe.contract.result import Phase, RefusedBatch
from lethe.contract.settings import SchemaEvolution
from lethe.ingest.buffer_files import ReadSettings
from lethe.ingest.change_rows import Keyed
from lethe.ingest.schema_fit import Evolution, plan_evolution
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from lethe_spark.commit.ledger_commit import Attempts
from lethe_spark.commit.unpublished import discard
from lethe_spark.ingest.ingest import BatchSource, Ingested, write_batches
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import RunContext, table_properties

log = logging.getLogger(__name__)


def write_into(
    context: RunContext,
    table: SparkTable,
    sources: Sequence[BatchSource],
    batch_column: str,
    target_file_size_bytes: int | None = None,
    keyed: Mapping[str, Keyed] = MappingProxyType({}),
) -> Ingested:
    """Write batches as data files of the table, and add columns to it if needed.

    If columns are added, all files are written again: files with the narrower types cannot be committed.

    Args:
        keyed: The batches that are change data, by id.
    Raises: as `write_batches`; ConflictError, TransientError (`ColumnsMoved`), if another writer changed the columns meanwhile.
    """
    spec = context.spec
    settings = ReadSettings(
        batch_column,
        dict(context.catalog_properties),
        spec.buffer.format,
        spec.schema_evolution is SchemaEvolution.ADD_COLUMNS,
        dict(keyed),
        spec.buffer.csv or RFC_4180,
    )
    io_properties = table_properties(context)
    first = write_batches(table, sources, settings, spec.run_id, target_file_size_bytes, io_properties)
    if not first.wanting:
        return first
    evolution = plan_evolution(to_arrow_schema(table.columns), first.wanting)
    refused = [
        RefusedBatch(batch_id=i, reason="SchemaMismatch", message=f"{uri}: {text}")
        for i, (uri, text) in evolution.refused.items()
    ]
    again = [s for s in sources if s.id not in evolution.refused]
    if len(evolution.refused) == len(first.wanting):
        return replace(first, refused=(*first.refused, *refused), wanting={})
    discard(table, first.files, Attempts())
    if evolution.columns:
        context.step("before-columns")
        context.reporter.phase(Phase.WRITING, f"columns for {len(first.wanting) - len(refused)} batches")
        table.take_over(as_columns(evolution, table.columns))
        log.info("added or widened columns of %s: %s", table.full_name, ", ".join(evolution.columns.names))
    context.step("after-columns")
    second = write_batches(table, again, settings, spec.run_id, target_file_size_bytes, io_properties)
    if second.wanting:
        discard(table, second.files, Attempts())
        raise TransientError(
            "ColumnsMoved",
            f"the columns that this run added to {table.full_name} were changed or dropped, probably by "
            "another writer. Nothing was committed. The run tries again.",
        )
    return replace(second, refused=(*refused, *second.refused))


def as_columns(evolution: Evolution, table: StructType) -> StructType:
    """The columns to add or widen, in Spark's types. New columns are optional; widened columns stay required if they were."""
    required = {f.name for f in table if not f.nullable}
    wanted = from_arrow_schema(evolution.columns, prefer_timestamp_ntz=True)
    return StructType([StructField(f.name, f.dataType, f.name not in required) for f in wanted])
