"""Reads buffered files into blocks of rows, which Spark keeps on the executors' disks until they are written. I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from lethe.ingest.buffer_files import FileOutcome, Reader
from lethe.ingest.buffer_store import TRANSIENT_MARKER, FileTask
from lethe.ingest.reading_errors import reading_failure
from lethe.writing.blocks import Block, BlockFacts
from lethe.writing.layout import TableLayout
from lethe.writing.read_task import Found, ReadTask
from pyspark import RDD, StorageLevel
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lethe_spark.ingest.packing import Group
from lethe_spark.jvm.errors import JvmError


class _FoundParam(AccumulatorParam[Found]):
    """Collects what tasks have found. If a task runs twice, it sends the same again."""

    def zero(self, value: Found) -> Found:  # noqa: ARG002
        return Found()

    def addInPlace(self, value1: Found, value2: Found) -> Found:  # noqa: N802
        value1.add(value2)
        return value1


@dataclass(frozen=True)
class ReadRows:
    """The rows of all files that could be read. Close it to free the disks."""

    blocks: RDD[Block]
    # By batch id and URI, of all files.
    outcomes: Mapping[tuple[str, str], FileOutcome]
    facts: BlockFacts

    def __enter__(self) -> "ReadRows":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.blocks.unpersist()


def read_files(spark: SparkSession, groups: Sequence[Group], reader: Reader, layout: TableLayout | None) -> ReadRows:
    """Read all files, and keep their rows.

    Args:
        layout: By which rows are divided by partition. None: they are not.
    Raises: TransientError: `BufferAway`, if the store failed; the errors of the workers.
    """
    context = spark.sparkContext
    found: Accumulator[Found] = context.accumulator(Found(), _FoundParam())
    payloads = [(g.number, g.range, FileTask.encode(g.files)) for g in groups]
    blocks = context.parallelize(payloads, max(len(payloads), 1)).mapPartitions(ReadTask(reader, layout, found))
    blocks.persist(StorageLevel.DISK_ONLY)
    try:
        blocks._jrdd.rdd().count()  # in Java, so that the rows do not come back to Python
    except (PySparkException, *JvmError) as e:
        blocks.unpersist()
        if TRANSIENT_MARKER in str(e):
            raise reading_failure(e) from e
        raise
    expected = sum(len(g.files) for g in groups)
    if len(found.value.outcomes) != expected:
        raise RuntimeError(f"expected the outcomes of {expected} files, found {len(found.value.outcomes)}")
    return ReadRows(blocks, found.value.outcomes, found.value.blocks)
