"""One table of a test, and what tests do to it through Spark and without."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from lethe.base import names
from lethe.contract.result import Phase
from lethe.contract.run import BufferRef, CreateTable, RunKind, RunSpec, TableRef
from lethe.files.bounds import FileBounds
from lethe.iceberg import catalogs
from lethe.iceberg.facts import data_files
from lethe.ledger.ledger import Delta
from lethe_spark.commit.ledger_commit import Intent, commit_on_ledger
from lethe_spark.jvm.commit import Append, Change, LedgerOnly
from lethe_spark.jvm.data_files import DataFile, tasks_of
from lethe_spark.jvm.scan_tasks import write_uncommitted
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import RunContext
from lethe_spark.run.progress import Reporter
from pyspark.sql import SparkSession

from tests.support.builders import a_run, a_tombstone
from tests.support.lake import CATALOG, SCHEMA, Lake, Recorder

_NUMBERS = itertools.count(1)


def find_files(table: SparkTable, paths: Iterable[str], snapshot_id: int) -> tuple[DataFile, ...]:
    """The data files of a snapshot with these paths, in planning order."""
    return tuple(DataFile.of(task.file()) for task in tasks_of(table, paths, snapshot_id))


@dataclass(frozen=True)
class Flights:
    """A table for one test, and what tests do to it."""

    spark: SparkSession
    lake: Lake
    name: str
    table: SparkTable

    @classmethod
    def make(
        cls, spark: SparkSession, lake: Lake, partition_by: Sequence[str] = ("day",), schema: str = SCHEMA
    ) -> "Flights":
        name = f"air.flights_{next(_NUMBERS)}"
        create = CreateTable(table_schema=schema, partition_by=tuple(partition_by))
        table = SparkTable.create(spark, CATALOG, name, create, {names.CLAIM: "air/flights"})
        table.ensure_layout("batch_id")
        return cls(spark, lake, name, table)

    @property
    def catalog(self) -> str:
        return CATALOG

    @property
    def full_name(self) -> str:
        return f"{CATALOG}.{self.name}"

    def handle(self) -> SparkTable:
        """A second handle, as another process would have."""
        found = SparkTable.load(self.spark, CATALOG, self.name)
        assert found is not None
        return found

    def written(self, *batches: str, rows: int = 10, run_id: str = "run-1") -> tuple[DataFile, ...]:
        """Uncommitted files with `rows` rows of each batch, on two days."""
        values = [(i, 1 + i % 2, b) for b in batches for i in range(rows)]
        return write_uncommitted(self.table, self.spark.createDataFrame(values, SCHEMA), run_id)

    def append_as_foreign_writer(self, *batches: str, rows: int = 10) -> None:
        """A foreign writer: PyIceberg, which knows nothing of ledgers."""
        values = [{"v": i, "day": 1, "batch_id": b} for b in batches for i in range(rows)]
        schema = pa.schema([("v", pa.int64()), ("day", pa.int32()), ("batch_id", pa.string())])
        self.lake.catalog.load_table(self.name).append(pa.Table.from_pylist(values, schema=schema))

    def rows(self) -> int:
        """The number of rows, as Spark counts them without Lethe."""
        return self.spark.table(self.full_name).count()

    def rows_per_batch(self) -> dict[str, int]:
        """The number of rows of each batch, as PyIceberg counts them without Lethe."""
        scanned = self.lake.catalog.load_table(self.name).scan(selected_fields=("batch_id",)).to_arrow()
        return dict(Counter(scanned["batch_id"].to_pylist()))

    def written_files(self, snapshot_id: int) -> list[FileBounds]:
        """The live data files of a snapshot, as PyIceberg reads them from the manifests."""
        field_id = self.table.field_id("batch_id")
        assert field_id is not None
        return data_files(self.lake.catalog.load_table(self.name), snapshot_id, field_id)

    def ledger_files(self) -> list[Path]:
        return sorted(
            Path("/" + self.table.location.removeprefix("file:").lstrip("/")).glob(f"{names.LEDGER_FOLDER}/*")
        )

    def operation(self) -> str:
        """What Iceberg calls the newest commit."""
        head = self.lake.catalog.load_table(self.name).current_snapshot()
        assert head is not None
        assert head.summary is not None
        return head.summary.operation.value

    def run(self, kind: RunKind = RunKind.CONSOLIDATION, **changes: Any) -> RunSpec:
        wanted: dict[str, Any] = {
            "table": TableRef(catalog=CATALOG, name=self.name),
            "buffer": BufferRef(uri=self.lake.buffer(self.name).uri),
        }
        return a_run(kind, **{**wanted, **changes})

    def run_of(self, *batch_ids: str, **changes: Any) -> RunSpec:
        """A consolidation of these batches of the table's own buffer."""
        return self.run(batch_ids=batch_ids, **changes)

    @contextmanager
    def context(self, **changes: Any) -> Iterator[RunContext]:
        """A run's context, in this process."""
        spec = self.run(**changes)
        reporter = Reporter(spec, Recorder())
        try:
            yield RunContext(spec, reporter, catalogs.properties(CATALOG), spark=self.spark)
        finally:
            reporter.close(Phase.SUCCEEDED)

    def commit(self, *tombstoned: str, files: Sequence[DataFile] = (), run_id: str = "run-1") -> int:
        """One ledger commit as the jobs make it: tombstones for some batches, and data files."""
        field_id = self.table.field_id("batch_id")
        assert field_id is not None
        tombstones = tuple(a_tombstone(i, namespace=field_id, added_on=datetime.now(UTC)) for i in tombstoned)
        change: Change = Append(tuple(files)) if files else LedgerOnly()
        with self.context(run_id=run_id) as context:
            done = commit_on_ledger(
                context, self.table, lambda _: Intent(Delta(run_id, add_tombstones=tombstones), change, None)
            )
        assert done.snapshot_id is not None
        return done.snapshot_id
