"""Convert a frame into the rows of one batch, and write them. I/O in `write_rows` only.

The rows are checked while they are written, so Spark computes the frame only once.

Invariant: a row with another batch id, or a null in a required column, fails the write before anything is committed.
"""

from typing import Final

from lethe.base.errors import InputError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType, StructType

from lethe_spark.jvm.data_files import DataFile
from lethe_spark.jvm.errors import JvmError
from lethe_spark.jvm.rewrite import write_uncommitted
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.sql.frames import named

_OTHER_BATCH: Final = "LETHE-OTHER-BATCH-ID"
_NULL: Final = "LETHE-NULL-IN-COLUMN:"


def rows_of_batch(frame: DataFrame, schema: StructType, batch_column: str, batch_id: str) -> DataFrame:
    """The frame with the table's columns in their order, each row with `batch_id` in the batch column.

    Raises: InputError (`SchemaMismatch`), naming the column.
    """
    insensitive = frame.sparkSession.conf.get("spark.sql.caseSensitive", "false") != "true"

    def plain(name: str) -> str:
        return name.lower() if insensitive else name

    given = {plain(f.name): f for f in frame.schema.fields}
    if len(given) < len(frame.schema.fields):
        raise InputError("SchemaMismatch", f"the frame has two columns with the same name: {', '.join(frame.columns)}.")
    known = {plain(f.name) for f in schema.fields}
    if extra := [f.name for f in frame.schema.fields if plain(f.name) not in known]:
        raise InputError(
            "SchemaMismatch",
            f"the frame has columns that the table does not have: {', '.join(extra)}. The table has "
            f"{', '.join(schema.names)}.",
        )
    columns: list[Column] = []
    for field in schema.fields:
        found = given.get(plain(field.name))
        if field.name == batch_column:
            columns.append(_batch_id(named(found.name) if found else None, batch_id).alias(field.name))
        elif found is not None and not field.nullable and found.nullable:
            columns.append(_not_null(named(found.name), field.name).alias(field.name))
        elif found is not None:
            columns.append(named(found.name).alias(field.name))
        elif field.nullable:
            columns.append(F.lit(None).cast(field.dataType).alias(field.name))
        else:
            raise InputError(
                "SchemaMismatch", f"the frame has no column {field.name}, which the table requires in every row."
            )
    return frame.select(*columns)


def write_rows(table: SparkTable, rows: DataFrame, run_id: str, batch_column: str) -> tuple[DataFile, ...]:
    """Write the rows as data files of no snapshot.

    Raises: InputError (BatchIdMismatch, NullInColumn, SchemaMismatch), and any error of computing the frame.
    """
    try:
        return write_uncommitted(table, rows, run_id)
    except AnalysisException as e:
        raise InputError(
            "SchemaMismatch", f"the frame does not fit {table.full_name}: {str(e).strip().splitlines()[0][:300]}"
        ) from e
    except (PySparkException, *JvmError) as e:
        text = str(e)
        if _OTHER_BATCH in text:
            raise InputError(
                "BatchIdMismatch",
                f"the frame has rows whose {batch_column} is null or differs from the batch_id of this write. Nothing was "
                "committed. Drop the column, or write one batch at a time.",
            ) from e
        if _NULL in text:
            column = text.split(_NULL, 1)[1].split(":", 1)[0]
            raise InputError(
                "NullInColumn",
                f"the frame has rows with a null in {column}, which {table.full_name} requires in every row.",
            ) from e
        raise


def _batch_id(found: Column | None, batch_id: str) -> Column:
    if found is None:
        return F.lit(batch_id)
    text = found.cast(StringType())
    return F.when(text == F.lit(batch_id), text).otherwise(F.raise_error(_OTHER_BATCH))


def _not_null(column: Column, name: str) -> Column:
    return F.when(column.isNotNull(), column).otherwise(F.raise_error(f"{_NULL}{name}:"))
