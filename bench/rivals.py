"""Ways to take rows out of a table, behind one face: Lethe's own, and what Iceberg offers without it. I/O.

Each rival is a clone of a base table. What is timed is `delete`: from the list of batches to the commit.
"""

import itertools
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import lethe_spark
import pyarrow as pa
import pyarrow.parquet as pq
from lethe.contract.run import RunKind
from lethe_spark.jvm.gateway import gateway, jvm
from lethe_spark.jvm.spark_table import SparkTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from bench.lake import BATCH_COLUMN, Lake, Size, append_files, files_of, our_properties, promote, revert, revert_request
from bench.timing import failure, seconds_of

LEDGER = "ledger"
COPY_ON_WRITE = "copy-on-write"
POSITION_DELETES = "position deletes (v2)"
DELETION_VECTORS = "deletion vectors (v3)"
EQUALITY_DELETES = "equality deletes (v2)"
PLAIN = "plain scan"
_NUMBERS = itertools.count(1)


class Rival(Protocol):
    """A way to delete batches."""

    def delete(self, indexes: Sequence[int]) -> float:
        """Delete batches by index. Returns: the seconds it took."""

    def read(self) -> DataFrame:
        """The remaining rows."""


def a_clone(lake: Lake, base: str, kind: str, size: Size, version: int = 2) -> Rival:
    """A table with the files of `base`, of the kind that one of the constants above names.

    Args:
        version: Iceberg's format version of a table with a ledger; the other kinds have their own.
    """
    source = lake.load(base)
    assert source is not None
    files = files_of(source)
    ordered = base.startswith("base.sorted")
    name = f"run.t{next(_NUMBERS)}_{uuid.uuid4().hex[:8]}"
    if kind == LEDGER:
        table = lake.create(name, version=version, ordered=ordered, properties=our_properties())
        promote(lake, table, size, files)
        return Ledger(lake, table, size)
    properties = {
        COPY_ON_WRITE: {"write.delete.mode": "copy-on-write"},
        POSITION_DELETES: {"write.delete.mode": "merge-on-read"},
        DELETION_VECTORS: {"write.delete.mode": "merge-on-read"},
    }.get(kind, {})
    table = lake.create(name, version=3 if kind == DELETION_VECTORS else 2, ordered=ordered, properties=properties)
    append_files(table, files)
    return (EqualityDeletes if kind == EQUALITY_DELETES else SparkSql)(lake, table, size)


def check(frame: DataFrame, size: Size, deleted: int) -> None:
    """Raises: RuntimeError, if other rows are left than should be. `deleted`: how many batches were deleted."""
    found = frame.agg(F.count(F.col(BATCH_COLUMN))).collect()[0][0]
    expected = (size.all_batches - deleted) * size.rows
    if found != expected:
        raise RuntimeError(f"{found} rows are left, expected {expected}")


def wrong(subject: Rival, size: Size, deleted: int) -> str:
    """What is wrong with the rows that are left; empty: nothing."""
    try:
        check(subject.read(), size, deleted)
    except Exception as e:
        return failure(e)
    return ""


@dataclass(frozen=True)
class Ledger:
    """Lethe: the restatement job, as a run carries it out once its session is up."""

    lake: Lake
    table: SparkTable
    size: Size

    def delete(self, indexes: Sequence[int]) -> float:
        request = revert_request([self.size.batch_id(i) for i in indexes])
        with self.lake.context(RunKind.RESTATEMENT, self.table.name, [request]) as context:
            return seconds_of(lambda: revert(context))

    def read(self) -> DataFrame:
        return lethe_spark.read(self.lake.spark, self.table.full_name)


@dataclass(frozen=True)
class SparkSql:
    """One `DELETE … WHERE batch_id IN (…)`, in the mode that the table's properties name."""

    lake: Lake
    table: SparkTable
    size: Size

    def delete(self, indexes: Sequence[int]) -> float:
        ids = [self.size.batch_id(i) for i in indexes]
        spark, name = self.lake.spark, self.table.full_name
        if len(ids) <= 1000:
            listed = ", ".join(f"'{i}'" for i in ids)
            return seconds_of(lambda: spark.sql(f"DELETE FROM {name} WHERE {BATCH_COLUMN} IN ({listed})"))
        # A list of 100,000 literals is more than Spark's parser takes.
        spark.createDataFrame([(i,) for i in ids], "id string").createOrReplaceTempView("doomed")
        return seconds_of(lambda: spark.sql(f"DELETE FROM {name} WHERE {BATCH_COLUMN} IN (SELECT id FROM doomed)"))

    def read(self) -> DataFrame:
        return self.lake.spark.table(self.table.full_name)


@dataclass(frozen=True)
class EqualityDeletes:
    """Equality deletes, as a streaming writer makes them: one file of ids with bounds for each affected partition, written
    without reading data."""

    lake: Lake
    table: SparkTable
    size: Size

    def delete(self, indexes: Sequence[int]) -> float:
        months: dict[int, list[str]] = {}
        for i in sorted(indexes):
            months.setdefault(self.size.month(i), []).append(self.size.batch_id(i))
        return seconds_of(lambda: self._commit(months))

    def read(self) -> DataFrame:
        return self.lake.spark.table(self.table.full_name)

    def _commit(self, months: dict[int, list[str]]) -> None:
        self.table.refresh()
        update = self.table.java.newRowDelta()
        for month, ids in months.items():
            update = update.addDeletes(self._file(month, ids))
        update.commit()
        self.table.refresh()

    def _file(self, month: int, ids: list[str]) -> Any:
        spark = self.lake.spark
        api = jvm(spark).org.apache.iceberg
        field_id = self.table.field_id(BATCH_COLUMN)
        path = Path("/" + self.table.location.removeprefix("file:").lstrip("/")) / "data" / f"eq-{uuid.uuid4()}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        column = pa.field(BATCH_COLUMN, pa.string(), metadata={"PARQUET:field_id": str(field_id)})
        pq.write_table(pa.table({BATCH_COLUMN: ids}, schema=pa.schema([column])), path, compression="zstd")
        fields = gateway(spark).new_array(jvm(spark).int, 1)
        fields[0] = field_id
        text = api.types.Types.StringType.get()
        bounds = [{field_id: api.types.Conversions.toByteBuffer(text, i)} for i in (ids[0], ids[-1])]
        return (
            api.FileMetadata.deleteFileBuilder(self.table.java.spec())
            .ofEqualityDeletes(fields)
            .withPath(f"file:{path}")
            .withFormat(api.FileFormat.PARQUET)
            .withFileSizeInBytes(path.stat().st_size)
            .withPartitionPath(f"month={month}")
            .withMetrics(api.Metrics(len(ids), None, None, None, None, *bounds))
            .build()
        )


@dataclass(frozen=True)
class Untouched:
    """The base table itself: what reading costs when nothing was ever deleted."""

    lake: Lake
    name: str

    def delete(self, indexes: Sequence[int]) -> float:
        if indexes:
            raise ValueError("a base table is never changed")
        return 0.0

    def read(self) -> DataFrame:
        return self.lake.spark.table(f"{self.lake.catalog}.{self.name}")
