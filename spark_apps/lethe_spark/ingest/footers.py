"""Reads the footers of files to register: few of them here, many of them through executors. I/O."""

from collections.abc import Sequence
from math import ceil
from typing import Final

from lethe.buffer.small_sets import FILES_AT_MOST
from lethe.ingest.buffer_store import FileTask
from lethe.ingest.footers import Footer, FooterReader
from lethe.ingest.reading_errors import reading_failure
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lethe_spark.ingest.packing import FILES_PER_GROUP
from lethe_spark.jvm.errors import JvmError

# Footers that the driver reads itself: starting tasks for them would take longer.
IN_DRIVER: Final = FILES_AT_MOST


def read_footers(spark: SparkSession, reader: FooterReader, tasks: Sequence[FileTask]) -> list[Footer]:
    """Read the footers of files, in any order. Raises: TransientError."""
    return _here(reader, tasks) if len(tasks) <= IN_DRIVER else _by_tasks(spark, reader, tasks)


def _here(reader: FooterReader, tasks: Sequence[FileTask]) -> list[Footer]:
    try:
        return list(reader.footers(tasks))
    except Exception as e:
        raise reading_failure(e) from e


def _by_tasks(spark: SparkSession, reader: FooterReader, tasks: Sequence[FileTask]) -> list[Footer]:
    groups = min(max(spark.sparkContext.defaultParallelism, ceil(len(tasks) / FILES_PER_GROUP)), len(tasks))
    payloads = [FileTask.encode(tasks[n::groups]) for n in range(groups)]
    try:
        texts = spark.sparkContext.parallelize(payloads, groups).flatMap(reader.read).collect()
    except (PySparkException, *JvmError) as e:
        raise reading_failure(e) from e
    return [Footer.decode(text) for text in texts]
