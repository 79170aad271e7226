"""Reading batches into a table as its Dataset allows: refused when they have more columns, or taken over. I/O.

Invariant: the table changes before any row is written, in a commit of its own that only adds optional columns and widens
types. A crash after it leaves columns without values, which the next attempt finds there; of two runs at once, the second
finds what the first has added.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from lethe.errors import TransientError
from lethe.run import Phase, RefusedBatch
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from lethe_spark.context import RunContext
from lethe_spark.ingest import BatchSource, Ingest, read_batches
from lethe_spark.jvm.table import IcebergTable
from lethe_spark.schema_fit import Evolution, plan_evolution

log = logging.getLogger(__name__)


@contextmanager
def read_into(
    context: RunContext, table: IcebergTable, sources: Sequence[BatchSource], batch_column: str
) -> Iterator[Ingest]:
    """Read batches into the columns that the table has, or has afterwards. What was read is kept within the `with`.

    Every file is read once; only batches that want new columns are looked at again, once the table has these.

    Raises: as `read_batches`; ConflictError, TransientError (`ColumnsMoved`), if others changed its columns meanwhile.
    """
    with _read(context, table.columns, sources, batch_column) as first:
        if not first.wanting:
            yield first
            return
        evolution = plan_evolution(to_arrow_schema(table.columns), first.wanting)
        again = [s for s in sources if s.id in first.wanting and s.id not in evolution.refused]
        if evolution.columns:
            context.step("before-columns")
            context.reporter.phase(Phase.READING, f"columns for {len(again)} batches")
            table.take_over(as_columns(evolution, table.columns))
            log.info("%s has taken over columns: %s", table.full_name, ", ".join(evolution.columns.names))
        context.step("after-columns")
        with _read(context, table.columns, again, batch_column) as second:
            if second.wanting:
                raise TransientError(
                    "ColumnsMoved",
                    f"columns that {table.full_name} took over are gone or changed again; another writer must have changed "
                    "its schema. Nothing was committed; it is tried again.",
                )
            yield _joined(first, second, evolution)


def as_columns(evolution: Evolution, table: StructType) -> StructType:
    """What a table takes over, in Spark's types: new columns are optional, others as required as they were."""
    required = {f.name for f in table if not f.nullable}
    wanted = from_arrow_schema(evolution.columns, prefer_timestamp_ntz=True)
    return StructType([StructField(f.name, f.dataType, f.name not in required) for f in wanted])


def _read(context: RunContext, columns: StructType, sources: Sequence[BatchSource], batch_column: str) -> Ingest:
    spec = context.spec
    add = spec.schema_evolution == "AddColumns"
    return read_batches(
        context.spark, sources, columns, batch_column, context.catalog_properties, spec.buffer.format, add
    )


def _joined(first: Ingest, second: Ingest, evolution: Evolution) -> Ingest:
    """Both readings as one, in the columns of the second."""
    # Its columns may have become wider since the first reading.
    early = first.frame.to(StructType([StructField(f.name, f.dataType, True) for f in second.frame.schema]))
    refused = [
        RefusedBatch(batch_id=i, reason="SchemaMismatch", message=f"{uri}: {text}")
        for i, (uri, text) in evolution.refused.items()
    ]
    return replace(
        second,
        rows_per_batch={**first.rows_per_batch, **second.rows_per_batch},
        refused=(*first.refused, *refused, *second.refused),
        frame=early.unionByName(second.frame),
        unread=(*first.unread, *second.unread),
    )
