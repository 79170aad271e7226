"""Writes blocks of rows as uncommitted data files: with Arrow in Spark's Python workers, or by Spark, if Arrow cannot. I/O."""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
from lethe.iceberg.unknown_types import unknown_columns
from lethe.ingest.registrable import Target
from lethe.writing.blocks import Block, BlockKey, bytes_of_cells, decode, plan, without_batches
from lethe.writing.layout import TableLayout, Unsupported
from lethe.writing.write_task import WriteTask
from pyiceberg.schema import Schema
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructField, StructType

from lethe_spark.commit.ledger_commit import Attempts
from lethe_spark.commit.unpublished import discard
from lethe_spark.ingest.reading import ReadRows
from lethe_spark.jvm.data_files import DataFile, described
from lethe_spark.jvm.errors import JvmError
from lethe_spark.jvm.gateway import each
from lethe_spark.jvm.registration import data_files
from lethe_spark.jvm.rewrite import write_uncommitted
from lethe_spark.jvm.run_folder import run_folder
from lethe_spark.jvm.spark_table import SparkTable

log = logging.getLogger(__name__)
# Up to this size one of Spark's tasks sorts the rows of a partition. Above it, several tasks share a partition.
ONE_PASS_BYTES: Final = 1024 * 1024 * 1024
# Rows of one batch that a task of Arrow sorts in memory.
SORTED_BYTES: Final = 512 * 1024 * 1024
_ROWS_AT_ONCE: Final = 65_536
# Spark's setting of how many rows it sends to Python at a time.
_ROWS_PER_BATCH: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_TARGET_SIZE: Final = "write.target-file-size-bytes"
_DEFAULT_TARGET_SIZE: Final = 512 * 1024 * 1024


class PathsParam(AccumulatorParam[list[str]]):
    """Collects the files that tasks have written."""

    def zero(self, value: list[str]) -> list[str]:  # noqa: ARG002
        return []

    def addInPlace(self, value1: list[str], value2: list[str]) -> list[str]:  # noqa: N802
        value1.extend(value2)
        return value1


def layout_of(
    table: SparkTable,
    columns: pa.Schema,
    batch_column: str,
    io_properties: Mapping[str, str],
    run_id: str,
    target_file_size_bytes: int | None,
) -> TableLayout | None:
    """What Arrow needs to know to write the table. None: Spark must write it.

    Args:
        columns: Of the rows, as Spark reads the table. Columns of unknown types are not among them.
        io_properties: PyIceberg's FileIO properties of the table.
        target_file_size_bytes: None: as the table's properties say.
    """
    api, java, properties = table.jvm.org.apache.iceberg, table.java, dict(table.properties)
    field_id = table.field_id(batch_column)
    assert field_id is not None
    # Files without a column are files with nulls.
    schema = Schema(*(f for f in table.schema.fields if f.name in columns.names), schema_id=table.schema.schema_id)
    target = Target(
        schema.model_dump_json(),
        str(api.PartitionSpecParser.toJson(java.spec())),
        properties,
        field_id,
        may_lack=True,
    )
    layout = TableLayout(
        target,
        columns,
        str(api.SortOrderParser.toJson(java.sortOrder())),
        table.location,
        run_folder(table, run_id),
        target_file_size_bytes or int(properties.get(_TARGET_SIZE, _DEFAULT_TARGET_SIZE)),
        io_properties,
    )
    try:
        layout.check()
    except Unsupported as e:
        log.info("Spark writes the data files of %s: %s", table.full_name, e)
        return None
    except ValueError:  # PyIceberg cannot read the schema, the spec or the sort order
        log.info("Spark writes the data files of %s: PyIceberg does not know all of its types", table.full_name)
        return None
    return layout


def fits_in_memory(layout: TableLayout, sizes: Mapping[BlockKey, int]) -> bool:
    """Whether each task of Arrow can sort its rows in memory."""
    return layout.batches_in_order or max(bytes_of_cells(sizes).values(), default=0) <= SORTED_BYTES


def write_with_arrow(
    table: SparkTable, rows: ReadRows, layout: TableLayout, input_bytes: int, without: Sequence[str]
) -> tuple[DataFile, ...]:
    """Write the rows in Spark's Python workers.

    Args:
        input_bytes: Bytes of the files that were read.
        without: Batches whose rows are left out.
    Raises: the errors of the workers.
    """
    if not rows.facts.sizes:
        return ()
    context = table.spark.sparkContext
    tasks, count = plan(rows.facts.sizes, input_bytes, layout.target_file_size, context.defaultParallelism)
    paths: Accumulator[list[str]] = context.accumulator([], PathsParam())
    work = WriteTask(layout, tuple(without))

    def write(blocks: Iterable[Block]) -> Iterator[str]:
        documents = list(work(blocks))
        paths.add([json.loads(d)["file-path"] for d in documents])
        yield from documents

    if count == 1:
        routed = rows.blocks.coalesce(1)
    else:
        routed = rows.blocks.map(lambda block: (tasks[block.key.cell], block)).partitionBy(count, int).values()
    try:
        documents = routed.mapPartitions(write).collect()
    except (PySparkException, *JvmError):
        discard(table, paths.value, Attempts())
        raise
    return described(table, each(data_files(table, documents)))


def write_with_spark(
    table: SparkTable,
    rows: ReadRows,
    batch_column: str,
    run_id: str,
    target_file_size_bytes: int | None,
    input_bytes: int,
    without: Sequence[str],
) -> tuple[DataFile, ...]:
    """Write the rows as `write_uncommitted` does. Arguments: as `write_with_arrow`."""
    if not rows.facts.sizes:
        return ()
    every, unknown = table.columns, unknown_columns(table.schema)
    columns = StructType([StructField(f.name, f.dataType, True) for f in every if f.name not in unknown])

    def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for content in batch.column(0):
                table = without_batches(decode(content.as_py()), batch_column, without)
                at = table.schema.get_field_index(batch_column)
                text = table.column(at).cast(pa.string())
                yield from table.set_column(at, batch_column, text).to_batches(max_chunksize=_ROWS_AT_ONCE)

    frame = rows.blocks.map(lambda block: (block.content,)).toDF("content binary").mapInArrow(unpack, columns)
    frame = frame.withColumns({n: F.lit(None).cast(every[n].dataType) for n in unknown})
    one_pass = input_bytes <= ONE_PASS_BYTES
    conf = table.spark.conf
    before = conf.get(_ROWS_PER_BATCH)
    conf.set(_ROWS_PER_BATCH, "1")  # a row is a block of megabytes
    try:
        return write_uncommitted(table, frame, run_id, target_file_size_bytes, one_pass=one_pass)
    finally:
        conf.set(_ROWS_PER_BATCH, str(before))
